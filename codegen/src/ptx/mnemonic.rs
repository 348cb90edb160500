//! How opcodes, their modifiers and special registers are written.

use super::modifiers::{
    AtomicOp, Compare, Half, LoadKind, LoadOrder, Order, Rounding, Scope, Shuffle, Special, StateSpace, StoreOrder,
    Type, Width,
};
use super::table::Op;
use std::fmt::{self, Display, Formatter};

/// A `Display` that writes one word for each case.
macro_rules! words {
    ($($ty:ident { $($case:ident $word:literal)* })*) => {$(
        impl Display for $ty {
            fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
                f.write_str(match self { $($ty::$case => $word,)* })
            }
        }
    )*};
}

words! {
    Type {
        Pred "pred" U8 "u8" S8 "s8" B16 "b16" U16 "u16" F16 "f16" BF16 "bf16" B32 "b32" U32 "u32" S32 "s32" F32 "f32"
        B64 "b64" U64 "u64" F64 "f64"
    }
    StateSpace { Global "global" Shared "shared" }
    Scope { Cta "cta" Gpu "gpu" Sys "sys" }
    LoadOrder { Relaxed "relaxed" Acquire "acquire" }
    StoreOrder { Relaxed "relaxed" Release "release" }
    Order { Relaxed "relaxed" Acquire "acquire" Release "release" AcqRel "acq_rel" }
    AtomicOp { Add "add" Max "max" Or "or" }
    Half { Low "lo" High "hi" }
    Compare { Eq "eq" Ne "ne" Lt "lt" Le "le" Gt "gt" Ge "ge" }
    Rounding { Nearest "rn" NearestInteger "rni" ZeroInteger "rzi" }
    Shuffle { Butterfly "bfly" Index "idx" }
    Special {
        Tid "%tid.x" CtaidX "%ctaid.x" CtaidY "%ctaid.y" CtaidZ "%ctaid.z" NctaidX "%nctaid.x"
        Globaltimer "%globaltimer"
    }
}

/// The modifier of a vector access, with its dot; nothing for one element.
fn vector(width: Width) -> &'static str {
    match width {
        Width::One => "",
        Width::Two => ".v2",
        Width::Four => ".v4",
    }
}

/// The modifier of arithmetic that rounds, with its dot; nothing for integers.
fn rounding(ty: Type) -> &'static str {
    if ty.is_float() { ".rn" } else { "" }
}

impl Display for Op {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match *self {
            Op::Add { ty } => write!(f, "add{}.{ty}", rounding(ty)),
            Op::Sub { ty } => write!(f, "sub{}.{ty}", rounding(ty)),
            Op::Mul { ty } if ty.is_float() => write!(f, "mul.rn.{ty}"),
            Op::Mul { ty } => write!(f, "mul.lo.{ty}"),
            Op::Mad { ty } => write!(f, "mad.lo.{ty}"),
            Op::MadHi => f.write_str("mad.hi.u32"),
            Op::MadWide => f.write_str("mad.wide.u32"),
            Op::Fma { ty } => write!(f, "fma.rn.{ty}"),
            Op::Div { ty } => write!(f, "div{}.{ty}", rounding(ty)),
            Op::Rem { ty } => write!(f, "rem.{ty}"),
            Op::Min { ty } => write!(f, "min.{ty}"),
            Op::Max { ty } => write!(f, "max.{ty}"),
            Op::MaxNan => f.write_str("max.NaN.f32"),
            Op::Neg { ty } => write!(f, "neg.{ty}"),
            Op::Abs { ty } => write!(f, "abs.{ty}"),
            Op::Rcp { ty } => write!(f, "rcp.rn.{ty}"),
            Op::Sqrt { ty } => write!(f, "sqrt.rn.{ty}"),
            Op::Ex2 => f.write_str("ex2.approx.f32"),
            Op::Dp4a { bytes } => write!(f, "dp4a.{bytes}.s32"),
            Op::Vabsdiff4 => f.write_str("vabsdiff4.u32.s32.s32.add"),
            Op::Dp2a { half, bytes } => write!(f, "dp2a.{half}.s32.{bytes}"),
            Op::MmaBytes { depth, bytes } => {
                write!(f, "mma.sync.aligned.m16n8k{}.row.col.s32.{bytes}.s8.s32", depth.bytes())
            }
            Op::MmaEightRows { bytes } => write!(f, "mma.sync.aligned.m8n8k16.row.col.s32.{bytes}.s8.s32"),
            Op::And { ty } => write!(f, "and.{ty}"),
            Op::Or { ty } => write!(f, "or.{ty}"),
            Op::Xor { ty } => write!(f, "xor.{ty}"),
            Op::Not { ty } => write!(f, "not.{ty}"),
            Op::Shl { ty } => write!(f, "shl.{ty}"),
            Op::Shr { ty } => write!(f, "shr.{ty}"),
            Op::Lop3 => f.write_str("lop3.b32"),
            Op::Prmt => f.write_str("prmt.b32"),
            Op::Bfe { ty } => write!(f, "bfe.{ty}"),
            Op::Cvt { to, from, rounding: Some(rounding) } => write!(f, "cvt.{rounding}.{to}.{from}"),
            Op::Cvt { to, from, rounding: None } => write!(f, "cvt.{to}.{from}"),
            Op::CvtF16x2 => f.write_str("cvt.rn.f16x2.f32"),
            Op::Mov { ty } => write!(f, "mov.{ty}"),
            Op::Unpack { whole, .. } | Op::Pack { whole, .. } => write!(f, "mov.{whole}"),
            Op::Setp { how, ty } => write!(f, "setp.{how}.{ty}"),
            Op::Selp { ty } => write!(f, "selp.{ty}"),
            Op::Shfl { mode } => write!(f, "shfl.sync.{mode}.b32"),
            Op::Redux { op, ty } => write!(f, "redux.sync.{op}.{ty}"),
            Op::Elect => f.write_str("elect.sync _|"),
            Op::VoteAny => f.write_str("vote.sync.any.pred"),
            Op::VoteBallot => f.write_str("vote.sync.ballot.b32"),
            Op::MmaHalves { depth } => {
                write!(f, "mma.sync.aligned.m16n8k{}.row.col.f32.f16.f16.f32", depth.bytes() / 2)
            }
            Op::LdParam { ty } => write!(f, "ld.param.{ty}"),
            Op::Ld { space, kind, width, ty } => {
                let hint = match (space, kind) {
                    (StateSpace::Shared, _) | (StateSpace::Global, LoadKind::Ordinary | LoadKind::Settled) => "",
                    (StateSpace::Global, LoadKind::Constant) => ".nc",
                    (StateSpace::Global, LoadKind::Streaming) => ".nc.L1::no_allocate",
                };
                write!(f, "ld.{space}{hint}{}.{ty}", vector(width))
            }
            Op::St { space, width, ty } => write!(f, "st.{space}{}.{ty}", vector(width)),
            Op::LdMatrix => f.write_str("ldmatrix.sync.aligned.m8n8.x4.shared.b16"),
            Op::LdMatrixTransposed => f.write_str("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16"),
            Op::CpAsync => f.write_str("cp.async.cg.shared.global"),
            Op::CpAsyncCommitGroup => f.write_str("cp.async.commit_group"),
            Op::CpAsyncWaitGroup => f.write_str("cp.async.wait_group"),
            Op::CpAsyncMbarrierArriveNoinc => f.write_str("cp.async.mbarrier.arrive.noinc.shared.b64"),
            Op::PrefetchL2 => f.write_str("prefetch.global.L2"),
            Op::CpAsyncBulkPrefetch => f.write_str("cp.async.bulk.prefetch.L2.global"),
            Op::CreatePolicyEvictFirst => f.write_str("createpolicy.fractional.L2::evict_first.b64"),
            Op::CpAsyncBulk => {
                f.write_str("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint")
            }
            Op::CpAsyncBulkOrdinary => f.write_str("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"),
            Op::CpAsyncBulkTensor => {
                f.write_str("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes")
            }
            Op::FenceProxyTensormap => f.write_str("fence.proxy.tensormap::generic.acquire.sys"),
            Op::Wgmma { columns } => write!(f, "wgmma.mma_async.sync.aligned.m64n{columns}k32.s32.s8.s8"),
            Op::WgmmaFence => f.write_str("wgmma.fence.sync.aligned"),
            Op::WgmmaCommitGroup => f.write_str("wgmma.commit_group.sync.aligned"),
            Op::WgmmaWaitGroup => f.write_str("wgmma.wait_group.sync.aligned"),
            Op::MbarrierInit => f.write_str("mbarrier.init.shared.b64"),
            Op::MbarrierArrive => f.write_str("mbarrier.arrive.shared.b64"),
            Op::MbarrierArriveExpectTx => f.write_str("mbarrier.arrive.expect_tx.shared.b64"),
            Op::MbarrierTestWait => f.write_str("mbarrier.test_wait.parity.shared.b64"),
            Op::MbarrierTryWait => f.write_str("mbarrier.try_wait.parity.shared.b64"),
            Op::LdSync { order, scope, width, ty } => write!(f, "ld.{order}.{scope}.global{}.{ty}", vector(width)),
            Op::StSync { order, scope, width, ty } => write!(f, "st.{order}.{scope}.global{}.{ty}", vector(width)),
            Op::Red { op, scope, ty } => write!(f, "red.relaxed.{scope}.global.{op}.{ty}"),
            Op::Atom { op, order, scope, ty } => write!(f, "atom.{order}.{scope}.global.{op}.{ty}"),
            Op::AtomExch { order, scope, ty } => write!(f, "atom.{order}.{scope}.global.exch.{ty}"),
            Op::Fence { scope } => write!(f, "fence.acq_rel.{scope}"),
            Op::FenceProxyAsync => f.write_str("fence.proxy.async.shared::cta"),
            Op::BarSync | Op::BarSyncThreads => f.write_str("bar.sync"),
            Op::BarWarpSync => f.write_str("bar.warp.sync"),
            Op::GriddepcontrolWait => f.write_str("griddepcontrol.wait"),
            Op::GriddepcontrolLaunchDependents => f.write_str("griddepcontrol.launch_dependents"),
            Op::Nanosleep => f.write_str("nanosleep.u32"),
            Op::Trap => f.write_str("trap"),
            Op::Exit => f.write_str("exit"),
        }
    }
}
