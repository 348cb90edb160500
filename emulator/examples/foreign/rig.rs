//! Memory, parameters and launches of one foreign module, and what became of its kernels.

use kiln_emulator::{Checks, DeviceConfig, Fault, FaultKind, Launch, Memory, Module, Schedule, run};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::error::Error;
use std::path::Path;

pub(crate) type Res<T> = Result<T, Box<dyn Error>>;

/// Words of memory and of parameters.
pub(crate) trait Word: Copy {
    /// Its little-endian bytes.
    fn bytes(self) -> Vec<u8>;
}

macro_rules! words {
    ($($word:ty)*) => {$(
        impl Word for $word {
            fn bytes(self) -> Vec<u8> { self.to_le_bytes().to_vec() }
        }
    )*};
}

words!(u8 u16 u32 i32 u64 f32);

/// Parameters, each at its alignment.
#[derive(Default)]
pub(crate) struct Params(Vec<u8>);

impl Params {
    /// Words, or addresses, one after the other.
    pub(crate) fn and<T: Word>(mut self, words: &[T]) -> Self {
        self.0.resize(self.0.len().next_multiple_of(size_of::<T>()), 0);
        words.iter().for_each(|word| self.0.extend(word.bytes()));
        self
    }

    /// The same up to a multiple of `bytes`, as a structure ends.
    pub(crate) fn padded(mut self, bytes: usize) -> Self {
        self.0.resize(self.0.len().next_multiple_of(bytes), 0);
        self
    }
}

/// A grid of blocks, with dynamic shared memory.
#[derive(Default, Clone, Copy)]
pub(crate) struct Grid {
    blocks: [u32; 3],
    threads: [u32; 3],
    shared: u32,
    cooperative: bool,
}

impl Grid {
    /// Blocks of threads, in one dimension.
    pub(crate) fn new(blocks: u32, threads: u32) -> Grid {
        Grid { blocks: [blocks, 1, 1], threads: [threads, 1, 1], ..Grid::default() }
    }

    /// Blocks of threads, in three dimensions.
    pub(crate) fn of(blocks: [u32; 3], threads: [u32; 3]) -> Grid {
        Grid { blocks, threads, ..Grid::default() }
    }

    /// The same with `shared` bytes of dynamic shared memory.
    pub(crate) fn shared(self, shared: u32) -> Grid {
        Grid { shared, ..self }
    }

    /// The same, all blocks resident.
    pub(crate) fn cooperative(self) -> Grid {
        Grid { cooperative: true, ..self }
    }
}

/// A module with its memory, on a device with all checks.
pub(crate) struct Rig {
    module: Module,
    pub(crate) memory: Memory,
    config: DeviceConfig,
    /// What was found: kernel, kind, file and line.
    found: RefCell<BTreeSet<String>>,
}

impl Rig {
    /// Loads a file's text.
    pub(crate) fn new(path: &Path, schedule: Schedule) -> Res<Rig> {
        let config = DeviceConfig {
            checks: Checks::ALL,
            fatal_findings: false,
            schedule,
            // CUDA defines what such stores leave.
            silenced: vec![FaultKind::SameValueStore],
            // One thread of the host finds the same on every run.
            threads: 1,
            split_warps: schedule == Schedule::Adversarial,
            ..DeviceConfig::with_sm(8, 0)
        };
        let text = std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
        let memory = Memory::new(1 << 30);
        Ok(Rig { module: Module::load(&text, &memory)?, memory, config, found: RefCell::default() })
    }

    /// Memory that holds `words`.
    pub(crate) fn put<T: Word>(&self, words: &[T]) -> Res<u64> {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.bytes()).collect();
        let at = self.memory.alloc(bytes.len() as u64)?;
        self.memory.write(at, &bytes)?;
        Ok(at)
    }

    /// Memory of `bytes` bytes, written by nobody.
    pub(crate) fn room(&self, bytes: usize) -> Res<u64> {
        Ok(self.memory.alloc(bytes as u64)?)
    }

    /// A variable's address and size.
    pub(crate) fn global(&self, name: &str) -> Res<(u64, u64)> {
        Ok(self.module.global(name).ok_or_else(|| format!("no variable {name}"))?)
    }

    /// `n` words from an address on.
    pub(crate) fn words(&self, at: u64, n: usize) -> Res<Vec<u32>> {
        let mut bytes = vec![0; 4 * n];
        self.memory.read(at, &mut bytes)?;
        Ok(bytes.chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect())
    }

    /// `n` f32 from an address on.
    pub(crate) fn floats(&self, at: u64, n: usize) -> Res<Vec<f64>> {
        Ok(self.words(at, n)?.into_iter().map(|bits| f32::from_bits(bits).into()).collect())
    }

    /// `n` numbers of 16 bits from an address on.
    pub(crate) fn shorts(&self, at: u64, n: usize) -> Res<Vec<u16>> {
        Ok(self.words(at, n.div_ceil(2))?.into_iter().flat_map(|w| [w as u16, (w >> 16) as u16]).take(n).collect())
    }

    /// Runs the kernel whose mangled name contains `name`. A fault is noted with the findings.
    pub(crate) fn launch(&self, name: &str, grid: Grid, params: &Params) -> Res<()> {
        let mut names = self.module.kernel_names().chain(self.module.refused().map(|(name, _)| name));
        let kernel = names.find(|kernel| kernel.contains(name)).ok_or_else(|| format!("no kernel {name}"))?;
        let launch = Launch {
            module: &self.module,
            kernel,
            grid: grid.blocks,
            block: grid.threads,
            dynamic_shared: grid.shared,
            params: &params.0,
            cooperative: grid.cooperative,
            cluster: None,
        };
        if let Err(fault) = run(&launch, &self.memory, &self.config) {
            println!("{fault}");
            self.note(&fault);
        }
        Ok(())
    }

    fn note(&self, fault: &Fault) {
        let (file, line) = fault.source.as_ref().map_or(("?", 0), |(file, line)| (file.as_str(), *line));
        let file = file.rsplit('/').next().unwrap_or(file);
        self.found.borrow_mut().insert(format!("{:?} {file}:{line}", fault.kind));
    }

    /// Kinds of findings and faults with file and line.
    pub(crate) fn found(&self) -> BTreeSet<String> {
        self.memory.findings().iter().for_each(|finding| self.note(&finding.example));
        self.found.borrow().clone()
    }
}

/// Numbers that look random and are the same on every run.
pub(crate) struct Noise(pub(crate) u64);

impl Noise {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// Numbers from -1 to 1.
    pub(crate) fn floats(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| (self.next() >> 40) as f32 / (1 << 23) as f32 - 1.0).collect()
    }

    /// Numbers below a limit.
    pub(crate) fn below(&mut self, limit: u32, n: usize) -> Vec<u32> {
        (0..n).map(|_| (self.next() >> 32) as u32 % limit).collect()
    }

    /// f16 numbers of magnitude 1/8 to 1.
    pub(crate) fn halves(&mut self, n: usize) -> Vec<u16> {
        let half = |bits: u64| (bits & 0x83ff) as u16 | (12 + (bits >> 16) as u16 % 3) << 10;
        (0..n).map(|_| half(self.next() >> 20)).collect()
    }

    /// bf16 numbers of magnitude 1/8 to 1.
    pub(crate) fn brains(&mut self, n: usize) -> Vec<u16> {
        let brain = |bits: u64| (bits & 0x807f) as u16 | (124 + (bits >> 16) as u16 % 3) << 7;
        (0..n).map(|_| brain(self.next() >> 20)).collect()
    }
}

/// An f16's value, if it is finite.
pub(crate) fn half(bits: u16) -> f64 {
    let (exponent, mantissa) = (i32::from(bits >> 10 & 31), f64::from(bits & 1023));
    let sign = if bits >> 15 == 0 { 1.0 } else { -1.0 };
    match exponent {
        0 => sign * mantissa * 2f64.powi(-24),
        _ => sign * (1.0 + mantissa / 1024.0) * 2f64.powi(exponent - 15),
    }
}

/// A bf16's value.
pub(crate) fn brain(bits: u16) -> f64 {
    f32::from_bits(u32::from(bits) << 16).into()
}

/// Compares results with those in float64: `tolerance` times the magnitude of the result, or of 1 if that is less.
pub(crate) fn near(what: &str, got: &[f64], tolerance: f64, expected: impl Fn(usize) -> f64) -> Res<()> {
    for (i, &got) in got.iter().enumerate() {
        let expected = expected(i);
        let off = (got - expected).abs();
        if off.is_nan() || off > tolerance * expected.abs().max(1.0) {
            return Err(format!("{what}: element {i} is {got}, not {expected}").into());
        }
    }
    Ok(())
}

/// Compares results that must be the same.
pub(crate) fn equal(what: &str, got: &[u32], expected: &[u32]) -> Res<()> {
    match got.iter().zip(expected).position(|(got, expected)| got != expected) {
        None if got.len() == expected.len() => Ok(()),
        at => Err(format!("{what}: differs at {at:?}").into()),
    }
}
