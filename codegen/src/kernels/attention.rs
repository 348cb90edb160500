use super::{Kernel, incremental_attention};
use crate::blocks::attend::{self, At, Attend, Out, Sequence};
use crate::blocks::attention::Heads;
use crate::blocks::dependent;
use crate::blocks::kv::Cache;
use crate::blocks::leader;
use crate::blocks::mma_attention;
use crate::ptx::{Builder, Compare, F32, Global, Size, U32, U64};
use kiln_shape::columns::STATE_BYTES;
use kiln_shape::{KvType, ModelShape, Numerics, Units};

/// One query token against a model's cache in one launch, a block for each KV head and unit of the cache: grid
/// `(kv_heads, units)`, as [`Units`] counts them, or more, whose blocks do nothing. The block that finishes a KV head's
/// last unit puts all of them together. In fast numerics an f16 cache is multiplied by tensor cores; an f32 cache has the
/// attention of exact numerics. An empty cache gives zeros; a length above `capacity` as well, and sets the error word
/// to 3.
#[derive(Debug, Clone, PartialEq)]
pub struct Attention {
    /// The model: heads, KV heads, head_dim.
    pub shape: ModelShape,
    /// The cache's type.
    pub kv: KvType,
    /// The numerics.
    pub numerics: Numerics,
    columns: bool,
    name: String,
}

impl Attention {
    /// The kernel for a model and a cache type: `attention_f16`.
    pub fn new(shape: ModelShape, kv: KvType, numerics: Numerics) -> Attention {
        Attention { shape, kv, numerics, columns: false, name: format!("attention_{}", kv.suffix()) }
    }

    /// The same for several query tokens, grid `(kv_heads, units, columns)`: of each its states, `[columns, 3]`, its row of
    /// queries, with its key and value behind it, and room of its own for partial results and arrivals:
    /// `attention_columns_f16`.
    pub fn of_columns(self) -> Attention {
        let name = format!("attention_columns_{}", self.kv.suffix());
        Attention { columns: true, name, ..self }
    }

    /// The cut of the cache.
    pub const fn units(&self) -> Units {
        Units::of(self.numerics, self.kv, self.shape.kv_heads)
    }
}

impl Kernel for Attention {
    fn name(&self) -> &str {
        &self.name
    }

    fn block(&self) -> u32 {
        attend::threads(self.units())
    }

    fn check(&self) -> Result<(), String> {
        let ModelShape { head_dim, heads, kv_heads, .. } = self.shape;
        incremental_attention::check(head_dim, heads.into(), kv_heads.into())?;
        match self.units() {
            Units::Chunks => Ok(()),
            Units::Runs { .. } => mma_attention::check(head_dim),
        }
    }

    fn build(&self, b: &mut Builder) {
        let ModelShape { head_dim, kv_heads, .. } = self.shape;
        let heads = Heads { group: self.shape.group(), head_dim, ty: self.kv };
        b.blocks_per_sm(attend::blocks_per_sm(self.units(), heads));
        let q = b.param::<Global<F32>>("q"); // [heads, head_dim]
        let table = b.param::<Global<U64>>("chunks"); // addresses of the cache's chunks
        let layer = b.param::<U32>("layer");
        let capacity = b.param::<U32>("capacity"); // positions the chunks have
        let out = b.param::<Global<F32>>("out"); // [heads, head_dim]
        let partials = b.param::<Global<F32>>("partials"); // [heads, kept units, partial]
        let max_chunks = b.param::<U32>("max_chunks"); // chunks that partials has room for
        let arrivals = b.param::<Global<U32>>("arrivals"); // [kv_heads], zeros before and after
        let length_at = b.param::<Global<U32>>("length_at"); // [1]
        let error = b.param::<Global<U32>>("error"); // [1]

        let attend = Attend::new(b, heads, self.units());
        let (mut q, mut out, mut partials) = (q, out, partials);
        let (mut arrivals, mut length_at, mut error) = (arrivals, length_at, error);
        if self.columns {
            let column = b.ctaid_z();
            q = b.byte_index(q, column, (self.shape.q_dim() + 2 * self.shape.kv_dim()) * 4);
            out = b.byte_index(out, column, self.shape.q_dim() * 4);
            let kept = attend.kept(b, max_chunks);
            let bytes = b.mul::<U32>(kept, self.shape.heads * self.units().partial(head_dim) * 4);
            let at = b.address(partials);
            let at = b.mad_wide(column, bytes, at);
            partials = b.global_ptr(at);
            arrivals = b.byte_index(arrivals, column, kv_heads * 4);
            length_at = b.byte_index(length_at, column, STATE_BYTES);
            error = b.byte_index(error, column, STATE_BYTES);
        }
        let kind = dependent::wait(b);
        let length = b.ld(length_at, kind);
        let fits = b.setp::<U32>(Compare::Le, length, capacity);
        let length = b.selp::<U32>(length, 0, fits);
        let (kv_head, unit, tid) = (b.ctaid_x(), b.ctaid_y(), b.tid());
        let (positions, units) = Attend::cut(b, self.units(), length);
        let cache = Cache::Chunked { table, layer, kv_heads: Size::Const(kv_heads) };
        let sequence =
            Sequence { cache, length, units, partials, max_chunks, arrivals, parts: None, out: Out::Floats(out) };
        let group = b.byte_index(q, kv_head, heads.group * head_dim * 4);
        let works = b.setp_lt(unit, units);
        b.if_(works, |b| {
            attend.load_queries(b, group, kind);
            attend.unit(b, &sequence, At { kv_head, unit, positions }, None);
        });
        let empty = b.or::<U32>(units, unit);
        let empty = b.setp_eq(empty, 0);
        b.if_(empty, |b| {
            let out = b.byte_index(out, kv_head, heads.group * head_dim * 4);
            b.for_range(tid, heads.group * head_dim, b.block(), |b, i| {
                let to = b.index(out, i);
                b.st(to, 0.0);
            });
            let leader = leader::of_grid(b, tid, &[kv_head]);
            let over = b.not_pred(fits);
            let reports = b.and_pred(leader, over);
            b.if_(reports, |b| b.st(error, 3));
        });
    }
}
