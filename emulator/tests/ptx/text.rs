//! Texts that are cut off, damaged or absurd are refused with the line and the token, and leave nothing behind.

use kiln_emulator::{Memory, Module};

const TEXT: &str = include_str!("../nvcc/programs.sm_75.ptx");

/// A module with something of everything that a reader reads.
const SMALL: &str = r#"
.version 7.0
.target sm_75, debug
.address_size 64
.file 1 "kernels/small.cu", 17, 42
.visible .global .align 8 .u64 link[2] = {generic(table)+4, table};
.global .align 4 .f32 table[2][2] = {{1.5e+3, 0f3f800000}, {-2.0, 1e-3}};
.extern .shared .align 16 .b8 dyn[];
.func (.param .b32 r) twice(.param .b32 a)
{
    .reg .b32 %r<3>;
    ld.param.b32 %r1, [a];
    add.u32 %r2, %r1, %r1;
    st.param.b32 [r], %r2;
    ret;
}
.entry k(.param .u64 .ptr .global .align 8 out, .param .u32 n)
.maxntid 32, 1, 1
.minnctapersm 2
{
    .reg .pred %p<2>;
    .reg .b32 %r<4>, %x;
    .reg .b64 %rd<3>;
    .pragma "nounroll";
    ld.param.u64 %rd1, [out]; /* the only
    pointer */
    .loc 1 7 3, function_name k + 4, inlined_at 1 9 1
    mov.u32 %r1, %tid.x;
    setp.lt.u32 %p1, %r1, 0x10;
again:
    { .reg .u32 %r9; mov.u32 %r9, 017; add.u32 %r1, %r1, %r9; }
    @!%p1 bra done;
    st.global.v2.u32 [%rd1+-0], {%r1, %r1}; // kernels/small.rs:9
    { .param .b32 a; .param .b32 r; st.param.b32 [a], %r1; call.uni (r), twice, (a); ld.param.b32 %r2, [r]; }
done:
    ret;
}
"#;

fn load(text: &str) -> Result<Module, kiln_emulator::PtxError> {
    let memory = Memory::new(1 << 24);
    let module = Module::load(text, &memory);
    if let Ok(module) = &module {
        module.unload(&memory);
    }
    assert!(memory.live_allocations().is_empty());
    module
}

fn refused(text: &str) {
    let start = text.chars().take(200).collect::<String>();
    let error = load(text).err().unwrap_or_else(|| panic!("{start} was read"));
    assert!((1..=1 + text.lines().count()).contains(&(error.line as usize)), "{error}");
}

#[test]
fn characters_that_are_not_ascii_are_refused_wherever_they_stand() {
    for place in ["kernels/small.cu", "pointer */", "rs:9", "table"] {
        let line = 1 + SMALL.split(place).next().map_or(0, |before| before.matches('\n').count()) as u32;
        let error = load(&SMALL.replacen(place, &format!("\u{fc}{place}"), 1)).err();
        let error = error.unwrap_or_else(|| panic!("before {place} it was read"));
        assert_eq!((error.line, error.token.as_str()), (line, "\u{fc}"), "{error}");
        assert_eq!(error.message, "unexpected non-ASCII character");
    }
}

#[test]
fn a_truncated_module_is_read_or_refused() {
    load(SMALL).unwrap();
    let whole = SMALL.trim_end();
    let body = whole.find(".func").unwrap();
    for (at, _) in whole.char_indices() {
        match load(&whole[..at]) {
            Ok(_) => assert!(at <= body || whole[..at].trim_end().ends_with('}'), "cut at {at}"),
            Err(error) => assert!(error.line >= 1, "{error}"),
        }
    }
    (0..TEXT.len()).step_by(1009).for_each(|at| drop(load(&TEXT[..at])));
}

#[test]
fn a_damaged_module_never_panics() {
    let mut seed = 1u64;
    let mut random = |below: usize| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) as usize % below
    };
    let words: Vec<&str> = SMALL.split_inclusive(|c: char| !c.is_alphanumeric()).collect();
    let odd = [
        "",
        "{",
        "}",
        "(",
        ")",
        "[",
        "]",
        "<",
        ";",
        ",",
        "=",
        "-",
        "\"",
        "/*",
        "//",
        "\u{e9}",
        "4294967296",
        "::",
        ".",
    ];
    for _ in 0..20_000 {
        let mut damaged = words.clone();
        for _ in 0..1 + random(3) {
            let at = random(damaged.len());
            damaged[at] = if random(2) == 0 { odd[random(odd.len())] } else { words[random(words.len())] };
        }
        let _ = load(&damaged.concat());
    }
}

#[test]
fn absurd_texts_are_refused() {
    let head = ".version 7.0\n.target sm_75\n.address_size 64\n";
    let many = |text: &str| text.repeat(200_000);
    let in_body = |text: &str| format!("{head}.entry k() {{\n{text}\nret; }}");
    for text in [
        many("{"),
        many("mov.b32 {"),
        format!("mov.b32 {}", many("{")),
        format!("mov.b32 {}", many("(")),
        format!("mov.b32 %r1, {}4;", many("-")),
        format!(".pragma {};", many("} .pragma ; {")),
        many(".shared .b8 x[4]; {"),
        many("a:"),
        format!("a{} ", many("::a")),
        many("1e+"),
        ".reg .b32 %r<4294967297>;".into(),
        ".reg .b32 %r<4294967295>;".into(),
        ".reg .pred %p<70000>;".into(),
        ".shared .align 3 .b8 x[4];".into(),
        ".shared .align 2147483648 .b8 x[4];".into(),
        ".shared .b8 x[4294967296][4294967296];".into(),
        ".shared .u32 x = 5;".into(),
        ".shared .align 4 .pred x[4];".into(),
        ".local .b8 a[1073741824]; .local .b8 b[1073741824]; .local .b8 c[1073741824]; .local .b8 d[1073741824];"
            .into(),
        "@WARP_SZ ret;".into(),
    ] {
        refused(&in_body(&text));
    }
    let registers = ".reg .pred %p<4>; .reg .b16 %h<4>; .reg .b32 %r<4>; .reg .b64 %d<4>; .shared .b32 x;";
    for text in [
        "selp.b32 %r0, %r1, %r2, WARP_SZ;",
        "add.f32 %r0, WARP_SZ, %r1;",
        "and.pred %p0, %p1, WARP_SZ;",
        "setp.eq.f16x2 %p0, %r0, %r1;",
        "setp.lt.s16x2 %p0|%p1, %r0, %r1;",
        "set.lt.u32.u16x2 %r0, %r1, %r2;",
        "set.lt.f16x2.f32 %r0, %r1, %r2;",
        "set.lt.bf16x2.f16x2 %r0, %r1, %r2;",
        "add.add.f32 %r0, %r1, %r2;",
        "fma.f32 %r0, %r1, %r2, %r3;",
        "fence.sc.acq_rel.gpu;",
        "mbarrier.init.noComplete.shared.b64 [x], 1;",
        "prefetch.shared.L1 [x];",
        "bra.uni.uni again;",
        "mov.b64 %d0, {%h0, %h1, %h2};",
        "ld.global.L1::sometimes.u32 %r0, [%d0];",
        "atom.global.add.f16 %h0, [%d0], %h1;",
    ] {
        refused(&in_body(&format!("{registers} again: {text}")));
    }
    for item in [
        format!(".global .u32 x = {}", many("{")),
        ".global .b8 x[18446744073709551615];".into(),
        ".global .b8 x[4294967296][4294967296];".into(),
        ".global .u8 x[2] = {1, 2, 3};".into(),
        ".global .align 4 .pred x[4] = {1};".into(),
        ".global .f64 x = 0f3f800000;".into(),
        ".global .u64 x = nothing;".into(),
        ".local .u32 x;".into(),
        ".entry k(.param .b8 x[4294967296]) { ret; }".into(),
        ".entry k(.param .b8 x[4294967295], .param .b64 y) { ret; }".into(),
        ".entry k(.global .u32 x) { ret; }".into(),
        ".entry k(.param .u32 x, .param .u32 x) { ret; }".into(),
        ".global .u32 x; .global .u32 x;".into(),
        ".entry k() .reqntid 1, 2, 3, 4 { ret; }".into(),
        ".section .debug {".into(),
        ".file 1 \"never closed".into(),
        "/* never closed".into(),
    ] {
        refused(&format!("{head}{item}"));
    }
}
