//! Which device an example runs on: the GPU, or kiln's emulator. The library itself never chooses an emulator.

#![allow(dead_code, unreachable_pub)]

use std::env;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use kiln::Error;
use kiln::driver::{Device, Driver};
use kiln_emulator::{Checks, ChipFile, DeviceConfig};

/// What was asked for, by `--device` or by `KILN_DEVICE`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Wish {
    /// NVIDIA's driver, or an error.
    Cuda,
    /// The emulator, whatever else there is.
    Emulator,
    /// The GPU where there is one, else the emulator.
    #[default]
    Auto,
}

impl FromStr for Wish {
    type Err = String;

    fn from_str(text: &str) -> Result<Wish, String> {
        match text {
            "cuda" => Ok(Wish::Cuda),
            "emulator" => Ok(Wish::Emulator),
            "auto" => Ok(Wish::Auto),
            other => Err(format!("no device `{other}`; take cuda, emulator or auto")),
        }
    }
}

/// A device, and why it is that one.
#[derive(Debug)]
pub struct Picked {
    /// The device.
    pub device: Device,
    /// Whether it is emulated.
    pub emulated: bool,
    /// Who decided, in a clause.
    pub why: String,
}

impl fmt::Display for Picked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (sm_{}, {})", self.device.name(), self.device.sm(), self.why)
    }
}

/// Picks a device. `argument` is the value of `--device`; without one `KILN_DEVICE` decides, without that either, auto.
pub fn pick(argument: Option<Wish>) -> Result<Picked, Box<dyn std::error::Error>> {
    pick_observed(argument, Observed::default())
}

/// What an emulated device notes of launches.
#[derive(Debug, Clone, Copy, Default)]
pub struct Observed {
    /// What they do.
    pub counters: bool,
    /// How long they would take on a chip.
    pub clock: Option<&'static ChipFile>,
}

/// The chip file of a name, for an option's value.
pub fn chip_named(name: &str) -> Result<&'static ChipFile, String> {
    let names = || kiln_emulator::chip_files().iter().map(|chip| chip.name).collect::<Vec<_>>().join(", ");
    kiln_emulator::chip_file(name).ok_or_else(|| format!("no chip file `{name}`; there are {}", names()))
}

/// As [`pick`]; an emulated device notes what is asked for.
pub fn pick_observed(argument: Option<Wish>, observed: Observed) -> Result<Picked, Box<dyn std::error::Error>> {
    let (wish, who) = match (argument, env::var("KILN_DEVICE")) {
        (Some(wish), _) => (wish, "--device"),
        (None, Ok(text)) if !text.is_empty() => (text.parse()?, "KILN_DEVICE"),
        (None, _) => (Wish::Auto, "auto"),
    };
    match wish {
        Wish::Cuda => Ok(Picked { device: cuda()?, emulated: false, why: format!("chosen by {who}") }),
        Wish::Emulator => Ok(Picked { device: emulator(observed)?, emulated: true, why: format!("chosen by {who}") }),
        Wish::Auto => match cuda() {
            Ok(device) => Ok(Picked { device, emulated: false, why: "auto: a CUDA device was found".to_owned() }),
            Err(error) => {
                let why = format!("auto: no GPU could be used, {}", brief(&error));
                Ok(Picked { device: emulator(observed)?, emulated: true, why })
            }
        },
    }
}

/// The first device of NVIDIA's driver.
fn cuda() -> kiln::Result<Device> {
    Device::open(&Driver::load()?, 0)
}

/// A device that is not there. Examples want its answers; its checks, which cost time, are for the tests.
fn emulator(observed: Observed) -> kiln::Result<Device> {
    let config = observed.clock.map_or_else(DeviceConfig::default, DeviceConfig::clocked);
    let counters = observed.counters;
    let ordinal = kiln_emulator::add_device(DeviceConfig { checks: Checks::NONE, counters, ..config });
    // SAFETY: the emulator's functions have NVIDIA's signatures and behaviour, and stay.
    let driver = unsafe {
        Driver::from_resolver(|name| kiln_emulator::resolve(name).map_or(std::ptr::null(), |found| found.as_ptr()))?
    };
    let device = Device::open(&driver, ordinal)?;
    // A kernel that takes a GPU a millisecond may take minutes here.
    device.set_limits(device.limits().with_wait(Duration::from_secs(3600)));
    Ok(device)
}

/// Why there is no GPU, in a clause.
fn brief(error: &Error) -> String {
    match error {
        Error::DriverNotFound { .. } => "there is no CUDA driver".to_owned(),
        other => other.to_string(),
    }
}
