//! Products of quantised weights and one vector.

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
    k.lines(&[
        "cvt.u64.u32 %rd6, %r7",
        "add.u64 %rd6, %rd2, %rd6",
        "mov.u32 %r9, 0",
        "@%p1 ld.global.nc.u8 %r9, [%rd6]",
    ]);
    // The exponent's bias is 11 in a scale, 127 in a float.
    k.lines(&["shl.b32 %r9, %r9, 19", "add.u32 %r9, %r9, 0x3a000000", "mov.b32 %f2, %r9"]);
    k.lines(&["mul.wide.u32 %rd7, %r5, 64", "add.u64 %rd7, %rd0, %rd7"]);
    for part in 0..4 {
        k.line(&format!("@%p1 ld.global.nc.v4.u32 {{%r30, %r31, %r32, %r33}}, [%rd7+{}]", 16 * part));
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
        let (shift, by) = if i >= bit { ("shr", i - bit) } else { ("shl", bit - i) };
        k.line(&format!("{shift}.b32 %r41, %r{}, {by}", 20 + bit).replace("shr.b32", "shr.u32"));
        k.line(&format!("and.b32 %r41, %r41, {}", 1 << bit));
        k.line(&if bit == 0 { "mov.u32 %r40, %r41".to_owned() } else { "or.b32 %r40, %r40, %r41".to_owned() });
    }
    k.lines(&["shfl.sync.idx.b32 %r42, %r4, %r40, 31, -1", "mov.b32 %f4, %r42", "mul.f32 %f4, %f4, %f2"]);
    let word = 30 + element / 2;
    k.line(&format!("mov.b32 {{%h0, %h1}}, %r{word}"));
    k.lines(&[&format!("cvt.f32.f16 %f5, %h{}", element % 2), "@%p1 fma.rn.f32 %f1, %f4, %f5, %f1"]);
}
