//! The columns of a pass: items whose tokens run in it together. What a block knows of them lies in its shared memory, since
//! registers are short beside attention. A lane of warp 0 keeps the words of a column; every thread may read them.

use super::{Decoder, Pass};
use crate::ptx::{Builder, Element, Global, LoadKind, Operand, Pred, Shared, Size, U32, U64, Val};
use kiln_shape::mailbox::command::{self, COLUMNS};
use kiln_shape::mailbox::{self, item, state};

const _: () = assert!(COLUMNS <= 32, "a lane a column");

/// Where the words of columns begin, `[COLUMNS]` each.
pub(super) mod word {
    use super::COLUMNS;

    /// The slot of its item.
    pub(crate) const SLOT: u32 = 0;
    /// Ids and tokens of its item that have run.
    pub(crate) const STEP: u32 = SLOT + COLUMNS;
    /// The token that runs.
    pub(crate) const TOKEN: u32 = STEP + COLUMNS;
    /// Tokens made.
    pub(crate) const MADE: u32 = TOKEN + COLUMNS;
    /// The kind of the entry that ends its item, or 0.
    pub(crate) const END: u32 = MADE + COLUMNS;
    /// Whether its item is still to be brought to shared memory.
    pub(crate) const LOADS: u32 = END + COLUMNS;
    /// What to do next, and how many columns there are.
    pub(crate) const KIND: u32 = LOADS + COLUMNS;
    pub(crate) const COUNT: u32 = KIND + 1;
    /// Words of all.
    pub(crate) const ALL: u32 = KIND + 2;
}

/// A block's shared memory for the columns of a pass.
#[derive(Debug, Clone, Copy)]
pub(super) struct Columns {
    /// `[most, ITEM_WORDS]`.
    items: Shared<U32>,
    words: Shared<U32>,
    /// The tokens chosen, `[COLUMNS]`.
    pub(super) chosen: Shared<U32>,
    /// Whether items are asked to stop, `[COLUMNS]`; in the leader's block.
    pub(super) stops: Shared<U32>,
    /// The leader's command as warp 0 has read it.
    command: Shared<U32>,
    /// Columns that the kernel has text for.
    most: u32,
    /// Columns that the launch has room for, at most.
    limit: Size,
    /// What loads of words may assume.
    kind: LoadKind,
}

impl Columns {
    pub(super) fn new(b: &mut Builder, most: u32) -> Columns {
        Columns {
            items: b.shared("items", most * mailbox::ITEM_WORDS),
            words: b.shared("column_words", word::ALL),
            chosen: b.shared("chosen", COLUMNS),
            stops: b.shared("stops", COLUMNS),
            command: b.shared("command", command::WORDS),
            most,
            limit: Size::Const(most),
            kind: LoadKind::Constant,
        }
    }

    /// The same with the launch's limit.
    pub(super) fn with_limit(self, b: &mut Builder) -> Columns {
        Columns { limit: Size::Reg(b.param::<U32>("columns")), ..self }
    }

    /// The same for warp 0 where it changes words.
    pub(super) const fn changing(self) -> Columns {
        Columns { kind: LoadKind::Ordinary, ..self }
    }

    /// Runs `body` for each column of the pass, the same in the whole block.
    #[track_caller]
    pub(super) fn each(&self, b: &mut Builder, pass: &Pass, body: impl FnOnce(&mut Builder, Val<U32>)) {
        match self.most {
            1 => {
                let only = b.mov::<U32>(0);
                body(b, only);
            }
            _ => b.for_range(0, pass.count, 1, body),
        }
    }

    /// Columns of a pass, at most.
    pub(super) const fn limit(&self) -> Size {
        self.limit
    }

    /// Columns that the kernel has text for.
    pub(super) const fn most(&self) -> u32 {
        self.most
    }

    fn at(&self, b: &mut Builder, word: u32, column: impl Operand<U32>) -> Shared<U32> {
        self.place(b, self.words.at(word), column)
    }

    /// A column's place in an array: the first, where there is no other.
    pub(super) fn place(&self, b: &mut Builder, array: Shared<U32>, column: impl Operand<U32>) -> Shared<U32> {
        match self.most {
            1 => array,
            _ => b.index(array, column),
        }
    }

    /// A column's word.
    pub(super) fn get(&self, b: &mut Builder, word: u32, column: impl Operand<U32>) -> Val<U32> {
        let at = self.at(b, word, column);
        b.ld(at, self.kind)
    }

    /// Sets a column's word, by a thread of warp 0.
    pub(super) fn set(&self, b: &mut Builder, word: u32, column: impl Operand<U32>, value: impl Operand<U32>) {
        let at = self.at(b, word, column);
        b.st(at, value);
    }

    /// A word of the command.
    pub(super) fn said(&self, b: &mut Builder, word: u32, column: impl Operand<U32>) -> Val<U32> {
        let at = self.place(b, self.command.at(word), column);
        b.ld(at, LoadKind::Constant)
    }

    /// The words of a column's item.
    pub(super) fn item(&self, b: &mut Builder, column: Val<U32>) -> Shared<U32> {
        match self.most {
            1 => self.items,
            _ => b.byte_index(self.items, column, 4 * mailbox::ITEM_WORDS),
        }
    }

    /// A word of a column's item.
    pub(super) fn of_item(&self, b: &mut Builder, column: Val<U32>, word: u32) -> Val<U32> {
        let item = self.item(b, column);
        b.ld(item.at(word), LoadKind::Constant)
    }

    /// What an address in a column's item points to.
    pub(super) fn pointer<T: Element>(&self, b: &mut Builder, column: Val<U32>, word: u32) -> Global<T> {
        let item = self.item(b, column);
        let address = b.ld(item.at(word).cast::<U64>(), LoadKind::Constant);
        b.global_ptr(address)
    }

    /// The words of an item's choice, by default the first column's.
    pub(super) fn choice(&self, b: &mut Builder, column: Option<Val<U32>>) -> Shared<U32> {
        let item = column.map_or(self.items, |column| self.item(b, column));
        item.at(item::CHOICE)
    }

    /// The position of the token that runs.
    pub(super) fn position(&self, b: &mut Builder, column: Val<U32>) -> Val<U32> {
        let (first, step) = (self.of_item(b, column, item::POSITION), self.get(b, word::STEP, column));
        b.add::<U32>(first, step)
    }

    /// Whether a token is chosen behind the one that runs.
    pub(super) fn chooses(&self, b: &mut Builder, column: Val<U32>) -> Val<Pred> {
        let (prompt, wanted) = (self.of_item(b, column, item::PROMPT), self.of_item(b, column, item::MAX_NEW));
        let step = self.get(b, word::STEP, column);
        let next = b.add::<U32>(step, 1);
        let (is_behind, wants) = (b.setp_ge(next, prompt), b.setp_ne(wanted, 0));
        b.and_pred(is_behind, wants)
    }
}

impl Decoder<'_> {
    /// Brings a command to shared memory, by warp 0 of each block: the second where a pass `ran`.
    pub(super) fn read_command(&self, b: &mut Builder, ran: Val<Pred>) {
        let lane = b.lane();
        let own = b.add::<U32>(lane, command::WORDS);
        let own = b.selp::<U32>(own, lane, ran);
        let (from, to) = (b.index(self.state.at(state::COMMANDS), own), b.index(self.columns.command, lane));
        for half in 0..command::WORDS / 32 {
            let word = b.ld(from.at(32 * half), LoadKind::Ordinary);
            b.st(to.at(32 * half), word);
        }
        b.bar_warp_sync(); // the command is in shared memory
    }

    /// Lines up the columns of the command, by warp 0 of each block. Those of the pass before go on where they are, or leave
    /// where their items have ended.
    pub(super) fn line_up(&self, b: &mut Builder, ran: &Pass) {
        let (columns, lane) = (self.columns.changing(), b.lane());
        let (kind, count) = (columns.said(b, command::KIND, 0), columns.said(b, command::COUNT, 0));
        let slot = columns.said(b, command::SLOT, lane);
        let mut of_command = |word| {
            let said = columns.said(b, word, lane);
            b.var(said)
        };
        let (step, token, made) = (of_command(command::STEP), of_command(command::TOKEN), of_command(command::MADE));
        let is = b.setp_lt(lane, count);
        let is = b.selp::<U32>(1, 0, is);
        let (is, from) = (b.var(is), b.var::<U32>(COLUMNS));
        let go_on = |b: &mut Builder, column: Val<U32>| {
            let own = columns.get(b, word::SLOT, column);
            let same = b.setp_eq(own, slot);
            b.if_(same, |b| {
                for (var, word) in [(step, word::STEP), (token, word::TOKEN), (made, word::MADE)] {
                    let value = columns.get(b, word, column);
                    b.set(var, value);
                }
                b.set(from, column);
                let end = columns.get(b, word::END, column);
                let ended = b.setp_ne(end, 0);
                let stays = b.selp::<U32>(0, is, ended);
                b.set(is, stays);
            });
        };
        // Where there is one column at most, a pass that did not run has none.
        columns.each(b, ran, |b, column| match columns.most {
            1 => {
                let has_run = b.setp_ne::<U32>(ran.count, 0);
                b.if_(has_run, |b| go_on(b, column));
            }
            _ => go_on(b, column),
        });
        let (at, all) = {
            let is = b.get(is);
            self.places(b, is)
        };
        b.bar_warp_sync(); // every lane has read the words of the pass before
        let inside = b.setp_lt(lane, columns.most);
        b.if_(inside, |b| columns.set(b, word::LOADS, lane, 0));
        b.bar_warp_sync(); // they are set anew for those that are there
        let is = b.setp_ne(is, 0);
        b.if_(is, |b| {
            columns.set(b, word::SLOT, at, slot);
            columns.set(b, word::STEP, at, step);
            columns.set(b, word::TOKEN, at, token);
            columns.set(b, word::MADE, at, made);
            let moves = b.setp_ne::<U32>(from, at);
            let loads = b.selp::<U32>(1, 0, moves);
            columns.set(b, word::LOADS, at, loads);
        });
        let first = b.setp_eq(lane, 0);
        b.if_(first, |b| {
            let (runs, none) = (b.setp_eq(kind, command::RUN), b.setp_eq(all, 0));
            let over = b.and_pred(runs, none);
            let kind = b.selp::<U32>(command::WAIT, kind, over);
            columns.set(b, word::KIND, 0, kind);
            columns.set(b, word::COUNT, 0, all);
        });
    }

    /// The place of each lane's column among those that are there, whose lanes have 1, and how many these are.
    fn places(&self, b: &mut Builder, is: Val<U32>) -> (Val<U32>, Val<U32>) {
        if self.columns.most() == 1 {
            return (b.mov::<U32>(0), b.shfl_idx(is, 0));
        }
        let (columns, lane) = (self.columns.changing(), b.lane());
        let inside = b.setp_lt(lane, COLUMNS);
        b.bar_warp_sync(); // nobody reads the words any more
        b.if_(inside, |b| columns.set(b, word::LOADS, lane, is));
        b.bar_warp_sync(); // every lane's is in shared memory
        let (at, all) = (b.var::<U32>(0), b.var::<U32>(0));
        b.for_range(0, COLUMNS, 1, |b, other| {
            let is_own = b.setp_eq(lane, other);
            b.if_(is_own, |b| b.set(at, all));
            let one = columns.get(b, word::LOADS, other);
            let next = b.add::<U32>(all, one);
            b.set(all, next);
        });
        (b.get(at), b.get(all))
    }

    /// Takes up the columns that are lined up. By the whole block.
    pub(super) fn take(&self, b: &mut Builder, pass: &Pass) {
        b.bar_sync(); // the columns are lined up, and nobody reads an item any more
        let columns = &self.columns;
        for (var, word) in [(pass.kind, word::KIND), (pass.count, word::COUNT)] {
            let value = columns.get(b, word, 0);
            b.set(var, value);
        }
        let tid = b.tid();
        columns.each(b, pass, |b, column| {
            let loads = columns.get(b, word::LOADS, column);
            let loads = b.setp_ne(loads, 0);
            b.if_(loads, |b| {
                let slot = columns.get(b, word::SLOT, column);
                let from = b.byte_index(self.state.at(state::ITEMS), slot, 4 * mailbox::ITEM_WORDS);
                let to = columns.item(b, column);
                b.for_range(tid, mailbox::ITEM_WORDS, b.block(), |b, i| {
                    let (from, to) = (b.index(from, i), b.index(to, i));
                    let word = b.ld(from, LoadKind::Ordinary);
                    b.st(to, word);
                });
            });
        });
        b.bar_sync(); // the items are in shared memory
    }
}
