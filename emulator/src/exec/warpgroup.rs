//! Products of warpgroups: a warp's share of `wgmma.mma_async`, its 16 rows of bytes in registers times columns in shared
//! memory.
//!
//! A product is under way from its issue to the wait that ends its group. Columns are read, and sums written, at the last
//! moment: a kernel without the wait has old sums, and one that overwrites columns too early wrong ones. Until then the
//! sums count as undefined, and a write to the columns as a race. The four warps of a group need not be at the same
//! instruction.

use super::block::Common;
use super::copy::shared_bytes;
use super::definedness::Whence;
use super::inst::*;
use super::{Cpu, Site, products};
use crate::machine::access::Access;
use crate::machine::fault::{FaultKind, OrFault};
use crate::machine::lanes::lanes_where;
use crate::machine::layout::At;
use crate::machine::types::Space;
use std::sync::Arc;

/// Bytes that lie together, and those of a column in a product: its depth.
const PIECE: u64 = 16;
const DEPTH: u64 = 32;

/// `wgmma.mma_async` of bytes, as decoded.
#[derive(Debug)]
pub(crate) struct Multiply {
    /// Registers of the sums: of eight columns after eight four each, as `mma` has them.
    pub(crate) sums: Vec<R>,
    pub(crate) rows: [R; 4],
    /// The descriptor of the columns, 64 bits.
    pub(crate) columns: R,
    /// Whether the products are added to what the sums are.
    pub(crate) adds: P,
    /// Whether the bytes of rows and of columns are signed.
    pub(crate) signed: [bool; 2],
}

/// A product under way.
#[derive(Debug)]
pub(crate) struct Product {
    of: Arc<Multiply>,
    at: At,
    rows: [[u32; 32]; 4],
    columns: Columns,
    adds: bool,
    /// Whether its sums depend on what nothing has written.
    undefined: bool,
    /// Its group, once committed.
    group: Option<u32>,
    /// When the sums are there in modelled time.
    done: u64,
}

/// Where a descriptor has its columns: PTX ISA, "Shared Memory Matrix Layout" and "Matrix Descriptor Format" of wgmma, for a
/// matrix whose columns lie along their depth.
#[derive(Debug, Clone, Copy)]
struct Columns {
    start: u64,
    /// Bytes from a piece of a column to the next where these are not swizzled, and from eight columns to the next eight.
    leading: u64,
    stride: u64,
    /// Bytes of a column that lie together in a pattern of eight columns; 16 where nothing is swizzled.
    width: u64,
}

impl Columns {
    /// None for a descriptor that no such product has.
    fn new(descriptor: u64) -> Option<Columns> {
        let bytes = |from: u32| (descriptor >> from & 0x3fff) * PIECE;
        let width = match descriptor >> 62 {
            0 => 16,
            1 => 128,
            2 => 64,
            _ => 32,
        };
        let columns = Columns { start: bytes(0), leading: bytes(16), stride: bytes(32), width };
        // A pattern may begin elsewhere by the offset of its base, which this emulator has not.
        let is_whole = descriptor >> 49 & 7 == 0 && (columns.start / width).is_multiple_of(8);
        (width == 16 || is_whole).then_some(columns)
    }

    /// Where 16 bytes of a column begin.
    fn piece(&self, column: u64, piece: u64) -> u64 {
        let (eight, inside) = (column / 8 * self.stride, column % 8 * self.width);
        if self.width == PIECE {
            return self.start + eight + inside + piece * self.leading;
        }
        let at = self.start + eight + inside + piece * PIECE;
        // The number of a piece is changed by that of the 128 bytes in a pattern.
        at ^ ((at >> 7 & (self.width / PIECE - 1)) * PIECE)
    }
}

impl Multiply {
    /// Pieces of all columns, by number.
    fn pieces(&self) -> u64 {
        self.sums.len() as u64 * 2 * DEPTH / PIECE
    }
}

impl Cpu<'_> {
    /// Issues a product.
    pub(crate) fn multiply_later(&mut self, site: &mut Site<'_>, of: &Arc<Multiply>) -> OrFault<()> {
        let code = self.cx.code;
        let descriptor = site.warp.lane(code, (of.columns, W::W64), 0);
        let adds = site.warp.preds[of.adds as usize];
        let alike = (1..32).all(|l| site.warp.lane(code, (of.columns, W::W64), l) == descriptor);
        if !alike || !matches!(adds, 0 | u32::MAX) {
            let message = "the lanes of a warp differ in the descriptor of their product, or in whether it is added";
            return Err(self.fault(FaultKind::InvalidSync, &site.at, None, message));
        }
        let Some(columns) = Columns::new(descriptor) else {
            let message = format!(
                "the descriptor {descriptor:#x}: its base offset must be 0, and a swizzled matrix begin at a whole pattern"
            );
            return Err(self.fault(FaultKind::IllegalInstruction, &site.at, None, message));
        };
        let adds = adds != 0;
        let before = site.warp.products.iter().rev().find(|other| of.sums.iter().any(|r| other.of.sums.contains(r)));
        let unknown = |r: &R| site.warp.defined.slot(*r) != 0;
        let sums = before.map_or_else(|| of.sums.iter().any(unknown), |other| other.undefined);
        let mut undefined = of.rows.iter().any(unknown) || adds && sums;
        let access = Access { proxy: true, pending: true, carries: true, ..Access::new(4, 4, false) };
        for first in (0..of.pieces()).step_by(32) {
            let group = lanes_where(u32::MAX, |l| first + (l as u64) < of.pieces());
            let from = std::array::from_fn(|l| columns.piece((first + l as u64) / 2, (first + l as u64) % 2));
            self.undefined = [0; 4];
            self.notes(site, Space::Shared, from, group, &access)?;
            undefined |= self.undefined != [0; 4];
        }
        self.define(site, of, false);
        let rows = of.rows.map(|r| *site.warp.words(code, r));
        let done = site.common.observers.product_done(site.at.warp);
        let product = Product { of: of.clone(), at: site.at, rows, columns, adds, undefined, group: None, done };
        site.warp.products.push(product);
        Ok(())
    }

    /// `wgmma.commit_group`
    pub(crate) fn commit_products(&mut self, site: &mut Site<'_>) {
        let warp = &mut site.warp;
        let open = warp.products.iter_mut().filter(|product| product.group.is_none());
        open.for_each(|product| product.group = Some(warp.product_groups));
        warp.product_groups += 1;
    }

    /// `wgmma.wait_group`: for all groups but the last `keep`.
    pub(crate) fn wait_for_products(&mut self, site: &mut Site<'_>, keep: u32) {
        let groups = site.warp.product_groups;
        let is_due = |product: &mut Product| product.group.is_some_and(|group| group.saturating_add(keep) < groups);
        let due: Vec<Product> = site.warp.products.extract_if(.., is_due).collect();
        let done = due.iter().map(|product| product.done).max().unwrap_or(0);
        site.common.observers.products_awaited(site.at.warp, done);
        due.iter().for_each(|product| self.multiply_now(site, product));
        // Sums may have got one product, and wait for the next.
        let later: Vec<Arc<Multiply>> = site.warp.products.iter().map(|product| product.of.clone()).collect();
        later.iter().for_each(|of| self.define(site, of, false));
    }

    /// Sums are defined from now on, or not.
    fn define(&self, site: &mut Site<'_>, of: &Multiply, defined: bool) {
        if self.cx.config.checks.initcheck {
            let undefined = if defined { 0 } else { u32::MAX };
            let sums = of.sums.iter();
            sums.for_each(|&r| site.warp.defined.set(r as usize, u32::MAX, undefined, Whence::Unknown));
        }
    }

    /// Reads a product's columns, and writes its sums.
    fn multiply_now(&mut self, site: &mut Site<'_>, product: &Product) {
        let Product { of, at, columns, adds, .. } = product;
        let [rows_signed, columns_signed] = of.signed;
        let rank = at.warp / self.cx.layout.warps;
        for (eight, registers) in (0..).zip(of.sums.as_chunks::<4>().0) {
            // As a warp has eight columns in registers.
            let mut words = [[0; 32]; 2];
            for (column, lane) in (8 * eight..8 * eight + 8).zip((0..32).step_by(4)) {
                for (piece, words) in (0..2).zip(&mut words) {
                    let from = self.cx.layout.in_cluster(rank, columns.piece(column, piece));
                    let from = self.cx.layout.shared_index(from);
                    words[lane..lane + 4].copy_from_slice(&four_words(site.common, from));
                    site.common.observers.copy_reads((at, ((2 * column + piece) % 32) as usize), from, PIECE);
                }
            }
            let before = |r: R| if *adds { *site.warp.words(self.cx.code, r) } else { [0; 32] };
            let mut sums = registers.map(before);
            let (rows, columns) = (product.rows.each_ref(), words.each_ref());
            products::of_bytes([(&rows, rows_signed), (&columns, columns_signed)], &mut sums, false);
            registers.iter().zip(&sums).for_each(|(&r, words)| site.warp.set_words(r, words));
        }
        self.define(site, of, !product.undefined);
        self.wrote = true;
    }

    /// Faults where a warp exits before its products are there.
    pub(crate) fn exits_with_products(&self, site: &Site<'_>) -> OrFault<()> {
        match site.warp.products.first() {
            Some(product) if self.cx.config.checks.synccheck => {
                let message = "the warp exits while this product is under way; wait for its group first";
                Err(self.fault(FaultKind::CopyInFlight, &product.at, None, message))
            }
            _ => Ok(()),
        }
    }
}

/// Four words of shared memory.
fn four_words(common: &mut Common, at: u64) -> [u32; 4] {
    let bytes = shared_bytes(common, at, PIECE as usize);
    std::array::from_fn(|i| u32::from_le_bytes([bytes[4 * i], bytes[4 * i + 1], bytes[4 * i + 2], bytes[4 * i + 3]]))
}
