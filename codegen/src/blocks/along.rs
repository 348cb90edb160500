//! How many super-blocks a row has, where the launch decides: one of a few numbers that are known while the kernel is built.
//!
//! What follows from the number is chosen among constants. Computed, it would take five divisions one behind another at the
//! begin of each phase: 0.4 us of an H200, in which nothing else happens.

use crate::ptx::{Builder, Size, U32, Val};

/// The super-blocks of a row.
#[derive(Debug, Clone)]
pub(crate) struct Along {
    size: Size,
    /// The numbers that it may be, each once.
    counts: Vec<u32>,
    /// 2^32 over it, rounded up: the upper half of a number's product with it is the quotient. None where it may be 1.
    reciprocal: Option<Size>,
}

impl Along {
    /// One that is known.
    pub(crate) fn constant(count: u32) -> Along {
        Along { size: Size::Const(count), counts: vec![count], reciprocal: None }
    }

    /// `size`, which is one of `counts`.
    #[track_caller]
    pub(crate) fn one_of(b: &mut Builder, size: Size, counts: impl IntoIterator<Item = u32>) -> Along {
        let mut counts: Vec<u32> = counts.into_iter().collect();
        counts.sort_unstable();
        counts.dedup();
        let along = Along { size, counts, reciprocal: None };
        let divides = along.counts.iter().all(|count| *count > 1);
        let reciprocal = divides.then(|| along.choose(b, |count| (1_u64 << u32::BITS).div_ceil(count.into()) as u32));
        Along { reciprocal, ..along }
    }

    pub(crate) const fn size(&self) -> Size {
        self.size
    }

    /// The most that it may be.
    pub(crate) fn most(&self) -> u32 {
        self.counts.iter().copied().max().unwrap_or(0)
    }

    /// What `of` makes of the number.
    #[track_caller]
    pub(crate) fn choose(&self, b: &mut Builder, of: impl Fn(u32) -> u32) -> Size {
        let size = match (self.size, &self.counts[..]) {
            (Size::Const(count), _) | (Size::Reg(_), &[count]) => return Size::Const(of(count)),
            (Size::Reg(size), _) => size,
        };
        let values = self.counts.iter().map(|count| (*count, of(*count)));
        let chosen = values.fold(None, |before, (count, value)| match before {
            None => Some(Size::Const(value)),
            Some(Size::Const(same)) if same == value => before,
            Some(before) => {
                let is = b.setp_eq(size, count);
                Some(Size::Reg(b.selp::<U32>(value, before, is)))
            }
        });
        chosen.unwrap_or(Size::Const(0))
    }

    /// The steps of a loop over a row, or over a part that has one of so many `others`, longest first: those of `steps`, the last of
    /// which is 1, that some row or part has left.
    pub(crate) fn steps<const N: usize>(&self, steps: [u32; N], others: &[u32]) -> Vec<u32> {
        let is_left = |place: usize, step: u32| {
            let before = |count: u32| if place == 0 { count } else { count % steps[place - 1] };
            self.counts.iter().chain(others).any(|count| before(*count) >= step)
        };
        let places = (0..N).filter(|place| is_left(*place, steps[*place]));
        places.map(|place| steps[place]).collect()
    }

    /// The row of a super-block, by its number among those of all rows, which is below 2^32 over those of a row.
    #[track_caller]
    pub(crate) fn row(&self, b: &mut Builder, number: Val<U32>) -> Val<U32> {
        match self.reciprocal {
            None => b.div::<U32>(number, self.size),
            Some(reciprocal) => b.mad_hi(number, reciprocal, 0),
        }
    }

    /// A super-block's number within its row.
    #[track_caller]
    pub(crate) fn within(&self, b: &mut Builder, number: Val<U32>) -> Val<U32> {
        let row = self.row(b, number);
        let before = b.mul::<U32>(row, self.size);
        b.sub::<U32>(number, before)
    }
}
