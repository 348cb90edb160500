//! Misuse that must not compile, each case beside its correct twin. Only rustdoc's tests read this file.
//!
//! A slice of pinned memory and a copy to it:
//! ```no_run
//! # use kiln::driver::*;
//! # fn f(stream: &Stream, buffer: &DeviceBuffer<u32>, pinned: &mut PinnedBuffer<u32>) -> kiln::Result<u32> {
//! buffer.copy_to_pinned(stream, 0..1, pinned, 0)?;
//! let slice = pinned.as_slice()?;
//! Ok(slice[0])
//! # }
//! ```
//! ```compile_fail,E0502
//! # use kiln::driver::*;
//! # fn f(stream: &Stream, buffer: &DeviceBuffer<u32>, pinned: &mut PinnedBuffer<u32>) -> kiln::Result<u32> {
//! let slice = pinned.as_slice()?;
//! buffer.copy_to_pinned(stream, 0..1, pinned, 0)?;
//! Ok(slice[0])
//! # }
//! ```
//!
//! A mutable slice of pinned memory and a copy from it:
//! ```no_run
//! # use kiln::driver::*;
//! # fn f(stream: &Stream, buffer: &mut DeviceBuffer<u32>, pinned: &mut PinnedBuffer<u32>) -> kiln::Result<()> {
//! let slice = pinned.as_mut_slice()?;
//! slice[0] = 1;
//! buffer.copy_from_pinned(stream, 0, pinned, 0..1)?;
//! # Ok(())
//! # }
//! ```
//! ```compile_fail,E0502
//! # use kiln::driver::*;
//! # fn f(stream: &Stream, buffer: &mut DeviceBuffer<u32>, pinned: &mut PinnedBuffer<u32>) -> kiln::Result<()> {
//! let slice = pinned.as_mut_slice()?;
//! buffer.copy_from_pinned(stream, 0, pinned, 0..1)?;
//! slice[0] = 1;
//! # Ok(())
//! # }
//! ```
//!
//! A buffer freed between naming it and enqueueing:
//! ```no_run
//! # use kiln::driver::*;
//! # fn f(stream: &Stream, x: GpuTensor<f32>) -> kiln::Result<()> {
//! let reads = x.reads("x");
//! stream.enqueue([reads], |_| Ok(()))?;
//! drop(x);
//! # Ok(())
//! # }
//! ```
//! ```compile_fail,E0505
//! # use kiln::driver::*;
//! # fn f(stream: &Stream, x: GpuTensor<f32>) -> kiln::Result<()> {
//! let reads = x.reads("x");
//! drop(x);
//! stream.enqueue([reads], |_| Ok(()))?;
//! # Ok(())
//! # }
//! ```
//!
//! A launch, which nobody has vouched for:
//! ```no_run
//! # use kiln::driver::*;
//! # fn f(stream: &Stream, function: &Function) -> kiln::Result<()> {
//! // SAFETY: an example.
//! unsafe { function.launch(stream, &LaunchConfig::linear(1, 1), &[]) }
//! # }
//! ```
//! ```compile_fail,E0133
//! # use kiln::driver::*;
//! # fn f(stream: &Stream, function: &Function) -> kiln::Result<()> {
//! function.launch(stream, &LaunchConfig::linear(1, 1), &[])
//! # }
//! ```
//!
//! An argument that is gone when the launch reads it:
//! ```no_run
//! # use kiln::driver::*;
//! let n = 1u32;
//! let params = [KernelParam::new(&n)];
//! # let _ = params;
//! ```
//! ```compile_fail,E0597
//! # use kiln::driver::*;
//! let params = {
//!     let n = 1u32;
//!     [KernelParam::new(&n)]
//! };
//! # let _ = params;
//! ```
//!
//! Things that mean nothing on a device:
//! ```no_run
//! # use kiln::driver::*;
//! # fn f(device: &Device) -> kiln::Result<DeviceBuffer<[f32; 2]>> {
//! DeviceBuffer::from_host(device, &[[1.0f32, 2.0]])
//! # }
//! ```
//! ```compile_fail,E0277
//! # use kiln::driver::*;
//! # fn f(device: &Device) -> kiln::Result<DeviceBuffer<&'static str>> {
//! DeviceBuffer::from_host(device, &["text"])
//! # }
//! ```
//! ```compile_fail,E0277
//! # use kiln::driver::*;
//! # fn f(device: &Device) -> kiln::Result<DeviceBuffer<bool>> {
//! DeviceBuffer::from_host(device, &[true])
//! # }
//! ```
//!
//! Mapped memory as anything but atomics:
//! ```no_run
//! # use kiln::driver::*;
//! # fn f(words: &MappedBuffer<u32>) -> u32 {
//! words.words()[0].load(std::sync::atomic::Ordering::Acquire)
//! # }
//! ```
//! ```compile_fail,E0308
//! # use kiln::driver::*;
//! # fn f(words: &MappedBuffer<u32>) -> u32 {
//! words.words()[0]
//! # }
//! ```
//!
//! Rewriting a shared buffer:
//! ```no_run
//! # use kiln::driver::*;
//! # fn f(buffer: &mut DeviceBuffer<u32>) -> kiln::Result<()> {
//! buffer.copy_from_host(0, &[1])
//! # }
//! ```
//! ```compile_fail,E0596
//! # use kiln::driver::*;
//! # fn f(buffer: &DeviceBuffer<u32>) -> kiln::Result<()> {
//! buffer.copy_from_host(0, &[1])
//! # }
//! ```
//!
//! A baked model that nobody has vouched for:
//! ```no_run
//! # use kiln::baked::*;
//! # use kiln::shape::*;
//! # fn f(shape: ModelShape, modules: &'static [BakedModule]) -> BakedModel {
//! // SAFETY: an example.
//! unsafe { BakedModel::new("mine", shape, WeightTypes::ALL, modules) }
//! # }
//! ```
//! ```compile_fail,E0133
//! # use kiln::baked::*;
//! # use kiln::shape::*;
//! # fn f(shape: ModelShape, modules: &'static [BakedModule]) -> BakedModel {
//! BakedModel::new("mine", shape, WeightTypes::ALL, modules)
//! # }
//! ```
//! ```compile_fail,E0451
//! # use kiln::baked::*;
//! # use kiln::shape::*;
//! # fn f(shape: ModelShape, modules: &'static [BakedModule]) -> BakedModel {
//! BakedModel { name: "mine", shape, types: WeightTypes::ALL, modules }
//! # }
//! ```
//!
//! A baked model with the PTX of another:
//! ```no_run
//! # use kiln::baked::*;
//! # fn f(baked: &BakedModel) -> &'static [BakedModule] {
//! baked.modules()
//! # }
//! ```
//! ```compile_fail,E0616
//! # use kiln::baked::*;
//! # fn f(baked: &mut BakedModel, modules: &'static [BakedModule]) {
//! baked.modules = modules;
//! # }
//! ```
