//! Matrix instructions: a warp's 32 lanes hold the fragments together.
//!
//! Products and sums are formed in f64 and rounded once at the end; the hardware's order of additions is not defined.
//! The layout of `wmma` fragments is not defined either: here lane `l` holds elements `l * n .. l * n + n`.

use super::access::{Access, read, write};
use super::float::Round;
use super::inst::*;
use super::lanes::Lanes;
use super::scalar::format;
use super::warp::Warp;
use super::{Cpu, Exec, FaultKind, Site};
use crate::ptx::types::Ty;

/// How a matrix lies in the lanes' registers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Layout {
    /// One element after the other, of `wmma`.
    Linear,
    /// That of `mma` for A: groups of four lanes hold a row, each register a piece of it.
    Rows,
    /// That of `mma` for B: groups of four lanes hold a column.
    Columns,
    /// That of `mma` for C and D: two neighbours of a row in a lane.
    Pairs,
}

/// A matrix in registers.
#[derive(Debug, Clone)]
pub(crate) struct Fragment {
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    pub(crate) ty: Ty,
    pub(crate) layout: Layout,
    pub(crate) regs: Vec<R>,
}

impl Fragment {
    /// Bits of an element in a register.
    fn bits(&self) -> usize {
        if self.ty == Ty::TF32 { 32 } else { self.ty.bits() as usize }
    }

    /// Elements of a lane.
    pub(crate) fn each(&self) -> usize {
        self.rows * self.cols / 32
    }

    /// Registers of a lane.
    pub(crate) fn registers(&self) -> usize {
        (self.each() * self.bits()).div_ceil(self.bits().max(32))
    }

    /// Row and column of element `i` of a lane, as the ISA lays it out.
    fn place(&self, lane: usize, i: usize) -> (usize, usize) {
        let per = (32 / self.bits()).max(1);
        let (group, within) = (lane / 4, lane % 4 * per + i % per);
        match self.layout {
            Layout::Linear => ((lane * self.each() + i) / self.cols, (lane * self.each() + i) % self.cols),
            Layout::Rows if self.rows == 16 => (group + 8 * (i / per % 2), i / per / 2 * 4 * per + within),
            Layout::Rows => (group, i / per * 4 * per + within),
            Layout::Columns => (i / per * 4 * per + within, group),
            Layout::Pairs => (group + 8 * (i / 2), lane % 4 * 2 + i % 2),
        }
    }

    /// Bits of element `i` of a lane.
    fn get(&self, warp: &Warp, code: &Code, lane: usize, i: usize) -> u64 {
        let bits = self.bits();
        if bits == 64 {
            return warp.lane(code, (self.regs[i], W::W64), lane);
        }
        let per = 32 / bits;
        u64::from(warp.lane32(code, self.regs[i / per], lane)) >> (bits * (i % per)) & ((1 << bits) - 1)
    }

    /// Packs a lane's elements into its registers.
    fn put(&self, warp: &mut Warp, lane: usize, values: &[u64]) {
        let bits = self.bits();
        let per = (32 / bits).max(1);
        let w = if bits == 64 { W::W64 } else { W::W32 };
        let words = values.chunks(per).map(|c| c.iter().enumerate().fold(0, |w, (i, v)| w | v << (bits * i)));
        for (&r, word) in self.regs.iter().zip(words.chain(std::iter::repeat(0))) {
            warp.set_lane(r, w, lane, word);
        }
    }

    /// The matrix, row by row.
    fn gather(&self, warp: &Warp, code: &Code) -> Vec<f64> {
        let mut out = vec![0.0; self.rows * self.cols];
        for (lane, i) in (0..32).flat_map(|l| (0..self.each()).map(move |i| (l, i))) {
            let (r, c) = self.place(lane, i);
            out[r * self.cols + c] = value(self.ty, self.get(warp, code, lane, i));
        }
        out
    }

    /// Stores a matrix given row by row.
    fn scatter(&self, warp: &mut Warp, matrix: &[f64], sat: bool) {
        for lane in 0..32 {
            let element = |i| {
                let (r, c) = self.place(lane, i);
                encode(self.ty, matrix[r * self.cols + c], sat)
            };
            let values: Vec<u64> = (0..self.each()).map(element).collect();
            self.put(warp, lane, &values);
        }
    }
}

/// The value of an element; integers are exact in f64.
fn value(ty: Ty, bits: u64) -> f64 {
    match ty {
        Ty::S8 => f64::from(bits as i8),
        Ty::U8 => f64::from(bits as u8),
        Ty::S32 => f64::from(bits as i32),
        // Only the upper 19 bits of a tf32 operand count.
        Ty::TF32 => f64::from(f32::from_bits(bits as u32 & 0xffff_e000)),
        _ => format(ty).value(bits),
    }
}

fn encode(ty: Ty, v: f64, sat: bool) -> u64 {
    match ty {
        Ty::S32 if sat => u64::from(v.clamp(f64::from(i32::MIN), f64::from(i32::MAX)) as i32 as u32),
        Ty::S32 => u64::from(v as i64 as u32),
        _ => format(ty).round(v.into(), Round::Near, false),
    }
}

/// Where element (row, column) of an 8 x 8 matrix stands in the registers.
fn place(row: usize, col: usize, transposed: bool) -> (usize, usize) {
    if transposed { (col, row) } else { (row, col) }
}

impl Cpu<'_> {
    /// A matrix instruction needs a whole warp.
    pub(crate) fn whole_warp(&self, site: &Site<'_>, group: u32) -> Exec<()> {
        if group == u32::MAX {
            return Ok(());
        }
        let lane = Some((!group).trailing_zeros() as usize);
        Err(self.fault(FaultKind::InvalidSync, &site.at, lane, "a matrix instruction needs all 32 lanes of the warp"))
    }

    /// `mma` and `wmma.mma`: D = A B + C.
    pub(crate) fn multiply(&mut self, site: &mut Site<'_>, [d, a, b, c]: &[Fragment; 4], sat: bool) {
        let [ma, mb, mut mc] = [a, b, c].map(|f| f.gather(site.warp, self.cx.code));
        for (i, j) in (0..d.rows).flat_map(|i| (0..d.cols).map(move |j| (i, j))) {
            let products = (0..a.cols).map(|x| ma[i * a.cols + x] * mb[x * b.cols + j]);
            mc[i * d.cols + j] += products.fold(0.0, |s, p| s + p);
        }
        d.scatter(site.warp, &mc, sat);
    }

    /// `ldmatrix` and `stmatrix`: 8 x 8 matrices of 16 bits, one address a row.
    pub(crate) fn matrix_rows(
        &mut self,
        site: &mut Site<'_>,
        regs: &[R],
        (transposed, store): (bool, bool),
        address: &Address,
    ) -> Exec<()> {
        let code = self.cx.code;
        let addr = site.warp.addresses(address);
        let lanes = u32::MAX >> (32 - 8 * regs.len());
        // Element (row, column) of matrix j is in half `column % 2` of lane `4 * row + column / 2`, or transposed.
        let mut data = [[0u16; 8]; 32];
        for (x, line) in data.iter_mut().enumerate().take(if store { 8 * regs.len() } else { 0 }) {
            for (col, v) in line.iter_mut().enumerate() {
                let (p, q) = place(x % 8, col, transposed);
                *v = (site.warp.lane32(code, regs[x / 8], 4 * p + q / 2) >> (16 * (q % 2))) as u16;
            }
        }
        self.with_places(site, address.space, addr, lanes, &Access::new(4, 4, store), |_, _, ptr, g| {
            for (l, k) in Lanes(g).flat_map(|l| (0..4).map(move |k| (l, k))) {
                let (p, pair) = (ptr[l].wrapping_add(4 * k), &mut data[l][2 * k..2 * k + 2]);
                if store {
                    write(p, 4, u64::from(pair[0]) | u64::from(pair[1]) << 16);
                } else {
                    let v = read(p, 4);
                    pair.copy_from_slice(&[v as u16, (v >> 16) as u16]);
                }
            }
        })?;
        for (j, &r) in regs.iter().enumerate().take(if store { 0 } else { regs.len() }) {
            for l in 0..32 {
                let half = |h: usize| {
                    let (row, col) = place(l / 4, 2 * (l % 4) + h, transposed);
                    u64::from(data[8 * j + row][col])
                };
                site.warp.set_lane(r, W::W32, l, half(0) | half(1) << 16);
            }
        }
        Ok(())
    }

    /// `wmma.load` and `wmma.store`: a fragment, of rows or columns `stride` elements apart.
    pub(crate) fn matrix_memory(
        &mut self,
        site: &mut Site<'_>,
        f: &Fragment,
        (row_major, store): (bool, bool),
        address: &Address,
        stride: R,
    ) -> Exec<()> {
        let code = self.cx.code;
        let base = site.warp.addresses(address);
        let bytes = f.bits() as u32 / 8;
        let mut values = vec![[0u64; 32]; f.each()];
        for (i, values) in values.iter_mut().enumerate() {
            let mut addr = base;
            for (l, a) in addr.iter_mut().enumerate() {
                let (r, c) = f.place(l, i);
                let (major, minor, dense) = if row_major { (r, c, f.cols) } else { (c, r, f.rows) };
                let step = if stride == NONE { dense } else { site.warp.lane32(code, stride, l) as usize };
                *a += ((major * step + minor) * bytes as usize) as u64;
                if store {
                    values[l] = f.get(site.warp, code, l, i);
                }
            }
            let access = Access::new(bytes, 1, store);
            self.with_places(site, address.space, addr, u32::MAX, &access, |_, _, ptr, g| {
                Lanes(g).for_each(|l| match store {
                    true => write(ptr[l], bytes, values[l]),
                    false => values[l] = read(ptr[l], bytes),
                });
            })?;
        }
        for l in 0..if store { 0 } else { 32 } {
            let lane: Vec<u64> = values.iter().map(|v| v[l]).collect();
            f.put(site.warp, l, &lane);
        }
        Ok(())
    }
}
