//! Device building blocks: what kernels are put together from. A block works on values and pointers it is given, knows
//! no kernel and no launch, and is used by more than one kernel. Every block's result depends on shapes alone, never on
//! how many warps or blocks share the work, so that all decoder paths agree to the last bit.

pub(crate) mod along;
pub(crate) mod argmax;
pub(crate) mod arrival;
pub(crate) mod attend;
pub(crate) mod attention;
pub(crate) mod begun;
pub(crate) mod choose;
pub(crate) mod company;
pub(crate) mod dependent;
pub(crate) mod dequantize;
pub(crate) mod dot;
pub(crate) mod exchange;
pub(crate) mod fast;
pub(crate) mod gemm;
pub(crate) mod gemm_sliced;
pub(crate) mod gemm_tile;
pub(crate) mod gemm_warpgroups;
pub(crate) mod gemv;
pub(crate) mod grid_barrier;
pub(crate) mod kv;
pub(crate) mod leader;
pub(crate) mod math;
pub(crate) mod mma_attention;
pub(crate) mod next_columns;
pub(crate) mod norm;
pub(crate) mod parts;
pub(crate) mod places;
pub(crate) mod qk;
pub(crate) mod quantise;
pub(crate) mod quantise_columns;
pub(crate) mod random;
pub(crate) mod ring;
pub(crate) mod rope;
pub(crate) mod rounded_columns;
pub(crate) mod row_copies;
pub(crate) mod running;
pub(crate) mod runs;
pub(crate) mod slot;
pub(crate) mod stage;
pub(crate) mod swiglu;
pub(crate) mod tensor;
pub(crate) mod together;
pub(crate) mod wait;
pub(crate) mod warp;
