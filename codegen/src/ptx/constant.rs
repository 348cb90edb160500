//! The rule of constant loads: memory that a kernel loads as constant does not change.
//!
//! Device memory: the kernel stores nowhere to what it loads by `.nc`. Shared memory: a barrier stands between a store
//! and a constant load, in either order, of the threads among which the loaded value counts as uniform. A role loads as
//! constant only what no other role stores to.
//!
//! Accesses are told apart by the root of their address (a parameter, a loaded pointer, a shared variable) and by their
//! bytes, as far as these are constant. Indices that are added to a device address count as equal, since parts of one
//! buffer begin at constants. Aliases are not seen: two parameters, or two loads of one pointer, may lead to the same
//! memory.

use super::builder::{DYNAMIC, REST};
use super::ir::{Arg, Base, Class, Function, Inst, Node, Reg, Source, Uniformity, Warps, by_warps};
use super::table::{Convergence, Effect, Op};
use super::uniform;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Holds constant loads to their word, and gives the places of the parameters through which the kernel stores; what was
/// found, and where, otherwise.
pub(crate) fn check(function: &Function, uniformity: &uniform::Map) -> Result<BTreeSet<usize>, (String, Source)> {
    let places = Places::of(function);
    let mut stored: BTreeMap<Root, Vec<(Region, Source)>> = BTreeMap::new();
    function.instructions(&mut |inst| {
        if inst.op.row().effect == Effect::Stores {
            for region in places.stored(inst) {
                stored.entry(region.root).or_default().push((region, inst.source));
            }
        }
    });
    let mut problem = None;
    function.instructions(&mut |inst| {
        if inst.op.row().effect != Effect::LoadsConstant {
            return;
        }
        for region in places.accessed(inst).into_iter().filter(|region| !region.root.is_shared()) {
            let stores = stored.get(&region.root).into_iter().flatten();
            if let Some((_, at)) = stores.into_iter().find(|(other, _)| other.overlaps(&region)) {
                let what = format!("{} of memory that the kernel stores to at {at}: take LoadKind::Ordinary", inst.op);
                problem.get_or_insert((what, inst.source));
            }
        }
    });
    if let Some(problem) = problem {
        return Err(problem);
    }
    let outline = Outline { places: &places, uniformity };
    let events = outline.events(&function.body, function.warps(), Uniformity::Block);
    let mut walk = Walk { role: None, problem: None };
    walk.events(&events, &mut State::default());
    let written = stored.into_keys().filter_map(|root| match root {
        Root::Param(place) => Some(place),
        Root::Loaded(_) | Root::Shared(_) | Root::Dynamic | Root::Rest => None,
    });
    walk.problem.map_or(Ok(written.collect()), Err)
}

/// The derivation of an address among an instruction's results from its operands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Derived {
    /// No result is an address.
    Nothing,
    /// A result is one of the operands.
    Same,
    /// A result is their sum.
    Sum,
    /// A result is their difference.
    Difference,
    /// A result lies at an unknown distance behind one of them.
    Indexed,
    /// A result was in memory.
    Loaded,
}

impl Derived {
    const fn of(op: Op) -> Derived {
        match op {
            Op::Mov { .. } | Op::Unpack { .. } | Op::Pack { .. } | Op::Selp { .. } | Op::Cvt { .. } => Derived::Same,
            Op::Add { .. } => Derived::Sum,
            Op::Sub { .. } => Derived::Difference,
            Op::Mad { .. } | Op::MadWide | Op::And { .. } | Op::Or { .. } => Derived::Indexed,
            Op::LdParam { .. } | Op::Ld { .. } | Op::LdSync { .. } => Derived::Loaded,
            Op::Mul { .. }
            | Op::Fma { .. }
            | Op::Div { .. }
            | Op::Rem { .. }
            | Op::Min { .. }
            | Op::Max { .. }
            | Op::MadHi => Derived::Nothing,
            Op::MaxNan | Op::Neg { .. } | Op::Abs { .. } | Op::Rcp { .. } | Op::Sqrt { .. } | Op::Ex2 => {
                Derived::Nothing
            }
            Op::Dp4a { .. } | Op::Vabsdiff4 | Op::Dp2a { .. } | Op::Redux { .. } | Op::CvtF16x2 => Derived::Nothing,
            Op::MmaBytes { .. } | Op::MmaEightRows { .. } | Op::MmaHalves { .. } => Derived::Nothing,
            Op::Xor { .. } | Op::Not { .. } | Op::Shl { .. } | Op::Shr { .. } | Op::Lop3 | Op::Prmt => Derived::Nothing,
            Op::Bfe { .. } | Op::Setp { .. } | Op::Shfl { .. } | Op::VoteAny | Op::VoteBallot => Derived::Nothing,
            Op::Elect => Derived::Nothing,
            Op::LdMatrix | Op::LdMatrixTransposed | Op::CpAsync | Op::CpAsyncCommitGroup | Op::CpAsyncWaitGroup => {
                Derived::Nothing
            }
            Op::PrefetchL2 | Op::CpAsyncBulkPrefetch | Op::CpAsyncBulk | Op::FenceProxyAsync => Derived::Nothing,
            Op::CreatePolicyEvictFirst | Op::CpAsyncBulkOrdinary => Derived::Nothing,
            Op::CpAsyncBulkTensor | Op::FenceProxyTensormap => Derived::Nothing,
            Op::Wgmma { .. } | Op::WgmmaFence | Op::WgmmaCommitGroup | Op::WgmmaWaitGroup => Derived::Nothing,
            Op::MbarrierInit | Op::MbarrierArrive | Op::MbarrierArriveExpectTx => Derived::Nothing,
            Op::CpAsyncMbarrierArriveNoinc | Op::MbarrierTestWait | Op::MbarrierTryWait => Derived::Nothing,
            Op::St { .. } | Op::StSync { .. } | Op::Red { .. } | Op::Atom { .. } | Op::AtomExch { .. } => {
                Derived::Nothing
            }
            Op::Fence { .. } | Op::BarSync | Op::BarSyncThreads | Op::BarWarpSync => Derived::Nothing,
            Op::GriddepcontrolWait | Op::GriddepcontrolLaunchDependents => Derived::Nothing,
            Op::Nanosleep | Op::Trap | Op::Exit => Derived::Nothing,
        }
    }
}

/// The root of an address: what it is computed from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Root {
    /// A parameter, by its place.
    Param(usize),
    /// A pointer that was loaded.
    Loaded(Reg),
    /// A static shared variable, by its place.
    Shared(usize),
    /// The dynamic shared memory.
    Dynamic,
    /// What of it the kernel does not take.
    Rest,
}

impl Root {
    const fn is_shared(self) -> bool {
        match self {
            Root::Shared(_) | Root::Dynamic | Root::Rest => true,
            Root::Param(_) | Root::Loaded(_) => false,
        }
    }
}

/// Bytes `start..end` behind a root.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Region {
    root: Root,
    start: i64,
    end: i64,
    /// Whether an index was added, to both alike.
    indexed: bool,
}

impl Region {
    fn overlaps(&self, other: &Region) -> bool {
        // An index leads upwards: to whatever lies behind.
        let end = |one: &Region, other: &Region| if one.indexed && !other.indexed { i64::MAX } else { one.end };
        self.root == other.root && self.start < end(other, self) && other.start < end(self, other)
    }
}

/// The distance of an address from its root.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Distance {
    /// The constants added to it.
    bytes: i64,
    /// Whether something else was added as well.
    indexed: bool,
}

/// The root of each register that holds an address.
struct Places<'a> {
    function: &'a Function,
    of: HashMap<Reg, BTreeMap<Root, Distance>>,
}

impl<'a> Places<'a> {
    fn of(function: &'a Function) -> Places<'a> {
        let mut candidates = Vec::new();
        function.instructions(&mut |inst| {
            let mut address = false;
            inst.results(&mut |reg| address |= matches!(reg.class, Class::B32 | Class::B64));
            if address {
                candidates.push(inst);
            }
        });
        let mut places = Places { function, of: HashMap::new() };
        loop {
            let mut changed = false;
            candidates.iter().for_each(|inst| changed |= places.follow(inst));
            if !changed {
                return places;
            }
        }
    }

    /// Adds the roots of an instruction's results; whether one is new.
    fn follow(&mut self, inst: &Inst) -> bool {
        let mut found: Vec<(Root, Distance)> = Vec::new();
        let here = Distance { bytes: 0, indexed: false };
        let derived = Derived::of(inst.op);
        match derived {
            Derived::Loaded => {
                let mut changed = false;
                let param = match inst.src.as_slice() {
                    [Arg::Mem(Base::Symbol(name), _)] => {
                        self.function.params.iter().position(|param| param.name == *name)
                    }
                    _ => None,
                };
                inst.results(&mut |reg| {
                    if reg.class == Class::B64 {
                        changed |= self.add(reg, param.map_or(Root::Loaded(reg), Root::Param), here);
                    }
                });
                return changed;
            }
            Derived::Same | Derived::Sum | Derived::Difference | Derived::Indexed => {
                let constant = match (derived, inst.src.as_slice()) {
                    (Derived::Same, _) => Some(0),
                    (Derived::Sum, [_, Arg::Int(bytes)] | [Arg::Int(bytes), _]) => Some(*bytes),
                    (Derived::Difference, [_, Arg::Int(bytes)] | [Arg::Int(bytes), _]) => Some(-bytes),
                    _ => None,
                };
                for arg in &inst.src {
                    match arg {
                        Arg::Address(name) => found.extend(self.symbol(name).map(|root| (root, here))),
                        Arg::Reg(reg) => {
                            found.extend(self.of.get(reg).into_iter().flatten().map(|(root, at)| {
                                let bytes = at.bytes.saturating_add(constant.unwrap_or(0));
                                (*root, Distance { bytes, indexed: at.indexed || constant.is_none() })
                            }));
                        }
                        _ => {}
                    }
                }
            }
            Derived::Nothing => {}
        }
        let mut changed = false;
        inst.results(&mut |reg| found.iter().for_each(|(root, at)| changed |= self.add(reg, *root, *at)));
        changed
    }

    fn add(&mut self, reg: Reg, root: Root, at: Distance) -> bool {
        let places = self.of.entry(reg).or_default();
        match places.get_mut(&root) {
            None => {
                places.insert(root, at);
                true
            }
            // Assigned several times: as in a loop that goes on from where it is.
            Some(known) if !known.indexed && (at.indexed || at.bytes != known.bytes) => {
                known.indexed = true;
                true
            }
            Some(_) => false,
        }
    }

    fn symbol(&self, name: &str) -> Option<Root> {
        if name == DYNAMIC {
            return Some(Root::Dynamic);
        }
        if name == REST {
            return Some(Root::Rest);
        }
        self.function.shared.iter().position(|var| var.name == name).map(Root::Shared)
    }

    /// The bytes that an instruction may access.
    fn accessed(&self, inst: &Inst) -> Vec<Region> {
        [&inst.dst, &inst.src].into_iter().flat_map(|args| self.of_args(inst, args)).collect()
    }

    /// Where an instruction stores: at its result, or, where that is a value, at its operand.
    fn stored(&self, inst: &Inst) -> Vec<Region> {
        let is_place = |arg: &Arg| matches!(arg, Arg::Mem(..));
        self.of_args(inst, if inst.dst.iter().any(is_place) { &inst.dst } else { &inst.src })
    }

    fn of_args(&self, inst: &Inst, args: &[Arg]) -> Vec<Region> {
        let mut regions = Vec::new();
        for arg in args {
            let Arg::Mem(base, offset) = arg else { continue };
            let bytes = inst.op.row().bytes().map_or(0, i64::from);
            match base {
                Base::Symbol(name) => {
                    regions.extend(self.symbol(name).map(|root| Region {
                        root,
                        start: *offset,
                        end: offset + bytes,
                        indexed: false,
                    }));
                }
                Base::Reg(reg) => {
                    for (root, at) in self.of.get(reg).into_iter().flatten() {
                        let start = at.bytes.saturating_add(*offset);
                        let end = start.saturating_add(bytes);
                        regions.push(self.around(Region { root: *root, start, end, indexed: at.indexed }));
                    }
                }
            }
        }
        regions
    }

    /// The bytes that an index may reach in shared memory: the variable, or the dynamic allocations that hold the
    /// bytes.
    fn around(&self, region: Region) -> Region {
        let all = Region { start: i64::MIN, end: i64::MAX, indexed: false, ..region };
        match region.root {
            Root::Shared(_) | Root::Rest if region.indexed => all,
            Root::Dynamic if region.indexed => {
                let allocations = self.function.dynamic.iter().map(|(from, to)| (i64::from(*from), i64::from(*to)));
                let around = allocations.filter(|(from, to)| (*from..*to).contains(&region.start));
                let joined = around.reduce(|one, other| (one.0.min(other.0), one.1.max(other.1)));
                joined.map_or(all, |(start, end)| Region { start, end, ..all })
            }
            _ => region,
        }
    }
}

/// The threads between whose loads of a value no store may come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Among {
    Warp,
    Role,
    Block,
}

impl Among {
    const ALL: [Among; 3] = [Among::Warp, Among::Role, Among::Block];
}

/// Accesses of a kernel to shared memory, and its barriers.
enum Event {
    Store(Vec<Region>, Source),
    /// A constant load whose value counts as uniform among these.
    Load(Vec<Region>, Among, Source),
    /// Orders the shared memory of these.
    Barrier(Among),
    If(Vec<Event>, Vec<Event>),
    /// What each round does, and then each that another one follows.
    Loop(Vec<Event>, Vec<Event>),
    Roles(Vec<Vec<Event>>),
}

struct Outline<'a> {
    places: &'a Places<'a>,
    uniformity: &'a uniform::Map,
}

impl Outline<'_> {
    fn events(&self, nodes: &[Node], warps: Warps, control: Uniformity) -> Vec<Event> {
        let mut events = Vec::new();
        for node in nodes {
            match node {
                Node::Inst(inst) => events.extend(self.event(inst, warps, control)),
                Node::If { cond, then, otherwise, .. } => {
                    let control = control.max(self.uniformity.level_in(warps, *cond));
                    let [then, otherwise] = [then, otherwise].map(|body| self.events(body, warps, control));
                    if !(then.is_empty() && otherwise.is_empty()) {
                        events.push(Event::If(then, otherwise));
                    }
                }
                Node::Loop { body, again, .. } => {
                    let control = control.max(self.uniformity.level_in(warps, *again));
                    let (body, between) = match body.split_last() {
                        Some((Node::If { cond, then, otherwise, .. }, body))
                            if cond == again && otherwise.is_empty() =>
                        {
                            (body, &then[..])
                        }
                        _ => (&body[..], &[][..]),
                    };
                    let [body, between] = [body, between].map(|body| self.events(body, warps, control));
                    if !(body.is_empty() && between.is_empty()) {
                        events.push(Event::Loop(body, between));
                    }
                }
                Node::Roles { roles, .. } => {
                    let bodies = by_warps(roles).map(|(warps, body)| self.events(body, warps, control));
                    events.push(Event::Roles(bodies.collect()));
                }
            }
        }
        events
    }

    fn event(&self, inst: &Inst, warps: Warps, control: Uniformity) -> Option<Event> {
        let block = warps == self.places.function.warps();
        let row = inst.op.row();
        let among = match row.convergence {
            Convergence::Barrier | Convergence::Block => Some(if block { Among::Block } else { Among::Role }),
            Convergence::Warp => Some(Among::Warp),
            Convergence::Free => None,
        };
        let mut regions =
            if row.effect == Effect::Stores { self.places.stored(inst) } else { self.places.accessed(inst) };
        regions.retain(|region| region.root.is_shared());
        match row.effect {
            Effect::Orders => return among.map(Event::Barrier),
            _ if regions.is_empty() => return None,
            Effect::Stores => return Some(Event::Store(regions, inst.source)),
            Effect::LoadsConstant => {}
            Effect::Loads | Effect::Pure => return None,
        }
        let mut level = control;
        inst.operands(&mut |reg| level = level.max(self.uniformity.level_in(warps, reg)));
        let among = match level {
            Uniformity::Block if block => Among::Block,
            Uniformity::Block => Among::Role,
            Uniformity::Warp => Among::Warp,
            Uniformity::Lane => return None,
        };
        Some(Event::Load(regions, among, inst.source))
    }
}

/// Accesses since the last barrier.
#[derive(Clone, Default, PartialEq)]
struct State {
    /// Stores since the last barrier of each of [`Among::ALL`].
    stored: [BTreeMap<Region, Source>; 3],
    /// Constant loads since then.
    loaded: [BTreeMap<Region, Source>; 3],
}

impl State {
    fn join(&mut self, other: State) {
        let own = self.stored.iter_mut().chain(&mut self.loaded);
        own.zip(other.stored.into_iter().chain(other.loaded)).for_each(|(own, other)| own.extend(other));
    }
}

/// A role's stores as the others see them.
struct Walk {
    /// In a role: what other roles store, and what was stored before without a barrier of the block since.
    role: Option<BTreeMap<Region, Source>>,
    problem: Option<(String, Source)>,
}

impl Walk {
    fn events(&mut self, events: &[Event], state: &mut State) {
        for event in events {
            match event {
                Event::Store(regions, source) => self.store(regions, source, state),
                Event::Load(regions, among, source) => self.load(regions, *among, source, state),
                Event::Barrier(among) => {
                    for passed in Among::ALL.into_iter().filter(|passed| passed <= among) {
                        state.stored[passed as usize].clear();
                        state.loaded[passed as usize].clear();
                    }
                }
                Event::If(then, otherwise) => {
                    let mut second = state.clone();
                    self.events(then, state);
                    self.events(otherwise, &mut second);
                    state.join(second);
                }
                Event::Loop(body, between) => {
                    let before = state.clone();
                    self.events(body, state);
                    // Once more with what the last round left behind.
                    let mut again = state.clone();
                    self.events(between, &mut again);
                    if again != before {
                        self.events(body, &mut again);
                        state.join(again);
                    }
                }
                Event::Roles(bodies) => self.roles(bodies, state),
            }
        }
    }

    fn roles(&mut self, bodies: &[Vec<Event>], state: &mut State) {
        let stores: Vec<BTreeMap<Region, Source>> = bodies
            .iter()
            .map(|body| {
                let mut all = BTreeMap::new();
                stores(body, &mut all);
                all
            })
            .collect();
        let mut after = State::default();
        for (index, body) in bodies.iter().enumerate() {
            let mut foreign = state.stored[Among::Block as usize].clone();
            let others = stores.iter().enumerate().filter(|(other, _)| *other != index);
            others.for_each(|(_, stores)| foreign.extend(stores));
            self.role = Some(foreign);
            let mut own = state.clone();
            self.events(body, &mut own);
            after.join(own);
        }
        self.role = None;
        *state = after;
    }

    fn store(&mut self, regions: &[Region], source: Source, state: &mut State) {
        for region in regions {
            for among in Among::ALL {
                if let Some(at) = meets(&state.loaded[among as usize], region) {
                    let what = format!(
                        "a store to shared memory that was loaded as constant at {at}, without a barrier since"
                    );
                    self.problem.get_or_insert((what, source));
                }
                state.stored[among as usize].insert(*region, source);
            }
        }
    }

    fn load(&mut self, regions: &[Region], among: Among, source: Source, state: &mut State) {
        for region in regions {
            if let Some(at) = meets(&state.stored[among as usize], region) {
                let what = format!(
                    "a constant load of shared memory that was stored to at {at}, without a barrier since: put one between, \
                     or take LoadKind::Ordinary"
                );
                self.problem.get_or_insert((what, source));
            }
            if let Some(at) = self.role.as_ref().and_then(|foreign| meets(foreign, region)) {
                let what = format!(
                    "a constant load in a role of shared memory that other warps store to at {at}: take LoadKind::Ordinary"
                );
                self.problem.get_or_insert((what, source));
            }
            state.loaded[among as usize].insert(*region, source);
        }
    }
}

fn stores(events: &[Event], all: &mut BTreeMap<Region, Source>) {
    for event in events {
        match event {
            Event::Store(regions, source) => all.extend(regions.iter().map(|region| (*region, *source))),
            Event::If(then, otherwise) => {
                stores(then, all);
                stores(otherwise, all);
            }
            Event::Loop(body, between) => {
                stores(body, all);
                stores(between, all);
            }
            Event::Roles(bodies) => bodies.iter().for_each(|body| stores(body, all)),
            Event::Load(..) | Event::Barrier(_) => {}
        }
    }
}

/// Where some bytes were accessed.
fn meets(accessed: &BTreeMap<Region, Source>, region: &Region) -> Option<Source> {
    accessed.iter().find(|(other, _)| other.overlaps(region)).map(|(_, source)| *source)
}
