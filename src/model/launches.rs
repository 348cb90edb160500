//! The launches of a model's kernels, whose sizes are baked.

use crate::launch::{Arguments, In, Launch, Out, launch};
use crate::shape::ring::Depth;
use crate::shape::sliced::Cut;
use crate::shape::{NumberType, Param};

launch! {
    /// `embedding_row`: the embedding of the token at the state's position.
    pub(crate) struct EmbeddingRow<'a> {
        table: In<'a, u8>,
        tokens: In<'a, u32>,
        capacity: u32,
        vocab: u32,
        state: Out<'a, u32>,
        x: Out<'a, f32>,
    }
}

launch! {
    /// The products of a layer and of the head; `phase` says which, from 0 on in the order of use.
    pub(crate) struct Phase<'a> {
        table: In<'a, u8>,
        layer: u32,
        x: In<'a, f32>,
        y: Out<'a, f32>,
        eps: f32,
        vocab: u32,
        phase: u32,
    }
}

launch! {
    /// `quantise`: columns rounded to bytes, normalised before where `norm` is the entry of a gamma.
    pub(crate) struct Quantise<'a> {
        table: In<'a, u8>,
        norm: u32,
        x: In<'a, f32>,
        k: u32,
        eps: f32,
        columns: u32,
        wanted: u32,
        to: Out<'a, u8>,
        inverse: Out<'a, f32>,
    }
}

launch! {
    /// `gemm_8`, `gemm_16`, `gemm_sliced`, `gemm_tile`, `gemm_tile_128` and `gemm_warpgroups`: a phase of a layer for several
    /// columns. All but the first two take the head too.
    pub(crate) struct Gemm<'a> {
        table: In<'a, u8>,
        layer: u32,
        phase: u32,
        of_256: In<'a, u8>,
        of_32: In<'a, u8>,
        maps: In<'a, u8>,
        inverse: In<'a, f32>,
        columns: u32,
        y: Out<'a, f32>,
        vocab: u32,
        next_types: u32,
        next_256: Out<'a, u8>,
        next_32: Out<'a, u8>,
        next_norm: u32,
        eps: f32,
        squares: Out<'a, f32>,
        next_inverse: Out<'a, f32>,
        arrivals: Out<'a, u32>,
        begun: Out<'a, f32>,
        begun_words: Out<'a, u32>,
    }
}

launch! {
    /// `gemm_floats`: a phase of a layer, or the head, for several columns and weights that are floats.
    pub(crate) struct GemmFloats<'a> {
        table: In<'a, u8>,
        layer: u32,
        phase: u32,
        x: In<'a, f32>,
        columns: u32,
        y: Out<'a, f32>,
        eps: f32,
        vocab: u32,
    }
}

/// What `gemm_sliced` takes besides what other products of several columns do: how it cuts tiles and shared memory.
impl Launch for Cut {
    type At<'a> = Cut;

    const COUNT: usize = 3;

    fn signature() -> impl Iterator<Item = Param> {
        ["row_warps", "slices", "stages"].into_iter().map(|name| Param::value(name, NumberType::U32))
    }

    fn add<'s>(&'s self, to: &mut Arguments<'s>) {
        to.push("row_warps", &self.row_warps);
        to.push("slices", &self.slices);
        to.push("stages", &self.stages);
    }
}

launch! {
    /// `qk_norm_rope_kv_write`.
    pub(crate) struct QkNormRopeKvWrite<'a> {
        table: In<'a, u8>,
        layer: u32,
        qkv: Out<'a, f32>,
        cos: In<'a, f32>,
        sin: In<'a, f32>,
        eps: f32,
        chunks: In<'a, u64>,
        capacity: u32,
        state: Out<'a, u32>,
    }
}

launch! {
    /// `attention`: the grid is that of the units of the cache, or larger.
    pub(crate) struct Attention<'a> {
        q: In<'a, f32>,
        chunks: In<'a, u64>,
        layer: u32,
        capacity: u32,
        out: Out<'a, f32>,
        partials: Out<'a, f32>,
        max_chunks: u32,
        arrivals: Out<'a, u32>,
        length_at: In<'a, u32>,
        error: Out<'a, u32>,
    }
}

launch! {
    /// `attention_batch`: blocks for each KV head, as `BatchCut` deals positions.
    pub(crate) struct AttentionBatch<'a> {
        q: In<'a, f32>,
        chunks: In<'a, u64>,
        layer: u32,
        capacity: u32,
        out: Out<'a, f32>,
        columns: u32,
        length_at: In<'a, u32>,
        error: Out<'a, u32>,
        next_types: u32,
        next_256: Out<'a, u8>,
        next_32: Out<'a, u8>,
    }
}

launch! {
    /// `argmax`: the greatest logit's id, put behind the state's position.
    pub(crate) struct Argmax<'a> {
        logits: In<'a, f32>,
        vocab: u32,
        tokens: Out<'a, u32>,
        capacity: u32,
        state: Out<'a, u32>,
    }
}

launch! {
    /// `choose`: a step of the choice by the chain of `Sampling`; the last puts the id behind the state's position.
    pub(crate) struct Choose<'a> {
        logits: Out<'a, f32>,
        vocab: u32,
        tokens: Out<'a, u32>,
        capacity: u32,
        state: Out<'a, u32>,
        choice: In<'a, u32>,
        memory: Out<'a, u32>,
        step: u32,
    }
}

launch! {
    /// `advance`: on to the next position.
    pub(crate) struct Advance<'a> {
        state: Out<'a, u32>,
    }
}

launch! {
    /// `persistent_decoder`. The limits are in nanoseconds; `kv` is the bytes of an element of the cache.
    pub(crate) struct PersistentDecoder<'a> {
        table: In<'a, u8>,
        shares: In<'a, u32>,
        x: Out<'a, f32>,
        embeddings: Out<'a, f32>,
        qkv: Out<'a, f32>,
        attention: Out<'a, f32>,
        ffn: Out<'a, f32>,
        choice: Out<'a, u32>,
        counters: Out<'a, u32>,
        state: Out<'a, u32>,
        mailbox: In<'a, u32>,
        report: Out<'a, u32>,
        rings: Out<'a, u64>,
        layers: u32,
        vocab: u32,
        eps: f32,
        launch: u32,
        idle_limit: u64,
        turn_limit: u64,
        run_limit: u64,
        wait_limit: u64,
        kv: u32,
    }
}

launch! {
    /// What the persistent decoders that trace take besides.
    pub(crate) struct Trace<'a> {
        trace: Out<'a, u64>,
        trace_capacity: u32,
    }
}

launch! {
    /// What a decoder takes besides whose blocks hand vectors to each other: the words of [`kiln_shape::exchange`], those of parts
    /// of attention with a layer's bytes, device memory for the second planes of vectors with a block's bytes, and the columns that a
    /// pass may have.
    pub(crate) struct Exchange<'a> {
        exchange: Out<'a, f32>,
        parts: Out<'a, f32>,
        parts_each: u32,
        second_planes: Out<'a, u32>,
        second_planes_each: u32,
        columns: u32,
    }
}

/// What a decoder takes besides whose weights come through a ring: the ring's depth.
impl Launch for Depth {
    type At<'a> = Depth;

    const COUNT: usize = 2;

    fn signature() -> impl Iterator<Item = Param> {
        ["ring_units", "ring_records"].into_iter().map(|name| Param::value(name, NumberType::U32))
    }

    fn add<'s>(&'s self, to: &mut Arguments<'s>) {
        to.push("ring_units", &self.units);
        to.push("ring_records", &self.records);
    }
}
