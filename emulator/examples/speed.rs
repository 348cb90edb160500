//! How fast the emulator runs: lane-instructions per second of a loop of integer, float and memory instructions, with
//! checks off and on.

use kiln_emulator::{Checks, ExecConfig, Launch, Memory, Module, run};
use std::time::Instant;

const TEXT: &str = r#"
.version 7.0
.target sm_75
.address_size 64
.visible .entry dot(.param .u64 w, .param .u64 x, .param .u64 y, .param .u32 k)
{
    .shared .align 16 .b8 tile[16384];
    .reg .pred %p<3>;
    .reg .b32 %r<40>;
    .reg .f32 %f<40>;
    .reg .b64 %rd<10>;
    ld.param.u64 %rd1, [w];
    ld.param.u64 %rd2, [x];
    ld.param.u64 %rd3, [y];
    ld.param.u32 %r1, [k];
    mov.u32 %r2, %ctaid.x;
    mov.u32 %r3, %tid.x;
    shl.b32 %r4, %r3, 4;
    cvt.u64.u32 %rd4, %r4;
    add.u64 %rd5, %rd2, %rd4;
    mov.u32 %r5, tile;
    add.u32 %r6, %r5, %r4;
    mov.u32 %r7, 0;
FILL:
    ld.global.nc.v4.f32 {%f1, %f2, %f3, %f4}, [%rd5];
    st.shared.v4.f32 [%r6], {%f1, %f2, %f3, %f4};
    add.u64 %rd5, %rd5, 2048;
    add.u32 %r6, %r6, 2048;
    add.u32 %r7, %r7, 512;
    setp.lt.u32 %p1, %r7, %r1;
    @%p1 bra FILL;
    bar.sync 0;
    // one warp per row of 4-bit weights, 8 to a word
    shr.u32 %r8, %r3, 5;
    shl.b32 %r9, %r2, 2;
    add.u32 %r9, %r9, %r8;
    shr.u32 %r10, %r1, 1;
    mul.wide.u32 %rd6, %r9, %r10;
    add.u64 %rd7, %rd1, %rd6;
    and.b32 %r11, %r3, 31;
    mul.wide.u32 %rd8, %r11, 4;
    add.u64 %rd7, %rd7, %rd8;
    shl.b32 %r12, %r11, 5;
    add.u32 %r12, %r12, %r5;
    mov.f32 %f20, 0f00000000;
    mov.u32 %r13, 0;
LOOP:
    ld.global.nc.u32 %r20, [%rd7];
    ld.shared.v4.f32 {%f1, %f2, %f3, %f4}, [%r12];
    ld.shared.v4.f32 {%f5, %f6, %f7, %f8}, [%r12+16];
    and.b32 %r21, %r20, 15;
    bfe.u32 %r22, %r20, 4, 4;
    bfe.u32 %r23, %r20, 8, 4;
    bfe.u32 %r24, %r20, 12, 4;
    bfe.u32 %r25, %r20, 16, 4;
    bfe.u32 %r26, %r20, 20, 4;
    bfe.u32 %r27, %r20, 24, 4;
    shr.u32 %r28, %r20, 28;
    cvt.rn.f32.u32 %f11, %r21;
    cvt.rn.f32.u32 %f12, %r22;
    cvt.rn.f32.u32 %f13, %r23;
    cvt.rn.f32.u32 %f14, %r24;
    cvt.rn.f32.u32 %f15, %r25;
    cvt.rn.f32.u32 %f16, %r26;
    cvt.rn.f32.u32 %f17, %r27;
    cvt.rn.f32.u32 %f18, %r28;
    fma.rn.f32 %f20, %f11, %f1, %f20;
    fma.rn.f32 %f20, %f12, %f2, %f20;
    fma.rn.f32 %f20, %f13, %f3, %f20;
    fma.rn.f32 %f20, %f14, %f4, %f20;
    fma.rn.f32 %f20, %f15, %f5, %f20;
    fma.rn.f32 %f20, %f16, %f6, %f20;
    fma.rn.f32 %f20, %f17, %f7, %f20;
    fma.rn.f32 %f20, %f18, %f8, %f20;
    add.u64 %rd7, %rd7, 128;
    add.u32 %r12, %r12, 1024;
    add.u32 %r13, %r13, 256;
    setp.lt.u32 %p2, %r13, %r1;
    @%p2 bra LOOP;
    shfl.sync.bfly.b32 %f21, %f20, 16, 31, -1;
    add.f32 %f20, %f20, %f21;
    shfl.sync.bfly.b32 %f21, %f20, 8, 31, -1;
    add.f32 %f20, %f20, %f21;
    shfl.sync.bfly.b32 %f21, %f20, 4, 31, -1;
    add.f32 %f20, %f20, %f21;
    shfl.sync.bfly.b32 %f21, %f20, 2, 31, -1;
    add.f32 %f20, %f20, %f21;
    shfl.sync.bfly.b32 %f21, %f20, 1, 31, -1;
    add.f32 %f20, %f20, %f21;
    setp.ne.u32 %p1, %r11, 0;
    @%p1 ret;
    mul.wide.u32 %rd9, %r9, 4;
    add.u64 %rd9, %rd3, %rd9;
    st.global.f32 [%rd9], %f20;
    ret;
}
"#;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (rows, k) = (4096u32, 4096u32);
    let memory = Memory::new(1 << 30);
    let module = Module::load(TEXT, &memory)?;
    let (w, x, y) =
        (memory.alloc(u64::from(rows * k / 2))?, memory.alloc(u64::from(4 * k))?, memory.alloc(u64::from(4 * rows))?);
    memory.set_u32(w, 0x7654_3210, u64::from(rows * k / 8))?;
    memory.set_u32(x, 1f32.to_bits(), u64::from(k))?;
    let mut params = Vec::new();
    params.extend([w, x, y].iter().flat_map(|p| p.to_le_bytes()));
    params.extend(k.to_le_bytes());
    let mut base = 0.0;
    for (name, checks) in [("off", Checks::NONE), ("all", Checks::ALL)] {
        let config = ExecConfig { checks, ..Default::default() };
        let launch = Launch {
            module: &module,
            kernel: "dot",
            grid: [rows / 4, 1, 1],
            block: [128, 1, 1],
            dynamic_shared: 0,
            params: &params,
            cooperative: false,
            cluster: None,
        };
        let mut best = f64::MAX;
        let mut instructions = 0;
        for _ in 0..3 {
            let start = Instant::now();
            instructions = run(&launch, &memory, &config)?.warp_instructions;
            best = best.min(start.elapsed().as_secs_f64());
        }
        let lanes = instructions as f64 * 32.0 / best;
        if base == 0.0 {
            base = best;
        }
        println!(
            "checks {name}: {} threads, {:.3} s, {:.2e} lane-instructions/s, {:.2e} weights/s, {:.2} times the time without",
            config.threads,
            best,
            lanes,
            f64::from(rows) * f64::from(k) / best,
            best / base
        );
    }
    Ok(())
}
