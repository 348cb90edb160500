//! Reads numbers and strings from a stream of known length, never trusting a length it has read.

use std::io::{self, Read};

use super::{GgufError, limits};

/// A position in the header and what is being read there.
pub(super) struct Cursor<R> {
    inner: R,
    position: u64,
    len: u64,
    /// The key or tensor being read, for messages.
    pub(super) context: String,
}

impl<R: Read> Cursor<R> {
    pub(super) fn new(inner: R, len: u64) -> Self {
        Cursor { inner, position: 0, len, context: String::new() }
    }

    pub(super) fn position(&self) -> u64 {
        self.position
    }

    pub(super) fn len(&self) -> u64 {
        self.len
    }

    fn describe(&self, what: &str) -> String {
        match self.context.as_str() {
            "" => what.into(),
            context => format!("{what} of `{context}`"),
        }
    }

    pub(super) fn too_large(&self, what: &str, found: u64, limit: u64) -> GgufError {
        GgufError::TooLarge { what: self.describe(what), offset: self.position, found, limit }
    }

    pub(super) fn unknown_type(&self, found: u32) -> GgufError {
        GgufError::UnknownValueType { what: self.describe("the value"), offset: self.position, found }
    }

    /// Checks that `needed` bytes are left, in the file and in what a header may be.
    fn need(&self, what: &str, needed: u64) -> Result<(), GgufError> {
        let available = self.len.saturating_sub(self.position);
        if needed > available {
            return Err(GgufError::Truncated { what: self.describe(what), offset: self.position, needed, available });
        }
        match self.position.checked_add(needed) {
            Some(end) if end <= limits::HEADER_BYTES => Ok(()),
            end => Err(self.too_large("the header's length", end.unwrap_or(u64::MAX), limits::HEADER_BYTES)),
        }
    }

    /// A stream that ends before the length it was said to have is truncated, whatever was said.
    fn io_error(&self, what: &str, needed: u64, error: io::Error) -> GgufError {
        match error.kind() {
            io::ErrorKind::UnexpectedEof => {
                GgufError::Truncated { what: self.describe(what), offset: self.position, needed, available: 0 }
            }
            _ => GgufError::Io { offset: self.position, error },
        }
    }

    pub(super) fn array<const N: usize>(&mut self, what: &str) -> Result<[u8; N], GgufError> {
        self.need(what, N as u64)?;
        let mut bytes = [0; N];
        self.inner.read_exact(&mut bytes).map_err(|error| self.io_error(what, N as u64, error))?;
        self.position += N as u64;
        Ok(bytes)
    }

    pub(super) fn u32(&mut self, what: &str) -> Result<u32, GgufError> {
        self.array(what).map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self, what: &str) -> Result<u64, GgufError> {
        self.array(what).map(u64::from_le_bytes)
    }

    /// A count of things of at least `least_bytes` each: within its limit and within the bytes that are left.
    pub(super) fn count(&mut self, what: &str, limit: u64, least_bytes: u64) -> Result<u64, GgufError> {
        let count = self.u64(what)?;
        self.check_count(what, count, limit, least_bytes)?;
        Ok(count)
    }

    pub(super) fn check_count(&self, what: &str, count: u64, limit: u64, least_bytes: u64) -> Result<(), GgufError> {
        if count > limit {
            return Err(self.too_large(what, count, limit));
        }
        self.need(what, count.saturating_mul(least_bytes))
    }

    /// `n` bytes into `out`, which is cleared. It grows with what has been read, not with what was asked for.
    pub(super) fn bytes(&mut self, what: &str, n: u64, out: &mut Vec<u8>) -> Result<(), GgufError> {
        self.need(what, n)?;
        out.clear();
        let read = (&mut self.inner).take(n).read_to_end(out).map_err(|error| self.io_error(what, n, error))?;
        if (read as u64) < n {
            let available = read as u64;
            return Err(GgufError::Truncated {
                what: self.describe(what),
                offset: self.position,
                needed: n,
                available,
            });
        }
        self.position += n;
        Ok(())
    }

    /// A string with its length in front, into `scratch`.
    pub(super) fn str<'a>(&mut self, what: &str, limit: u64, scratch: &'a mut Vec<u8>) -> Result<&'a str, GgufError> {
        let len = self.count(what, limit, 1)?;
        let offset = self.position;
        self.bytes(what, len, scratch)?;
        std::str::from_utf8(scratch).map_err(|_| GgufError::InvalidUtf8 { what: self.describe(what), offset })
    }

    pub(super) fn bool(&mut self) -> Result<bool, GgufError> {
        match self.array::<1>("a bool")? {
            [0] => Ok(false),
            [1] => Ok(true),
            [found] => {
                Err(GgufError::InvalidBool { what: self.describe("the value"), offset: self.position - 1, found })
            }
        }
    }
}
