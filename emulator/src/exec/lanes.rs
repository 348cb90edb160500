//! Values of 32 lanes, and the loops over them that the compiler vectorises.

/// 32 lanes of 32 bits; two neighbouring slots hold 32 lanes of 64 bits.
#[repr(C, align(64))]
#[derive(Debug, Clone, Copy)]
pub(crate) struct Slot(pub(crate) [u32; 32]);

/// Lanes of one step through an array: a vector register's worth.
const STEP: usize = 8;

/// `d[i] = f(a[i])` for the lanes in `mask`.
///
/// # Safety
/// All pointers are valid for 32 elements; `d` equals a source or is apart from it.
#[inline(always)]
pub(crate) unsafe fn map1<A: Copy, D: Copy>(d: *mut D, a: *const A, mask: u32, f: impl Fn(A) -> D) {
    for k in 0..32 / STEP {
        // SAFETY: 8 elements from 8 * k on, k < 4.
        unsafe {
            let x = *a.add(STEP * k).cast::<[A; STEP]>();
            let out = d.add(STEP * k).cast::<[D; STEP]>();
            let y: [D; STEP] = std::array::from_fn(|i| f(x[i]));
            store(out, y, mask >> (STEP * k));
        }
    }
}

/// `d[i] = f(a[i], b[i])` for the lanes in `mask`.
///
/// # Safety
/// As `map1`.
#[inline(always)]
pub(crate) unsafe fn map2<A: Copy, B: Copy, D: Copy>(
    d: *mut D,
    a: *const A,
    b: *const B,
    mask: u32,
    f: impl Fn(A, B) -> D,
) {
    for k in 0..32 / STEP {
        // SAFETY: 8 elements from 8 * k on, k < 4.
        unsafe {
            let x = *a.add(STEP * k).cast::<[A; STEP]>();
            let y = *b.add(STEP * k).cast::<[B; STEP]>();
            let r: [D; STEP] = std::array::from_fn(|i| f(x[i], y[i]));
            store(d.add(STEP * k).cast(), r, mask >> (STEP * k));
        }
    }
}

/// `d[i] = f(a[i], b[i], c[i])` for the lanes in `mask`.
///
/// # Safety
/// As `map1`.
#[inline(always)]
pub(crate) unsafe fn map3<A: Copy, B: Copy, C: Copy, D: Copy>(
    d: *mut D,
    a: *const A,
    b: *const B,
    c: *const C,
    mask: u32,
    f: impl Fn(A, B, C) -> D,
) {
    for k in 0..32 / STEP {
        // SAFETY: 8 elements from 8 * k on, k < 4.
        unsafe {
            let x = *a.add(STEP * k).cast::<[A; STEP]>();
            let y = *b.add(STEP * k).cast::<[B; STEP]>();
            let z = *c.add(STEP * k).cast::<[C; STEP]>();
            let r: [D; STEP] = std::array::from_fn(|i| f(x[i], y[i], z[i]));
            store(d.add(STEP * k).cast(), r, mask >> (STEP * k));
        }
    }
}

/// # Safety
/// `out` is valid.
#[inline(always)]
unsafe fn store<D: Copy>(out: *mut [D; STEP], value: [D; STEP], mask: u32) {
    if mask & 0xff == 0xff {
        // SAFETY: the caller's.
        unsafe { *out = value }
    } else {
        for (i, v) in value.into_iter().enumerate() {
            if mask >> i & 1 == 1 {
                // SAFETY: the caller's.
                unsafe { (*out)[i] = v }
            }
        }
    }
}

/// The lanes of `mask` for which `f(a, b)` holds.
///
/// # Safety
/// As `map1`.
#[inline(always)]
pub(crate) unsafe fn test2<A: Copy>(a: *const A, b: *const A, f: impl Fn(A, A) -> bool) -> u32 {
    let mut m = 0u32;
    for k in 0..32 / STEP {
        // SAFETY: 8 elements from 8 * k on, k < 4.
        unsafe {
            let x = *a.add(STEP * k).cast::<[A; STEP]>();
            let y = *b.add(STEP * k).cast::<[A; STEP]>();
            let bits: [u32; STEP] = std::array::from_fn(|i| u32::from(f(x[i], y[i])) << i);
            m |= bits.into_iter().fold(0, |a, b| a | b) << (STEP * k);
        }
    }
    m
}

/// The lanes of a mask, lowest first.
pub(crate) struct Lanes(pub(crate) u32);

impl Iterator for Lanes {
    type Item = usize;
    #[inline(always)]
    fn next(&mut self) -> Option<usize> {
        if self.0 == 0 {
            return None;
        }
        let i = self.0.trailing_zeros() as usize;
        self.0 &= self.0 - 1;
        Some(i)
    }
}
