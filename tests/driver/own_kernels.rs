//! Kernels of a program's own: the module for the chip, loaded and launched by what the bake says of it.

use crate::{bake, common};
use kiln::baked::{BakedKernels, BakedModule};
use kiln::driver::{Device, GpuTensor, KernelParam};
use kiln_codegen::kernels::Saxpy;
use kiln_emulator::DeviceConfig;

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
    if common::on_gpu() {
        println!("SKIPPED: a GPU is one chip");
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
