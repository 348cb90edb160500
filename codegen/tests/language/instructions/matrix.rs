//! Matrix instructions, and copies that are not waited for.

use super::{BLOCK, Case, In, Thread, case};
use kiln_codegen::ptx::{Builder, LoadKind, S32, Shared, U32, U64, Val};

pub(super) fn cases() -> Vec<Case> {
    vec![
        case(
            "mma of 32 bytes",
            |b, i| {
                let [a, columns, c] = fragments(b, [i.x, i.y, i.z]);
                let c = c.map(|word| b.mov_bits(word));
                let signed = b.mma_bytes_k32::<S32>(a, [columns[0], columns[1]], c);
                let unsigned = b.mma_bytes_k32::<U32>(a, [columns[2], columns[3]], signed);
                folded(b, unsigned)
            },
            |t| {
                let signed = product(t, 32, |byte| i32::from(byte as i8), [0, 1], sums(t));
                expected(product(t, 32, i32::from, [2, 3], signed))
            },
        ),
        case(
            "mma of 16 bytes",
            |b, i| {
                let [a, columns, c] = fragments(b, [i.x, i.y, i.z]);
                let c = c.map(|word| b.mov_bits(word));
                let signed = b.mma_bytes_k16::<S32>([a[0], a[1]], columns[0], c);
                let unsigned = b.mma_bytes_k16::<U32>([a[0], a[1]], columns[2], signed);
                folded(b, unsigned)
            },
            |t| {
                let signed = product(t, 16, |byte| i32::from(byte as i8), [0, 0], sums(t));
                expected(product(t, 16, i32::from, [2, 2], signed))
            },
        ),
        case(
            "mma of 16 bytes of eight rows",
            |b, i| {
                let [a, columns, c] = fragments(b, [i.x, i.y, i.z]);
                let c = c.map(|word| b.mov_bits(word));
                let [first, second] = b.mma_bytes_of_eight_rows::<S32>(a[0], columns[0], [c[0], c[1]]);
                let [third, fourth] = b.mma_bytes_of_eight_rows::<S32>(a[1], columns[0], [c[2], c[3]]);
                let [first, second] = b.mma_bytes_of_eight_rows::<U32>(a[0], columns[2], [first, second]);
                let [third, fourth] = b.mma_bytes_of_eight_rows::<U32>(a[1], columns[2], [third, fourth]);
                folded(b, [first, second, third, fourth])
            },
            |t| {
                let signed = product(t, 16, |byte| i32::from(byte as i8), [0, 0], sums(t));
                expected(product(t, 16, i32::from, [2, 2], signed))
            },
        ),
        case(
            "products of a warpgroup",
            |b, i| {
                let [a, columns, _] = fragments(b, [i.x, i.y, i.z]);
                // Of each warp eight columns, 16 bytes of each and then 16 more.
                let all = b.shared::<U32>("columns", 2 * BLOCK);
                let (warp, lane) = (b.warp_id(), b.lane());
                let own = b.byte_index(all, warp, 256);
                let to = b.index(own, lane);
                b.st(to, columns[0]);
                b.st(to.at(32), columns[1]);
                b.fence_proxy_async();
                b.bar_sync();
                let address = b.shared_address(own);
                let address = b.shr::<U32>(address, 4);
                let leading = b.mad::<U32>(128 / 16, 1 << 16, address);
                let descriptor = b.pack64(leading, 256 / 16);
                let (never, always) = (b.setp_lt(lane, 0), b.setp_ge(lane, 0));
                let sums = b.wgmma_sums(1);
                b.wgmma_bytes(&[(&sums, a)], descriptor, never);
                b.wgmma_bytes(&[(&sums, a)], descriptor, always);
                b.wgmma_wait_group(1);
                b.wgmma_wait_group(0);
                let sums = sums[0].map(|sum| b.get(sum));
                folded(b, sums)
            },
            |t| {
                let once = product(t, 32, |byte| i32::from(byte as i8), [0, 1], [0; 4]);
                expected(once.map(|sum| 2 * sum))
            },
        )
        .of_own(90),
        case(
            "ldmatrix",
            |b, i| matrices(b, i, Builder::ldmatrix),
            |t| {
                let word = |matrix: u32| {
                    let row = t.beside(t.tid() / 32 * 32 + 8 * matrix + t.tid() % 32 / 4);
                    [row.x(), row.y(), row.z(), row.0][t.tid() as usize % 4]
                };
                (1..4).fold(word(0), |sum, matrix| sum.wrapping_mul(3).wrapping_add(word(matrix)))
            },
        ),
        case(
            "ldmatrix.trans",
            |b, i| matrices(b, i, Builder::ldmatrix_transposed),
            |t| {
                let half = |row: u32, number: u32| {
                    let row = t.beside(t.tid() / 32 * 32 + row);
                    [row.x(), row.y(), row.z(), row.0][number as usize / 2] >> (number % 2 * 16) & 0xffff
                };
                let word = |matrix: u32| {
                    let (row, number) = (8 * matrix + 2 * (t.tid() % 4), t.tid() % 32 / 4);
                    half(row, number) | half(row + 1, number) << 16
                };
                (1..4).fold(word(0), |sum, matrix| sum.wrapping_mul(3).wrapping_add(word(matrix)))
            },
        ),
        case(
            "cp.async",
            |b, i| {
                let copies = b.shared::<U32>("copies", 8 * BLOCK);
                let (tid, first) = (b.tid(), b.mul(i.thread, 4));
                let from = b.index(i.words, first);
                let (early, late) = (b.byte_index(copies, tid, 16), b.byte_index(copies.at(4 * BLOCK), tid, 16));
                b.cp_async(early, from, 16);
                b.cp_async_commit_group();
                let odd = b.and(tid, 1);
                let some = b.mul::<U32>(odd, 8);
                b.cp_async(late, from, some);
                b.cp_async_commit_group();
                b.cp_async_wait_group(1);
                let own = b.ld(early, LoadKind::Ordinary);
                b.cp_async_wait_group(0);
                b.bar_sync();
                let other = b.xor(tid, 1);
                let other = b.byte_index(copies.at(4 * BLOCK), other, 16);
                let words: [Val<U32>; 4] = b.ld_vector(other, LoadKind::Ordinary);
                let sum = words.into_iter().fold(own, |sum, word| b.mad::<U32>(sum, 3, word));
                b.add(sum, i.y)
            },
            |t| {
                let other = t.beside(t.tid() ^ 1);
                let read = if other.tid() % 2 == 1 { [other.x(), other.y(), 0, 0] } else { [0; 4] };
                let sum = read.into_iter().fold(t.x(), |sum, word| sum.wrapping_mul(3).wrapping_add(word));
                sum.wrapping_add(t.y())
            },
        ),
        case(
            "cp.async that arrives at an mbarrier",
            |b, i| {
                let copies = b.shared::<U32>("copies", 4 * BLOCK);
                let full = b.shared::<U64>("full", 1);
                let (tid, first) = (b.tid(), b.mul(i.thread, 4));
                let leads = b.setp_eq(tid, 0);
                b.if_(leads, |b| b.mbarrier_init(full, BLOCK));
                b.bar_sync(); // the mbarrier is initialised
                let (from, to) = (b.index(i.words, first), b.byte_index(copies, tid, 16));
                b.cp_async(to, from, 16);
                b.cp_async_mbarrier_arrive_noinc(full);
                b.do_while(|b| {
                    let over = b.mbarrier_test_wait(full, 0);
                    b.not_pred(over)
                });
                let other = b.xor(tid, 37);
                let other = b.byte_index(copies, other, 16);
                let words: [Val<U32>; 4] = b.ld_vector(other, LoadKind::Ordinary);
                b.mad::<U32>(words[0], 3, words[2])
            },
            |t| {
                let other = t.beside(t.tid() ^ 37);
                other.x().wrapping_mul(3).wrapping_add(other.z())
            },
        ),
    ]
}

/// Four words of A, of B and of C, each made from one word of the thread.
fn fragments(b: &mut Builder, words: [Val<U32>; 3]) -> [[Val<U32>; 4]; 3] {
    words.map(|word| std::array::from_fn(|i| if i == 0 { word } else { b.mul::<U32>(word, FACTORS[i]) }))
}

const FACTORS: [u32; 4] = [1, 0x9e37_79b9, 0x85eb_ca6b, 0xc2b2_ae35];

fn fragment(word: u32) -> [u32; 4] {
    FACTORS.map(|factor| word.wrapping_mul(factor))
}

fn sums(t: Thread) -> [i32; 4] {
    fragment(t.z()).map(|word| word as i32)
}

/// The thread's part of `A B + C`, its columns from those words of B.
fn product(t: Thread, k: u32, a: fn(u8) -> i32, columns: [usize; 2], c: [i32; 4]) -> [i32; 4] {
    let (warp, lane) = (t.tid() / 32 * 32, t.tid() % 32);
    let byte = |words: [u32; 4], word: usize, at: u32| words[word].to_le_bytes()[at as usize % 4];
    std::array::from_fn(|i| {
        let (row, column) = (lane / 4 + 8 * (i as u32 / 2), 2 * (lane % 4) + i as u32 % 2);
        (0..k).fold(c[i], |sum, at| {
            let (half, holder) = (at as usize / 16, at % 16 / 4);
            let of_row = t.beside(warp + row % 8 * 4 + holder);
            let of_column = t.beside(warp + column * 4 + holder);
            let left = a(byte(fragment(of_row.x()), 2 * half + row as usize / 8, at));
            let right = i32::from(byte(fragment(of_column.y()), columns[half], at) as i8);
            sum.wrapping_add(left * right)
        })
    })
}

/// Four matrices of the threads' words, a row of 16 bytes each, loaded by `load`.
fn matrices(b: &mut Builder, i: In, load: impl FnOnce(&mut Builder, Shared<U32>) -> [Val<U32>; 4]) -> Val<U32> {
    let rows = b.shared::<U32>("rows", 4 * BLOCK);
    let tid = b.tid();
    let own = b.byte_index(rows, tid, 16);
    b.st_vector(own, [i.x, i.y, i.z, i.thread]);
    b.bar_sync();
    let words = load(b, own);
    let sum = b.mad::<U32>(words[0], 3, words[1]);
    let sum = b.mad::<U32>(sum, 3, words[2]);
    b.mad::<U32>(sum, 3, words[3])
}

fn folded(b: &mut Builder, values: [Val<S32>; 4]) -> Val<U32> {
    let words = values.map(|value| b.mov_bits::<U32, S32>(value));
    words.into_iter().reduce(|sum, word| b.mad::<U32>(sum, 3, word)).expect("four words")
}

fn expected(values: [i32; 4]) -> u32 {
    values.into_iter().fold(0, |sum, value| sum.wrapping_mul(3).wrapping_add(value as u32))
}
