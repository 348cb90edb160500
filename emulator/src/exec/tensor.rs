//! Copies by tensor maps: a box of a tensor in device memory goes into shared memory, as a bulk copy does.

use super::access::generic;
use super::inst::*;
use super::step::Flow;
use super::{Cpu, Site};
use crate::machine::access::Access;
use crate::machine::fault::{FaultKind, OrFault};
use crate::machine::lanes::Lanes;
use crate::machine::tensor::{MAX_RANK, Row, TensorMap};
use crate::machine::types::Space;

/// `cp.async.bulk.tensor` of tiles into shared memory.
pub(crate) struct TensorCopy {
    pub(crate) dst: Address,
    /// Generic address of the map.
    pub(crate) map: Address,
    /// Of the box's first element, one for each dimension.
    pub(crate) coordinates: Vec<R>,
    pub(crate) mbarrier: Address,
    pub(crate) policy: Option<R>,
}

impl Cpu<'_> {
    /// `fence.proxy.tensormap::generic.acquire`
    pub(crate) fn acquire_tensor_map(&mut self, site: &mut Site<'_>, map: &Address) -> OrFault<Flow> {
        let maps = site.warp.addresses(map);
        for l in Lanes(site.m) {
            let map = maps[l];
            let a = self.table.find(map).map(|i| &self.table.live[i]);
            if a.is_none_or(|a| map - a.base + 128 > a.size) {
                return Err(self.outside(Space::Global, (l, map), 128, &site.at));
            }
            site.common.observers.tensor_map_fence(&site.at, l, map);
        }
        Ok(Flow::Next)
    }

    /// `cp.async.bulk.tensor`, lane after lane.
    pub(crate) fn copy_tensor(&mut self, site: &mut Site<'_>, copy: &TensorCopy) -> OrFault<Flow> {
        let (to, maps) = (self.shared_offsets(site, &copy.dst)?, site.warp.addresses(&copy.map));
        let mbarriers = self.mbarriers(site, &copy.mbarrier)?;
        for l in Lanes(site.m) {
            if !to[l].is_multiple_of(128) {
                let message = "a tensor is copied to an address that is not a multiple of 128";
                return Err(self.fault_at(FaultKind::Misaligned, &site.at, l, to[l], message));
            }
            let map = self.tensor_map(site, l, maps[l])?;
            if map.rank != copy.coordinates.len() {
                let message = format!("a copy by {} coordinates from a tensor of {}", copy.coordinates.len(), map.rank);
                return Err(self.fault_at(FaultKind::IllegalInstruction, &site.at, l, maps[l], message));
            }
            let mut corner = [0; MAX_RANK];
            for (at, &r) in corner.iter_mut().zip(&copy.coordinates) {
                *at = i64::from(site.warp.lane32(self.cx.code, r, l) as i32);
            }
            let policy = copy.policy.map(|policy| site.warp.lane(self.cx.code, (policy, W::W64), l));
            let way = (false, policy == Some(EVICT_FIRST));
            // It takes its time even where none of the box lies in the tensor.
            let mut lands = self.bulk_issue(&mut site.common.observers, &site.at, (0, 0), way);
            let mut data = Vec::new();
            for row in map.rows(corner) {
                self.copy_row(site, l, to[l], (&row, map.row_bytes()), &mut data)?;
                if !row.inside.is_empty() {
                    let device = (row.address, row.inside.end - row.inside.start);
                    lands = lands.max(self.bulk_issue(&mut site.common.observers, &site.at, device, way));
                }
            }
            self.bulk_deliver(site, l, (to[l], data), mbarriers[l], lands)?;
        }
        Ok(Flow::Next)
    }

    /// Reads a lane's tensor map.
    fn tensor_map(&mut self, site: &mut Site<'_>, lane: usize, address: u64) -> OrFault<TensorMap> {
        let fault = |kind, message: &str| Err(self.fault_at(kind, &site.at, lane, address, message));
        let space = generic(address).0;
        if !matches!(space, Space::Global | Space::Param) {
            return fault(FaultKind::OutOfBounds, "a tensor map lies in global memory or in a kernel's parameters");
        }
        if !address.is_multiple_of(64) {
            return fault(FaultKind::Misaligned, "a tensor map at an address that is not a multiple of 64");
        }
        if space == Space::Global && !site.common.observers.tensor_map_is_acquired(&site.at, lane, address) {
            let message = "no thread of this block has a fence.proxy.tensormap::generic.acquire for this tensor map \
                 that is ordered before the copy";
            self.find(self.fault_at(FaultKind::Race, &site.at, lane, address, message))?;
        }
        let mut bytes = [0; 128];
        let access = Access { of_map: true, ..Access::new(4, 4, false) };
        for (k, part) in (0..).step_by(16).zip(bytes.chunks_exact_mut(16)) {
            self.read_lane(site, (Space::Generic, address + k), lane, &access, part)?;
        }
        TensorMap::decode(&bytes).map_or_else(
            || {
                let message = "these 128 bytes are no tensor map as cuTensorMapEncodeTiled makes them";
                Err(self.fault_at(FaultKind::IllegalInstruction, &site.at, lane, address, message))
            },
            Ok,
        )
    }

    /// Reads a lane's row of a box behind what it has of the box; elements outside the tensor are zeros. The copy to `to`
    /// is in flight from now on.
    fn copy_row(
        &mut self,
        site: &mut Site<'_>,
        lane: usize,
        to: u64,
        (row, bytes): (&Row, u64),
        data: &mut Vec<u8>,
    ) -> OrFault<()> {
        let (proxy, carries, lanes) = (true, true, 1 << lane);
        for k in (0..bytes).step_by(16) {
            let (mut piece, mut undefined) = ([0; 16], [0; 4]);
            let (mut at, end) = (row.inside.start.max(k), row.inside.end.min(k + 16));
            while at < end {
                // Rows begin anywhere: as many bytes at once as the address is a multiple of.
                let from = row.address + (at - row.inside.start);
                let size = [16, 8, 4, 2].into_iter().find(|n| from.is_multiple_of(*n) && at + n <= end).unwrap_or(1);
                let each = size.min(4) as u32;
                let access = Access { proxy, carries, ..Access::new(each, size as u32 / each, false) };
                let first = (at - k) as usize;
                self.undefined = [0; 4];
                let to = &mut piece[first..first + size as usize];
                self.read_lane(site, (Space::Global, from), lane, &access, to)?;
                for (byte, lanes) in (first..).step_by(each as usize).zip(self.undefined) {
                    // An element of an odd address may lie in two words.
                    [byte, byte + each as usize - 1].iter().for_each(|byte| undefined[(byte / 4).min(3)] |= lanes);
                }
                at += size;
            }
            self.undefined = undefined;
            let access = Access { proxy, pending: true, carries, ..Access::new(4, 4, true) };
            let target = [to + data.len() as u64; 32];
            self.notes(site, Space::Shared, target, lanes, &access)?;
            data.extend(piece);
        }
        Ok(())
    }
}
