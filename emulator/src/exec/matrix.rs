//! Matrix instructions: a warp's 32 lanes hold the fragments together.
//!
//! Products and sums are formed in f64 and rounded once at the end; the hardware's order of additions is not defined.
//! The layout of `wmma` fragments is not defined either: here lane `l` holds elements `l * n .. l * n + n`.

use super::access::{Access, read, write};
use super::block::Common;
use super::float::{BF16, F16, F32, Format, Round};
use super::inst::*;
use super::lanes::Lanes;
use super::warp::Warp;
use super::{At, Cpu, Exec, FaultKind};
use crate::ptx::types::Ty;

/// A matrix instruction.
#[derive(Debug, Clone)]
pub(crate) enum MatrixOp {
    /// `ldmatrix` and `stmatrix`: 8 x 8 matrices of 16 bits, one address a row.
    Rows { regs: Vec<R>, transposed: bool, store: bool, address: Address, space: MemSpace },
    /// `mma`
    Mma { shape: [usize; 3], types: [Ty; 4], d: Vec<R>, a: Vec<R>, b: Vec<R>, c: Vec<R>, sat: bool },
    /// `wmma.load` and `wmma.store`
    Fragment {
        rows: usize,
        cols: usize,
        row_major: bool,
        ty: Ty,
        regs: Vec<R>,
        address: Address,
        space: MemSpace,
        stride: R,
        store: bool,
    },
    /// `wmma.mma`
    Wmma { shape: [usize; 3], types: [Ty; 4], d: Vec<R>, a: Vec<R>, b: Vec<R>, c: Vec<R>, sat: bool },
}

fn format(ty: Ty) -> Format {
    match ty {
        Ty::F16 => F16,
        Ty::BF16 => BF16,
        _ => F32,
    }
}

/// The value of an element; integers are exact in f64.
fn value(ty: Ty, bits: u64) -> f64 {
    match ty {
        Ty::F64 => f64::from_bits(bits),
        Ty::S8 => f64::from(bits as i8),
        Ty::U8 => f64::from(bits as u8),
        Ty::S32 => f64::from(bits as i32),
        // Only the upper 19 bits of a tf32 operand count.
        Ty::TF32 => f64::from(f32::from_bits(bits as u32 & 0xffff_e000)),
        _ => format(ty).value(bits as u32),
    }
}

fn encode(ty: Ty, v: f64, sat: bool) -> u64 {
    match ty {
        Ty::F64 => v.to_bits(),
        Ty::S32 if sat => u64::from(v.clamp(f64::from(i32::MIN), f64::from(i32::MAX)) as i32 as u32),
        Ty::S32 => u64::from(v as i64 as u32),
        _ => u64::from(format(ty).round(v, Round::Near, false)),
    }
}

impl MatrixOp {
    /// Bits of an element in a register.
    fn bits(ty: Ty) -> usize {
        if ty == Ty::TF32 { 32 } else { ty.bits() as usize }
    }
}

/// Reads elements out of a fragment: element `i` of lane `l`.
fn element(warp: &Warp, code: &Code, regs: &[R], ty: Ty, lane: usize, i: usize) -> f64 {
    let bits = MatrixOp::bits(ty);
    if bits == 64 {
        return value(ty, warp.lane64(code, regs[i], lane));
    }
    let per = 32 / bits;
    let word = u64::from(warp.lane32(code, regs[i / per], lane));
    let v = word >> (bits * (i % per));
    value(ty, if bits == 32 { v } else { v & ((1 << bits) - 1) })
}

/// Row and column of element `i` of lane `l` in A (rows x k), as the ISA lays it out.
fn place_a(rows: usize, ty: Ty, lane: usize, i: usize) -> (usize, usize) {
    let per = (32 / MatrixOp::bits(ty)).max(1);
    let (r, e) = (i / per, i % per);
    let (half, column) = if rows == 16 { (r & 1, r >> 1) } else { (0, r) };
    (lane / 4 + 8 * half, column * 4 * per + lane % 4 * per + e)
}

/// Row and column of an element of B (k x 8).
fn place_b(ty: Ty, lane: usize, i: usize) -> (usize, usize) {
    let per = (32 / MatrixOp::bits(ty)).max(1);
    (i / per * 4 * per + lane % 4 * per + i % per, lane / 4)
}

/// Row and column of an element of C or D (rows x 8).
fn place_c(lane: usize, i: usize) -> (usize, usize) {
    (lane / 4 + 8 * (i / 2), lane % 4 * 2 + i % 2)
}

impl Cpu<'_> {
    /// Runs a matrix instruction for a whole warp.
    pub(crate) fn matrix(
        &mut self,
        common: &mut Common,
        warp: &mut Warp,
        op: &MatrixOp,
        _mask: u32,
        group: u32,
        at: &At,
    ) -> Exec<()> {
        if group != u32::MAX {
            let lane = Some((!group).trailing_zeros() as usize);
            return Err(self.fault(
                FaultKind::InvalidSync,
                at,
                lane,
                "a matrix instruction needs all 32 lanes of the warp",
            ));
        }
        match op {
            MatrixOp::Rows { regs, transposed, store, address, space } => {
                self.rows(common, warp, regs, *transposed, *store, address, *space, at)
            }
            MatrixOp::Mma { shape, types, d, a, b, c, sat } => {
                let [m, n, k] = *shape;
                let [dt, at_, bt, ct] = *types;
                let code = self.cx.code;
                let (mut ma, mut mb, mut mc) = (vec![0.0; m * k], vec![0.0; k * n], vec![0.0; m * n]);
                for l in 0..32 {
                    for i in 0..m * k / 32 {
                        let (r, col) = place_a(m, at_, l, i);
                        ma[r * k + col] = element(warp, code, a, at_, l, i);
                    }
                    for i in 0..k * n / 32 {
                        let (r, col) = place_b(bt, l, i);
                        mb[r * n + col] = element(warp, code, b, bt, l, i);
                    }
                    for i in 0..m * n / 32 {
                        let (r, col) = place_c(l, i);
                        mc[r * n + col] = element(warp, code, c, ct, l, i);
                    }
                }
                multiply(&ma, &mb, &mut mc, *shape);
                for l in 0..32 {
                    let values: Vec<u64> = (0..m * n / 32)
                        .map(|i| {
                            let (r, col) = place_c(l, i);
                            encode(dt, mc[r * n + col], *sat)
                        })
                        .collect();
                    put(warp, d, dt, l, &values);
                }
                Ok(())
            }
            MatrixOp::Fragment { rows, cols, row_major, ty, regs, address, space, stride, store } => {
                self.fragment(common, warp, [*rows, *cols], *row_major, *ty, regs, address, *space, *stride, *store, at)
            }
            MatrixOp::Wmma { shape, types, d, a, b, c, sat } => {
                let [m, n, k] = *shape;
                let [dt, at_, bt, ct] = *types;
                let code = self.cx.code;
                let gather = |regs: &[R], ty: Ty, count: usize| -> Vec<f64> {
                    let each = count / 32;
                    (0..count).map(|x| element(warp, code, regs, ty, x / each, x % each)).collect()
                };
                let (ma, mb, mut mc) = (gather(a, at_, m * k), gather(b, bt, k * n), gather(c, ct, m * n));
                multiply(&ma, &mb, &mut mc, *shape);
                let each = m * n / 32;
                for l in 0..32 {
                    let values: Vec<u64> = mc[l * each..][..each].iter().map(|&v| encode(dt, v, *sat)).collect();
                    put(warp, d, dt, l, &values);
                }
                Ok(())
            }
        }
    }

    fn rows(
        &mut self,
        common: &mut Common,
        warp: &mut Warp,
        regs: &[R],
        transposed: bool,
        store: bool,
        address: &Address,
        space: MemSpace,
        at: &At,
    ) -> Exec<()> {
        let addr = self.addresses(warp, address);
        let lanes = if regs.len() == 4 { u32::MAX } else { (1 << (8 * regs.len())) - 1 };
        let code = self.cx.code;
        // Element (row, column) of matrix j is in half `column % 2` of lane `4 * row + column / 2`, or transposed.
        let place = |row: usize, col: usize| if transposed { (col, row) } else { (row, col) };
        let mut data = [[0u16; 8]; 32];
        if store {
            for (j, &r) in regs.iter().enumerate() {
                for (row, line) in data[8 * j..8 * j + 8].iter_mut().enumerate() {
                    for (col, v) in line.iter_mut().enumerate() {
                        let (p, q) = place(row, col);
                        *v = (warp.lane32(code, r, 4 * p + q / 2) >> (16 * (q % 2))) as u16;
                    }
                }
            }
        }
        let access = plain(4, 4, store);
        self.with_places(common, warp, space, addr, lanes, &access, at, |_, _, ptr, g| {
            for l in Lanes(g) {
                for k in 0..4 {
                    let p = ptr[l].wrapping_add(4 * k);
                    if store {
                        write(p, 4, u64::from(data[l][2 * k]) | u64::from(data[l][2 * k + 1]) << 16, false);
                    } else {
                        let v = read(p, 4, false);
                        data[l][2 * k] = v as u16;
                        data[l][2 * k + 1] = (v >> 16) as u16;
                    }
                }
            }
        })?;
        if !store {
            for (j, &r) in regs.iter().enumerate() {
                for l in 0..32 {
                    let half = |h: usize| {
                        let (row, col) = place(l / 4, 2 * (l % 4) + h);
                        u64::from(data[8 * j + row][col])
                    };
                    warp.set_lane(r, W::W32, l, half(0) | half(1) << 16);
                }
            }
        }
        Ok(())
    }

    fn fragment(
        &mut self,
        common: &mut Common,
        warp: &mut Warp,
        [rows, cols]: [usize; 2],
        row_major: bool,
        ty: Ty,
        regs: &[R],
        address: &Address,
        space: MemSpace,
        stride: R,
        store: bool,
        at: &At,
    ) -> Exec<()> {
        let code = self.cx.code;
        let base = self.addresses(warp, address);
        let bits = MatrixOp::bits(ty);
        let each = rows * cols / 32;
        let mut values = vec![vec![0u64; each]; 32];
        for i in 0..each {
            let mut addr = [0; 32];
            for (l, a) in addr.iter_mut().enumerate() {
                let x = l * each + i;
                let (r, c) = (x / cols, x % cols);
                let dense = if row_major { cols } else { rows };
                let step = if stride == NONE { dense } else { warp.lane32(code, stride, l) as usize };
                let offset = if row_major { r * step + c } else { c * step + r };
                *a = base[l] + (offset * bits / 8) as u64;
                if store {
                    let per = 32 / bits;
                    let word = u64::from(warp.lane32(code, regs[i / per], l));
                    values[l][i] = word >> (bits * (i % per));
                }
            }
            let bytes = bits as u32 / 8;
            self.with_places(common, warp, space, addr, u32::MAX, &plain(bytes, 1, store), at, |_, _, ptr, g| {
                for l in Lanes(g) {
                    if store {
                        write(ptr[l], bytes, values[l][i], false);
                    } else {
                        values[l][i] = read(ptr[l], bytes, false);
                    }
                }
            })?;
        }
        if !store {
            for (l, v) in values.iter().enumerate() {
                for &r in regs {
                    warp.set_lane(r, W::W32, l, 0);
                }
                put(warp, regs, ty, l, v);
            }
        }
        Ok(())
    }
}

fn plain(bytes: u32, count: u32, write: bool) -> Access {
    Access {
        bytes,
        count,
        write,
        atomic: false,
        sem: Sem::Weak,
        scope: Scope::Cta,
        nc: false,
        proxy: false,
        pending: false,
        constant_space: false,
    }
}

/// Packs elements of one lane into its registers.
fn put(warp: &mut Warp, regs: &[R], ty: Ty, lane: usize, values: &[u64]) {
    let bits = MatrixOp::bits(ty);
    if bits == 64 {
        values.iter().zip(regs).for_each(|(&v, &r)| warp.set_lane(r, W::W64, lane, v));
        return;
    }
    let per = 32 / bits;
    for (chunk, &r) in values.chunks(per).zip(regs) {
        let word = chunk.iter().enumerate().fold(0, |w, (i, v)| w | v << (bits * i));
        warp.set_lane(r, W::W32, lane, word & 0xffff_ffff);
    }
}

/// `c += a * b`, all row by row.
fn multiply(a: &[f64], b: &[f64], c: &mut [f64], [m, n, k]: [usize; 3]) {
    for i in 0..m {
        for j in 0..n {
            let mut s = 0.0;
            for x in 0..k {
                s += a[i * k + x] * b[x * n + j];
            }
            c[i * n + j] += s;
        }
    }
}
