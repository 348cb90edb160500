//! The handle table: every `CUcontext`, `CUstream`, ... is a number that is never used twice and never dereferenced, so
//! a wrong, stale or foreign handle is an error code instead of a crash.

use super::{Code, Handle, Leak, Outcome, lock};
use std::any::Any;
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex};

struct Entry {
    object: Arc<dyn Any + Send + Sync>,
    /// The context that the object belongs to, 0 for a context itself.
    owner: Handle,
    /// What it is if nobody removes it; parts of other objects are none.
    leak: Option<Leak>,
}

static TABLE: LazyLock<Mutex<HashMap<Handle, Entry>>> = LazyLock::new(Mutex::default);
/// Never null, and spaced like pointers.
static NEXT: AtomicUsize = AtomicUsize::new(0x4b1_0000);

pub(crate) fn insert<T: Any + Send + Sync>(owner: Handle, leak: Option<Leak>, object: T) -> Handle {
    let handle = NEXT.fetch_add(16, Ordering::Relaxed);
    lock(&TABLE).insert(handle, Entry { object: Arc::new(object), owner, leak });
    handle
}

/// The object of a handle, if it is one of this type.
pub(crate) fn get<T: Any + Send + Sync>(handle: Handle) -> Outcome<Arc<T>> {
    let object = lock(&TABLE).get(&handle).ok_or(Code::INVALID_HANDLE)?.object.clone();
    object.downcast().map_err(|_| Code::INVALID_HANDLE)
}

/// Ends a handle, if it is one of this type.
pub(crate) fn remove<T: Any + Send + Sync>(handle: Handle) -> Outcome<Arc<T>> {
    let object = get(handle)?;
    lock(&TABLE).remove(&handle);
    Ok(object)
}

/// Ends a context's handle and those of what it has.
pub(crate) fn remove_all_of(context: Handle) {
    lock(&TABLE).retain(|&handle, entry| handle != context && entry.owner != context);
}

/// What of a context was not removed.
pub(crate) fn leaks_of(context: Handle) -> Vec<Leak> {
    lock(&TABLE).values().filter(|entry| entry.owner == context).filter_map(|entry| entry.leak).collect()
}
