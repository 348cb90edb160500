//! The kernel and the model on kiln's emulator: no GPU, no CUDA.

use kiln::driver::{Device, Driver, GpuTensor};
use kiln::model::{GenerateOptions, ModelFile, SessionOptions};
use kiln::{Error, Model};
use kiln_emulator::{DeviceConfig, add_device, last_fault, resolve};
use own_kernel::{Softmax, baked};

/// A device of compute capability `major.minor`, of this test alone.
fn device(major: u32, minor: u32) -> Device {
    let ordinal = add_device(DeviceConfig::with_sm(major, minor));
    // SAFETY: the emulator's functions have NVIDIA's signatures and behaviour.
    let driver =
        unsafe { Driver::from_resolver(|name| resolve(name).map_or(std::ptr::null(), |found| found.as_ptr())) };
    Device::open(&driver.expect("the emulator is a driver"), ordinal).expect("the device was added")
}

/// `rows` rows of `n` numbers between -8 and 8.
fn inputs(rows: u32, n: u32) -> Vec<f32> {
    let mut state = 7u32;
    (0..rows * n)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 20) as f32 - 8.0
        })
        .collect()
}

fn softmax(device: &Device, x: &[f32], n: u32) -> Vec<f32> {
    let (x, y) = (GpuTensor::from_host(device, x).unwrap(), GpuTensor::<f32>::uninitialized(device, x.len()).unwrap());
    let softmax = Softmax::open(device).unwrap();
    let ran = softmax.run(&device.stream().unwrap(), &x, &y, n).and_then(|()| y.to_host());
    ran.unwrap_or_else(|error| panic!("{error}; {:?}", last_fault(device.ordinal())))
}

#[test]
fn softmax_is_that_of_f64_on_every_chip() {
    for (rows, n) in [(1, 1), (3, 31), (9, 33), (5, 200)] {
        let x = inputs(rows, n);
        let mut first = None;
        for (major, minor) in [(7, 5), (8, 0), (9, 0)] {
            let found = softmax(&device(major, minor), &x, n);
            for (x, y) in x.chunks(n as usize).zip(found.chunks(n as usize)) {
                let greatest = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                let exps: Vec<f64> = x.iter().map(|x| f64::from(x - greatest).exp()).collect();
                let sum: f64 = exps.iter().sum();
                for (exp, y) in exps.iter().zip(y) {
                    let (expected, found) = (exp / sum, f64::from(*y));
                    // Roundings of the exponent, up to 24 in size, outweigh the others.
                    assert!((found - expected).abs() <= 8e-6 * expected, "{found} for {expected}, rows of {n}");
                }
            }
            // Another target has other instructions, and the same maximum and sums.
            assert!(*first.get_or_insert(found.clone()) == found, "sm_{major}{minor}");
        }
    }
}

#[test]
fn each_chip_takes_the_newest_target_that_it_runs() {
    for ((major, minor), sm) in [((7, 5), 75), ((8, 0), 80), ((9, 0), 80)] {
        assert_eq!(baked::KERNELS.module_for(&device(major, minor)).unwrap().sm, sm);
    }
    let error = Softmax::open(&device(7, 0)).err();
    assert!(matches!(error, Some(Error::DeviceTooOld { needed: 75, .. })), "{error:?}");
}

#[test]
fn tensors_that_do_not_fit_are_refused() {
    let device = device(9, 0);
    let (softmax, stream) = (Softmax::open(&device).unwrap(), device.stream().unwrap());
    let [a, b] = [6, 4].map(|len| GpuTensor::<f32>::zeros(&device, len).unwrap());
    for (x, y, n) in [(&a, &b, 3), (&a, &a, 3), (&a, &b, 0), (&a, &b, 4)] {
        let refused = softmax.run(&stream, x, y, n);
        assert!(matches!(refused, Err(Error::InvalidArgument { .. })), "{refused:?}");
    }
}

#[test]
fn the_baked_model_generates() {
    let file = ModelFile::open(concat!(env!("CARGO_MANIFEST_DIR"), "/../data/demo.Q4_K_M.gguf")).unwrap();
    // Of several baked models the one whose shape and types are the file's.
    let demo = baked::MODELS.iter().find(|baked| file.check_baked(baked).is_ok()).expect("it was baked");
    assert_eq!(demo.name(), baked::DEMO.name());
    let model = Model::load(&device(9, 0), demo, file, |_| {}).unwrap();
    let mut session = model.session(SessionOptions::default()).unwrap();
    session.append(&[438, 1245, 361]).unwrap();
    let ids: Vec<u32> = session.generate(GenerateOptions::new(2)).collect::<kiln::Result<_>>().unwrap();
    assert_eq!(ids.len(), 2);
}
