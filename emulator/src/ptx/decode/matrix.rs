//! Matrix instructions.

use super::super::ast::Arg;
use super::super::types::Ty;
use super::operands::list;
use super::{Decoder, Res, Text};
use crate::exec::inst::*;
use crate::exec::matrix::{Fragment, Layout, MatrixOp};

impl Decoder<'_> {
    pub(super) fn matrix(&mut self, t: &mut Text<'_>) -> Res<bool> {
        let op = match t.name {
            "ldmatrix" | "stmatrix" => self.rows(t)?,
            "mma" => self.mma(t)?,
            "wmma" => match t.word("load store mma")? {
                "mma" => self.wmma(t)?,
                part => self.fragment(t, part == "store")?,
            },
            _ => return Ok(false),
        };
        t.require("sync")?;
        t.require("aligned")?;
        let all = self.constant(0xffff_ffff, false);
        self.push(Op::Warp(Box::new(WarpOp::Matrix(op)), all));
        Ok(true)
    }

    /// `m16n8k16`
    fn shape(&self, t: &mut Text<'_>) -> Res<[usize; 3]> {
        let at = t.parts.iter().position(|p| p.starts_with('m') && p.contains('n') && p.contains('k'));
        let Some(at) = at else { return t.fail("matrix", "the shape is missing") };
        let word = t.parts.remove(at);
        let numbers: Vec<usize> = word.split(|c: char| !c.is_ascii_digit()).filter_map(|s| s.parse().ok()).collect();
        match numbers[..] {
            [a, b, c] => Ok([a, b, c]),
            _ => t.fail(word, "shape that is not known"),
        }
    }

    /// The registers of a fragment, each of 32 or (f64) 64 bits.
    fn registers(&mut self, arg: &Arg, ty: Ty, write: bool) -> Res<Vec<R>> {
        let ty = if matches!(ty, Ty::F64 | Ty::F32 | Ty::S32) { ty } else { Ty::B32 };
        list(arg).iter().map(|a| if write { self.dst(a, ty) } else { self.src(a, ty) }).collect()
    }

    fn rows(&mut self, t: &mut Text<'_>) -> Res<MatrixOp> {
        let store = t.name == "stmatrix";
        t.require("m8n8")?;
        let n = t.need(&[("x1", 1), ("x2", 2), ("x4", 4)])?;
        let transposed = t.take("trans");
        let space = self.space(t);
        t.expect(&[Ty::B16])?;
        t.arity(2)?;
        let (at, list) = if store { (0, 1) } else { (1, 0) };
        let address = self.address(&t.args[at], space)?;
        let regs = self.registers(&t.args[list], Ty::B32, !store)?;
        if regs.len() != n {
            return t.fail(format!("{} registers", regs.len()), format!("the fragment has {n}"));
        }
        Ok(MatrixOp::Rows { regs, transposed, store, address })
    }

    /// D, A, B, C of a multiplication, in these layouts.
    fn multiply(&mut self, t: &Text<'_>, shape: [usize; 3], types: &[Ty], layouts: [Layout; 4]) -> Res<[Fragment; 4]> {
        t.arity(4)?;
        let [m, n, k] = shape;
        let sizes = [(m, n), (m, k), (k, n), (m, n)];
        let mut out = Vec::new();
        for (i, (rows, cols)) in sizes.into_iter().enumerate() {
            let (ty, layout) = (types[i], layouts[i]);
            let regs = self.registers(&t.args[i], ty, i == 0)?;
            let f = Fragment { rows, cols, ty, layout, regs };
            // `wmma` may have more of them than this layout needs.
            let (have, want) = (f.regs.len(), f.registers());
            if have < want || (have > want && layout != Layout::Linear) {
                return t.fail(format!("{have} registers"), format!("the fragment has {want}"));
            }
            out.push(f);
        }
        out.try_into().or_else(|_| t.arity(4).and_then(|()| t.wrong(types)))
    }

    fn mma(&mut self, t: &mut Text<'_>) -> Res<MatrixOp> {
        let shape = self.shape(t)?;
        t.require("row")?;
        t.require("col")?;
        let sat = t.take("satfinite");
        let types = [t.ty()?, t.ty()?, t.ty()?, t.ty()?];
        let [d, a, b, c] = types;
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
        let layouts = [Layout::Pairs, Layout::Rows, Layout::Columns, Layout::Pairs];
        let fragments = Box::new(self.multiply(t, shape, &types, layouts)?);
        Ok(MatrixOp::Multiply { fragments, sat })
    }

    fn wmma(&mut self, t: &mut Text<'_>) -> Res<MatrixOp> {
        for _ in 0..2 {
            // Layouts matter when fragments are loaded.
            t.word("row col")?;
        }
        let shape = self.shape(t)?;
        let sat = t.take("satfinite");
        let list = t.types();
        let types = match list[..] {
            [d, c] => [d, Ty::F16, Ty::F16, c],
            [d, a, b, c] => [d, a, b, c],
            _ => return t.fail("wmma.mma", "types are missing"),
        };
        t.parts.retain(|p| Ty::parse(p).is_none());
        let [d, a, b, c] = types;
        let ok = match (a, b) {
            (Ty::F16, Ty::F16) => matches!(d, Ty::F16 | Ty::F32) && matches!(c, Ty::F16 | Ty::F32),
            (Ty::BF16, Ty::BF16) | (Ty::TF32, Ty::TF32) => d == Ty::F32 && c == d,
            (Ty::S8, Ty::S8) | (Ty::U8, Ty::U8) => d == Ty::S32 && c == d,
            _ => false,
        };
        if !ok {
            return t.fail(format!("{types:?}"), "types that are not supported together");
        }
        let fragments = Box::new(self.multiply(t, shape, &types, [Layout::Linear; 4])?);
        Ok(MatrixOp::Multiply { fragments, sat })
    }

    /// `wmma.load` and `wmma.store`
    fn fragment(&mut self, t: &mut Text<'_>, store: bool) -> Res<MatrixOp> {
        let which = t.word("a b c d")?;
        let row_major = t.need(&[("row", true), ("col", false)])?;
        let [m, n, k] = self.shape(t)?;
        let space = self.space(t);
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
        let (at, list) = if store { (0, 1) } else { (1, 0) };
        let address = self.address(&t.args[at], space)?;
        let stride = if t.args.len() == 3 { self.src(&t.args[2], Ty::U32)? } else { NONE };
        let regs = self.registers(&t.args[list], ty, !store)?;
        let fragment = Fragment { rows, cols, ty, layout: Layout::Linear, regs };
        if fragment.regs.len() < fragment.registers() {
            return t.fail(format!("{} registers", fragment.regs.len()), "too few for the fragment");
        }
        Ok(MatrixOp::Memory { fragment, row_major, address, stride, store })
    }
}
