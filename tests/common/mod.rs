//! Shared by the tests that need a device.

#![allow(dead_code, unreachable_pub)]

pub mod table;

use std::cell::RefCell;
use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use kiln::driver::{Device, Driver, Stream, sys};
use kiln_emulator::{Checks, DeviceConfig};

/// A vector addition in PTX, `y[i] += a * x[i]` for `i < n`.
pub const SAXPY: &str = r"
.version 6.3
.target sm_75
.address_size 64
.visible .entry saxpy(.param .u32 n, .param .f32 a, .param .u64 x, .param .u64 y)
.maxntid 128, 1, 1
{
    .reg .pred %p1;
    .reg .b32 %r<6>;
    .reg .f32 %f<5>;
    .reg .b64 %rd<6>;
    ld.param.u32 %r1, [n];
    ld.param.f32 %f1, [a];
    ld.param.u64 %rd1, [x];
    ld.param.u64 %rd2, [y];
    mov.u32 %r2, %ctaid.x;
    mov.u32 %r3, %ntid.x;
    mov.u32 %r4, %tid.x;
    mad.lo.u32 %r5, %r2, %r3, %r4;
    setp.ge.u32 %p1, %r5, %r1;
    @%p1 bra done;
    cvta.to.global.u64 %rd1, %rd1;
    cvta.to.global.u64 %rd2, %rd2;
    mul.wide.u32 %rd3, %r5, 4;
    add.u64 %rd4, %rd1, %rd3;
    add.u64 %rd5, %rd2, %rd3;
    ld.global.f32 %f2, [%rd4];
    ld.global.f32 %f3, [%rd5];
    fma.rn.f32 %f4, %f1, %f2, %f3;
    st.global.f32 [%rd5], %f4;
done:
    ret;
}
";

/// The driver that tests run on: NVIDIA's with `KILN_DEVICE=cuda`, else the emulator, and between it and kiln a table
/// that records.
pub fn driver() -> &'static Driver {
    static DRIVER: OnceLock<Driver> = OnceLock::new();
    DRIVER.get_or_init(|| {
        if on_gpu() {
            return table::recording(&Driver::load().expect("KILN_DEVICE=cuda needs a driver"));
        }
        // Without a device the emulator has none to initialise for.
        kiln_emulator::add_device(DeviceConfig::default());
        // SAFETY: the emulator's functions have NVIDIA's signatures.
        let real = unsafe {
            Driver::from_resolver(|name| kiln_emulator::resolve(name).map_or(std::ptr::null(), |found| found.as_ptr()))
        };
        table::recording(&real.expect("the emulator is a driver"))
    })
}

/// Options of a session in exact numerics, which references are made for.
#[cfg(feature = "gguf")]
pub fn exact() -> kiln::model::SessionOptions {
    kiln::model::SessionOptions::default().with_numerics(kiln::model::Numerics::Exact)
}

/// Whether tests run on a GPU.
pub fn on_gpu() -> bool {
    std::env::var("KILN_DEVICE").is_ok_and(|device| device == "cuda")
}

/// Whether a test is left out on a GPU, for the reason given, which it says.
pub fn is_left_out_on_gpu(reason: &str) -> bool {
    let left_out = on_gpu();
    if left_out {
        println!("SKIPPED: {reason}");
    }
    left_out
}

/// Whether tests run in their long form, as `KILN_TEST_LONG=1` asks for; says what is left out where they do not.
pub fn is_long(left_out: &str) -> bool {
    let long = std::env::var_os("KILN_TEST_LONG").is_some();
    if !long {
        println!("SKIPPED: {left_out}; set KILN_TEST_LONG=1 to run it too");
    }
    long
}

/// A device of its own for every caller, so that tests do not wait for each other; on a GPU the one that is there.
pub fn device() -> Device {
    device_with(DeviceConfig::default())
}

/// Whether this is one of many runs that differ in their random inputs only, as `KILN_TEST_SEEDS=1` says: results depend
/// neither on schedules nor on checks, so that such a run does without both.
pub fn tries_seeds() -> bool {
    std::env::var_os("KILN_TEST_SEEDS").is_some()
}

/// A device with that configuration; on a GPU the one that is there.
pub fn device_with(mut config: DeviceConfig) -> Device {
    let driver = driver();
    if tries_seeds() {
        config.checks = Checks::NONE;
    }
    // The readers of weights and vectors that all blocks read are many.
    config.checks.every_reader &= std::env::var("KILN_TEST_LONG").is_ok_and(|value| value == "1");
    let ordinal = if on_gpu() { 0 } else { kiln_emulator::add_device(config) };
    Device::open(driver, ordinal).expect("the device was added")
}

/// What the emulator found wrong on a device; nothing on a GPU.
pub fn fault(device: &Device) -> Option<String> {
    if on_gpu() { None } else { kiln_emulator::last_fault(device.ordinal()).map(|fault| format!("{fault:?}")) }
}

/// A place in a stream that its work does not pass until the gate is opened; opened at the latest when dropped.
#[derive(Default)]
pub struct Gate(Door);

/// Whether a gate is open.
type Door = Arc<(Mutex<bool>, Condvar)>;

/// Has the stream's later work wait until the door is open.
fn wait_at(door: Door, stream: sys::CUstream) -> kiln::Result<()> {
    unsafe extern "C" fn wait(user: *mut c_void) {
        // SAFETY: `wait_at` gave this share away, once.
        let door = unsafe { Arc::from_raw(user.cast::<(Mutex<bool>, Condvar)>()) };
        let open = door.0.lock().unwrap_or_else(PoisonError::into_inner);
        drop(door.1.wait_while(open, |open| !*open));
    }
    // SAFETY: the stream is live; the function takes what it is given and calls no driver.
    unsafe { driver().api().launch_host(stream, Some(wait), Arc::into_raw(door).cast_mut().cast()) }
}

thread_local! {
    /// What the next gated copy of this thread waits at.
    static COPIES: RefCell<Option<Door>> = const { RefCell::new(None) };
}

/// As `cuMemcpyHtoDAsync`, behind the gate that [`Gate::for_copies_of_this_thread`] left.
///
/// # Safety
/// As for the driver's function.
pub unsafe extern "C" fn gated_copy(
    to: sys::CUdeviceptr,
    from: *const c_void,
    bytes: usize,
    stream: sys::CUstream,
) -> sys::CUresult {
    if let Some(door) = COPIES.take() {
        wait_at(door, stream).expect("host functions are supported");
    }
    let copy = driver().api().table().cuMemcpyHtoDAsync.expect("every driver has it");
    // SAFETY: the caller keeps the function's contract.
    unsafe { copy(to, from, bytes, stream) }
}

impl Gate {
    /// Closes a gate behind the stream's work so far.
    pub fn close(stream: &Stream) -> Gate {
        let gate = Gate::default();
        stream.enqueue([], |stream| wait_at(gate.0.clone(), stream.raw())).expect("host functions are supported");
        gate
    }

    /// Has the next copy by [`gated_copy`] in this thread wait for this gate.
    pub fn for_copies_of_this_thread(&self) {
        COPIES.set(Some(self.0.clone()));
    }

    /// Lets the work pass.
    pub fn open(&self) {
        *self.0.0.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.0.1.notify_all();
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.open();
    }
}

/// Whether `work` is still blocked after a while, in which it must not be done; opens the gate, and returns what `work`
/// returned in the end.
pub fn blocks_until_open<R: Send>(gate: &Gate, work: impl FnOnce() -> R + Send) -> R {
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let result = work();
            done.store(true, Ordering::SeqCst);
            result
        });
        std::thread::sleep(Duration::from_millis(50));
        let early = done.load(Ordering::SeqCst);
        gate.open();
        let result = thread.join().expect("no panic");
        assert!(!early, "went on while the work was in flight");
        result
    })
}
