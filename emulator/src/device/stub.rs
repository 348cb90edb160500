//! Stand-in for the machine until it is there: memory, and kernels that do nothing.

use std::collections::BTreeMap;
use std::sync::Mutex;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Schedule { RoundRobin, Random, Adversarial }
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Checks { pub memcheck: bool }
impl Checks { pub fn all() -> Self { Checks { memcheck: true } } }
#[derive(Debug, Clone, Default)]
pub struct Counters;
#[derive(Debug, Clone)]
pub struct Fault { pub message: String, pub code: u32 }
impl Fault { pub fn cuda_code(&self) -> u32 { self.code } }

#[derive(Clone, Copy)]
struct Region { data: usize, bytes: u64, owned: bool }
pub struct Memory { limit: u64, inner: Mutex<(u64, BTreeMap<u64, Region>)> }
impl Memory {
    pub fn new(limit: u64) -> Self { Memory { limit, inner: Mutex::new((0x10_0000_0000, BTreeMap::new())) } }
    pub fn alloc(&self, bytes: u64) -> Result<u64, ()> {
        if self.used() + bytes > self.limit { return Err(()); }
        let data = Box::leak(vec![0xa5u8; bytes as usize].into_boxed_slice()).as_mut_ptr() as usize;
        Ok(self.insert(Region { data, bytes, owned: true }))
    }
    fn insert(&self, r: Region) -> u64 {
        let mut g = self.inner.lock().unwrap();
        let base = g.0;
        g.0 = (base + r.bytes + 4096).next_multiple_of(4096);
        g.1.insert(base, r);
        base
    }
    pub unsafe fn map_host(&self, host: *mut u8, bytes: u64) -> u64 { self.insert(Region { data: host as usize, bytes, owned: false }) }
    pub fn free(&self, a: u64) -> Result<(), ()> { self.inner.lock().unwrap().1.remove(&a).map(|_| ()).ok_or(()) }
    fn range(&self, a: u64, n: u64) -> Result<*mut u8, ()> {
        let g = self.inner.lock().unwrap();
        let (&b, r) = g.1.range(..=a).next_back().ok_or(())?;
        if a - b + n <= r.bytes { Ok((r.data + (a - b) as usize) as *mut u8) } else { Err(()) }
    }
    pub fn write(&self, a: u64, b: &[u8]) -> Result<(), ()> {
        let p = self.range(a, b.len() as u64)?;
        // SAFETY: stub.
        unsafe { std::ptr::copy(b.as_ptr(), p, b.len()) }; Ok(())
    }
    pub fn read(&self, a: u64, b: &mut [u8]) -> Result<(), ()> {
        let p = self.range(a, b.len() as u64)?;
        // SAFETY: stub.
        unsafe { std::ptr::copy(p, b.as_mut_ptr(), b.len()) }; Ok(())
    }
    pub fn copy(&self, d: u64, s: u64, n: u64) -> Result<(), ()> {
        let mut b = vec![0; n as usize]; self.read(s, &mut b)?; self.write(d, &b)
    }
    pub fn set_u8(&self, a: u64, v: u8, n: u64) -> Result<(), ()> { self.write(a, &vec![v; n as usize]) }
    pub fn set_u32(&self, a: u64, v: u32, n: u64) -> Result<(), ()> { self.write(a, &v.to_le_bytes().repeat(n as usize)) }
    pub fn used(&self) -> u64 { self.inner.lock().unwrap().1.values().filter(|r| r.owned).map(|r| r.bytes).sum() }
    pub fn live_allocations(&self) -> Vec<(u64, u64)> { self.inner.lock().unwrap().1.iter().map(|(&a, r)| (a, r.bytes)).collect() }
}

#[derive(Clone)]
pub struct ParamInfo { pub offset: u32, pub size: u32 }
#[derive(Clone)]
pub struct KernelInfo {
    pub name: String, pub params: Vec<ParamInfo>, pub param_bytes: u32, pub static_shared: u32, pub registers: u32,
    pub reqntid: Option<[u32; 3]>, pub maxntid: Option<[u32; 3]>, pub target_sm: u32, pub local_bytes: u32, pub min_blocks: Option<u32>,
}
pub struct Module { pub kernels: Vec<KernelInfo> }
pub struct PtxError { pub line: u32, pub token: String, pub message: String }
impl Module {
    pub fn load(text: &str, _: &Memory) -> Result<Module, PtxError> {
        if !text.trim_start().starts_with(".version") {
            return Err(PtxError { line: 1, token: text.split_whitespace().next().unwrap_or("").into(), message: "expected .version".into() });
        }
        let target_sm = text.split(".target sm_").nth(1).and_then(|t| t[..2].parse().ok()).unwrap_or(0);
        let kernels = text.split(".entry ").skip(1).map(|t| {
            let name = t.split('(').next().unwrap_or("").trim().to_string();
            let list = t.split('(').nth(1).unwrap_or("").split(')').next().unwrap_or("");
            let mut at = 0;
            let params: Vec<_> = list.split(".param").skip(1).map(|p| {
                let size = if p.contains("64") { 8 } else { 4 };
                at = (at as u32).next_multiple_of(size);
                let info = ParamInfo { offset: at, size };
                at += size;
                info
            }).collect();
            KernelInfo { name, params, param_bytes: at, static_shared: 0, registers: 16, reqntid: None, maxntid: None, target_sm, local_bytes: 0, min_blocks: None }
        }).collect();
        Ok(Module { kernels })
    }
    pub fn kernel(&self, name: &str) -> Option<&KernelInfo> { self.kernels.iter().find(|k| k.name == name) }
}
