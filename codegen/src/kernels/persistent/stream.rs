//! The producer warp: fills the ring with the block's weights, phase after phase, layer after layer, token after token.

use super::Decoder;
use crate::blocks::company;
use crate::blocks::ring::{Producer, Ring};
use crate::kernels::phase::Phase;
use crate::ptx::{Builder, U32, Val};
use kiln_shape::table::{LAYER_SLOTS, MODEL_SLOTS};

impl Decoder<'_> {
    /// The weights of one token after another until the consumers leave: of its layers, which are the same for every token,
    /// and, where its item wants it, of the head.
    pub(super) fn produce(&self, b: &mut Builder, ring: Ring) {
        let (producer, products) = (Producer::new(b, ring, self.barrier.limit()), self.kernel.products());
        let of_layers = b.mul::<U32>(self.layers, 4);
        // A step's phase, and its layer's first entry in the table.
        let place = |b: &mut Builder, at: Val<U32>| {
            let (layer, phase) = (b.shr::<U32>(at, 2), b.and::<U32>(at, 3));
            let is_head = b.setp_eq(at, of_layers);
            let phase = b.selp::<U32>(Phase::Head as u32, phase, is_head);
            (phase, b.mad::<U32>(layer, LAYER_SLOTS, MODEL_SLOTS))
        };
        let step = b.var::<U32>(0);
        // The rows of a step are asked for a step ahead: from memory they come behind weights.
        let zero = b.mov::<U32>(0);
        let (first, end) = self.share(b, zero);
        let rows = [first, end].map(|row| b.var::<U32>(row));
        b.do_while(|b| {
            let at = b.get(step);
            let is_head = b.setp_eq(at, of_layers);
            let fills = b.var::<U32>(1);
            b.if_(is_head, |b| {
                let follows = producer.head_follows(b);
                let follows = b.selp::<U32>(1, 0, follows);
                b.set(fills, follows);
            });
            let fills = b.setp_ne(fills, 0);
            let next = b.add::<U32>(at, 1);
            let following = b.selp::<U32>(0, next, is_head);
            let [first, end] = rows.map(|row| b.get(row));
            let ahead = self.share(b, following);
            b.set(rows[0], ahead.0);
            b.set(rows[1], ahead.1);
            b.if_(fills, |b| {
                let (phase, layer) = place(b, at);
                let several = company::are_several(b, self.columns.limit());
                let rows = ((first, end), several);
                products.fill(b, &producer, self.table, [phase, layer, next], rows, |b, next| {
                    let at = b.sub::<U32>(next, 1);
                    let (phase, layer) = place(b, at);
                    self.ask_for_vectors(b, phase, layer);
                });
            });
            b.set(step, following);
            producer.stays(b)
        });
        producer.drain(b);
    }
}
