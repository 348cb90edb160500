//! The mailbox between the host and a resident decoder: page-locked memory that both see. The host writes one region of
//! 32-bit words; the device writes another, and a ring of 64-bit entries for each slot.
//!
//! A slot is a place for one item of one session. The host fills the slot's item, rings its doorbell with the item's
//! number, and reads the slot's ring up to an entry that ends the item. The decoder runs a token of several items in a pass;
//! where there are more items than it has columns, they take turns.
//!
//! Each word has a single writer, and there is no read-modify-write. An item is made visible by a release store of its
//! doorbell; a ring's entry carries its readiness in its own 64 bits.
//!
//! Offsets are in 32-bit words.

use crate::choice;

/// Items that may be under way together.
pub const SLOTS: u32 = 64;
/// Host: non-zero asks the kernel to leave after its next pass; items are kept.
pub const PARK: u32 = 0;
/// Host: non-zero says that other work waits for the device: the kernel leaves when its turn is over.
pub const YIELD: u32 = 1;
/// Host: the number of the item in each slot, `[SLOTS]`; a new number is a new item. Never 0.
pub const DOORBELL: u32 = 32;
/// Host: the number of the item to stop in each slot, `[SLOTS]`.
pub const STOP: u32 = DOORBELL + SLOTS;
/// Host: entries read of each slot's ring, counted without end, `[SLOTS]`.
pub const CONSUMED: u32 = STOP + SLOTS;
/// Host: the items, `[SLOTS, ITEM_WORDS]`.
pub const ITEMS: u32 = CONSUMED + SLOTS;
/// Words of an item.
pub const ITEM_WORDS: u32 = item::CHOICE + choice::WORDS;
/// Words of the host's region.
pub const WORDS: u32 = ITEMS + SLOTS * ITEM_WORDS;
/// Entries of each slot's ring.
pub const RING_ENTRIES: u32 = 512;
/// Places of log-probabilities, each taken by an entry's number: twice the entries, since the host says that it has read an
/// entry before it reads what goes with it.
pub const LOGPROBS: u32 = 2 * RING_ENTRIES;
/// The id of no token, chosen where the greatest logit is infinite or a logit is NaN. Vocabularies end far below it.
pub const NO_TOKEN: u32 = u32::MAX;

/// The id of no token, "chosen" where the mask of allowed ids is not there yet: the token before runs again.
pub const AWAITED: u32 = NO_TOKEN - 1;

/// An item's words.
pub mod item {
    /// The item's number, as its doorbell says it.
    pub const NUMBER: u32 = 0;
    /// Ids of the prompt, at least one.
    pub const PROMPT: u32 = 1;
    /// The position of the first of them.
    pub const POSITION: u32 = 2;
    /// The first of them.
    pub const FIRST_ID: u32 = 3;
    /// Tokens to generate.
    pub const MAX_NEW: u32 = 4;
    /// Positions that the cache has room for.
    pub const ROOM: u32 = 5;
    /// Chunks that a row of the partial results has room for.
    pub const MAX_CHUNKS: u32 = 6;
    /// How many stop ids there are.
    pub const STOP_COUNT: u32 = 7;
    /// The address of the table of chunks, 64 bits.
    pub const TABLE: u32 = 8;
    /// The address of the prompt's ids, 64 bits.
    pub const IDS: u32 = 10;
    /// The address of the logits, 64 bits.
    pub const LOGITS: u32 = 12;
    /// The address of attention's partial results, 64 bits.
    pub const PARTIALS: u32 = 14;
    /// The address of the cosines, 64 bits.
    pub const COS: u32 = 16;
    /// The address of the sines, 64 bits.
    pub const SIN: u32 = 18;
    /// The address of the sequence's tokens by position, 64 bits: the kernel writes those that it runs, and penalties read
    /// them.
    pub const HISTORY: u32 = 20;
    /// The address of the tokens' log-probabilities, 64 bits, `[LOGPROBS]` in the order of the slot's ring: each is there
    /// when its token is.
    pub const LOGPROBS: u32 = 22;
    /// The first stop id.
    pub const STOP_IDS: u32 = 24;
    /// Most stop ids.
    pub const STOP_IDS_MAX: u32 = 32;
    /// The words of the choice of each token, as [`crate::choice`] has them.
    pub const CHOICE: u32 = STOP_IDS + STOP_IDS_MAX;
}

/// What the device says of itself, beside the rings.
pub mod report {
    /// The number of the last launch that has left.
    pub const LEFT: u32 = 0;
    /// Tokens run, those again whose masks were late, counted without end.
    pub const PROGRESS: u32 = 32;
    /// Non-zero: a block has waited for longer than the limit, and every block leaves. One more than the block's number.
    pub const STALLED: u32 = 64;
    /// Words of all.
    pub const WORDS: u32 = 96;
}

/// An entry of a ring: the payload in its lower half; in its upper half the kind in bits 28 to 31, the item's number
/// modulo 2^8 in bits 20 to 27, and the entry's number plus one, modulo 2^20, below.
pub mod entry {
    /// A token; the payload is its id.
    pub const TOKEN: u32 = 1;
    /// The item's end by the number of tokens asked for.
    pub const LENGTH: u32 = 2;
    /// The item's end by a stop id, which is the payload and the last token.
    pub const STOP_ID: u32 = 3;
    /// The item's end because it was stopped.
    pub const STOPPED: u32 = 4;
    /// The item's end because the cache has no room; the payload is the next token, which has not run.
    pub const CONTEXT_FULL: u32 = 5;
    /// The item's end because it cannot be worked on: an id outside the vocabulary, which is the payload, or no prompt.
    pub const REJECTED: u32 = 6;
    /// The item's end because no token can be chosen: a logit is not a finite number. The payload is the position.
    pub const NOT_FINITE: u32 = 7;

    /// The upper half of entry `number` of a slot's ring.
    pub const fn tag(kind: u32, item: u32, number: u32) -> u32 {
        kind << 28 | (item & 0xff) << 20 | (number.wrapping_add(1) & 0xf_ffff)
    }

    /// The kind in a tag.
    pub const fn kind(tag: u32) -> u32 {
        tag >> 28
    }
}

/// The device's own words, which outlive a launch.
pub mod state {
    use super::{ITEM_WORDS, SLOTS};

    /// Whether an item of the slot is under way: 0, 1, or [`AWAITS_MASK`].
    pub const ACTIVE: u32 = 0;
    /// An item under way that has come to a choice whose mask was not there.
    pub const AWAITS_MASK: u32 = 2;
    /// The number of the slot's last item.
    pub const NUMBER: u32 = SLOTS;
    /// Ids of its prompt and tokens that have run.
    pub const STEP: u32 = 2 * SLOTS;
    /// The token to run next.
    pub const TOKEN: u32 = 3 * SLOTS;
    /// Tokens made.
    pub const MADE: u32 = 4 * SLOTS;
    /// Entries written to the slot's ring, counted without end.
    pub const EMITTED: u32 = 5 * SLOTS;
    /// The slot of the last pass's last column.
    pub const LAST: u32 = 6 * SLOTS;
    /// Records of the trace that every block has written so far, in a kernel that traces.
    pub const EVENTS: u32 = LAST + 1;
    /// Tokens run, as [`super::report::PROGRESS`] has them.
    pub const PROGRESS: u32 = LAST + 2;
    /// The slot whose item was taken last.
    pub const TAKEN: u32 = LAST + 3;
    /// Words that the leader keeps in shared memory during a launch.
    pub const KEPT: u32 = LAST + 32;
    /// What to do next, decided while nothing runs, and with each pass: two commands.
    pub const COMMANDS: u32 = KEPT;
    /// A copy of the items, `[SLOTS, ITEM_WORDS]`.
    pub const ITEMS: u32 = COMMANDS + 2 * super::command::WORDS;
    /// Words of all.
    pub const WORDS: u32 = ITEMS + SLOTS * ITEM_WORDS;
}

/// What the leader has every block do next.
pub mod command {
    /// Columns of a pass at most: items whose tokens run in it together.
    pub const COLUMNS: u32 = 8;
    /// One of the kinds below.
    pub const KIND: u32 = 0;
    /// Columns of the next pass.
    pub const COUNT: u32 = 1;
    /// The slot of each column, `[COLUMNS]`.
    pub const SLOT: u32 = 8;
    /// Ids and tokens of each column's item that have run, where the pass before does not run it, `[COLUMNS]`.
    pub const STEP: u32 = SLOT + COLUMNS;
    /// The token to run, of the same columns, `[COLUMNS]`.
    pub const TOKEN: u32 = STEP + COLUMNS;
    /// Tokens made, of the same columns, `[COLUMNS]`.
    pub const MADE: u32 = TOKEN + COLUMNS;
    /// The next id of the prompt of each column of the pass before, `[COLUMNS]`.
    pub const NEXT_ID: u32 = MADE + COLUMNS;
    /// Words of all.
    pub const WORDS: u32 = 64;
    const _: () = assert!(NEXT_ID + COLUMNS <= WORDS);

    /// To wait until there is something to do.
    pub const WAIT: u32 = 0;
    /// To run a pass.
    pub const RUN: u32 = 1;
    /// To leave the device.
    pub const LEAVE: u32 = 2;
}

/// What a kernel that traces writes: `[events, blocks]` records, one for each phase that a block went through.
pub mod trace {
    /// 64-bit words of a record: what it is of, then three times of `%globaltimer`: when the phase began, when the block
    /// had done its part and waited for the others, and when the wait was over.
    pub const WORDS: u32 = 4;
    /// Names of the phases. A record's first word has the phase in bits 0 to 7, the layer in bits 8 to 31 and the
    /// position in the upper half, of a pass that of its first column.
    pub const PHASES: [&str; 6] = ["qkv", "attention", "attention output", "gate and up", "down", "head"];
    /// The embedding, and norm, query, key and value.
    pub const QKV: u32 = 0;
    /// QK-norm, RoPE, the write to the cache, and attention.
    pub const ATTENTION: u32 = 1;
    /// Attention's output projection.
    pub const ATTENTION_OUTPUT: u32 = 2;
    /// Norm, gate and up projections.
    pub const GATE_UP: u32 = 3;
    /// The down projection.
    pub const DOWN: u32 = 4;
    /// Logits and each block's best of them.
    pub const HEAD: u32 = 5;
}
