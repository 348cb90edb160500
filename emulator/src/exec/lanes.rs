//! Values of 32 lanes, and the loops over them that the compiler vectorises.

/// 32 lanes of 32 bits; two neighbouring slots hold 32 lanes of 64 bits.
#[repr(C, align(64))]
#[derive(Debug, Clone, Copy)]
pub(crate) struct Slot(pub(crate) [u32; 32]);

const _: () = assert!(size_of::<Slot>() == 128);

/// Lanes of one step through an array: a vector register's worth.
const STEP: usize = 8;

/// `d[i] = f(a[i], b[i], c[i], e[i])` for the lanes in `mask`. Sources that `f` ignores cost nothing.
///
/// # Safety
/// All pointers are valid for 32 elements; `d` equals a source or is apart from it.
#[inline(always)]
pub(crate) unsafe fn map<A: Copy, B: Copy, C: Copy, E: Copy, D: Copy>(
    d: *mut D,
    (a, b, c, e): (*const A, *const B, *const C, *const E),
    mask: u32,
    f: impl Fn(A, B, C, E) -> D,
) {
    for k in 0..32 / STEP {
        // SAFETY: 8 elements from 8 * k on, k < 4.
        unsafe {
            let x = *a.add(STEP * k).cast::<[A; STEP]>();
            let y = *b.add(STEP * k).cast::<[B; STEP]>();
            let z = *c.add(STEP * k).cast::<[C; STEP]>();
            let v = *e.add(STEP * k).cast::<[E; STEP]>();
            let r: [D; STEP] = std::array::from_fn(|i| f(x[i], y[i], z[i], v[i]));
            let out = d.add(STEP * k).cast::<[D; STEP]>();
            let mask = mask >> (STEP * k);
            if mask & 0xff == 0xff {
                *out = r;
            } else {
                for (i, v) in r.into_iter().enumerate() {
                    if mask >> i & 1 == 1 {
                        (*out)[i] = v;
                    }
                }
            }
        }
    }
}

/// The lanes for which `f(a, b)` holds.
///
/// # Safety
/// As `map`.
#[inline(always)]
pub(crate) unsafe fn test<A: Copy>(a: *const A, b: *const A, f: impl Fn(A, A) -> bool) -> u32 {
    // SAFETY: 32 elements each.
    (0..32).fold(0, |m, i| m | u32::from(unsafe { f(*a.add(i), *b.add(i)) }) << i)
}

/// `d[i] = a[i]` where `p` has a bit, else `b[i]`, for the lanes in `mask`.
///
/// # Safety
/// As `map`.
#[inline(always)]
pub(crate) unsafe fn select<T: Copy>(d: *mut T, a: *const T, b: *const T, p: u32, mask: u32) {
    for i in 0..32 {
        // SAFETY: 32 elements each.
        unsafe {
            let v = if p >> i & 1 == 1 { *a.add(i) } else { *b.add(i) };
            if mask >> i & 1 == 1 {
                *d.add(i) = v;
            }
        }
    }
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

/// The lanes of a mask for which something holds.
#[inline(always)]
pub(crate) fn lanes_where(m: u32, f: impl Fn(usize) -> bool) -> u32 {
    Lanes(m).filter(|&l| f(l)).fold(0, |found, l| found | 1 << l)
}

/// Lanes with the same key, group by group, in the order of their lowest lanes.
pub(crate) fn groups<K: PartialEq>(mut left: u32, key: impl Fn(usize) -> K) -> impl Iterator<Item = (K, u32)> {
    std::iter::from_fn(move || {
        let first = key(Lanes(left).next()?);
        let group = lanes_where(left, |l| key(l) == first);
        left &= !group;
        Some((first, group))
    })
}
