//! Findings: what a checker reports and a program survives, each distinct one once.

use super::fault::{Fault, FaultKind};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt::{self, Write};

/// The kernel, the line of its text, the line of the other access, and the kind: what makes a finding distinct.
type Key = (String, u32, u32, FaultKind);

/// A distinct finding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// The occurrence in the first block and thread.
    pub example: Fault,
    /// Number of occurrences.
    pub count: u64,
}

/// Distinct findings, in the order of kernels and lines. Displayed as text for people; [`Findings::json`] is for
/// programs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Findings(BTreeMap<Key, Finding>);

impl Findings {
    /// Number of distinct findings.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether nothing was found.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The findings, in order.
    pub fn iter(&self) -> impl Iterator<Item = &Finding> {
        self.0.values()
    }

    /// Adds an occurrence.
    pub(crate) fn add(&mut self, fault: Fault) {
        self.join(Finding { example: fault, count: 1 });
    }

    /// Adds all of others.
    pub(crate) fn extend(&mut self, others: Findings) {
        others.0.into_values().for_each(|finding| self.join(finding));
    }

    /// Adds occurrences of a finding that is there.
    pub(crate) fn count(&mut self, kernel: &str, lines: (u32, u32), kind: FaultKind, more: u64) {
        let known = self.0.get_mut(&(kernel.to_owned(), lines.0, lines.1, kind));
        known.into_iter().for_each(|finding| finding.count += more);
    }

    fn join(&mut self, finding: Finding) {
        let Fault { kernel, ptx_line, earlier_line, kind, .. } = &finding.example;
        let known = match self.0.entry((kernel.clone(), *ptx_line, *earlier_line, *kind)) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => {
                entry.insert(finding);
                return;
            }
        };
        known.count += finding.count;
        let place = |fault: &Fault| (fault.block, fault.thread, fault.address);
        if place(&finding.example) < place(&known.example) {
            known.example = finding.example;
        }
    }

    /// The findings as a JSON array. Each has `kind`, `count`, `kernel`, `line`, `earlier_line`, `source` (`file` and
    /// `line`), `block`, `thread`, `address` and `message`; what a finding lacks is `null`.
    pub fn json(&self) -> String {
        let each: Vec<String> = self.iter().map(Finding::json).collect();
        format!("[{}]", each.join(",\n "))
    }
}

impl Finding {
    fn json(&self) -> String {
        let Fault { kind, message, kernel, ptx_line, earlier_line, source, block, thread, address } = &self.example;
        let line = |line: u32| if line == 0 { "null".into() } else { line.to_string() };
        let source = source.as_ref().map(|(file, line)| format!(r#"{{"file": {}, "line": {line}}}"#, quoted(file)));
        let place = |place: &Option<[u32; 3]>| place.map_or("null".into(), |[x, y, z]| format!("[{x}, {y}, {z}]"));
        format!(
            r#"{{"kind": "{kind:?}", "count": {}, "kernel": {}, "line": {}, "earlier_line": {}, "source": {}, "block": {}, "thread": {}, "address": {}, "message": {}}}"#,
            self.count,
            quoted(kernel),
            line(*ptx_line),
            line(*earlier_line),
            source.unwrap_or("null".into()),
            place(block),
            place(thread),
            address.map_or("null".into(), |address| address.to_string()),
            quoted(message),
        )
    }
}

/// A string of JSON.
fn quoted(text: &str) -> String {
    let mut out = String::from('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            '\n' => out.push_str("\\n"),
            c if c < ' ' => _ = write!(out, "\\u{:04x}", c as u32),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.example)?;
        if self.count > 1 { write!(f, "\n  (found {} times)", self.count) } else { Ok(()) }
    }
}

impl fmt::Display for Findings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.iter().try_for_each(|finding| writeln!(f, "{finding}"))
    }
}
