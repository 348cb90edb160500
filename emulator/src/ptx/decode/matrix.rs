//! Matrix instructions.

use super::super::ast::Arg;
use super::operands::list;
use super::{Decoder, Res, Text};
use crate::exec::inst::*;
use crate::exec::matrix::Fragment;
use crate::exec::warpgroup::Multiply;
use crate::machine::types::Ty::{self, *};
use std::sync::Arc;

impl Decoder<'_> {
    pub(super) fn matrix(&mut self, t: &mut Text<'_>) -> Res<bool> {
        let effect = match t.name {
            "ldmatrix" | "stmatrix" => self.rows(t)?,
            "movmatrix" => {
                t.require("m8n8.trans.b16")?;
                let [d, a, ..] = self.slots(t, &[B32; 2])?;
                let run: WarpEffect = Box::new(move |cpu, site, _| {
                    cpu.move_matrix(site, [d, a]);
                    Ok(())
                });
                run
            }
            "mma" => self.multiply(t)?,
            "wmma" => match t.word("load store mma")? {
                "mma" => self.multiply(t)?,
                part => self.memory_fragment(t, part == "store")?,
            },
            "wgmma" => self.warpgroup(t)?,
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

    /// The shape modifier, such as `m16n8k16`.
    fn shape(&self, t: &mut Text<'_>) -> Res<[usize; 3]> {
        let shape = t.read(|p| {
            let (m, rest) = p.strip_prefix('m')?.split_once('n')?;
            let (n, k) = rest.split_once('k')?;
            Some([m.parse().ok()?, n.parse().ok()?, k.parse().ok()?])
        });
        t.some(shape.filter(|s| s.iter().all(|n| *n <= 256)), "shape that is missing or not known")
    }

    /// A fragment of a matrix. A `wmma` fragment may have more registers than the layout needs (`more`).
    fn fragment(&mut self, arg: &Arg, (rows, cols): (usize, usize), ty: Ty, write: bool, more: bool) -> Res<Fragment> {
        let register = if matches!(ty, F32 | S32 | F64) { ty } else { B32 };
        let regs = list(arg).iter().map(|a| self.element(a, register, write)).collect::<Res<Vec<R>>>()?;
        let (have, f) = (regs.len(), Fragment { rows, cols, ty, regs, single: ty == TF32 });
        if have < f.registers() || (have > f.registers() && !more) {
            return self.fail(format!("{have} registers"), format!("the fragment has {}", f.registers()));
        }
        Ok(f)
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
        let f = self.fragment(&t.args[values], (8 * n, 8), F16, !store, false)?;
        Ok(Box::new(move |cpu, site, _| cpu.matrix_rows(site, &f.regs, (transposed, store), &address)))
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
            (TF32, TF32) => !wmma && [c, d] == [F32; 2],
            (F64, F64) => !wmma && [c, d] == [F64; 2],
            (S8 | U8, S8 | U8) => [c, d] == [S32; 2] && (a == b || !wmma),
            _ => false,
        };
        let shape_fits = match (a, shape) {
            (_, [16, 16, 16] | [32, 8, 16] | [8, 32, 16]) => wmma,
            (F16 | BF16, [16, 8, 8 | 16]) | (TF32, [16, 8, 4 | 8]) => !wmma,
            (F64, [8, 8, 4] | [16, 8, 4 | 8 | 16]) => !wmma,
            (S8 | U8, [8, 8, 16] | [16, 8, 16 | 32]) => !wmma,
            _ => false,
        };
        let ok = types_fit && shape_fits && (wmma || orders == ["row", "col"]) && (!sat || d == S32);
        t.ensure(ok, "shape and types that are not supported together")?;
        t.arity(4)?;
        let mut read = |i: usize, size, ty| self.fragment(&t.args[i], size, ty, i == 0, wmma);
        let (mut a, mut b, c) = (read(1, (m, k), a)?, read(2, (n, k), b)?, read(3, (m, n), c)?);
        (a.single, b.single) = (a.single || a.ty == F64, b.single || b.ty == F64);
        let fragments = [read(0, (m, n), d)?, a, b, c];
        Ok(Box::new(move |cpu, site, _| {
            cpu.multiply(site, &fragments, sat);
            Ok(())
        }))
    }

    /// `wgmma`: products of bytes, rows of which are in registers, and what orders them.
    fn warpgroup(&mut self, t: &mut Text<'_>) -> Res<WarpEffect> {
        Ok(match t.word("mma_async fence commit_group wait_group")? {
            "mma_async" => {
                let shape @ [m, n, k] = self.shape(t)?;
                let (sat, types) = (t.take("satfinite"), [t.ty()?, t.ty()?, t.ty()?]);
                let fits = m == 64 && k == 32 && (matches!(n, 8 | 24) || n % 16 == 0 && n <= 256);
                let bytes = types[1..].iter().all(|ty| matches!(ty, S8 | U8));
                t.ensure(
                    fits && bytes && types[0] == S32 && !sat && shape[1] > 0,
                    "shape and types that are not supported",
                )?;
                t.arity(4)?;
                let [sums, rows] = [0, 1].map(|i| list(&t.args[i]));
                t.ensure(sums.len() == n / 2 && rows.len() == 4, "fragments of another size")?;
                let rows = rows.iter().map(|a| self.element(a, B32, false)).collect::<Res<Vec<R>>>()?;
                let (columns, adds) = (self.src(&t.args[2], B64)?, self.src(&t.args[3], Pred)?);
                // They are read and written.
                sums.iter().try_for_each(|a| self.element(a, S32, false).map(drop))?;
                let sums = sums.iter().map(|a| self.element(a, S32, true)).collect::<Res<Vec<R>>>()?;
                let rows = [rows[0], rows[1], rows[2], rows[3]];
                let of = Arc::new(Multiply { sums, rows, columns, adds, signed: [types[1] == S8, types[2] == S8] });
                Box::new(move |cpu, site, _| cpu.multiply_later(site, &of))
            }
            "wait_group" => {
                t.arity(1)?;
                let keep = self.count(&t.args[0])?;
                Box::new(move |cpu, site, _| {
                    cpu.wait_for_products(site, keep);
                    Ok(())
                })
            }
            "commit_group" => {
                t.arity(0)?;
                Box::new(|cpu, site, _| {
                    cpu.commit_products(site);
                    Ok(())
                })
            }
            // Registers are read at the issue here, and written at the wait.
            _ => {
                t.arity(0)?;
                Box::new(|_, _, _| Ok(()))
            }
        })
    }

    /// `wmma.load` and `wmma.store`
    fn memory_fragment(&mut self, t: &mut Text<'_>, store: bool) -> Res<WarpEffect> {
        let which = t.word("a b c d")?;
        let row_major = t.need(&[("row", true), ("col", false)])?;
        let [m, n, k] = self.shape(t)?;
        let (space, ty) = (t.space(), t.expect(&[F16, BF16, F32, S8, U8, S32])?);
        // B is held transposed.
        let (size, row_major) = match which {
            "a" => ((m, k), row_major),
            "b" => ((n, k), !row_major),
            _ => ((m, n), row_major),
        };
        t.ensure(matches!([m, n, k], [16, 16, 16] | [32, 8, 16] | [8, 32, 16]), "shape that is not supported")?;
        t.arities(2, 3)?;
        let (at, values) = if store { (0, 1) } else { (1, 0) };
        let address = self.address(&t.args[at], space)?;
        let stride = if t.args.len() == 3 { self.src(&t.args[2], U32)? } else { NONE };
        let f = self.fragment(&t.args[values], size, ty, !store, true)?;
        Ok(Box::new(move |cpu, site, _| cpu.matrix_memory(site, &f, (row_major, store), &address, stride)))
    }
}
