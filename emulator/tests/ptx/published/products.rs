//! Products of quantised weights and one vector: the steps of the kernel's source in their order, with its branches, since
//! the clock orders instructions within a basic block alone.

use super::kernel::Kernel;

/// Threads of a block, which makes one element.
pub(super) const THREADS: u32 = 64;
/// Weights that share a scale.
pub(super) const GROUP: u32 = 32;

/// One element of `y` a block: weights of `bits` bits name an entry of the code book `p3`, which lanes keep and shuffle.
/// `p0` has the vector in f16; `p1` the weights, as a word for each bit of 32 of them; `p2` a byte of scale for each 32, four
/// bits of exponent before four of mantissa; the floats of `y` stand 256 bytes behind the code book.
pub(super) fn book(bits: u32, columns: u32) -> String {
    let mut k = Kernel::new(THREADS, 8);
    let groups = columns / GROUP;
    k.lines(&[
        "and.b32 %r3, %r0, 31",
        "mul.wide.u32 %rd4, %r3, 4",
        "add.u64 %rd4, %rd3, %rd4",
        "mov.f32 %f0, 0f00000000",
    ]);
    k.line(&format!("setp.lt.u32 %p0, %r3, {}", 1 << bits));
    k.lines(&["@%p0 ld.global.nc.f32 %f0, [%rd4]", "mov.b32 %r4, %f0", "mov.f32 %f1, 0f00000000", "mov.u32 %r5, %r0"]);
    k.line(&format!("mul.lo.u32 %r6, %r1, {groups}"));
    k.label("GROUPS");
    k.lines(&[&format!("setp.lt.u32 %p1, %r5, {groups}"), "add.u32 %r7, %r6, %r5"]);
    k.lines(&[&format!("mul.wide.u32 %rd5, %r7, {}", 4 * bits), "add.u64 %rd5, %rd1, %rd5"]);
    if columns > GROUP * THREADS {
        k.lines(&["add.u32 %r8, %r5, 64", &format!("setp.lt.u32 %p2, %r8, {groups}")]);
        k.line(&format!("@%p2 prefetch.global.L2 [%rd5+{}]", 4 * bits * THREADS));
    }
    (0..bits).for_each(|bit| k.line(&format!("mov.u32 %r{}, 0", 20 + bit)));
    match bits {
        2 => k.line("@%p1 ld.global.nc.v2.u32 {%r20, %r21}, [%rd5]"),
        4 => k.line("@%p1 ld.global.nc.v4.u32 {%r20, %r21, %r22, %r23}, [%rd5]"),
        _ => (0..bits).for_each(|bit| k.line(&format!("@%p1 ld.global.nc.u32 %r{}, [%rd5+{}]", 20 + bit, 4 * bit))),
    }
    // A scale, 0 where the byte is 0 or there is no group; an exponent of 0 is that of a subnormal. The exponent's bias is 11,
    // and 127 in a float.
    k.lines(&["mov.f32 %f2, 0f00000000", "cvt.u64.u32 %rd6, %r7", "add.u64 %rd6, %rd2, %rd6", "@!%p1 bra SCALED"]);
    k.lines(&["ld.global.nc.u8 %r9, [%rd6]", "setp.eq.u32 %p5, %r9, 0", "@%p5 bra SCALED"]);
    k.lines(&["shr.u32 %r10, %r9, 4", "and.b32 %r11, %r9, 15", "setp.eq.u32 %p6, %r10, 0"]);
    k.lines(&["@%p6 cvt.rn.f32.u32 %f2, %r11", "@%p6 mul.f32 %f2, %f2, 0f38800000"]);
    k.lines(&["shl.b32 %r10, %r10, 23", "shl.b32 %r11, %r11, 19", "add.u32 %r10, %r10, 0x3a000000"]);
    k.lines(&["add.u32 %r10, %r10, %r11", "@!%p6 mov.b32 %f2, %r10"]);
    k.label("SCALED");
    k.lines(&["mul.wide.u32 %rd7, %r5, 64", "add.u64 %rd7, %rd0, %rd7"]);
    for part in 0..4 {
        // A branch of the source. NVIDIA's assembler, which 24 blocks leave 42 registers a thread, has these loads in turn too.
        k.line(&format!("@!%p1 bra PART{part}"));
        k.line(&format!("ld.global.nc.v4.u32 {{%r30, %r31, %r32, %r33}}, [%rd7+{}]", 16 * part));
        k.label(&format!("PART{part}"));
        (0..8).for_each(|i| weight(&mut k, bits, 8 * part + i, i));
    }
    k.lines(&["add.u32 %r5, %r5, 64", &format!("setp.lt.u32 %p3, %r5, {}", groups.next_multiple_of(THREADS))]);
    k.line("@%p3 bra GROUPS");
    k.warp_sums("%f1", "%f3", 0);
    k.lines(&["bar.sync 0", "setp.ne.u32 %p4, %r0, 0", "@%p4 bra END", "ld.shared.v2.f32 {%f1, %f3}, [%r23]"]);
    k.lines(&["add.f32 %f1, %f1, %f3", "mul.wide.u32 %rd8, %r1, 4", "add.u64 %rd8, %rd3, %rd8"]);
    k.line("st.global.f32 [%rd8+256], %f1");
    k.label("END");
    k.text("kernel")
}

/// Weight `i` of a group, times element `element` of the eight that were loaded.
fn weight(k: &mut Kernel, bits: u32, i: u32, element: u32) {
    for bit in 0..bits {
        k.line(&format!("shr.u32 %r41, %r{}, {i}", 20 + bit));
        k.line("and.b32 %r41, %r41, 1");
        k.line(&format!("shl.b32 %r41, %r41, {bit}"));
        k.line(&if bit == 0 { "mov.u32 %r40, %r41".to_owned() } else { "or.b32 %r40, %r40, %r41".to_owned() });
    }
    k.lines(&["shfl.sync.idx.b32 %r42, %r4, %r40, 31, -1", "mov.b32 %f4, %r42", "mul.f32 %f4, %f4, %f2"]);
    let word = 30 + element / 2;
    k.line(&format!("mov.b32 {{%h0, %h1}}, %r{word}"));
    k.lines(&[&format!("cvt.f32.f16 %f5, %h{}", element % 2), "@%p1 fma.rn.f32 %f1, %f4, %f5, %f1"]);
}
