//! GGUF, the file format of llama.cpp: header, metadata and where the tensors lie.
//!
//! A file is untrusted. Every count, length, offset and type is checked against the bytes that are really there and
//! against the limits below before anything is allocated for it; sizes are multiplied overflow-checked. What lies
//! here reads and writes the format; what the numbers mean to a model is decided elsewhere.

mod cursor;
mod error;
mod read;
mod tensor;
mod value;
mod write;

use std::cmp::Ordering;

pub use error::GgufError;
pub use tensor::TensorInfo;
pub use value::{Array, FromValue, Strings, Value};
pub use write::{GgufData, GgufWriter};

/// Limits on what a header may ask for, far above what published models need.
pub mod limits {
    /// Metadata entries.
    pub const KEYS: u64 = 1 << 16;
    /// Tensors.
    pub const TENSORS: u64 = 1 << 16;
    /// Bytes of a key or of a tensor's name.
    pub const NAME_BYTES: u64 = 1 << 12;
    /// Bytes of a string value.
    pub const STRING_BYTES: u64 = 1 << 26;
    /// Elements of an array.
    pub const ARRAY_LEN: u64 = 1 << 24;
    /// Arrays inside arrays.
    pub const NESTING: u32 = 4;
    /// Dimensions of a tensor.
    pub const DIMS: u32 = 4;
    /// Alignment of tensor data.
    pub const ALIGNMENT: u32 = 1 << 16;
    /// Bytes before the tensor data.
    pub const HEADER_BYTES: u64 = 1 << 28;
}

const MAGIC: [u8; 4] = *b"GGUF";
const DEFAULT_ALIGNMENT: u32 = 32;
const ALIGNMENT_KEY: &str = "general.alignment";

/// The header of a GGUF file: its metadata and its tensors' names, shapes, types and places.
#[derive(Debug, Clone)]
pub struct Gguf {
    version: u32,
    alignment: u32,
    metadata: Vec<(String, Value)>,
    keys_sorted: Vec<u32>,
    tensors: Vec<TensorInfo>,
    tensors_sorted: Vec<u32>,
    data_offset: u64,
    file_len: u64,
}

impl Gguf {
    /// Version of the format: 2 or 3.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// Alignment of tensor data in bytes, a power of two.
    pub fn alignment(&self) -> u32 {
        self.alignment
    }

    /// Where the tensor data begins, in bytes from the start of the file.
    pub fn data_offset(&self) -> u64 {
        self.data_offset
    }

    /// Bytes of the whole file.
    pub fn file_len(&self) -> u64 {
        self.file_len
    }

    /// Keys and values in the order of the file.
    pub fn metadata(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.metadata.iter().map(|(key, value)| (key.as_str(), value))
    }

    /// Tensors in the order of the file.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// The tensor with this name.
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        let order = |&i: &u32| -> Ordering { self.tensors[i as usize].name().cmp(name) };
        self.tensors_sorted.binary_search_by(order).ok().map(|at| &self.tensors[self.tensors_sorted[at] as usize])
    }

    /// The tensor with this name, or an error that names it.
    pub fn required_tensor(&self, name: &str) -> Result<&TensorInfo, GgufError> {
        self.tensor(name).ok_or_else(|| GgufError::MissingTensor { name: name.into() })
    }

    /// The value of a key.
    pub fn get(&self, key: &str) -> Option<&Value> {
        let order = |&i: &u32| -> Ordering { self.metadata[i as usize].0.as_str().cmp(key) };
        self.keys_sorted.binary_search_by(order).ok().map(|at| &self.metadata[self.keys_sorted[at] as usize].1)
    }

    /// The value of a key as a `T`, `None` if the key is absent; an error if it holds something else.
    pub fn optional<'a, T: FromValue<'a>>(&'a self, key: &str) -> Result<Option<T>, GgufError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let wrong = || GgufError::WrongType { key: key.into(), found: value.describe(), needed: T::NEEDED };
        T::from_value(value).ok_or_else(wrong).map(Some)
    }

    /// The value of a key as a `T`; an error if the key is absent or holds something else.
    pub fn required<'a, T: FromValue<'a>>(&'a self, key: &str) -> Result<T, GgufError> {
        self.optional(key)?.ok_or_else(|| GgufError::MissingKey { key: key.into(), needed: T::NEEDED })
    }

    /// A required integer of any width that fits 32 bits.
    pub fn u32(&self, key: &str) -> Result<u32, GgufError> {
        self.required(key)
    }

    /// A required floating-point number.
    pub fn f32(&self, key: &str) -> Result<f32, GgufError> {
        self.required(key)
    }

    /// A required string.
    pub fn str(&self, key: &str) -> Result<&str, GgufError> {
        self.required(key)
    }

    /// A required array of strings.
    pub fn strings(&self, key: &str) -> Result<&Strings, GgufError> {
        self.required(key)
    }

    /// A required array of 32-bit integers.
    pub fn i32s(&self, key: &str) -> Result<&[i32], GgufError> {
        self.required(key)
    }

    /// A required array of 32-bit floating-point numbers.
    pub fn f32s(&self, key: &str) -> Result<&[f32], GgufError> {
        self.required(key)
    }
}
