//! Weight matrices on a device, as kernels want them.

use super::kernels::Ops;
use crate::driver::{DevicePtr, GpuTensor, KernelParam};
use crate::shape::TensorType;
use crate::{Error, Result};

/// Elements of a super-block: rows are whole numbers of them.
const SUPER_BLOCK: u32 = 256;
/// The longest row that the kernels take.
const LONGEST: u32 = 49152;

/// An `[n, k]` matrix of quantised or plain rows.
#[derive(Debug)]
pub struct Matrix {
    pub(super) ty: TensorType,
    pub(super) n: u32,
    pub(super) k: u32,
    /// GGUF's blocks; for Q6_K records of 208 bytes, for Q8_0 the quants alone.
    pub(super) data: GpuTensor<u8>,
    /// The f16 scales of Q6_K and Q8_0; else empty.
    pub(super) scales: GpuTensor<u8>,
}

impl Matrix {
    /// The type of its weights.
    pub fn tensor_type(&self) -> TensorType {
        self.ty
    }

    /// Rows: elements of the result.
    pub fn rows(&self) -> u32 {
        self.n
    }

    /// Columns: elements of the vector.
    pub fn columns(&self) -> u32 {
        self.k
    }
}

impl Ops {
    /// Brings a matrix to the device: `bytes` are its `n` rows of `k` weights as a GGUF file holds them. Blocks that are
    /// not aligned to 16 bytes are split there into planes. Blocks the host.
    ///
    /// # Errors
    /// If the type has no kernels, `k` is no multiple of 256 up to 49152, `n` is 0 or above 2^30, or the bytes are not as
    /// many; out of memory.
    pub fn matrix(&self, ty: TensorType, n: u32, k: u32, bytes: &[u8]) -> Result<Matrix> {
        let invalid = |what: &str, found: String, expected: String| {
            Err(Error::InvalidArgument { what: format!("{what} of a matrix"), found, expected })
        };
        if !ty.is_supported() {
            let names: Vec<&str> = TensorType::SUPPORTED.iter().map(|ty| ty.name()).collect();
            return invalid("type", ty.to_string(), format!("one of {}", names.join(", ")));
        }
        if k == 0 || k > LONGEST || !k.is_multiple_of(SUPER_BLOCK) {
            return invalid("columns", k.to_string(), format!("a multiple of {SUPER_BLOCK} up to {LONGEST}"));
        }
        if n == 0 || n > 1 << 30 {
            return invalid("rows", n.to_string(), "1 to 2^30".to_owned());
        }
        let expected = ty.tensor_bytes(&[u64::from(k), u64::from(n)]);
        if expected != Some(bytes.len() as u64) {
            let dims = format!("{n} rows of {k} {ty} weights");
            return invalid("bytes", bytes.len().to_string(), format!("{}: {dims}", expected.unwrap_or(0)));
        }
        let device = self.device();
        let kernel = match ty {
            TensorType::Q6_K => self.find("repack_q6k", &[8, 8, 8, 4], "RepackQ6K")?,
            TensorType::Q8_0 => self.find("repack_q8_0", &[8, 8, 8, 4], "RepackQ8_0")?,
            _ => {
                let data = GpuTensor::from_host(device, bytes)?;
                return Ok(Matrix { ty, n, k, data, scales: GpuTensor::uninitialized(device, 0)? });
            }
        };
        let block = ty.block_bytes() as usize;
        let blocks = bytes.len() / block;
        // Not 2^32 blocks: kernels count them in 32 bits, and go on by a grid's warps.
        let Some(count) = u32::try_from(blocks).ok().filter(|count| *count < 1 << 31) else {
            return Err(Error::SizeOverflow { what: "a matrix", found: format!("{blocks} blocks"), limit: 1 << 31 });
        };
        let data = GpuTensor::uninitialized(device, blocks * (block - 2))?;
        let scales = GpuTensor::uninitialized(device, blocks * 2)?;
        let from = GpuTensor::from_host(device, bytes)?;
        let grid = count.div_ceil(kernel.block() / 32).clamp(1, kernel.resident);
        let (pf, pd, ps): (DevicePtr<u8>, _, _) = (from.as_ptr(), data.as_ptr(), scales.as_ptr());
        let params = [KernelParam::new(&pf), KernelParam::new(&pd), KernelParam::new(&ps), KernelParam::new(&count)];
        let uses = [from.reads("blocks"), data.writes("records"), scales.writes("scales")];
        self.stream.enqueue(uses, |stream| {
            // SAFETY: the kernel reads `count` blocks and writes as many records and scales; the buffers have room.
            unsafe { kernel.launch(stream, [grid, 1, 1], &params) }
        })?;
        self.stream.synchronize()?;
        Ok(Matrix { ty, n, k, data, scales })
    }
}
