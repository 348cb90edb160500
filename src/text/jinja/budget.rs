//! What a template may use: every step, every byte that it looks at or makes, and every level that it goes down.

use super::value::{List, Map, Size, Value};
use super::{Fault, limit};
use std::rc::Rc;
use std::sync::Arc;

/// Levels of calls, tags and operations within each other.
const DEEPEST: u32 = 200;
/// Levels of lists and maps within each other.
const DEEPEST_VALUE: u32 = 64;
/// What an item of a list or an entry of a map counts as.
pub(super) const ITEM: usize = 32;

/// What is left. A step counts as a byte; memory is bounded by the bytes made.
#[derive(Debug)]
pub(super) struct Budget {
    left: u64,
    depth: u32,
}

impl Budget {
    pub(super) fn new(work: u64) -> Budget {
        Budget { left: work, depth: 0 }
    }

    /// Takes work off what is left, before it is done.
    pub(super) fn charge(&mut self, work: usize) -> Result<(), Fault> {
        match self.left.checked_sub(work as u64) {
            Some(left) => {
                self.left = left;
                Ok(())
            }
            None => {
                self.left = 0;
                Err(limit("the template takes more steps or memory than its messages give it fuel for"))
            }
        }
    }

    pub(super) fn enter(&mut self) -> Result<(), Fault> {
        self.depth += 1;
        match self.depth > DEEPEST {
            true => Err(limit(format!("calls, tags and operations are nested more than {DEEPEST} deep"))),
            false => self.charge(1),
        }
    }

    pub(super) fn leave(&mut self) {
        self.depth -= 1;
    }

    /// A string, whose making is charged.
    pub(super) fn text(&mut self, text: impl Into<Arc<str>>) -> Result<Value, Fault> {
        let text = text.into();
        self.charge(text.len())?;
        Ok(Value::Str(text))
    }

    pub(super) fn list(&mut self, items: Vec<Value>) -> Result<Value, Fault> {
        self.sequence(items, false)
    }

    pub(super) fn tuple(&mut self, items: Vec<Value>) -> Result<Value, Fault> {
        self.sequence(items, true)
    }

    /// A list, or a tuple.
    pub(super) fn sequence(&mut self, items: Vec<Value>, is_tuple: bool) -> Result<Value, Fault> {
        self.charge(ITEM * items.len())?;
        let size = size_of_all(items.iter())?;
        Ok(Value::List(Rc::new(List { items, is_tuple, size })))
    }

    /// A map; of entries with the same key the last counts, in the place of the first.
    pub(super) fn map(&mut self, entries: Vec<(Arc<str>, Value)>) -> Result<Value, Fault> {
        self.charge(ITEM * entries.len())?;
        let mut distinct: Vec<(Arc<str>, Value)> = Vec::with_capacity(entries.len());
        for (key, value) in entries {
            self.charge(distinct.len() + key.len())?;
            match distinct.iter_mut().find(|(known, _)| *known == key) {
                Some(known) => known.1 = value,
                None => distinct.push((key, value)),
            }
        }
        let mut size = size_of_all(distinct.iter().map(|(_, value)| value))?;
        let keys: usize = distinct.iter().map(|(key, _)| key.len()).sum();
        size.weight = size.weight.saturating_add(keys);
        Ok(Value::Map(Rc::new(Map { entries: distinct, size })))
    }

    /// Whether two values are equal.
    pub(super) fn equal(&mut self, a: &Value, b: &Value) -> Result<bool, Fault> {
        let (of_a, of_b) = (a.size(), b.size());
        self.charge(match of_a.depth.min(of_b.depth) {
            0 => of_a.weight.min(of_b.weight),
            // Keys of maps are looked for one by one.
            _ => (of_a.weight / ITEM + 1).saturating_mul(of_b.weight / ITEM + 1).saturating_add(of_a.weight),
        })?;
        Ok(a.equals(b))
    }

    /// A value as text.
    pub(super) fn spelled(&mut self, value: &Value) -> Result<Arc<str>, Fault> {
        // A character may be escaped.
        self.charge(value.size().weight.saturating_mul(2))?;
        Ok(value.to_text())
    }
}

/// The size of what holds these values.
fn size_of_all<'a>(values: impl Iterator<Item = &'a Value>) -> Result<Size, Fault> {
    let mut all = Size::default();
    for value in values {
        if matches!(value, Value::Namespace(_)) {
            return Err(limit("a namespace cannot be within another value"));
        }
        let size = value.size();
        all.depth = all.depth.max(size.depth);
        all.weight = all.weight.saturating_add(size.weight).saturating_add(ITEM);
    }
    match all.depth >= DEEPEST_VALUE {
        true => Err(limit(format!("lists and maps are nested more than {DEEPEST_VALUE} deep"))),
        false => Ok(Size { depth: all.depth + 1, ..all }),
    }
}
