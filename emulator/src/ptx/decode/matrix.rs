//! Matrix instructions.

use super::super::ast::Arg;
use super::super::types::Ty;
use super::{Decoder, Mods, Res};
use crate::exec::inst::*;
use crate::exec::matrix::MatrixOp;

impl Decoder<'_> {
    pub(super) fn matrix(&mut self, name: &str, m: &mut Mods, args: &[Arg]) -> Res<bool> {
        let op = match name {
            "ldmatrix" | "stmatrix" => self.rows(name == "stmatrix", m, args)?,
            "mma" => self.mma(m, args)?,
            "wmma" => {
                let part = m.one_of(&["load", "store", "mma"]);
                self.synced(m)?;
                match part {
                    Some("mma") => self.wmma(m, args)?,
                    Some(part) => self.fragment(part == "store", m, args)?,
                    None => return self.fail(name, "needs .load, .store or .mma"),
                }
            }
            _ => return Ok(false),
        };
        let all = self.constant(0xffff_ffff, false);
        self.push(Op::Warp(Box::new((WarpOp::Matrix(Box::new(op)), all))));
        Ok(true)
    }

    fn synced(&self, m: &mut Mods) -> Res<()> {
        if m.take("sync") && m.take("aligned") { Ok(()) } else { self.fail("matrix", "needs .sync.aligned") }
    }

    /// `m16n8k16`
    fn shape(&self, m: &mut Mods) -> Res<[usize; 3]> {
        let at = m.parts.iter().position(|p| p.starts_with('m') && p.contains('n') && p.contains('k'));
        let Some(at) = at else { return self.fail("matrix", "the shape is missing") };
        let word = m.parts.remove(at);
        let numbers: Vec<usize> = word
            .split(|c: char| !c.is_ascii_digit())
            .filter(|s| !s.is_empty())
            .filter_map(|s| s.parse().ok())
            .collect();
        match numbers[..] {
            [a, b, c] => Ok([a, b, c]),
            _ => self.fail(word, "shape that is not known"),
        }
    }

    /// The registers of a fragment, each of 32 or (f64) 64 bits.
    fn fragment_regs(&mut self, arg: &Arg, ty: Ty, elements: Option<usize>, write: bool) -> Res<Vec<R>> {
        let list = match arg {
            Arg::Vector(v) => &v[..],
            one => std::slice::from_ref(one),
        };
        let register = match ty {
            Ty::F64 | Ty::F32 | Ty::S32 => ty,
            _ => Ty::B32,
        };
        if let Some(n) = elements {
            let bits = if ty == Ty::TF32 { 32 } else { ty.bits() as usize };
            let want = (n * bits).div_ceil(if bits == 64 { 64 } else { 32 });
            if list.len() != want {
                return self.fail(format!("{} registers", list.len()), format!("the fragment has {want}"));
            }
        }
        list.iter().map(|a| if write { self.dst(a, register) } else { self.src(a, register) }).collect()
    }

    fn rows(&mut self, store: bool, m: &mut Mods, args: &[Arg]) -> Res<MatrixOp> {
        self.synced(m)?;
        if !m.take("m8n8") {
            return self.fail("ldmatrix", "only .m8n8 is supported");
        }
        let n = match m.one_of(&["x1", "x2", "x4"]) {
            Some("x1") => 1,
            Some("x2") => 2,
            Some(_) => 4,
            None => return self.fail("ldmatrix", "needs .x1, .x2 or .x4"),
        };
        let transposed = m.take("trans");
        let space = self.space(m);
        self.expect(m, &[Ty::B16])?;
        self.arity(args, 2)?;
        let (at, list) = if store { (0, 1) } else { (1, 0) };
        let (address, space) = self.address(&args[at], space)?;
        let regs = self.fragment_regs(&args[list], Ty::B32, Some(n), !store)?;
        Ok(MatrixOp::Rows { regs, transposed, store, address, space })
    }

    fn mma(&mut self, m: &mut Mods, args: &[Arg]) -> Res<MatrixOp> {
        self.synced(m)?;
        let shape = self.shape(m)?;
        if !m.take("row") || !m.take("col") {
            return self.fail("mma", "A is .row, B is .col");
        }
        let sat = m.take("satfinite");
        let types = [m.ty()?, m.ty()?, m.ty()?, m.ty()?];
        let [d, a, b, c] = types;
        let half = |t| matches!(t, Ty::F16 | Ty::F32);
        let ok = match (shape, a, b) {
            ([16, 8, 8 | 16], Ty::F16, Ty::F16) => half(d) && c == d,
            ([16, 8, 8 | 16], Ty::BF16, Ty::BF16) => d == Ty::F32 && c == d,
            ([16, 8, 4 | 8], Ty::TF32, Ty::TF32) => d == Ty::F32 && c == d,
            ([8, 8, 16] | [16, 8, 16] | [16, 8, 32], Ty::S8 | Ty::U8, Ty::S8 | Ty::U8) => d == Ty::S32 && c == d,
            ([8, 8, 4] | [16, 8, 4 | 8 | 16], Ty::F64, Ty::F64) => d == Ty::F64 && c == d && shape == [8, 8, 4],
            _ => false,
        };
        if !ok || (sat && d != Ty::S32) {
            return self.fail(format!("{shape:?} {types:?}"), "shape and types that are not supported together");
        }
        self.arity(args, 4)?;
        let [sm, sn, sk] = shape;
        let ra = self.fragment_regs(&args[1], a, Some(sm * sk / 32), false)?;
        let rb = self.fragment_regs(&args[2], b, Some(sk * sn / 32), false)?;
        let rc = self.fragment_regs(&args[3], c, Some(sm * sn / 32), false)?;
        let rd = self.fragment_regs(&args[0], d, Some(sm * sn / 32), true)?;
        Ok(MatrixOp::Mma { shape, types, d: rd, a: ra, b: rb, c: rc, sat })
    }

    fn fragment(&mut self, store: bool, m: &mut Mods, args: &[Arg]) -> Res<MatrixOp> {
        let Some(which) = m.one_of(&["a", "b", "c", "d"]) else { return self.fail("wmma", "needs .a, .b, .c or .d") };
        let row_major = m.take("row");
        if !row_major && !m.take("col") {
            return self.fail("wmma", "needs .row or .col");
        }
        let [sm, sn, sk] = self.shape(m)?;
        let space = self.space(m);
        let ty = m.ty()?;
        let (rows, cols) = match which {
            "a" => (sm, sk),
            "b" => (sk, sn),
            _ => (sm, sn),
        };
        if rows * cols % 32 != 0 || !matches!(ty, Ty::F16 | Ty::BF16 | Ty::TF32 | Ty::F32 | Ty::S8 | Ty::U8 | Ty::S32) {
            return self.fail(format!("{ty:?}"), "fragment that is not supported");
        }
        if args.len() != 2 && args.len() != 3 {
            return self.fail(format!("{} operands", args.len()), "the instruction takes 2 or 3 operands");
        }
        let (at, list) = if store { (0, 1) } else { (1, 0) };
        let (address, space) = self.address(&args[at], space)?;
        let stride = if args.len() == 3 { self.src(&args[2], Ty::U32)? } else { NONE };
        let regs = self.fragment_regs(&args[list], ty, None, !store)?;
        let bits = if ty == Ty::TF32 { 32 } else { ty.bits() as usize };
        if regs.len() * 32 < rows * cols / 32 * bits {
            return self.fail(format!("{} registers", regs.len()), "too few for the fragment");
        }
        Ok(MatrixOp::Fragment { rows, cols, row_major, ty, regs, address, space, stride, store })
    }

    fn wmma(&mut self, m: &mut Mods, args: &[Arg]) -> Res<MatrixOp> {
        for _ in 0..2 {
            // Layouts matter when fragments are loaded.
            if m.one_of(&["row", "col"]).is_none() {
                return self.fail("wmma.mma", "needs the layouts of A and B");
            }
        }
        let shape = self.shape(m)?;
        let sat = m.take("satfinite");
        let mut list = Vec::new();
        while let Ok(t) = m.ty() {
            list.push(t);
        }
        let types = match list[..] {
            [d, c] => [d, Ty::F16, Ty::F16, c],
            [d, a, b, c] => [d, a, b, c],
            _ => return self.fail("wmma.mma", "types are missing"),
        };
        let [d, a, b, c] = types;
        let ok = match (a, b) {
            (Ty::F16, Ty::F16) => matches!(d, Ty::F16 | Ty::F32) && matches!(c, Ty::F16 | Ty::F32),
            (Ty::BF16, Ty::BF16) | (Ty::TF32, Ty::TF32) => d == Ty::F32 && c == d,
            (Ty::S8, Ty::S8) | (Ty::U8, Ty::U8) => d == Ty::S32 && c == d,
            _ => false,
        };
        if !ok {
            return self.fail(format!("{types:?}"), "types that are not supported together");
        }
        self.arity(args, 4)?;
        let ra = self.fragment_regs(&args[1], a, None, false)?;
        let rb = self.fragment_regs(&args[2], b, None, false)?;
        let rc = self.fragment_regs(&args[3], c, None, false)?;
        let rd = self.fragment_regs(&args[0], d, None, true)?;
        Ok(MatrixOp::Wmma { shape, types, d: rd, a: ra, b: rb, c: rc, sat })
    }
}
