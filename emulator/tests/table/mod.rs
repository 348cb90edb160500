//! The instruction table: reading `truth.txt`, a kernel for a row, and whether a result is what the row says.

#![allow(dead_code)] // each test program uses a part

pub(crate) mod warp;

/// A line of the table.
pub(crate) struct Row {
    pub(crate) line: usize,
    pub(crate) text: String,
    pub(crate) inputs: Vec<(String, u64)>,
    pub(crate) output: String,
    pub(crate) expected: String,
}

/// All rows.
pub(crate) fn rows() -> Vec<Row> {
    let mut rows = Vec::new();
    for (i, line) in include_str!("../truth.txt").lines().enumerate() {
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
pub(crate) fn kernel(i: usize, row: &Row, guard: &str) -> String {
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

/// Whether `got` is what the row says.
pub(crate) fn matches(row: &Row, got: u64) -> bool {
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
