//! Locks, spins and mbarriers: who waits for nothing is told so, and who waits for something gets it.

use crate::rig::{Rig, ptx, schedules};
use kiln_emulator::FaultKind::{self, *};
use kiln_emulator::Schedule;

const HEAD: &str = "
.reg .pred %p<8>;
.reg .b32 %r<16>;
.reg .b64 %rd<8>;
.shared .align 8 .b64 full;
ld.param.u64 %rd1, [a];
mov.u32 %r1, %tid.x;
setp.eq.u32 %p1, %r1, 0;
";

fn rig(body: &str) -> (Rig, u64) {
    let mut rig = Rig::new(&ptx(90, &format!(".visible .entry k(.param .u64 a)\n{{{HEAD}{body}\nret;\n}}")));
    rig.config.threads = 1;
    let a = rig.u32s(&[0; 64]);
    (rig, a)
}

fn kind(result: Result<kiln_emulator::Report, kiln_emulator::Fault>) -> Result<u64, FaultKind> {
    result.map(|report| report.warp_instructions).map_err(|fault| fault.kind)
}

/// Each lane takes the lock, adds to the sum, gives the lock back.
const LOCK: &str = "
L: atom.acquire.gpu.global.cas.b32 %r2, [%rd1], 0, 1; setp.ne.u32 %p2, %r2, 0; @%p2 bra L;
ld.global.u32 %r3, [%rd1+4]; add.u32 %r3, %r3, 1; st.global.u32 [%rd1+4], %r3;
st.release.gpu.global.u32 [%rd1], 0;";

#[test]
fn a_lock_that_lanes_of_a_warp_contend_for_is_handed_over_soon() {
    for (grid, block) in [(1, 32), (2, 32), (2, 64)] {
        let (rig, a) = rig(LOCK);
        let threads = u64::from(grid * block);
        let instructions = kind(rig.launch("k", grid, block, &[a])).unwrap();
        assert_eq!(rig.read_u32s(a + 4, 1), [grid * block]);
        assert!(instructions < 300 * threads, "{instructions} instructions for {threads} threads");
    }
}

#[test]
fn a_block_that_spins_for_ever_is_a_deadlock_and_one_that_counts_is_not() {
    for (name, body, expected) in [
        ("a flag", "L: ld.volatile.global.u32 %r2, [%rd1]; setp.eq.u32 %p2, %r2, 0; @%p2 bra L;", Some(Deadlock)),
        (
            "a flag in shared memory",
            "@%p1 st.shared.u32 [full], 0; bar.sync 0; L: ld.volatile.shared.u32 %r2, [full]; setp.eq.u32 %p2, %r2, 0; @%p2 bra L;",
            Some(Deadlock),
        ),
        ("a lock", "L: atom.global.cas.b32 %r2, [%rd1], 1, 1; setp.ne.u32 %p2, %r2, 1; @%p2 bra L;", Some(Deadlock)),
        (
            "an mbarrier",
            "@!%p1 bra E; mbarrier.init.shared.b64 [full], 2; L: mbarrier.try_wait.parity.shared.b64 %p2, [full], 0; @!%p2 bra L; E:",
            Some(Deadlock),
        ),
        (
            "with pauses",
            "L: nanosleep.u32 100; ld.volatile.global.u32 %r2, [%rd1]; setp.eq.u32 %p2, %r2, 0; @%p2 bra L;",
            Some(Deadlock),
        ),
        (
            "a long count",
            "mov.u32 %r2, 0; L: ld.volatile.global.u32 %r3, [%rd1]; add.u32 %r2, %r2, 1; setp.lt.u32 %p2, %r2, 1000000; @%p2 bra L;",
            None,
        ),
        (
            "a time",
            "mov.u64 %rd2, %globaltimer; add.u64 %rd2, %rd2, 3000000; L: mov.u64 %rd3, %globaltimer; setp.lt.u64 %p2, %rd3, %rd2; @%p2 bra L;",
            None,
        ),
    ] {
        for schedule in [Schedule::RoundRobin, Schedule::Random] {
            let (mut rig, a) = rig(body);
            (rig.config.schedule, rig.config.step_limit, rig.config.checks.racecheck) =
                (schedule, Some(100_000_000), false);
            assert_eq!(kind(rig.launch("k", 1, 64, &[a])).err(), expected, "{name}");
        }
    }
}

/// As `cuda::barrier` waits: every thread arrives, then looks until the phase of its arrival is over.
#[test]
fn phases_of_an_mbarrier_are_progress() {
    let body = "
        @%p1 mbarrier.init.shared.b64 [full], 64; bar.sync 0; mov.u32 %r2, 0;
        N: mbarrier.arrive.shared.b64 %rd2, [full];
        L: mbarrier.test_wait.shared.b64 %p2, [full], %rd2; @!%p2 bra L;
        shfl.sync.bfly.b32 %r3, %r2, 1, 31, -1;
        add.u32 %r2, %r2, 1; setp.lt.u32 %p3, %r2, 60; @%p3 bra N;
        red.release.gpu.global.add.u32 [%rd1], 1;";
    for (schedule, split, seed) in schedules() {
        let (mut rig, a) = rig(body);
        rig.cooperative = true;
        (rig.config.schedule, rig.config.split_warps, rig.config.seed) = (schedule, split, seed);
        rig.config.livelock_rounds = Some(40);
        assert_eq!(kind(rig.launch("k", 3, 64, &[a])).err(), None, "{schedule:?} {split}");
    }
}

#[test]
fn a_store_into_an_mbarrier_in_use_is_reported() {
    for (name, store, expected) in [
        ("a store", "st.shared.u32 [full+4], %r1;", Some(InvalidSync)),
        ("an atomic", "red.shared.add.u32 [full], 1;", Some(InvalidSync)),
        ("after its end", "mbarrier.inval.shared.b64 [full]; st.shared.u32 [full+4], %r1;", None),
    ] {
        let (rig, a) = rig(&format!("@!%p1 ret; mbarrier.init.shared.b64 [full], 1; {store}"));
        assert_eq!(kind(rig.launch("k", 1, 32, &[a])).err(), expected, "{name}");
    }
}
