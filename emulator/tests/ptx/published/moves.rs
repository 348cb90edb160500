//! Kernels that do little but move: element by element, a transposition, rows of a table.

use super::kernel::Kernel;

/// Four elements a thread, 256 threads a block: `p2 = p0 + p1`, or `p2 = max(p0, 0)`.
pub(super) fn elements(add: bool) -> String {
    let mut k = Kernel::new(256, 0);
    k.lines(&["mul.wide.u32 %rd4, %r2, 16", "add.u64 %rd5, %rd0, %rd4", "add.u64 %rd6, %rd2, %rd4"]);
    k.line("ld.global.nc.v4.f32 {%f1, %f2, %f3, %f4}, [%rd5]");
    if add {
        k.lines(&["add.u64 %rd7, %rd1, %rd4", "ld.global.nc.v4.f32 {%f5, %f6, %f7, %f8}, [%rd7]"]);
        (1..5).for_each(|i| k.line(&format!("add.f32 %f{i}, %f{i}, %f{}", i + 4)));
    } else {
        (1..5).for_each(|i| k.line(&format!("max.f32 %f{i}, %f{i}, 0f00000000")));
    }
    k.line("st.global.v4.f32 [%rd6], {%f1, %f2, %f3, %f4}");
    k.text("kernel")
}

/// `p1[x, y] = p0[y, x]`, both of 4096 by 4096 floats: a tile of 32 by 32 a block, whose rows lie `pitch` floats apart in
/// shared memory.
pub(super) fn transpose(pitch: u32) -> String {
    let mut k = Kernel::new(1024, 32 * pitch * 4);
    k.lines(&["and.b32 %r3, %r0, 31", "shr.u32 %r4, %r0, 5", "and.b32 %r5, %r1, 127", "shr.u32 %r6, %r1, 7"]);
    k.lines(&["shl.b32 %r5, %r5, 5", "shl.b32 %r6, %r6, 5", "mov.u32 %r7, data"]);
    // x = 32 bx + tx, y = 32 by + ty
    k.lines(&["add.u32 %r8, %r5, %r3", "add.u32 %r9, %r6, %r4", "mad.lo.u32 %r10, %r9, 4096, %r8"]);
    k.lines(&["mul.wide.u32 %rd4, %r10, 4", "add.u64 %rd4, %rd0, %rd4", "ld.global.nc.f32 %f1, [%rd4]"]);
    k.line(&format!("mad.lo.u32 %r11, %r4, {pitch}, %r3"));
    k.lines(&["shl.b32 %r11, %r11, 2", "add.u32 %r11, %r7, %r11", "st.shared.f32 [%r11], %f1", "bar.sync 0"]);
    k.line(&format!("mad.lo.u32 %r12, %r3, {pitch}, %r4"));
    k.lines(&["shl.b32 %r12, %r12, 2", "add.u32 %r12, %r7, %r12", "ld.shared.f32 %f2, [%r12]"]);
    k.lines(&["add.u32 %r8, %r6, %r3", "add.u32 %r9, %r5, %r4", "mad.lo.u32 %r10, %r9, 4096, %r8"]);
    k.lines(&["mul.wide.u32 %rd5, %r10, 4", "add.u64 %rd5, %rd1, %rd5", "st.global.f32 [%rd5], %f2"]);
    k.text("kernel")
}

/// Rows of 768 bf16 of the table `p0` by the tokens of `p1`, added to those of `p2` by position modulo 1024, into `p3`:
/// eight elements a thread, 1024 threads a block.
pub(super) fn embed() -> String {
    let mut k = Kernel::new(1024, 0);
    k.lines(&["div.u32 %r3, %r2, 96", "mul.lo.u32 %r4, %r3, 96", "sub.u32 %r4, %r2, %r4", "and.b32 %r5, %r3, 1023"]);
    k.lines(&["mul.wide.u32 %rd4, %r3, 4", "add.u64 %rd4, %rd1, %rd4", "ld.global.nc.u32 %r6, [%rd4]"]);
    k.lines(&["mad.lo.u32 %r7, %r6, 96, %r4", "mad.lo.u32 %r8, %r5, 96, %r4"]);
    for (address, base, index) in [("%rd5", "%rd0", "%r7"), ("%rd6", "%rd2", "%r8"), ("%rd7", "%rd3", "%r2")] {
        k.line(&format!("mul.wide.u32 {address}, {index}, 16"));
        k.line(&format!("add.u64 {address}, {base}, {address}"));
    }
    k.line("ld.global.nc.v4.u32 {%r40, %r41, %r42, %r43}, [%rd5]");
    k.line("ld.global.nc.v4.u32 {%r44, %r45, %r46, %r47}, [%rd6]");
    for i in 0..4 {
        let (a, b) = (40 + i, 44 + i);
        k.line(&format!("shl.b32 %r10, %r{a}, 16"));
        k.line(&format!("shl.b32 %r11, %r{b}, 16"));
        k.line(&format!("and.b32 %r12, %r{a}, 0xffff0000"));
        k.line(&format!("and.b32 %r13, %r{b}, 0xffff0000"));
        k.lines(&["mov.b32 %f1, %r10", "mov.b32 %f2, %r11", "mov.b32 %f3, %r12", "mov.b32 %f4, %r13"]);
        k.lines(&["add.f32 %f1, %f1, %f2", "add.f32 %f3, %f3, %f4"]);
        k.line(&format!("cvt.rn.bf16x2.f32 %r{a}, %f3, %f1"));
    }
    k.line("st.global.v4.u32 [%rd7], {%r40, %r41, %r42, %r43}");
    k.text("kernel")
}

/// Writes 16 bytes of zeros a thread to `p0`, 256 threads a block.
pub(super) fn clear() -> String {
    let mut k = Kernel::new(256, 0);
    k.lines(&["mul.wide.u32 %rd4, %r2, 16", "add.u64 %rd4, %rd0, %rd4", "mov.u32 %r3, 0"]);
    k.line("st.global.v4.u32 [%rd4], {%r3, %r3, %r3, %r3}");
    k.text("clear")
}
