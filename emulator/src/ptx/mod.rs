//! PTX text to decoded kernels: lexer, parser, decoder. Nothing here executes.

mod ast;
pub(crate) mod decode;
mod lexer;
mod module;
mod parser;

pub use module::Module;

use std::fmt;

/// An error in PTX text, or PTX that the emulator does not support.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PtxError {
    /// 1-based line of the text.
    pub line: u32,
    /// The token concerned.
    pub token: String,
    /// The reason against the token.
    pub message: String,
}

type Res<T> = Result<T, PtxError>;

impl PtxError {
    pub(crate) fn new(line: u32, token: impl Into<String>, message: impl Into<String>) -> PtxError {
        PtxError { line, token: token.into(), message: message.into() }
    }
}

impl fmt::Display for PtxError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PTX line {}, near `{}`: {}", self.line, self.token, self.message)
    }
}

impl std::error::Error for PtxError {}
