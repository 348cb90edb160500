//! Variables that describe the emulated device. A value that is not understood is an error, never a guess.

use kiln_emulator::{Checks, DeviceConfig, Schedule};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::OnceLock;

/// What all variables begin with.
const PREFIX: &str = "KILN_EMULATOR_";

/// Compute capabilities that can be asked for by number.
const CAPABILITIES: [(u32, u32); 8] = [(7, 5), (8, 0), (8, 6), (8, 7), (8, 9), (9, 0), (10, 0), (12, 0)];

/// The device, and the file that its findings go to.
#[derive(Debug)]
pub(crate) struct Settings {
    pub(crate) device: DeviceConfig,
    pub(crate) report: Option<PathBuf>,
}

/// The settings that `cuInit` has read.
static SETTINGS: OnceLock<Result<(Settings, i32), String>> = OnceLock::new();

/// Reads the variables and adds the device, the first time. The error is a sentence with variable and value.
pub(crate) fn add_device() -> Result<(), &'static String> {
    let read = || {
        let settings = from_environment()?;
        let ordinal = kiln_emulator::add_device(settings.device.clone());
        Ok((settings, ordinal))
    };
    SETTINGS.get_or_init(read).as_ref().map(drop)
}

/// The settings and the device's ordinal, once there is a device.
pub(crate) fn settings() -> Option<&'static (Settings, i32)> {
    SETTINGS.get()?.as_ref().ok()
}

fn from_environment() -> Result<Settings, String> {
    let ours = std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with(PREFIX));
    let text = ours.map(|(name, value)| {
        let name = name.to_string_lossy()[PREFIX.len()..].to_owned();
        let value = value.into_string().map_err(|value| format!("{PREFIX}{name}={value:?} is not Unicode"))?;
        Ok((name, value))
    });
    parse(&text.collect::<Result<_, String>>()?)
}

/// Settings from variables by their names after the prefix.
fn parse(variables: &BTreeMap<String, String>) -> Result<Settings, String> {
    // Programs go on after a finding, and learn of it in the report.
    let mut device = DeviceConfig { fatal_findings: false, ..DeviceConfig::default() };
    let mut report = None;
    // The chip first: it stands for a whole device.
    let chip_first = |(name, _): &(&String, &String)| name.as_str() != "CHIP";
    let mut in_order: Vec<_> = variables.iter().collect();
    in_order.sort_by_key(chip_first);
    for (name, value) in in_order {
        let wrong = |needed: &str| format!("{PREFIX}{name}={value}: {needed}");
        match name.as_str() {
            "CHIP" => {
                let found = chip(value).ok_or_else(|| wrong(&format!("needed is one of {}", chips().join(", "))))?;
                device = DeviceConfig { fatal_findings: false, ..found };
            }
            "CHECKS" => {
                let needed = "needed is all, none, or some of init, race, readers, sync, separated by commas";
                device.checks = checks(value).ok_or_else(|| wrong(needed))?;
            }
            "FINDINGS" => {
                device.fatal_findings = match value.as_str() {
                    "report" => false,
                    "fatal" => true,
                    _ => return Err(wrong("needed is report or fatal")),
                };
            }
            "SCHEDULE" => {
                device.schedule = match value.as_str() {
                    "round-robin" => Schedule::RoundRobin,
                    "random" => Schedule::Random,
                    "adversarial" => Schedule::Adversarial,
                    _ => return Err(wrong("needed is round-robin, random or adversarial")),
                };
            }
            "SEED" => device.seed = value.parse().map_err(|_| wrong("needed is a number of 64 bits"))?,
            "REPORT" if !value.is_empty() => {
                report = Some(PathBuf::from(value.replace("%p", &std::process::id().to_string())));
            }
            "REPORT" => return Err(wrong("needed is the path of a file")),
            _ => return Err(wrong("there is no such variable; see the README of kiln-libcuda")),
        }
    }
    Ok(Settings { device, report })
}

/// Names of chips.
fn chips() -> Vec<String> {
    let named = kiln_emulator::chip_files().iter().map(|file| file.name.to_owned());
    named.chain(CAPABILITIES.iter().map(|(major, minor)| format!("sm_{major}{minor}"))).collect()
}

/// The device of a chip's file, or a small one of a compute capability.
fn chip(name: &str) -> Option<DeviceConfig> {
    if let Some(file) = kiln_emulator::chip_file(name) {
        // Its figures, not its clock: time is the host's, and the checks are on.
        return Some(DeviceConfig { clock: None, checks: Checks::ALL, ..DeviceConfig::clocked(file) });
    }
    let (major, minor) = CAPABILITIES.into_iter().find(|(major, minor)| name == format!("sm_{major}{minor}"))?;
    Some(DeviceConfig::with_sm(major, minor))
}

fn checks(value: &str) -> Option<Checks> {
    match value {
        "all" => return Some(Checks::ALL),
        "none" => return Some(Checks::NONE),
        _ => {}
    }
    let mut checks = Checks::NONE;
    for name in value.split(',') {
        match name {
            "init" => checks.initcheck = true,
            "race" => checks.racecheck = true,
            "readers" => (checks.racecheck, checks.every_reader) = (true, true),
            "sync" => checks.synccheck = true,
            _ => return None,
        }
    }
    Some(checks)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(pairs: &[(&str, &str)]) -> Result<Settings, String> {
        parse(&pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect())
    }

    #[test]
    fn every_variable_reaches_the_device() {
        let all = [("SEED", "7"), ("CHECKS", "race,sync"), ("SCHEDULE", "adversarial"), ("CHIP", "a100")];
        let Settings { device, report } = with(&all).expect("they are right");
        assert_eq!((device.sm, device.multiprocessors, device.seed), ((8, 0), 108, 7));
        let checks = Checks { racecheck: true, synccheck: true, ..Checks::NONE };
        assert_eq!((device.checks, device.schedule), (checks, Schedule::Adversarial));
        assert!(!device.fatal_findings && device.clock.is_none() && report.is_none());
        assert!(with(&[("FINDINGS", "fatal")]).expect("right").device.fatal_findings);
        let report = with(&[("REPORT", "/x/%p.json")]).expect("right").report.expect("it was named");
        assert_eq!(report, PathBuf::from(format!("/x/{}.json", std::process::id())));
    }

    #[test]
    fn every_chip_that_is_offered_is_there() {
        assert!(chips().iter().all(|name| chip(name).is_some()));
        assert!(chips().len() > CAPABILITIES.len());
    }

    #[test]
    fn wrong_values_are_errors_with_variable_and_value() {
        let wrong = [
            ("CHIP", "h1000"),
            ("CHECKS", "races"),
            ("FINDINGS", "off"),
            ("SCHEDULE", "fair"),
            ("SEED", "-1"),
            ("REPORT", ""),
            ("CHIPS", "a100"),
        ];
        for (name, value) in wrong {
            let error = with(&[(name, value)]).expect_err(name);
            assert!(error.starts_with(&format!("KILN_EMULATOR_{name}={value}: ")), "{error}");
        }
    }
}
