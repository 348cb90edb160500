//! Weight matrices on a device, as kernels want them.

use super::kernels::Ops;
use crate::driver::GpuTensor;
use crate::launch::{In, Out, launch};
use crate::shape::WeightType;
use crate::{Error, Result};

launch! {
    /// The repack kernels: `count` blocks of the file's layout, from block `first` of a matrix on.
    pub(crate) struct RepackBlocks<'a> {
        blocks: In<'a, u8>,
        data: Out<'a, u8>,
        plane: Out<'a, u8>,
        count: u32,
        first: u32,
        row_blocks: u32,
    }
}

/// The longest row that the kernels take.
const LONGEST: u32 = 49152;

/// An `[n, k]` matrix of quantised or plain rows.
#[derive(Debug)]
pub struct Matrix {
    pub(super) ty: WeightType,
    pub(super) n: u32,
    pub(super) k: u32,
    /// Data and plane, as the type's [`Layout`](crate::shape::Layout) says; the plane is empty where there is none.
    pub(super) data: GpuTensor<u8>,
    pub(super) plane: GpuTensor<u8>,
}

impl Matrix {
    /// The type of its weights.
    pub fn weight_type(&self) -> WeightType {
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
    /// If `k` is no multiple of the type's block and of 32 up to 49152, `n` is 0 or above 2^30, or the bytes are not as
    /// many; out of memory.
    pub fn matrix(&self, ty: WeightType, n: u32, k: u32, bytes: &[u8]) -> Result<Matrix> {
        let invalid = |what: &str, found: String, expected: String| {
            Err(Error::InvalidArgument { what: format!("{what} of a matrix"), found, expected })
        };
        let unit = ty.block_len().max(32);
        if k == 0 || k > LONGEST || !k.is_multiple_of(unit) {
            return invalid("columns", k.to_string(), format!("a multiple of {unit} up to {LONGEST} for {ty}"));
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
        let sizes = || -> Option<(usize, usize)> {
            let (data, plane) = ty.matrix_bytes(u64::from(k), u64::from(n))?;
            Some((usize::try_from(data).ok()?, usize::try_from(plane).ok()?))
        };
        let (data_bytes, plane_bytes) = sizes().ok_or_else(|| Error::SizeOverflow {
            what: "a matrix",
            found: format!("{n} rows of {k} {ty} weights"),
            limit: usize::MAX as u64,
        })?;
        if plane_bytes == 0 {
            let data = GpuTensor::from_host(device, bytes)?;
            return Ok(Matrix { ty, n, k, data, plane: GpuTensor::uninitialized(device, 0)? });
        }
        let name = format!("repack_{}", ty.in_entries());
        let kernel = self.find::<RepackBlocks<'_>>(&name, "Repack::new(..)")?;
        let (blocks, row_blocks) = (bytes.len() / ty.block_bytes() as usize, k / ty.block_len());
        // Not 2^32 blocks: kernels count them in 32 bits, and go on by a grid's warps.
        let Some(count) = u32::try_from(blocks).ok().filter(|count| *count < 1 << 31) else {
            return Err(Error::SizeOverflow { what: "a matrix", found: format!("{blocks} blocks"), limit: 1 << 31 });
        };
        let data = GpuTensor::uninitialized(device, data_bytes)?;
        // Zeros where a row ends within a super-block.
        let plane = GpuTensor::zeros(device, plane_bytes)?;
        let from = GpuTensor::from_host(device, bytes)?;
        let grid = count.div_ceil(kernel.block() / 32).clamp(1, kernel.resident());
        let launch = RepackBlocks {
            blocks: (&from).into(),
            data: (&data).into(),
            plane: (&plane).into(),
            count,
            first: 0,
            row_blocks,
        };
        // SAFETY: the kernel reads `count` blocks, all of the matrix, and writes its data and its plane, which have the
        // sizes of its layout.
        unsafe { kernel.enqueue(&self.stream, [grid, 1, 1], &launch)? };
        self.stream.synchronize()?;
        Ok(Matrix { ty, n, k, data, plane })
    }
}
