//! Matrix instructions: a warp's 32 lanes hold the fragments together.
//!
//! Products and sums are formed in f64 and rounded once at the end, since the hardware's order of additions is not
//! defined. Fragments have the ISA's layout of `mma`; it leaves that of `wmma` open. B is held transposed.

use super::access::{read, write};
use super::definedness::Whence;
use super::float::Round;
use super::inst::*;
use super::products::{self, Words};
use super::scalar::{format, integer};
use super::warp::Warp;
use super::{Cpu, Site};
use crate::machine::access::Access;
use crate::machine::fault::{FaultKind, OrFault};
use crate::machine::lanes::{Lanes, lanes_where};
use crate::machine::types::Ty;

/// A matrix in registers.
#[derive(Debug, Clone)]
pub(crate) struct Fragment {
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    pub(crate) ty: Ty,
    pub(crate) regs: Vec<R>,
    /// Whether neighbouring lanes, and not a lane, hold neighbouring columns: A and B of 32 bits and more.
    pub(crate) single: bool,
}

impl Fragment {
    /// Elements of a lane.
    fn each(&self) -> usize {
        self.rows * self.cols / 32
    }

    /// Elements of a register.
    fn per_register(&self) -> usize {
        (32 / self.ty.bits() as usize).max(1)
    }

    /// Registers of a lane.
    pub(crate) fn registers(&self) -> usize {
        self.each() / self.per_register()
    }

    /// Row and column of element `at`, counted through the lanes. Four lanes hold a row of every eight, a register (or
    /// a pair of 32-bit elements) at a time.
    fn place(&self, at: usize) -> (usize, usize) {
        let (lane, i, per) =
            (at / self.each(), at % self.each(), if self.single { 1 } else { self.per_register().max(2) });
        let (piece, eights) = (i / per, self.rows / 8);
        (lane / 4 + 8 * (piece % eights), (piece / eights * 4 + lane % 4) * per + i % per)
    }

    /// Bits of the elements, lane after lane.
    fn get(&self, warp: &Warp, code: &Program) -> Vec<u64> {
        let (each, per, bits) = (self.each(), self.per_register(), self.ty.bits() as usize);
        let width = if bits == 64 { W::W64 } else { W::W32 };
        let word = |at: usize| warp.lane(code, (self.regs[at % each / per], width), at / each);
        (0..32 * each).map(|at| word(at) >> (bits * (at % per)) & u64::MAX >> (64 - bits)).collect()
    }

    /// Its registers, at most four.
    fn words<'a>(&self, warp: &'a Warp, code: &'a Program) -> [&'a Words; 4] {
        std::array::from_fn(|i| self.regs.get(i).map_or(&[0; 32], |&r| warp.words(code, r)))
    }

    /// Packs the elements of all lanes into their registers.
    fn put(&self, warp: &mut Warp, elements: &[u64]) {
        for (lane, elements) in elements.chunks(self.each()).enumerate() {
            for (&r, elements) in self.regs.iter().zip(elements.chunks(self.per_register())) {
                if self.ty.bits() == 64 {
                    warp.set_lane(r, W::W64, lane, elements[0]);
                    continue;
                }
                let word = elements.iter().rev().fold(0, |word, v| word << self.ty.bits() | v);
                warp.set_lane(r, W::W32, lane, word);
            }
        }
    }

    /// The matrix, row by row.
    fn gather(&self, warp: &Warp, code: &Program) -> Vec<f64> {
        let mut out = vec![0.0; self.rows * self.cols];
        for (at, bits) in self.get(warp, code).into_iter().enumerate() {
            let (r, c) = self.place(at);
            out[r * self.cols + c] = value(self.ty, bits);
        }
        out
    }
}

/// The value of an element; integers are exact in f64.
fn value(ty: Ty, bits: u64) -> f64 {
    match ty {
        // The lower bits of its register are not looked at.
        Ty::TF32 => format(Ty::F32).value(bits & !0x1fff),
        _ if ty.float() => format(ty).value(bits),
        _ => integer(ty, bits) as f64,
    }
}

fn encode(ty: Ty, v: f64, sat: bool) -> u64 {
    match ty {
        Ty::S32 if sat => u64::from(v as i32 as u32),
        Ty::S32 => u64::from(v as i64 as u32),
        _ => format(ty).round(v.into(), Round::Near, false),
    }
}

/// Transposes an 8 x 8 matrix of 16 bits.
fn transpose(words: [u32; 32]) -> [u32; 32] {
    let element = |row: usize, column: usize| words[4 * row + column / 2] >> (16 * (column % 2)) & 0xffff;
    std::array::from_fn(|i| element(i % 4 * 2, i / 4) | element(i % 4 * 2 + 1, i / 4) << 16)
}

/// Carries definedness through a product: an element depends on its row of A, its row of B transposed, and its C.
#[cold]
fn carry_product(warp: &mut Warp, [d, a, b, c]: &[Fragment; 4]) {
    let of = |f: &Fragment| -> Vec<(usize, usize)> {
        let (each, per) = (f.each(), f.per_register());
        let undefined = |at: &usize| warp.defined.slot(f.regs[at % each / per]) >> (at / each) & 1 == 1;
        (0..32 * each).filter(undefined).map(|at| f.place(at)).collect()
    };
    let [a_places, b_places, c_places] = [a, b, c].map(of);
    let mut wrong = vec![false; d.rows * d.cols];
    for (row, _) in a_places {
        wrong[row * d.cols..][..d.cols].fill(true);
    }
    for (column, _) in b_places {
        wrong.iter_mut().skip(column).step_by(d.cols).for_each(|wrong| *wrong = true);
    }
    for (row, column) in c_places {
        wrong[row * d.cols + column] = true;
    }
    let sources = [a, b, c].into_iter().flat_map(|f| &f.regs).filter(|&&r| r & CONST == 0);
    let whence = sources.map(|&r| r as usize).find(|&r| warp.defined.lanes(r) != 0).map(|r| warp.defined.whence(r));
    let (each, per) = (d.each(), d.per_register());
    for (k, &r) in d.regs.iter().enumerate().take(d.registers()) {
        let is_wrong = |at: usize| {
            let (row, column) = d.place(at);
            wrong[row * d.cols + column]
        };
        let undefined = lanes_where(u32::MAX, |l| (0..per).any(|i| is_wrong(l * each + k * per + i)));
        warp.defined.set(r as usize, u32::MAX, undefined, whence.unwrap_or_default());
    }
}

/// All bits of a word whose register is undefined in a lane.
fn shade(warp: &Warp, r: R) -> [u32; 32] {
    let undefined = warp.defined.slot(r);
    std::array::from_fn(|l| 0u32.wrapping_sub(undefined >> l & 1))
}

impl Cpu<'_> {
    /// Faults where lanes of the warp are missing.
    pub(crate) fn whole_warp(&self, site: &Site<'_>, group: u32) -> OrFault<()> {
        if group == u32::MAX {
            return Ok(());
        }
        let lane = Some((!group).trailing_zeros() as usize);
        Err(self.fault(FaultKind::InvalidSync, &site.at, lane, "a matrix instruction needs all 32 lanes of the warp"))
    }

    /// `mma` and `wmma.mma`: D = A B + C, of B transposed.
    pub(crate) fn multiply(&mut self, site: &mut Site<'_>, fragments: &[Fragment; 4], sat: bool) {
        let [d, a, b, c] = fragments;
        if site.warp.defined.any() {
            carry_product(site.warp, fragments);
        }
        // By `mma` only: a C of `wmma` has more rows or columns.
        let (bytes, halves) = (d.ty == Ty::S32, a.ty == Ty::F16 && b.ty == Ty::F16 && [d.ty, c.ty] == [Ty::F32; 2]);
        if d.rows <= 16 && d.cols == 8 && (bytes || halves) {
            let [rows, columns, sums] = [a, b, c].map(|f| f.words(site.warp, self.cx.code));
            let [rows, columns] = [&rows[..a.regs.len()], &columns[..b.regs.len()]];
            let mut sums = sums.map(|words| *words);
            match bytes {
                true => products::of_bytes([(rows, a.ty == Ty::S8), (columns, b.ty == Ty::S8)], &mut sums, sat),
                false => products::of_halves([rows, columns], &mut sums),
            }
            return d.regs.iter().zip(&sums).for_each(|(&r, words)| site.warp.set_words(r, words));
        }
        let [ma, mb, mut mc] = [a, b, c].map(|f| f.gather(site.warp, self.cx.code));
        for (i, j) in (0..d.rows).flat_map(|i| (0..d.cols).map(move |j| (i, j))) {
            let products = (0..a.cols).map(|x| ma[i * a.cols + x] * mb[j * b.cols + x]);
            mc[i * d.cols + j] += products.fold(0.0, |s, p| s + p);
        }
        let places = (0..mc.len()).map(|at| d.place(at));
        let elements: Vec<u64> = places.map(|(r, c)| encode(d.ty, mc[r * d.cols + c], sat)).collect();
        d.put(site.warp, &elements);
    }

    /// `ldmatrix` and `stmatrix`: 8 x 8 matrices of 16 bits, one address a row.
    pub(crate) fn matrix_rows(
        &mut self,
        site: &mut Site<'_>,
        regs: &[R],
        (transposed, store): (bool, bool),
        address: &Address,
    ) -> OrFault<()> {
        let code = self.cx.code;
        let addr = site.warp.addresses(address);
        let lanes = u32::MAX >> (32 - 8 * regs.len());
        let turned = |words| if transposed { transpose(words) } else { words };
        // Matrices as they lie in memory, and as registers hold them: a row is four words.
        let mut matrices = [[0; 32]; 4];
        if store {
            matrices.iter_mut().zip(regs).for_each(|(words, &r)| *words = turned(*site.warp.words(code, r)));
        }
        self.undefined = [0; 4];
        if store && site.warp.defined.any() {
            let shades: Vec<[u32; 32]> = regs.iter().map(|&r| turned(shade(site.warp, r))).collect();
            let of = |k: usize| lanes_where(lanes, |l| shades[l / 8][4 * (l % 8) + k] != 0);
            self.undefined = std::array::from_fn(of);
        }
        let access = Access { carries: true, ..Access::new(4, 4, store) };
        self.by_places(site, (address.space, addr, lanes), &access, &mut |ptr, g| {
            let rows = matrices.as_flattened_mut().as_chunks_mut::<4>().0;
            for l in Lanes(g) {
                for (k, word) in rows[l].iter_mut().enumerate() {
                    let p = ptr[l].wrapping_add(4 * k);
                    match store {
                        true => write(p, 4, u64::from(*word)),
                        false => *word = read(p, 4) as u32,
                    }
                }
            }
        })?;
        if !store {
            for (&r, matrix) in regs.iter().zip(matrices) {
                site.warp.set_words(r, &turned(matrix));
            }
            if self.undefined != [0; 4] || site.warp.defined.any() {
                let whence = Whence::Load(site.at.pc, self.undefined_at);
                for (i, &r) in regs.iter().enumerate() {
                    let word = |w: usize| 0u32.wrapping_sub(self.undefined[w % 4] >> (8 * i + w / 4) & 1);
                    let shade = turned(std::array::from_fn(word));
                    let undefined = lanes_where(u32::MAX, |l| shade[l] != 0);
                    site.warp.defined.set(r as usize, u32::MAX, undefined, whence);
                }
            }
        }
        Ok(())
    }

    /// `movmatrix`: the transpose of an 8 x 8 matrix of 16 bits.
    pub(crate) fn move_matrix(&mut self, site: &mut Site<'_>, [d, a]: [R; 2]) {
        let turned = transpose(std::array::from_fn(|l| site.warp.lane32(self.cx.code, a, l)));
        if site.warp.defined.any() {
            let (shade, whence) = (transpose(shade(site.warp, a)), site.warp.defined.whence(a as usize));
            let undefined = lanes_where(u32::MAX, |l| shade[l] != 0);
            site.warp.defined.set(d as usize, u32::MAX, undefined, whence);
        }
        (0..32).zip(turned).for_each(|(l, word)| site.warp.set_lane(d, W::W32, l, word.into()));
    }

    /// `wmma.load` and `wmma.store`: a fragment whose rows or columns lie `stride` elements apart.
    pub(crate) fn matrix_memory(
        &mut self,
        site: &mut Site<'_>,
        f: &Fragment,
        (row_major, store): (bool, bool),
        address: &Address,
        stride: R,
    ) -> OrFault<()> {
        let code = self.cx.code;
        let base = site.warp.addresses(address);
        let (each, bytes) = (f.each(), f.ty.bytes());
        let mut elements = f.get(site.warp, code);
        let mut undefined = vec![0; f.regs.len()];
        for i in 0..each {
            let mut addr = base;
            for (l, a) in addr.iter_mut().enumerate() {
                let (r, c) = f.place(l * each + i);
                let (major, minor, dense) = if row_major { (r, c, f.cols) } else { (c, r, f.rows) };
                let step = if stride == NONE { dense } else { site.warp.lane32(code, stride, l) as usize };
                *a += ((major * step + minor) * bytes as usize) as u64;
            }
            let access = Access { carries: true, ..Access::new(bytes, 1, store) };
            let register = i / f.per_register();
            self.undefined = [if store { site.warp.defined.slot(f.regs[register]) } else { 0 }, 0, 0, 0];
            self.by_places(site, (address.space, addr, u32::MAX), &access, &mut |ptr, g| {
                Lanes(g).for_each(|l| match store {
                    true => write(ptr[l], bytes, elements[l * each + i]),
                    false => elements[l * each + i] = read(ptr[l], bytes),
                });
            })?;
            undefined[register] |= self.undefined[0];
        }
        if !store {
            f.put(site.warp, &elements);
            let whence = Whence::Load(site.at.pc, self.undefined_at);
            for (&r, undefined) in f.regs.iter().zip(undefined) {
                site.warp.defined.set(r as usize, u32::MAX, undefined, whence);
            }
        }
        Ok(())
    }
}
