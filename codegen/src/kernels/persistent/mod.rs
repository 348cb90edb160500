//! The persistent decoder. `queue` is the leader's side of the mailbox, `column` the items of a pass, `token` the forward
//! pass and what follows from it, `choose` its draw where it is not the greatest logit's, `stream` the producer of its
//! weights, `attend` its attention, `ahead` what it asks for early, `exchange` where its vectors lie, `trace` the stamps of
//! its phases.

mod ahead;
mod attend;
mod choose;
mod column;
mod entries;
mod exchange;
mod queue;
mod stream;
mod token;
mod trace;

use super::phase::{Phase, PhaseKernel};
use super::products::Products;
use super::{Grid, Kernel, incremental_attention};
use crate::Target;
use crate::blocks::argmax;
use crate::blocks::choose::Choose;
use crate::blocks::company::Ready;
use crate::blocks::exchange::Exchange;
use crate::blocks::grid_barrier::GridBarrier;
use crate::blocks::leader;
use crate::blocks::ring::{Consumer, Ring};
use crate::blocks::wait::Limit;
use crate::ptx::{Builder, F32, Global, Pred, Role, Shared, U8, U32, U64, Val, Var};
use column::Columns;
use entries::Entries;
use exchange::Vectors;
use kiln_shape::exchange::{BEFORE_FLAGS, FLAGS};
use kiln_shape::mailbox::command::{self, COLUMNS};
use kiln_shape::mailbox::{report, state};
use kiln_shape::{ModelShape, Numerics, WeightType, presets};
use trace::Trace;

/// Decodes whole sequences in one cooperative launch: every layer, the head, the choice of the next token and its
/// embedding, without the host. One block per SM, all resident; items come through the mailbox
/// (`kiln_shape::mailbox`) and tokens go back through it while the kernel runs. A pass runs a token of one item, and beside a
/// ring of up to eight, its columns: each has the bits that it has alone. Items beyond the columns take turns.
///
/// A pass takes five grid-wide dependencies per layer, after QKV, attention, its output, gate and up, and down, and one
/// for the head; a column's draw takes one more, or two where it is from some of the tokens. Each is a barrier, but beside a ring
/// those of layers are none: there the elements of vectors are polled for, and a flag of each block, three phases old; the
/// pass's last is one. Norms, QK-norm, RoPE, the embedding and the choice of the token are recomputed by each block that
/// needs them. A KV head's chunks are put together by the last block to finish some of them, before it arrives at the barrier; beside
/// a ring those of a cache in f16 by all that have some, a share of the results each.
///
/// Every wait ends: a block that has waited for longer than `wait_limit` says so, and every block leaves.
#[derive(Debug, Clone, PartialEq)]
pub struct PersistentDecoder {
    /// The model; its vocabulary and number of layers are launch parameters.
    pub shape: ModelShape,
    /// The types its matrices may have.
    pub types: Vec<WeightType>,
    /// The numerics of its products.
    pub numerics: Numerics,
    /// Positions a sequence may have: a bound on the host's buffers, not baked.
    pub max_seq_len: u32,
    /// Threads per block: a multiple of 32 from 64 (key and value are written by a warp each) to 512 (a thread needs up
    /// to 128 registers in exact numerics; in fast ones up to 255, so that more than 256 threads spill); 256 by default.
    pub block_size: u32,
    /// Whether blocks stamp the begin, end and wait of every phase.
    pub trace: bool,
    /// Whether the FFN's vector comes in slices: then a launch has two columns at least, and all types blocks of one length.
    pub slices: bool,
    name: String,
}

impl PersistentDecoder {
    /// The decoder of the preset with this width and number of layers. Where there is none, [`Kernel::check`] says so.
    pub fn new(hidden_size: u32, num_layers: u32, max_seq_len: u32) -> PersistentDecoder {
        let found = presets::all().find(|p| p.shape.hidden == hidden_size && p.shape.layers == num_layers);
        let shape = found.map(|preset| preset.shape).unwrap_or(ModelShape {
            heads: 0,
            hidden: hidden_size,
            layers: num_layers,
            ..presets::PRESETS[0].shape
        });
        PersistentDecoder { max_seq_len, ..PersistentDecoder::for_shape(shape, WeightType::ALL) }
    }

    /// The decoder of any shape, for matrices of these types, with exact numerics.
    pub fn for_shape(shape: ModelShape, types: &[WeightType]) -> PersistentDecoder {
        let max_seq_len = shape.context;
        let types = types.to_vec();
        let (numerics, name) = (Numerics::Exact, String::new());
        let (trace, slices) = (false, false);
        PersistentDecoder { shape, types, numerics, max_seq_len, block_size: 256, trace, slices, name }.named()
    }

    /// With other numerics.
    pub fn with_numerics(self, numerics: Numerics) -> PersistentDecoder {
        PersistentDecoder { numerics, ..self }
    }

    /// With another block size. Results do not depend on it.
    pub fn with_block_size(self, block_size: u32) -> PersistentDecoder {
        PersistentDecoder { block_size, ..self }
    }

    /// With stamps of every phase.
    pub fn with_trace(self) -> PersistentDecoder {
        PersistentDecoder { trace: true, ..self }.named()
    }

    /// With the FFN's vector in slices, for launches whose columns have no room for it whole.
    pub fn with_slices(self) -> PersistentDecoder {
        PersistentDecoder { slices: true, ..self }.named()
    }

    /// Whether there is such a decoder for a target: where weights come through a ring, and the vector is long enough.
    pub fn may_slice(&self, target: Target) -> bool {
        self.streams(target) && self.products().may_slice().is_some()
    }

    fn named(mut self) -> PersistentDecoder {
        let (trace, slices) = (if self.trace { "_trace" } else { "" }, if self.slices { "_slices" } else { "" });
        self.name = format!("persistent_decoder{slices}{trace}");
        self
    }

    fn products(&self) -> Products {
        let products = Products::new(self.shape, &self.types);
        if self.slices { products.with_slices() } else { products }
    }

    /// Whether a warp of its own brings weights through a ring: in fast numerics, where the target has mbarriers, and two
    /// warps are left to write key and value.
    fn streams(&self, target: Target) -> bool {
        self.numerics == Numerics::Fast && self.block_size >= 96 && Ring::is_of(target) && self.products().stream()
    }

    fn phase(&self, phase: Phase) -> PhaseKernel {
        PhaseKernel { phase, shape: self.shape, types: self.types.clone() }
    }
}

impl Kernel for PersistentDecoder {
    fn name(&self) -> &str {
        &self.name
    }

    fn block(&self) -> u32 {
        self.block_size
    }

    fn grid(&self) -> Grid {
        Grid::Launch
    }

    fn check(&self) -> Result<(), String> {
        if self.shape.heads == 0 {
            let ModelShape { hidden, layers, .. } = self.shape;
            return Err(format!("no preset has hidden {hidden} and {layers} layers; use for_shape"));
        }
        if !(64..=512).contains(&self.block_size) || !self.block_size.is_multiple_of(32) {
            return Err(format!("block size is {}: needs a multiple of 32 from 64 to 512", self.block_size));
        }
        incremental_attention::check(self.shape.head_dim, self.shape.heads.into(), self.shape.kv_heads.into())?;
        if !self.shape.head_dim.is_multiple_of(64) {
            return Err(format!("head_dim is {}: RoPE needs a multiple of 64", self.shape.head_dim));
        }
        match self.numerics {
            Numerics::Exact => Phase::ALL.into_iter().try_for_each(|phase| self.phase(phase).check()),
            Numerics::Fast => self.products().check(),
        }
    }

    fn build(&self, b: &mut Builder) {
        // One block on an SM: registers are not what is short.
        b.blocks_per_sm(1);
        if self.slices && !self.may_slice(b.target()) {
            b.complain(
                "slices of the FFN's vector need fast numerics, a ring, and a vector of several slices".to_owned(),
            );
        }
        if !self.streams(b.target()) {
            return Decoder::new(self, b, 1).run(b);
        }
        let consumers = self.block_size / 32 - 1;
        let decoder = Decoder::new(self, b, COLUMNS);
        let ring = Ring::new(b, consumers);
        let decoder = decoder.with_ring(b, ring, consumers);
        b.bar_sync(); // the ring's barriers are initialised, and the exchange's words
        b.roles(vec![
            Role::new(consumers, |b| decoder.run(b)).with_barrier(1),
            Role::new(1, |b| decoder.produce(b, ring)),
        ]);
    }
}

/// The kernel's parameters and what every part of it needs.
struct Decoder<'a> {
    kernel: &'a PersistentDecoder,
    table: Global<U8>,
    shares: Global<U32>,
    x: Global<F32>,
    /// This block's own copy of the token's embedding.
    embedding: Global<F32>,
    qkv: Global<F32>,
    attention: Global<F32>,
    ffn: Global<F32>,
    arrivals: Global<U32>,
    flags: Global<U32>,
    state: Global<U32>,
    mailbox: Global<U32>,
    report: Global<U32>,
    rings: Global<U64>,
    layers: Val<U32>,
    vocab: Val<U32>,
    eps: Val<F32>,
    idle_limit: Val<U64>,
    turn_limit: Val<U64>,
    run_limit: Val<U64>,
    launch: Val<U32>,
    /// Whether the cache is in f16.
    half_cache: Val<Pred>,
    barrier: GridBarrier,
    block: Val<U32>,
    /// Warp 0 of block 0.
    leads: Val<Pred>,
    /// Thread 0 of block 0.
    leader: Val<Pred>,
    begin: Val<U64>,
    /// The leader's copy of the state's first words; not used in other blocks.
    kept: Shared<U32>,
    /// The items whose tokens run.
    columns: Columns,
    /// The chain by which tokens are chosen, of the first column's item.
    chain: Choose,
    drawn: choose::Drawn,
    trace: Option<Trace>,
    /// Where weights come through a ring: the warp's end of it.
    ring: Option<Consumer>,
    /// Where weights come through a ring: where blocks hand vectors to each other.
    vectors: Option<Vectors>,
    /// As well there: entries of the tensor table in shared memory.
    entries: Option<Entries>,
}

/// What to do next; the same in every block.
struct Pass {
    /// A kind of `command`.
    kind: Var<U32>,
    /// Columns whose tokens run.
    count: Var<U32>,
}

impl<'a> Decoder<'a> {
    /// The decoder of up to so many columns.
    fn new(kernel: &'a PersistentDecoder, b: &mut Builder, columns: u32) -> Decoder<'a> {
        let table = b.param::<Global<U8>>("table"); // the tensor table
        let shares = b.param::<Global<U32>>("shares"); // [layers, 4 phases, grid + 1] rows, then the head's [grid + 1]
        let x = b.param::<Global<F32>>("x"); // [hidden]
        let embeddings = b.param::<Global<F32>>("embeddings"); // [columns, grid, hidden]
        let qkv = b.param::<Global<F32>>("qkv"); // [q_dim + 2 kv_dim]
        let attention = b.param::<Global<F32>>("attention"); // [q_dim]
        let ffn = b.param::<Global<F32>>("ffn"); // [ffn]; not beside a ring
        let choice = b.param::<Global<U32>>("choice"); // [columns, choice::memory::words], zeros before the first launch
        let counters = b.param::<Global<U32>>("counters"); // zeros: barrier, abort, two words, flags [grid, to a multiple of 4], arrivals [columns, kv_heads]
        let state = b.param::<Global<U32>>("state"); // [state::WORDS], kept between launches
        let mailbox = b.param::<Global<U32>>("mailbox"); // [mailbox::WORDS], mapped
        let report = b.param::<Global<U32>>("report"); // [report::WORDS], mapped
        let rings = b.param::<Global<U64>>("rings"); // [SLOTS, RING_ENTRIES], mapped
        let layers = b.param::<U32>("layers");
        let vocab = b.param::<U32>("vocab");
        let eps = b.param::<F32>("eps");
        let launch = b.param::<U32>("launch"); // this launch's number
        let idle_limit = b.param::<U64>("idle_limit"); // nanoseconds without work before it leaves
        let turn_limit = b.param::<U64>("turn_limit"); // nanoseconds of a launch while other work waits
        let run_limit = b.param::<U64>("run_limit"); // nanoseconds of a launch
        let wait_limit = b.param::<U64>("wait_limit"); // nanoseconds that a block waits for another
        let kv = b.param::<U32>("kv"); // bytes of an element of the cache: 2 or 4
        let half_cache = b.setp_eq(kv, 2);
        let trace = kernel.trace.then(|| Trace::new(b));
        let (block, tid) = (b.ctaid_x(), b.tid());
        let warp = b.warp_id();
        let leads = b.or::<U32>(block, warp);
        let leads = b.setp_eq(leads, 0);
        let leader = leader::of_grid(b, tid, &[block]);
        let limit = Limit { abort: counters.at(1), stalled: report.at(report::STALLED), nanoseconds: wait_limit };
        let barrier = GridBarrier::new(b, counters, limit);
        let flags = counters.at(BEFORE_FLAGS);
        let groups = b.size_div_ceil(barrier.blocks(), FLAGS);
        let of_flags = b.size_mul(groups, FLAGS);
        let arrivals = b.index(flags, of_flags);
        let begin = b.globaltimer();
        let scratch = argmax::Scratch::new(b);
        let columns = Columns::new(b, columns);
        let words = columns.choice(b, None);
        let chain = Choose::new(b, words, choice, barrier.blocks(), vocab, scratch);
        Decoder {
            kernel,
            table,
            shares,
            x,
            embedding: b.byte_index(embeddings, block, kernel.shape.hidden * 4),
            qkv,
            attention,
            ffn,
            arrivals,
            flags,
            state,
            mailbox,
            report,
            rings,
            layers,
            vocab,
            eps,
            idle_limit,
            turn_limit,
            run_limit,
            launch,
            half_cache,
            barrier,
            block,
            leads,
            leader,
            begin,
            kept: b.shared("kept", state::KEPT),
            columns,
            chain,
            drawn: choose::Drawn::new(b),
            trace,
            ring: None,
            vectors: None,
            entries: None,
        }
    }

    /// The decoder of consumers of a ring.
    fn with_ring(self, b: &mut Builder, ring: Ring, consumers: u32) -> Decoder<'a> {
        let barrier = self.barrier.with_leaving(ring.leaving());
        let exchange = Exchange::new(b, barrier.limit(), consumers, ring.leaving());
        let ready = Ready::new(b, barrier.limit());
        let vectors = Vectors::new(b, exchange, ready, self.flags, self.layers);
        let columns = self.columns.with_limit(b);
        Decoder {
            barrier,
            columns,
            ring: Some(Consumer::new(b, ring, self.barrier.limit())),
            vectors: Some(vectors),
            entries: Some(Entries::new(b)),
            ..self
        }
    }

    /// Runs items until it is to leave: takes up what the leader has found while nothing ran, or decided during the pass.
    fn run(&self, b: &mut Builder) {
        let pass = Pass { kind: b.var::<U32>(command::WAIT), count: b.var::<U32>(0) };
        self.wake(b);
        b.do_while(|b| {
            let ran = b.setp_eq::<U32>(pass.kind, command::RUN);
            b.if_else(
                ran,
                |b| self.run_pass(b, &pass),
                |b| {
                    b.set(pass.count, 0);
                    b.if_(self.leads, |b| self.look_for_work(b));
                    // There may be no work for long: poll seldom.
                    self.barrier.wait_sleeping(b, 2000);
                },
            );
            self.in_first_warp(b, |b| {
                self.read_command(b, ran);
                b.if_(ran, |b| {
                    self.read_best(b, &pass);
                    self.go_on(b, &pass);
                });
                self.line_up(b, &pass);
            });
            self.take(b, &pass);
            b.setp_ne::<U32>(pass.kind, command::LEAVE)
        });
        if let Some(ring) = &self.ring {
            ring.leave(b);
        }
        self.sleep(b);
    }

    /// Runs `body` in the first warp of each block.
    fn in_first_warp(&self, b: &mut Builder, body: impl FnOnce(&mut Builder)) {
        let warp = b.warp_id();
        let is_first = b.setp_eq(warp, 0);
        b.if_(is_first, body);
    }
}
