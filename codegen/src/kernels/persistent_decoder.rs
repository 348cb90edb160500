use super::phase::{Operands, Phase, PhaseKernel};
use super::{Grid, Kernel, incremental_attention};
use crate::blocks::argmax::{self, Best};
use crate::blocks::attention::{self, Heads, Workspace};
use crate::blocks::dequantize;
use crate::blocks::grid_barrier::GridBarrier;
use crate::blocks::kv::{self, Cache, Half, KvType};
use crate::blocks::qk::{self, Angles};
use crate::blocks::stage::SUPER_BLOCK;
use crate::blocks::tensor::{Tensor, vector_from_table};
use crate::ptx::{
    AtomicOp, Builder, Compare, F32, Global, LoadKind, Order, Pred, Scope, Shared, Size, U8, U32, U64, Val, Var,
};
use kiln_shape::mailbox::{self, command, entry, item, trace};
use kiln_shape::table::{KV_CHUNK, LAYER_SLOTS, MODEL_SLOTS};
use kiln_shape::{ModelShape, TensorRole, TensorType, presets};

/// Decodes whole sequences in one cooperative launch: every layer, the head, the choice of the next token and its
/// embedding, without the host. One block per SM, all resident; work comes through the mailbox
/// (`kiln_shape::mailbox`) and tokens go back through it while the kernel runs.
///
/// A token takes five grid-wide dependencies per layer, after QKV, attention, its output, gate and up, and down, and one
/// for the head. Norms, QK-norm, RoPE, the embedding and the choice of the token are recomputed by each block that needs
/// them. The last block to finish a KV head's chunks puts them together before it arrives at the barrier.
#[derive(Debug, Clone, PartialEq)]
pub struct PersistentDecoder {
    /// The model; its vocabulary and number of layers are launch parameters.
    pub shape: ModelShape,
    /// The types its matrices may have.
    pub types: Vec<TensorType>,
    /// The cache's type.
    pub kv: KvType,
    /// Positions a sequence may have: a bound on the host's buffers, not baked.
    pub max_seq_len: u32,
    /// Threads per block: a multiple of 32 from 64 (key and value are written by a warp each) to 512 (a thread needs up
    /// to 128 registers); 256 by default.
    pub block_size: u32,
    /// Whether blocks stamp the begin, end and wait of every phase.
    pub trace: bool,
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
        PersistentDecoder { max_seq_len, ..PersistentDecoder::for_shape(shape, TensorType::SUPPORTED) }
    }

    /// The decoder of any shape, for matrices of these types, with an f16 cache.
    pub fn for_shape(shape: ModelShape, types: &[TensorType]) -> PersistentDecoder {
        let (kv, max_seq_len) = (KvType::F16, shape.context);
        let types = types.to_vec();
        PersistentDecoder { shape, types, kv, max_seq_len, block_size: 256, trace: false, name: String::new() }.named()
    }

    /// With another cache type.
    pub fn with_kv_type(self, kv: KvType) -> PersistentDecoder {
        PersistentDecoder { kv, ..self }.named()
    }

    /// With another block size. Results do not depend on it.
    pub fn with_block_size(self, block_size: u32) -> PersistentDecoder {
        PersistentDecoder { block_size, ..self }
    }

    /// With stamps of every phase.
    pub fn with_trace(self) -> PersistentDecoder {
        PersistentDecoder { trace: true, ..self }.named()
    }

    fn named(mut self) -> PersistentDecoder {
        let trace = if self.trace { "_trace" } else { "" };
        self.name = format!("persistent_decoder_{}{trace}", self.kv.suffix());
        self
    }

    fn phase(&self, phase: Phase) -> PhaseKernel {
        PhaseKernel { phase, shape: self.shape, types: self.types.clone() }
    }
}

/// Decisions published with a token.
const STOP: u32 = 1;
const PARK: u32 = 2;

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
        Phase::ALL.into_iter().try_for_each(|phase| self.phase(phase).check())
    }

    fn build(&self, b: &mut Builder) {
        // One block on an SM: registers are not what is short.
        b.blocks_per_sm(1);
        let decoder = Decoder::new(self, b);
        b.do_while(|b| {
            decoder.take_item(b);
            // There may be no work for long: poll seldom.
            decoder.barrier.wait_sleeping(b, 2000);
            decoder.read_command(b);
            // Every block has its copy: the leader may write the next item's words.
            decoder.barrier.wait(b);
            let kind = decoder.command(b, command::KIND);
            let runs = b.setp_eq(kind, 1);
            let again = b.var::<U32>(0);
            b.if_(runs, |b| decoder.run_item(b, again));
            b.setp_ne(again, 0)
        });
    }
}

/// The kernel's parameters and what every part of it needs.
struct Decoder<'a> {
    kernel: &'a PersistentDecoder,
    table: Global<U8>,
    shares: Global<U32>,
    cos: Global<F32>,
    sin: Global<F32>,
    x: Global<F32>,
    /// This block's own copy of the token's embedding.
    embedding: Global<F32>,
    qkv: Global<F32>,
    attention: Global<F32>,
    ffn: Global<F32>,
    logits: Global<F32>,
    best_values: Global<F32>,
    best_indices: Global<U32>,
    partials: Global<F32>,
    arrivals: Global<U32>,
    commands: Global<U32>,
    mailbox: Global<U32>,
    ring: Global<U64>,
    layers: Val<U32>,
    vocab: Val<U32>,
    eps: Val<F32>,
    max_chunks: Val<U32>,
    idle_limit: Val<U64>,
    run_limit: Val<U64>,
    barrier: GridBarrier,
    block: Val<U32>,
    /// Thread 0 of block 0.
    leader: Val<Pred>,
    begin: Val<U64>,
    /// The block's copy of the command.
    copy: Shared<U32>,
    /// The published decision, next id and token.
    published: Shared<U32>,
    scratch: argmax::Scratch,
    trace: Option<Trace>,
}

/// Where records go (`kiln_shape::mailbox::trace`), how many were written, and when the phase at hand began.
struct Trace {
    to: Global<U64>,
    capacity: Val<U32>,
    event: Var<U32>,
    begin: Var<U64>,
}

/// Where an item is; the same in every block.
struct Progress {
    /// Tokens run.
    step: Var<U32>,
    /// The token to run.
    token: Var<U32>,
    /// Tokens made.
    made: Var<U32>,
    /// The kind of the ring's entry that ends the item; 0 while it goes on.
    end: Var<U32>,
    /// Whether it parks.
    parks: Var<U32>,
}

impl<'a> Decoder<'a> {
    fn new(kernel: &'a PersistentDecoder, b: &mut Builder) -> Decoder<'a> {
        let table = b.param::<Global<U8>>("table"); // the tensor table
        let shares = b.param::<Global<U32>>("shares"); // [layers, 4 phases, grid + 1] rows, then the head's [grid + 1]
        let cos = b.param::<Global<F32>>("cos"); // [positions, head_dim / 2]
        let sin = b.param::<Global<F32>>("sin"); // [positions, head_dim / 2]
        let x = b.param::<Global<F32>>("x"); // [hidden]
        let embeddings = b.param::<Global<F32>>("embeddings"); // [grid, hidden]
        let qkv = b.param::<Global<F32>>("qkv"); // [q_dim + 2 kv_dim]
        let attention = b.param::<Global<F32>>("attention"); // [q_dim]
        let ffn = b.param::<Global<F32>>("ffn"); // [ffn]
        let logits = b.param::<Global<F32>>("logits"); // [vocab]
        let best_values = b.param::<Global<F32>>("best_values"); // [grid]
        let best_indices = b.param::<Global<U32>>("best_indices"); // [grid]
        let partials = b.param::<Global<F32>>("partials"); // [heads, max_chunks, head_dim + 2]
        let arrivals = b.param::<Global<U32>>("arrivals"); // [kv_heads], zero
        let counter = b.param::<Global<U32>>("counter"); // [1], zero
        let commands = b.param::<Global<U32>>("commands"); // [command::WORDS], kept between launches
        let mailbox = b.param::<Global<U32>>("mailbox"); // [mailbox::WORDS], mapped
        let ring = b.param::<Global<U64>>("ring"); // [mailbox::RING_ENTRIES], mapped
        let layers = b.param::<U32>("layers");
        let vocab = b.param::<U32>("vocab");
        let eps = b.param::<F32>("eps");
        let max_chunks = b.param::<U32>("max_chunks");
        let idle_limit = b.param::<U64>("idle_limit"); // nanoseconds without work
        let run_limit = b.param::<U64>("run_limit"); // nanoseconds of a launch
        let trace = kernel.trace.then(|| Trace {
            to: b.param::<Global<U64>>("trace"), // [trace_capacity, grid, trace::WORDS]
            capacity: b.param::<U32>("trace_capacity"),
            event: b.var::<U32>(0),
            begin: b.var::<U64>(0),
        });
        let (block, tid) = (b.ctaid_x(), b.tid());
        let leader = b.or::<U32>(block, tid);
        let leader = b.setp_eq(leader, 0);
        let barrier = GridBarrier::new(b, counter);
        let begin = b.globaltimer();
        let scratch = argmax::Scratch::new(b);
        Decoder {
            kernel,
            table,
            shares,
            cos,
            sin,
            x,
            embedding: b.byte_index(embeddings, block, kernel.shape.hidden * 4),
            qkv,
            attention,
            ffn,
            logits,
            best_values,
            best_indices,
            partials,
            arrivals,
            commands,
            mailbox,
            ring,
            layers,
            vocab,
            eps,
            max_chunks,
            idle_limit,
            run_limit,
            barrier,
            block,
            leader,
            begin,
            copy: b.shared("command", command::WORDS),
            published: b.shared("published", 3),
            scratch,
            trace,
        }
    }

    // ---- the leader and the mailbox

    /// The leader waits for an item, a wish to park, or the limits, and writes the command. A parked item is taken up
    /// again. Nobody reads the command before the barrier that follows.
    fn take_item(&self, b: &mut Builder) {
        b.if_(self.leader, |b| {
            let resume = b.ld(self.commands.at(command::RESUME), LoadKind::Ordinary);
            let taken = b.ld(self.commands.at(command::TAKEN), LoadKind::Ordinary);
            let emitted = b.ld(self.commands.at(command::EMITTED), LoadKind::Ordinary);
            let idle_since = b.globaltimer();
            let kind = b.var::<U32>(0);
            b.do_while(|b| {
                let submitted = b.ld_sync(self.mailbox.at(mailbox::SUBMITTED), Order::Acquire, Scope::Sys);
                let consumed = b.ld_sync(self.mailbox.at(mailbox::CONSUMED), Order::Relaxed, Scope::Sys);
                let park = b.ld_sync(self.mailbox.at(mailbox::PARK), Order::Relaxed, Scope::Sys);
                let now = b.globaltimer();
                let idle = b.sub(now, idle_since);
                let idle = b.setp(Compare::Gt, idle, self.idle_limit);
                let ran = b.sub(now, self.begin);
                let ran = b.setp(Compare::Gt, ran, self.run_limit);
                let parks = b.setp_ne(park, 0);
                let leaves = b.or_pred(idle, ran);
                let leaves = b.or_pred(leaves, parks);
                b.if_(leaves, |b| b.set(kind, 2));
                // Work that is there is taken up even where parking is asked for: an item gets on by a token in every
                // launch, however often others have it park.
                // A token and the item's end must fit the ring.
                let room = self.has_room(b, emitted, consumed, 0);
                let new = b.setp_ne(submitted, taken);
                let resumes = b.setp_ne(resume, 0);
                let some = b.or_pred(new, resumes);
                let ready = b.and_pred(some, room);
                let stays = b.not_pred(ran);
                let ready = b.and_pred(ready, stays);
                b.if_(ready, |b| b.set(kind, 1));
                let waits = b.setp_eq(kind, 0);
                b.if_(waits, |b| b.nanosleep(500));
                waits
            });
            let runs = b.setp_eq(kind, 1);
            let fresh = b.setp_eq(resume, 0);
            let takes = b.and_pred(runs, fresh);
            b.if_(takes, |b| {
                let slot = b.and(taken, mailbox::SLOTS - 1);
                let from = b.byte_index(self.mailbox.at(mailbox::ITEMS), slot, mailbox::ITEM_WORDS * 4);
                b.for_range(0, mailbox::ITEM_WORDS, 1, |b, i| {
                    let (from, to) = (b.index(from, i), b.index(self.commands.at(command::ITEM), i));
                    let word = b.ld_sync(from, Order::Relaxed, Scope::Sys);
                    b.st(to, word);
                });
                let prompt = b.ld(self.commands.at(command::ITEM + item::PROMPT), LoadKind::Ordinary);
                let some = b.setp_ne(prompt, 0);
                let first = b.var::<U32>(0);
                b.if_(some, |b| {
                    let id = self.prompt_id(b, 0);
                    b.set(first, id);
                });
                b.st(self.commands.at(command::TOKEN), first);
                b.st(self.commands.at(command::STEP), 0);
                b.st(self.commands.at(command::MADE), 0);
                let taken = b.add(taken, 1);
                b.st(self.commands.at(command::TAKEN), taken);
            });
            b.st(self.commands.at(command::KIND), kind);
        });
    }

    /// Id `index` of the item's prompt, from the host's memory; for the leader.
    fn prompt_id(&self, b: &mut Builder, index: impl crate::ptx::Operand<U32>) -> Val<U32> {
        let ids = b.ld(self.commands.at(command::ITEM + item::IDS).cast::<U64>(), LoadKind::Ordinary);
        let ids = b.global_ptr::<U32>(ids);
        let at = b.index(ids, index);
        b.ld_sync(at, Order::Relaxed, Scope::Sys)
    }

    /// Whether the ring has room for `more` entries and then a token and an end.
    fn has_room(&self, b: &mut Builder, emitted: Val<U32>, consumed: Val<U32>, more: u32) -> Val<Pred> {
        let unread = b.sub::<U32>(emitted, consumed);
        b.setp(Compare::Le, unread, mailbox::RING_ENTRIES - 2 - more)
    }

    /// Writes an entry of the ring; for the leader. `order` is release for an item's end, after which the host may look
    /// at logits; a token carries its readiness with it.
    fn emit(&self, b: &mut Builder, kind: Val<U32>, payload: Val<U32>, order: Order) {
        let number = b.ld(self.commands.at(command::EMITTED), LoadKind::Ordinary);
        let slot = b.and(number, mailbox::RING_ENTRIES - 1);
        let to = b.index(self.ring, slot);
        let next = b.add(number, 1);
        b.st(self.commands.at(command::EMITTED), next);
        let low = b.and(next, 0xff_ffff);
        let high = b.shl::<U32>(kind, 24);
        let tag = b.or(high, low);
        let word = b.pack64(payload, tag);
        b.st_sync(to, word, order, Scope::Sys);
    }

    /// Every block copies the command to its shared memory; behind the barrier that the leader's writes came before.
    fn read_command(&self, b: &mut Builder) {
        let tid = b.tid();
        b.for_range(tid, command::WORDS, b.block(), |b, i| {
            let (from, to) = (b.index(self.commands, i), b.index(self.copy, i));
            let word = b.ld(from, LoadKind::Ordinary);
            b.st(to, word);
        });
        b.bar_sync(); // the copy is whole
    }

    /// A word of the block's copy of the command.
    fn command(&self, b: &mut Builder, word: u32) -> Val<U32> {
        b.ld(self.copy.at(word), LoadKind::Constant)
    }

    fn item(&self, b: &mut Builder, word: u32) -> Val<U32> {
        self.command(b, command::ITEM + word)
    }

    // ---- an item

    /// Runs the item of the command to its end, or until it parks. Sets `again` if there may be another.
    fn run_item(&self, b: &mut Builder, again: Var<U32>) {
        let (prompt, max_new) = (self.item(b, item::PROMPT), self.item(b, item::MAX_NEW));
        let (first, room) = (self.item(b, item::POSITION), self.item(b, item::ROOM));
        let (step, token) = (self.command(b, command::STEP), self.command(b, command::TOKEN));
        let made = self.command(b, command::MADE);
        let at = Progress {
            step: b.var(step),
            token: b.var(token),
            made: b.var(made),
            end: b.var::<U32>(0),
            parks: b.var::<U32>(0),
        };
        self.begin_trace(b);
        let empty = b.setp_eq(prompt, 0);
        b.if_(empty, |b| b.set(at.end, entry::REJECTED));
        self.check_next(b, &at, first, room);
        let goes_on = |b: &mut Builder| {
            let ended = b.or::<U32>(at.end, at.parks);
            b.setp_eq(ended, 0)
        };
        b.while_(goes_on, |b| {
            let position = b.add::<U32>(first, at.step);
            let next = b.add::<U32>(at.step, 1);
            let chooses = b.setp_ge(next, prompt);
            let wants = b.setp_ne(max_new, 0);
            let chooses = b.and_pred(chooses, wants);
            let wishes = self.look_at_host(b, next, prompt);
            self.forward(b, &at, position, &wishes, chooses);
            let (decision, token) = self.read_published(b, chooses);
            b.set(at.step, next);
            b.set(at.token, token);
            b.if_(chooses, |b| {
                let made = b.add::<U32>(at.made, 1);
                b.set(at.made, made);
                b.if_(self.leader, |b| {
                    let kind = b.mov(entry::TOKEN);
                    self.emit(b, kind, token, Order::Relaxed);
                });
                let enough = b.setp_ge::<U32>(at.made, max_new);
                b.if_(enough, |b| b.set(at.end, entry::LENGTH));
                self.check_stop_ids(b, &at, token);
            });
            let prompt_over = b.setp_ge(next, prompt);
            let nothing_wanted = b.setp_eq(max_new, 0);
            let over = b.and_pred(prompt_over, nothing_wanted);
            b.if_(over, |b| b.set(at.end, entry::LENGTH));
            let open = b.setp_eq(at.end, 0);
            b.if_(open, |b| {
                let stops = b.setp_eq(decision, STOP);
                b.if_(stops, |b| b.set(at.end, entry::STOPPED));
                self.check_next(b, &at, first, room);
                let parks = b.setp_eq(decision, PARK);
                let still = b.setp_eq(at.end, 0);
                let parks = b.and_pred(parks, still);
                b.if_(parks, |b| b.set(at.parks, 1));
            });
        });
        let ended = b.setp_ne(at.end, 0);
        b.if_(ended, |b| b.set(again, 1));
        b.if_(self.leader, |b| {
            b.st(self.commands.at(command::RESUME), at.parks);
            b.if_(ended, |b| {
                let (kind, token) = (b.get(at.end), b.get(at.token));
                self.emit(b, kind, token, Order::Release);
            });
            b.st(self.commands.at(command::STEP), at.step);
            b.st(self.commands.at(command::TOKEN), at.token);
            b.st(self.commands.at(command::MADE), at.made);
            if let Some(trace) = &self.trace {
                b.st(self.commands.at(command::EVENTS), trace.event);
            }
        });
    }

    /// Ends the item if its next token cannot be run: outside the vocabulary, or no room.
    fn check_next(&self, b: &mut Builder, at: &Progress, first: Val<U32>, room: Val<U32>) {
        let position = b.add::<U32>(first, at.step);
        let full = b.setp_ge(position, room);
        let unknown = b.setp_ge::<U32>(at.token, self.vocab);
        let open = b.setp_eq(at.end, 0);
        b.if_(open, |b| {
            b.if_(full, |b| b.set(at.end, entry::CONTEXT_FULL));
            b.if_(unknown, |b| b.set(at.end, entry::REJECTED));
        });
    }

    fn check_stop_ids(&self, b: &mut Builder, at: &Progress, token: Val<U32>) {
        let count = self.item(b, item::STOP_COUNT);
        let count = b.min(count, item::STOP_IDS_MAX);
        b.for_range(0, count, 1, |b, i| {
            let id = b.index(self.copy.at(command::ITEM + item::STOP_IDS), i);
            let id = b.ld(id, LoadKind::Constant);
            let stops = b.setp_eq(id, token);
            b.if_(stops, |b| b.set(at.end, entry::STOP_ID));
        });
    }

    /// The leader's look at the host's words, once a token: their latency passes while the token is worked on.
    fn look_at_host(&self, b: &mut Builder, next: Val<U32>, prompt: Val<U32>) -> Wishes {
        let wishes = Wishes {
            stop: b.var::<U32>(0),
            park: b.var::<U32>(0),
            consumed: b.var::<U32>(0),
            next_id: b.var::<U32>(0),
        };
        b.if_(self.leader, |b| {
            let taken = b.ld(self.commands.at(command::TAKEN), LoadKind::Ordinary);
            let slot = b.sub(taken, 1);
            let slot = b.and(slot, mailbox::SLOTS - 1);
            let stop = b.index(self.mailbox.at(mailbox::STOP), slot);
            let stop = b.ld_sync(stop, Order::Relaxed, Scope::Sys);
            let park = b.ld_sync(self.mailbox.at(mailbox::PARK), Order::Relaxed, Scope::Sys);
            let consumed = b.ld_sync(self.mailbox.at(mailbox::CONSUMED), Order::Relaxed, Scope::Sys);
            b.set(wishes.stop, stop);
            b.set(wishes.park, park);
            b.set(wishes.consumed, consumed);
            let in_prompt = b.setp_lt(next, prompt);
            b.if_(in_prompt, |b| {
                let id = self.prompt_id(b, next);
                b.set(wishes.next_id, id);
            });
        });
        wishes
    }

    /// The leader makes the decision of the token's end, before the token's last barrier. The last one was read by every
    /// block before the barriers of this token.
    fn publish(&self, b: &mut Builder, wishes: &Wishes) {
        b.if_(self.leader, |b| {
            let decision = b.var::<U32>(0);
            let now = b.globaltimer();
            let ran = b.sub(now, self.begin);
            let late = b.setp(Compare::Gt, ran, self.run_limit);
            let emitted = b.ld(self.commands.at(command::EMITTED), LoadKind::Ordinary);
            let consumed = b.get(wishes.consumed);
            let room = self.has_room(b, emitted, consumed, 1);
            let full = b.not_pred(room);
            let asked = b.setp_ne(wishes.park, 0);
            let parks = b.or_pred(late, full);
            let parks = b.or_pred(parks, asked);
            b.if_(parks, |b| b.set(decision, PARK));
            let stops = b.setp_ne(wishes.stop, 0);
            b.if_(stops, |b| b.set(decision, STOP));
            b.st(self.commands.at(command::DECISION), decision);
            b.st(self.commands.at(command::NEXT_ID), wishes.next_id);
        });
    }

    /// What was published with the token that just ended: the decision, and the next token, of the prompt or chosen from
    /// the blocks' best. Behind the token's last barrier.
    fn read_published(&self, b: &mut Builder, chooses: Val<Pred>) -> (Val<U32>, Val<U32>) {
        let (warp, lane, tid) = (b.warp_id(), b.lane(), b.tid());
        let first = b.setp_eq(tid, 0);
        b.if_(first, |b| {
            let decision = b.ld(self.commands.at(command::DECISION), LoadKind::Ordinary);
            let next = b.ld(self.commands.at(command::NEXT_ID), LoadKind::Ordinary);
            b.st(self.published.at(0), decision);
            b.st(self.published.at(1), next);
        });
        b.if_(chooses, |b| {
            let in_first = b.setp_eq(warp, 0);
            b.if_(in_first, |b| {
                let best = Best::none(b);
                b.for_range(lane, self.barrier.blocks(), 32, |b, i| {
                    let (value, index) = (b.index(self.best_values, i), b.index(self.best_indices, i));
                    let (value, index) = (b.ld(value, LoadKind::Ordinary), b.ld(index, LoadKind::Ordinary));
                    best.take(b, value, index);
                });
                best.over_lanes(b);
                let token = best.token(b);
                b.if_(first, |b| b.st(self.published.at(2), token));
            });
        });
        b.bar_sync(); // decision and token are in shared memory
        let decision = b.ld(self.published.at(0), LoadKind::Constant);
        let token = b.var::<U32>(0);
        b.if_else(
            chooses,
            |b| {
                let chosen = b.ld(self.published.at(2), LoadKind::Constant);
                b.set(token, chosen);
            },
            |b| {
                let next = b.ld(self.published.at(1), LoadKind::Constant);
                b.set(token, next);
            },
        );
        (decision, b.get(token))
    }

    // ---- a token

    /// Embedding, layers and, where a token is to be chosen, the head. Ends with the token's last barrier.
    fn forward(&self, b: &mut Builder, at: &Progress, position: Val<U32>, wishes: &Wishes, chooses: Val<Pred>) {
        self.embed(b, at);
        let last = b.sub(self.layers, 1);
        b.for_range(0, self.layers, 1, |b, layer| {
            let first = b.setp_eq(layer, 0);
            let stream = b.select_ptr(self.embedding, self.x, first);
            self.matvec(b, Phase::Qkv, layer, stream, self.qkv, self.qkv);
            self.barrier(b, trace::QKV, layer, position);
            self.attend(b, layer, position);
            self.barrier(b, trace::ATTENTION, layer, position);
            self.matvec(b, Phase::AttentionOutput, layer, self.attention, self.x, stream);
            self.barrier(b, trace::ATTENTION_OUTPUT, layer, position);
            self.matvec(b, Phase::GateUp, layer, self.x, self.ffn, self.ffn);
            self.barrier(b, trace::GATE_UP, layer, position);
            self.matvec(b, Phase::Down, layer, self.ffn, self.x, self.x);
            let ends = b.setp_eq(layer, last);
            b.if_(ends, |b| self.publish(b, wishes));
            self.barrier(b, trace::DOWN, layer, position);
        });
        b.if_(chooses, |b| {
            let none = b.mov::<U32>(0);
            let (first, end) = self.matvec(b, Phase::Head, none, self.x, self.logits, self.logits);
            b.bar_sync(); // the block's logits are written
            let best = argmax::of_block(b, self.scratch, self.logits, first, end, LoadKind::Ordinary);
            let tid = b.tid();
            let writes = b.setp_eq(tid, 0);
            let (value, index) = (b.index(self.best_values, self.block), b.index(self.best_indices, self.block));
            b.if_(writes, |b| {
                b.st(value, best.value);
                b.st(index, best.index);
            });
            self.barrier(b, trace::HEAD, self.layers, position);
        });
    }

    /// The grid's barrier at the end of a phase.
    fn barrier(&self, b: &mut Builder, phase: u32, layer: Val<U32>, position: Val<U32>) {
        let Some(trace) = &self.trace else { return self.barrier.wait(b) };
        let wait = b.globaltimer();
        self.barrier.wait(b);
        let end = b.globaltimer();
        let tid = b.tid();
        let first = b.setp_eq(tid, 0);
        let inside = b.setp_lt::<U32>(trace.event, trace.capacity);
        let writes = b.and_pred(first, inside);
        b.if_(writes, |b| {
            let record = b.mad::<U32>(trace.event, self.barrier.blocks(), self.block);
            let to = b.byte_index(trace.to, record, trace::WORDS * 8);
            let low = b.mad::<U32>(layer, 256, phase);
            let what = b.pack64(low, position);
            b.st(to, what);
            b.st(to.at(1), trace.begin);
            b.st(to.at(2), wait);
            b.st(to.at(3), end);
        });
        let next = b.add::<U32>(trace.event, 1);
        b.set(trace.event, next);
        b.set(trace.begin, end);
    }

    /// Goes on where the records of the items before end; the item's first phase begins now.
    fn begin_trace(&self, b: &mut Builder) {
        let Some(trace) = &self.trace else { return };
        let events = self.command(b, command::EVENTS);
        b.set(trace.event, events);
        let now = b.globaltimer();
        b.set(trace.begin, now);
    }

    /// The token's embedding, in this block's own copy.
    fn embed(&self, b: &mut Builder, at: &Progress) {
        let tensor = Tensor::from_table(b, self.table, TensorRole::TokenEmbedding.slot());
        let super_blocks = Size::Const(self.kernel.shape.hidden / SUPER_BLOCK);
        let row = dequantize::Row { tensor, types: &self.kernel.types, super_blocks };
        let (warp, warps, token) = (b.warp_id(), b.warps(), b.get(at.token));
        b.bar_sync(); // nobody reads the token before any more
        row.write(b, token, self.embedding, warp, warps);
        b.bar_sync(); // every warp's part is written
    }

    /// This block's share of a phase: its first row and the row after its last.
    fn matvec(
        &self,
        b: &mut Builder,
        phase: Phase,
        layer: Val<U32>,
        x: Global<F32>,
        y: Global<F32>,
        residual: Global<F32>,
    ) -> (Val<U32>, Val<U32>) {
        let kernel = self.kernel.phase(phase);
        let index = match phase {
            Phase::Head => b.mul::<U32>(self.layers, 4),
            phase => b.mad::<U32>(layer, 4, phase as u32),
        };
        let stride = b.size_add(self.barrier.blocks(), 1);
        let at = b.mad::<U32>(index, stride, self.block);
        let at = b.index(self.shares, at);
        let (first, end) = (b.ld(at, LoadKind::Constant), b.ld(at.at(1), LoadKind::Constant));
        let layer = b.mad::<U32>(layer, LAYER_SLOTS, MODEL_SLOTS);
        let (table, eps) = (self.table, self.eps);
        let operands = Operands { table, layer, x, y, residual, eps, kind: LoadKind::Ordinary };
        b.overlap(|b| kernel.run(b, &operands, first, end));
        (first, end)
    }

    /// Attention, an item for each KV head and chunk. The block that has the position's chunk writes its key and value.
    fn attend(&self, b: &mut Builder, layer: Val<U32>, position: Val<U32>) {
        let ModelShape { kv_heads, head_dim, .. } = self.kernel.shape;
        let heads = Heads { group: self.kernel.shape.group(), head_dim, ty: self.kernel.kv };
        let length = b.add(position, 1);
        let chunks = b.add(position, KV_CHUNK);
        let chunks = b.shr(chunks, KV_CHUNK.trailing_zeros());
        let own_chunk = b.shr(position, KV_CHUNK.trailing_zeros());
        let items = b.mul::<U32>(chunks, kv_heads);
        let table = b.ld(self.copy.at(command::ITEM + item::TABLE).cast::<U64>(), LoadKind::Constant);
        let table = b.global_ptr::<U64>(table);
        let cache = Cache::Chunked { table, layer, kv_heads: Size::Const(kv_heads) };
        let angles = Angles::at(b, self.cos, self.sin, position, head_dim);
        let single = b.setp_eq(chunks, 1);
        let row_bytes = Size::Const(heads.row_bytes());
        b.overlap(|b| {
            let work = Workspace::new(b, heads);
            let sums = b.dynamic_shared::<F32>(attention::reduce_floats(head_dim));
            let arrived = b.dynamic_shared::<U32>(1);
            b.for_range(self.block, items, self.barrier.blocks(), |b, index| {
                let chunk = b.div::<U32>(index, kv_heads);
                let kv_head = b.rem::<U32>(index, kv_heads);
                b.bar_sync(); // the item before is done with the workspace
                self.queries(b, &work, heads, layer, kv_head, angles);
                let owns = b.setp_eq(chunk, own_chunk);
                b.if_(owns, |b| self.write_kv(b, cache, layer, kv_head, position, angles));
                let first = b.mul::<U32>(chunk, KV_CHUNK);
                let left = b.sub(length, first);
                let count = b.min(left, KV_CHUNK);
                let keys = cache.chunk(b, Half::Keys, kv_head, chunk, row_bytes);
                let values = cache.chunk(b, Half::Values, kv_head, chunk, row_bytes);
                let head = b.mul::<U32>(kv_head, heads.group);
                let out = b.byte_index(self.attention, head, head_dim * 4);
                let row = b.mad::<U32>(head, self.max_chunks, chunk);
                let partial = b.byte_index(self.partials, row, (head_dim + 2) * 4);
                let stride = b.mul::<U32>(self.max_chunks, head_dim + 2);
                work.chunk(b, heads, keys, values, count, |b, head, dim, value| {
                    b.if_else(
                        single,
                        |b| {
                            let sum = b.index(work.sum, head);
                            let sum = b.ld(sum, LoadKind::Ordinary);
                            let value = b.div(value, sum);
                            let to = b.mad::<U32>(head, head_dim, dim);
                            let to = b.index(out, to);
                            b.st(to, value);
                        },
                        |b| {
                            let to = b.mad::<U32>(head, stride, dim);
                            let to = b.index(partial, to);
                            b.st(to, value);
                        },
                    );
                });
                let several = b.not_pred(single);
                b.if_(several, |b| {
                    attention::statistics(b, heads, None, partial, stride, |b, head| {
                        let (max, sum) = (b.index(work.max, head), b.index(work.sum, head));
                        (b.ld(max, LoadKind::Ordinary), b.ld(sum, LoadKind::Ordinary))
                    });
                    let last = self.arrive(b, arrived, kv_head, chunks);
                    b.if_(last, |b| {
                        b.for_range(0, heads.group, 1, |b, g| {
                            let head = b.add(head, g);
                            let row = b.mul::<U32>(head, self.max_chunks);
                            let first = b.byte_index(self.partials, row, (head_dim + 2) * 4);
                            let out = b.byte_index(self.attention, head, head_dim * 4);
                            b.bar_sync(); // the head before is done with the sums
                            attention::reduce(b, head_dim, first, chunks, sums, out, LoadKind::Ordinary);
                        });
                    });
                });
            });
        });
    }

    /// Whether this block is the last of a KV head's chunks: then all partial results are visible to it. The counter goes
    /// back to 0, which the next layer's blocks see behind a grid barrier.
    fn arrive(&self, b: &mut Builder, slot: Shared<U32>, kv_head: Val<U32>, chunks: Val<U32>) -> Val<Pred> {
        b.bar_sync(); // every thread's part of the partial result is written
        let tid = b.tid();
        let first = b.setp_eq(tid, 0);
        b.if_(first, |b| {
            let counter = b.index(self.arrivals, kv_head);
            b.fence_acq_rel(Scope::Gpu);
            let before = b.atom(AtomicOp::Add, "relaxed", counter, 1u32, Scope::Gpu);
            b.fence_acq_rel(Scope::Gpu);
            let missing = b.sub::<U32>(chunks, before);
            let last = b.setp_eq(missing, 1);
            b.if_(last, |b| b.st_sync(counter, 0u32, Order::Relaxed, Scope::Gpu));
            let last = b.selp::<U32>(1, 0, last);
            b.st(slot, last);
        });
        b.bar_sync(); // the answer is in shared memory
        let last = b.ld(slot, LoadKind::Constant);
        b.setp_ne(last, 0)
    }

    /// The group's queries, normalised, turned and scaled, into the workspace: a warp a head.
    fn queries(
        &self,
        b: &mut Builder,
        work: &Workspace,
        heads: Heads,
        layer: Val<U32>,
        kv_head: Val<U32>,
        angles: Angles,
    ) {
        let gamma = self.gamma(b, layer, TensorRole::AttnQNorm);
        let (warp, warps, lane) = (b.warp_id(), b.warps(), b.lane());
        let first = b.mul::<U32>(kv_head, heads.group);
        b.for_range(warp, heads.group, warps, |b, g| {
            let head = b.add(first, g);
            let x = b.byte_index(self.qkv, head, heads.head_dim * 4);
            let values = qk::head(b, heads.head_dim, x, gamma, angles, LoadKind::Ordinary);
            work.store_query(b, heads, g, lane, &values);
        });
    }

    /// The position's key, by warp 0, and value, by warp 1, into the cache.
    fn write_kv(
        &self,
        b: &mut Builder,
        cache: Cache,
        layer: Val<U32>,
        kv_head: Val<U32>,
        position: Val<U32>,
        angles: Angles,
    ) {
        let ModelShape { heads, kv_heads, head_dim, .. } = self.kernel.shape;
        let gamma = self.gamma(b, layer, TensorRole::AttnKNorm);
        let (warp, lane, ty) = (b.warp_id(), b.lane(), self.kernel.kv);
        let row_bytes = Size::Const(head_dim * ty.bytes());
        let keys = b.byte_index(self.qkv, kv_head, head_dim * 4).at(heads * head_dim);
        let values = keys.at(kv_heads * head_dim);
        let is_key = b.setp_eq(warp, 0);
        b.if_(is_key, |b| {
            let key = qk::head(b, head_dim, keys, gamma, angles, LoadKind::Ordinary);
            let row = cache.row(b, Half::Keys, kv_head, position, row_bytes);
            for (i, value) in key.into_iter().enumerate() {
                let at = b.add(lane, 32 * i as u32);
                kv::store(b, ty, row, at, value);
            }
        });
        let is_value = b.setp_eq(warp, 1);
        b.if_(is_value, |b| {
            let from = b.index(values, lane);
            let row = cache.row(b, Half::Values, kv_head, position, row_bytes);
            for i in 0..head_dim / 32 {
                let value = b.ld(from.at(32 * i), LoadKind::Ordinary);
                let at = b.add(lane, 32 * i);
                kv::store(b, ty, row, at, value);
            }
        });
    }

    fn gamma(&self, b: &mut Builder, layer: Val<U32>, role: TensorRole) -> Option<(Global<F32>, Val<F32>)> {
        self.kernel.shape.qk_norm().then(|| {
            let entry = b.mad::<U32>(layer, LAYER_SLOTS, MODEL_SLOTS + role.slot());
            (vector_from_table::<F32>(b, self.table, entry), self.eps)
        })
    }
}

/// What the leader saw of the host's words.
struct Wishes {
    stop: Var<U32>,
    park: Var<U32>,
    consumed: Var<U32>,
    next_id: Var<U32>,
}
