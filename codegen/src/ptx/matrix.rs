//! Matrix instructions and copies to shared memory that are not waited for: what tiles of a matrix product are made of.

use super::builder::Builder;
use super::ir::Arg;
use super::modifiers::{Depth, Type};
use super::table::Op;
use super::types::{Bits32, F32, Global, Integer, Operand, Pred, S32, Scalar, Shared, U32, U64, Val, Var};

/// The sums of a warpgroup's product, and the warp's words of its rows.
type RowsOfSums<'a> = (&'a [[Var<S32>; 4]], [Val<U32>; 4]);

impl Builder {
    /// `A B + C` of f16 matrices, 16 x 16 and 16 x 8, and one of f32, 16 x 8: `mma.m16n8k16`. Words hold two elements. With
    /// `r = lane / 4` and `c = lane % 4 * 2` a lane has of A rows `r` and `r + 8` at columns `c`, then both at `c + 8`; of
    /// B column `r` at rows `c` and `c + 8`; of C and the result row `r` at columns `c` and `c + 1`, then row `r + 8`.
    ///
    /// [PTX ISA, Matrix Fragments for mma.m16n8k16](https://docs.nvidia.com/cuda/parallel-thread-execution/#warp-level-matrix-fragment-mma-16816-float)
    #[track_caller]
    pub fn mma_halves_k16(&mut self, a: [Val<U32>; 4], b: [Val<U32>; 2], c: [Val<F32>; 4]) -> [Val<F32>; 4] {
        self.mma_halves(Depth::Of32, &a, &b, c)
    }

    /// As [`Builder::mma_halves_k16`], of 16 x 8 and 8 x 8: each lane has the first half of A's words and of B's.
    ///
    /// [PTX ISA, Matrix Fragments for mma.m16n8k8](https://docs.nvidia.com/cuda/parallel-thread-execution/#warp-level-matrix-fragment-mma-1688)
    #[track_caller]
    pub fn mma_halves_k8(&mut self, a: [Val<U32>; 2], b: Val<U32>, c: [Val<F32>; 4]) -> [Val<F32>; 4] {
        self.mma_halves(Depth::Of16, &a, &[b], c)
    }

    #[track_caller]
    fn mma_halves(&mut self, depth: Depth, a: &[Val<U32>], b: &[Val<U32>], c: [Val<F32>; 4]) -> [Val<F32>; 4] {
        self.four(Op::MmaHalves { depth }, [vector(a), vector(b), vector(&c)])
    }

    /// `A B + C` of 16 rows of 32 bytes and eight columns of 32 signed bytes. Those of A are signed for [`S32`], unsigned
    /// for [`U32`]. With `g = lane / 4` and `t = lane % 4`, a lane has, as
    /// [PTX](https://docs.nvidia.com/cuda/parallel-thread-execution/#warp-level-matrix-fragment-mma-16832) has it:
    ///
    /// | register | row | columns |
    /// |---|---|---|
    /// | `a[i]` | `g + 8 (i % 2)` | `16 (i / 2) + 4t` and three more |
    /// | `b[i]`, of B transposed | `g` | `16 i + 4t` and three more |
    /// | `c[i]` | `g + 8 (i / 2)` | `2t + i % 2` |
    #[track_caller]
    pub fn mma_bytes_k32<T: Bits32 + Integer>(
        &mut self,
        a: [Val<U32>; 4],
        b: [Val<U32>; 2],
        c: [Val<S32>; 4],
    ) -> [Val<S32>; 4] {
        self.mma_bytes::<T>(Depth::Of32, &a, &b, c)
    }

    /// The same of 16 bytes a row and a column: the first half of the registers of [`Builder::mma_bytes_k32`], or the
    /// second.
    #[track_caller]
    pub fn mma_bytes_k16<T: Bits32 + Integer>(
        &mut self,
        a: [Val<U32>; 2],
        b: Val<U32>,
        c: [Val<S32>; 4],
    ) -> [Val<S32>; 4] {
        self.mma_bytes::<T>(Depth::Of16, &a, &[b], c)
    }

    #[track_caller]
    fn mma_bytes<T: Bits32 + Integer>(
        &mut self,
        depth: Depth,
        a: &[Val<U32>],
        b: &[Val<U32>],
        c: [Val<S32>; 4],
    ) -> [Val<S32>; 4] {
        let bytes = if T::TYPE == S32::TYPE { Type::S8 } else { Type::U8 };
        let src = [vector(a), vector(b), vector(&c)];
        self.four(Op::MmaBytes { depth, bytes }, src)
    }

    /// The product of eight rows of 16 bytes: of the registers of [`Builder::mma_bytes_k16`] the first of A, that of B, and
    /// the first two of C.
    ///
    /// [PTX ISA, Matrix Fragments for mma.m8n8k16](https://docs.nvidia.com/cuda/parallel-thread-execution/#warp-level-matrix-fragment-mma-8816)
    #[track_caller]
    pub fn mma_bytes_of_eight_rows<T: Bits32 + Integer>(
        &mut self,
        a: Val<U32>,
        b: Val<U32>,
        c: [Val<S32>; 2],
    ) -> [Val<S32>; 2] {
        let bytes = if T::TYPE == S32::TYPE { Type::S8 } else { Type::U8 };
        let values: [Val<S32>; 2] = std::array::from_fn(|_| Val::new(self.fresh::<S32>()));
        let src = [vector(&[a]), vector(&[b]), vector(&c)];
        self.push(Op::MmaEightRows { bytes }, [vector(&values)], src, None);
        values
    }

    /// Four matrices of eight rows of 16 bytes. Lane `l` gives the address of row `l % 8` of matrix `l / 8`, a multiple of
    /// 16, and has of each matrix bytes `4 (l % 4)` to `4 (l % 4) + 4` of row `l / 4`.
    #[track_caller]
    pub fn ldmatrix(&mut self, row: Shared<U32>) -> [Val<U32>; 4] {
        let src = [self.mem(row)];
        self.four(Op::LdMatrix, src)
    }

    /// The same of matrices that are transposed as they are read: a row is eight numbers of 16 bits, and the lane has of
    /// each matrix number `l / 4` of rows `2 (l % 4)` and `2 (l % 4) + 1`, as [`Builder::mma_halves_k16`] has a column of B.
    #[track_caller]
    pub fn ldmatrix_transposed(&mut self, row: Shared<U32>) -> [Val<U32>; 4] {
        let src = [self.mem(row)];
        self.four(Op::LdMatrixTransposed, src)
    }

    #[track_caller]
    fn four<T: Scalar, const S: usize>(&mut self, op: Op, src: [Arg; S]) -> [Val<T>; 4] {
        let values: [Val<T>; 4] = std::array::from_fn(|_| Val::new(self.fresh::<T>()));
        self.push(op, [vector(&values)], src, None);
        values
    }

    /// Room for the sums of so many eights of columns, for [`Builder::wgmma_bytes`]. Nothing is in it before products are.
    #[track_caller]
    pub fn wgmma_sums(&mut self, eights: u32) -> Vec<[Var<S32>; 4]> {
        (0..eights).map(|_| [(); 4].map(|()| Var::new(self.fresh::<S32>()))).collect()
    }

    /// Starts products of a warpgroup, four warps side by side, and makes them a group: each of 64 rows of 32 signed bytes,
    /// of which each warp has 16 as [`Builder::mma_bytes_k32`] has A, with columns of signed bytes in shared memory. They are
    /// added to `sums` if `adds`, which all lanes agree on. Sums are those of eight columns after eight, four each, as
    /// [`Builder::mma_bytes_k32`] has C. `columns` is their descriptor. Until [`Builder::wgmma_wait_group`] nobody names
    /// sums or rows, and nobody writes the columns.
    ///
    /// [PTX ISA, Asynchronous warpgroup level matrix instructions](https://docs.nvidia.com/cuda/parallel-thread-execution/#asynchronous-warpgroup-level-matrix-instructions)
    #[track_caller]
    pub fn wgmma_bytes(&mut self, products: &[RowsOfSums<'_>], columns: Val<U64>, adds: Val<Pred>) {
        self.push(Op::WgmmaFence, [], [], None);
        for (sums, rows) in products {
            let dst = [Arg::Vector(sums.iter().flatten().map(|sum| Arg::Reg(sum.reg)).collect())];
            let op = Op::Wgmma { columns: 8 * sums.len() as u32 };
            self.push(op, dst, [vector(rows), columns.arg(), adds.arg()], None);
        }
        self.push(Op::WgmmaCommitGroup, [], [], None);
    }

    /// Waits until at most `groups` of the warp's groups of products are under way.
    #[track_caller]
    pub fn wgmma_wait_group(&mut self, groups: u32) {
        self.push(Op::WgmmaWaitGroup, [], [Arg::Int(groups.into())], None);
    }

    /// Copies `bytes`, at most 16, and zeros up to 16, without waiting. Both addresses are multiples of 16. The copy is
    /// part of the thread's next group.
    #[track_caller]
    pub fn cp_async<S, D>(&mut self, to: Shared<D>, from: Global<S>, bytes: impl Operand<U32>) {
        let (dst, src) = ([self.mem(to)], [self.mem(from), Arg::Int(16), bytes.arg()]);
        self.push(Op::CpAsync, dst, src, None);
    }

    /// Makes a group of the thread's copies since the last one.
    #[track_caller]
    pub fn cp_async_commit_group(&mut self) {
        self.push(Op::CpAsyncCommitGroup, [], [], None);
    }

    /// Waits until at most `groups` of the thread's groups are under way. What another thread copied needs a barrier too.
    #[track_caller]
    pub fn cp_async_wait_group(&mut self, groups: u32) {
        self.push(Op::CpAsyncWaitGroup, [], [Arg::Int(groups.into())], None);
    }

    /// `cp.async.mbarrier.arrive.noinc`: once all copies that this thread has begun by [`Builder::cp_async`] have landed,
    /// an arrival at `mbarrier`, one of those that its phase awaits; nobody waits here. Whoever has waited for the phase
    /// sees them, and what this thread did before.
    #[track_caller]
    pub fn cp_async_mbarrier_arrive_noinc(&mut self, mbarrier: Shared<U64>) {
        let src = [self.mem(mbarrier)];
        self.push(Op::CpAsyncMbarrierArriveNoinc, [], src, None);
    }
}

fn vector<T: Scalar>(values: &[Val<T>]) -> Arg {
    Arg::Vector(values.iter().map(|value| value.arg()).collect())
}
