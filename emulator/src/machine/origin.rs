//! Origins of instructions: lines of the PTX text and of the source behind it.

use std::sync::Arc;

/// Origin of an instruction.
#[derive(Debug, Clone, Default)]
pub(crate) struct Origin {
    pub(crate) line: u32,
    /// File and line of its source.
    pub(crate) source: Option<Arc<(String, u32)>>,
    /// The opcode as written, for messages and counters.
    pub(crate) opcode: Arc<str>,
    /// Whether this is the first of the operations that a PTX instruction became. Only the first is counted.
    pub(crate) first: bool,
    /// Whether the text asks for the loop that begins here not to be unrolled.
    pub(crate) rolled: bool,
}

impl Origin {
    /// The opcode and place, for messages.
    pub(crate) fn describe(&self) -> String {
        let source = self.source.as_deref().map_or(String::new(), |(file, line)| format!(", {file}:{line}"));
        format!("{} (PTX line {}{source})", self.opcode, self.line)
    }
}
