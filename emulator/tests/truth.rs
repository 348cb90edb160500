//! The instruction table (`truth.txt`): every line gives what the ISA says, in one lane and in all, and approximate
//! instructions stay within their bound, perturbed or not.

#![allow(clippy::needless_range_loop)]

mod common;

use common::Rig;

struct Row {
    line: usize,
    text: String,
    inputs: Vec<(String, u64)>,
    output: String,
    expected: String,
}

fn rows() -> Vec<Row> {
    let mut rows = Vec::new();
    for (i, line) in include_str!("truth.txt").lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let parts: Vec<&str> = line.split(';').map(str::trim).collect();
        assert_eq!(parts.len(), 5, "line {}", i + 1);
        let types: Vec<&str> = parts[1].split_whitespace().collect();
        let values: Vec<u64> = parts[3].split_whitespace().map(|v| u64::from_str_radix(v, 16).unwrap()).collect();
        assert_eq!(types.len(), values.len(), "line {}", i + 1);
        rows.push(Row {
            line: i + 1,
            text: parts[0].into(),
            inputs: types.into_iter().map(String::from).zip(values).collect(),
            output: parts[2].into(),
            expected: parts[4].into(),
        });
    }
    rows
}

/// A kernel that loads its inputs from `in` (8 bytes each), runs the instruction in all lanes (or, guarded, in lane 0
/// alone), and stores its result.
fn kernel(i: usize, row: &Row, guard: &str) -> String {
    let mut body = String::new();
    let mut text = format!(" {} ", row.text);
    for (k, ((ty, _), name)) in row.inputs.iter().zip(["A", "B", "C", "E"]).enumerate() {
        let reg = match ty.as_str() {
            "16" => format!("%h{k}"),
            "64" => format!("%d{k}"),
            "p" => format!("%q{k}"),
            _ => format!("%r{k}"),
        };
        body += &match ty.as_str() {
            "p" => format!("ld.global.u32 %r{k}, [%d8+{}]; setp.ne.u32 {reg}, %r{k}, 0;\n", 8 * k),
            "16" => format!("ld.global.b16 {reg}, [%d8+{}];\n", 8 * k),
            "64" => format!("ld.global.b64 {reg}, [%d8+{}];\n", 8 * k),
            _ => format!("ld.global.b32 {reg}, [%d8+{}];\n", 8 * k),
        };
        for (before, after) in [(" ", ","), (" ", " "), ("{", ","), (" ", "}"), ("!", " "), ("!", ",")] {
            text = text.replace(&format!("{before}{name}{after}"), &format!("{before}{reg}{after}"));
        }
    }
    let (dst, store) = match row.output.as_str() {
        "16" => ("%h9", "st.global.b16 [%d9], %h9;"),
        "64" => ("%d6", "st.global.b64 [%d9], %d6;"),
        "p" => ("%q6", "selp.u32 %r9, 1, 0, %q6; GUARD st.global.b32 [%d9], %r9;"),
        _ => ("%r9", "st.global.b32 [%d9], %r9;"),
    };
    for (before, after) in [(" ", ","), ("{", ","), (" ", "}")] {
        text = text.replace(&format!("{before}D{after}"), &format!("{before}{dst}{after}"));
    }
    let store = store.replace("GUARD", guard);
    format!(
        ".visible .entry row{i}(.param .u64 in, .param .u64 out)\n{{\n.reg .b16 %h<10>; .reg .b32 %r<12>; .reg .b64 %d<12>; .reg .pred %q<8>;\n\
         ld.param.u64 %d8, [in]; ld.param.u64 %d9, [out];\nmov.u32 %r10, %tid.x; setp.eq.u32 %q7, %r10, 0;\n\
         mul.wide.u32 %d10, %r10, 8; add.u64 %d9, %d9, %d10;\n{body}{guard}{text};\n{guard}{store}\nret;\n}}\n"
    )
}

fn matches(row: &Row, got: u64) -> bool {
    let bits = |s: &str| u32::from_str_radix(s, 16).unwrap();
    let f = |b: u64| f64::from(f32::from_bits(b as u32));
    match row.expected.as_str() {
        "nan" => f32::from_bits(got as u32).is_nan(),
        "nan64" => f64::from_bits(got).is_nan(),
        e if e.starts_with('~') => {
            let e = &e[1..];
            if let Some((x, bound)) = e.split_once(':') {
                let x = f(u64::from(bits(x)));
                (f(got) - x).abs() <= bound.parse::<f64>().unwrap() * x.abs()
            } else {
                let (x, bound) = e.split_once('+').unwrap();
                (f(got) - f(u64::from(bits(x)))).abs() <= bound.parse::<f64>().unwrap()
            }
        }
        e => got == u64::from_str_radix(e, 16).unwrap(),
    }
}

fn check(guard: &str, lanes: usize, setup: impl Fn(&mut Rig)) {
    let rows = rows();
    let text: String = rows.iter().enumerate().map(|(i, r)| kernel(i, r, guard)).collect();
    let mut rig = Rig::new(&common::ptx(90, &text));
    setup(&mut rig);
    let mut wrong = Vec::new();
    for (i, row) in rows.iter().enumerate() {
        let mut values: Vec<u64> = row.inputs.iter().map(|v| v.1).collect();
        values.resize(4, 0);
        let input = rig.u64s(&values);
        let out = rig.u64s(&[0; 32]);
        if let Err(f) = rig.launch(&format!("row{i}"), 1, 32, &[input, out]) {
            wrong.push(format!("line {}: {f}", row.line));
            continue;
        }
        let got = rig.read_u64s(out, 32);
        // Results that name a lane differ between them.
        let lanes = if row.text.contains("%lane") { 1 } else { lanes };
        for (l, &g) in got.iter().enumerate().take(lanes) {
            if !matches(row, g) {
                wrong
                    .push(format!("line {}: {} gave {g:x} in lane {l}, expected {}", row.line, row.text, row.expected));
                break;
            }
        }
        rig.memory.free(input).unwrap();
        rig.memory.free(out).unwrap();
    }
    assert!(wrong.is_empty(), "{} of {} rows:\n{}", wrong.len(), rows.len(), wrong.join("\n"));
}

#[test]
fn every_row_holds_in_all_lanes() {
    check("", 32, |_| {});
}

#[test]
fn every_row_holds_in_a_guarded_lane() {
    check("@%q7 ", 1, |_| {});
}

#[test]
fn approximations_stay_within_their_bound_under_perturbation() {
    for seed in 1..6 {
        check("", 32, |rig| (rig.config.perturb, rig.config.seed) = (true, seed));
    }
}

#[test]
fn perturbation_changes_approximate_results() {
    let text = common::ptx(
        75,
        ".visible .entry k(.param .u64 out) { .reg .b32 %r<4>; .reg .f32 %f<3>; .reg .b64 %rd<4>;
         ld.param.u64 %rd1, [out]; mov.u32 %r1, %tid.x; add.u32 %r2, %r1, 3; cvt.rn.f32.u32 %f1, %r2; rcp.approx.f32 %f2, %f1;
         mul.wide.u32 %rd2, %r1, 4; add.u64 %rd3, %rd1, %rd2; st.global.f32 [%rd3], %f2; ret; }",
    );
    let mut results = Vec::new();
    for (perturb, seed) in [(false, 0), (true, 1), (true, 2), (true, 1)] {
        let mut rig = Rig::new(&text);
        (rig.config.perturb, rig.config.seed) = (perturb, seed);
        let out = rig.u32s(&[0; 32]);
        rig.launch("k", 1, 32, &[out]).unwrap();
        results.push(rig.read_u32s(out, 32));
    }
    assert_ne!(results[0], results[1]);
    assert_ne!(results[1], results[2]);
    assert_eq!(results[1], results[3], "a seed reproduces a run");
}
