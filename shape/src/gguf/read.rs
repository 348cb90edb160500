//! Reads a header.

use std::fs::File;
use std::io::{BufReader, Read, Seek, SeekFrom};
use std::path::Path;

use super::cursor::Cursor;
use super::{ALIGNMENT_KEY, Array, DEFAULT_ALIGNMENT, Gguf, GgufError, MAGIC, Strings, TensorInfo, Value, limits};
use crate::GgmlType;

// The least bytes an entry takes, to bound counts by what the file can hold.
const KEY_BYTES: u64 = 8 + 4 + 1;
const TENSOR_BYTES: u64 = 8 + 4 + 8 + 4 + 8;
const STRING_BYTES: u64 = 8;
const ARRAY_BYTES: u64 = 4 + 8;

impl Gguf {
    /// Reads the header of the file at `path`.
    pub fn open(path: impl AsRef<Path>) -> Result<Gguf, GgufError> {
        File::open(path).map_err(|error| GgufError::Io { offset: 0, error }).and_then(Gguf::read)
    }

    /// Reads the header of a whole file in memory.
    pub fn from_bytes(bytes: &[u8]) -> Result<Gguf, GgufError> {
        read_header(Cursor::new(bytes, bytes.len() as u64))
    }

    /// Reads a header from the start of a stream whose end is the file's end. No tensor data is read.
    pub fn read<R: Read + Seek>(mut stream: R) -> Result<Gguf, GgufError> {
        let io = |error| GgufError::Io { offset: 0, error };
        let len = stream.seek(SeekFrom::End(0)).map_err(io)?;
        stream.rewind().map_err(io)?;
        read_header(Cursor::new(BufReader::with_capacity(1 << 16, stream), len))
    }
}

fn read_header<R: Read>(mut cursor: Cursor<R>) -> Result<Gguf, GgufError> {
    let file_len = cursor.len();
    if file_len < 4 {
        let mut found = Vec::new();
        cursor.bytes("the magic number", file_len, &mut found)?;
        return Err(GgufError::NotGguf { found });
    }
    let magic = cursor.array("the magic number")?;
    if magic != MAGIC {
        return Err(GgufError::NotGguf { found: magic.into() });
    }
    let version = cursor.u32("the version")?;
    if !matches!(version, 2 | 3) {
        return Err(GgufError::UnsupportedVersion { found: version });
    }
    let tensor_count = cursor.count("the number of tensors", limits::TENSORS, TENSOR_BYTES)?;
    let key_count = cursor.count("the number of metadata keys", limits::KEYS, KEY_BYTES)?;

    let mut scratch = Vec::new();
    let metadata = (0..key_count).map(|_| read_entry(&mut cursor, &mut scratch)).collect::<Result<Vec<_>, _>>()?;
    cursor.context.clear();
    let keys_sorted =
        sorted_by(&metadata, |(key, _)| key.as_str()).map_err(|key| GgufError::DuplicateKey { key: key.into() })?;

    let tensors = (0..tensor_count).map(|_| read_tensor(&mut cursor, &mut scratch)).collect::<Result<Vec<_>, _>>()?;
    let tensors_sorted = sorted_by(&tensors, |tensor| tensor.name.as_str())
        .map_err(|name| GgufError::DuplicateTensor { name: name.into() })?;

    let mut gguf = Gguf {
        version,
        alignment: DEFAULT_ALIGNMENT,
        metadata,
        keys_sorted,
        tensors,
        tensors_sorted,
        data_offset: 0,
        file_len,
    };
    if let Some(found) = gguf.optional::<u32>(ALIGNMENT_KEY)? {
        if !found.is_power_of_two() || found > limits::ALIGNMENT {
            return Err(GgufError::InvalidAlignment { found });
        }
        gguf.alignment = found;
    }
    // Cannot overflow: the header is at most 2^28 bytes, the alignment at most 2^16.
    gguf.data_offset = cursor.position().next_multiple_of(gguf.alignment.into());
    place_tensors(&mut gguf)?;
    Ok(gguf)
}

/// Indices of `items` in the order of their names, or a name that stands twice.
fn sorted_by<'a, T>(items: &'a [T], name: impl Fn(&'a T) -> &'a str) -> Result<Vec<u32>, &'a str> {
    let mut order: Vec<u32> = (0..items.len() as u32).collect();
    order.sort_unstable_by_key(|&i| name(&items[i as usize]));
    let twice = order.windows(2).map(|pair| (name(&items[pair[0] as usize]), name(&items[pair[1] as usize])));
    match twice.into_iter().find(|(a, b)| a == b) {
        Some((name, _)) => Err(name),
        None => Ok(order),
    }
}

fn read_entry<R: Read>(cursor: &mut Cursor<R>, scratch: &mut Vec<u8>) -> Result<(String, Value), GgufError> {
    cursor.context.clear();
    let key = cursor.str("a metadata key", limits::NAME_BYTES, scratch)?.to_string();
    cursor.context.clone_from(&key);
    let ty = cursor.u32("the value type")?;
    let value = match ty {
        0 => Value::U8(u8::from_le_bytes(cursor.array("the value")?)),
        1 => Value::I8(i8::from_le_bytes(cursor.array("the value")?)),
        2 => Value::U16(u16::from_le_bytes(cursor.array("the value")?)),
        3 => Value::I16(i16::from_le_bytes(cursor.array("the value")?)),
        4 => Value::U32(u32::from_le_bytes(cursor.array("the value")?)),
        5 => Value::I32(i32::from_le_bytes(cursor.array("the value")?)),
        6 => Value::F32(f32::from_le_bytes(cursor.array("the value")?)),
        7 => Value::Bool(cursor.bool()?),
        8 => Value::String(cursor.str("the string", limits::STRING_BYTES, scratch)?.into()),
        9 => Value::Array(read_array(cursor, scratch, 1)?),
        10 => Value::U64(u64::from_le_bytes(cursor.array("the value")?)),
        11 => Value::I64(i64::from_le_bytes(cursor.array("the value")?)),
        12 => Value::F64(f64::from_le_bytes(cursor.array("the value")?)),
        _ => return Err(cursor.unknown_type(ty)),
    };
    Ok((key, value))
}

fn read_array<R: Read>(cursor: &mut Cursor<R>, scratch: &mut Vec<u8>, depth: u32) -> Result<Array, GgufError> {
    if depth > limits::NESTING {
        return Err(cursor.too_large("the nesting of arrays", depth.into(), limits::NESTING.into()));
    }
    let ty = cursor.u32("the array's element type")?;
    let count = cursor.u64("the array's length")?;
    let check = |cursor: &Cursor<R>, least| cursor.check_count("the array's length", count, limits::ARRAY_LEN, least);

    /// All elements in one read; `scratch` then holds whole numbers only.
    macro_rules! numbers {
        ($variant:ident, $ty:ty) => {{
            const SIZE: u64 = size_of::<$ty>() as u64;
            check(cursor, SIZE)?;
            cursor.bytes("the array's elements", count * SIZE, scratch)?;
            let (chunks, _) = scratch.as_chunks::<{ size_of::<$ty>() }>();
            Array::$variant(chunks.iter().map(|&bytes| <$ty>::from_le_bytes(bytes)).collect())
        }};
    }
    Ok(match ty {
        0 => numbers!(U8, u8),
        1 => numbers!(I8, i8),
        2 => numbers!(U16, u16),
        3 => numbers!(I16, i16),
        4 => numbers!(U32, u32),
        5 => numbers!(I32, i32),
        6 => numbers!(F32, f32),
        7 => {
            check(cursor, 1)?;
            Array::Bool((0..count).map(|_| cursor.bool()).collect::<Result<_, _>>()?)
        }
        8 => {
            check(cursor, STRING_BYTES)?;
            let mut strings = Strings::default();
            for _ in 0..count {
                let string = cursor.str("a string of the array", limits::STRING_BYTES, scratch)?;
                // Cannot fail: a header is at most 2^28 bytes.
                strings.push(string);
            }
            Array::String(strings)
        }
        9 => {
            check(cursor, ARRAY_BYTES)?;
            Array::Array((0..count).map(|_| read_array(cursor, scratch, depth + 1)).collect::<Result<_, _>>()?)
        }
        10 => numbers!(U64, u64),
        11 => numbers!(I64, i64),
        12 => numbers!(F64, f64),
        _ => return Err(cursor.unknown_type(ty)),
    })
}

/// An entry with its offset still relative to the data section.
fn read_tensor<R: Read>(cursor: &mut Cursor<R>, scratch: &mut Vec<u8>) -> Result<TensorInfo, GgufError> {
    cursor.context.clear();
    let name = cursor.str("a tensor's name", limits::NAME_BYTES, scratch)?.to_string();
    cursor.context.clone_from(&name);
    let dim_count = cursor.u32("the number of dimensions")?;
    if dim_count > limits::DIMS {
        return Err(cursor.too_large("the number of dimensions", dim_count.into(), limits::DIMS.into()));
    }
    let dims = (0..dim_count).map(|_| cursor.u64("a dimension")).collect::<Result<Vec<_>, _>>()?;
    if dims.is_empty() || dims.contains(&0) {
        return Err(GgufError::InvalidDims { tensor: name, found: dims });
    }
    let id = cursor.u32("the tensor type")?;
    let Some(ty) = GgmlType::from_id(id) else {
        return Err(GgufError::UnknownTensorType { tensor: name, found: id });
    };
    let Some(bytes) = ty.tensor_bytes(&dims) else {
        return Err(GgufError::InvalidTensorSize { tensor: name, ty, dims });
    };
    let offset = cursor.u64("the offset")?;
    Ok(TensorInfo { name, dims, ty, offset, bytes })
}

/// Makes offsets absolute and checks that every tensor is aligned, inside the file and on its own.
fn place_tensors(gguf: &mut Gguf) -> Result<(), GgufError> {
    for tensor in &mut gguf.tensors {
        if !tensor.offset.is_multiple_of(gguf.alignment.into()) {
            return Err(GgufError::MisalignedTensor {
                tensor: tensor.name.clone(),
                offset: tensor.offset,
                alignment: gguf.alignment,
            });
        }
        let offset = gguf.data_offset.saturating_add(tensor.offset);
        if offset.checked_add(tensor.bytes).is_none_or(|end| end > gguf.file_len) {
            return Err(GgufError::TensorOutOfFile {
                tensor: tensor.name.clone(),
                offset,
                bytes: tensor.bytes,
                file_len: gguf.file_len,
            });
        }
        tensor.offset = offset;
    }
    let mut by_offset: Vec<&TensorInfo> = gguf.tensors.iter().collect();
    by_offset.sort_unstable_by_key(|tensor| tensor.offset);
    match by_offset.windows(2).find(|pair| pair[0].offset + pair[0].bytes > pair[1].offset) {
        Some(pair) => Err(GgufError::TensorsOverlap { first: pair[0].name.clone(), second: pair[1].name.clone() }),
        None => Ok(()),
    }
}
