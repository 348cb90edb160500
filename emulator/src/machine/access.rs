//! Memory accesses: ordering, scope, and what else the checks need.

use super::types::named;

named! {
    /// Memory ordering of an access (`.sem`), from the weakest. `.volatile` is relaxed at system scope; only fences are
    /// `.sc`.
    Sem {
        Weak = "weak", Volatile = "volatile", Relaxed = "relaxed", Acquire = "acquire", Release = "release",
        AcqRel = "acq_rel", Sc = "sc",
    }
}

named! {
    /// Scope of an access.
    Scope { Cta = "cta", Cluster = "cluster", Gpu = "gpu", Sys = "sys" }
}

/// An access, without its addresses.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Access {
    /// Bytes of one element, and number of elements.
    pub(crate) bytes: u32,
    pub(crate) count: u32,
    pub(crate) write: bool,
    pub(crate) atomic: bool,
    pub(crate) sem: Sem,
    pub(crate) scope: Scope,
    pub(crate) nc: bool,
    /// Through the async proxy.
    pub(crate) proxy: bool,
    /// In flight until some wait.
    pub(crate) pending: bool,
    /// Whether it passes on what is undefined, and depends on none of it.
    pub(crate) carries: bool,
    /// Of a tensor map, which a chip keeps beside its other memory: not counted.
    pub(crate) of_map: bool,
}

impl Access {
    /// A weak access.
    pub(crate) fn new(bytes: u32, count: u32, write: bool) -> Access {
        let (atomic, nc, proxy, pending, carries, of_map) = (false, false, false, false, false, false);
        Access { bytes, count, write, atomic, sem: Sem::Weak, scope: Scope::Cta, nc, proxy, pending, carries, of_map }
    }

    /// Whether it is strong: atomic, or ordered in any way.
    #[inline(always)]
    pub(crate) fn is_strong(&self) -> bool {
        self.sem != Sem::Weak || self.atomic
    }
}
