//! Kernels hold only instructions whose results the ISA gives to the last bit: the same on every chip. In fast numerics
//! there is one exception, the `mma` of attention, whose sums are the chip's own.

use kiln_codegen::bake::{DecoderPath, decoder, emit_for, general, tracing};
use kiln_codegen::ptx::Text;
use kiln_codegen::{Kernel, Target};
use kiln_shape::{Numerics, WeightType, presets};
use std::collections::BTreeSet;

const FLOATS: [&str; 4] = ["f16", "bf16", "f32", "f64"];

/// Whether the ISA gives every bit of an instruction's result. Of those on floats that is a list: they round to nearest,
/// and say so, for without a rounding mode the assembler may fuse a product and a sum; they do not round; or they move.
fn has_one_result(opcode: &str) -> bool {
    let (name, modifiers) = opcode.split_once('.').unwrap_or((opcode, ""));
    let modifiers: Vec<&str> = modifiers.split('.').collect();
    if !modifiers.iter().any(|modifier| FLOATS.contains(modifier)) {
        return true;
    }
    matches!(
        (name, modifiers.as_slice()),
        ("add" | "sub" | "mul" | "fma" | "div" | "rcp" | "sqrt", ["rn", _])
            | ("min" | "max" | "neg" | "abs" | "selp" | "mov", [_])
            | ("max", ["NaN", _])
            | ("setp", ["eq" | "ne" | "lt" | "le" | "gt" | "ge", _])
            | ("cvt", ["rn" | "rni" | "rzi", _, _] | [_, _])
            | ("ld" | "st", _)
    )
}

/// The opcodes of a text, each once.
fn opcodes(text: &str) -> BTreeSet<&str> {
    let mut found = BTreeSet::new();
    for line in text.lines().map(str::trim) {
        // A role's predicate has a scope of its own, with its declaration and comparison in front.
        for part in line.split(';').map(|part| part.trim_start_matches(['{', '}', ' '])) {
            let code = match part.strip_prefix('@') {
                Some(guarded) => guarded.split_once(' ').expect("an instruction behind its guard").1,
                None => part,
            };
            let word = code.split(' ').next().unwrap_or_default();
            let ends = line.contains(';');
            if ends && word.starts_with(|c: char| c.is_ascii_lowercase()) {
                found.insert(word);
            }
        }
    }
    found
}

/// Holds the kernels to it, for every target.
fn check(name: &str, numerics: Numerics, kernels: &[Box<dyn Kernel>]) {
    for module in emit_for(&Target::ALL, None, kernels, Text::Light).expect("valid kernels") {
        let what = format!("{name} in {numerics} numerics for {}", module.target);
        let found = opcodes(&module.ptx);
        let (tensor, others): (Vec<&str>, Vec<&str>) =
            found.iter().copied().partition(|opcode| opcode.starts_with("mma."));
        let wrong: Vec<_> = others.into_iter().filter(|opcode| !has_one_result(opcode)).collect();
        assert!(wrong.is_empty(), "{what}: {wrong:?}");
        assert_eq!(tensor.len(), usize::from(numerics == Numerics::Fast), "{what}: {tensor:?}");
        assert!(found.contains("fma.rn.f32") && found.len() > 30, "{what}: {found:?}");
    }
}

#[test]
fn no_kernel_holds_an_instruction_whose_bits_are_the_chips_own() {
    check("general", Numerics::Exact, &general());
    // One model of each family: only numbers differ between the models of one.
    for preset in ["tiny", "qwen3b", "qwen3-8b"].map(|name| presets::by_name(name).expect("a preset")) {
        for numerics in Numerics::ALL {
            for path in DecoderPath::ALL {
                check(preset.feature, numerics, &decoder(preset.shape, WeightType::ALL, path, numerics));
            }
            check(preset.feature, numerics, &tracing(preset.shape, WeightType::ALL, numerics));
        }
    }
}

#[test]
fn instructions_are_told_apart_by_all_of_their_modifiers() {
    let text = "{\n  .reg .f32 %f<3>;\n  ex2.approx.f32 %f1, %f2;\n$L1:\n  @!%p1 div.full.f32 %f1, %f1, %f2;\n  \
                { .reg .pred %q; setp.lt.u32 %q, %r1, 7; @%q bra $L1; }\n  ret;\n}\n";
    let expected = ["bra", "div.full.f32", "ex2.approx.f32", "ret", "setp.lt.u32"];
    assert_eq!(opcodes(text).into_iter().collect::<Vec<_>>(), expected);
    for exact in
        ["div.rn.f32", "sqrt.rn.f32", "fma.rn.f32", "cvt.f32.f16", "ld.global.nc.v4.f32", "add.u32", "bar.sync"]
    {
        assert!(has_one_result(exact), "{exact}");
    }
    let approximate = ["ex2.approx.f32", "div.full.f32", "div.approx.f32", "rcp.approx.ftz.f32", "rsqrt.approx.f32"];
    let others = ["fma.rn.ftz.f32", "add.f32", "mul.ftz.f32", "max.ftz.f32", "red.relaxed.gpu.global.add.f32"];
    let tensor = ["mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32", "tanh.approx.f16"];
    for opcode in approximate.into_iter().chain(others).chain(tensor) {
        assert!(!has_one_result(opcode), "{opcode}");
    }
}
