//! Products and copies of tiles on every target: where one lacks an instruction, the same from those that it has.

use crate::ptx::{Bits32, Builder, F16, F32, Global, Integer, LoadKind, S32, Shared, Size, U8, U32, Val};

/// Whether copies to shared memory need not be waited for: `cp.async`, from sm_80 on.
pub(crate) fn copies_run_on(b: &mut Builder) -> bool {
    b.target().sm() >= 80
}

/// [`Builder::mma_halves_k16`], which sm_75 does in two halves.
pub(crate) fn halves_k16(b: &mut Builder, a: [Val<U32>; 4], k: [Val<U32>; 2], c: [Val<F32>; 4]) -> [Val<F32>; 4] {
    if b.target().sm() >= 80 {
        return b.mma_halves_k16(a, k, c);
    }
    let half = b.mma_halves_k8([a[0], a[1]], k[0], c);
    b.mma_halves_k8([a[2], a[3]], k[1], half)
}

/// [`Builder::mma_bytes_k32`], which sm_75 does in two halves.
pub(crate) fn bytes_k32<T: Bits32 + Integer>(
    b: &mut Builder,
    a: [Val<U32>; 4],
    k: [Val<U32>; 2],
    c: [Val<S32>; 4],
) -> [Val<S32>; 4] {
    if b.target().sm() >= 80 {
        return b.mma_bytes_k32::<T>(a, k, c);
    }
    let half = bytes_k16::<T>(b, [a[0], a[1]], k[0], c);
    bytes_k16::<T>(b, [a[2], a[3]], k[1], half)
}

/// [`Builder::mma_bytes_k16`], which sm_75 does by eights of rows.
pub(crate) fn bytes_k16<T: Bits32 + Integer>(
    b: &mut Builder,
    a: [Val<U32>; 2],
    k: Val<U32>,
    c: [Val<S32>; 4],
) -> [Val<S32>; 4] {
    if b.target().sm() >= 80 {
        return b.mma_bytes_k16::<T>(a, k, c);
    }
    let [first, second] = b.mma_bytes_of_eight_rows::<T>(a[0], k, [c[0], c[1]]);
    let [third, fourth] = b.mma_bytes_of_eight_rows::<T>(a[1], k, [c[2], c[3]]);
    [first, second, third, fourth]
}

/// Two numbers as halves of a word.
pub(crate) fn halves(b: &mut Builder, low: Val<F32>, high: Val<F32>) -> Val<U32> {
    if b.target().sm() >= 80 {
        return b.cvt_f16x2(low, high);
    }
    let (low, high) = (b.cvt::<F16, F32>(low), b.cvt::<F16, F32>(high));
    b.pack(low, high)
}

/// The row that two lanes, the two of number `two`, copy every second piece of, where a row's record stands an odd number of
/// pieces behind the one before: of each eight rows the even ones come first, so that eight lanes meet in no bank.
pub(crate) fn row_of_two(b: &mut Builder, two: Val<U32>) -> Val<U32> {
    let (odd, even) = (b.bfe::<U32>(two, 2, 1), b.and::<U32>(two, 3));
    let (eight, inside) = (b.and::<U32>(two, !7), b.mad::<U32>(even, 2, odd));
    b.add::<U32>(eight, inside)
}

/// Copies 16 bytes, or zeros where `bytes` is 0. What a target does not copy meanwhile is in shared memory behind it.
pub(crate) fn copy<D>(b: &mut Builder, to: Shared<D>, from: Global<U8>, bytes: Size) {
    if copies_run_on(b) {
        return b.cp_async(to, from, bytes);
    }
    let (to, from) = (to.cast::<U32>(), from.cast::<U32>());
    let Size::Reg(bytes) = bytes else {
        let words: [Val<U32>; 4] = b.ld_vector(from, LoadKind::Constant);
        return b.st_vector(to, words);
    };
    let words = [(); 4].map(|()| b.var::<U32>(0));
    let reads = b.setp_ne(bytes, 0);
    b.if_(reads, |b| {
        let read: [Val<U32>; 4] = b.ld_vector(from, LoadKind::Constant);
        words.iter().zip(read).for_each(|(word, read)| b.set(*word, read));
    });
    let words = words.map(|word| b.get(word));
    b.st_vector(to, words);
}

/// Makes a group of the thread's copies since the last one, where they run on.
pub(crate) fn commit(b: &mut Builder) {
    if copies_run_on(b) {
        b.cp_async_commit_group();
    }
}
