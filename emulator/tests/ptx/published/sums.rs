//! Sums of a vector: what a thread takes, and how a block adds up.

use super::kernel::Kernel;

/// What a thread of a sum takes.
#[derive(Debug, Clone, Copy)]
pub(super) enum Take {
    /// One number.
    One,
    /// So many numbers in a row, one by one.
    Strided(u32),
    /// So many vectors of four in a row.
    Vectors(u32),
}

impl Take {
    /// Numbers.
    pub(super) fn numbers(self) -> u32 {
        match self {
            Take::One => 1,
            Take::Strided(n) => n,
            Take::Vectors(n) => 4 * n,
        }
    }
}

/// Sums integers of `p0` into `p1`, 512 threads a block: halves of a block meet in shared memory until 32 threads are left,
/// which a `redux` adds up, or shared memory as well; one atomic operation a block.
pub(super) fn tree(take: Take, redux: bool) -> String {
    let mut k = Kernel::new(512, 2048);
    k.line(&format!("mul.wide.u32 %rd4, %r2, {}", 4 * take.numbers()));
    k.lines(&["add.u64 %rd4, %rd0, %rd4", "mov.u32 %r3, 0"]);
    match take {
        Take::One => k.line("ld.global.nc.u32 %r40, [%rd4]"),
        Take::Strided(n) => (0..n).for_each(|i| k.line(&format!("ld.global.nc.u32 %r{}, [%rd4+{}]", 40 + i, 4 * i))),
        Take::Vectors(n) => (0..n).for_each(|i| {
            let r = 40 + 4 * i;
            let registers = format!("%r{}, %r{}, %r{}, %r{}", r, r + 1, r + 2, r + 3);
            k.line(&format!("ld.global.nc.v4.u32 {{{registers}}}, [%rd4+{}]", 16 * i));
        }),
    }
    (0..take.numbers()).for_each(|i| k.line(&format!("add.u32 %r3, %r3, %r{}", 40 + i)));
    k.lines(&["mov.u32 %r4, data", "shl.b32 %r5, %r0, 2", "add.u32 %r4, %r4, %r5", "st.shared.u32 [%r4], %r3"]);
    k.line("bar.sync 0");
    let half = |k: &mut Kernel, active: u32| {
        k.line(&format!("setp.lt.u32 %p1, %r0, {active}"));
        k.line("@%p1 ld.shared.u32 %r6, [%r4]");
        k.line(&format!("@%p1 ld.shared.u32 %r7, [%r4+{}]", 4 * active));
        k.lines(&["@%p1 add.u32 %r6, %r6, %r7", "@%p1 st.shared.u32 [%r4], %r6"]);
    };
    for active in [256, 128, 64] {
        half(&mut k, active);
        k.line("bar.sync 0");
    }
    k.lines(&["setp.ge.u32 %p2, %r0, 32", "@%p2 bra END"]);
    if redux {
        k.lines(&["ld.shared.u32 %r6, [%r4]", "ld.shared.u32 %r7, [%r4+128]", "add.u32 %r6, %r6, %r7"]);
        k.line("redux.sync.add.u32 %r6, %r6, -1");
    } else {
        for active in [32, 16, 8, 4, 2, 1] {
            half(&mut k, active);
            k.line("bar.warp.sync -1");
        }
    }
    k.lines(&["setp.eq.u32 %p3, %r0, 0", "@%p3 red.global.add.u32 [%rd1], %r6"]);
    k.label("END");
    k.text("kernel")
}

/// Sums floats of `p0`, 256 threads a block, by shuffles; a float of `p1` a block.
pub(super) fn shuffles(take: Take) -> String {
    let mut k = Kernel::new(256, 128);
    k.line(&format!("mul.wide.u32 %rd4, %r2, {}", 4 * take.numbers()));
    k.line("add.u64 %rd4, %rd0, %rd4");
    match take {
        Take::Vectors(_) => {
            k.line("ld.global.nc.v4.f32 {%f1, %f2, %f3, %f4}, [%rd4]");
            k.lines(&["add.f32 %f1, %f1, %f2", "add.f32 %f1, %f1, %f3", "add.f32 %f1, %f1, %f4"]);
        }
        _ => k.line("ld.global.nc.f32 %f1, [%rd4]"),
    }
    k.warp_sums("%f1", "%f2", 0);
    k.lines(&["bar.sync 0", "setp.ge.u32 %p2, %r0, 32", "@%p2 bra END"]);
    k.sum_of_warps("%f1", "%f2", 8, 0);
    k.lines(&["mul.wide.u32 %rd5, %r1, 4", "add.u64 %rd5, %rd1, %rd5", "setp.eq.u32 %p3, %r0, 0"]);
    k.line("@%p3 st.global.f32 [%rd5], %f1");
    k.label("END");
    k.text("kernel")
}
