//! A driver table whose every function writes its name down and then calls the real one, or fails as told.
//!
//! C functions carry no instance, so there is one real table under it per process. What is recorded and what fails is
//! kept per thread: tests run side by side and see only their own calls.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, Sender};

use kiln::driver::Driver;
use kiln::driver::sys::kiln_cu_api;

static REAL: OnceLock<kiln_cu_api> = OnceLock::new();

thread_local! {
    static CALLS: RefCell<Vec<&'static str>> = const { RefCell::new(Vec::new()) };
    static FAILURES: RefCell<HashMap<&'static str, u32>> = RefCell::new(HashMap::new());
    /// A call to come that fails once: its name, how many of that name come before it, and the code.
    static ONCE: RefCell<Option<(&'static str, usize, u32)>> = const { RefCell::new(None) };
    static HELD: RefCell<Option<Held>> = const { RefCell::new(None) };
}

/// A call that is to be held up.
struct Held {
    name: &'static str,
    entered: Sender<()>,
    go_on: Receiver<()>,
}

/// The driver that records, over the real one given at the first call.
pub fn recording(real: &Driver) -> Driver {
    let real = REAL.get_or_init(|| *real.api().table());
    // SAFETY: each function does what the real one does, or fails as that may fail.
    unsafe { Driver::from_table(wrapped(*real)) }.expect("the real driver was initialised")
}

/// Names of the calls that this thread makes during `work`.
pub fn calls_of<R>(work: impl FnOnce() -> R) -> (R, Vec<&'static str>) {
    CALLS.take();
    let result = work();
    (result, CALLS.take())
}

/// Has every call of that name fail in this thread during `work`.
pub fn failing<R>(name: &'static str, code: u32, work: impl FnOnce() -> R) -> R {
    FAILURES.with_borrow_mut(|failures| failures.insert(name, code));
    let result = work();
    FAILURES.with_borrow_mut(|failures| failures.remove(name));
    result
}

/// Has the call number `nth`, counted from 0, of that name fail once in this thread during `work`.
pub fn failing_once<R>(name: &'static str, nth: usize, code: u32, work: impl FnOnce() -> R) -> R {
    ONCE.set(Some((name, nth, code)));
    let result = work();
    ONCE.set(None);
    result
}

/// Has the first call of that name in this thread during `work` tell `entered`, and then wait for `go_on`, or for its
/// other end to be gone.
pub fn held<R>(name: &'static str, entered: Sender<()>, go_on: Receiver<()>, work: impl FnOnce() -> R) -> R {
    HELD.set(Some(Held { name, entered, go_on }));
    let result = work();
    HELD.set(None);
    result
}

/// Writes a name down. The code to fail with, if any.
fn enter(name: &'static str) -> Option<u32> {
    CALLS.with_borrow_mut(|calls| calls.push(name));
    let held = HELD.with_borrow_mut(|held| held.take_if(|held| held.name == name));
    if let Some(Held { entered, go_on, .. }) = held {
        let _ = entered.send(());
        let _ = go_on.recv();
    }
    let once = ONCE.with_borrow_mut(|once| match once {
        Some((of, before, code)) if *of == name => match before.checked_sub(1) {
            Some(left) => {
                *before = left;
                None
            }
            None => {
                let code = *code;
                *once = None;
                Some(code)
            }
        },
        _ => None,
    });
    once.or_else(|| FAILURES.with_borrow(|failures| failures.get(name).copied()))
}

/// A function pointer that can be replaced by one that records, for the `I`-th function of the table.
trait Recorded: Sized {
    fn recorded<const I: usize>(self) -> Self;
}

macro_rules! recorded {
    ($($name:ident: $type:ident),*) => {
        impl<$($type),*> Recorded for Option<unsafe extern "C" fn($($type),*) -> u32> {
            fn recorded<const I: usize>(self) -> Self {
                unsafe extern "C" fn record<const I: usize, $($type),*>($($name: $type),*) -> u32 {
                    if let Some(code) = enter(NAMES[I]) {
                        return code;
                    }
                    let field = real_field(I).expect("only functions that are there are replaced");
                    // SAFETY: the `I`-th function of the table has this signature, by which `recorded` was chosen.
                    let real: unsafe extern "C" fn($($type),*) -> u32 = unsafe { std::mem::transmute(field) };
                    // SAFETY: the caller keeps the real function's contract.
                    unsafe { real($($name),*) }
                }
                self.map(|_| record::<I, $($type),*> as _)
            }
        }
    };
}
recorded!();
recorded!(a: A);
recorded!(a: A, b: B);
recorded!(a: A, b: B, c: C);
recorded!(a: A, b: B, c: C, d: D);
recorded!(a: A, b: B, c: C, d: D, e: E);
recorded!(a: A, b: B, c: C, d: D, e: E, f: F, g: G, h: H, i: J, j: K);
recorded!(a: A, b: B, c: C, d: D, e: E, f: F, g: G, h: H, i: J, j: K, k: L);
recorded!(a: A, b: B, c: C, d: D, e: E, f: F, g: G, h: H, i: J, j: K, k: L, l: M);

/// Lists the table's fields: their names, the real pointer of each, and the table with each replaced.
macro_rules! table {
    ($($field:ident)*) => {
        const NAMES: &[&str] = &[$(stringify!($field)),*];

        fn real_field(index: usize) -> Option<usize> {
            let real = REAL.get().expect("set before the first call");
            [$(real.$field.map(|function| function as usize)),*][index]
        }

        fn wrapped(real: kiln_cu_api) -> kiln_cu_api {
            kiln_cu_api { $($field: real.$field.recorded::<{ index_of(stringify!($field)) }>()),* }
        }
    };
}

/// Where a name stands in the list.
const fn index_of(name: &str) -> usize {
    let mut index = 0;
    while index < NAMES.len() {
        let (one, other) = (NAMES[index].as_bytes(), name.as_bytes());
        let mut at = 0;
        while at < one.len() && at < other.len() && one[at] == other[at] {
            at += 1;
        }
        if at == one.len() && at == other.len() {
            return index;
        }
        index += 1;
    }
    panic!("not in the list")
}

table! {
    cuInit cuDriverGetVersion cuDeviceGetCount cuDeviceGet cuDeviceGetName cuDeviceGetAttribute cuDeviceTotalMem
    cuDeviceGetUuid cuDeviceGetUuid_v2 cuDevicePrimaryCtxRetain cuDevicePrimaryCtxRelease cuCtxSetCurrent cuCtxGetCurrent cuCtxSynchronize
    cuMemGetInfo cuMemAlloc cuMemFree cuMemHostAlloc cuMemFreeHost cuMemHostGetDevicePointer cuMemcpyHtoD cuMemcpyDtoH
    cuMemcpyDtoD cuMemcpyHtoDAsync cuMemcpyDtoHAsync cuMemcpyDtoDAsync cuMemsetD8Async cuMemsetD32Async
    cuModuleLoadDataEx cuModuleUnload cuModuleGetFunction cuModuleGetGlobal cuFuncGetAttribute cuFuncSetAttribute
    cuFuncLoad cuOccupancyMaxActiveBlocksPerMultiprocessor cuLaunchKernel cuLaunchCooperativeKernel cuLaunchKernelEx
    cuLaunchHostFunc cuStreamCreate cuStreamDestroy cuStreamSynchronize cuStreamQuery cuStreamWaitEvent
    cuStreamBeginCapture cuStreamEndCapture cuEventCreate cuEventRecord cuEventQuery cuEventSynchronize
    cuEventElapsedTime cuEventDestroy cuGraphInstantiateWithFlags cuGraphLaunch cuGraphExecDestroy cuGraphDestroy
    cuTensorMapEncodeTiled
}
