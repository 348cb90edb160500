//! Sessions: a sequence of tokens with its KV cache.

use super::auto;
use super::choosing::Choosing;
use super::columns;
use super::edits::Edits;
use super::path::{Item, Path, Step, Work};
use super::persistent::{Decoder, Key, PersistentPath};
use super::sampling::{Sampling, TokenSet};
use super::sequence::{self, Sequence};
use super::stream::StreamPath;
use super::{Inner, KvType, Model, Numerics};
use crate::shape::choice::{Choice, PLAIN};
use crate::shape::mailbox::NO_TOKEN;
use crate::shape::{STAGED_MAX, WeightTypes};
use crate::{Error, Result};
use std::mem::ManuallyDrop;
use std::ops::ControlFlow;

/// The path of a session. All give the same bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum PathChoice {
    /// The persistent path or the graph path, whichever is predicted to be faster on the chip ([`cost`]); the persistent
    /// one on a chip without figures. Where a device cannot launch the decoder it is the graph path, without figures the
    /// stream path.
    ///
    /// [`cost`]: crate::model::cost
    #[default]
    Auto,
    /// One launch for each fused kernel.
    Stream,
    /// The launches of the stream path as one graph for each token, recorded once for each length class.
    Graph,
    /// One cooperative launch for whole sequences. In fast numerics long prompts, and the first token behind them, go as on
    /// the stream path.
    Persistent,
}

/// What a session is made with: [`SessionOptions::default`] and what `with_` changes of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct SessionOptions {
    /// The cache's type.
    pub kv: KvType,
    /// Positions it may grow to; `None` for all that the model was trained for.
    pub capacity: Option<u32>,
    /// The numerics of its products. Fast rounds activations to int8 before quantised weights are multiplied with them,
    /// and multiplies integers: about a fifth of the instructions, logits of quantised weights 0.6 to 3 % from float64; tensor cores attend to
    /// an f16 cache. Exact, the reference, multiplies in f32: within 1e-6 with an f32 cache.
    pub numerics: Numerics,
    /// The way its tokens are run.
    pub path: PathChoice,
    /// Blocks of the persistent path's grid; `None` for one on each multiprocessor.
    pub blocks: Option<u32>,
}

impl SessionOptions {
    /// With another cache type.
    #[must_use]
    pub const fn with_kv(mut self, kv: KvType) -> SessionOptions {
        self.kv = kv;
        self
    }

    /// With room for that many positions; `None` for all that the model was trained for.
    #[must_use]
    pub fn with_capacity(mut self, capacity: impl Into<Option<u32>>) -> SessionOptions {
        self.capacity = capacity.into();
        self
    }

    /// With other numerics.
    #[must_use]
    pub const fn with_numerics(mut self, numerics: Numerics) -> SessionOptions {
        self.numerics = numerics;
        self
    }

    /// With another path.
    #[must_use]
    pub const fn with_path(mut self, path: PathChoice) -> SessionOptions {
        self.path = path;
        self
    }

    /// With that many blocks on the persistent path; `None` for one on each multiprocessor.
    #[must_use]
    pub fn with_blocks(mut self, blocks: impl Into<Option<u32>>) -> SessionOptions {
        self.blocks = blocks.into();
        self
    }
}

/// A way in which a path begins an item.
type Begin = fn(&mut (dyn Path + 'static), &Inner, &mut Sequence, &Item<'_>) -> Result<()>;

/// A sequence of tokens and its KV cache, which grows by need. Sessions of one model share its weights, and may run in
/// different threads.
pub struct Session {
    path: Box<dyn Path>,
    why: String,
    /// Freed once no item uses it any more.
    sequence: ManuallyDrop<Sequence>,
    /// Every token, by position.
    tokens: Vec<u32>,
    /// The number of tokens in the cache. To go on behind the last one it is run, again if it is there.
    ran: usize,
    /// Of the item being generated: tokens in the cache when it began, and tokens yielded since.
    item: Option<(usize, usize)>,
    options: SessionOptions,
    model: Model,
}

impl Session {
    pub(super) fn new(model: &Model, options: SessionOptions) -> Result<Session> {
        // What is resident parks once for all that is allocated.
        let _quiet = model.inner.device.context().quiesce()?;
        let capacity = check(model, options)?;
        let (path, why) = choose(model, options)?;
        Session::with_path(model, options, capacity, path, why)
    }

    /// A session on the persistent path whose blocks stamp their phases, up to `events` of them.
    #[cfg(feature = "trace")]
    pub(super) fn tracing(model: &Model, options: SessionOptions, events: u32) -> Result<Session> {
        let _quiet = model.inner.device.context().quiesce()?;
        let capacity = check(model, options)?;
        let SessionOptions { kv, numerics, blocks, .. } = options;
        let key = Key { numerics, kv, blocks, events: Some(events) };
        let path = PersistentPath::new(Decoder::shared(&model.inner, key)?);
        Session::with_path(model, options, capacity, Box::new(path), "to trace".to_owned())
    }

    /// The stamps of each block's phases so far; `None` if the session does not trace.
    ///
    /// # Errors
    /// What the driver reports.
    #[cfg(feature = "trace")]
    pub fn trace(&mut self) -> Result<Option<super::trace::Trace>> {
        self.end_item()?;
        self.path.trace()
    }

    fn with_path(
        model: &Model,
        options: SessionOptions,
        capacity: u32,
        path: Box<dyn Path>,
        why: String,
    ) -> Result<Session> {
        let sequence = ManuallyDrop::new(Sequence::new(&model.inner, options.kv, capacity)?);
        Ok(Session { path, why, sequence, tokens: Vec::new(), ran: 0, item: None, options, model: model.clone() })
    }

    /// Tokens of a prompt that run together, at most.
    pub const BATCH: usize = columns::MOST as usize;

    /// The model.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// Every token so far.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Positions that the session may grow to.
    pub fn capacity(&self) -> u32 {
        self.sequence.capacity
    }

    /// The path that was chosen, and why.
    pub fn path(&self) -> (&'static str, &str) {
        (self.path.name(), &self.why)
    }

    /// The numerics of its products.
    pub fn numerics(&self) -> Numerics {
        self.options.numerics
    }

    /// What the path asked of the driver so far.
    pub fn work(&self) -> Work {
        self.path.work()
    }

    /// The most bytes of device memory that a session takes, its cache full, without the logits of
    /// [`Session::each_logits`], up to 64 times the vocabulary, and without the decoder that sessions share. What prompts take
    /// of it a session gives up when its prompt has run: the model keeps it for the next one, whosever that is.
    pub fn memory_need(model: &Model, options: SessionOptions) -> u64 {
        let shape = model.shape();
        let capacity = options.capacity.unwrap_or(shape.context);
        let prompts = match options.numerics {
            Numerics::Exact => 0,
            Numerics::Fast => columns::memory(shape, options.kv, capacity, model.device().multiprocessors()),
        };
        let choosing = Choosing::bytes(shape.vocab) + Edits::bytes(shape.vocab);
        sequence::bytes(shape, options.kv, capacity).saturating_add(prompts).saturating_add(choosing)
    }

    /// Appends `ids`. They are run by the next [`Session::generate`] or [`Session::logits`], in its launch where the
    /// path can, or by [`Session::prefill`] before that.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for an id outside the vocabulary, [`Error::ContextFull`] if they do not fit; then
    /// nothing has changed. What the driver reports of an item that still ran.
    pub fn append(&mut self, ids: &[u32]) -> Result<()> {
        let vocab = self.model.shape().vocab;
        if let Some(id) = ids.iter().find(|id| **id >= vocab) {
            return Err(Error::InvalidArgument {
                what: "token id".to_owned(),
                found: id.to_string(),
                expected: format!("less than the vocabulary of {vocab}"),
            });
        }
        let (used, capacity) = (self.tokens.len(), self.sequence.capacity as usize);
        if ids.len() > capacity.saturating_sub(used) {
            return Err(Error::ContextFull { used, more: ids.len(), capacity });
        }
        self.end_item()?;
        self.tokens.extend_from_slice(ids);
        Ok(())
    }

    /// Runs the appended tokens but the last, so that the next call has less to run.
    ///
    /// # Errors
    /// What the driver reports.
    pub fn prefill(&mut self) -> Result<()> {
        self.prefill_by((Session::BATCH, 1), |_, _| true).map(drop)
    }

    /// Runs the appended tokens but the last [`Session::BATCH`], batch by batch, each a turn on the device; these run with
    /// the choice of the next token. Behind each batch `progress` is told the tokens that have run and how many are to run
    /// here, in the whole sequence; where it gives false, the others are left to the next call. Gives whether all have run.
    ///
    /// # Errors
    /// What the driver reports.
    pub fn prefill_by_batches(&mut self, progress: impl FnMut(usize, usize) -> bool) -> Result<bool> {
        self.prefill_by((Session::BATCH, Session::BATCH), progress)
    }

    /// The same by batches of so many tokens, but for the last so many.
    pub(super) fn prefill_by(
        &mut self,
        (batch, left): (usize, usize),
        mut progress: impl FnMut(usize, usize) -> bool,
    ) -> Result<bool> {
        let last = self.tokens.len().saturating_sub(left);
        while last > self.ran {
            let end = last.min(self.ran + batch);
            self.begin(end, 0, &[], PLAIN, <dyn Path>::begin)?;
            while let Step::Token(_) = self.path.next(&self.model.inner, &mut self.sequence)? {}
            (self.ran, self.item) = (end, None);
            if !progress(end, last) {
                break;
            }
        }
        self.path.rest();
        Ok(last <= self.ran)
    }

    /// Tokens that have not run.
    pub(super) fn pending(&self) -> usize {
        self.tokens.len() - self.ran
    }

    /// The logits after the last token, `[vocab]`. That token runs for them, again where it has before; and it runs once more in
    /// a generation that follows.
    ///
    /// # Errors
    /// [`Error::EmptySession`] before the first token; [`Error::LogitsNotFinite`] if one is NaN or +inf, or all are
    /// -inf; what the driver reports.
    pub fn logits(&mut self) -> Result<Vec<f32>> {
        self.prefill_by_batches(|_, _| true)?;
        self.logits_behind(self.tokens.len())
    }

    /// Runs the appended tokens that have not run, and gives `each` the logits after every one of them, as
    /// [`Session::logits`] has them, with its position. Where fast numerics run several tokens at once, on the stream and graph
    /// paths, batches of [`Session::BATCH`] share a pass over the weights. Ends where `each` fails; then some tokens behind
    /// that one may have run.
    ///
    /// # Errors
    /// What `each` returns; [`Error::LogitsNotFinite`] as [`Session::logits`]; what the driver reports.
    pub fn each_logits<E: From<Error>>(
        &mut self,
        mut each: impl FnMut(usize, &[f32]) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        while self.ran < self.tokens.len() {
            let (first, end) = (self.ran, self.tokens.len().min(self.ran + Session::BATCH));
            self.end_item()?;
            self.sequence.own(&self.model.inner, first as u32)?;
            let ids = self.tokens.get(first..end).unwrap_or_default();
            let item = Item { ids, position: first as u32, max_new: 0, stop_ids: &[], choice: PLAIN };
            let mut result = Ok(());
            let mut row = |position: u32, logits: &[f32]| {
                let position = position as usize;
                result = match decide(logits) {
                    true => each(position, logits),
                    false => Err(Error::LogitsNotFinite { position }.into()),
                };
                if result.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            };
            if self.path.every_logits(&self.model.inner, &mut self.sequence, &item, &mut row)? {
                self.ran = end;
                result?;
            } else {
                let logits = self.logits_behind(first + 1)?;
                each(first, &logits)?;
            }
        }
        self.path.rest();
        Ok(())
    }

    /// The logits after the first `end` tokens.
    fn logits_behind(&mut self, end: usize) -> Result<Vec<f32>> {
        self.begin(end, 1, &[], PLAIN, <dyn Path>::begin_logits)?;
        while let Step::Token(_) = self.path_step()? {}
        (self.ran, self.item) = (end, None);
        self.path.logits(&self.sequence)
    }

    /// Begins an item with the tokens from the cache's end up to `end`, at least one, in one of the path's ways.
    fn begin(&mut self, end: usize, max_new: usize, stop_ids: &[u32], choice: Choice, way: Begin) -> Result<()> {
        self.end_item()?;
        let first = self.ran.min(end.saturating_sub(1));
        let ids = self.tokens.get(first..end).unwrap_or_default();
        if ids.is_empty() {
            return Err(Error::EmptySession);
        }
        let item = Item { ids, position: first as u32, max_new: max_new as u32, stop_ids, choice };
        self.sequence.own(&self.model.inner, first as u32)?;
        self.item = Some((end, 0));
        way(&mut *self.path, &self.model.inner, &mut self.sequence, &item)
    }

    /// Tokens that there is room for.
    pub(super) fn room(&self) -> usize {
        (self.sequence.capacity as usize).saturating_sub(self.tokens.len())
    }

    /// Has what the device changes logits by for a choice of tokens, where it is not in the choice's words; gives them with
    /// where it is.
    pub(super) fn prepare_choice(&mut self, sampling: &Sampling, constrained: bool, choice: Choice) -> Result<Choice> {
        self.end_item()?;
        self.sequence.edits.prepare(&self.model.inner, sampling, constrained, choice)
    }

    /// Whether an item may begin before the mask of its next token is there; else a token with a mask is an item of its own.
    pub(super) fn awaits_masks(&self) -> bool {
        self.path.awaits_masks()
    }

    /// Says what the next token may be, for a choice under a constraint.
    pub(super) fn allow(&mut self, allowed: &TokenSet) {
        self.sequence.edits.allow(allowed, self.tokens.len() as u32);
    }

    /// Begins to generate at most `max_new` tokens, for which there is room, chosen by the device.
    pub(super) fn begin_generation(&mut self, max_new: usize, stop_ids: &[u32], choice: Choice) -> Result<()> {
        self.begin(self.tokens.len(), max_new, stop_ids, choice, <dyn Path>::begin)
    }

    /// The next token of the item, which is appended, or its end.
    pub(super) fn next_step(&mut self) -> Result<Step> {
        let step = self.path_step()?;
        match (step, &mut self.item) {
            (Step::Token(token), Some((end, made))) => {
                *made += 1;
                self.ran = *end + *made - 1;
                self.tokens.push(token);
            }
            (Step::Token(_), None) => {}
            (Step::End(_), _) => {
                self.item = None;
                self.ran = self.ran.min(self.tokens.len().saturating_sub(1));
            }
        }
        Ok(step)
    }

    /// The path's next step. Where it cannot choose a token that is an error, and the item has ended.
    fn path_step(&mut self) -> Result<Step> {
        let step = self.path.next(&self.model.inner, &mut self.sequence)?;
        if step == Step::Token(NO_TOKEN) {
            // The item's own end says less: that its next token is outside the vocabulary.
            let ran = self.item.map_or(self.tokens.len(), |(end, made)| end + made);
            let _ = self.end_item();
            return Err(Error::LogitsNotFinite { position: ran.saturating_sub(1) });
        }
        Ok(step)
    }

    /// The log-probability of the token of the last step, where the item's choice wants one.
    pub(super) fn logprob(&self) -> Option<f32> {
        self.path.logprob()
    }

    /// Stops the item, if there is one.
    pub(crate) fn end_item(&mut self) -> Result<()> {
        // Also where nothing was yielded: an item whose begin failed may have been queued.
        self.path.stop()?;
        self.item = None;
        Ok(())
    }

    /// Forgets all tokens from position `len` on.
    pub fn truncate(&mut self, len: usize) {
        if len < self.tokens.len() {
            self.tokens.truncate(len);
            self.ran = self.ran.min(len);
        }
    }

    pub(super) fn options(&self) -> SessionOptions {
        self.options
    }

    /// The cache's memory, the tokens, and how many of them are in it.
    pub(super) fn kept(&self) -> (&Sequence, &[u32], usize) {
        (&self.sequence, &self.tokens, self.ran)
    }

    /// Fills the cache for the first tokens, whole chunks of them, each by what `content` puts into its bytes.
    pub(super) fn restore(&mut self, held: u32, content: impl FnMut(&mut [u8]) -> Result<()>) -> Result<()> {
        self.sequence.write_chunks(&self.model.inner, held, content)?;
        let _quiet = self.model.inner.device.context().quiesce()?;
        self.sequence.write_tokens(0, self.tokens.get(..held as usize).unwrap_or(&self.tokens))?;
        self.ran = held as usize;
        Ok(())
    }

    /// Appends the token that was chosen from [`Session::logits`].
    pub(super) fn push(&mut self, token: u32) {
        self.tokens.push(token);
    }

    /// A copy that goes on by itself. Both share the memory of what has run, in whole chunks of 128 positions, until one is
    /// truncated to a place within. Tokens that have not run are run by both sessions, unless [`Session::prefill`] runs
    /// them before.
    ///
    /// # Errors
    /// If the copy does not fit the device's memory; what the driver reports.
    pub fn fork(&self) -> Result<Session> {
        // An item that was left in its middle writes to the cache while the kernel is on the device.
        let _quiet = self.model.inner.device.context().quiesce()?;
        let mut copy = Session::new(&self.model, self.options)?;
        let stream = self.model.inner.device.stream()?;
        copy.sequence.copy_cache(&self.model.inner, &self.sequence, &stream, self.ran as u32)?;
        copy.sequence.write_tokens(0, &self.tokens)?;
        (copy.tokens, copy.ran) = (self.tokens.clone(), self.ran);
        Ok(copy)
    }
}

/// Whether a token can be chosen from logits: none is NaN or +inf, and not all are -inf.
fn decide(logits: &[f32]) -> bool {
    let greatest = logits.iter().fold(f32::NEG_INFINITY, |greatest, logit| match logit.is_nan() {
        true => f32::INFINITY,
        false => greatest.max(*logit),
    });
    greatest.is_finite()
}

/// The capacity that the options ask for, if the model has so many positions, the numerics take its matrices, and the cache
/// would fit the device.
fn check(model: &Model, options: SessionOptions) -> Result<u32> {
    let inner = &model.inner;
    let context = inner.file.shape().context;
    let capacity = options.capacity.unwrap_or(context);
    if capacity == 0 || capacity > context {
        return Err(Error::InvalidArgument {
            what: "capacity of a session".to_owned(),
            found: capacity.to_string(),
            expected: format!("1 to {context}, the model's context"),
        });
    }
    let (shape, numerics) = (inner.file.shape(), options.numerics);
    let refused: WeightTypes = inner.file.types().iter().filter(|ty| !numerics.takes(*ty, shape)).collect();
    if !refused.is_empty() {
        let longest = shape.ffn.max(shape.hidden).max(shape.q_dim());
        return Err(Error::InvalidArgument {
            what: "numerics of a session".to_owned(),
            found: format!("{numerics} ones for matrices in {refused} and rows of up to {longest} weights"),
            expected: format!("exact ones: fast ones take matrices of floats with rows of at most {STAGED_MAX}"),
        });
    }
    sequence::check_memory(&inner.device, shape, options.kv)?;
    Ok(capacity)
}

/// The path that the options ask for, and why it is that one.
fn choose(model: &Model, options: SessionOptions) -> Result<(Box<dyn Path>, String)> {
    let (inner, SessionOptions { kv, numerics, blocks, .. }) = (&model.inner, options);
    let of_stream =
        || Ok::<_, Error>(StreamPath::new(inner.device.stream()?, inner.stream_kernels(numerics)?, numerics));
    let stream = |why: String| -> Result<(Box<dyn Path>, String)> { Ok((Box::new(of_stream()?), why)) };
    let graph = |why: String| -> Result<(Box<dyn Path>, String)> { Ok((Box::new(of_stream()?.with_graphs()), why)) };
    let persistent = |why: &str| -> Result<(Box<dyn Path>, String)> {
        let key = Key { numerics, kv, blocks, events: None };
        Ok((Box::new(PersistentPath::new(Decoder::shared(inner, key)?)), why.to_owned()))
    };
    match options.path {
        PathChoice::Stream => stream("asked for".to_owned()),
        PathChoice::Graph => graph("asked for".to_owned()),
        PathChoice::Persistent => persistent("asked for"),
        PathChoice::Auto => match auto::predicted(inner, numerics, kv) {
            // Who asks for blocks means the persistent path.
            Some(predicted) if predicted.is_graph && blocks.is_none() => graph(predicted.why),
            predicted => {
                let has_figures = predicted.is_some();
                let why =
                    predicted.map_or("auto: the device launches cooperatively".to_owned(), |predicted| predicted.why);
                persistent(&why).or_else(|error| match error {
                    // A lost context or a full memory is not mended by another path.
                    Error::Cuda { .. } | Error::OutOfMemory { .. } | Error::Stalled { .. } => Err(error),
                    error if blocks.is_some() => Err(error),
                    error => {
                        let why = format!("auto: the persistent path cannot be taken: {error}");
                        // A graph's nodes cost less than launches on every chip that there are figures of.
                        if has_figures { graph(why) } else { stream(why) }
                    }
                })
            }
        },
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let ended = self.end_item();
        // What is resident parks once for all that is freed. Where the item has not ended its memory stays as it is.
        let quiet = self.model.inner.device.context().quiesce();
        if ended.is_ok() && quiet.is_ok() {
            // SAFETY: dropped here and nowhere else, and not used again.
            unsafe { ManuallyDrop::drop(&mut self.sequence) };
        }
    }
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session")
            .field("tokens", &self.tokens.len())
            .field("capacity", &self.sequence.capacity)
            .field("path", &self.path.name())
            .field("numerics", &self.options.numerics)
            .finish_non_exhaustive()
    }
}
