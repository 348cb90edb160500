//! Names of special registers.

use crate::exec::inst::Special;

/// A special register by name.
pub(super) fn parse(name: &str) -> Option<Special> {
    let axis = |s: &str| match s {
        "x" => Some(0),
        "y" => Some(1),
        "z" => Some(2),
        _ => None,
    };
    if let Some((base, a)) = name.rsplit_once('.') {
        let a = axis(a)?;
        return Some(match base {
            "%tid" => Special::Tid(a),
            "%ntid" => Special::Ntid(a),
            "%ctaid" => Special::Ctaid(a),
            "%nctaid" => Special::Nctaid(a),
            "%cluster_ctaid" => Special::ClusterCtaid(a),
            "%cluster_nctaid" => Special::ClusterNctaid(a),
            "%clusterid" => Special::Zero,
            "%nclusterid" => Special::One,
            _ => return None,
        });
    }
    Some(match name {
        "%laneid" => Special::LaneId,
        "%warpid" => Special::WarpId,
        "%nwarpid" => Special::NWarpId,
        "%smid" => Special::SmId,
        "%nsmid" => Special::NSmId,
        "%gridid" => Special::GridId,
        "%lanemask_eq" => Special::LaneMaskEq,
        "%lanemask_le" => Special::LaneMaskLe,
        "%lanemask_lt" => Special::LaneMaskLt,
        "%lanemask_ge" => Special::LaneMaskGe,
        "%lanemask_gt" => Special::LaneMaskGt,
        "%clock" => Special::Clock,
        "%clock64" => Special::Clock64,
        "%globaltimer" => Special::GlobalTimer,
        "%globaltimer_lo" => Special::GlobalTimerLo,
        "%globaltimer_hi" => Special::GlobalTimerHi,
        "%dynamic_smem_size" => Special::DynamicShared,
        "%total_smem_size" => Special::TotalShared,
        "%cluster_ctarank" => Special::ClusterRank,
        "%cluster_nctarank" => Special::ClusterSize,
        "%is_explicit_cluster" => Special::Zero,
        _ => return None,
    })
}
