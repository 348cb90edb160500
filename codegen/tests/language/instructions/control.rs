//! Variables, control flow, roles, and where a thread is.

use super::{BLOCK, Case, N, case};
use kiln_codegen::ptx::{Dim, LoadKind, Role, U32, Work};

pub(super) fn cases() -> Vec<Case> {
    let mut all = loops_and_branches();
    all.extend(places());
    all.extend(of_the_block());
    all
}

fn loops_and_branches() -> Vec<Case> {
    vec![
        case(
            "for_range",
            |b, i| {
                let baked = b.dim("ignored", Dim::Baked(9));
                let sum = b.var::<U32>(0);
                for (end, step) in [(i.n, 3), (baked, 1)] {
                    b.for_range(0, end, step, |b, index| {
                        b.each_iteration(Work::Elements(1));
                        b.keep_rolled();
                        let before = b.get(sum);
                        let next = b.mad(before, 5, index);
                        b.set(sum, next);
                    });
                }
                b.get(sum)
            },
            |_| (0..N).step_by(3).chain(0..9).fold(0u32, |sum, index| sum.wrapping_mul(5).wrapping_add(index)),
        ),
        case(
            "while_ and do_while",
            |b, i| {
                let (value, steps) = (b.var::<U32>(i.x), b.var::<U32>(0));
                b.while_(
                    |b| b.setp_ge(value, 1000),
                    |b| {
                        let third = b.div(value, 3);
                        b.set(value, third);
                        let more = b.add(steps, 1);
                        b.set(steps, more);
                    },
                );
                b.do_while(|b| {
                    let less = b.shr(value, 1);
                    b.set(value, less);
                    let more = b.add(steps, 100);
                    b.set(steps, more);
                    b.setp_ne(less, 0)
                });
                b.get(steps)
            },
            |t| {
                let (mut value, mut steps) = (t.x(), 0);
                while value >= 1000 {
                    (value, steps) = (value / 3, steps + 1);
                }
                loop {
                    (value, steps) = (value >> 1, steps + 100);
                    if value == 0 {
                        return steps;
                    }
                }
            },
        ),
        case(
            "if_ and if_else",
            |b, i| {
                let chosen = b.var::<U32>(7);
                let (small, less) = (b.setp_lt(i.x, 1 << 31), b.setp_lt(i.y, i.z));
                b.if_(small, |b| b.if_else(less, |b| b.set(chosen, i.y), |b| b.set(chosen, i.z)));
                b.get(chosen)
            },
            |t| if t.x() < 1 << 31 { t.y().min(t.z()) } else { 7 },
        ),
    ]
}

fn places() -> Vec<Case> {
    vec![
        case(
            "lane and warp",
            |b, _| {
                let (lane, warp, tid) = (b.lane(), b.warp_id(), b.tid());
                let (block, warps) = (b.block(), b.warps());
                let place = b.mad(warp, 100, lane);
                let place = b.mad(place, 100, tid);
                b.mad(place, block, warps)
            },
            |t| (((t.tid() / 32) * 100 + t.tid() % 32) * 100 + t.tid()) * BLOCK + BLOCK / 32,
        ),
        case(
            "target",
            |b, i| {
                b.blocks_per_sm(2);
                let sm = b.target().sm();
                b.add(i.x, sm)
            },
            |t| t.x().wrapping_add(80),
        ),
        case(
            "globaltimer",
            |b, _| {
                let before = b.globaltimer();
                b.nanosleep(40);
                let after = b.globaltimer();
                let forwards = b.setp_ge(after, before);
                b.selp::<U32>(1, 0, forwards)
            },
            |_| 1,
        ),
    ]
}

fn of_the_block() -> Vec<Case> {
    vec![
        case(
            "roles",
            |b, i| {
                let tile = b.shared::<U32>("tile", BLOCK);
                let result = b.var::<U32>(i.x);
                let (tid, lane) = (b.tid(), b.lane());
                let (own, theirs) = (b.index(tile, tid), b.index(tile, lane));
                b.roles(vec![
                    Role::new(1, |b| {
                        b.st(own, i.y);
                        b.bar_sync_threads(1, BLOCK);
                    }),
                    Role::new(1, |b| {
                        b.bar_sync_threads(1, BLOCK);
                        let value = b.ld(theirs, LoadKind::Ordinary);
                        b.set(result, value);
                    }),
                ]);
                b.get(result)
            },
            |t| if t.tid() < 32 { t.x() } else { t.beside(t.tid() - 32).y() },
        ),
        case(
            "a role with a barrier of its own",
            |b, i| {
                let tile = b.shared::<U32>("tile", BLOCK);
                let result = b.var::<U32>(i.x);
                let (tid, before) = (b.tid(), b.warps());
                let role = Role::new(1, |b| {
                    let (own, other) = (b.index(tile, tid), b.xor(tid, 3));
                    b.st(own, i.y);
                    b.bar_sync();
                    let other = b.index(tile, other);
                    let value = b.ld(other, LoadKind::Ordinary);
                    let value = b.mad(value, before, b.block() + b.warps());
                    b.set(result, value);
                });
                b.roles(vec![role.with_barrier(3), Role::new(1, |_| {})]);
                b.get(result)
            },
            |t| match t.tid() {
                0..32 => t.beside(t.tid() ^ 3).y().wrapping_mul(BLOCK / 32).wrapping_add(33),
                _ => t.x(),
            },
        ),
        case(
            "griddepcontrol",
            |b, i| {
                assert!(!b.begins_early(), "this module is no chain");
                assert_eq!(b.kind_of_earlier(), LoadKind::Constant);
                b.griddepcontrol_launch_dependents();
                let early = b.add(i.x, i.y);
                b.griddepcontrol_wait();
                let late = b.ld(i.own, LoadKind::Settled);
                b.add(early, late)
            },
            |t| t.x().wrapping_add(t.y()),
        )
        .of(90),
        case(
            "trap",
            |b, i| {
                let never = b.setp_lt(i.x, 0);
                b.if_(never, |b| b.trap());
                b.add(i.x, 1)
            },
            |t| t.x().wrapping_add(1),
        ),
        case(
            "exit",
            |b, i| {
                let block = b.ctaid_x();
                let second = b.setp_eq(block, 1);
                b.if_(second, |b| {
                    b.st(i.out, i.y);
                    b.exit();
                });
                b.add(i.x, 0)
            },
            |t| if t.block() % 2 == 1 { t.y() } else { t.x() },
        ),
    ]
}
