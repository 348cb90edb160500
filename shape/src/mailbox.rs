//! The mailbox between the host and a resident decoder: page-locked memory that both see, a region of 32-bit words for
//! what the host says and a ring of 64-bit entries for what the device answers.
//!
//! Each word has a single writer: the host writes control words and items, the device the ring. What is written
//! is made visible by a release store of a word that the other side polls with acquire: [`SUBMITTED`] for items, and the
//! tag inside each 64-bit entry of the ring, which arrives together with its payload. There is no read-modify-write.
//!
//! Offsets are in 32-bit words.

/// Host: non-zero asks the kernel to end as soon as it agrees: it parks, its item is kept.
pub const PARK: u32 = 0;
/// Host: how many entries of the ring it has read, counted without end.
pub const CONSUMED: u32 = 16;
/// Host: how many items it has submitted, counted without end.
pub const SUBMITTED: u32 = 32;
/// Host: non-zero stops item `submitted % SLOTS`, a word for each.
pub const STOP: u32 = 48;
/// The first item.
pub const ITEMS: u32 = 64;
/// Items that the queue holds.
pub const SLOTS: u32 = 4;
/// Words of an item.
pub const ITEM_WORDS: u32 = 64;
/// Words of the host's region.
pub const WORDS: u32 = ITEMS + SLOTS * ITEM_WORDS;
/// Entries of the ring.
pub const RING_ENTRIES: u32 = 1024;
/// The id of no token, chosen where the greatest logit is infinite or a logit is NaN. Vocabularies end far below it.
pub const NO_TOKEN: u32 = u32::MAX;

/// An item's words.
pub mod item {
    /// Ids of the prompt, at least one.
    pub const PROMPT: u32 = 0;
    /// The position of the first of them.
    pub const POSITION: u32 = 1;
    /// Tokens to generate.
    pub const MAX_NEW: u32 = 2;
    /// Positions that the cache has room for.
    pub const ROOM: u32 = 3;
    /// How many stop ids there are.
    pub const STOP_COUNT: u32 = 4;
    /// The address of the table of chunks, 64 bits.
    pub const TABLE: u32 = 6;
    /// The address of the prompt's ids, 64 bits.
    pub const IDS: u32 = 8;
    /// The first stop id.
    pub const STOP_IDS: u32 = 16;
    /// Most stop ids.
    pub const STOP_IDS_MAX: u32 = 32;
}

/// An entry of the ring: the payload in its lower half; in its upper half the kind in bits 24 to 31 and the entry's
/// number plus one, modulo 2^24, below.
pub mod entry {
    /// A token; the payload is its id.
    pub const TOKEN: u32 = 1;
    /// The item's end by the number of tokens asked for.
    pub const LENGTH: u32 = 2;
    /// The item's end by a stop id, which is the payload and the last token.
    pub const STOP_ID: u32 = 3;
    /// The item's end by its stop flag.
    pub const STOPPED: u32 = 4;
    /// The item's end because the cache is full.
    pub const CONTEXT_FULL: u32 = 5;
    /// The item's end because it cannot be worked on: an id outside the vocabulary, which is the payload, or no prompt.
    pub const REJECTED: u32 = 6;

    /// The upper half of entry `number` of kind `kind`.
    pub const fn tag(kind: u32, number: u32) -> u32 {
        kind << 24 | (number.wrapping_add(1) & 0xff_ffff)
    }
}

/// The device's own words, which outlive a launch: offsets in 32-bit words.
pub mod command {
    /// What the leader decided: 1 to run, 2 to leave.
    pub const KIND: u32 = 0;
    /// Non-zero: the item below was parked in its middle.
    pub const RESUME: u32 = 1;
    /// Items taken, counted without end.
    pub const TAKEN: u32 = 2;
    /// Entries written to the ring, counted without end.
    pub const EMITTED: u32 = 3;
    /// Where a parked item goes on: ids of the prompt done, the next token, tokens made.
    pub const STEP: u32 = 4;
    /// The next token.
    pub const TOKEN: u32 = 5;
    /// Tokens made.
    pub const MADE: u32 = 6;
    /// The decision published with a token: 0 go on, 1 stop, 2 park.
    pub const DECISION: u32 = 7;
    /// The prompt's next id, published with the decision.
    pub const NEXT_ID: u32 = 8;
    /// Records of the trace that every block has written so far, in a kernel that traces.
    pub const EVENTS: u32 = 9;
    /// A copy of the item's words.
    pub const ITEM: u32 = 64;
    /// Words of all.
    pub const WORDS: u32 = 128;
}

/// What a kernel that traces writes: `[events, blocks]` records, one for each phase that a block went through.
pub mod trace {
    /// 64-bit words of a record: what it is of, then three times of `%globaltimer`: when the phase began, when the block
    /// had done its part and waited for the others, and when the wait was over.
    pub const WORDS: u32 = 4;
    /// Names of the phases. A record's first word has the phase in bits 0 to 7, the layer in bits 8 to 31 and the
    /// position in the upper half.
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
