//! Products of warpgroups: `wgmma.mma_async` of bytes against sums by hand, and what a kernel may forget about them.

use crate::rig::{Rig, ptx, schedules};
use kiln_emulator::FaultKind::{self, *};

/// Columns of a product, and their depth: two products one after the other.
const COLUMNS: usize = 24;
const DEPTH: usize = 64;

/// Bytes of a pattern's rows: none swizzled, or 32, 64 or 128.
#[derive(Clone, Copy)]
struct Layout {
    width: usize,
}

impl Layout {
    const ALL: [Layout; 4] = [Layout { width: 16 }, Layout { width: 32 }, Layout { width: 64 }, Layout { width: 128 }];

    /// Where byte `k` of a column lies, as the ISA's pictures have it.
    fn place(self, column: usize, k: usize) -> usize {
        let (eight, row) = (column / 8, column % 8);
        match self.width {
            16 => 1024 * eight + 128 * (k / 16) + 16 * row + k % 16,
            32 => 1024 * eight + 256 * (k / 32) + 32 * row + 16 * ((k / 16 % 2) ^ (row / 4)) + k % 16,
            64 => 1024 * eight + 64 * row + 16 * ((k / 16) ^ (row / 2)) + k % 16,
            _ => 1024 * eight + 128 * row + 16 * ((k / 16) ^ row) + k % 16,
        }
    }

    /// The upper bits of a descriptor, and by how many bytes the second product's begins later.
    fn descriptor(self) -> (u64, u64) {
        let code = [(16, 0), (32, 3), (64, 2), (128, 1)].into_iter().find(|(width, _)| *width == self.width);
        let further = match self.width {
            16 | 32 => 256,
            _ => 32,
        };
        (code.unwrap().1 << 62 | (1024 / 16) << 32 | (128 / 16) << 16, further)
    }
}

/// A kernel of one warpgroup. `forgets` is what is left out of its text.
fn kernel(layout: Layout, types: &str, forgets: &str) -> String {
    let (upper, further) = layout.descriptor();
    let sums: Vec<String> = (0..COLUMNS / 2).map(|i| format!("%s{i}")).collect();
    let list = sums.join(", ");
    let product = |rows: u32, adds: &str| {
        format!(
            "wgmma.mma_async.sync.aligned.m64n{COLUMNS}k32.s32.{types} {{{list}}}, {{%r{}, %r{}, %r{}, %r{}}}, %rd5, {adds};",
            rows,
            rows + 1,
            rows + 2,
            rows + 3
        )
    };
    let stores: String =
        sums.iter().enumerate().map(|(i, sum)| format!("st.global.u32 [%rd4+{}], {sum};\n", 4 * i)).collect();
    let body = format!(
        "ld.param.u64 %rd1, [image]; ld.param.u64 %rd2, [rows]; ld.param.u64 %rd4, [out];
         mov.u32 %r1, %tid.x; mad.wide.u32 %rd2, %r1, 32, %rd2; mad.wide.u32 %rd4, %r1, {bytes}, %rd4;
         mov.u32 %r2, columns; mad.wide.u32 %rd1, %r1, 24, %rd1; mad.lo.u32 %r3, %r1, 24, %r2;
         ld.global.v2.u32 {{%r4, %r5}}, [%rd1]; st.shared.v2.u32 [%r3], {{%r4, %r5}};
         ld.global.v2.u32 {{%r4, %r5}}, [%rd1+8]; st.shared.v2.u32 [%r3+8], {{%r4, %r5}};
         ld.global.v2.u32 {{%r4, %r5}}, [%rd1+16]; st.shared.v2.u32 [%r3+16], {{%r4, %r5}};
         ld.global.v4.u32 {{%r10, %r11, %r12, %r13}}, [%rd2]; ld.global.v4.u32 {{%r14, %r15, %r16, %r17}}, [%rd2+16];
         fence.proxy.async; // proxy
         bar.sync 0;
         shr.u32 %r2, %r2, 4; cvt.u64.u32 %rd5, %r2; or.b64 %rd5, %rd5, {upper};
         setp.eq.u32 %p1, %r1, 1000; setp.ne.u32 %p2, %r1, 1000;
         wgmma.fence.sync.aligned;
         {first}
         wgmma.commit_group.sync.aligned;
         add.u64 %rd5, %rd5, {further};
         {second}
         wgmma.commit_group.sync.aligned;
         wgmma.wait_group.sync.aligned 1;
         @%p1 st.shared.u32 [columns], 7;
         wgmma.wait_group.sync.aligned 0; // wait
         {stores}",
        bytes = 2 * COLUMNS,
        further = further / 16,
        first = product(10, "%p1"),
        second = product(14, "%p2"),
    );
    let body: String =
        body.lines().filter(|line| forgets.is_empty() || !line.contains(forgets)).collect::<Vec<_>>().join("\n");
    let body = match forgets {
        "early" => body.replace("@%p1 st.shared", "setp.eq.u32 %p1, %r1, 0; @%p1 st.shared"),
        "asks" => body.replace(
            "wgmma.wait_group.sync.aligned 0;",
            "setp.eq.s32 %p1, %s0, 0; @%p1 bra E; E: wgmma.wait_group.sync.aligned 0;",
        ),
        _ => body,
    };
    ptx(90, &format!(
        ".visible .entry k(.param .u64 image, .param .u64 rows, .param .u64 out)
         {{ .reg .pred %p<3>; .reg .b32 %r<18>; .reg .s32 %s<{}>; .reg .b64 %rd<6>; .shared .align 1024 .b8 columns[3072];
         {body}\nret; }}",
        COLUMNS / 2
    ))
}

/// Launches it with bytes of a seed, and compares the sums unless it faults.
fn run(layout: Layout, types: &str, forgets: &str, schedule: usize) -> Result<(), FaultKind> {
    let mut rig = Rig::new(&kernel(layout, types, forgets));
    (rig.config.schedule, rig.config.split_warps, rig.config.seed) = schedules()[schedule];
    let mut seed = 12345u32;
    let mut byte = || {
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (seed >> 24) as u8
    };
    let rows: Vec<[u8; DEPTH]> = (0..64).map(|_| std::array::from_fn(|_| byte())).collect();
    let columns: Vec<[u8; DEPTH]> = (0..COLUMNS).map(|_| std::array::from_fn(|_| byte())).collect();
    let mut image = vec![0; 3072];
    for (column, bytes) in columns.iter().enumerate() {
        bytes.iter().enumerate().for_each(|(k, byte)| image[layout.place(column, k)] = *byte);
    }
    // Lane `4g + t` of warp `w` has rows `16w + g` and `16w + g + 8` at bytes `4t` and `16 + 4t` of each 32.
    let of_lane = |thread: usize| {
        let (warp, g, t) = (thread / 32, thread % 32 / 4, thread % 4);
        (0..8).map(move |i| (16 * warp + g + 8 * (i % 2), 32 * (i / 4) + 16 * (i / 2 % 2) + 4 * t))
    };
    let words: Vec<u32> = (0..128)
        .flat_map(of_lane)
        .map(|(row, k)| u32::from_le_bytes(rows[row][k..k + 4].try_into().unwrap()))
        .collect();
    let (image, rows_at) = (rig.buffer(&image), rig.u32s(&words));
    let out = rig.u32s(&vec![0; 64 * COLUMNS]);
    rig.launch("k", 1, 128, &[image, rows_at, out]).map_err(|fault| fault.kind)?;
    let signed: Vec<bool> = types.split('.').map(|ty| ty == "s8").collect();
    let value = |byte: u8, signed: bool| if signed { i32::from(byte as i8) } else { i32::from(byte) };
    let found = rig.read_u32s(out, 64 * COLUMNS);
    for (thread, sums) in found.chunks(COLUMNS / 2).enumerate() {
        let (warp, g, t) = (thread / 32, thread % 32 / 4, thread % 4);
        for (i, sum) in sums.iter().enumerate() {
            let (row, column) = (16 * warp + g + 8 * (i / 2 % 2), 8 * (i / 4) + 2 * t + i % 2);
            let products = (0..DEPTH).map(|k| value(rows[row][k], signed[0]) * value(columns[column][k], signed[1]));
            assert_eq!(*sum as i32, products.sum::<i32>(), "row {row}, column {column}");
        }
    }
    Ok(())
}

#[test]
fn products_of_bytes_are_exact_in_every_layout() {
    for layout in Layout::ALL {
        for types in ["s8.s8", "u8.s8", "s8.u8", "u8.u8"] {
            run(layout, types, "", 0).unwrap();
        }
        (1..schedules().len()).for_each(|schedule| run(layout, "s8.s8", "", schedule).unwrap());
    }
}

#[test]
fn what_a_kernel_forgets_is_found() {
    let layout = Layout { width: 64 };
    // Nobody waits for the sums, or a branch depends on them too early.
    assert_eq!(run(layout, "s8.s8", "// wait", 0), Err(CopyInFlight));
    assert_eq!(run(layout, "s8.s8", "asks", 0), Err(UninitialisedRegister));
    // Ordinary writes are not seen by the async proxy.
    assert_eq!(run(layout, "s8.s8", "// proxy", 0), Err(Race));
    assert_eq!(run(layout, "s8.s8", "bar.sync 0;", 0), Err(Race));
    // Columns are read until the wait.
    assert_eq!(run(layout, "s8.s8", "early", 0), Err(Race));
}
