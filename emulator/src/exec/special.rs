//! Special registers: names and values.

use super::{Cpu, Site};

/// The value of a special register for a lane.
pub(crate) type Special = fn(&Cpu<'_>, &Site<'_>, usize) -> u64;

/// Clocks of a warp's multiprocessor: modelled ones, else virtual time.
fn clocks(cpu: &Cpu<'_>, site: &Site<'_>) -> u64 {
    site.common.observers.time.as_ref().map_or_else(|| cpu.now(), |time| time.time(site.at.warp))
}

/// Nanoseconds since the launch began, as modelled, else virtual time.
fn nanoseconds(cpu: &Cpu<'_>, site: &Site<'_>) -> u64 {
    let clocks = clocks(cpu, site);
    cpu.timekeeper.as_ref().map_or(clocks, |keeper| keeper.nanoseconds(clocks))
}

/// A special register by name.
pub(crate) fn special(name: &str) -> Option<Special> {
    Some(match name {
        "%tid.x" => |c, s, l| c.cx.layout.thread(s.at.warp, l)[0].into(),
        "%tid.y" => |c, s, l| c.cx.layout.thread(s.at.warp, l)[1].into(),
        "%tid.z" => |c, s, l| c.cx.layout.thread(s.at.warp, l)[2].into(),
        "%ntid.x" => |c, _, _| c.cx.layout.block[0].into(),
        "%ntid.y" => |c, _, _| c.cx.layout.block[1].into(),
        "%ntid.z" => |c, _, _| c.cx.layout.block[2].into(),
        "%ctaid.x" => |_, s, _| s.warp.ctaid[0].into(),
        "%ctaid.y" => |_, s, _| s.warp.ctaid[1].into(),
        "%ctaid.z" => |_, s, _| s.warp.ctaid[2].into(),
        "%nctaid.x" => |c, _, _| c.cx.layout.grid[0].into(),
        "%nctaid.y" => |c, _, _| c.cx.layout.grid[1].into(),
        "%nctaid.z" => |c, _, _| c.cx.layout.grid[2].into(),
        "%laneid" => |_, _, l| l as u64,
        "%warpid" => |c, s, _| (s.at.warp % c.cx.layout.warps).into(),
        "%nwarpid" => |c, _, _| c.cx.layout.warps.into(),
        "%smid" => |c, s, _| {
            (s.common.block + u64::from(s.at.warp / c.cx.layout.warps)) % c.cx.config.multiprocessors.max(1) as u64
        },
        "%nsmid" => |c, _, _| c.cx.config.multiprocessors.into(),
        "%lanemask_eq" => |_, _, l| 1 << l,
        "%lanemask_lt" => |_, _, l| (1 << l) - 1,
        "%lanemask_le" => |_, _, l| (2 << l) - 1,
        "%lanemask_ge" => |_, _, l| 0xffff_ffff & !((1 << l) - 1),
        "%lanemask_gt" => |_, _, l| 0xffff_ffff & !((2 << l) - 1),
        "%clock" => |c, s, _| clocks(c, s) & 0xffff_ffff,
        "%clock64" => |c, s, _| clocks(c, s),
        "%globaltimer_lo" => |c, s, _| nanoseconds(c, s) & 0xffff_ffff,
        "%globaltimer_hi" => |c, s, _| nanoseconds(c, s) >> 32,
        "%globaltimer" => |c, s, _| nanoseconds(c, s),
        "%dynamic_smem_size" => |c, _, _| c.cx.layout.dynamic_shared.into(),
        "%total_smem_size" => |c, _, _| c.cx.layout.shared.into(),
        "%gridid" => |_, _, _| 0,
        // Where nvcc's cooperative groups look for the grid's workspace.
        "%envreg1" => |c, _, _| c.cx.workspace >> 32,
        "%envreg2" => |c, _, _| c.cx.workspace & 0xffff_ffff,
        "%cluster_ctarank" => |c, s, _| (s.at.warp / c.cx.layout.warps).into(),
        "%cluster_nctarank" => |c, _, _| c.cx.layout.ranks.into(),
        "%is_explicit_cluster" => |c, _, _| c.cx.layout.explicit_cluster.into(),
        "%cluster_ctaid.x" => |c, s, _| (s.warp.ctaid[0] % c.cx.layout.cluster[0]).into(),
        "%cluster_ctaid.y" => |c, s, _| (s.warp.ctaid[1] % c.cx.layout.cluster[1]).into(),
        "%cluster_ctaid.z" => |c, s, _| (s.warp.ctaid[2] % c.cx.layout.cluster[2]).into(),
        "%cluster_nctaid.x" => |c, _, _| c.cx.layout.cluster[0].into(),
        "%cluster_nctaid.y" => |c, _, _| c.cx.layout.cluster[1].into(),
        "%cluster_nctaid.z" => |c, _, _| c.cx.layout.cluster[2].into(),
        "%clusterid.x" => |c, s, _| (s.warp.ctaid[0] / c.cx.layout.cluster[0]).into(),
        "%clusterid.y" => |c, s, _| (s.warp.ctaid[1] / c.cx.layout.cluster[1]).into(),
        "%clusterid.z" => |c, s, _| (s.warp.ctaid[2] / c.cx.layout.cluster[2]).into(),
        "%nclusterid.x" => |c, _, _| (c.cx.layout.grid[0] / c.cx.layout.cluster[0]).into(),
        "%nclusterid.y" => |c, _, _| (c.cx.layout.grid[1] / c.cx.layout.cluster[1]).into(),
        "%nclusterid.z" => |c, _, _| (c.cx.layout.grid[2] / c.cx.layout.cluster[2]).into(),
        _ => return None,
    })
}
