//! Models baked while a test runs: any shape, without a feature for it.

#![allow(dead_code)]

use kiln::baked::{BakedKernel, BakedModel, BakedModule, Param};
use kiln::shape::{ModelShape, Numerics, WeightType, WeightTypes};
use kiln_codegen::bake::{self, DecoderPath};
use kiln_codegen::kernels::PersistentDecoder;
use kiln_codegen::{Kernel, Target, ptx};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

fn leak<T>(value: T) -> &'static T {
    Box::leak(Box::new(value))
}

/// The newest target that is not newer than a device.
fn target(sm: u32) -> Target {
    Target::ALL.into_iter().filter(|target| target.sm() <= sm).max().expect("a target")
}

/// Kernels as a module of a program, as `build.rs` would have made it.
pub(crate) fn module(sm: u32, decoder: Option<(DecoderPath, Numerics)>, kernels: &[Box<dyn Kernel>]) -> BakedModule {
    module_for(target(sm), decoder, kernels)
}

fn module_for(target: Target, decoder: Option<(DecoderPath, Numerics)>, kernels: &[Box<dyn Kernel>]) -> BakedModule {
    let emitted = bake::emit(target, decoder, kernels).expect("the kernels are valid");
    let kernels: Vec<BakedKernel> = emitted
        .kernels
        .iter()
        .map(|kernel| BakedKernel {
            name: leak(kernel.name.clone()),
            block: kernel.block,
            grid: kernel.grid,
            static_shared: kernel.static_shared,
            dynamic_shared: kernel.dynamic_shared,
            column_shared: kernel.column_shared,
            begins_early: kernel.begins_early,
            params: leak(params(&kernel.params)),
        })
        .collect();
    BakedModule {
        sm: target.sm(),
        only: target.is_own(),
        decoder,
        ptx: leak(emitted.ptx + "\0"),
        kernels: leak(kernels),
        machine_code: &[],
    }
}

/// The modules of kernels that take several tokens at once, where a target has them: for all devices, and a chip's own.
fn columns(shape: ModelShape, types: &[WeightType], sm: u32) -> impl Iterator<Item = BakedModule> {
    let target = target(sm);
    let made = [Some(target), target.own().filter(|_| target.sm() == sm)].into_iter().flatten().map(move |target| {
        let kernels = bake::columns(shape, types, target);
        let decoder = Some((DecoderPath::Stream, Numerics::Fast));
        (!kernels.is_empty()).then(|| module_for(target, decoder, &kernels))
    });
    made.flatten().collect::<Vec<_>>().into_iter()
}

/// The module of launches whose columns have the FFN's vector in slices, where a target has one.
fn slices(shape: ModelShape, types: &[WeightType], sm: u32) -> impl Iterator<Item = BakedModule> {
    let decoder = Some((DecoderPath::Persistent, Numerics::Fast));
    bake::slices(shape, types, target(sm)).map(|kernel| module(sm, decoder, &[kernel])).into_iter()
}

/// Parameters as a program has them.
fn params(baked: &[ptx::Param]) -> Vec<Param> {
    baked.iter().map(|param| Param { name: leak(param.name.clone()), ty: param.ty }).collect()
}

/// What kernels of a model are made from: shape, types of matrices, compute capability, threads of a persistent block.
type Choice = (ModelShape, WeightTypes, u32, Option<u32>);

/// The kernels of a file on a device; made once in a program, and for the file's types only, since most tests ask for
/// those of the same two or three files.
#[cfg(feature = "gguf")]
pub(crate) fn model(file: &kiln::model::ModelFile, device: &kiln::Device) -> &'static BakedModel {
    model_with_blocks_of(file, device, None)
}

/// The same, with blocks of `threads` threads in the persistent kernels.
#[cfg(feature = "gguf")]
pub(crate) fn model_with_blocks_of(
    file: &kiln::model::ModelFile,
    device: &kiln::Device,
    threads: Option<u32>,
) -> &'static BakedModel {
    made((*file.shape(), file.types(), device.sm(), threads))
}

/// The kernels of a shape and these types, for devices of compute capability `sm`.
pub(crate) fn of(shape: ModelShape, types: WeightTypes, sm: u32) -> &'static BakedModel {
    made((shape, types, sm, None))
}

fn made(choice: Choice) -> &'static BakedModel {
    type Made = (Choice, Arc<OnceLock<&'static BakedModel>>);
    static MADE: Mutex<Vec<Made>> = Mutex::new(Vec::new());
    let made = {
        let mut all = MADE.lock().unwrap_or_else(PoisonError::into_inner);
        let found = all.iter().find(|made| made.0 == choice).map(|made| made.1.clone());
        found.unwrap_or_else(|| {
            all.push((choice, Arc::default()));
            all[all.len() - 1].1.clone()
        })
    };
    // Another choice does not wait for this one.
    made.get_or_init(|| baked(choice))
}

fn baked((shape, all, sm, threads): Choice) -> &'static BakedModel {
    let types: Vec<_> = all.iter().collect();
    let decoder = |path, numerics| match (path, threads) {
        (DecoderPath::Persistent, Some(threads)) => {
            let kernel = PersistentDecoder::for_shape(shape, &types).with_numerics(numerics);
            vec![Box::new(kernel.with_block_size(threads)) as Box<dyn Kernel>]
        }
        _ => bake::decoder(shape, &types, path, numerics),
    };
    let modules: Vec<BakedModule> = DecoderPath::ALL
        .into_iter()
        .flat_map(|path| Numerics::ALL.map(|numerics| (path, numerics)))
        .flat_map(|(path, numerics)| {
            let kernels = decoder(path, numerics);
            let parts = bake::parts(&kernels, path);
            parts.into_iter().map(|part| module(sm, Some((path, numerics)), part)).collect::<Vec<_>>()
        })
        .chain(columns(shape, &types, sm))
        .chain(slices(shape, &types, sm).filter(|_| threads.is_none()))
        .collect();
    // SAFETY: the modules were made for this shape and these types, with the launches they list.
    leak(unsafe { BakedModel::new("test", shape, all, leak(modules)) })
}
