//! The report: what the checks have found, and the last fault, when the library is unloaded or the process ends.

use crate::{config, log};
use std::panic::catch_unwind;

/// Writes the report. Nothing may unwind into the loader.
pub(crate) extern "C" fn at_end() {
    let _ = catch_unwind(write);
}

fn write() {
    let Some((settings, ordinal)) = config::settings() else { return };
    let findings = kiln_emulator::findings(*ordinal);
    let fault = kiln_emulator::last_fault(*ordinal).filter(|fault| !fault.kind.is_finding());
    if let Some(fault) = &fault {
        log::write(&format!("the last fault: {fault}"));
    }
    let Some(path) = &settings.report else {
        findings.iter().for_each(|finding| log::write(&finding.to_string()));
        return;
    };
    let is_json = path.extension().is_some_and(|extension| extension == "json");
    let text = if is_json { findings.json() + "\n" } else { findings.to_string() };
    if let Err(error) = std::fs::write(path, text) {
        log::write(&format!("{}: {error}; the findings: {findings}", path.display()));
    }
}
