//! Tiny programs of a whole warp, for what a row of one instruction cannot show: lanes that exchange, memory, order.
//! What each lane is to find is worked out from the PTX ISA's text.

#![allow(dead_code)] // each test program uses a part

/// A program. `%r0` is the lane, `%d8` the address of `in`, `s` 1024 bytes of shared memory; the result is `%r9`.
pub(crate) struct Program {
    pub(crate) name: &'static str,
    pub(crate) body: &'static str,
    /// Blocks of a warp each, which are one cluster.
    pub(crate) blocks: u32,
    /// What lane l finds; those of block b are counted from 32 b.
    pub(crate) expected: fn(u32) -> u32,
}

/// Word i of `in`.
pub(crate) const fn input(i: u32) -> u32 {
    i.wrapping_mul(0x0123_4567) ^ 0x8000_00f0
}

/// Words of `in`.
pub(crate) const INPUTS: u32 = 64;

const fn program(name: &'static str, body: &'static str, expected: fn(u32) -> u32) -> Program {
    Program { name, body, blocks: 1, expected }
}

/// A program of a cluster of two blocks.
const fn of_two(name: &'static str, body: &'static str, expected: fn(u32) -> u32) -> Program {
    Program { name, body, blocks: 2, expected }
}

/// All programs; those from [`FROM_SM_80`] and [`FROM_SM_90`] on need that chip.
pub(crate) const PROGRAMS: &[Program] = &[
    // ---- exchange
    program("shfl_up", "shfl.sync.up.b32 %r9, %r0, 3, 0, 0xffffffff;", |l| if l < 3 { l } else { l - 3 }),
    program(
        "shfl_up_segments",
        "shfl.sync.up.b32 %r9, %r0, 3, 0x1800, 0xffffffff;",
        |l| {
            if l % 8 < 3 { l } else { l - 3 }
        },
    ),
    program("shfl_down", "shfl.sync.down.b32 %r9, %r0, 5, 31, 0xffffffff;", |l| if l > 26 { l } else { l + 5 }),
    program("shfl_down_segments", "shfl.sync.down.b32 %r9, %r0, 1, 0x181f, 0xffffffff;", |l| {
        if l % 8 == 7 { l } else { l + 1 }
    }),
    program("shfl_bfly", "shfl.sync.bfly.b32 %r9, %r0, 6, 31, 0xffffffff;", |l| l ^ 6),
    program("shfl_idx", "shfl.sync.idx.b32 %r9, %r0, 11, 31, 0xffffffff;", |_| 11),
    program("shfl_idx_segments", "shfl.sync.idx.b32 %r9, %r0, 2, 0x1c1f, 0xffffffff;", |l| (l & !3) + 2),
    program(
        "shfl_predicate",
        "shfl.sync.down.b32 %r1|%p1, %r0, 20, 31, 0xffffffff; selp.u32 %r9, %r1, 99, %p1;",
        |l| if l + 20 < 32 { l + 20 } else { 99 },
    ),
    program(
        "shfl_of_some",
        "mov.u32 %r9, 7; setp.lt.u32 %p1, %r0, 16; @!%p1 bra DONE_shfl_of_some; \
         shfl.sync.bfly.b32 %r9, %r0, 1, 31, 0xffff; DONE_shfl_of_some:",
        |l| if l < 16 { l ^ 1 } else { 7 },
    ),
    program(
        "vote_all",
        "setp.lt.u32 %p1, %r0, 31; vote.sync.all.pred %p2, %p1, 0xffffffff; selp.u32 %r9, 1, 0, %p2;",
        |_| 0,
    ),
    program(
        "vote_any",
        "setp.eq.u32 %p1, %r0, 31; vote.sync.any.pred %p2, %p1, 0xffffffff; selp.u32 %r9, 1, 0, %p2;",
        |_| 1,
    ),
    program(
        "vote_uni",
        "setp.gt.u32 %p1, %r0, 99; vote.sync.uni.pred %p2, %p1, 0xffffffff; selp.u32 %r9, 1, 0, %p2;",
        |_| 1,
    ),
    program(
        "vote_ballot",
        "and.b32 %r1, %r0, 2; setp.ne.u32 %p1, %r1, 0; vote.sync.ballot.b32 %r9, %p1, 0xffffffff;",
        |_| 0xcccc_cccc,
    ),
    program("vote_ballot_negated", "setp.eq.u32 %p1, %r0, 0; vote.sync.ballot.b32 %r9, !%p1, 0xffffffff;", |_| {
        0xffff_fffe
    }),
    program(
        "activemask",
        // Convergence is not promised: what is sure is the lane itself, and that the lanes not here are not in it.
        "mov.u32 %r9, 0; setp.gt.u32 %p1, %r0, 27; @!%p1 bra DONE_activemask; activemask.b32 %r1; shr.u32 %r2, %r1, %r0; \
         and.b32 %r9, %r2, 1; and.b32 %r3, %r1, 0x0fffffff; add.u32 %r9, %r9, %r3; DONE_activemask:",
        |l| u32::from(l > 27),
    ),
    program("match_any", "shr.u32 %r1, %r0, 3; match.any.sync.b32 %r9, %r1, 0xffffffff;", |l| 0xff << (l & 0x18)),
    program(
        "match_all",
        "mov.u32 %r1, 5; match.all.sync.b32 %r2|%p1, %r1, 0xffffffff; selp.u32 %r9, %r2, 1, %p1;",
        |_| u32::MAX,
    ),
    program(
        "match_all_differs",
        "match.all.sync.b32 %r2|%p1, %r0, 0xffffffff; selp.u32 %r3, 1, 0, %p1; add.u32 %r9, %r2, %r3;",
        |_| 0,
    ),
    // ---- barriers
    program(
        "bar_warp_sync",
        "mov.u32 %r1, s; shl.b32 %r2, %r0, 2; add.u32 %r3, %r1, %r2; st.shared.u32 [%r3], %r0; \
         bar.warp.sync 0xffffffff; xor.b32 %r2, %r2, 124; add.u32 %r3, %r1, %r2; ld.shared.u32 %r9, [%r3];",
        |l| 31 - l,
    ),
    program(
        "bar_sync",
        "mov.u32 %r1, s; shl.b32 %r2, %r0, 2; add.u32 %r3, %r1, %r2; st.shared.u32 [%r3], %r0; \
         bar.sync 1, 32; xor.b32 %r2, %r2, 4; add.u32 %r3, %r1, %r2; ld.shared.u32 %r9, [%r3];",
        |l| l ^ 1,
    ),
    program("bar_red_popc", "and.b32 %r1, %r0, 3; setp.eq.u32 %p1, %r1, 0; bar.red.popc.u32 %r9, 0, %p1;", |_| 8),
    program("bar_red_and", "setp.ne.u32 %p1, %r0, 4; bar.red.and.pred %p2, 0, %p1; selp.u32 %r9, 1, 0, %p2;", |_| 0),
    program("bar_red_or", "setp.eq.u32 %p1, %r0, 4; bar.red.or.pred %p2, 0, %p1; selp.u32 %r9, 1, 0, %p2;", |_| 1),
    // ---- loads and stores
    program("ld_global_v4", "ld.global.v4.u32 {%r1, %r2, %r3, %r9}, [%d8+16];", |_| input(7)),
    program("ld_global_v2_b64", "ld.global.v2.b64 {%d1, %d2}, [%d8+16]; cvt.u32.u64 %r9, %d2;", |_| input(6)),
    program("ld_global_nc", "ld.global.nc.u32 %r9, [%d8+20];", |_| input(5)),
    program(
        "ld_global_nc_hints",
        "ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%r9, %r1, %r2, %r3}, [%d8+32];",
        |_| input(8),
    ),
    program("ld_global_cg", "ld.global.cg.u32 %r9, [%d8+4];", |_| input(1)),
    program("ld_volatile", "ld.volatile.global.u32 %r9, [%d8+4];", |_| input(1)),
    program("ld_relaxed", "ld.relaxed.gpu.global.u32 %r9, [%d8+8];", |_| input(2)),
    program("ld_acquire", "ld.acquire.sys.global.u32 %r9, [%d8+8];", |_| input(2)),
    program("ld_s8", "ld.global.s8 %r9, [%d8];", |_| 0xffff_fff0),
    program("ld_u8", "ld.global.u8 %r9, [%d8];", |_| 0xf0),
    program("ld_s16", "ld.global.s16 %r9, [%d8+2];", |_| 0xffff_8000),
    program("ld_u16", "ld.global.u16 %r9, [%d8+2];", |_| 0x8000),
    program("ld_generic", "ld.u32 %r9, [%d8+12];", |_| input(3)),
    program("prefetch", "prefetch.global.L2 [%d8]; prefetch.global.L1 [%d8]; ld.global.u32 %r9, [%d8];", |_| input(0)),
    program(
        "st_shared_v4",
        "mov.u32 %r1, s; shl.b32 %r2, %r0, 4; add.u32 %r3, %r1, %r2; mov.u32 %r4, 9; \
         st.shared.v4.u32 [%r3], {%r0, %r4, %r0, %r0}; ld.shared.u32 %r5, [%r3+4]; ld.shared.u32 %r6, [%r3+8]; \
         add.u32 %r9, %r5, %r6;",
        |l| l + 9,
    ),
    program(
        "st_shared_u8",
        "mov.u32 %r1, s; shl.b32 %r2, %r0, 2; add.u32 %r3, %r1, %r2; mov.u32 %r4, 0; st.shared.u32 [%r3], %r4; \
         mov.u32 %r5, 0x1234; st.shared.u8 [%r3+1], %r5; ld.shared.u32 %r9, [%r3];",
        |_| 0x3400,
    ),
    program("local_memory", "mov.u64 %d1, l; st.local.u32 [%d1+4], %r0; ld.local.u32 %r9, [%d1+4];", |l| l),
    program(
        "cvta_and_isspacep",
        "mov.u32 %r1, s; cvt.u64.u32 %d1, %r1; cvta.shared.u64 %d2, %d1; isspacep.shared %p1, %d2; \
         isspacep.global %p2, %d8; isspacep.shared %p3, %d8; selp.u32 %r2, 1, 0, %p1; selp.u32 %r3, 2, 0, %p2; \
         selp.u32 %r4, 4, 0, %p3; add.u32 %r9, %r2, %r3; add.u32 %r9, %r9, %r4;",
        |_| 3,
    ),
    program(
        "fences",
        "mov.u32 %r1, s; shl.b32 %r2, %r0, 2; add.u32 %r3, %r1, %r2; st.shared.u32 [%r3], %r0; \
         fence.acq_rel.cta; fence.acq_rel.gpu; fence.sc.sys; membar.cta; membar.gl; membar.sys; ld.shared.u32 %r9, [%r3];",
        |l| l,
    ),
    // ---- atomics, each lane on a word of its own, or all on one whose end is looked at
    program(
        "atom_add",
        "mov.u32 %r1, s; shl.b32 %r2, %r0, 2; add.u32 %r3, %r1, %r2; st.shared.u32 [%r3], 40; \
         atom.shared.add.u32 %r4, [%r3], %r0; ld.shared.u32 %r5, [%r3]; shl.b32 %r5, %r5, 8; add.u32 %r9, %r4, %r5;",
        |l| 40 + ((40 + l) << 8),
    ),
    program(
        "atom_inc",
        "mov.u32 %r1, s; shl.b32 %r2, %r0, 2; add.u32 %r3, %r1, %r2; st.shared.u32 [%r3], %r0; \
         atom.shared.inc.u32 %r4, [%r3], 16; ld.shared.u32 %r9, [%r3];",
        |l| if l >= 16 { 0 } else { l + 1 },
    ),
    program(
        "atom_dec",
        "mov.u32 %r1, s; shl.b32 %r2, %r0, 2; add.u32 %r3, %r1, %r2; st.shared.u32 [%r3], %r0; \
         atom.shared.dec.u32 %r4, [%r3], 16; ld.shared.u32 %r9, [%r3];",
        |l| if l == 0 || l > 16 { 16 } else { l - 1 },
    ),
    program(
        "atom_cas",
        "mov.u32 %r1, s; shl.b32 %r2, %r0, 2; add.u32 %r3, %r1, %r2; and.b32 %r4, %r0, 1; st.shared.u32 [%r3], %r4; \
         atom.shared.cas.b32 %r5, [%r3], 1, 77; ld.shared.u32 %r6, [%r3]; shl.b32 %r6, %r6, 4; add.u32 %r9, %r5, %r6;",
        |l| if l % 2 == 1 { 1 + (77 << 4) } else { 0 },
    ),
    program(
        "atom_exch",
        "mov.u32 %r1, s; shl.b32 %r2, %r0, 2; add.u32 %r3, %r1, %r2; st.shared.u32 [%r3], 5; \
         atom.shared.exch.b32 %r4, [%r3], %r0; ld.shared.u32 %r5, [%r3]; shl.b32 %r4, %r4, 8; add.u32 %r9, %r4, %r5;",
        |l| 0x500 + l,
    ),
    program(
        "atom_min_s32",
        "mov.u32 %r1, s; shl.b32 %r2, %r0, 2; add.u32 %r3, %r1, %r2; st.shared.u32 [%r3], 10; sub.s32 %r4, %r0, 5; \
         atom.shared.min.s32 %r5, [%r3], %r4; ld.shared.u32 %r9, [%r3];",
        |l| (l as i32 - 5).min(10) as u32,
    ),
    program(
        // A byte with its sign in 16 bits, packed beside others, and a word of four taken apart and put together.
        "parts_of_16_bits",
        "{ .reg .b16 %h<6>; mov.u32 %r1, s; shl.b32 %r2, %r0, 2; add.u32 %r3, %r1, %r2; sub.u32 %r4, 0, %r0; \
         st.shared.u32 [%r3], %r4; ld.shared.s8 %h0, [%r3]; cvt.u16.u32 %h1, %r0; mov.b32 %r5, {%h0, %h1}; \
         mov.b64 %d1, {%h1, %h0, %h0, %h1}; mov.b64 {%h2, %h3, %h4, %h5}, %d1; mov.b32 %r6, {%h4, %h5}; \
         mov.b32 {%h2, %h3}, %r6; mov.b64 {%r7, %r8}, %d1; xor.b32 %r8, %r8, %r6; add.u32 %r9, %r5, %r8; }",
        |l| l << 16 | 0xffff & 0u32.wrapping_sub(l),
    ),
    program(
        // 1.5 and 2 become 2.5 and 1.
        "atom_add_f16x2",
        "mov.u32 %r1, s; shl.b32 %r2, %r0, 2; add.u32 %r3, %r1, %r2; mov.u32 %r4, 0x3e004000; st.shared.u32 [%r3], %r4; \
         mov.u32 %r5, 0x3c00bc00; atom.shared.add.noftz.f16x2 %r6, [%r3], %r5; ld.shared.u32 %r7, [%r3]; \
         xor.b32 %r9, %r6, %r7;",
        |_| 0x3e00_4000 ^ 0x4100_3c00,
    ),
    program(
        "atom_max_u32",
        "mov.u32 %r1, s; shl.b32 %r2, %r0, 2; add.u32 %r3, %r1, %r2; st.shared.u32 [%r3], 10; sub.s32 %r4, %r0, 5; \
         atom.shared.max.u32 %r5, [%r3], %r4; ld.shared.u32 %r9, [%r3];",
        |l| l.wrapping_sub(5).max(10),
    ),
    program(
        "red_of_all",
        "mov.u32 %r1, s; setp.eq.u32 %p1, %r0, 0; @%p1 st.shared.u32 [%r1], 0; @%p1 st.shared.u32 [%r1+4], -1; \
         @%p1 st.shared.u32 [%r1+8], 0; bar.warp.sync 0xffffffff; red.shared.add.u32 [%r1], %r0; \
         red.shared.and.b32 [%r1+4], 0xfe; red.shared.xor.b32 [%r1+8], 1; bar.warp.sync 0xffffffff; \
         ld.shared.u32 %r2, [%r1]; ld.shared.u32 %r3, [%r1+4]; ld.shared.u32 %r4, [%r1+8]; shl.b32 %r3, %r3, 16; \
         shl.b32 %r4, %r4, 30; add.u32 %r9, %r2, %r3; add.u32 %r9, %r9, %r4;",
        |_| 496 + (0xfe << 16),
    ),
    // ---- carries, time
    program("add_with_carry", "add.cc.u32 %r1, %r0, 0xfffffff0; addc.u32 %r9, 5, 0;", |l| if l >= 16 { 6 } else { 5 }),
    program("sub_with_borrow", "sub.cc.u32 %r1, %r0, 16; subc.u32 %r9, 5, 0;", |l| if l < 16 { 4 } else { 5 }),
    program("mad_with_carry", "mad.lo.cc.u32 %r1, %r0, 0x10000000, 0; madc.hi.u32 %r9, %r0, 0x10000000, 3;", |l| {
        ((u64::from(l) * 0x1000_0000) >> 32) as u32 + 3
    }),
    program(
        "carries_of_64_bits",
        "cvt.u64.u32 %d1, %r0; sub.cc.u64 %d2, %d1, 16; subc.u64 %d3, 5, 0; \
         add.cc.u64 %d2, %d1, 0xfffffffffffffff0; addc.u64 %d3, %d3, 0; cvt.u32.u64 %r9, %d3;",
        |l| if l < 16 { 4 } else { 6 },
    ),
    program(
        "mad_with_carry_of_64_bits",
        "cvt.u64.u32 %d1, %r0; mad.lo.cc.u64 %d2, %d1, 0x1000000000000000, 0; \
         madc.hi.u64 %d3, %d1, 0x1000000000000000, 3; cvt.u32.u64 %r9, %d3;",
        |l| l / 16 + 3,
    ),
    program(
        "mad_with_carry_of_signed_numbers",
        "cvt.s64.s32 %d1, %r0; mad.lo.cc.s64 %d2, %d1, -1, 0; madc.hi.s64 %d3, %d1, -1, 3; cvt.u32.u64 %r1, %d3; \
         mad.lo.cc.s32 %r2, %r0, -1, 0; madc.hi.s32 %r3, %r0, -1, 5; shl.b32 %r3, %r3, 8; add.u32 %r9, %r1, %r3;",
        |l| if l == 0 { 3 + (5 << 8) } else { 2 + (4 << 8) },
    ),
    program(
        "time_goes_on",
        "mov.u64 %d1, %globaltimer; nanosleep.u32 40; mov.u64 %d2, %globaltimer; setp.ge.u64 %p1, %d2, %d1; \
         selp.u32 %r9, 1, 0, %p1;",
        |_| 1,
    ),
    program(
        "lane_masks",
        "mov.u32 %r1, %lanemask_lt; mov.u32 %r2, %lanemask_ge; mov.u32 %r3, %lanemask_eq; or.b32 %r4, %r1, %r2; \
         popc.b32 %r5, %r1; shl.b32 %r5, %r5, 8; add.u32 %r9, %r4, %r5; xor.b32 %r9, %r9, %r3;",
        |l| u32::MAX.wrapping_add(l << 8) ^ (1 << l),
    ),
];

/// What sm_80 added.
pub(crate) const FROM_SM_80: &[Program] = &[
    program("redux_add", "redux.sync.add.u32 %r9, %r0, 0xffffffff;", |_| 496),
    program("redux_min_s32", "sub.s32 %r1, 3, %r0; redux.sync.min.s32 %r9, %r1, 0xffffffff;", |_| (-28i32) as u32),
    program("redux_max_u32", "sub.s32 %r1, 3, %r0; redux.sync.max.u32 %r9, %r1, 0xffffffff;", |_| u32::MAX),
    program("redux_and", "or.b32 %r1, %r0, 0x60; redux.sync.and.b32 %r9, %r1, 0xffffffff;", |_| 0x60),
    program("redux_or", "redux.sync.or.b32 %r9, %r0, 0xffffffff;", |_| 31),
    program("redux_xor", "shl.b32 %r1, 1, %r0; redux.sync.xor.b32 %r9, %r1, 0xffffffff;", |_| u32::MAX),
    program(
        "cp_async",
        "mov.u32 %r1, s; shl.b32 %r2, %r0, 2; add.u32 %r3, %r1, %r2; cvt.u64.u32 %d1, %r2; add.u64 %d2, %d8, %d1; \
         cp.async.ca.shared.global [%r3], [%d2], 4; cp.async.commit_group; cp.async.wait_group 0; \
         ld.shared.u32 %r9, [%r3];",
        input,
    ),
    program(
        "cp_async_zero_filled",
        "mov.u32 %r1, s; shl.b32 %r2, %r0, 4; add.u32 %r3, %r1, %r2; \
         cp.async.cg.shared.global [%r3], [%d8], 16, 4; cp.async.wait_all; ld.shared.u32 %r4, [%r3]; \
         ld.shared.u32 %r5, [%r3+4]; ld.shared.u32 %r6, [%r3+12]; add.u32 %r9, %r4, %r5; add.u32 %r9, %r9, %r6;",
        |_| input(0),
    ),
    program(
        "cache_policy",
        "createpolicy.fractional.L2::evict_first.b64 %d1, 0f3f800000; \
         ld.global.L2::cache_hint.u32 %r9, [%d8+4], %d1;",
        |_| input(1),
    ),
    program(
        "cache_hints",
        "prefetch.global.L2::evict_last [%d8]; discard.global.L2 [%d9], 128; bar.warp.sync 0xffffffff; \
         ld.global.nc.L1::no_allocate.L2::256B.u32 %r9, [%d8+8];",
        |_| input(2),
    ),
    program(
        "cp_async_policy",
        "createpolicy.fractional.L2::evict_last.b64 %d3, 0f3f800000; mov.u32 %r1, s; shl.b32 %r2, %r0, 4; \
         add.u32 %r3, %r1, %r2; cp.async.cg.shared.global.L2::cache_hint.L2::128B [%r3], [%d8], 16, %d3; \
         cp.async.wait_all; ld.shared.u32 %r9, [%r3+12];",
        |_| input(3),
    ),
    program(
        "cp_async_arrives",
        "mov.u32 %r1, s; setp.eq.u32 %p1, %r0, 0; shl.b32 %r2, %r0, 2; add.u32 %r3, %r1, %r2; cvt.u64.u32 %d1, %r2; \
         add.u64 %d2, %d8, %d1; @%p1 mbarrier.init.shared.b64 [%r1], 32; bar.warp.sync 0xffffffff; \
         cp.async.ca.shared.global [%r3+16], [%d2], 4; cp.async.mbarrier.arrive.noinc.shared.b64 [%r1]; \
         W_cp_async_arrives: mbarrier.test_wait.parity.shared.b64 %p2, [%r1], 0; @!%p2 bra W_cp_async_arrives; \
         xor.b32 %r4, %r2, 124; add.u32 %r4, %r4, %r1; ld.shared.u32 %r9, [%r4+16];",
        |l| input(31 - l),
    ),
    program(
        // Without `.noinc` the copies' arrival counts itself, so that the threads' own are still awaited.
        "cp_async_arrives_beside",
        "mov.u32 %r1, s; setp.eq.u32 %p1, %r0, 0; shl.b32 %r2, %r0, 2; add.u32 %r3, %r1, %r2; cvt.u64.u32 %d1, %r2; \
         add.u64 %d2, %d8, %d1; @%p1 mbarrier.init.shared.b64 [%r1], 32; bar.warp.sync 0xffffffff; \
         cp.async.ca.shared.global [%r3+16], [%d2], 4; cp.async.mbarrier.arrive.shared.b64 [%r1]; \
         mbarrier.arrive.shared.b64 %d3, [%r1]; \
         W_cp_async_arrives_beside: mbarrier.test_wait.shared.b64 %p2, [%r1], %d3; \
         @!%p2 bra W_cp_async_arrives_beside; xor.b32 %r4, %r2, 4; add.u32 %r4, %r4, %r1; ld.shared.u32 %r9, [%r4+16];",
        |l| input(l ^ 1),
    ),
    program(
        // Half the lanes leave with the first phase; the second is complete without them.
        "mbarrier_drop",
        "mov.u32 %r1, s; setp.eq.u32 %p1, %r0, 0; setp.lt.u32 %p3, %r0, 16; \
         @%p1 mbarrier.init.shared.b64 [%r1], 32; bar.warp.sync 0xffffffff; \
         @!%p3 mbarrier.arrive_drop.shared.b64 %d1, [%r1]; @%p3 mbarrier.arrive.shared.b64 %d1, [%r1]; \
         W_mbarrier_drop: mbarrier.test_wait.parity.shared.b64 %p2, [%r1], 0; @!%p2 bra W_mbarrier_drop; \
         bar.warp.sync 0xffffffff; @%p3 mbarrier.arrive.shared.b64 %d1, [%r1]; \
         V_mbarrier_drop: mbarrier.test_wait.parity.shared.b64 %p2, [%r1], 1; @!%p2 bra V_mbarrier_drop; \
         bar.warp.sync 0xffffffff; @%p1 mbarrier.inval.shared.b64 [%r1]; mov.u32 %r9, 6;",
        |_| 6,
    ),
    program(
        "ldmatrix_trans",
        // Row i of an 8 x 8 matrix of 16 bits: 8i .. 8i + 8. Lane l of the transposed one has column l / 4, rows 2 (l % 4)
        // and the next.
        "mov.u32 %r1, s; mul.lo.u32 %r2, %r0, 2; mul.lo.u32 %r3, %r0, 4; add.u32 %r3, %r3, %r1; add.u32 %r4, %r2, 1; \
         shl.b32 %r4, %r4, 16; or.b32 %r4, %r4, %r2; st.shared.u32 [%r3], %r4; bar.warp.sync 0xffffffff; \
         and.b32 %r5, %r0, 7; shl.b32 %r5, %r5, 4; add.u32 %r5, %r5, %r1; \
         ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16 {%r9}, [%r5];",
        |l| {
            let (column, row) = (l / 4, 2 * (l % 4));
            (8 * row + column) | (8 * (row + 1) + column) << 16
        },
    ),
    program(
        "mma_int8",
        // A's rows are ones, B's columns twos, 32 deep: 64, and 5 that was there.
        "mov.u32 %r1, 0x01010101; mov.u32 %r2, 0x02020202; mov.u32 %r3, 5; \
         mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%r9, %r4, %r5, %r6}, {%r1, %r1, %r1, %r1}, {%r2, %r2}, \
         {%r3, %r3, %r3, %r3};",
        |_| 69,
    ),
    program(
        "mbarrier_of_a_warp",
        "mov.u32 %r1, s; setp.eq.u32 %p1, %r0, 0; @%p1 mbarrier.init.shared.b64 [%r1], 32; bar.warp.sync 0xffffffff; \
         mbarrier.arrive.shared.b64 %d1, [%r1]; W_mbarrier_of_a_warp: mbarrier.test_wait.shared.b64 %p2, [%r1], %d1; \
         @!%p2 bra W_mbarrier_of_a_warp; mov.u32 %r9, 3;",
        |_| 3,
    ),
    program(
        "mbarrier_pending_count",
        "mov.u32 %r1, s; mov.u32 %r9, 0; setp.eq.u32 %p1, %r0, 0; @%p1 mbarrier.init.shared.b64 [%r1], 32; \
         bar.warp.sync 0xffffffff; @%p1 mbarrier.arrive.shared.b64 %d1, [%r1]; \
         @%p1 mbarrier.pending_count.b64 %r9, %d1;",
        |lane| if lane == 0 { 32 } else { 0 },
    ),
];

/// What sm_90 added.
pub(crate) const FROM_SM_90: &[Program] = &[
    program(
        "elect",
        // One lane is elected, and all are told which.
        "elect.sync %r1|%p1, 0xffffffff; vote.sync.ballot.b32 %r2, %p1, 0xffffffff; popc.b32 %r3, %r2; \
         shr.u32 %r4, %r2, %r1; shl.b32 %r4, %r4, 4; add.u32 %r9, %r3, %r4;",
        |_| 1 + (1 << 4),
    ),
    program("grid_dependency", "griddepcontrol.launch_dependents; griddepcontrol.wait; mov.u32 %r9, 2;", |_| 2),
    program(
        "bulk_copy",
        "mov.u32 %r1, s; setp.eq.u32 %p1, %r0, 0; add.u32 %r2, %r1, 16; \
         @%p1 mbarrier.init.shared.b64 [%r1], 1; @%p1 fence.mbarrier_init.release.cluster; bar.warp.sync 0xffffffff; \
         @%p1 mbarrier.arrive.expect_tx.shared.b64 %d1, [%r1], 128; \
         @%p1 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r2], [%d8], 128, [%r1]; \
         W_bulk_copy: mbarrier.try_wait.parity.shared.b64 %p2, [%r1], 0; @!%p2 bra W_bulk_copy; \
         shl.b32 %r3, %r0, 2; add.u32 %r3, %r3, %r2; ld.shared.u32 %r9, [%r3];",
        input,
    ),
    program(
        "bulk_copy_policy",
        "mov.u32 %r1, s; setp.eq.u32 %p1, %r0, 0; add.u32 %r2, %r1, 16; @%p1 cp.async.bulk.prefetch.L2.global [%d8], 128; \
         createpolicy.fractional.L2::evict_first.b64 %d3, 0f3f800000; \
         @%p1 mbarrier.init.shared.b64 [%r1], 1; fence.proxy.async; bar.warp.sync 0xffffffff; \
         @%p1 mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%r1], 144; \
         @%p1 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%r2], [%d8], 128, [%r1], %d3; \
         @%p1 mbarrier.arrive.shared.b64 %d1, [%r1]; \
         @%p1 mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%r1], 16; \
         W_bulk_copy_policy: mbarrier.try_wait.parity.shared.b64 %p2, [%r1], 0, 1000; @!%p2 bra W_bulk_copy_policy; \
         shl.b32 %r3, %r0, 2; add.u32 %r3, %r3, %r2; ld.shared.u32 %r9, [%r3];",
        input,
    ),
    program(
        "cluster_barrier",
        "mov.u32 %r1, s; shl.b32 %r2, %r0, 2; add.u32 %r3, %r1, %r2; st.shared.u32 [%r3], %r0; \
         barrier.cluster.arrive; barrier.cluster.wait; xor.b32 %r2, %r2, 124; add.u32 %r3, %r1, %r2; \
         ld.shared.u32 %r9, [%r3]; barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;",
        |l| 31 - l,
    ),
    program(
        // The only block of a cluster is its own neighbour.
        "mapa",
        "mov.u32 %r1, s; shl.b32 %r2, %r0, 2; add.u32 %r3, %r1, %r2; mov.u32 %r4, %cluster_ctarank; \
         mapa.shared::cluster.u32 %r5, %r3, %r4; st.shared::cluster.u32 [%r5], %r0; ld.shared.u32 %r9, [%r3];",
        |l| l,
    ),
    program("getctarank", "mov.u32 %r1, s; getctarank.shared::cluster.u32 %r2, %r1; add.u32 %r9, %r2, 3;", |_| 3),
    of_two(
        // Each block stores into the other one's memory, whose mbarrier hears of it.
        "st_async",
        "mov.u32 %r1, s; setp.eq.u32 %p1, %r0, 0; mov.u32 %r4, %cluster_ctarank; xor.b32 %r5, %r4, 1; \
         @%p1 mbarrier.init.shared.b64 [%r1], 1; @%p1 mbarrier.arrive.expect_tx.shared.b64 %d1, [%r1], 128; \
         barrier.cluster.arrive; barrier.cluster.wait; \
         shl.b32 %r2, %r0, 2; add.u32 %r2, %r2, %r1; mapa.shared::cluster.u32 %r6, %r2, %r5; \
         mapa.shared::cluster.u32 %r7, %r1, %r5; shl.b32 %r4, %r4, 5; add.u32 %r4, %r4, %r0; \
         st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.u32 [%r6+16], %r4, [%r7]; \
         W_st_async: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p2, [%r1], 0; @!%p2 bra W_st_async; \
         xor.b32 %r3, %r0, 3; shl.b32 %r3, %r3, 2; add.u32 %r3, %r3, %r1; ld.shared.u32 %r9, [%r3+16];",
        |l| l ^ 32 ^ 3,
    ),
    program(
        "stmatrix",
        "mov.u32 %r1, s; and.b32 %r2, %r0, 7; shl.b32 %r2, %r2, 4; add.u32 %r2, %r2, %r1; \
         stmatrix.sync.aligned.m8n8.x1.shared.b16 [%r2], {%r0}; bar.warp.sync 0xffffffff; \
         shl.b32 %r3, %r0, 2; add.u32 %r3, %r3, %r1; ld.shared.u32 %r9, [%r3];",
        // Lane l holds two elements of row l / 4, and row i lies at 16 i: word l is lane l's.
        |l| l,
    ),
];

/// The programs that a chip of compute capability `sm` has.
pub(crate) fn programs(sm: u32) -> impl Iterator<Item = &'static Program> {
    let newer = |from: u32, programs: &'static [Program]| if sm >= from { programs } else { &[] };
    PROGRAMS.iter().chain(newer(80, FROM_SM_80)).chain(newer(90, FROM_SM_90))
}

impl Program {
    /// What its lanes are to find.
    pub(crate) fn results(&self) -> Vec<u32> {
        (0..32 * self.blocks).map(self.expected).collect()
    }

    /// Its kernel `NAME(in, out)`: a word for each lane of each block goes to `out`.
    pub(crate) fn kernel(&self) -> String {
        let cluster = match self.blocks {
            1 => String::new(),
            blocks => format!(".explicitcluster\n.reqnctapercluster {blocks}, 1, 1\n"),
        };
        format!(
            ".visible .entry {}(.param .u64 in, .param .u64 out)\n{cluster}{{\n.reg .b32 %r<12>; .reg .b64 %d<12>; .reg .pred %p<4>;\n\
             .shared .align 16 .b8 s[1024]; .local .align 8 .b8 l[16];\n\
             ld.param.u64 %d8, [in]; ld.param.u64 %d9, [out]; mov.u32 %r0, %tid.x;\n{}\n\
             mov.u32 %r10, %ctaid.x; mad.lo.u32 %r10, %r10, 32, %r0;\n\
             mul.wide.u32 %d10, %r10, 4; add.u64 %d9, %d9, %d10; st.global.u32 [%d9], %r9;\nret;\n}}\n",
            self.name, self.body
        )
    }
}
