//! Kernels of a program's own: the module for the chip, loaded and launched by what the bake says of it.

use crate::{bake, common};
use kiln::baked::{BakedKernels, BakedModule, MachineCode};
use kiln::driver::sys::{CUjit_option, CUmodule, CUresult, kiln_cu_api};
use kiln::driver::{Device, Driver, GpuTensor, KernelParam};
use kiln::launch::{Entry, In, Out, launch};
use kiln_codegen::kernels::Saxpy;
use kiln_emulator::DeviceConfig;
use std::ffi::{c_uint, c_void};
use std::sync::OnceLock;

/// Saxpy for some targets.
fn own(targets: &[u32]) -> BakedKernels {
    let modules: Vec<BakedModule> = targets.iter().map(|sm| bake::module(*sm, None, &[Box::new(Saxpy)])).collect();
    BakedKernels { modules: modules.leak() }
}

/// `y + a x` by the kernel of a module.
fn saxpy(device: &Device, module: &BakedModule, a: f32, x: &[f32], y: &[f32]) -> Vec<f32> {
    let kernel = module.kernel("saxpy").expect("it is baked");
    assert_eq!(kernel.params.iter().map(|param| param.name).collect::<Vec<_>>(), ["x", "y", "a", "n"]);
    let function = module.load(device).unwrap().function(kernel.name).unwrap();
    let (x, y) = (GpuTensor::from_host(device, x).unwrap(), GpuTensor::from_host(device, y).unwrap());
    let (px, py, n) = (x.as_ptr(), y.as_ptr(), x.len() as u32);
    let params = [KernelParam::new(&px), KernelParam::new(&py), KernelParam::new(&a), KernelParam::new(&n)];
    let launched = device.stream().unwrap().enqueue([x.reads("x"), y.writes("y")], |stream| {
        // SAFETY: the parameters as the bake lists them; x and y have n elements.
        unsafe { function.launch(stream, &kernel.config([2, 1, 1]), &params) }
    });
    launched.unwrap();
    y.to_host().unwrap()
}

#[test]
fn a_kernel_of_ones_own_runs_with_what_the_bake_says_of_it() {
    let device = common::device();
    let own = own(&[75, 80, 90]);
    let found = saxpy(&device, own.module_for(&device).unwrap(), 3.0, &[1.0, 2.0, 4.0], &[10.0, 10.0, 0.5]);
    assert_eq!(found, [13.0, 16.0, 12.5]);
}

#[test]
fn text_without_a_nul_is_loaded_as_well() {
    let device = common::device();
    let module = *own(&[75]).module_for(&device).unwrap();
    assert!(module.ptx.ends_with('\0'), "as a bake writes it");
    let plain = BakedModule { ptx: module.ptx.trim_end_matches('\0'), ..module };
    assert_eq!(saxpy(&device, &plain, 2.0, &[1.5], &[1.0]), [4.0]);
}

#[test]
fn a_device_takes_the_module_of_the_newest_target_that_is_not_newer() {
    if common::is_left_out_on_gpu("a GPU is one chip") {
        return;
    }
    let own = own(&[90, 75, 80]);
    for ((major, minor), target) in [((7, 5), 75), ((8, 0), 80), ((8, 9), 80), ((9, 0), 90), ((12, 0), 90)] {
        let device = common::device_with(DeviceConfig::with_sm(major, minor));
        assert_eq!(own.module_for(&device).unwrap().sm, target, "sm_{major}{minor}");
    }
    let device = common::device_with(DeviceConfig::with_sm(8, 0));
    let error = self::own(&[90]).module_for(&device).unwrap_err().to_string();
    assert!(error.contains("sm_80") && error.contains("KILN_TARGETS"), "{error}");
}

launch! {
    /// As a bake writes it.
    struct Launch<'a> {
        x: In<'a, f32>,
        y: Out<'a, f32>,
        a: f32,
        n: u32,
    }
}

impl Entry for Launch<'_> {
    const NAME: &'static str = "saxpy";
}

#[test]
fn a_generated_launch_finds_its_kernel_and_notes_its_buffers() {
    let device = common::device();
    let bake: &'static BakedKernels = Box::leak(Box::new(own(&[75, 80, 90])));
    let saxpy = bake.load(&device).unwrap().kernel::<Launch<'_>>().unwrap();
    let stream = device.stream().unwrap();
    let x = GpuTensor::from_host(&device, &[1.0, 2.0, 4.0]).unwrap();
    let y = GpuTensor::from_host(&device, &[10.0f32, 10.0, 0.5]).unwrap();
    let gate = common::Gate::close(&stream);
    let launch = Launch { x: (&x).into(), y: (&y).into(), a: 3.0, n: 3 };
    // SAFETY: x and y have three elements.
    unsafe { saxpy.enqueue(&stream, saxpy.grid(2), &launch) }.unwrap();
    // The use is noted: the copy waits for it.
    let found = common::blocks_until_open(&gate, || y.to_host().unwrap());
    assert_eq!(found, [13.0, 16.0, 12.5]);
}

/// Bytes that begin as a file of machine code does.
static IMAGE: &[u8] = b"\x7fELF, and no more";

/// Saxpy for sm_80, with machine code for one chip.
fn with_machine_code(sm: u32) -> BakedModule {
    // SAFETY: the driver of these tests looks at the first bytes only.
    let code = unsafe { MachineCode::new(sm, IMAGE) };
    BakedModule { machine_code: vec![code].leak(), ..*own(&[80]).modules.first().expect("a module") }
}

#[test]
fn text_is_loaded_where_machine_code_is_not_taken() {
    if common::is_left_out_on_gpu("a GPU would read the image") {
        return;
    }
    for (sm, tried) in [(90, 2), (80, 1), (86, 1)] {
        let device = common::device();
        assert_eq!(device.sm(), 90);
        let module = with_machine_code(sm);
        let (found, calls) = common::table::calls_of(|| saxpy(&device, &module, 2.0, &[1.5], &[1.0]));
        assert_eq!(found, [4.0]);
        // The emulator refuses what is no text; machine code for another chip is not tried.
        assert_eq!(calls.iter().filter(|call| **call == "cuModuleLoadDataEx").count(), tried, "sm_{sm}");
        let loads = device.module_loads();
        assert_eq!((loads.compiled, loads.machine_code), (1, 0));
    }
}

/// The emulator's functions.
static REAL: OnceLock<kiln_cu_api> = OnceLock::new();

/// As a driver that reads machine code: this image is that of saxpy.
unsafe extern "C" fn load_image(
    module: *mut CUmodule,
    image: *const c_void,
    count: c_uint,
    options: *mut CUjit_option,
    values: *mut *mut c_void,
) -> CUresult {
    let real = REAL.get().and_then(|real| real.cuModuleLoadDataEx).expect("it was looked up");
    // SAFETY: every image has four bytes.
    let is_code = unsafe { image.cast::<[u8; 4]>().read_unaligned() } == *b"\x7fELF";
    let text = std::ffi::CString::new(if is_code { common::SAXPY } else { "no text is read" }).expect("text");
    let image = text.as_ptr();
    // SAFETY: the caller keeps the function's contract, and the image is text.
    unsafe { real(module, image.cast(), count, options, values) }
}

#[test]
fn machine_code_of_exactly_the_device_is_loaded_instead_of_text() {
    let ordinal = kiln_emulator::add_device(DeviceConfig::with_sm(9, 0));
    // SAFETY: the emulator's functions have NVIDIA's signatures.
    let emulator = unsafe {
        Driver::from_resolver(|name| kiln_emulator::resolve(name).map_or(std::ptr::null(), |found| found.as_ptr()))
    };
    let emulator = emulator.expect("the emulator is a driver");
    let mut table = *REAL.get_or_init(|| *emulator.api().table());
    table.cuModuleLoadDataEx = Some(load_image);
    // SAFETY: each function does what the emulator's does; texts are refused, as that may do.
    let driver = unsafe { Driver::from_table(table) }.expect("it was initialised");
    let device = Device::open(&driver, ordinal).expect("the device was added");
    let loaded = with_machine_code(90).load(&device).expect("the driver takes it");
    loaded.function("saxpy").expect("it is in the image");
    let loads = device.module_loads();
    assert_eq!((loads.compiled, loads.machine_code), (0, 1));
    assert!(loads.time > std::time::Duration::ZERO);
    // Without it the text is asked for, which this driver does not read.
    assert!(with_machine_code(80).load(&device).is_err());
}
