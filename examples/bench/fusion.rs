//! A layer's gemvs, fused as the decoder runs them and one thing at a time, on a model's own weights.

use crate::kernels::{RmsNorm, SwiGlu};
use crate::lab::{Arg, Call, Cost, Lab, at};
use kiln::driver::{Device, DeviceBuffer};
use kiln::model::ModelFile;
use kiln_codegen::Kernel;
use kiln_codegen::kernels::{FusedRmsNormQ4KGemv, Phase, PhaseKernel, Saxpy};
use kiln_shape::table::{DATA_OFFSET, ENTRY_BYTES, LAYER_SLOTS, MODEL_SLOTS, PLANE_OFFSET, TYPE_OFFSET, rows_per_tile};
use kiln_shape::{ModelShape, TensorRole, TensorRole::*, WeightType};
use std::error::Error;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};

/// The same work done in two ways.
pub(crate) struct Comparison {
    pub(crate) separate: &'static str,
    pub(crate) fused: &'static str,
    pub(crate) costs: [Cost; 2],
}

/// The kernels of both ways.
fn kernels(shape: ModelShape) -> Vec<Box<dyn Kernel>> {
    let mut all: Vec<Box<dyn Kernel>> = vec![Box::new(RmsNorm), Box::new(SwiGlu), Box::new(Saxpy)];
    for phase in [Phase::Qkv, Phase::AttentionOutput, Phase::GateUp, Phase::Down] {
        all.push(Box::new(PhaseKernel { phase, shape, types: WeightType::ALL.to_vec() }));
    }
    for weights in WeightType::ALL {
        let fused = FusedRmsNormQ4KGemv::general().with_weights(*weights);
        all.push(Box::new(fused.clone()));
        all.push(Box::new(fused.without_norm()));
    }
    all
}

/// Compares on the first layer of `file`.
pub(crate) fn compare(device: &Device, emulated: bool, file: &ModelFile) -> Result<Vec<Comparison>, Box<dyn Error>> {
    let shape = *file.shape();
    let lab = Lab::new(device, emulated, &kernels(shape))?;
    let layer = Layer::load(&lab, file)?;
    let (hidden, q_dim, kv_dim, ffn) = (shape.hidden, shape.q_dim(), shape.kv_dim(), shape.ffn);
    let residual = |len: u32| layer.vector(len, |i| (i % 13) as f32 / 8.0 - 0.75);
    let empty = |len: u32| layer.vector(len, |_| 0.0);
    let (x, attention, inner) = (residual(hidden)?, residual(q_dim)?, residual(ffn)?);
    let (normed, gate, up) = (empty(hidden)?, empty(ffn)?, empty(ffn)?);
    let mut comparisons = Vec::new();
    let mut compare = |names: [&'static str; 2], separate: &[Call], fused: &[Call], ys: [&DeviceBuffer<f32>; 2]| {
        let costs = [lab.measure(separate)?, lab.measure(fused)?];
        // Timed calls have added to residuals more often than once, both as often.
        same(names[1], &ys[0].to_host()?, &ys[1].to_host()?)?;
        comparisons.push(Comparison { separate: names[0], fused: names[1], costs });
        Ok::<(), Box<dyn Error>>(())
    };

    let (y0, y1) = (empty(q_dim)?, empty(q_dim)?);
    compare(
        ["RMSNorm; Q", "norm in the product"],
        &[layer.norm(AttnNorm, &x, &normed), layer.product(AttnQ, &normed, &y0, 0)],
        &[layer.normed_product(AttnQ, AttnNorm, &x, &y1, 0)],
        [&y0, &y1],
    )?;

    let rows = q_dim + 2 * kv_dim;
    let (y0, y1) = (empty(rows)?, empty(rows)?);
    let mut separate = Vec::new();
    for (role, bias, first) in [(AttnQ, AttnQBias, 0), (AttnK, AttnKBias, q_dim), (AttnV, AttnVBias, q_dim + kv_dim)] {
        separate.push(layer.normed_product(role, AttnNorm, &x, &y0, first));
        if shape.qkv_bias {
            separate.push(layer.add(layer.gamma(bias), &y0, first));
        }
    }
    compare(["Q; K; V, each with norm", "QKV in one"], &separate, &[layer.phase(Phase::Qkv, &x, &y1)], [&y0, &y1])?;

    let (y0, y1, product) = (residual(hidden)?, residual(hidden)?, empty(hidden)?);
    compare(
        ["output; residual", "residual in the product"],
        &[layer.product(AttnOutput, &attention, &product, 0), layer.add(&product, &y0, 0)],
        &[layer.phase(Phase::AttentionOutput, &attention, &y1)],
        [&y0, &y1],
    )?;

    let (y0, y1) = (empty(ffn)?, empty(ffn)?);
    let swiglu = Call {
        kernel: "swiglu".to_owned(),
        blocks: ffn.div_ceil(256),
        args: vec![at(&gate), at(&up), at(&y0), Arg::U32(ffn)],
    };
    compare(
        ["RMSNorm; gate; up; SwiGLU", "norm, gate, up, SwiGLU in one"],
        &[
            layer.norm(FfnNorm, &x, &normed),
            layer.product(FfnGate, &normed, &gate, 0),
            layer.product(FfnUp, &normed, &up, 0),
            swiglu,
        ],
        &[layer.phase(Phase::GateUp, &x, &y1)],
        [&y0, &y1],
    )?;

    let (y0, y1) = (residual(hidden)?, residual(hidden)?);
    compare(
        ["down; residual", "residual in the product"],
        &[layer.product(FfnDown, &inner, &product, 0), layer.add(&product, &y0, 0)],
        &[layer.phase(Phase::Down, &inner, &y1)],
        [&y0, &y1],
    )?;
    Ok(comparisons)
}

/// An error unless both ways have the same result, to rounding.
fn same(what: &str, a: &[f32], b: &[f32]) -> Result<(), Box<dyn Error>> {
    let square = |x: f32| f64::from(x).powi(2);
    let difference: f64 = a.iter().zip(b).map(|(a, b)| square(a - b)).sum();
    let norm: f64 = b.iter().map(|b| square(*b)).sum();
    if norm > 0.0 && (difference / norm).sqrt() < 1e-5 {
        return Ok(());
    }
    Err(format!("{what}: the results of both ways differ, {difference:e} of {norm:e} squared").into())
}

/// A tensor on the device.
struct Tensor {
    role: TensorRole,
    ty: WeightType,
    data: DeviceBuffer<u8>,
    /// f16 scales of Q6_K and Q8_0.
    plane: DeviceBuffer<u8>,
    /// The vector, if it is one.
    vector: Option<DeviceBuffer<f32>>,
}

/// The first layer.
struct Layer {
    device: Device,
    shape: ModelShape,
    tensors: Vec<Tensor>,
    table: DeviceBuffer<u8>,
}

impl Layer {
    fn load(lab: &Lab, file: &ModelFile) -> Result<Layer, Box<dyn Error>> {
        let (device, shape) = (&lab.device, *file.shape());
        let mut source = File::open(file.path())?;
        let mut tensors = Vec::new();
        for spec in shape.tensors().filter(|spec| spec.layer == Some(0)) {
            let tensor = file.gguf().required_tensor(&spec.name)?;
            let mut bytes = vec![0; usize::try_from(tensor.bytes())?];
            source.seek(SeekFrom::Start(tensor.offset()))?;
            source.read_exact(&mut bytes)?;
            let vector = match spec.role.is_matrix() {
                true => None,
                false => Some(DeviceBuffer::from_host(device, &floats(&bytes))?),
            };
            let ty = WeightType::from_ggml(tensor.ty()).ok_or("a type that kiln decodes")?;
            let (data, plane) = planes(ty, &bytes)?;
            tensors.push(Tensor {
                role: spec.role,
                ty,
                data: DeviceBuffer::from_host(device, &data)?,
                plane: DeviceBuffer::from_host(device, &plane)?,
                vector,
            });
        }
        let mut table = vec![0; ((MODEL_SLOTS + LAYER_SLOTS) * ENTRY_BYTES) as usize];
        for tensor in &tensors {
            let entry = tensor.role.table_index(0) * ENTRY_BYTES;
            let mut put = |offset: u32, bytes: &[u8]| {
                let at = (entry + offset) as usize;
                table[at..at + bytes.len()].copy_from_slice(bytes);
            };
            let data = tensor.vector.as_ref().map_or(tensor.data.as_ptr().address(), |v| v.as_ptr().address());
            put(DATA_OFFSET, &data.to_le_bytes());
            put(PLANE_OFFSET, &tensor.plane.as_ptr().address().to_le_bytes());
            put(TYPE_OFFSET, &tensor.ty.id().to_le_bytes());
        }
        let table = DeviceBuffer::from_host(device, &table)?;
        Ok(Layer { device: device.clone(), shape, tensors, table })
    }

    fn vector(&self, len: u32, value: impl Fn(u32) -> f32) -> kiln::Result<DeviceBuffer<f32>> {
        DeviceBuffer::from_host(&self.device, &(0..len).map(value).collect::<Vec<f32>>())
    }

    /// A tensor of the layer; all that the shape has were loaded.
    fn tensor(&self, role: TensorRole) -> &Tensor {
        self.tensors.iter().find(|tensor| tensor.role == role).expect("the shape has the tensor")
    }

    fn gamma(&self, role: TensorRole) -> &DeviceBuffer<f32> {
        self.tensor(role).vector.as_ref().expect("norms and biases are vectors")
    }

    fn norm(&self, gamma: TensorRole, x: &DeviceBuffer<f32>, y: &DeviceBuffer<f32>) -> Call {
        let (n, eps) = (self.shape.hidden, self.shape.rms_eps);
        let args = vec![at(x), at(self.gamma(gamma)), at(y), Arg::U32(n), Arg::F32(eps)];
        Call { kernel: "rmsnorm".to_owned(), blocks: 1, args }
    }

    /// `y[first + i] += x[i]`.
    fn add(&self, x: &DeviceBuffer<f32>, y: &DeviceBuffer<f32>, first: u32) -> Call {
        let n = x.len() as u32;
        let args = vec![at(x), Arg::Address(y.as_ptr().add(first as usize).address()), Arg::F32(1.0), Arg::U32(n)];
        Call { kernel: "saxpy".to_owned(), blocks: n.div_ceil(256), args }
    }

    /// `y[first + i] = W[i] x`.
    fn product(&self, role: TensorRole, x: &DeviceBuffer<f32>, y: &DeviceBuffer<f32>, first: u32) -> Call {
        self.gemv(role, None, x, y, first)
    }

    /// `y[first + i] = W[i] norm(x)`.
    fn normed_product(
        &self,
        role: TensorRole,
        gamma: TensorRole,
        x: &DeviceBuffer<f32>,
        y: &DeviceBuffer<f32>,
        first: u32,
    ) -> Call {
        self.gemv(role, Some(gamma), x, y, first)
    }

    fn gemv(
        &self,
        role: TensorRole,
        gamma: Option<TensorRole>,
        x: &DeviceBuffer<f32>,
        y: &DeviceBuffer<f32>,
        first: u32,
    ) -> Call {
        let (w, dims) = (self.tensor(role), role.dims(&self.shape));
        let (k, n) = (dims[0] as u32, dims[1] as u32);
        let kernel = FusedRmsNormQ4KGemv::general().with_weights(w.ty);
        let kernel = if gamma.is_some() { kernel } else { kernel.without_norm() };
        let none = Arg::Address(0);
        let args = vec![
            Arg::Address(w.data.as_ptr().address()),
            Arg::Address(w.plane.as_ptr().address()),
            at(x),
            gamma.map_or(none, |role| at(self.gamma(role))),
            none,
            none,
            Arg::Address(y.as_ptr().add(first as usize).address()),
            Arg::U32(k),
            Arg::U32(n),
            Arg::F32(self.shape.rms_eps),
        ];
        let rows = rows_per_tile(k) * kernel.block() / 32;
        Call { kernel: kernel.name().to_owned(), blocks: n.div_ceil(rows), args }
    }

    /// A phase of the decoder; `x` and `y` are its input and output.
    fn phase(&self, phase: Phase, x: &DeviceBuffer<f32>, y: &DeviceBuffer<f32>) -> Call {
        let table = Arg::Address(self.table.as_ptr().address());
        let (eps, vocab) = (Arg::F32(self.shape.rms_eps), Arg::U32(self.shape.vocab));
        let args = vec![table, Arg::U32(0), at(x), at(y), eps, vocab, Arg::U32(phase as u32)];
        Call { kernel: phase.name().to_owned(), blocks: 1, args }
    }
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}

/// A tensor as kernels want it: blocks that are not aligned to 16 bytes split into records and their f16 scales.
fn planes(ty: WeightType, bytes: &[u8]) -> Result<(Vec<u8>, Vec<u8>), String> {
    let (block, scale) = match ty {
        WeightType::Q6_K => (210, 208),
        WeightType::Q8_0 => (34, 0),
        WeightType::Q4_0 | WeightType::Q5_0 => return Err(format!("a layer with {ty} weights is not measured here")),
        WeightType::Q4_K | WeightType::Q5_K | WeightType::F16 | WeightType::BF16 | WeightType::F32 => {
            return Ok((bytes.to_vec(), Vec::new()));
        }
    };
    let (mut records, mut scales) = (Vec::new(), Vec::new());
    for block in bytes.chunks_exact(block) {
        scales.extend(&block[scale..scale + 2]);
        records.extend(&block[..scale]);
        records.extend(&block[scale + 2..]);
    }
    Ok((records, scales))
}
