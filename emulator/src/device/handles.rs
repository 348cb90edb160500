//! The handle table. A `CUcontext`, `CUstream`, ... is a number that is never reused or dereferenced, so a wrong, stale
//! or foreign handle gives an error code instead of a crash.

use super::{Code, Handle, Leak, Outcome, lock};
use std::any::Any;
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex};

struct Entry {
    object: Arc<dyn Any + Send + Sync>,
    /// Handle of the context that the object belongs to; 0 for a context.
    owner: Handle,
    /// The leak if nobody removes it; `None` for parts of other objects.
    leak: Option<Leak>,
}

static TABLE: LazyLock<Mutex<HashMap<Handle, Entry>>> = LazyLock::new(Mutex::default);
/// The next handle. Handles are never null, and spaced like pointers.
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

/// Ends the handles of a context and of all its objects.
pub(crate) fn remove_all_of(context: Handle) {
    lock(&TABLE).retain(|&handle, entry| handle != context && entry.owner != context);
}

/// The leaks among a context's objects.
pub(crate) fn leaks_of(context: Handle) -> Vec<Leak> {
    lock(&TABLE).values().filter(|entry| entry.owner == context).filter_map(|entry| entry.leak).collect()
}
