//! Parts of attention on their way between blocks: what each unit of a KV head is before all are put together.
//!
//! Blocks that have units of a KV head put a share of the head's results together each, for which they have the parts of all
//! units through the exchange ([`super::exchange`]): two trips to the L2 cache and no fence for the first eight, and another
//! trip for each eight behind them. A block hands over the parts of all its units of a column before it waits for others: so
//! whoever waits, nobody waits for it.

use super::exchange::{self, Emptiers, Exchange, Slots};
use super::running::Part;
use crate::ptx::{Builder, F32, Global, Size, U32, Val};

/// The parts of a column's layer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Parts {
    pub(crate) exchange: Exchange,
    /// Of each turn `[units, heads, row]` words: a row has `head_dim` sums, then the maximum and the sum of exponentials.
    pub(crate) slots: Slots,
    /// Query heads of the model, and words of a row.
    pub(crate) heads: u32,
    pub(crate) row: u32,
}

impl Parts {
    /// A unit's row of a query head, among the layer's words.
    fn row_of(&self, b: &mut Builder, layer: Global<F32>, unit: Val<U32>, head: Val<U32>) -> Global<F32> {
        let row = b.mad::<U32>(unit, self.heads, head);
        b.byte_index(layer, row, 4 * self.row)
    }

    /// The layer's words.
    #[track_caller]
    pub(crate) fn of_layer(&self, b: &mut Builder) -> Global<F32> {
        self.slots.own(b)
    }

    /// Hands over a thread's elements of a unit, from dimension `dim` of a query head on; with the first ones what is said
    /// once a row.
    #[track_caller]
    pub(crate) fn store(&self, b: &mut Builder, unit: Val<U32>, (head, dim): (Val<U32>, Val<U32>), part: &Part) {
        let layer = self.of_layer(b);
        let row = self.row_of(b, layer, unit, head);
        let to = b.index(row, dim);
        exchange::store_four(b, to, part.values);
        let leads = b.setp_eq(dim, 0);
        b.if_(leads, |b| {
            let zero = b.mov::<F32>(0.0);
            exchange::store_four(b, row.at(self.row - 4), [part.max, part.sum, zero, zero]);
        });
    }

    /// Waits for the parts of units, by a whole warp, from dimension `dim` of a query head on.
    #[track_caller]
    pub(crate) fn load(
        &self,
        b: &mut Builder,
        layer: Global<F32>,
        units: &[Val<U32>],
        (head, dim): (Val<U32>, Val<U32>),
    ) -> Vec<Part> {
        let mut at = Vec::new();
        for unit in units {
            let row = self.row_of(b, layer, *unit, head);
            at.extend([b.index(row, dim), row.at(self.row - 4)]);
        }
        let found = self.exchange.load_fours(b, &at);
        let parts = found.as_chunks::<2>().0;
        parts.iter().map(|[values, [max, sum, ..]]| Part { max: *max, sum: *sum, values: *values }).collect()
    }

    /// Empties the words of so many units, by their emptiers. All blocks must have read them.
    #[track_caller]
    pub(crate) fn empty(&self, b: &mut Builder, units: Val<U32>, emptiers: &Emptiers) {
        let layer = self.of_layer(b);
        let words = b.mul::<U32>(units, self.heads * self.row);
        exchange::empty(b, layer, Size::Reg(words), emptiers);
    }
}
