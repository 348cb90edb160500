//! Where the time goes between the start of the process and the first token.

use kiln::driver::{Device, ModuleLoads};
use std::fmt;
use std::time::{Duration, Instant};

/// Parts of a start, in their order. What modules take lies within others, and is taken off them.
pub(crate) struct Timings {
    last: Instant,
    parts: Vec<(&'static str, Duration)>,
    loads: ModuleLoads,
}

impl Timings {
    /// From here on; what was before is a part, where the system tells when the process began.
    pub(crate) fn begin() -> Timings {
        let before = since_the_process_began().map(|before| ("process", before));
        Timings { last: Instant::now(), parts: before.into_iter().collect(), loads: ModuleLoads::default() }
    }

    /// Ends a part.
    pub(crate) fn part(&mut self, name: &'static str, device: &Device) {
        let loads = device.module_loads();
        let modules = loads.time.saturating_sub(self.loads.time);
        self.loads = loads;
        self.part_without_device(name);
        if let Some((_, took)) = self.parts.last_mut() {
            *took = took.saturating_sub(modules);
        }
    }

    /// The same, as long as there is no device.
    pub(crate) fn part_without_device(&mut self, name: &'static str) {
        let now = Instant::now();
        self.parts.push((name, now - self.last));
        self.last = now;
    }
}

impl fmt::Display for Timings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ModuleLoads { compiled, machine_code, time, .. } = self.loads;
        write!(f, "timings:")?;
        for (name, took) in &self.parts {
            write!(f, " {name} {:.3} s,", took.as_secs_f64())?;
        }
        let all: Duration = self.parts.iter().map(|(_, took)| *took).sum::<Duration>() + time;
        let (time, all) = (time.as_secs_f64(), all.as_secs_f64());
        write!(f, " modules {time:.3} s ({compiled} compiled, {machine_code} of machine code); ")?;
        write!(f, "first token after {all:.3} s")
    }
}

/// How long ago the process began, to 10 ms; Linux says it in ticks of that length since the machine's start.
fn since_the_process_began() -> Option<Duration> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    // Behind the name, which may hold anything: the state is field 3, the start field 22.
    let ticks: f64 = stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()?;
    let uptime: f64 = std::fs::read_to_string("/proc/uptime").ok()?.split_whitespace().next()?.parse().ok()?;
    Duration::try_from_secs_f64(uptime - ticks / 100.0).ok()
}
