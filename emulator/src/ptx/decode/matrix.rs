//! Matrix instructions.

use super::super::ast::Arg;
use super::super::types::Ty::{self, *};
use super::operands::list;
use super::{Decoder, Res, Text};
use crate::exec::inst::*;
use crate::exec::matrix::{Fragment, Layout};

impl Decoder<'_> {
    pub(super) fn matrix(&mut self, t: &mut Text<'_>) -> Res<bool> {
        let effect = match t.name {
            "ldmatrix" | "stmatrix" => self.rows(t)?,
            "mma" => self.multiply(t)?,
            "wmma" => match t.word("load store mma")? {
                "mma" => self.multiply(t)?,
                part => self.fragment(t, part == "store")?,
            },
            _ => return Ok(false),
        };
        t.require("sync.aligned")?;
        let all = self.constant(0xffff_ffff, false);
        let whole: WarpEffect = Box::new(move |cpu, site, group| {
            cpu.whole_warp(site, group)?;
            effect(cpu, site, group)
        });
        self.push(Op::Warp(Some(whole), all));
        Ok(true)
    }

    /// `m16n8k16`
    fn shape(&self, t: &mut Text<'_>) -> Res<[usize; 3]> {
        let shape = t.read(|p| {
            let (m, rest) = p.strip_prefix('m')?.split_once('n')?;
            let (n, k) = rest.split_once('k')?;
            Some([m.parse().ok()?, n.parse().ok()?, k.parse().ok()?])
        });
        t.some(shape.filter(|s| s.iter().all(|n| *n <= 64)), "shape that is missing or not known")
    }

    /// A list of `n` registers. Fragments of `wmma` may have more than their layout here needs.
    fn registers(&mut self, arg: &Arg, ty: Ty, write: bool, n: usize, more: bool) -> Res<Vec<R>> {
        let ty = if matches!(ty, F32 | S32) { ty } else { B32 };
        let list = list(arg);
        if list.len() < n || (list.len() > n && !more) {
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
        let regs = self.registers(&t.args[values], B32, !store, n, false)?;
        Ok(Box::new(move |cpu, site, _| cpu.matrix_rows(site, &regs, (transposed, store), &address)))
    }

    /// D = A B + C, by `mma` or `wmma.mma`.
    fn multiply(&mut self, t: &mut Text<'_>) -> Res<WarpEffect> {
        let wmma = t.name == "wmma";
        // Of `mma` A has rows and B columns; those of `wmma` matter when fragments are loaded.
        let orders = [t.word("row col")?, t.word("row col")?];
        let shape @ [m, n, k] = self.shape(t)?;
        let sat = t.take("satfinite");
        let (d, next) = (t.ty()?, t.ty()?);
        let (a, b, c) = match t.read(Ty::parse) {
            Some(b) => (next, b, t.ty()?),
            // Of products of f16, `wmma` has the types of D and C only.
            None => (F16, F16, next),
        };
        let half = |ty| matches!(ty, F16 | F32);
        let types_fit = match (a, b) {
            (F16, F16) => half(c) && half(d) && (wmma || c == d),
            (BF16, BF16) => [c, d] == [F32; 2],
            (S8 | U8, S8 | U8) => [c, d] == [S32; 2] && (a == b || !wmma),
            _ => false,
        };
        let shape_fits = match (a, shape) {
            (_, [16, 16, 16] | [32, 8, 16] | [8, 32, 16]) => wmma,
            (F16 | BF16, [16, 8, 8 | 16]) => !wmma,
            (S8 | U8, [8, 8, 16] | [16, 8, 16 | 32]) => !wmma,
            _ => false,
        };
        let ok = types_fit && shape_fits && (wmma || orders == ["row", "col"]) && (!sat || d == S32);
        t.ensure(ok, "shape and types that are not supported together")?;
        t.arity(4)?;
        let [of_d, of_a, of_b] =
            if wmma { [Layout::Linear; 3] } else { [Layout::Pairs, Layout::Rows, Layout::Columns] };
        let mut fragment = |i: usize, rows, cols, ty, layout| {
            let mut f = Fragment { rows, cols, ty, layout, regs: Vec::new() };
            f.regs = self.registers(&t.args[i], ty, i == 0, f.registers(), wmma)?;
            Ok(f)
        };
        let (a, b, c) = (fragment(1, m, k, a, of_a)?, fragment(2, k, n, b, of_b)?, fragment(3, m, n, c, of_d)?);
        let fragments = [fragment(0, m, n, d, of_d)?, a, b, c];
        Ok(Box::new(move |cpu, site, _| {
            cpu.multiply(site, &fragments, sat);
            Ok(())
        }))
    }

    /// `wmma.load` and `wmma.store`
    fn fragment(&mut self, t: &mut Text<'_>, store: bool) -> Res<WarpEffect> {
        let which = t.word("a b c d")?;
        let row_major = t.need(&[("row", true), ("col", false)])?;
        let [m, n, k] = self.shape(t)?;
        let (space, ty) = (t.space(), t.expect(&[F16, BF16, F32, S8, U8, S32])?);
        let (rows, cols) = match which {
            "a" => (m, k),
            "b" => (k, n),
            _ => (m, n),
        };
        t.ensure(rows * cols % 32 == 0, "fragment that is not supported")?;
        t.arities(2, 3)?;
        let (at, values) = if store { (0, 1) } else { (1, 0) };
        let address = self.address(&t.args[at], space)?;
        let stride = if t.args.len() == 3 { self.src(&t.args[2], U32)? } else { NONE };
        let mut f = Fragment { rows, cols, ty, layout: Layout::Linear, regs: Vec::new() };
        f.regs = self.registers(&t.args[values], ty, !store, f.registers(), true)?;
        Ok(Box::new(move |cpu, site, _| cpu.matrix_memory(site, &f, (row_major, store), &address, stride)))
    }
}
