//! Functions against float64, run on the emulator over the floats of their domains.

use super::{exp, inverses_up_to_two, ln, silu};
use crate::Target;
use crate::ptx::{Builder, F32, Global, Module, U32, Val};
use kiln_emulator::{Checks, DeviceConfig, Launch, Memory};

const BLOCK: u32 = 256;
/// Floats of a launch.
const FLOATS: u32 = 1 << 20;

/// A function of one float on a device.
struct Probe {
    module: kiln_emulator::Module,
    memory: Memory,
    out: u64,
}

impl Probe {
    fn new(function: fn(&mut Builder, Val<F32>) -> Val<F32>) -> Probe {
        let mut module = Module::new(Target::new(75).expect("a target"));
        let built = module.kernel("probe", BLOCK, |b| {
            let out = b.param::<Global<F32>>("out");
            let first = b.param::<U32>("first");
            let stride = b.param::<U32>("stride");
            let (block, tid) = (b.ctaid_x(), b.tid());
            let thread = b.mad::<U32>(block, BLOCK, tid);
            let bits = b.mad(thread, stride, first);
            let x = b.mov_bits::<F32, _>(bits);
            let value = function(b, x);
            let out = b.index(out, thread);
            b.st(out, value);
        });
        built.expect("a valid kernel");
        let memory = Memory::new(8 << 20);
        let module = kiln_emulator::Module::load(&module.ptx(), &memory).expect("valid text");
        let out = memory.alloc(u64::from(4 * FLOATS)).expect("memory");
        Probe { module, memory, out }
    }

    /// The function of `count` floats, whose bits begin at `first` and are `stride` apart.
    fn run(&self, first: u32, stride: u32, count: u32) -> Vec<f32> {
        let mut params = self.out.to_le_bytes().to_vec();
        params.extend([first, stride].into_iter().flat_map(u32::to_le_bytes));
        let launch = Launch {
            module: &self.module,
            kernel: "probe",
            grid: [count.div_ceil(BLOCK), 1, 1],
            block: [BLOCK, 1, 1],
            dynamic_shared: 0,
            params: &params,
            cooperative: false,
            cluster: None,
        };
        let config = DeviceConfig { checks: Checks::NONE, ..DeviceConfig::with_sm(7, 5) };
        kiln_emulator::run(&launch, &self.memory, &config).unwrap_or_else(|fault| panic!("{fault}"));
        let mut bytes = vec![0; 4 * count as usize];
        self.memory.read(self.out, &mut bytes).expect("the results are there");
        bytes.chunks(4).map(|word| f32::from_le_bytes(word.try_into().expect("four bytes"))).collect()
    }

    fn of(&self, x: f32) -> f32 {
        self.run(x.to_bits(), 1, 1)[0]
    }

    /// Calls `look` with floats from `from` away from zero to `to`, and the function of each.
    fn sweep(&self, from: f32, to: f32, stride: u32, mut look: impl FnMut(f32, f32)) {
        let (mut first, last) = (from.to_bits(), to.to_bits());
        while first <= last {
            let count = ((last - first) / stride + 1).min(FLOATS);
            for (i, found) in self.run(first, stride, count).into_iter().enumerate() {
                look(f32::from_bits(first + i as u32 * stride), found);
            }
            let Some(next) = count.checked_mul(stride).and_then(|done| first.checked_add(done)) else { break };
            first = next;
        }
    }
}

/// How far `found` is from `exact`, in units of its last place.
fn ulps(found: f32, exact: f64) -> f64 {
    let exponent = if exact == 0.0 { -126 } else { exact.abs().log2().floor().max(-126.0) as i32 };
    (f64::from(found) - exact).abs() / 2f64.powi(exponent - 23)
}

/// The distance between the bits of floats that are looked at, odd so that all bits vary: `long` where tests run in their
/// long form.
fn stride(short: u32, long: u32) -> u32 {
    if std::env::var_os("KILN_TEST_LONG").is_some() {
        return long;
    }
    println!("SKIPPED: all but one of {short} floats; set KILN_TEST_LONG=1 to look at one of {long}");
    short
}

#[test]
fn exp_is_float64s_within_its_bound() {
    let probe = Probe::new(|b, x| exp(b, x));
    let (mut worst, mut at, stride) = (0.0, 0.0, stride(257, 1));
    // Nearer to zero than 2^-26 the result is 1.
    for (from, to) in [(-1e-8, -105.0), (1e-8, 66.0)] {
        probe.sweep(from, to, stride, |x, found| {
            let error = ulps(found, f64::from(x).exp());
            if error > worst {
                (worst, at) = (error, x);
            }
        });
    }
    println!("at most {worst:.4} ulp, at {at:e}");
    assert!(worst <= 0.91, "{worst} ulp at {at:e}");
    assert!(worst > 0.5, "nothing was compared");
}

/// What kernels compute and what the host's reference of sampling does.
#[test]
fn exp_has_the_bits_of_the_hosts() {
    let (probe, stride) = (Probe::new(|b, x| exp(b, x)), stride(1021, 3));
    for (from, to) in [(-0.0, -200.0), (0.0, 66.0)] {
        probe.sweep(from, to, stride, |x, found| {
            let host = kiln_shape::arithmetic::exp(x);
            assert_eq!(found.to_bits(), host.to_bits(), "{found:e} and {host:e} of {x:e}");
        });
    }
}

#[test]
fn ln_has_the_bits_of_the_hosts() {
    let (probe, stride) = (Probe::new(ln), stride(4099, 5));
    probe.sweep(f32::MIN_POSITIVE, f32::MAX, stride, |x, found| {
        let host = kiln_shape::arithmetic::ln(x);
        assert_eq!(found.to_bits(), host.to_bits(), "{found:e} and {host:e} of {x:e}");
    });
}

#[test]
fn exp_has_the_limits_of_e_to_the_x() {
    let probe = Probe::new(|b, x| exp(b, x));
    for x in [f32::NEG_INFINITY, f32::MIN, -1e10, -150.0, -104.0] {
        assert_eq!(probe.of(x).to_bits(), 0, "{x:e}");
    }
    assert_eq!(probe.of(-103.5), f32::from_bits(1), "the least subnormal");
    for x in [0.0, -0.0, 1e-40, -1e-40, f32::MIN_POSITIVE] {
        assert_eq!(probe.of(x), 1.0, "{x:e}");
    }
    assert!(probe.of(f32::NAN).is_nan() && probe.of(-f32::NAN).is_nan());
}

#[test]
fn inverses_up_to_two_are_float64s_within_their_bound() {
    let probe = Probe::new(|b, x| {
        let [inverse] = inverses_up_to_two(b, [x]);
        inverse
    });
    let (mut worst, stride) = (0.0f64, stride(17, 1));
    probe.sweep(1.0, 2.0, stride, |x, found| worst = worst.max(ulps(found, 1.0 / f64::from(x))));
    println!("at most {worst:.4} ulp");
    assert!(worst <= 0.68, "{worst} ulp");
    assert!(worst > 0.5, "nothing was compared");
}

#[test]
fn silu_is_float64s_for_every_finite_float() {
    let probe = Probe::new(silu);
    let (mut worst, mut at, mut below, stride) = (0.0, 0.0, 0.0f64, stride(1023, 17));
    for (from, to) in [(0.0, f32::MAX), (-0.0, f32::MIN)] {
        probe.sweep(from, to, stride, |x, found| {
            let wide = f64::from(x);
            let exact = wide / (1.0 + (-wide).exp());
            assert!(found.is_sign_positive() == x.is_sign_positive(), "{found:e} of {x:e}");
            if x < -87.0 {
                below = below.max((f64::from(found) - exact).abs());
            } else if ulps(found, exact) > worst {
                (worst, at) = (ulps(found, exact), x);
            }
        });
    }
    println!("at most {worst:.4} ulp, at {at:e}; below -87 at most {below:e}");
    assert!(worst <= 3.35, "{worst} ulp at {at:e}");
    assert!(below <= 1.5e-43, "{below:e}");
    assert!(worst > 0.5 && below > 0.0, "nothing was compared");
}

#[test]
fn silu_passes_on_what_is_no_number() {
    let probe = Probe::new(silu);
    assert!(probe.of(f32::NAN).is_nan() && probe.of(-f32::NAN).is_nan());
    assert_eq!(probe.of(f32::INFINITY), f32::INFINITY);
}
