//! Loads, stores, atomics, addresses, and what orders them.

use super::{BLOCK, BOX, Case, N, OWN, ROW, case};
use kiln_codegen::ptx::{AtomicOp, F32, LoadKind, LoadOrder, Order, S8, S32, Scope, StoreOrder, U8, U32, U64};

pub(super) fn cases() -> Vec<Case> {
    let mut all = accesses();
    all.extend(synchronising());
    all.extend(addresses());
    all
}

fn accesses() -> Vec<Case> {
    vec![
        case(
            "every kind of load",
            |b, i| {
                let first = b.mul(i.thread, 4);
                let at = b.index(i.words, first);
                let kinds = [LoadKind::Ordinary, LoadKind::Constant, LoadKind::Streaming];
                let mut sum = b.mov::<U32>(0);
                for (kind, word) in kinds.into_iter().zip(0..) {
                    let value = b.ld(at.at(word), kind);
                    let scaled = b.mul(sum, 3);
                    sum = b.add(scaled, value);
                }
                sum
            },
            |t| (0..3).fold(0u32, |sum, word| sum.wrapping_mul(3).wrapping_add(t.word(word))),
        ),
        case(
            "prefetch of a line",
            |b, i| {
                b.prefetch_l2(i.words);
                b.add(i.x, i.y)
            },
            |t| t.x().wrapping_add(t.y()),
        ),
        case(
            "prefetch",
            |b, i| {
                let lane = b.lane();
                let leads = b.setp_eq(lane, 0);
                b.if_(leads, |b| b.cp_async_bulk_prefetch(i.words, 64));
                b.xor(i.x, i.y)
            },
            |t| t.x() ^ t.y(),
        )
        .of(90),
        case(
            "bulk copies and mbarriers",
            |b, i| {
                let kept = b.dynamic_shared::<U32>(BLOCK);
                let (copies, barriers) = (b.dynamic_rest::<U32>(), b.shared::<U64>("barriers", 2));
                let (tid, full, read) = (b.tid(), barriers, barriers.at(1));
                let leads = b.setp_eq(tid, 0);
                b.if_(leads, |b| {
                    b.mbarrier_init(full, 1);
                    b.mbarrier_init(read, BLOCK);
                    b.fence_proxy_async();
                });
                let own = b.index(kept, tid);
                b.st(own, i.x);
                b.bar_sync();
                let first = b.sub(i.thread, tid);
                let from = b.byte_index(i.words, first, 16);
                b.if_(leads, |b| {
                    b.mbarrier_arrive_expect_tx(full, 16 * BLOCK);
                    let policy = b.evict_first();
                    let (to, rest) = (copies.at(2 * BLOCK), from.at(2 * BLOCK));
                    b.cp_async_bulk(copies, from, 8 * BLOCK, full, Some(policy));
                    b.cp_async_bulk(to, rest, 8 * BLOCK, full, None);
                });
                b.do_while(|b| {
                    let over = b.mbarrier_try_wait(full, 0);
                    b.not_pred(over)
                });
                let other = b.xor(tid, 5);
                let other = b.byte_index(copies, other, 16);
                let word = b.ld(other.at(1), LoadKind::Ordinary);
                b.mbarrier_arrive(read);
                b.do_while(|b| {
                    let over = b.mbarrier_test_wait(read, 0);
                    b.not_pred(over)
                });
                // Everybody has read: the copies may be overwritten.
                let place = b.byte_index(copies, tid, 16);
                b.st(place, word);
                let (kept, word) = (b.ld(own, LoadKind::Ordinary), b.ld(place, LoadKind::Ordinary));
                b.mad(kept, 3, word)
            },
            |t| t.x().wrapping_mul(3).wrapping_add(t.beside(t.tid() ^ 5).y()),
        )
        .of(90),
        case(
            "boxes of tensor maps",
            |b, i| {
                let (copies, full) = (b.dynamic_rest::<U32>(), b.shared::<U64>("barrier", 1));
                let (tid, warp) = (b.tid(), b.warp_id());
                let (is_first, is_elected) = (b.setp_eq(warp, 0), b.elect());
                let leads = b.and_pred(is_first, is_elected);
                b.if_(leads, |b| {
                    b.mbarrier_init(full, 1);
                    b.fence_proxy_async();
                    b.fence_proxy_tensormap(i.map);
                });
                b.bar_sync();
                b.if_(leads, |b| {
                    b.mbarrier_arrive_expect_tx(full, BOX[0] * BOX[1]);
                    let first = b.sub(i.thread, tid);
                    let (x, y) = (b.mov::<U32>(16 * 4), b.div(first, ROW));
                    b.cp_async_bulk_tensor(copies, i.map, [x, y], full);
                });
                b.do_while(|b| {
                    let over = b.mbarrier_try_wait(full, 0);
                    b.not_pred(over)
                });
                let place = b.and(tid, 7);
                let place = b.byte_index(copies, place, 16);
                b.ld(place.at(1), LoadKind::Ordinary)
            },
            // Four threads of the block's first row, and those below them.
            |t| t.beside(4 + t.tid() % 4 + ROW * (t.tid() / 4 % 2)).y(),
        )
        .of(90),
        case(
            "bytes",
            |b, i| {
                let first = b.mul(i.thread, 16);
                let unsigned = b.index(i.words.cast::<U8>(), first);
                let signed = b.index(i.words.cast::<S8>(), first);
                let (unsigned, signed) = (b.ld(unsigned.at(3), LoadKind::Constant), b.ld(signed, LoadKind::Constant));
                b.st(i.own.cast::<U8>().at(1), unsigned);
                b.st(i.own.cast::<S8>().at(2), signed);
                let signed = b.mov_bits::<U32, S32>(signed);
                let bytes = b.ld(i.own, LoadKind::Ordinary);
                b.add(bytes, signed)
            },
            |t| {
                let [first, .., last] = t.x().to_le_bytes();
                (u32::from(last) << 8 | u32::from(first) << 16).wrapping_add(first as i8 as u32)
            },
        ),
        case(
            "vectors of shared memory",
            |b, i| {
                let tile = b.shared::<U32>("tile", 4 * BLOCK);
                let (tid, first) = (b.tid(), b.mul(i.thread, 4));
                let from = b.index(i.words, first);
                let [a, c] = b.ld_vector(from, LoadKind::Streaming);
                let place = b.byte_index(tile, tid, 16);
                b.st_vector(place, [a, c, a, i.thread]);
                b.bar_sync();
                let other = b.xor(tid, BLOCK - 1);
                let place = b.byte_index(tile, other, 16);
                let [a, c, _, thread] = b.ld_vector(place, LoadKind::Constant);
                let sum = b.mad(a, c, thread);
                b.st_vector(i.own, [sum, a]);
                b.ld(i.own, LoadKind::Ordinary)
            },
            |t| {
                let other = t.beside(BLOCK - 1 - t.tid());
                other.x().wrapping_mul(other.y()).wrapping_add(other.0)
            },
        ),
        case(
            "dynamic shared memory that overlaps",
            |b, i| {
                let tid = b.tid();
                let kept = b.dynamic_shared::<U32>(BLOCK);
                let kept = b.index(kept, tid);
                b.st(kept, i.x);
                let first = b.overlap(|b| {
                    let tile = b.dynamic_shared::<F32>(BLOCK);
                    let other = b.xor(tid, 1);
                    let (own, other) = (b.index(tile, tid), b.index(tile, other));
                    b.st(own, i.f);
                    b.bar_warp_sync();
                    b.ld(other, LoadKind::Ordinary)
                });
                b.bar_sync();
                let tile = b.dynamic_shared::<U32>(BLOCK);
                let tile = b.index(tile, tid);
                b.st(tile, i.y);
                let (kept, own) = (b.ld(kept, LoadKind::Ordinary), b.ld(tile, LoadKind::Ordinary));
                let first = b.mov_bits::<U32, F32>(first);
                let sum = b.add(kept, own);
                b.add(sum, first)
            },
            |t| t.x().wrapping_add(t.y()).wrapping_add(t.beside(t.tid() ^ 1).f().to_bits()),
        ),
        case(
            "broadcast",
            |b, i| {
                let slot = b.shared::<U32>("slot", 1);
                let first = b.broadcast(slot, i.x);
                let even = b.and(first, 1);
                let even = b.setp_eq(even, 0);
                // What everybody knows may decide on a barrier.
                b.if_(even, |b| b.bar_sync());
                b.add(first, i.y)
            },
            |t| t.beside(0).x().wrapping_add(t.y()),
        ),
    ]
}

fn synchronising() -> Vec<Case> {
    vec![
        case(
            "red",
            |b, i| {
                // The words of the block's first thread count for all.
                let tid = b.tid();
                let first = b.sub(i.thread, tid);
                let counters = b.byte_index(i.scratch, first, 4 * OWN);
                b.red(AtomicOp::Add, counters, i.x, Scope::Gpu);
                b.red(AtomicOp::Max, counters.at(1), i.x, Scope::Cta);
                b.red(AtomicOp::Or, counters.at(2), i.x, Scope::Sys);
                b.bar_sync();
                let [sum, _]: [_; 2] = b.ld_sync_vector(counters, LoadOrder::Relaxed, Scope::Gpu);
                let greatest = b.ld_sync(counters.at(1), LoadOrder::Acquire, Scope::Gpu);
                let bits = b.ld_sync(counters.at(2), LoadOrder::Relaxed, Scope::Sys);
                let all = b.mad(sum, 3, greatest);
                let all = b.xor(all, bits);
                b.bar_sync();
                b.st_sync_vector(i.own, [all, i.x, i.y, i.z], StoreOrder::Relaxed, Scope::Gpu);
                let [all, x, y, z] = b.ld_sync_vector(i.own, LoadOrder::Relaxed, Scope::Gpu);
                let rest = b.mad(y, 3, z);
                let rest = b.mad(rest, 3, x);
                b.xor(all, rest)
            },
            |t| {
                let rest = t.y().wrapping_mul(3).wrapping_add(t.z()).wrapping_mul(3).wrapping_add(t.x());
                let sum = t.all().fold(0u32, |sum, other| sum.wrapping_add(other.x()));
                let greatest = t.all().map(|other| other.x()).max().unwrap_or(0);
                sum.wrapping_mul(3).wrapping_add(greatest) ^ t.all().fold(0, |bits, other| bits | other.x()) ^ rest
            },
        ),
        case(
            "atom",
            |b, i| {
                let orders = [Order::Relaxed, Order::Acquire, Order::Release];
                let mut all = b.mov::<U32>(0);
                for (op, order) in [AtomicOp::Add, AtomicOp::Max, AtomicOp::Or].into_iter().zip(orders) {
                    let old = b.atom(op, order, i.own, i.y, Scope::Gpu);
                    all = b.mad(all, 3, old);
                    let old = b.atom(op, Order::AcqRel, i.own, i.z, Scope::Sys);
                    all = b.mad(all, 3, old);
                }
                let old = b.atom_exch(Order::Relaxed, i.own, i.x, Scope::Cta);
                let now = b.atom_exch(Order::AcqRel, i.own, 0, Scope::Gpu);
                all = b.mad(all, 3, old);
                b.mad(all, 3, now)
            },
            |t| {
                let ops: [fn(u32, u32) -> u32; 3] = [u32::wrapping_add, u32::max, |x, y| x | y];
                let (mut value, mut all) = (0u32, 0u32);
                for (op, operand) in ops.into_iter().flat_map(|op| [(op, t.y()), (op, t.z())]) {
                    all = all.wrapping_mul(3).wrapping_add(value);
                    value = op(value, operand);
                }
                all.wrapping_mul(3).wrapping_add(value).wrapping_mul(3).wrapping_add(t.x())
            },
        ),
        case(
            "a message from warp to warp",
            |b, i| {
                let tid = b.tid();
                let other = b.xor(tid, 32);
                let away = b.sub(other, tid);
                let other = b.add(i.thread, away);
                let other = b.byte_index(i.scratch, other, 4 * OWN);
                // A word and a flag each way: by release and acquire, and by fences.
                b.st(i.own, i.x);
                b.st_sync(i.own.at(1), 1u32, StoreOrder::Release, Scope::Gpu);
                b.st(i.own.at(2), i.y);
                b.fence_acq_rel(Scope::Gpu);
                b.st_sync(i.own.at(3), 1u32, StoreOrder::Relaxed, Scope::Gpu);
                b.do_while(|b| {
                    b.nanosleep(20);
                    let flag = b.ld_sync(other.at(1), LoadOrder::Acquire, Scope::Gpu);
                    b.setp_eq(flag, 0)
                });
                let x = b.ld(other, LoadKind::Ordinary);
                b.do_while(|b| {
                    let flag = b.ld_sync(other.at(3), LoadOrder::Relaxed, Scope::Gpu);
                    b.setp_eq(flag, 0)
                });
                b.fence_acq_rel(Scope::Gpu);
                let y = b.ld(other.at(2), LoadKind::Ordinary);
                b.add(x, y)
            },
            |t| {
                let other = t.beside(t.tid() ^ 32);
                other.x().wrapping_add(other.y())
            },
        ),
    ]
}

fn addresses() -> Vec<Case> {
    vec![
        case(
            "pointers",
            |b, i| {
                let first = b.mul(i.thread, 4);
                let at = b.index(i.words, first);
                let address = b.address(at.at(1));
                let second = b.global_ptr::<U32>(address);
                let odd = b.and(i.x, 1);
                let odd = b.setp_eq(odd, 1);
                let chosen = b.select_ptr(second, at, odd);
                b.ld(chosen.at(1), LoadKind::Constant)
            },
            |t| if t.x() & 1 == 1 { t.z() } else { t.y() },
        ),
        case(
            "distances in shared memory",
            |b, i| {
                let words = b.shared::<U32>("distant", 64);
                let own = b.index(words, i.n);
                let [first, second, third] = [words, words.at(3), own].map(|at| b.shared_address(at));
                let (near, far) = (b.sub(second, first), b.sub(third, first));
                b.add::<U32>(near, far)
            },
            |_| 4 * (3 + N),
        ),
        case(
            "a pointer from an address in shared memory",
            |b, i| {
                let words = b.shared::<U32>("addressed", 1024);
                let own = b.index(words, i.thread);
                b.st(own, i.y);
                let address = b.shared_address(own);
                let own = b.shared_ptr::<U32>(address);
                b.ld(own, LoadKind::Ordinary)
            },
            |t| t.y(),
        ),
    ]
}
