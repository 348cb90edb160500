//! Roundings of arithmetic and conversions against those of the host, over numbers of all kinds.

use crate::rig::{self, Rig};

const N: usize = 1 << 14;

/// Numbers of all kinds, reproducibly.
fn numbers() -> Vec<f32> {
    let mut x = 0x1234_5678u32;
    let next = |_| {
        x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let v = x ^ x >> 15;
        // Half of them in the range where f16 has values at all.
        f32::from_bits(if x >> 7 & 1 == 1 { v } else { v & 0x87ff_ffff | 0x3000_0000 })
    };
    (0..N + 2).map(next).collect()
}

/// What `body` makes of `%f1`, `%f2` and `%f3`, neighbours in `input`, for each place: the value of `%r9`.
fn run(body: &str, input: &[f32]) -> Vec<u32> {
    let text = format!(
        ".visible .entry k(.param .u64 in, .param .u64 out)\n{{\n.reg .f32 %f<9>; .reg .f64 %e<9>; .reg .b32 %r<12>;
         .reg .b16 %h<9>; .reg .b64 %d<9>;\nld.param.u64 %d1, [in]; ld.param.u64 %d2, [out];
         mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ntid.x; mov.u32 %r3, %tid.x; mad.lo.u32 %r4, %r1, %r2, %r3;
         mul.wide.u32 %d3, %r4, 4; add.u64 %d1, %d1, %d3; add.u64 %d2, %d2, %d3;
         ld.global.f32 %f1, [%d1]; ld.global.f32 %f2, [%d1+4]; ld.global.f32 %f3, [%d1+8];
         {body}\nst.global.u32 [%d2], %r9;\nret;\n}}\n"
    );
    let rig = Rig::new(&rig::ptx(90, &text));
    let (from, to) = (rig.f32s(input), rig.u32s(&[0; N]));
    rig.launch("k", N as u32 / 256, 256, &[from, to]).unwrap_or_else(|f| panic!("{body}: {f}"));
    rig.read_u32s(to, N)
}

type Host = fn(f32, f32, f32) -> f32;

/// `.sat`: to 0 ..= 1, NaN to 0.
fn saturated(v: f32) -> f32 {
    if v > 0.0 { v.min(1.0) } else { 0.0 }
}

#[test]
fn results_are_rounded_like_the_hosts() {
    let cases: [(&str, Host); 8] = [
        ("add.rn.f32 %f4, %f1, %f2;", |a, b, _| a + b),
        ("mul.rn.f32 %f4, %f1, %f2;", |a, b, _| a * b),
        ("fma.rn.f32 %f4, %f1, %f2, %f3;", f32::mul_add),
        ("div.rn.f32 %f4, %f1, %f2;", |a, b, _| a / b),
        ("sqrt.rn.f32 %f4, %f1;", |a, _, _| a.sqrt()),
        ("add.rn.sat.f32 %f4, %f1, %f2;", |a, b, _| saturated(a + b)),
        ("fma.rn.sat.f32 %f4, %f1, %f2, %f3;", |a, b, c| saturated(a.mul_add(b, c))),
        (
            "cvt.f64.f32 %e1, %f1; cvt.f64.f32 %e2, %f2; mul.rn.f64 %e3, %e1, %e2; cvt.rn.f32.f64 %f4, %e3;",
            |a, b, _| a * b,
        ),
    ];
    let input = numbers();
    for (body, host) in cases {
        let got = run(&format!("{body} mov.b32 %r9, %f4;"), &input);
        for (i, v) in input.windows(3).enumerate() {
            let expected = host(v[0], v[1], v[2]);
            let same = if expected.is_nan() { got[i] == 0x7fff_ffff } else { got[i] == expected.to_bits() };
            assert!(same, "{body} {v:?}: {:x}, not {expected:e}", got[i]);
        }
    }
}

#[test]
fn halves_are_rounded_alike_one_by_one_and_packed() {
    let one = "cvt.rn.f16.f32 %h1, %f1; cvt.rn.f16.f32 %h2, %f2; mov.b32 %r9, {%h2, %h1};";
    let packed = "cvt.rn.f16x2.f32 %r9, %f1, %f2;";
    let input = numbers();
    assert_eq!(run(one, &input), run(packed, &input));
}

#[test]
fn every_half_survives_a_round_trip() {
    let body = "mov.b32 {%h1, %h2}, %r9; cvt.f32.f16 %f4, %h1; cvt.f32.f16 %f5, %h2;";
    for first in (0..1 << 16).step_by(2 * N) {
        let input: Vec<f32> =
            (0..N as u32 + 2).map(|i| f32::from_bits((first + 2 * i) & 0xffff | (first + 2 * i + 1) << 16)).collect();
        let there = format!("mov.b32 %r9, %f1; {body}");
        let back = format!("{there} cvt.rn.f16.f32 %h1, %f4; cvt.rn.f16.f32 %h2, %f5; mov.b32 %r9, {{%h1, %h2}};");
        let packed = format!("{there} cvt.rn.f16x2.f32 %r9, %f5, %f4;");
        let canonical = |h: u32| if h & 0x7fff > 0x7c00 { 0x7fff } else { h };
        for (v, (b, p)) in input.iter().zip(run(&back, &input).into_iter().zip(run(&packed, &input))) {
            let v = v.to_bits();
            let expected = canonical(v & 0xffff) | canonical(v >> 16) << 16;
            assert_eq!((b, p), (expected, expected), "{v:08x}");
        }
    }
}
