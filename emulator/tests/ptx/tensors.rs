//! Copies of boxes by tensor maps.
#![allow(clippy::result_large_err)]

use crate::rig::{Rig, ptx, schedules};
use kiln_emulator::FaultKind::{self, *};
use kiln_emulator::{DeviceConfig, Fault, add_device, chip_file, resolve};
use std::ffi::c_void;
use std::mem::transmute;
use std::ptr::from_mut;

/// `CUtensorMap`
#[repr(align(64))]
struct Map([u8; 128]);

/// A tensor: `CUtensorMapDataType` and bytes of its elements, its dimensions, and bytes between rows, planes and so on.
struct Tensor<'a> {
    ty: u32,
    element: usize,
    dims: &'a [u64],
    strides: &'a [u64],
}

impl Tensor<'_> {
    /// The map by which boxes are copied from the tensor at an address.
    fn map(&self, address: u64, extent: &[u32]) -> [u8; 128] {
        type Init = unsafe extern "C" fn(u32) -> u32;
        #[rustfmt::skip]
        type Encode = unsafe extern "C" fn(*mut c_void, u32, u32, u64, *const u64, *const u64, *const u32, *const u32, u32, u32, u32, u32) -> u32;
        let mut map = Map([0; 128]);
        let rank = self.dims.len() as u32;
        add_device(DeviceConfig::default());
        // SAFETY: the signatures are those of NVIDIA's header; the pointers are to lists of so many values.
        let codes = unsafe {
            let init: Init = transmute(resolve(c"cuInit").unwrap().as_ptr());
            let encode: Encode = transmute(resolve(c"cuTensorMapEncodeTiled").unwrap().as_ptr());
            let (dims, strides, steps) = (self.dims.as_ptr(), self.strides.as_ptr(), [1; 5].as_ptr());
            let to = from_mut(&mut map).cast();
            (init(0), encode(to, self.ty, rank, address, dims, strides, extent.as_ptr(), steps, 0, 0, 2, 0))
        };
        assert_eq!(codes, (0, 0));
        map.0
    }

    /// What a copy of a box brings, by the definition: element by element.
    fn expected(&self, data: &[u8], extent: &[u32], corner: &[i32]) -> Vec<u8> {
        let mut all = Vec::new();
        for number in 0..extent.iter().product::<u32>() {
            let (mut rest, mut at, mut inside) = (number, 0, true);
            for (d, &n) in extent.iter().enumerate() {
                let place = i64::from(corner[d]) + i64::from(rest % n);
                rest /= n;
                inside &= (0..self.dims[d] as i64).contains(&place);
                let stride = if d == 0 { self.element as i64 } else { self.strides[d - 1] as i64 };
                at += place * stride;
            }
            match inside {
                true => all.extend(&data[at as usize..at as usize + self.element]),
                false => all.extend(vec![0; self.element]),
            }
        }
        all
    }
}

/// Lane 0 of each block copies a box by the map at `map`, and all store what came at `out`.
fn kernel(rank: usize, bytes: usize, before: &str, copy: &str) -> String {
    let coordinates: Vec<_> = (0..rank).map(|d| format!("%r{}", 10 + d)).collect();
    let loads: String = (0..rank).map(|d| format!("ld.param.u32 %r{}, [c{d}];\n", 10 + d)).collect();
    let copy = copy.replace("PLACE", &format!("[%rd1, {{{}}}]", coordinates.join(", ")));
    ptx(
        90,
        &format!(
            "
.visible .entry k(.param .u64 map, .param .u64 tensor, .param .u64 out, .param .u32 c0, .param .u32 c1, .param .u32 c2, .param .u32 c3, .param .u32 c4)
{{
.reg .pred %p<4>; .reg .b32 %r<20>; .reg .b64 %rd<8>;
.shared .align 128 .b8 tile[{bytes}];
.shared .align 8 .b64 full;
ld.param.u64 %rd1, [map];
ld.param.u64 %rd2, [out];
ld.param.u64 %rd3, [tensor];
{loads}
mov.u32 %r1, %tid.x;
mov.u32 %r2, %ctaid.x;
mad.wide.u32 %rd2, %r2, {bytes}, %rd2;
setp.ne.u32 %p1, %r1, 0;
mov.u32 %r3, tile;
mov.u32 %r4, full;
@%p1 bra W;
mbarrier.init.shared.b64 [%r4], 1;
fence.proxy.async.shared::cta;
{before}
mbarrier.arrive.expect_tx.shared.b64 %rd5, [%r4], {bytes};
{copy}
W: bar.sync 0;
L: mbarrier.try_wait.parity.shared.b64 %p2, [%r4], 0;
@!%p2 bra L;
C: setp.ge.u32 %p3, %r1, {bytes};
@%p3 ret;
add.u32 %r5, %r3, %r1;
ld.shared.u8 %r6, [%r5];
cvt.u64.u32 %rd6, %r1;
add.u64 %rd6, %rd2, %rd6;
st.global.u8 [%rd6], %r6;
add.u32 %r1, %r1, 32;
bra C;
}}"
        ),
    )
}

const FENCE: &str = "fence.proxy.tensormap::generic.acquire.gpu [%rd1], 128;";

fn copy(rank: usize) -> String {
    format!(
        "cp.async.bulk.tensor.{rank}d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%r3], PLACE, [%r4];"
    )
}

/// A tensor, the dimensions of a box, and where boxes begin.
type Case<'a> = (Tensor<'a>, &'a [u32], &'a [&'a [i32]]);

/// Numbers in no pattern.
fn noise(bytes: u64) -> Vec<u8> {
    (0..bytes).map(|i| (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as u8 | 1).collect()
}

/// The tensor in memory of exactly its size, its map beside it, and a kernel's launch. Returns what was copied.
fn copied(rig: &Rig, tensor: &Tensor<'_>, data: &[u8], extent: &[u32], corner: &[i32]) -> Result<Vec<u8>, Fault> {
    let bytes = extent.iter().product::<u32>() as usize * tensor.element;
    let from = rig.buffer(data);
    let map = rig.buffer(&tensor.map(from, extent));
    let out = rig.buffer(&vec![0xaa; bytes]);
    let mut params = [map, from, out, 0, 0, 0, 0, 0];
    params[3..].iter_mut().zip(corner).for_each(|(param, &at)| *param = u64::from(at as u32));
    rig.launch("k", 1, 32, &params)?;
    let mut got = vec![0; bytes];
    rig.memory.read(out, &mut got).unwrap();
    Ok(got)
}

#[test]
fn boxes_of_every_rank_and_width_come_with_zeros_around_the_tensor() {
    let cases: [Case<'_>; 7] = [
        // Rows of three blocks of 144 bytes; the last box is cut.
        (
            Tensor { ty: 0, element: 1, dims: &[432, 13], strides: &[432] },
            &[144, 8],
            &[&[0, 0], &[144, 0], &[288, 8], &[0, -3], &[-7, 5], &[425, 12], &[-160, 0], &[0, 13]],
        ),
        // Rows end within the stride.
        (Tensor { ty: 0, element: 1, dims: &[430, 5], strides: &[448] }, &[144, 2], &[&[288, 3], &[287, 4], &[429, 0]]),
        (Tensor { ty: 6, element: 2, dims: &[37, 9], strides: &[80] }, &[24, 4], &[&[0, 0], &[15, 7], &[-1, -1]]),
        (
            Tensor { ty: 2, element: 4, dims: &[10, 3, 4], strides: &[48, 160] },
            &[4, 2, 3],
            &[&[0, 0, 0], &[8, 2, 2], &[-2, -1, -1], &[3, 1, 4]],
        ),
        (Tensor { ty: 8, element: 8, dims: &[33], strides: &[] }, &[32], &[&[0], &[5], &[-31], &[33]]),
        (
            Tensor { ty: 9, element: 2, dims: &[8, 2, 3, 2], strides: &[16, 32, 96] },
            &[8, 2, 2, 2],
            &[&[0, 0, 0, 0], &[-3, 1, 2, 1]],
        ),
        (
            Tensor { ty: 7, element: 4, dims: &[4, 3, 2, 2, 2], strides: &[16, 48, 96, 192] },
            &[4, 1, 2, 1, 2],
            &[&[0, 0, 0, 0, 0], &[1, 2, 1, 1, 1], &[0, -1, 0, 0, 0]],
        ),
    ];
    for (tensor, extent, corners) in &cases {
        let size = tensor.dims.iter().skip(1).zip(tensor.strides).map(|(n, stride)| (n - 1) * stride).sum::<u64>();
        let data = noise(size + tensor.dims[0] * tensor.element as u64);
        let bytes = extent.iter().product::<u32>() as usize * tensor.element;
        for corner in *corners {
            for (schedule, split_warps, seed) in schedules() {
                let mut rig = Rig::new(&kernel(extent.len(), bytes, FENCE, &copy(extent.len())));
                (rig.config.schedule, rig.config.split_warps, rig.config.seed) = (schedule, split_warps, seed);
                let got = copied(&rig, tensor, &data, extent, corner).unwrap_or_else(|fault| panic!("{fault}"));
                assert_eq!(got, tensor.expected(&data, extent, corner), "{extent:?} at {corner:?}");
            }
        }
    }
}

/// Bytes in 13 rows of three blocks of 144; boxes are eight rows of a block.
const ROWS: Tensor<'_> = Tensor { ty: 0, element: 1, dims: &[432, 13], strides: &[432] };
const BLOCK: &[u32] = &[144, 8];
const BYTES: usize = 144 * 8;

/// A kernel of such a box under one schedule, and what two blocks of it are given.
struct Trial {
    rig: Rig,
    from: u64,
    map: u64,
}

impl Trial {
    fn all(text: &str) -> impl Iterator<Item = Trial> {
        schedules().into_iter().map(move |(schedule, split_warps, seed)| {
            let mut rig = Rig::new(text);
            (rig.config.schedule, rig.config.split_warps, rig.config.seed) = (schedule, split_warps, seed);
            rig.config.livelock_rounds = Some(2000);
            let from = rig.buffer(&noise(432 * 13));
            let map = rig.buffer(&ROWS.map(from, BLOCK));
            Trial { rig, from, map }
        })
    }

    /// The fault of a copy from the last five rows and beyond.
    fn fault(&self) -> Option<(FaultKind, String)> {
        let out = self.rig.buffer(&[0; 2 * BYTES]);
        let launched = self.rig.launch("k", 2, 32, &[self.map, self.from, out, 144, 8, 0, 0, 0]);
        launched.err().map(|fault| (fault.kind, fault.to_string()))
    }
}

/// What stands in the kernel, what is put in its place, and the fault with a part of its text; none where it is right.
type Change<'a> = (&'a str, String, Option<(FaultKind, &'a str)>);

#[test]
fn what_is_wrong_with_a_copy_is_found_and_its_twin_is_silent() {
    let right = kernel(2, BYTES, FENCE, &copy(2));
    let store = |offset, fence| format!("setp.eq.u32 %p2, %r2, 1; @%p2 st.global.u32 [%rd3+{offset}], 5; {fence}");
    let seen = "fence.proxy.async.global;";
    let by_others = format!("setp.eq.u32 %p3, %r1, 1; @%p3 {FENCE}");
    let head = "@%p1 bra W;";
    let in_cluster =
        |first: &str| format!("{first} {FENCE} barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned; {head}");
    let row = |n: u32| 432 * n + 144;
    let cases: [Change<'_>; 23] = [
        ("", String::new(), None),
        ("[%r3], [%rd1", "[%r3+16], [%rd1".into(), Some((Misaligned, "a multiple of 128"))),
        ("[%rd1, {", "[%rd1+32, {".into(), Some((Misaligned, "a multiple of 64"))),
        ("[%r3], [%rd1", "[%r3+128], [%rd1".into(), Some((OutOfBounds, "shared memory"))),
        ("tensor.2d", "tensor.1d".into(), Some((IllegalInstruction, "1 coordinates from a tensor of 2"))),
        // A fence for the map.
        (FENCE, String::new(), Some((Race, "tensormap::generic.acquire"))),
        (FENCE, format!("setp.eq.u32 %p2, %r2, 0; @%p2 {FENCE}"), Some((Race, "tensormap::generic.acquire"))),
        (FENCE, FENCE.replace("%rd1", "%rd1+64"), Some((OutOfBounds, "128 bytes"))),
        (FENCE, FENCE.replace("%rd1", "%rd3"), Some((Race, "tensormap::generic.acquire"))),
        (FENCE, format!("fence.proxy.tensormap::generic.release.gpu; {FENCE}"), None),
        (head, format!("{by_others} {head}"), Some((Race, "tensormap::generic.acquire"))),
        (head, format!("{by_others} bar.sync 0; {head}"), None),
        (head, in_cluster("setp.eq.u32 %p2, %r2, 0; @%p2"), Some((Race, "tensormap::generic.acquire"))),
        (head, in_cluster(""), None),
        // The mbarrier.
        ("[%r4], 1152", "[%r4], 1136".into(), Some((Deadlock, "-16 bytes missing"))),
        ("[%r4], 1152", "[%r4], 1168".into(), Some((Deadlock, "16 bytes missing"))),
        ("W: bar.sync 0;", "W: bar.sync 0; ld.shared.u8 %r6, [%r3];".into(), Some((Race, "in flight"))),
        ("fence.proxy.async.shared::cta;", String::new(), Some((Race, "visible to the async proxy"))),
        // Who writes the tensor.
        (FENCE, format!("{} {FENCE}", store(row(8), "")), Some((Race, "global memory"))),
        (FENCE, format!("{} {FENCE}", store(row(12) + 140, seen)), Some((Race, "global memory"))),
        (FENCE, format!("st.global.u32 [%rd3+{}], 5; {FENCE}", row(8) + 144), Some((Race, "write"))),
        (FENCE, format!("{} {FENCE}", store(row(8) + 144, "")), None),
        (FENCE, format!("{} {FENCE}", store(row(7), "")), None),
    ];
    for (from, to, expected) in &cases {
        // The map of what other threads have a fence for has none in lane 0.
        let base = if *from == head { right.replace(FENCE, "") } else { right.clone() };
        let base = match to.contains("cluster") {
            true => base.replace(")\n{", ") .explicitcluster .reqnctapercluster 2\n{"),
            false => base,
        };
        let base = if to.contains("tensor.1d") { base.replace(", %r11}]", "}]") } else { base };
        assert!(base.contains(from), "{from}");
        for trial in Trial::all(&base.replace(from, to)) {
            let fault = trial.fault();
            let found = fault.as_ref().map(|(kind, message)| (*kind, message.as_str()));
            match (found, expected) {
                (None, None) => {}
                (Some((kind, message)), Some((wanted, word))) if kind == *wanted && message.contains(word) => {}
                _ => panic!("{from} as {to}: {found:?} instead of {expected:?}"),
            }
        }
    }
}

#[test]
fn the_map_and_the_tensor_are_memory_that_is_there() {
    let text = kernel(2, BYTES, FENCE, &copy(2));
    let expect = |trial: &Trial, kind, word: &str| {
        let (found, message) = trial.fault().expect(word);
        assert!(found == kind && message.contains(word), "{message}");
    };
    for trial in Trial::all(&text) {
        trial.rig.memory.free(trial.from).unwrap();
        expect(&trial, UseAfterFree, "memory that was freed");
    }
    for trial in Trial::all(&text) {
        // A row more than there is.
        let map = Tensor { dims: &[432, 14], ..ROWS }.map(trial.from, BLOCK);
        trial.rig.memory.write(trial.map, &map).unwrap();
        expect(&trial, OutOfBounds, "allocation of 5616 bytes");
    }
    for trial in Trial::all(&text) {
        trial.rig.memory.write(trial.map, b"kilntmap").unwrap();
        expect(&trial, IllegalInstruction, "no tensor map");
    }
    for mut trial in Trial::all(&text) {
        trial.map = trial.rig.memory.alloc(128).unwrap();
        expect(&trial, UninitialisedMemory, "nothing has written");
    }
}

#[test]
fn undefined_elements_stay_undefined_and_zeros_are_defined() {
    // Threads branch by what comes in the box's row 4, where the tensor has its last row.
    let depends = "setp.eq.u32 %p2, %r6, 77; @%p2 bra D; D: st.global.u8";
    let text = kernel(2, BYTES, FENCE, &copy(2)).replace("st.global.u8", depends);
    for (written, end, found) in [(432 * 13, 1152, false), (432 * 13 - 200, 1152, true), (432 * 13 - 200, 576, false)] {
        let text = text.replace("setp.ge.u32 %p3, %r1, 1152", &format!("setp.ge.u32 %p3, %r1, {end}"));
        for mut trial in Trial::all(&text) {
            let from = trial.rig.memory.alloc(432 * 13).unwrap();
            trial.rig.memory.write(from, &noise(written)).unwrap();
            trial.map = trial.rig.buffer(&ROWS.map(from, BLOCK));
            let kind = trial.fault().map(|fault| fault.0);
            assert_eq!(kind, found.then_some(UninitialisedMemory), "{written} bytes written, {end} looked at");
        }
    }
}

#[test]
fn a_map_may_be_a_variable_of_the_module() {
    let text = kernel(2, BYTES, &FENCE.replace("%rd1", "maps+64"), &copy(2)).replace("[%rd1, {", "[maps+64, {");
    let text = text.replacen(".visible", ".global .align 64 .b8 maps[192];\n.visible", 1);
    for trial in Trial::all(&text) {
        let (maps, _) = trial.rig.module.global("maps").unwrap();
        trial.rig.memory.write(maps + 64, &ROWS.map(trial.from, BLOCK)).unwrap();
        assert_eq!(trial.fault(), None);
    }
}

/// What a launch of one block counts, and its time.
fn counted(before: &str, copy: &str, corner: [u64; 2]) -> (kiln_emulator::Counters, kiln_emulator::Timing) {
    let text = kernel(2, BYTES, before, copy).replace("C: setp", "C: ret; setp");
    let mut rig = Rig::new(&text);
    rig.config = DeviceConfig { counters: true, ..DeviceConfig::clocked(chip_file("h100-sxm").unwrap()) };
    let from = rig.buffer(&noise(432 * 16));
    let map = rig.buffer(&Tensor { dims: &[432, 16], ..ROWS }.map(from, BLOCK));
    let report = rig.launch("k", 1, 32, &[map, from, 0, corner[0], corner[1], 0, 0, 0]).unwrap();
    (report.counters.unwrap(), report.timing.unwrap())
}

#[test]
fn a_copy_moves_the_sectors_of_its_rows_and_takes_the_time_of_a_bulk_copy() {
    let sectors = |rows: std::ops::Range<u64>, from: u64, bytes: u64| {
        rows.map(|row| (432 * row + from + bytes).div_ceil(32) - (432 * row + from) / 32).sum::<u64>()
    };
    // All eight rows of the last block; then the last five, the first 100 bytes of each outside.
    let minus = |n: u32| u64::from(n.wrapping_neg());
    for (corner, rows, from, bytes) in [([288, 8], 8..16, 288, 144), ([minus(100), 11], 11..16, 0, 44)] {
        let (counters, timing) = counted(FENCE, &copy(2), corner);
        let expected = sectors(rows.clone(), from, bytes);
        assert_eq!(counters.read_bytes_used, (rows.end - rows.start) * bytes);
        assert_eq!((counters.read_sectors, counters.write_sectors), (expected, 0));
        assert_eq!((counters.by_opcode["cp"], counters.fences), (1, 2));
        assert_eq!(counters.bulk_bytes_under_way, BYTES as u64, "the box, with what lies outside");
        assert_eq!(timing.l2_bytes, 32.0 * expected as f64);
    }
    // A copy of the same bytes in one piece.
    let bulk = "add.u64 %rd3, %rd3, 3456; cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r3], [%rd3], 1152, [%r4];";
    let (tensor, bulk) = (counted(FENCE, &copy(2), [288, 8]).1, counted(FENCE, bulk, [0, 0]).1);
    let ratio = tensor.nanoseconds / bulk.nanoseconds;
    assert!((0.95..1.05).contains(&ratio), "{} and {} ns", tensor.nanoseconds, bulk.nanoseconds);
    // Nothing of the box in the tensor: nothing moves, and it comes sooner than from memory.
    let (counters, timing) = counted(FENCE, &copy(2), [0, 16]);
    assert_eq!((counters.read_sectors, timing.l2_bytes), (0, 0.0));
    assert!(timing.nanoseconds < tensor.nanoseconds);
}
