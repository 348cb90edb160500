//! Writes GGUF version 3 files: for synthetic models and for tests.

use std::io::{self, Write};

use super::{ALIGNMENT_KEY, Array, DEFAULT_ALIGNMENT, MAGIC, Value, limits};
use crate::GgmlType;

/// Collects metadata and the list of tensors; [`GgufWriter::start`] then writes the header.
///
/// ```
/// use std::io::Write;
/// use kiln_shape::{gguf::GgufWriter, Gguf, GgmlType};
///
/// let mut writer = GgufWriter::new();
/// writer.set("general.architecture", "qwen3");
/// writer.tensor("output_norm.weight", &[2], GgmlType::F32)?;
/// let mut data = writer.start(Vec::new())?;
/// for weight in [1.0_f32, 0.5] {
///     data.write_all(&weight.to_le_bytes())?;
/// }
/// let file = data.finish()?;
/// assert_eq!(Gguf::from_bytes(&file).unwrap().tensor("output_norm.weight").unwrap().bytes(), 8);
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug, Clone, Default)]
pub struct GgufWriter {
    metadata: Vec<(String, Value)>,
    tensors: Vec<(String, Vec<u64>, GgmlType, u64)>,
}

impl GgufWriter {
    /// A file without keys and tensors.
    pub fn new() -> GgufWriter {
        GgufWriter::default()
    }

    /// Sets a metadata key, replacing a value set before.
    pub fn set(&mut self, key: &str, value: impl Into<Value>) {
        let value = value.into();
        match self.metadata.iter_mut().find(|(k, _)| k == key) {
            Some(entry) => entry.1 = value,
            None => self.metadata.push((key.into(), value)),
        }
    }

    /// Adds a tensor. An error of kind `InvalidInput` if its rows are no whole number of blocks or its size overflows.
    pub fn tensor(&mut self, name: &str, dims: &[u64], ty: GgmlType) -> io::Result<()> {
        let whole = dims.len() <= limits::DIMS as usize && !dims.contains(&0);
        let bytes = ty.tensor_bytes(dims).filter(|_| whole).ok_or_else(|| {
            let block = ty.block_len();
            invalid(format!("tensor `{name}`: {dims:?} is no 1 to 4 dimensions of whole {ty} blocks of {block}"))
        })?;
        self.tensors.push((name.into(), dims.into(), ty, bytes));
        Ok(())
    }

    /// Bytes of all tensors together, without the padding, which is not the caller's to write.
    pub fn data_bytes(&self) -> u64 {
        self.tensors.iter().map(|(.., bytes)| bytes).sum()
    }

    fn alignment(&self) -> u32 {
        self.metadata
            .iter()
            .find_map(|(key, value)| match value {
                Value::U32(alignment) if key == ALIGNMENT_KEY && alignment.is_power_of_two() => Some(*alignment),
                _ => None,
            })
            .unwrap_or(DEFAULT_ALIGNMENT)
    }

    /// Writes the header. The tensors' bytes follow, in the order they were added, through [`GgufData`].
    pub fn start<W: Write>(self, mut out: W) -> io::Result<GgufData<W>> {
        let alignment = u64::from(self.alignment());
        let mut header = Vec::new();
        header.extend(MAGIC);
        header.extend(3_u32.to_le_bytes());
        header.extend((self.tensors.len() as u64).to_le_bytes());
        header.extend((self.metadata.len() as u64).to_le_bytes());
        for (key, value) in &self.metadata {
            put_str(&mut header, key);
            put_value(&mut header, value);
        }
        let mut offset = 0;
        for (name, dims, ty, bytes) in &self.tensors {
            put_str(&mut header, name);
            header.extend((dims.len() as u32).to_le_bytes());
            dims.iter().for_each(|dim| header.extend(dim.to_le_bytes()));
            header.extend(ty.id().to_le_bytes());
            header.extend(u64::to_le_bytes(offset));
            offset += bytes.next_multiple_of(alignment);
        }
        header.resize(header.len().next_multiple_of(alignment as usize), 0);
        out.write_all(&header)?;
        let sizes: Vec<u64> = self.tensors.iter().map(|(.., bytes)| *bytes).collect();
        Ok(GgufData { out, alignment, sizes, tensor: 0, written: 0 })
    }
}

/// Takes the tensors' bytes one after the other and puts the padding between them.
#[derive(Debug)]
pub struct GgufData<W: Write> {
    out: W,
    alignment: u64,
    sizes: Vec<u64>,
    tensor: usize,
    written: u64,
}

impl<W: Write> GgufData<W> {
    /// Flushes and hands back the stream. An error of kind `InvalidInput` if bytes are missing.
    pub fn finish(mut self) -> io::Result<W> {
        if let Some(size) = self.sizes.get(self.tensor) {
            let (tensor, written) = (self.tensor, self.written);
            return Err(invalid(format!("tensor {tensor} has {written} of {size} bytes")));
        }
        self.out.flush()?;
        Ok(self.out)
    }
}

impl<W: Write> Write for GgufData<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let Some(&size) = self.sizes.get(self.tensor) else {
            return if bytes.is_empty() { Ok(0) } else { Err(invalid("more bytes than the tensors have".into())) };
        };
        let room = usize::try_from(size - self.written).unwrap_or(usize::MAX);
        let taken = self.out.write(&bytes[..bytes.len().min(room)])?;
        self.written += taken as u64;
        if self.written == size {
            let padding = size.next_multiple_of(self.alignment) - size;
            io::copy(&mut io::Read::take(io::repeat(0), padding), &mut self.out)?;
            (self.tensor, self.written) = (self.tensor + 1, 0);
        }
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

fn invalid(message: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, message)
}

fn put_str(out: &mut Vec<u8>, string: &str) {
    out.extend((string.len() as u64).to_le_bytes());
    out.extend(string.as_bytes());
}

/// Writes `type, value`.
fn put_value(out: &mut Vec<u8>, value: &Value) {
    macro_rules! tagged {
        ($id:literal, $bytes:expr) => {{
            out.extend(u32::to_le_bytes($id));
            out.extend($bytes);
        }};
    }
    match value {
        Value::U8(v) => tagged!(0, v.to_le_bytes()),
        Value::I8(v) => tagged!(1, v.to_le_bytes()),
        Value::U16(v) => tagged!(2, v.to_le_bytes()),
        Value::I16(v) => tagged!(3, v.to_le_bytes()),
        Value::U32(v) => tagged!(4, v.to_le_bytes()),
        Value::I32(v) => tagged!(5, v.to_le_bytes()),
        Value::F32(v) => tagged!(6, v.to_le_bytes()),
        Value::Bool(v) => tagged!(7, [u8::from(*v)]),
        Value::String(v) => {
            tagged!(8, [0_u8; 0]);
            put_str(out, v);
        }
        Value::Array(v) => {
            tagged!(9, [0_u8; 0]);
            put_array(out, v);
        }
        Value::U64(v) => tagged!(10, v.to_le_bytes()),
        Value::I64(v) => tagged!(11, v.to_le_bytes()),
        Value::F64(v) => tagged!(12, v.to_le_bytes()),
    }
}

/// Writes `element type, length, elements`.
fn put_array(out: &mut Vec<u8>, array: &Array) {
    macro_rules! numbers {
        ($id:literal, $values:expr) => {{
            out.extend(u32::to_le_bytes($id));
            out.extend(($values.len() as u64).to_le_bytes());
            $values.iter().for_each(|v| out.extend(v.to_le_bytes()));
        }};
    }
    match array {
        Array::U8(v) => numbers!(0, v),
        Array::I8(v) => numbers!(1, v),
        Array::U16(v) => numbers!(2, v),
        Array::I16(v) => numbers!(3, v),
        Array::U32(v) => numbers!(4, v),
        Array::I32(v) => numbers!(5, v),
        Array::F32(v) => numbers!(6, v),
        Array::Bool(v) => {
            out.extend(7_u32.to_le_bytes());
            out.extend((v.len() as u64).to_le_bytes());
            out.extend(v.iter().map(|&flag| u8::from(flag)));
        }
        Array::String(v) => {
            out.extend(8_u32.to_le_bytes());
            out.extend((v.len() as u64).to_le_bytes());
            v.iter().for_each(|string| put_str(out, string));
        }
        Array::Array(v) => {
            out.extend(9_u32.to_le_bytes());
            out.extend((v.len() as u64).to_le_bytes());
            v.iter().for_each(|inner| put_array(out, inner));
        }
        Array::U64(v) => numbers!(10, v),
        Array::I64(v) => numbers!(11, v),
        Array::F64(v) => numbers!(12, v),
    }
}
