//! What compilers emit for kernels that are not kiln's: refusals kernel by kernel, by name, and further instructions.

use crate::rig::{Rig, ptx};
use kiln_emulator::{FaultKind, Memory, Module};

const GOOD: &str =
    ".visible .entry good(.param .u64 a)\n{ .reg .b64 %rd<2>; ld.param.u64 %rd1, [a]; st.global.u32 [%rd1], 7; ret; }";

#[test]
fn a_kernel_that_is_not_understood_is_refused_and_the_others_run() {
    for (body, named) in [
        (
            "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%f1, %f2, %f3, %f4}, %rd1, %rd2, 1, 1, 1, 0, 0;",
            "a product of a warpgroup",
        ),
        ("tex.2d.v4.f32.s32 {%f1, %f2, %f3, %f4}, [%rd1, {%r1, %r2}];", "an access to a texture"),
        ("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%rd1, {%r1, %r2}], [%r2];", "a copy by a tensor map"),
        ("tcgen05.wait::ld.sync.aligned;", "tensor memory"),
        ("mov.u32 %r1, {%r2, %r3, %r2};", "{%r2, %r3, %r2}"),
        ("nonsense.u32 %r1;", "nonsense"),
        ("mov.u32 %r1, ];", "]"),
    ] {
        let bad =
            format!(".visible .entry bad()\n{{ .reg .b32 %r<4>; .reg .f32 %f<5>; .reg .b64 %rd<2>; {body} ret; }}");
        for text in [format!("{bad}\n{GOOD}"), format!("{GOOD}\n{bad}")] {
            let rig = Rig::new(&ptx(90, &text));
            let a = rig.u32s(&[0]);
            rig.launch("good", 1, 1, &[a]).unwrap();
            assert_eq!(rig.read_u32s(a, 1), [7]);
            let (name, error) = rig.module.refused().next().unwrap();
            let message = error.to_string();
            assert!(name == "bad" && (message.contains(named) || named.starts_with('{')), "{message}");
            assert!(!message.contains("Word(") && !message.contains("Vector("), "{message}");
        }
        // Of a module with nothing else the reason is the error.
        Module::load(&ptx(90, &bad), &Memory::new(1 << 20)).expect_err(named);
    }
}

#[test]
fn a_launch_of_a_refused_kernel_says_why() {
    let text = ptx(90, &format!(".visible .entry bad()\n{{ tcgen05.wait::ld.sync.aligned; ret; }}\n{GOOD}"));
    let memory = Memory::new(1 << 20);
    let module = Module::load(&text, &memory).unwrap();
    let launch = kiln_emulator::Launch {
        module: &module,
        kernel: "bad",
        grid: [1; 3],
        block: [1; 3],
        dynamic_shared: 0,
        params: &[],
        cooperative: false,
        cluster: None,
    };
    let fault = kiln_emulator::run(&launch, &memory, &Default::default()).unwrap_err();
    assert_eq!(fault.kind, FaultKind::Unsupported);
    assert!(fault.message.contains("tcgen05"), "{fault}");
}

/// Lane `i` writes its words to `out[words * i ..]`.
fn lanes(words: u32, body: &str) -> Vec<u32> {
    let text = format!(
        ".visible .entry k(.param .u64 a)\n{{ .reg .pred %p<4>; .reg .b32 %r<16>; .reg .f32 %f<16>; .reg .f64 %d<16>; .reg .b64 %rd<4>;
         ld.param.u64 %rd1, [a]; mov.u32 %r1, %tid.x; mul.lo.u32 %r2, %r1, {}; cvt.u64.u32 %rd2, %r2; add.u64 %rd2, %rd2, %rd1;
         cvt.rn.f64.u32 %d1, %r1; cvt.rn.f32.u32 %f1, %r1;\n{body}\nret; }}",
        4 * words
    );
    let rig = Rig::new(&ptx(90, &text));
    let a = rig.u32s(&vec![0; 32 * words as usize]);
    rig.launch("k", 1, 32, &[a]).unwrap();
    rig.read_u32s(a, 32 * words as usize)
}

#[test]
fn a_vector_of_sums_is_added_element_by_element() {
    let out = lanes(
        4,
        "red.global.add.v4.f32 [%rd1], {%f1, 0f3f800000, %f1, 0f40000000}; red.relaxed.gpu.global.add.v2.f32 [%rd1+8], {%f1, %f1};",
    );
    let sums: Vec<f32> = out[..4].iter().map(|&bits| f32::from_bits(bits)).collect();
    assert_eq!(sums, [496.0, 32.0, 992.0, 560.0]);
}

#[test]
fn movmatrix_transposes() {
    // Row i, columns 2j and 2j + 1, hold 8i + column.
    let out = lanes(
        1,
        "shl.b32 %r3, %r1, 1; add.u32 %r4, %r3, 1; shl.b32 %r4, %r4, 16; or.b32 %r3, %r3, %r4;
        movmatrix.sync.aligned.m8n8.trans.b16 %r5, %r3; st.global.u32 [%rd2], %r5;",
    );
    for (lane, &word) in out.iter().enumerate() {
        let (row, column) = (lane as u32 / 4, 2 * (lane as u32 % 4));
        assert_eq!(word, (8 * column + row) | (8 * (column + 1) + row) << 16, "lane {lane}");
    }
}

/// A[i][k] = 10 i + k and B[k][j] = k - j, so that a layout that is off shows in every element.
fn expected(i: usize, j: usize, depth: usize) -> f64 {
    (0..depth).map(|k| (10 * i + k) as f64 * (k as f64 - j as f64)).sum()
}

#[test]
fn products_of_tf32_have_the_layout_of_the_manual() {
    let out = lanes(
        4,
        "shr.u32 %r3, %r1, 2; and.b32 %r4, %r1, 3; mad.lo.u32 %r5, %r3, 10, %r4; add.u32 %r6, %r5, 80;
         cvt.rn.f32.u32 %f2, %r5; cvt.rn.f32.u32 %f3, %r6; add.f32 %f4, %f2, 0f40800000; add.f32 %f5, %f3, 0f40800000;
         mov.b32 %r7, %f2; mov.b32 %r8, %f3; mov.b32 %r9, %f4; mov.b32 %r10, %f5;
         sub.s32 %r11, %r4, %r3; cvt.rn.f32.s32 %f6, %r11; add.f32 %f7, %f6, 0f40800000; mov.b32 %r12, %f6; mov.b32 %r13, %f7;
         mov.f32 %f8, 0f00000000;
         mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%f9, %f10, %f11, %f12}, {%r7, %r8, %r9, %r10}, {%r12, %r13}, {%f8, %f8, %f8, %f8};
         st.global.v4.f32 [%rd2], {%f9, %f10, %f11, %f12};",
    );
    for (at, &bits) in out.iter().enumerate() {
        let (lane, register) = (at / 4, at % 4);
        let (i, j) = (lane / 4 + 8 * (register / 2), 2 * (lane % 4) + register % 2);
        assert_eq!(f64::from(f32::from_bits(bits)), expected(i, j, 8), "{i}, {j}");
    }
}

#[test]
fn products_of_f64_have_the_layout_of_the_manual() {
    let out = lanes(
        4,
        "shr.u32 %r3, %r1, 2; and.b32 %r4, %r1, 3; mad.lo.u32 %r5, %r3, 10, %r4; cvt.rn.f64.u32 %d2, %r5;
         sub.s32 %r6, %r4, %r3; cvt.rn.f64.s32 %d3, %r6; mov.f64 %d4, 0d0000000000000000;
         mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%d5, %d6}, {%d2}, {%d3}, {%d4, %d4};
         st.global.v2.f64 [%rd2], {%d5, %d6};",
    );
    for (at, words) in out.chunks(2).enumerate() {
        let (lane, register) = (at / 2, at % 2);
        let value = f64::from_bits(u64::from(words[0]) | u64::from(words[1]) << 32);
        let (i, j) = (lane / 4, 2 * (lane % 4) + register);
        assert_eq!(value, expected(i, j, 4), "{i}, {j}");
    }
}

#[test]
fn the_shared_memory_that_the_system_reserves_is_a_place_of_its_own() {
    let body = ".shared .align 4 .b8 own[64]; mov.u32 %r3, %reserved_smem_offset_1; mov.u32 %r4, own; st.shared.u32 [%r4], 1;
        st.shared.u32 [%r3], 2; ld.shared.u32 %r5, [%r4]; setp.ne.u32 %p1, %r1, 0; @%p1 ret; st.global.u32 [%rd2], %r5;";
    let body =
        body.replace("st.shared", "@!%p2 st.shared").replace("mov.u32 %r3", "setp.ne.u32 %p2, %r1, 0; mov.u32 %r3");
    assert_eq!(lanes(1, &body.replace("ld.shared", "@!%p2 ld.shared"))[0], 1);
}
