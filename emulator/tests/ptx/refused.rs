//! What the emulator does not have is refused by name: whole messages stand in `tests/reports`, in a file for each text
//! (`KILN_BLESS=1` writes them).

use crate::rig::ptx;
use kiln_emulator::{Memory, Module};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// Instructions and declarations, by the names of their files.
const TEXTS: &[(&str, &str)] = &[
    ("multimem ld_reduce", "multimem.ld_reduce.relaxed.sys.global.add.f32 %f1, [%rd1];"),
    ("multimem red", "multimem.red.relaxed.sys.global.add.f32 [%rd1], %f1;"),
    ("multimem bulk", "multimem.cp.async.bulk.global.shared::cta.bulk_group [%rd1], [%r1], 16;"),
    ("brkpt", "brkpt;"),
    ("guarded brkpt", "@%p1 brkpt;"),
    (
        "tensor load im2col",
        "cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes [%r1], [%rd1, {%r1, %r2, %r3, %r4}], [%r2], {%rs1, %rs2};",
    ),
    ("tensor store", "cp.async.bulk.tensor.1d.global.shared::cta.bulk_group [%rd1, {%r1}], [%r2];"),
    (
        "tensor reduce",
        "cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group [%rd1, {%r1, %r2}], [%r3];",
    ),
    ("tensor prefetch", "cp.async.bulk.prefetch.tensor.2d.L2.global.tile [%rd1, {%r1, %r2}];"),
    ("tensormap prefetch", "prefetch.tensormap [%rd1];"),
    ("tensormap replace", "tensormap.replace.tile.global_address.global.b1024.b64 [%rd1], %rd2;"),
    (
        "tensormap copy fence",
        "tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned [%rd1], [%rd2], 128;",
    ),
    ("bulk reduce", "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%rd1], [%r1], 16;"),
    (
        "wgmma product",
        "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%f1, %f2, %f3, %f4}, %rd1, %rd2, %p1, 1, 1, 0, 0;",
    ),
    ("tcgen05 alloc", "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r1], 32;"),
    ("tcgen05 product", "tcgen05.mma.cta_group::1.kind::f16 [%r1], %rd1, %rd2, %r2, %p1;"),
    ("tcgen05 load", "tcgen05.ld.sync.aligned.32x32b.x4.b32 {%r1, %r2, %r3, %r4}, [%r5];"),
    ("texture", "tex.2d.v4.f32.s32 {%f1, %f2, %f3, %f4}, [%rd1, {%r1, %r2}];"),
    ("texture with sampler", "tex.1d.v4.s32.f32 {%r1, %r2, %r3, %r4}, [%rd1, %rd2, {%f1}];"),
    ("texture gather", "tld4.r.2d.v4.f32.f32 {%f1, %f2, %f3, %f4}, [%rd1, {%f1, %f2}];"),
    ("texture query", "txq.width.b32 %r1, [%rd1];"),
    ("surface load", "suld.b.2d.v2.b32.trap {%r1, %r2}, [%rd1, {%r3, %r4}];"),
    ("surface store", "sust.b.1d.b32.clamp [%rd1, {%r1}], {%r2};"),
    ("surface reduce", "sured.b.add.1d.u32.clamp [%rd1, {%r1}], %r2;"),
    ("surface query", "suq.width.b32 %r1, [%rd1];"),
    ("global texture", ".global .texref t; tex.1d.v4.f32.s32 {%f1, %f2, %f3, %f4}, [t, {%r1}];"),
    ("stack", "alloca.u64 %rd1, 16;"),
    ("video", "vadd4.u32.u32.u32 %r1, %r2, %r3, %r4;"),
    ("distances that are not summed", "vabsdiff4.u32.s32.s32 %r1, %r2, %r3, %r4;"),
    ("distances of bytes of two kinds", "vabsdiff4.u32.u32.s32.add %r1, %r2, %r3, %r4;"),
    (
        "sparse product",
        "mma.sp.sync.aligned.m16n8k32.row.col.f32.f16.f16.f32 {%f1, %f2, %f3, %f4}, {%r1, %r2, %r3, %r4}, {%r1, %r2, %r3, %r4}, {%f1, %f2, %f3, %f4}, %r5, 0x0;",
    ),
    (
        "scaled product",
        "mma.sync.aligned.m16n8k32.row.col.kind::mxf8f6f4.block_scale.f32.e4m3.e4m3.f32.ue8m0 {%f1, %f2, %f3, %f4}, {%r1, %r2, %r3, %r4}, {%r1, %r2}, {%f1, %f2, %f3, %f4}, %r5, {0, 0}, %r6, {0, 0};",
    ),
    ("cancel", "clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.b128 [%r1], [%r2];"),
    ("register count", "setmaxnreg.inc.sync.aligned.u32 232;"),
    ("vector of three", "mov.b32 %r1, {%r2, %r3, %r2};"),
    ("unknown opcode", "nonsense.u32 %r1, {%r2, %r3}, [%rd1, {%r1}];"),
    ("unknown modifier", "add.nonsense.u32 %r1, %r2, %r3;"),
    ("a function without a body", ".param .b64 x; call.uni nothing, (x);"),
    ("a vector as an argument", "call.uni vprintf, ({%r1, %r2});"),
    ("an indirect call without a prototype", "call.uni %rd1;"),
    ("a prototype that is not there", "call.uni %rd1, P;"),
    ("a recursive launch", ".param .b64 x; .param .b32 r; call.uni (r), cudaDeviceSynchronize;"),
    ("parsers text", "mov.u32 %r1, ];"),
    ("an address with brackets missing", "ld.global.u32 %r1, %rd1;"),
    ("two results", "add.u32 {%r1, %r2}, %r3, %r4;"),
    ("a negated register", "add.u32 %r1, !%r2, %r3;"),
];

#[test]
fn refusals_are_as_recorded() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/reports");
    let bless = std::env::var_os("KILN_BLESS").is_some();
    let (mut known, mut wrong) = (BTreeSet::new(), Vec::new());
    for (name, text) in TEXTS {
        let body = format!(
            ".visible .entry k()\n{{\n.reg .pred %p<4>; .reg .b16 %rs<4>; .reg .b32 %r<8>; .reg .f32 %f<5>; .reg .b64 %rd<4>;\n{text}\nret;\n}}"
        );
        let error = Module::load(&ptx(100, &body), &Memory::new(1 << 20)).map(drop).expect_err(name);
        let message = format!("{error}\n");
        assert!(
            ["Word(", "Vector(", "Place(", "Address(", "Num("].iter().all(|left| !message.contains(left)),
            "{message}"
        );
        assert!(!["`,`", "`{`", "`(`"].contains(&error.token.as_str()), "{message}");
        assert_eq!(error.line, 7, "{name}: {message}");
        let file = format!("refused_{}.txt", name.replace(' ', "_"));
        if bless {
            fs::write(folder.join(&file), &message).unwrap();
        } else if fs::read_to_string(folder.join(&file)).unwrap_or_default() != message {
            wrong.push(format!("{name}: {message}"));
        }
        assert!(known.insert(file), "two texts named {name}");
    }
    let files = fs::read_dir(&folder).unwrap().map(|file| file.unwrap().file_name().into_string().unwrap());
    let there: BTreeSet<String> = files.filter(|name| name.starts_with("refused_")).collect();
    assert_eq!(there, known, "a message without a text");
    assert!(wrong.is_empty(), "KILN_BLESS=1 records these:\n{}", wrong.join("\n"));
}
