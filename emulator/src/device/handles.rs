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
/// Above every number with a meaning of its own (null, legacy and per-thread stream) and spaced like pointers.
static NEXT: AtomicUsize = AtomicUsize::new(0x4b1_0000);

/// A number that no other handle has.
pub(crate) fn reserve() -> Handle {
    NEXT.fetch_add(16, Ordering::Relaxed)
}

pub(crate) fn insert<T: Any + Send + Sync>(owner: Handle, leak: Option<Leak>, object: T) -> Handle {
    let handle = reserve();
    lock(&TABLE).insert(handle, Entry { object: Arc::new(object), owner, leak });
    handle
}

/// The object of a handle, if it is one of this type.
pub(crate) fn get<T: Any + Send + Sync>(handle: Handle) -> Outcome<Arc<T>> {
    get_with_owner(handle).map(|(object, _)| object)
}

pub(crate) fn get_with_owner<T: Any + Send + Sync>(handle: Handle) -> Outcome<(Arc<T>, Handle)> {
    let table = lock(&TABLE);
    let entry = table.get(&handle).ok_or(Code::INVALID_HANDLE)?;
    let object = entry.object.clone().downcast().map_err(|_| Code::INVALID_HANDLE)?;
    Ok((object, entry.owner))
}

pub(crate) fn remove(handle: Handle) {
    // Dropped after the lock: dropping an object may look up others.
    let removed = lock(&TABLE).remove(&handle);
    drop(removed);
}

pub(crate) fn remove_all_of(context: Handle) {
    let mut table = lock(&TABLE);
    let removed: Vec<_> = table.extract_if(|&handle, entry| handle == context || entry.owner == context).collect();
    drop(table);
    drop(removed);
}

/// What of a context was not removed.
pub(crate) fn leaks_of(context: Handle) -> Vec<Leak> {
    lock(&TABLE).values().filter(|entry| entry.owner == context).filter_map(|entry| entry.leak).collect()
}
