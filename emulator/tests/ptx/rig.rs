//! What the tests share: a device's memory, a module, launches.
// Each test program uses a part of this; a fault is large, and rare.
#![allow(dead_code, unreachable_pub, clippy::result_large_err)]

use kiln_emulator::{Checks, DeviceConfig, Fault, Launch, Memory, Module, Report, Schedule, run};

pub struct Rig {
    pub memory: Memory,
    pub module: Module,
    pub config: DeviceConfig,
    pub cooperative: bool,
    pub dynamic_shared: u32,
}

/// Kernel text with the usual head.
pub fn ptx(target: u32, body: &str) -> String {
    format!(".version 8.6\n.target sm_{target}\n.address_size 64\n{body}\n")
}

impl Rig {
    pub fn new(text: &str) -> Rig {
        let memory = Memory::new(1 << 30);
        let module = Module::load(text, &memory).unwrap_or_else(|e| panic!("{e}"));
        let config =
            DeviceConfig { threads: 2, checks: Checks::ALL, step_limit: Some(50_000_000), ..Default::default() };
        Rig { memory, module, config, cooperative: false, dynamic_shared: 0 }
    }

    pub fn buffer(&self, bytes: &[u8]) -> u64 {
        let a = self.memory.alloc(bytes.len() as u64).unwrap();
        self.memory.write(a, bytes).unwrap();
        a
    }

    pub fn u32s(&self, v: &[u32]) -> u64 {
        self.buffer(&v.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<_>>())
    }

    pub fn f32s(&self, v: &[f32]) -> u64 {
        self.u32s(&v.iter().map(|x| x.to_bits()).collect::<Vec<_>>())
    }

    pub fn u64s(&self, v: &[u64]) -> u64 {
        self.buffer(&v.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<_>>())
    }

    pub fn read_u32s(&self, a: u64, n: usize) -> Vec<u32> {
        let mut b = vec![0; 4 * n];
        self.memory.read(a, &mut b).unwrap();
        b.chunks(4).map(|c| u32::from_le_bytes(c.try_into().unwrap())).collect()
    }

    pub fn read_f32s(&self, a: u64, n: usize) -> Vec<f32> {
        self.read_u32s(a, n).into_iter().map(f32::from_bits).collect()
    }

    pub fn read_u64s(&self, a: u64, n: usize) -> Vec<u64> {
        let mut b = vec![0; 8 * n];
        self.memory.read(a, &mut b).unwrap();
        b.chunks(8).map(|c| u64::from_le_bytes(c.try_into().unwrap())).collect()
    }

    pub fn launch(&self, kernel: &str, grid: u32, block: u32, params: &[u64]) -> Result<Report, Fault> {
        self.launch3(kernel, [grid, 1, 1], [block, 1, 1], params)
    }

    /// Parameters are given as 64-bit values and placed where the kernel wants them.
    pub fn launch3(&self, kernel: &str, grid: [u32; 3], block: [u32; 3], params: &[u64]) -> Result<Report, Fault> {
        let info = self.module.kernel(kernel).unwrap_or_else(|| panic!("no kernel {kernel}"));
        let mut bytes = vec![0; info.param_bytes as usize];
        assert_eq!(params.len(), info.params.len(), "parameters of {kernel}");
        for (v, p) in params.iter().zip(&info.params) {
            bytes[p.offset as usize..(p.offset + p.size) as usize].copy_from_slice(&v.to_le_bytes()[..p.size as usize]);
        }
        let launch = Launch {
            module: &self.module,
            kernel,
            grid,
            block,
            dynamic_shared: self.dynamic_shared,
            params: &bytes,
            cooperative: self.cooperative,
            cluster: None,
        };
        run(&launch, &self.memory, &self.config)
    }
}

/// The schedules every program is run under.
pub fn schedules() -> Vec<(Schedule, bool, u64)> {
    vec![
        (Schedule::RoundRobin, false, 0),
        (Schedule::Random, false, 1),
        (Schedule::Random, true, 2),
        (Schedule::Adversarial, false, 3),
        (Schedule::Adversarial, true, 4),
    ]
}
