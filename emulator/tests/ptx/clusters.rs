//! Clusters of several blocks: what they know of themselves, what they do to each other's shared memory, and what is
//! wrong there.

use crate::rig::{Rig, ptx, schedules};
use kiln_emulator::FaultKind::{self, *};

/// A kernel of clusters of `ranks` blocks, 64 threads each: %r1 thread, %r2 rank, %r3 the next rank, %r4 own `tile`, %r5
/// own word of it, %r6 the same word of the next block's, %r7 own `full`, %r8 the next block's, %rd5 own word of `out`.
fn kernel(ranks: u32, body: &str) -> String {
    ptx(
        90,
        &format!(
            r#"
.visible .entry k(.param .u64 out) .reqnctapercluster {ranks}, 1, 1
{{
    .reg .pred %p<8>;
    .reg .b32 %r<32>;
    .reg .b64 %rd<8>;
    .shared .align 16 .b8 tile[256];
    .shared .align 8 .b64 full;
    ld.param.u64 %rd1, [out];
    mov.u32 %r1, %tid.x;
    mov.u32 %r2, %cluster_ctarank;
    mov.u32 %r10, %cluster_nctarank;
    add.u32 %r3, %r2, 1;
    setp.eq.u32 %p1, %r3, %r10;
    @%p1 mov.u32 %r3, 0;
    mov.u32 %r4, tile;
    mov.u32 %r7, full;
    shl.b32 %r11, %r1, 2;
    add.u32 %r5, %r4, %r11;
    mapa.shared::cluster.u32 %r6, %r5, %r3;
    mapa.shared::cluster.u32 %r8, %r7, %r3;
    mov.u32 %r12, %ctaid.x;
    mad.lo.u32 %r13, %r12, 64, %r1;
    mul.wide.u32 %rd4, %r13, 4;
    add.u64 %rd5, %rd1, %rd4;
    setp.eq.u32 %p2, %r1, 0;
    setp.eq.u32 %p3, %r2, 0;
    {body}
    ret;
}}
"#
        ),
    )
}

const MEET: &str = "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;";

/// What a word of `out` is for a block and a thread.
type Expected = fn(block: u32, thread: u32) -> u32;

/// Runs a kernel on two clusters under every schedule.
fn each(ranks: u32, body: &str, expected: Expected) {
    let rig = Rig::new(&kernel(ranks, body));
    for (schedule, split_warps, seed) in schedules() {
        let mut rig = Rig { config: rig.config.clone(), ..Rig::new(&kernel(ranks, body)) };
        (rig.config.schedule, rig.config.split_warps, rig.config.seed) = (schedule, split_warps, seed);
        let out = rig.u32s(&vec![0; 2 * ranks as usize * 64]);
        rig.launch("k", 2 * ranks, 64, &[out]).unwrap_or_else(|fault| panic!("{schedule:?}: {fault}"));
        let got = rig.read_u32s(out, 2 * ranks as usize * 64);
        let wanted: Vec<u32> = (0..2 * ranks).flat_map(|b| (0..64).map(move |t| expected(b, t))).collect();
        assert_eq!(got, wanted, "{schedule:?}");
    }
}

/// The block behind `b` in its cluster of four.
fn next(b: u32) -> u32 {
    b / 4 * 4 + (b + 1) % 4
}

#[test]
fn blocks_read_and_write_the_shared_memory_of_their_neighbours() {
    let read = "st.shared.u32 [%r5], %r13; @MEET ld.shared::cluster.u32 %r20, [%r6]; st.global.u32 [%rd5], %r20; @MEET";
    each(4, &read.replace("@MEET", MEET), |b, t| next(b) * 64 + t);
    let write =
        "@MEET st.shared::cluster.u32 [%r6], %r13; @MEET ld.shared.u32 %r20, [%r5]; st.global.u32 [%rd5], %r20;";
    each(4, &write.replace("@MEET", MEET), |b, t| (b / 4 * 4 + (b + 3) % 4) * 64 + t);
    // By generic addresses, and by an atomic of all on the first block's word.
    let generic = "st.shared.u32 [%r5], %r13; @MEET cvt.u64.u32 %rd6, %r5; cvta.shared.u64 %rd6, %rd6;
        mapa.u64 %rd7, %rd6, %r3; ld.u32 %r20, [%rd7]; st.global.u32 [%rd5], %r20; @MEET";
    each(4, &generic.replace("@MEET", MEET), |b, t| next(b) * 64 + t);
    // Of every block in one access.
    let all =
        "st.shared.u32 [%r5], %r13; @MEET cvt.u64.u32 %rd6, %r5; cvta.shared.u64 %rd6, %rd6; and.b32 %r20, %r1, 3;
        mapa.u64 %rd7, %rd6, %r20; ld.u32 %r21, [%rd7]; st.global.u32 [%rd5], %r21; @MEET";
    each(4, &all.replace("@MEET", MEET), |b, t| (b / 4 * 4 + t % 4) * 64 + t);
    let atomic = "mov.u32 %r20, 0; st.shared.u32 [%r5], %r20; mapa.shared::cluster.u32 %r21, %r5, %r20; @MEET
        atom.relaxed.cluster.shared::cluster.add.u32 %r22, [%r21], 1; @MEET
        ld.shared::cluster.u32 %r23, [%r21]; st.global.u32 [%rd5], %r23; @MEET";
    each(4, &atomic.replace("@MEET", MEET), |_, _| 4);
}

#[test]
fn stores_and_arrivals_reach_the_mbarrier_of_another_block() {
    let stores = "@%p2 mbarrier.init.shared.b64 [%r7], 1; @%p2 mbarrier.arrive.expect_tx.shared.b64 %rd6, [%r7], 256;
        @MEET st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.u32 [%r6], %r13, [%r8];
        W: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p4, [%r7], 0; @!%p4 bra W;
        ld.shared.u32 %r20, [%r5]; st.global.u32 [%rd5], %r20; @MEET";
    each(4, &stores.replace("@MEET", MEET), |b, t| (b / 4 * 4 + (b + 3) % 4) * 64 + t);
    let arrivals = "@%p2 mbarrier.init.shared.b64 [%r7], 64; @MEET st.shared::cluster.u32 [%r6], %r13;
        mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r8];
        W: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p4, [%r7], 0; @!%p4 bra W;
        ld.shared.u32 %r20, [%r5]; st.global.u32 [%rd5], %r20; @MEET";
    each(4, &arrivals.replace("@MEET", MEET), |b, t| (b / 4 * 4 + (b + 3) % 4) * 64 + t);
}

#[test]
fn a_store_with_an_mbarrier_needs_a_cluster_of_more_than_one_block() {
    let store = "@%p2 mbarrier.init.shared.b64 [%r7], 1; @%p2 mbarrier.arrive.expect_tx.shared.b64 %rd6, [%r7], 256;
        @MEET st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.u32 [%r6], %r13, [%r8];
        W: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p4, [%r7], 0; @!%p4 bra W;";
    let alone = kernel(1, &store.replace("@MEET", MEET));
    let without = alone.replace(" .reqnctapercluster 1, 1, 1", "");
    assert_ne!(alone, without);
    for text in [alone, without] {
        let rig = Rig::new(&text);
        let out = rig.u32s(&[0; 64]);
        let fault = rig.launch("k", 1, 64, &[out]).expect_err("one block");
        assert_eq!(fault.kind, IllegalInstruction, "{fault}");
    }
    // In a cluster of two a block may be its own neighbour.
    let own = store.replace("[%r6]", "[%r5]").replace("[%r8]", "[%r7]");
    each(2, &own.replace("@MEET", MEET), |_, _| 0);
}

#[test]
fn the_barriers_of_a_block_are_its_own() {
    // The first block never comes to this barrier, nor to that of all its threads.
    let own = "@%p3 bra J; bar.sync 1; st.shared.u32 [%r5], %r1; bar.sync 1; xor.b32 %r20, %r11, 252;
        add.u32 %r20, %r20, %r4; ld.shared.u32 %r21, [%r20]; st.global.u32 [%rd5], %r21; J: @MEET";
    each(4, &own.replace("@MEET", MEET), |b, t| if b % 4 == 0 { 0 } else { 63 - t });
}

#[test]
fn a_cluster_has_three_dimensions() {
    let names = [
        "%cluster_ctarank",
        "%cluster_nctarank",
        "%is_explicit_cluster",
        "%clusterid.x",
        "%clusterid.y",
        "%clusterid.z",
        "%cluster_ctaid.x",
        "%cluster_ctaid.y",
        "%cluster_ctaid.z",
        "%nclusterid.x",
        "%nclusterid.y",
        "%nclusterid.z",
        "%cluster_nctaid.x",
        "%cluster_nctaid.y",
        "%cluster_nctaid.z",
    ];
    let reads: String = names
        .iter()
        .enumerate()
        .map(|(i, name)| match *name {
            "%is_explicit_cluster" => {
                format!("mov.pred %p1, {name}; selp.u32 %r5, 1, 0, %p1; st.global.u32 [%rd2+{}], %r5;\n", 4 * i)
            }
            _ => format!("mov.u32 %r5, {name}; st.global.u32 [%rd2+{}], %r5;\n", 4 * i),
        })
        .collect();
    let text = ptx(
        90,
        &format!(
            ".visible .entry k(.param .u64 out) .reqnctapercluster 2, 1, 3\n{{ .reg .b32 %r<8>; .reg .b64 %rd<4>; .reg .pred %p<2>;
            ld.param.u64 %rd1, [out]; mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ctaid.y; mov.u32 %r3, %ctaid.z;
            mad.lo.u32 %r3, %r3, 2, %r2; mad.lo.u32 %r3, %r3, 4, %r1; mul.wide.u32 %rd2, %r3, 64; add.u64 %rd2, %rd1, %rd2;
            {reads} ret; }}"
        ),
    );
    let rig = Rig::new(&text);
    let (grid, cluster) = ([4u32, 2, 6], [2u32, 1, 3]);
    let out = rig.u32s(&[0; 48 * 16]);
    rig.launch3("k", grid, [1, 1, 1], &[out]).unwrap();
    let got = rig.read_u32s(out, 48 * 16);
    for (i, words) in (0u32..).zip(got.chunks(16)) {
        let block = [i % 4, i / 4 % 2, i / 8];
        let [x, y, z] = std::array::from_fn(|k| block[k] % cluster[k]);
        let rank = x + 2 * (y + z);
        let of = std::array::from_fn::<u32, 3, _>(|k| block[k] / cluster[k]);
        let all = std::array::from_fn::<u32, 3, _>(|k| grid[k] / cluster[k]);
        let expected = [&[rank, 6, 1][..], &of, &[x, y, z], &all, &cluster, &[0]].concat();
        assert_eq!(words, expected, "block {block:?}");
    }
}

#[test]
fn what_is_wrong_between_blocks_of_a_cluster_is_found() {
    // `|` separates the bug from what is right.
    let planted: &[(&str, &[FaultKind], &str)] = &[
        ("no barrier of the cluster before the neighbour is read", &[Race],
            "st.shared.u32 [%r5], %r1; @MEET st.shared.u32 [%r5], %r13; [[bar.sync 0;|@MEET]] ld.shared::cluster.u32 %r20, [%r6]; @MEET"),
        ("an arrival that releases nothing", &[Race],
            "st.shared.u32 [%r5], %r1; @MEET st.shared.u32 [%r5], %r13; barrier.cluster.arrive[[.relaxed|]].aligned; barrier.cluster.wait.aligned;
             ld.shared::cluster.u32 %r20, [%r6]; @MEET"),
        ("the neighbour is written while it reads", &[Race],
            "st.shared.u32 [%r5], %r13; @MEET ld.shared.u32 %r20, [%r5]; [[|@MEET]] st.shared::cluster.u32 [%r6], %r20; @MEET"),
        ("a flag of block scope to another block", &[Race],
            "mov.u32 %r20, 0; @%p2 st.shared.u32 [%r7], %r20; @MEET
             @%p2 st.shared::cluster.u32 [%r6], %r13; @%p2 st.release.[[cta|cluster]].shared::cluster.u32 [%r8], 1;
             W: ld.acquire.[[cta|cluster]].shared.u32 %r21, [%r7]; setp.eq.u32 %p4, %r21, 0; @%p4 bra W;
             @%p2 ld.shared.u32 %r22, [%r5]; @MEET"),
        ("atomics of block scope from two blocks", &[Race],
            "mov.u32 %r20, 0; st.shared.u32 [%r5], %r20; mapa.shared::cluster.u32 %r21, %r5, %r20; @MEET
             atom.relaxed.[[cta|cluster]].shared::cluster.add.u32 %r22, [%r21], 1; @MEET"),
        ("what a store brings is read before its mbarrier", &[Race],
            "@%p2 mbarrier.init.shared.b64 [%r7], 1; @%p2 mbarrier.arrive.expect_tx.shared.b64 %rd6, [%r7], 256;
             @MEET st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.u32 [%r6], %r13, [%r8];
             [[@MEET ld.shared.u32 %r20, [%r5];|]]
             W: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p4, [%r7], 0; @!%p4 bra W;
             ld.shared.u32 %r20, [%r5]; @MEET"),
        ("a neighbour's mbarrier is used before the cluster knows it", &[Race, UninitialisedMemory, InvalidSync],
            "@%p2 mbarrier.init.shared.b64 [%r7], 64; [[bar.sync 0;|@MEET]]
             mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r8]; @MEET"),
        ("an arrival of block scope at the mbarrier of another block", &[Race],
            "@%p2 mbarrier.init.shared.b64 [%r7], 64; @MEET st.shared::cluster.u32 [%r6], %r13;
             mbarrier.arrive.release.[[cta|cluster]].shared::cluster.b64 _, [%r8];
             W: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p4, [%r7], 0; @!%p4 bra W;
             ld.shared.u32 %r20, [%r5]; @MEET"),
        ("a wait of block scope for another block's arrival", &[Race],
            "@%p2 mbarrier.init.shared.b64 [%r7], 64; @MEET st.shared::cluster.u32 [%r6], %r13;
             mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r8];
             W: mbarrier.try_wait.parity.acquire.[[cta|cluster]].shared::cta.b64 %p4, [%r7], 0; @!%p4 bra W;
             ld.shared.u32 %r20, [%r5]; @MEET"),
        ("a rank that the cluster does not have", &[IllegalInstruction],
            "mov.u32 %r20, [[4|3]]; @MEET mapa.shared::cluster.u32 %r21, %r5, %r20; @%p3 st.shared::cluster.u32 [%r21], %r1; @MEET"),
        ("past the end of the neighbour's memory", &[OutOfBounds],
            "@MEET @%p2 st.shared::cluster.u32 [%r8+[[8|4]]], %r1; @MEET"),
        (
            "a wait at the cluster's barrier by threads that have not arrived",
            &[InvalidSync],
            "[[@%p2|]] barrier.cluster.arrive; barrier.cluster.wait;",
        ),
        (
            "an mbarrier in another block than what it hears of",
            &[InvalidSync],
            "@%p2 mbarrier.init.shared.b64 [%r7], 64; @MEET mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%r7], 4; @MEET
             st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.u32 [%r6], %r13, [%r[[7|8]]];
             mbarrier.arrive.shared.b64 _, [%r7];
             W: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p4, [%r7], 0; @!%p4 bra W; @MEET",
        ),
        ("the neighbour has exited", &[UseAfterFree],
            "[[@!%p3 exit; |]] mov.u32 %r20, 0; L: add.u32 %r20, %r20, 1; nanosleep.u32 100; setp.lt.u32 %p4, %r20, 100; @%p4 bra L;
             @%p3 st.shared::cluster.u32 [%r6], %r13; [[|@MEET]]"),
    ];
    for (name, kinds, body) in planted {
        for (schedule, split_warps, seed) in schedules() {
            for bug in [true, false] {
                let mut text = body.replace("@MEET", MEET);
                while let Some((before, rest)) = text.split_once("[[") {
                    let (variant, after) = rest.split_once("]]").unwrap();
                    let (wrong, right) = variant.split_once('|').unwrap();
                    text = format!("{before}{}{after}", if bug { wrong } else { right });
                }
                let mut rig = Rig::new(&kernel(4, &text));
                (rig.config.schedule, rig.config.split_warps, rig.config.seed) = (schedule, split_warps, seed);
                let out = rig.u32s(&[0; 8 * 64]);
                let result = rig.launch("k", 8, 64, &[out]);
                match result {
                    Err(fault) if bug => assert!(kinds.contains(&fault.kind), "{name}, {schedule:?}: {fault}"),
                    Ok(_) if !bug => {}
                    other => panic!("{name}, {schedule:?}, bug {bug}: {other:?}"),
                }
            }
        }
    }
}
