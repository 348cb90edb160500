//! Matrix instructions.

use super::super::ast::Arg;
use super::{Decoder, Mods, Res};

impl Decoder<'_> {
    pub(super) fn matrix(&mut self, _name: &str, _m: &mut Mods, _args: &[Arg]) -> Res<bool> {
        Ok(false)
    }
}
