//! Models baked while a test runs: any shape, without a feature for it.

#![allow(dead_code)]

use kiln::baked::{self, BakedKernel, BakedModel, BakedModule};
use kiln::shape::{ModelShape, TensorTypeSet};
use kiln_codegen::bake::{self, DecoderPath};
use kiln_codegen::kernels::Grid;
use kiln_codegen::{Kernel, Target};

fn leak<T>(value: T) -> &'static T {
    Box::leak(Box::new(value))
}

/// Kernels as a module of a program, as `build.rs` would have made it.
pub(crate) fn module(sm: u32, path: Option<DecoderPath>, kernels: &[Box<dyn Kernel>]) -> BakedModule {
    let target = Target::ALL.into_iter().filter(|target| target.sm() <= sm).max().expect("a target");
    let emitted = bake::emit(target, path, kernels).expect("the kernels are valid");
    let kernels: Vec<BakedKernel> = emitted
        .kernels
        .iter()
        .map(|kernel| BakedKernel {
            name: leak(kernel.name.clone()),
            block: kernel.block,
            grid: match kernel.grid {
                Grid::Blocks(blocks) => baked::Grid::Blocks(blocks),
                Grid::UpTo(blocks) => baked::Grid::UpTo(blocks),
                Grid::PerRows(rows) => baked::Grid::PerRows(rows),
                Grid::Launch => baked::Grid::Launch,
            },
            static_shared: kernel.static_shared,
            dynamic_shared: kernel.dynamic_shared,
            params: leak(kernel.params.clone()),
        })
        .collect();
    let path = path.map(|path| match path {
        DecoderPath::Stream => baked::DecoderPath::Stream,
        DecoderPath::Persistent => baked::DecoderPath::Persistent,
    });
    BakedModule { sm: target.sm(), path, ptx: leak(emitted.ptx + "\0"), kernels: leak(kernels) }
}

/// A model of this shape for a device of compute capability `sm`.
pub(crate) fn model(name: &'static str, shape: ModelShape, sm: u32) -> &'static BakedModel {
    let types: Vec<_> = TensorTypeSet::SUPPORTED.iter().collect();
    let modules: Vec<BakedModule> =
        DecoderPath::ALL.into_iter().map(|path| module(sm, Some(path), &bake::decoder(shape, &types, path))).collect();
    leak(BakedModel { name, shape, types: TensorTypeSet::SUPPORTED, modules: leak(modules) })
}
