//! Matrix instructions.

use super::super::ast::Arg;
use super::super::types::Ty;
use super::operands::list;
use super::{Decoder, Res, Text};
use crate::exec::inst::*;
use crate::exec::matrix::{Fragment, Layout};

impl Decoder<'_> {
    pub(super) fn matrix(&mut self, t: &mut Text<'_>) -> Res<bool> {
        let effect = match t.name {
            "ldmatrix" | "stmatrix" => self.rows(t)?,
            "mma" => self.mma(t)?,
            "wmma" => match t.word("load store mma")? {
                "mma" => self.wmma(t)?,
                part => self.fragment(t, part == "store")?,
            },
            _ => return Ok(false),
        };
        t.require("sync.aligned")?;
        let all = self.constant(0xffff_ffff, false);
        self.warp_wide(all, move |cpu, site, group| {
            cpu.whole_warp(site, group)?;
            effect(cpu, site, group)
        });
        Ok(true)
    }

    /// `m16n8k16`
    fn shape(&self, t: &mut Text<'_>) -> Res<[usize; 3]> {
        let shape = t.read(|p| {
            let (m, rest) = p.strip_prefix('m')?.split_once('n')?;
            let (n, k) = rest.split_once('k')?;
            Some([m.parse().ok()?, n.parse().ok()?, k.parse().ok()?])
        });
        match shape {
            Some(shape) if shape.iter().all(|n| *n <= 64) => Ok(shape),
            _ => t.fail(t.opcode, "shape that is missing or not known"),
        }
    }

    /// The registers of a fragment, each of 32 or (f64) 64 bits; at least `n` of them.
    fn registers(&mut self, arg: &Arg, ty: Ty, write: bool, n: usize) -> Res<Vec<R>> {
        let ty = if matches!(ty, Ty::F64 | Ty::F32 | Ty::S32) { ty } else { Ty::B32 };
        let list = list(arg);
        if list.len() < n {
            return self.fail(format!("{} registers", list.len()), format!("the fragment has {n}"));
        }
        list.iter().map(|a| self.element(a, ty, write)).collect()
    }

    /// `ldmatrix` and `stmatrix`
    fn rows(&mut self, t: &mut Text<'_>) -> Res<WarpEffect> {
        let store = t.name == "stmatrix";
        t.require("m8n8")?;
        let n = t.need(&[("x1", 1), ("x2", 2), ("x4", 4)])?;
        let transposed = t.take("trans");
        let space = t.space();
        t.require("b16")?;
        t.arity(2)?;
        let (at, values) = if store { (0, 1) } else { (1, 0) };
        let address = self.address(&t.args[at], space)?;
        let regs = self.registers(&t.args[values], Ty::B32, !store, n)?;
        if regs.len() != n {
            return t.fail(format!("{} registers", regs.len()), format!("the fragment has {n}"));
        }
        Ok(Box::new(move |cpu, site, _| cpu.matrix_rows(site, &regs, (transposed, store), &address)))
    }

    /// D = A B + C in these layouts. `wmma` may have more registers than its layout here needs.
    fn multiply(
        &mut self,
        t: &Text<'_>,
        [m, n, k]: [usize; 3],
        types: [Ty; 4],
        layouts: [Layout; 4],
        sat: bool,
    ) -> Res<WarpEffect> {
        t.arity(4)?;
        let mut fragment = |i: usize, rows, cols| {
            let (ty, layout) = (types[i], layouts[i]);
            let mut f = Fragment { rows, cols, ty, layout, regs: Vec::new() };
            f.regs = self.registers(&t.args[i], ty, i == 0, f.registers())?;
            if f.regs.len() > f.registers() && layout != Layout::Linear {
                return t.fail(format!("{} registers", f.regs.len()), format!("the fragment has {}", f.registers()));
            }
            Ok(f)
        };
        let fragments = [fragment(0, m, n)?, fragment(1, m, k)?, fragment(2, k, n)?, fragment(3, m, n)?];
        Ok(Box::new(move |cpu, site, _| {
            cpu.multiply(site, &fragments, sat);
            Ok(())
        }))
    }

    fn mma(&mut self, t: &mut Text<'_>) -> Res<WarpEffect> {
        let shape = self.shape(t)?;
        t.require("row.col")?;
        let sat = t.take("satfinite");
        let types @ [d, a, b, c] = [t.ty()?, t.ty()?, t.ty()?, t.ty()?];
        let ok = match (shape, a, b) {
            ([16, 8, 8 | 16], Ty::F16, Ty::F16) => matches!(d, Ty::F16 | Ty::F32),
            ([16, 8, 8 | 16], Ty::BF16, Ty::BF16) | ([16, 8, 4 | 8], Ty::TF32, Ty::TF32) => d == Ty::F32,
            ([8, 8, 16] | [16, 8, 16 | 32], Ty::S8 | Ty::U8, Ty::S8 | Ty::U8) => d == Ty::S32,
            ([8, 8, 4], Ty::F64, Ty::F64) => d == Ty::F64,
            _ => false,
        };
        if !ok || c != d || (sat && d != Ty::S32) {
            return t.fail(format!("{shape:?} {types:?}"), "shape and types that are not supported together");
        }
        self.multiply(t, shape, types, [Layout::Pairs, Layout::Rows, Layout::Columns, Layout::Pairs], sat)
    }

    fn wmma(&mut self, t: &mut Text<'_>) -> Res<WarpEffect> {
        for _ in 0..2 {
            // Layouts matter when fragments are loaded.
            t.word("row col")?;
        }
        let shape = self.shape(t)?;
        let sat = t.take("satfinite");
        let (d, next) = (t.ty()?, t.ty()?);
        // Of products of f16, only the types of D and C are written.
        let types @ [_, a, b, c] = match t.read(Ty::parse) {
            Some(b) => [d, next, b, t.ty()?],
            None => [d, Ty::F16, Ty::F16, next],
        };
        let ok = match (a, b) {
            (Ty::F16, Ty::F16) => matches!(d, Ty::F16 | Ty::F32) && matches!(c, Ty::F16 | Ty::F32),
            (Ty::BF16, Ty::BF16) | (Ty::TF32, Ty::TF32) => d == Ty::F32 && c == d,
            (Ty::S8, Ty::S8) | (Ty::U8, Ty::U8) => d == Ty::S32 && c == d,
            _ => false,
        };
        if !ok {
            return t.fail(format!("{types:?}"), "types that are not supported together");
        }
        self.multiply(t, shape, types, [Layout::Linear; 4], sat)
    }

    /// `wmma.load` and `wmma.store`
    fn fragment(&mut self, t: &mut Text<'_>, store: bool) -> Res<WarpEffect> {
        let which = t.word("a b c d")?;
        let row_major = t.need(&[("row", true), ("col", false)])?;
        let [m, n, k] = self.shape(t)?;
        let space = t.space();
        let ty = t.ty()?;
        let (rows, cols) = match which {
            "a" => (m, k),
            "b" => (k, n),
            _ => (m, n),
        };
        if rows * cols % 32 != 0 || !matches!(ty, Ty::F16 | Ty::BF16 | Ty::TF32 | Ty::F32 | Ty::S8 | Ty::U8 | Ty::S32) {
            return t.fail(format!("{ty:?}"), "fragment that is not supported");
        }
        t.arities(2, 3)?;
        let (at, values) = if store { (0, 1) } else { (1, 0) };
        let address = self.address(&t.args[at], space)?;
        let stride = if t.args.len() == 3 { self.src(&t.args[2], Ty::U32)? } else { NONE };
        let mut f = Fragment { rows, cols, ty, layout: Layout::Linear, regs: Vec::new() };
        f.regs = self.registers(&t.args[values], ty, !store, f.registers())?;
        Ok(Box::new(move |cpu, site, _| cpu.matrix_memory(site, &f, (row_major, store), &address, stride)))
    }
}
