//! Loads, stores, atomics, fences and prefetches.

use super::super::ast::Arg;
use super::super::types::{Space, Ty};
use super::{Decoder, Mods, Res};
use crate::exec::inst::*;

/// Cache and eviction hints: they change no result.
const HINTS: [&str; 20] = [
    "ca",
    "cg",
    "cs",
    "lu",
    "cv",
    "wb",
    "wt",
    "L1::evict_normal",
    "L1::evict_unchanged",
    "L1::evict_first",
    "L1::evict_last",
    "L1::no_allocate",
    "L2::evict_normal",
    "L2::evict_first",
    "L2::evict_last",
    "L2::64B",
    "L2::128B",
    "L2::256B",
    "unified",
    "entry",
];

impl Decoder<'_> {
    pub(super) fn memory(&mut self, name: &str, m: &mut Mods, args: &[Arg]) -> Res<bool> {
        match name {
            "ld" | "ldu" => self.load(m, args)?,
            "st" => self.store(m, args)?,
            "atom" => self.atomic(true, m, args)?,
            "red" if !m.parts.contains(&"async") => self.atomic(false, m, args)?,
            "prefetch" | "prefetchu" => {
                let _ = (m.take("global"), m.take("local"), m.take("const"), m.take("param"));
                if m.one_of(&["L1", "L2", "L2::evict_last", "L2::evict_normal"]).is_none() {
                    return self.fail(name, "needs a cache level");
                }
                self.arity(args, 1)?;
                self.address(&args[0], Space::Generic)?;
                self.push(Op::Nop);
            }
            "discard" | "applypriority" => {
                let _ = m.take("global");
                if m.one_of(&["L2", "L2::evict_normal"]).is_none() {
                    return self.fail(name, "needs a cache level");
                }
                self.arity(args, 2)?;
                self.address(&args[0], Space::Generic)?;
                self.push(Op::Nop);
            }
            "createpolicy" => {
                if m.take("fractional") {
                    while m
                        .one_of(&["L2::evict_last", "L2::evict_first", "L2::evict_normal", "L2::evict_unchanged"])
                        .is_some()
                    {}
                } else {
                    return self.fail(name, "only .fractional is supported");
                }
                self.expect(m, &[Ty::B64])?;
                let zero = self.constant(0, true);
                if args.is_empty() || args.len() > 2 {
                    return self.arity(args, 1).map(|()| true);
                }
                let d = self.dst(&args[0], Ty::B64)?;
                self.push(Op::Mov64(d, zero));
            }
            "membar" => {
                if m.take("proxy") {
                    return self.proxy(m).map(|()| true);
                }
                let Some(level) = m.one_of(&["cta", "gl", "sys"]) else { return self.fail(name, "needs a level") };
                let scope = match level {
                    "cta" => Scope::Cta,
                    "gl" => Scope::Gpu,
                    _ => Scope::Sys,
                };
                self.arity(args, 0)?;
                self.push(Op::Fence(Sem::Sc, scope));
            }
            "fence" => {
                if m.take("proxy") {
                    return self.proxy(m).map(|()| true);
                }
                if m.take("mbarrier_init") {
                    let _ = (m.take("release"), self.scope(m));
                    self.push(Op::FenceProxy(Proxy::MbarrierInit));
                    return Ok(true);
                }
                let sem = match m.one_of(&["acq_rel", "sc", "acquire", "release"]) {
                    None | Some("acq_rel") => Sem::AcqRel,
                    Some("acquire") => Sem::Acquire,
                    Some("release") => Sem::Release,
                    _ => Sem::Sc,
                };
                let Some(scope) = self.scope(m) else { return self.fail(name, "needs a scope") };
                self.arity(args, 0)?;
                self.push(Op::Fence(sem, scope));
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn proxy(&mut self, m: &mut Mods) -> Res<()> {
        if m.take("alias") {
            self.push(Op::FenceProxy(Proxy::Alias));
        } else if m.one_of(&["async", "async.global", "async.shared::cta", "async.shared::cluster"]).is_some() {
            let _ = m.one_of(&["global", "shared::cta", "shared::cluster"]);
            self.push(Op::FenceProxy(Proxy::Async));
        } else {
            return self.fail("proxy", "proxy that is not known");
        }
        Ok(())
    }

    pub(super) fn scope(&self, m: &mut Mods) -> Option<Scope> {
        Some(match m.one_of(&["cta", "cluster", "gpu", "sys"])? {
            "cta" => Scope::Cta,
            "cluster" => Scope::Cluster,
            "gpu" => Scope::Gpu,
            _ => Scope::Sys,
        })
    }

    pub(super) fn space(&self, m: &mut Mods) -> Space {
        let list = [
            "global",
            "shared",
            "shared::cta",
            "shared::cluster",
            "local",
            "const",
            "param",
            "param::entry",
            "param::func",
        ];
        match m.one_of(&list) {
            Some("global") => Space::Global,
            Some("shared" | "shared::cta" | "shared::cluster") => Space::Shared,
            Some("local") => Space::Local,
            Some("const") => Space::Const,
            Some(_) => Space::Param,
            None => Space::Generic,
        }
    }

    /// An address operand; the space may be narrowed by what the operand names.
    pub(super) fn address(&mut self, arg: &Arg, space: Space) -> Res<(Address, MemSpace)> {
        let Arg::Address(base, offset) = arg else {
            return self.fail(format!("{arg:?}"), "expected an address in brackets");
        };
        let mut mem = match space {
            Space::Generic => MemSpace::Generic,
            Space::Global | Space::Const => MemSpace::Global,
            Space::Shared => MemSpace::Shared,
            Space::Local => MemSpace::Local,
            Space::Param => MemSpace::Param,
        };
        let Some(name) = base else {
            return Ok((Address { base: NONE, wide: true, offset: *offset }, mem));
        };
        if let Some((slot, ty)) = self.named(name) {
            if !matches!(ty.bytes(), 4 | 8) || ty.float() {
                return self.fail(name, "an address is a 32-bit or 64-bit integer");
            }
            let wide = ty.bytes() == 8;
            if !wide && matches!(mem, MemSpace::Generic | MemSpace::Global) {
                return self.fail(name, "an address in this state space has 64 bits");
            }
            Self::note(&mut self.cur.reads, slot, ty);
            return Ok((Address { base: slot, wide, offset: *offset }, mem));
        }
        let Some((found, address)) = self.symbol(name)? else {
            return self.fail(name, "address of something that is not declared");
        };
        match (mem, found) {
            // Parameters of functions live in local memory.
            (MemSpace::Param, Space::Local) => mem = MemSpace::Local,
            (MemSpace::Param, Space::Param)
            | (MemSpace::Shared, Space::Shared)
            | (MemSpace::Local, Space::Local)
            | (MemSpace::Global, Space::Global | Space::Const)
            | (MemSpace::Generic, Space::Global | Space::Const) => {}
            _ => return self.fail(name, format!("a variable in {found:?} space, accessed as {space:?}")),
        }
        Ok((Address { base: NONE, wide: true, offset: offset.wrapping_add(address as i64) }, mem))
    }

    /// Ordering and scope of an access.
    fn order(&self, m: &mut Mods) -> Res<(Sem, Scope)> {
        let sem = match m.one_of(&["weak", "volatile", "relaxed", "acquire", "release", "acq_rel", "mmio"]) {
            None | Some("weak") => Sem::Weak,
            Some("volatile") => Sem::Volatile,
            Some("relaxed") => Sem::Relaxed,
            Some("acquire") => Sem::Acquire,
            Some("release") => Sem::Release,
            Some("acq_rel") => Sem::AcqRel,
            _ => {
                if !m.take("relaxed") {
                    return self.fail("mmio", "needs .relaxed");
                }
                Sem::Relaxed
            }
        };
        let scope = self.scope(m);
        match sem {
            Sem::Weak | Sem::Volatile if scope.is_some() => self.fail("scope", "only ordered accesses have a scope"),
            Sem::Weak => Ok((sem, Scope::Cta)),
            Sem::Volatile => Ok((sem, Scope::Sys)),
            _ => match scope {
                Some(s) => Ok((sem, s)),
                None => self.fail("scope", "an ordered access needs a scope"),
            },
        }
    }

    fn hints(&mut self, m: &mut Mods, args: &[Arg], n: usize) -> Res<()> {
        while m.one_of(&HINTS).is_some() {}
        let policy = m.take("L2::cache_hint");
        self.arity(args, n + usize::from(policy))?;
        if policy {
            self.src(&args[n], Ty::B64)?;
        }
        Ok(())
    }

    fn elements(&mut self, arg: &Arg, ty: Ty, count: usize, write: bool) -> Res<Vec<(R, W)>> {
        let list = match arg {
            Arg::Vector(v) => &v[..],
            one => std::slice::from_ref(one),
        };
        if list.len() != count {
            return self.fail(format!("{} elements", list.len()), format!("the access has {count}"));
        }
        let mut regs = Vec::new();
        for a in list {
            if ty == Ty::B128 {
                let r = if write { self.dst(a, ty)? } else { self.src(a, ty)? };
                regs.push((r, W::W64));
                regs.push((r + 2, W::W64));
            } else {
                let (r, w, _) = self.loose(a, ty, write)?;
                regs.push((r, w));
            }
        }
        Ok(regs)
    }

    fn vector(m: &mut Mods) -> usize {
        match m.one_of(&["v2", "v4", "v8"]) {
            Some("v2") => 2,
            Some("v4") => 4,
            Some(_) => 8,
            None => 1,
        }
    }

    fn check_vector(&self, ty: Ty, count: usize) -> Res<()> {
        if ty == Ty::Pred || ty.bytes() * count as u32 > if count == 8 || ty.bytes() == 8 { 32 } else { 16 } {
            return self.fail(format!("{count} x {ty:?}"), "vector that is too wide");
        }
        Ok(())
    }

    fn load(&mut self, m: &mut Mods, args: &[Arg]) -> Res<()> {
        let (sem, scope) = self.order(m)?;
        let space = self.space(m);
        let nc = m.take("nc");
        let count = Self::vector(m);
        self.hints(m, args, 2)?;
        let ty = m.ty()?;
        self.check_vector(ty, count)?;
        let (address, mem) = self.address(&args[1], space)?;
        let regs = self.elements(&args[0], ty, count, true)?;
        let constant = space == Space::Const;
        let bytes = if ty == Ty::B128 { 8 } else { ty.bytes() as u8 };
        let op = MemOp { space: mem, bytes, signed: ty.signed(), regs, address, sem, scope, nc, constant };
        self.access(mem, sem, Op::Ld(Box::new(op)));
        Ok(())
    }

    fn store(&mut self, m: &mut Mods, args: &[Arg]) -> Res<()> {
        if m.parts.contains(&"async") || m.parts.contains(&"bulk") {
            return self.fail("st", "this store is not supported");
        }
        let (sem, scope) = self.order(m)?;
        let space = self.space(m);
        let count = Self::vector(m);
        self.hints(m, args, 2)?;
        let ty = m.ty()?;
        self.check_vector(ty, count)?;
        if sem == Sem::Acquire || sem == Sem::AcqRel {
            return self.fail("st", "a store is .relaxed or .release");
        }
        let (address, mem) = self.address(&args[0], space)?;
        let regs = self.elements(&args[1], ty, count, false)?;
        let bytes = if ty == Ty::B128 { 8 } else { ty.bytes() as u8 };
        let op = MemOp {
            space: mem,
            bytes,
            signed: false,
            regs,
            address,
            sem,
            scope,
            nc: false,
            constant: space == Space::Const,
        };
        self.access(mem, sem, Op::St(Box::new(op)));
        Ok(())
    }

    fn access(&mut self, mem: MemSpace, sem: Sem, op: Op) {
        if sem != Sem::Weak && matches!(mem, MemSpace::Generic | MemSpace::Global) {
            self.push_turn(op);
        } else {
            self.push(op);
        }
    }

    fn atomic(&mut self, returns: bool, m: &mut Mods, args: &[Arg]) -> Res<()> {
        let sem = match m.one_of(&["relaxed", "acquire", "release", "acq_rel"]) {
            None | Some("relaxed") => Sem::Relaxed,
            Some("acquire") => Sem::Acquire,
            Some("release") => Sem::Release,
            _ => Sem::AcqRel,
        };
        let scope = self.scope(m).unwrap_or(Scope::Gpu);
        let space = self.space(m);
        let list = ["add", "min", "max", "inc", "dec", "exch", "cas", "and", "or", "xor"];
        let Some(name) = m.one_of(&list) else { return self.fail("atom", "operation that is not known") };
        let noftz = m.take("noftz");
        if Self::vector(m) != 1 {
            return self.fail("atom", "vector atomics are not supported");
        }
        let ty = m.ty()?;
        let kind = match (name, ty) {
            ("add", Ty::U32 | Ty::S32 | Ty::U64 | Ty::S64) => AtomKind::Add,
            ("add", Ty::F32) => AtomKind::AddF32,
            ("add", Ty::F64) => AtomKind::AddF64,
            ("add", Ty::F16x2) if noftz => AtomKind::AddF16x2,
            ("add", Ty::BF16x2) if noftz => AtomKind::AddBf16x2,
            ("add", Ty::F16) if noftz => AtomKind::AddF16,
            ("add", Ty::BF16) if noftz => AtomKind::AddBf16,
            ("min", Ty::U32 | Ty::U64) => AtomKind::MinU,
            ("min", Ty::S32 | Ty::S64) => AtomKind::MinS,
            ("max", Ty::U32 | Ty::U64) => AtomKind::MaxU,
            ("max", Ty::S32 | Ty::S64) => AtomKind::MaxS,
            ("inc", Ty::U32) => AtomKind::Inc,
            ("dec", Ty::U32) => AtomKind::Dec,
            ("and", Ty::B32 | Ty::B64) => AtomKind::And,
            ("or", Ty::B32 | Ty::B64) => AtomKind::Or,
            ("xor", Ty::B32 | Ty::B64) => AtomKind::Xor,
            ("exch", Ty::B32 | Ty::B64) if returns => AtomKind::Exch,
            ("cas", Ty::B16 | Ty::B32 | Ty::B64) if returns => AtomKind::Cas,
            _ => return self.fail(format!("{name}.{ty:?}"), "atomic operation that does not exist"),
        };
        let n = 2 + usize::from(returns) + usize::from(kind == AtomKind::Cas);
        self.hints(m, args, n)?;
        let at = usize::from(returns);
        let (address, mem) = self.address(&args[at], space)?;
        if !matches!(mem, MemSpace::Generic | MemSpace::Global | MemSpace::Shared) || space == Space::Const {
            return self.fail("atom", "atomics work on global and shared memory");
        }
        let width = |ty: Ty| if ty.bytes() == 8 { W::W64 } else { W::W32 };
        let b = (self.src(&args[at + 1], ty)?, width(ty));
        let c = if kind == AtomKind::Cas { (self.src(&args[at + 2], ty)?, width(ty)) } else { (0, W::W32) };
        let d = match args.first() {
            Some(Arg::Word(w)) if returns && w == "_" => NONE,
            Some(a) if returns => self.dst(a, ty)?,
            _ => NONE,
        };
        let op = AtomOp { space: mem, kind, bytes: ty.bytes() as u8, d, dw: width(ty), address, b, c, sem, scope };
        let op = Op::Atom(Box::new(op));
        if mem == MemSpace::Shared {
            self.push(op)
        } else {
            self.push_turn(op)
        }
        Ok(())
    }
}
