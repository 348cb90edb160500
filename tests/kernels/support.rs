//! A device per schedule, kernels emitted for it, and buffers that notice what they should not get.

use kiln::driver::{Device, DeviceBuffer, DeviceRepr, Function, KernelParam, LaunchConfig, Module, Stream, TensorMap};
use kiln_codegen::bake::{self, Descriptor};
use kiln_codegen::{Kernel, Target};
use kiln_emulator::{Checks, DeviceConfig, Schedule};
use kiln_shape::table::{
    BOX_ROWS, DATA_OFFSET, ENTRY_BYTES, LAYER_SLOTS, MAP_OFFSET, MODEL_SLOTS, PLANE_OFFSET, TYPE_OFFSET,
};
use kiln_shape::{SUPER_BLOCK, TensorRole};

use crate::common;
use crate::quantised::Matrix;
use crate::random::Random;

/// A device with one way of interleaving warps and blocks.
pub(crate) struct Gpu {
    pub(crate) device: Device,
    stream: Stream,
    schedule: String,
}

/// The emulator with blocks and warps in turn.
pub(crate) fn gpu() -> Gpu {
    Gpu::new("round robin", DeviceConfig::default())
}

/// The default chip, and the oldest, whose copies do not run on and whose products are smaller; on a GPU only that.
pub(crate) fn chips() -> Vec<Gpu> {
    let mut chips = vec![gpu()];
    if !common::on_gpu() {
        chips.push(Gpu::of_chip(7, 5));
    }
    chips
}

/// Two of those, and of chips between them, by chance: the first whose copies run on, and one whose blocks have less shared
/// memory.
pub(crate) fn some_chips(random: &mut Random) -> Vec<Gpu> {
    if common::on_gpu() {
        return vec![gpu()];
    }
    let chips = random.some_of(2, [None, Some((7, 5)), Some((8, 0)), Some((8, 9))]);
    chips.into_iter().map(|sm| sm.map_or_else(gpu, |(major, minor)| Gpu::of_chip(major, minor))).collect()
}

/// A device with a random schedule, under which warps may be split; on a GPU the one that is there.
pub(crate) fn any_schedule(random: &mut Random) -> Gpu {
    let (seed, split_warps) = (random.next(), random.below(2) == 1);
    random_schedule(seed, split_warps)
}

fn random_schedule(seed: u64, split_warps: bool) -> Gpu {
    let config = DeviceConfig { schedule: Schedule::Random, seed, split_warps, ..DeviceConfig::default() };
    Gpu::new(&format!("random, seed {seed}, split warps: {split_warps}"), config)
}

/// Runs `work` under every schedule; on a GPU, and where many seeds are tried, once.
pub(crate) fn every_schedule(random: &mut Random, mut work: impl FnMut(&Gpu)) {
    schedules(random).into_iter().for_each(|of| work(&of()));
}

/// The same under two of them, by chance, where there is much work.
pub(crate) fn some_schedules(random: &mut Random, mut work: impl FnMut(&Gpu)) {
    let all = schedules(random);
    random.some_of(2, all).into_iter().for_each(|of| work(&of()));
}

/// Devices of each schedule, to be made.
fn schedules(random: &mut Random) -> Vec<Box<dyn FnOnce() -> Gpu>> {
    let mut all: Vec<Box<dyn FnOnce() -> Gpu>> = vec![Box::new(gpu)];
    if common::on_gpu() || common::tries_seeds() {
        return all;
    }
    for split_warps in [false, true] {
        let seed = random.next();
        all.push(Box::new(move || random_schedule(seed, split_warps)));
    }
    let config = DeviceConfig { schedule: Schedule::Adversarial, seed: random.next(), ..DeviceConfig::default() };
    all.push(Box::new(move || Gpu::new("adversarial", config)));
    all
}

/// A kernel that is loaded.
pub(crate) struct Loaded<'a> {
    gpu: &'a Gpu,
    function: Function,
    descriptor: Descriptor,
}

impl Gpu {
    /// The emulator with its counters on.
    pub(crate) fn counting() -> Gpu {
        Gpu::new("counting", DeviceConfig { counters: true, ..DeviceConfig::default() })
    }

    /// The emulator as a chip of another compute capability.
    pub(crate) fn of_chip(major: u32, minor: u32) -> Gpu {
        Gpu::new(&format!("sm_{major}{minor}"), DeviceConfig::with_sm(major, minor))
    }

    /// Another such chip, which checks nothing: for results that are no more than compared with.
    pub(crate) fn without_checks(&self) -> Gpu {
        let sm = self.device.sm();
        Gpu::new("round robin", DeviceConfig { checks: Checks::NONE, ..DeviceConfig::with_sm(sm / 10, sm % 10) })
    }

    fn new(schedule: &str, config: DeviceConfig) -> Gpu {
        // Tests run side by side already.
        let device = common::device_with(DeviceConfig { threads: 1, ..config });
        let stream = device.stream().expect("a stream");
        Gpu { device, stream, schedule: schedule.to_owned() }
    }

    /// Emits a kernel for this device and loads it.
    pub(crate) fn load(&self, kernel: impl Kernel + 'static) -> Loaded<'_> {
        let fits = |target: &&Target| target.sm() <= self.device.sm();
        self.load_as(*Target::ALL.iter().rev().find(fits).expect("a target for the device"), kernel)
    }

    /// The same for this device's own target.
    pub(crate) fn load_own(&self, kernel: impl Kernel + 'static) -> Loaded<'_> {
        let target = Target::new(self.device.sm()).and_then(Target::own).expect("a target of the device's own");
        self.load_as(target, kernel)
    }

    fn load_as(&self, target: Target, kernel: impl Kernel + 'static) -> Loaded<'_> {
        let kernels: [Box<dyn Kernel>; 1] = [Box::new(kernel)];
        let mut emitted = bake::emit(target, None, &kernels).unwrap_or_else(|error| panic!("{error}"));
        let descriptor = emitted.kernels.remove(0);
        let module = Module::from_ptx_str(&self.device, &emitted.ptx).unwrap_or_else(|error| panic!("{error}"));
        Loaded { gpu: self, function: module.function(&descriptor.name).expect("the entry"), descriptor }
    }

    /// A buffer that a kernel reads, exactly as long as its contents.
    pub(crate) fn input<T: DeviceRepr>(&self, contents: &[T]) -> DeviceBuffer<T> {
        DeviceBuffer::from_host(&self.device, contents).expect("device memory")
    }

    /// A buffer that a kernel writes: NaN of every float type, and behind it what must stay.
    pub(crate) fn output<T: DeviceRepr>(&self, len: usize) -> Output<T> {
        self.in_out(&vec![pattern::<T>(0xff); len])
    }

    /// A buffer that a kernel reads and writes.
    pub(crate) fn in_out<T: DeviceRepr>(&self, contents: &[T]) -> Output<T> {
        let mut all = contents.to_vec();
        all.resize(contents.len() + CANARIES, pattern::<T>(CANARY));
        Output { buffer: self.input(&all), len: contents.len() }
    }

    /// A buffer that nobody wrote: the emulator reports what reads it.
    pub(crate) fn unwritten<T: DeviceRepr>(&self, len: usize) -> DeviceBuffer<T> {
        DeviceBuffer::uninitialized(&self.device, len).expect("device memory")
    }

    /// Both parts of a matrix.
    pub(crate) fn matrix(&self, matrix: &Matrix) -> Weights {
        let (data, plane) = matrix.planes();
        let (data, plane) = (self.input(&data), self.input(&plane));
        let map = (TensorMap::is_supported(&self.device) && matrix.ty.block_len() == SUPER_BLOCK).then(|| {
            let bytes = matrix.ty.layout().data;
            let row_bytes = (matrix.k / SUPER_BLOCK as usize) as u64 * u64::from(bytes);
            let map = TensorMap::of_rows(&self.device, data.as_ptr(), (row_bytes, matrix.n as u64), (bytes, BOX_ROWS));
            self.input(&map.expect("a tensor map").to_bytes())
        });
        Weights { data, plane, map, ty: matrix.ty.id() }
    }
}

/// A matrix on the device.
pub(crate) struct Weights {
    pub(crate) data: DeviceBuffer<u8>,
    pub(crate) plane: DeviceBuffer<u8>,
    map: Option<DeviceBuffer<u8>>,
    ty: u32,
}

/// A tensor table, as loaders write it.
pub(crate) struct Table(Vec<u8>);

impl Table {
    pub(crate) fn new(layers: u32) -> Table {
        // What no kernel may follow.
        Table(vec![0xee; ((MODEL_SLOTS + layers * LAYER_SLOTS) * ENTRY_BYTES) as usize])
    }

    pub(crate) fn matrix(&mut self, role: TensorRole, layer: u32, weights: &Weights) {
        let [data, plane] = [&weights.data, &weights.plane].map(|part| part.as_ptr().address());
        self.entry(role, layer, data, plane, weights.ty);
        if let Some(map) = &weights.map {
            self.put(role, layer, MAP_OFFSET, &map.as_ptr().address().to_le_bytes());
        }
    }

    pub(crate) fn vector(&mut self, role: TensorRole, layer: u32, vector: &DeviceBuffer<f32>) {
        self.entry(role, layer, vector.as_ptr().address(), 0, kiln_shape::WeightType::F32.id());
    }

    fn entry(&mut self, role: TensorRole, layer: u32, data: u64, plane: u64, ty: u32) {
        self.put(role, layer, DATA_OFFSET, &data.to_le_bytes());
        self.put(role, layer, PLANE_OFFSET, &plane.to_le_bytes());
        self.put(role, layer, TYPE_OFFSET, &ty.to_le_bytes());
    }

    fn put(&mut self, role: TensorRole, layer: u32, at: u32, bytes: &[u8]) {
        let at = (role.table_index(layer) * ENTRY_BYTES + at) as usize;
        self.0[at..at + bytes.len()].copy_from_slice(bytes);
    }

    pub(crate) fn upload(&self, gpu: &Gpu) -> DeviceBuffer<u8> {
        gpu.input(&self.0)
    }
}

/// Elements behind an output that must stay as they are.
const CANARIES: usize = 64;
const CANARY: u8 = 0xab;

/// The value whose bytes are all `byte`.
pub(crate) fn pattern<T: DeviceRepr>(byte: u8) -> T {
    let mut value = std::mem::MaybeUninit::<T>::uninit();
    // SAFETY: every pattern of bytes is a value of a `DeviceRepr`.
    unsafe {
        value.as_mut_ptr().cast::<u8>().write_bytes(byte, size_of::<T>());
        value.assume_init()
    }
}

/// The bytes of a slice.
fn bytes<T: DeviceRepr>(values: &[T]) -> &[u8] {
    // SAFETY: a `DeviceRepr` has no padding.
    unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) }
}

/// What a kernel writes.
pub(crate) struct Output<T: DeviceRepr> {
    buffer: DeviceBuffer<T>,
    len: usize,
}

impl<T: DeviceRepr> Output<T> {
    /// What is in it now; panics if something was written behind it.
    #[track_caller]
    pub(crate) fn read(&self) -> Vec<T> {
        let mut all = self.buffer.to_host().expect("a copy to the host");
        let behind = all.split_off(self.len);
        assert!(bytes(&behind).iter().all(|byte| *byte == CANARY), "written behind the end");
        all
    }
}

/// An argument of a kernel.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Arg {
    U32(u32),
    F32(f32),
    Address(u64),
}

/// An argument for a parameter that is not read.
pub(crate) const NULL: Arg = Arg::Address(0);

impl From<u32> for Arg {
    fn from(value: u32) -> Arg {
        Arg::U32(value)
    }
}

impl From<f32> for Arg {
    fn from(value: f32) -> Arg {
        Arg::F32(value)
    }
}

impl<T: DeviceRepr> From<&DeviceBuffer<T>> for Arg {
    fn from(buffer: &DeviceBuffer<T>) -> Arg {
        Arg::Address(buffer.as_ptr().address())
    }
}

impl<T: DeviceRepr> From<&Output<T>> for Arg {
    fn from(output: &Output<T>) -> Arg {
        (&output.buffer).into()
    }
}

impl Loaded<'_> {
    /// Runs it to its end; panics with what the emulator has to say.
    #[track_caller]
    pub(crate) fn run(&self, grid: [u32; 3], args: &[Arg]) {
        self.run_with(grid, 0, args);
    }

    /// The same with so many bytes of dynamic shared memory more than the kernel takes.
    #[track_caller]
    pub(crate) fn run_with(&self, grid: [u32; 3], more: u32, args: &[Arg]) {
        if let Err(what) = self.try_run(grid, more, args) {
            panic!("{what}");
        }
    }

    /// Runs it; what went wrong, with the schedule.
    fn try_run(&self, grid: [u32; 3], more: u32, args: &[Arg]) -> Result<(), String> {
        let Descriptor { name, block, dynamic_shared, params, .. } = &self.descriptor;
        let sizes: Vec<u32> = args.iter().map(|arg| if matches!(arg, Arg::Address(_)) { 8 } else { 4 }).collect();
        let bytes: Vec<u32> = params.iter().map(|param| param.ty.bytes()).collect();
        assert_eq!(sizes, bytes, "arguments of {name}");
        let config = LaunchConfig::new(grid, [*block, 1, 1]).with_dynamic_shared(dynamic_shared + more);
        let params: Vec<KernelParam<'_>> = args
            .iter()
            .map(|arg| match arg {
                Arg::U32(value) => KernelParam::new(value),
                Arg::F32(value) => KernelParam::new(value),
                Arg::Address(value) => KernelParam::new(value),
            })
            .collect();
        let stream = &self.gpu.stream;
        // SAFETY: the arguments have the parameters' sizes, and the test keeps their buffers until the kernel is done.
        let done = stream.enqueue([], |stream| unsafe { self.function.launch(stream, &config, &params) });
        done.and_then(|()| stream.synchronize()).map_err(|error| {
            let fault = common::fault(&self.gpu.device).unwrap_or_default();
            format!("{name}, {}: {error}; {fault}", self.gpu.schedule)
        })
    }
}

impl std::fmt::Display for Gpu {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.schedule)
    }
}
