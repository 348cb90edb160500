//! What can be wrong with a GGUF file.

use std::{fmt, io};

use crate::GgmlType;

/// Why a file could not be read as GGUF, or does not hold what was asked for.
#[derive(Debug)]
#[non_exhaustive]
#[allow(missing_docs)] // the fields' meaning is in each variant's line
pub enum GgufError {
    /// The file could not be opened or read at a byte offset.
    Io { offset: u64, error: io::Error },
    /// The file does not begin with `GGUF`.
    NotGguf { found: Vec<u8> },
    /// A version other than 2 and 3, or big-endian data.
    UnsupportedVersion { found: u32 },
    /// At byte `offset`, `what` needs more bytes than the file has left.
    Truncated { what: String, offset: u64, needed: u64, available: u64 },
    /// At byte `offset`, `what` asks for more than the limit in [`limits`](super::limits).
    TooLarge { what: String, offset: u64, found: u64, limit: u64 },
    /// A key, name or string that is not UTF-8.
    InvalidUtf8 { what: String, offset: u64 },
    /// A metadata value type that the format does not define.
    UnknownValueType { what: String, offset: u64, found: u32 },
    /// A bool that is neither 0 nor 1.
    InvalidBool { what: String, offset: u64, found: u8 },
    /// `general.alignment` is not a power of two up to the limit.
    InvalidAlignment { found: u32 },
    /// Two metadata entries with the same key.
    DuplicateKey { key: String },
    /// Two tensors with the same name.
    DuplicateTensor { name: String },
    /// A tensor with no or too many dimensions, or one of length 0.
    InvalidDims { tensor: String, found: Vec<u64> },
    /// A tensor type whose size is not known.
    UnknownTensorType { tensor: String, found: u32 },
    /// A tensor whose size overflows, or whose rows are no whole number of blocks.
    InvalidTensorSize { tensor: String, ty: GgmlType, dims: Vec<u64> },
    /// A tensor whose offset is not aligned.
    MisalignedTensor { tensor: String, offset: u64, alignment: u32 },
    /// A tensor whose bytes reach beyond the end of the file.
    TensorOutOfFile { tensor: String, offset: u64, bytes: u64, file_len: u64 },
    /// Two tensors that share bytes.
    TensorsOverlap { first: String, second: String },
    /// A metadata key that was asked for is absent.
    MissingKey { key: String, needed: &'static str },
    /// A metadata key holds a value of another type than was asked for.
    WrongType { key: String, found: String, needed: &'static str },
    /// A tensor that was asked for is absent.
    MissingTensor { name: String },
}

impl fmt::Display for GgufError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use GgufError::*;
        match self {
            Io { offset, error } => write!(f, "reading at byte {offset}: {error}"),
            NotGguf { found } => write!(f, "not a GGUF file: it begins with {found:02x?}, not with `GGUF`"),
            UnsupportedVersion { found } if (1..=0xff).contains(&found.swap_bytes()) => {
                write!(f, "a big-endian GGUF file; convert it to little endian")
            }
            UnsupportedVersion { found } => {
                write!(f, "GGUF version {found}; versions 2 and 3 are read: convert the file anew")
            }
            Truncated { what, offset, needed, available } => {
                write!(f, "file ends too early: {what} at byte {offset} needs {needed} bytes, {available} are left")
            }
            TooLarge { what, offset, found, limit } => {
                write!(f, "{what} at byte {offset} is {found}; at most {limit} is accepted")
            }
            InvalidUtf8 { what, offset } => write!(f, "{what} at byte {offset} is not UTF-8"),
            UnknownValueType { what, offset, found } => {
                write!(f, "{what} at byte {offset} has the unknown value type {found}; types 0 to 12 are defined")
            }
            InvalidBool { what, offset, found } => write!(f, "{what} at byte {offset} is a bool of value {found}"),
            InvalidAlignment { found } => write!(
                f,
                "general.alignment is {found}; it must be a power of two, at most {}",
                super::limits::ALIGNMENT
            ),
            DuplicateKey { key } => write!(f, "metadata key `{key}` stands twice in the file"),
            DuplicateTensor { name } => write!(f, "tensor `{name}` stands twice in the file"),
            InvalidDims { tensor, found } => {
                write!(f, "tensor `{tensor}` has dimensions {found:?}; needed: 1 to 4, none of them 0")
            }
            UnknownTensorType { tensor, found } => write!(f, "tensor `{tensor}` has the unknown type {found}"),
            InvalidTensorSize { tensor, ty, dims } => write!(
                f,
                "tensor `{tensor}` of type {ty} has dimensions {dims:?}; rows must be a multiple of {} and the size \
                 must fit 64 bits",
                ty.block_len()
            ),
            MisalignedTensor { tensor, offset, alignment } => {
                write!(
                    f,
                    "tensor `{tensor}` lies at offset {offset}, which is no multiple of the alignment {alignment}"
                )
            }
            TensorOutOfFile { tensor, offset, bytes, file_len } => write!(
                f,
                "tensor `{tensor}` needs {bytes} bytes at byte {offset}, but the file has {file_len} bytes: it is cut \
                 short or damaged"
            ),
            TensorsOverlap { first, second } => write!(f, "tensors `{first}` and `{second}` share bytes"),
            MissingKey { key, needed } => write!(f, "metadata key `{key}` is missing; needed: {needed}"),
            WrongType { key, found, needed } => write!(f, "metadata key `{key}` holds {found}; needed: {needed}"),
            MissingTensor { name } => write!(f, "tensor `{name}` is missing"),
        }
    }
}

impl std::error::Error for GgufError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            GgufError::Io { error, .. } => Some(error),
            _ => None,
        }
    }
}
