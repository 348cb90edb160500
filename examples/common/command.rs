//! What the examples' commands have in common: arguments to exit code, and what they say on standard error.

#![allow(dead_code)]

use clap::Parser;
use std::error::Error;
use std::fmt::Display;
use std::io::{self, IsTerminal, Write};
use std::path::Path;
use std::process::ExitCode;

/// Reads the command line and runs: an error is one line on standard error and exit code 1.
pub(crate) fn main<A: Parser>(run: impl FnOnce(&A) -> Result<(), Box<dyn Error>>) -> ExitCode {
    let arguments = match A::try_parse() {
        Ok(arguments) => arguments,
        // Help and version are answers, not errors.
        Err(error) => {
            let _ = error.print();
            return if error.use_stderr() { ExitCode::FAILURE } else { ExitCode::SUCCESS };
        }
    };
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if is_broken_pipe(error.as_ref()) => ExitCode::SUCCESS,
        Err(error) => {
            note(format_args!("error: {error}\n"));
            ExitCode::FAILURE
        }
    }
}

/// Writes to standard error, if it can: nothing depends on what is said there.
pub(crate) fn note(text: impl Display) {
    let mut out = io::stderr();
    let _ = write!(out, "{text}").and_then(|()| out.flush());
}

/// Puts the file's path before what went wrong with it.
pub(crate) fn at<E: Display>(path: &Path) -> impl Fn(E) -> String {
    move |error| format!("{}: {error}", path.display())
}

/// Whoever read our output has had enough.
fn is_broken_pipe(error: &(dyn Error + 'static)) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

/// A bar on a terminal; nothing in a pipe.
pub(crate) struct Bar {
    what: &'static str,
    visible: bool,
    shown: Option<u64>,
}

impl Bar {
    /// The bar of what is being done.
    pub(crate) fn new(what: &'static str) -> Bar {
        Bar { what, visible: io::stderr().is_terminal(), shown: None }
    }

    pub(crate) fn show(&mut self, done: u64, total: u64) {
        let percent = done * 100 / total.max(1);
        if !self.visible || self.shown == Some(percent) {
            return;
        }
        self.shown = Some(percent);
        let filled = (percent / 4) as usize;
        let (full, empty) = ("#".repeat(filled), " ".repeat(25 - filled.min(25)));
        note(format_args!("\r{} [{full}{empty}] {percent:3} %", self.what));
    }

    pub(crate) fn clear(&mut self) {
        if self.shown.take().is_some() {
            note(format_args!("\r{}\r", " ".repeat(50)));
        }
    }
}
