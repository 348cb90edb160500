//! Special registers: their names and what they read as.

use super::LaunchCx;
use super::block::Common;

/// Who reads, and when.
pub(crate) struct Reader<'a> {
    pub(crate) cx: &'a LaunchCx<'a>,
    pub(crate) common: &'a Common,
    pub(crate) warp: u32,
    pub(crate) lane: usize,
    /// The lanes that read together.
    pub(crate) active: u32,
    /// Virtual time.
    pub(crate) now: u64,
}

/// The value of a special register.
pub(crate) type Special = fn(&Reader<'_>) -> u64;

/// A special register by name.
pub(crate) fn special(name: &str) -> Option<Special> {
    Some(match name {
        "%tid.x" => |r| r.thread(0),
        "%tid.y" => |r| r.thread(1),
        "%tid.z" => |r| r.thread(2),
        "%ntid.x" => |r| r.cx.launch.block[0].into(),
        "%ntid.y" => |r| r.cx.launch.block[1].into(),
        "%ntid.z" => |r| r.cx.launch.block[2].into(),
        "%ctaid.x" => |r| r.common.ctaid[0].into(),
        "%ctaid.y" => |r| r.common.ctaid[1].into(),
        "%ctaid.z" => |r| r.common.ctaid[2].into(),
        "%nctaid.x" => |r| r.cx.launch.grid[0].into(),
        "%nctaid.y" => |r| r.cx.launch.grid[1].into(),
        "%nctaid.z" => |r| r.cx.launch.grid[2].into(),
        "%laneid" => |r| r.lane as u64,
        "%warpid" => |r| r.warp.into(),
        "%nwarpid" => |r| r.cx.warps.into(),
        "%smid" => |r| r.common.sm.into(),
        "%nsmid" => |r| r.cx.config.multiprocessors.into(),
        "%lanemask_eq" => |r| 1 << r.lane,
        "%lanemask_lt" => |r| (1 << r.lane) - 1,
        "%lanemask_le" => |r| (2 << r.lane) - 1,
        "%lanemask_ge" => |r| 0xffff_ffff & !((1 << r.lane) - 1),
        "%lanemask_gt" => |r| 0xffff_ffff & !((2 << r.lane) - 1),
        "%clock" | "%globaltimer_lo" => |r| r.now & 0xffff_ffff,
        "%globaltimer_hi" => |r| r.now >> 32,
        "%clock64" | "%globaltimer" => |r| r.now,
        "%dynamic_smem_size" => |r| r.cx.launch.dynamic_shared.into(),
        "%total_smem_size" => |r| r.cx.shared.into(),
        // One grid, and clusters of one block.
        "%gridid" | "%cluster_ctarank" | "%is_explicit_cluster" => |_| 0,
        "%cluster_ctaid.x" | "%cluster_ctaid.y" | "%cluster_ctaid.z" => |_| 0,
        "%clusterid.x" | "%clusterid.y" | "%clusterid.z" => |_| 0,
        "%cluster_nctarank" | "%nclusterid.x" | "%nclusterid.y" | "%nclusterid.z" => |_| 1,
        "%cluster_nctaid.x" | "%cluster_nctaid.y" | "%cluster_nctaid.z" => |_| 1,
        _ => return None,
    })
}

impl Reader<'_> {
    fn thread(&self, axis: usize) -> u64 {
        self.cx.thread(self.warp, self.lane)[axis].into()
    }
}
