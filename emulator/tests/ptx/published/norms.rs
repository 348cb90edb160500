//! Norms of rows.

use super::kernel::Kernel;

/// `p2 += p0`, `p0 = rms_norm(p2) * p1`, rows of bf16 that are a vector of eight a thread.
pub(super) fn add_rms(hidden: u32) -> String {
    let threads = hidden / 8;
    let mut k = Kernel::new(threads, 128);
    k.lines(&["mul.wide.u32 %rd4, %r2, 16", "mul.wide.u32 %rd5, %r0, 16", "add.u64 %rd6, %rd0, %rd4"]);
    k.lines(&["add.u64 %rd7, %rd2, %rd4", "add.u64 %rd8, %rd1, %rd5"]);
    k.line("ld.global.v4.u32 {%r40, %r41, %r42, %r43}, [%rd6]");
    k.line("ld.global.v4.u32 {%r44, %r45, %r46, %r47}, [%rd7]");
    k.line("ld.global.nc.v4.u32 {%r48, %r49, %r50, %r51}, [%rd8]");
    k.lines(&["mov.f32 %f1, 0f00000000", "mov.f32 %f2, 0f00000000"]);
    let halves = |k: &mut Kernel, word: u32, low: u32| {
        k.line(&format!("shl.b32 %r60, %r{word}, 16"));
        k.line(&format!("and.b32 %r61, %r{word}, 0xffff0000"));
        k.line(&format!("mov.b32 %f{low}, %r60"));
        k.line(&format!("mov.b32 %f{}, %r61", low + 1));
    };
    for i in 0..4 {
        halves(&mut k, 40 + i, 10);
        halves(&mut k, 44 + i, 12);
        k.lines(&["add.f32 %f10, %f10, %f12", "add.f32 %f11, %f11, %f13"]);
        k.lines(&["fma.rn.f32 %f1, %f10, %f10, %f1", "fma.rn.f32 %f2, %f11, %f11, %f2"]);
        k.line(&format!("cvt.rn.bf16x2.f32 %r{}, %f11, %f10", 40 + i));
    }
    k.line("st.global.v4.u32 [%rd7], {%r40, %r41, %r42, %r43}");
    k.line("add.f32 %f1, %f1, %f2");
    k.warp_sums("%f1", "%f2", 0);
    k.lines(&["bar.sync 0", "setp.ge.u32 %p2, %r0, 32", "@%p2 bra SCALE"]);
    k.sum_of_warps("%f1", "%f2", threads / 32, 0);
    k.line(&format!("fma.rn.f32 %f1, %f1, 0f{:08X}, 0f3727C5AC", (1.0 / hidden as f32).to_bits()));
    k.lines(&["rsqrt.approx.ftz.f32 %f1, %f1", "st.shared.f32 [%r22], %f1"]);
    k.label("SCALE");
    k.lines(&["bar.sync 0", "ld.shared.f32 %f3, [%r20]"]);
    for i in 0..4 {
        halves(&mut k, 40 + i, 10);
        halves(&mut k, 48 + i, 12);
        k.lines(&["mul.f32 %f10, %f10, %f12", "mul.f32 %f11, %f11, %f13"]);
        k.lines(&["mul.f32 %f10, %f10, %f3", "mul.f32 %f11, %f11, %f3"]);
        k.line(&format!("cvt.rn.bf16x2.f32 %r{}, %f11, %f10", 40 + i));
    }
    k.line("st.global.v4.u32 [%rd6], {%r40, %r41, %r42, %r43}");
    k.text("kernel")
}

/// `p2 = rms_norm(p0) * p1`, rows of 4096 floats in shared memory, 512 threads: floats and shuffles, or vectors of four and
/// halves of the block that meet.
pub(super) fn rms(vectors: bool) -> String {
    let mut k = Kernel::new(512, 16384 + 2048 + 256);
    let (width, steps) = if vectors { (4, 2) } else { (1, 8) };
    k.lines(&["mul.wide.u32 %rd4, %r1, 16384", "add.u64 %rd5, %rd0, %rd4", "add.u64 %rd6, %rd2, %rd4"]);
    k.line(&format!("mul.lo.u32 %r3, %r0, {}", 4 * width));
    k.lines(&[
        "cvt.u64.u32 %rd7, %r3",
        "add.u64 %rd5, %rd5, %rd7",
        "add.u64 %rd6, %rd6, %rd7",
        "add.u64 %rd7, %rd1, %rd7",
    ]);
    k.lines(&["mov.u32 %r4, data", "add.u32 %r5, %r4, %r3", "shl.b32 %r6, %r0, 2", "add.u32 %r6, %r4, %r6"]);
    let group = |first: u32| format!("{{%f{}, %f{}, %f{}, %f{}}}", first, first + 1, first + 2, first + 3);
    let (kind, registers): (&str, &dyn Fn(u32) -> String) =
        if vectors { (".v4.f32", &group) } else { (".f32", &|first| format!("%f{first}")) };
    let stride = 512 * 4 * width;
    k.line("mov.f32 %f1, 0f00000000");
    for i in 0..steps {
        k.line(&format!("ld.global.nc{kind} {}, [%rd5+{}]", registers(10 + i * width), i * stride));
    }
    for i in 0..steps {
        k.line(&format!("st.shared{kind} [%r5+{}], {}", i * stride, registers(10 + i * width)));
        (0..width).for_each(|w| {
            let f = 10 + i * width + w;
            k.line(&format!("fma.rn.f32 %f1, %f{f}, %f{f}, %f1"));
        });
    }
    k.lines(&["st.shared.f32 [%r6+16384], %f1", "bar.sync 0"]);
    let rest = "setp.eq.u32 %p3, %r0, 0";
    if vectors {
        for active in [256, 128, 64, 32, 16, 8, 4, 2, 1] {
            k.line(&format!("setp.lt.u32 %p1, %r0, {active}"));
            k.line("@%p1 ld.shared.f32 %f2, [%r6+16384]");
            k.line(&format!("@%p1 ld.shared.f32 %f3, [%r6+{}]", 16384 + 4 * active));
            k.lines(&["@%p1 add.f32 %f2, %f2, %f3", "@%p1 st.shared.f32 [%r6+16384], %f2", "bar.sync 0"]);
        }
        k.lines(&[rest, "@!%p3 bra SCALE", "ld.shared.f32 %f1, [%r4+16384]"]);
    } else {
        k.line("ld.shared.f32 %f1, [%r6+16384]");
        k.warp_sums("%f1", "%f2", 18432);
        k.lines(&["bar.sync 0", "setp.ge.u32 %p2, %r0, 32", "@%p2 bra SCALE"]);
        k.sum_of_warps("%f1", "%f2", 16, 18432);
        k.line(rest);
    }
    k.lines(&["fma.rn.f32 %f1, %f1, 0f39800000, 0f3727C5AC", "rsqrt.approx.ftz.f32 %f1, %f1"]);
    k.line("@%p3 st.shared.f32 [%r4+18560], %f1");
    k.label("SCALE");
    k.lines(&["bar.sync 0", "ld.shared.f32 %f9, [%r4+18560]"]);
    for i in 0..steps {
        let (x, w) = (10 + i * width, 50 + i * width);
        k.line(&format!("ld.shared{kind} {}, [%r5+{}]", registers(x), i * stride));
        k.line(&format!("ld.global.nc{kind} {}, [%rd7+{}]", registers(w), i * stride));
        for j in 0..width {
            k.line(&format!("mul.f32 %f{}, %f{}, %f9", x + j, x + j));
            k.line(&format!("mul.f32 %f{}, %f{}, %f{}", x + j, x + j, w + j));
        }
        k.line(&format!("st.global{kind} [%rd6+{}], {}", i * stride, registers(x)));
    }
    k.text("kernel")
}

/// Floats of a row of [`by_warps`], [`by_blocks`] and [`in_shared`].
pub(super) const ROW: u32 = 768;

/// `p1 = layer_norm(p0) * p2 + p3`, a row a warp and a warp a block, which reads its row three times; loops unrolled by
/// four, as nvcc does.
pub(super) fn by_warps() -> String {
    let mut k = Kernel::new(32, 0);
    k.line(&format!("mul.wide.u32 %rd4, %r1, {}", 4 * ROW));
    k.lines(&["mul.wide.u32 %rd5, %r0, 4", "add.u64 %rd4, %rd4, %rd5", "add.u64 %rd6, %rd0, %rd4"]);
    k.lines(&["add.u64 %rd7, %rd1, %rd4", "add.u64 %rd2, %rd2, %rd5", "add.u64 %rd3, %rd3, %rd5"]);
    for (pass, label) in ["MEAN", "SPREAD", "SCALE"].iter().enumerate() {
        k.lines(&["mov.f32 %f1, 0f00000000", "mov.u32 %r3, 0", "mov.u64 %rd8, %rd6"]);
        k.label(label);
        (0..4).for_each(|i| k.line(&format!("ld.global.nc.f32 %f{}, [%rd8+{}]", 10 + i, 128 * i)));
        for i in 0..4 {
            let f = 10 + i;
            match pass {
                0 => k.line(&format!("add.f32 %f1, %f1, %f{f}")),
                1 => {
                    k.line(&format!("sub.f32 %f{f}, %f{f}, %f3"));
                    k.line(&format!("fma.rn.f32 %f1, %f{f}, %f{f}, %f1"));
                }
                _ => {
                    k.line(&format!("ld.global.nc.f32 %f20, [%rd2+{}]", 128 * i));
                    k.line(&format!("ld.global.nc.f32 %f21, [%rd3+{}]", 128 * i));
                    k.line(&format!("sub.f32 %f{f}, %f{f}, %f3"));
                    k.line(&format!("mul.f32 %f{f}, %f{f}, %f4"));
                    k.line(&format!("fma.rn.f32 %f{f}, %f{f}, %f20, %f21"));
                    k.line(&format!("st.global.f32 [%rd7+{}], %f{f}", 128 * i));
                }
            }
        }
        k.lines(&["add.u64 %rd8, %rd8, 512", "add.u32 %r3, %r3, 4", "setp.lt.u32 %p1, %r3, 24"]);
        if pass == 2 {
            k.lines(&["add.u64 %rd2, %rd2, 512", "add.u64 %rd3, %rd3, 512", "add.u64 %rd7, %rd7, 512"]);
        }
        k.line(&format!("@%p1 bra {label}"));
        match pass {
            0 => {
                k.warp_sum("%f1", "%f2");
                k.line("mul.f32 %f3, %f1, 0f3AAAAAAB");
            }
            1 => {
                k.warp_sum("%f1", "%f2");
                k.lines(&["fma.rn.f32 %f4, %f1, 0f3AAAAAAB, 0f3727C5AC", "rsqrt.approx.ftz.f32 %f4, %f4"]);
            }
            _ => {}
        }
    }
    k.text("kernel")
}

/// `p1 = layer_norm(p0) * p2 + p3`, a row a block of 256 threads, which reads its row twice.
pub(super) fn by_blocks() -> String {
    let mut k = Kernel::new(256, 256);
    k.line(&format!("mul.wide.u32 %rd4, %r1, {}", 4 * ROW));
    k.lines(&["mul.wide.u32 %rd5, %r0, 4", "add.u64 %rd4, %rd4, %rd5", "add.u64 %rd6, %rd0, %rd4"]);
    k.lines(&["add.u64 %rd7, %rd1, %rd4", "add.u64 %rd2, %rd2, %rd5", "add.u64 %rd3, %rd3, %rd5"]);
    k.lines(&["mov.f32 %f1, 0f00000000", "mov.f32 %f3, 0f00000000", "mov.u32 %r3, 0", "mov.u64 %rd8, %rd6"]);
    // Three rounds: what is unrolled by four never runs.
    k.label("SUM");
    k.lines(&["ld.global.nc.f32 %f10, [%rd8]", "add.f32 %f1, %f1, %f10", "fma.rn.f32 %f3, %f10, %f10, %f3"]);
    k.lines(&["add.u64 %rd8, %rd8, 1024", "add.u32 %r3, %r3, 1", "setp.lt.u32 %p1, %r3, 3", "@%p1 bra SUM"]);
    k.warp_sums("%f1", "%f2", 0);
    k.warp_sums("%f3", "%f2", 128);
    k.line("bar.sync 0");
    k.sum_of_warps("%f1", "%f2", 8, 0);
    k.sum_of_warps("%f3", "%f2", 8, 128);
    k.lines(&["mul.f32 %f1, %f1, 0f3AAAAAAB", "mul.f32 %f3, %f3, 0f3AAAAAAB", "neg.f32 %f4, %f1"]);
    k.lines(&["fma.rn.f32 %f3, %f4, %f1, %f3", "add.f32 %f3, %f3, 0f3727C5AC", "rsqrt.approx.ftz.f32 %f3, %f3"]);
    k.line("mov.u32 %r3, 0");
    k.label("SCALE");
    k.lines(&["ld.global.nc.f32 %f10, [%rd6]", "ld.global.nc.f32 %f11, [%rd2]", "ld.global.nc.f32 %f12, [%rd3]"]);
    k.lines(&["sub.f32 %f10, %f10, %f1", "mul.f32 %f10, %f10, %f3", "fma.rn.f32 %f10, %f10, %f11, %f12"]);
    k.line("st.global.f32 [%rd7], %f10");
    for address in ["%rd6", "%rd7", "%rd2", "%rd3"] {
        k.line(&format!("add.u64 {address}, {address}, 1024"));
    }
    k.lines(&["add.u32 %r3, %r3, 1", "setp.lt.u32 %p1, %r3, 3", "@%p1 bra SCALE"]);
    k.text("kernel")
}

/// `p1 = layer_norm(p0) * p2 + p3`, a row a warp, in shared memory beside the weights, which a block fetches once.
pub(super) fn in_shared(warps: u32) -> String {
    let (threads, row) = (32 * warps, 4 * ROW);
    let mut k = Kernel::new(threads, (2 + warps) * row);
    k.lines(&["and.b32 %r3, %r0, 31", "shr.u32 %r4, %r0, 5", "mov.u32 %r5, data", "shl.b32 %r6, %r0, 4"]);
    k.lines(&[
        "add.u32 %r7, %r5, %r6",
        "cvt.u64.u32 %rd4, %r6",
        "add.u64 %rd5, %rd2, %rd4",
        "add.u64 %rd6, %rd3, %rd4",
    ]);
    for first in (0..ROW).step_by(4 * threads as usize) {
        k.line(&format!("setp.lt.u32 %p1, %r0, {}", (ROW - first) / 4));
        for (address, at) in [("%rd5", 0), ("%rd6", row)] {
            k.line(&format!("@%p1 ld.global.nc.v4.f32 {{%f10, %f11, %f12, %f13}}, [{address}+{}]", 4 * first));
            k.line(&format!("@%p1 st.shared.v4.f32 [%r7+{}], {{%f10, %f11, %f12, %f13}}", at + 4 * first));
        }
    }
    k.line("bar.sync 0");
    k.line(&format!("mad.lo.u32 %r8, %r1, {warps}, %r4"));
    k.line(&format!("mul.wide.u32 %rd7, %r8, {row}"));
    k.lines(&[
        "mul.wide.u32 %rd8, %r3, 16",
        "add.u64 %rd7, %rd7, %rd8",
        "add.u64 %rd9, %rd0, %rd7",
        "add.u64 %rd10, %rd1, %rd7",
    ]);
    k.lines(&["shl.b32 %r9, %r3, 4", "add.u32 %r10, %r5, %r9"]);
    k.line(&format!("mad.lo.u32 %r11, %r4, {row}, %r10"));
    k.lines(&["mov.f32 %f1, 0f00000000", "mov.f32 %f3, 0f00000000"]);
    for round in [0..4, 4..5, 5..6] {
        for i in round.clone() {
            let f = 10 + 4 * i;
            let group = format!("{{%f{}, %f{}, %f{}, %f{}}}", f, f + 1, f + 2, f + 3);
            k.line(&format!("ld.global.nc.v4.f32 {group}, [%rd9+{}]", 512 * i));
        }
        for i in round {
            let f = 10 + 4 * i;
            for f in f..f + 4 {
                k.line(&format!("add.f32 %f1, %f1, %f{f}"));
                k.line(&format!("fma.rn.f32 %f3, %f{f}, %f{f}, %f3"));
            }
            let group = format!("{{%f{}, %f{}, %f{}, %f{}}}", f, f + 1, f + 2, f + 3);
            k.line(&format!("st.shared.v4.f32 [%r11+{}], {group}", 2 * row + 512 * i));
        }
    }
    k.warp_sum("%f1", "%f2");
    k.warp_sum("%f3", "%f2");
    k.lines(&["mul.f32 %f1, %f1, 0f3AAAAAAB", "mul.f32 %f3, %f3, 0f3AAAAAAB", "neg.f32 %f4, %f1"]);
    k.lines(&["fma.rn.f32 %f3, %f4, %f1, %f3", "add.f32 %f3, %f3, 0f3727C5AC", "rsqrt.approx.ftz.f32 %f3, %f3"]);
    for i in 0..6 {
        k.line(&format!("ld.shared.v4.f32 {{%f10, %f11, %f12, %f13}}, [%r11+{}]", 2 * row + 512 * i));
        k.line(&format!("ld.shared.v4.f32 {{%f20, %f21, %f22, %f23}}, [%r10+{}]", 512 * i));
        k.line(&format!("ld.shared.v4.f32 {{%f30, %f31, %f32, %f33}}, [%r10+{}]", row + 512 * i));
        for f in 10..14 {
            k.line(&format!("sub.f32 %f{f}, %f{f}, %f1"));
            k.line(&format!("mul.f32 %f{f}, %f{f}, %f3"));
            k.line(&format!("fma.rn.f32 %f{f}, %f{f}, %f{}, %f{}", f + 10, f + 20));
        }
        k.line(&format!("st.global.v4.f32 [%rd10+{}], {{%f10, %f11, %f12, %f13}}", 512 * i));
    }
    k.text("kernel")
}
