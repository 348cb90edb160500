//! The language kernels are written in: typed values, structured control flow, PTX out.
//!
//! `types` holds the handles a kernel works with; `builder` parameters and shared memory; `flow` control flow; `ops` and
//! `memory` one method per instruction of `table`, whose words are in `modifiers`. They build `ir`, which `verify`
//! (with `uniform`, `rendezvous` and `constant`) checks and `print` (with `names`, `live` and `mnemonic`) writes.
//! Nothing here knows a kernel.

mod builder;
mod coalesce;
mod constant;
mod flow;
mod ir;
mod live;
mod matrix;
mod memory;
mod mnemonic;
mod modifiers;
mod names;
mod ops;
mod print;
mod rendezvous;
mod repeat;
mod table;
mod types;
mod uniform;
mod verify;
mod work;

pub use builder::{Builder, Parameter};
pub use flow::Role;
pub use ir::{Function, Param, Uniformity};
pub use memory::LINE;
pub use modifiers::{
    AtomicOp, Compare, Half, LoadKind, LoadOrder, Order, Rounding, Scope, Special, StateSpace, StoreOrder, Type,
};
pub use ops::Convert;
pub use print::Text;
pub use table::Opcode;
pub use types::{
    Atomic, BF16, Bits16, Bits32, Dim, Element, F16, F32, F64, Float, Global, Integer, Number, Operand, Pred, Ptr, S8,
    S32, Scalar, Shared, Size, Space, Stored, U8, U16, U32, U64, Val, Var, space,
};
pub use work::Work;

pub(crate) use names::is_identifier;

use crate::error::{Error, Result};
use crate::target::Target;

/// A module under construction: kernels of one target, printed together.
#[derive(Debug)]
pub struct Module {
    target: Target,
    is_chain: bool,
    kernels: Vec<(Function, verify::Verified)>,
}

impl Module {
    /// An empty module.
    pub fn new(target: Target) -> Module {
        Module { target, is_chain: false, kernels: Vec::new() }
    }

    /// The same for kernels that follow each other in a stream: each may begin before the one before it ends, where the
    /// target has that and the kernel waits.
    pub fn of_chain(self) -> Module {
        Module { is_chain: true, ..self }
    }

    /// Builds a kernel with `body`, verifies it and adds it.
    ///
    /// # Errors
    /// [`Error::KernelName`] for a name that cannot be an entry's; [`Error::Kernel`] with the rule broken and the line
    /// that broke it.
    #[track_caller]
    pub fn kernel(&mut self, name: &str, block: u32, body: impl FnOnce(&mut Builder)) -> Result<&Function> {
        if !is_identifier(name) {
            return Err(Error::KernelName(name.to_owned()));
        }
        let mut builder = Builder::new(name, self.target, block);
        builder.is_of_chain = self.is_chain;
        body(&mut builder);
        let (mut function, misuse) = builder.finish();
        if let Some((what, source)) = misuse {
            return Err(Error::Kernel { kernel: name.to_owned(), what, source });
        }
        let verified = verify::verify(&function, self.target)?;
        function.note_written(&verified.written);
        self.kernels.push((function, verified));
        let last = self.kernels.len() - 1;
        Ok(&self.kernels[last].0)
    }

    /// The module's PTX, in full.
    pub fn ptx(&self) -> String {
        self.ptx_as(Text::Full)
    }

    /// The module's PTX, as full as asked for.
    pub fn ptx_as(&self, text: Text) -> String {
        print::module(self.target, &print::body(&self.kernels, text))
    }

    /// The module's PTX for each of `targets`, as full as asked for. `None` if a kernel asked for its target: it has to
    /// be built for each.
    ///
    /// # Errors
    /// [`Error::Kernel`] if a kernel does not fit one of the targets.
    pub fn ptx_for(&self, targets: &[Target], text: Text) -> Result<Option<Vec<String>>> {
        if self.kernels.iter().any(|(function, _)| function.target_specific) {
            return Ok(None);
        }
        let body = print::body(&self.kernels, text);
        let mut texts = Vec::with_capacity(targets.len());
        for target in targets {
            self.kernels.iter().try_for_each(|(function, verified)| verify::fits(function, verified, *target))?;
            texts.push(print::module(*target, &body));
        }
        Ok(Some(texts))
    }

    /// The kernels, in the order in which they were added.
    pub fn functions(&self) -> impl Iterator<Item = &Function> {
        self.kernels.iter().map(|(function, _)| function)
    }
}
