//! Values of 32 lanes, and the loops over them that the compiler vectorises.

/// 32 lanes of 32 bits; two neighbouring slots hold 32 lanes of 64 bits.
#[repr(C, align(64))]
#[derive(Debug, Clone, Copy)]
pub(crate) struct Slot(pub(crate) [u32; 32]);

const _: () = assert!(size_of::<Slot>() == 128);

/// Writes `d[i] = f(i)` for the lanes in `mask`. All values are computed before the first is written, in a loop that is long
/// enough for the compiler to vectorise it rather than to unroll it.
///
/// # Safety
/// `d` is valid for 32 elements.
#[inline(always)]
pub(crate) unsafe fn map<D: Copy + Default>(d: *mut D, mask: u32, f: impl Fn(usize) -> D) {
    let mut values = [D::default(); 32];
    for (i, v) in values.iter_mut().enumerate() {
        *v = f(i);
    }
    // SAFETY: the caller's.
    let out = unsafe { &mut *d.cast::<[D; 32]>() };
    if mask == u32::MAX {
        *out = values;
    } else {
        for (i, v) in values.into_iter().enumerate() {
            if mask >> i & 1 == 1 {
                out[i] = v;
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

/// The lanes of a mask that satisfy `f`, as a mask.
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
