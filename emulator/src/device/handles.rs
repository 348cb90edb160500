//! The handle table: every `CUcontext`, `CUstream`, ... is a number that is never used twice and never dereferenced, so
//! a wrong, stale or foreign handle is an error code instead of a crash.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, RwLock, Weak};

use super::abi::{Handle, Outcome};
use super::codes::Code;
use super::context::Context;
use super::event::Event;
use super::graph::{Graph, GraphExec, GraphNode};
use super::module::{Function, LoadedModule};
use super::stream::StreamId;

/// What a handle stands for.
#[derive(Clone)]
pub(crate) enum Object {
    Context(Weak<Context>),
    Stream(Arc<Context>, StreamId),
    Event(Arc<Event>),
    Module(Arc<LoadedModule>),
    Function(Arc<Function>),
    Graph(Arc<Graph>),
    GraphNode(Arc<GraphNode>),
    GraphExec(Arc<GraphExec>),
}

impl Object {
    /// The handle of the context that the object belongs to.
    fn owner(&self) -> Option<Handle> {
        Some(match self {
            Object::Context(_) => return None,
            Object::Stream(context, _) => context.handle,
            Object::Event(event) => event.context.handle,
            Object::Module(module) => module.context.handle,
            Object::Function(function) => function.module.context.handle,
            Object::Graph(graph) => graph.context.handle,
            Object::GraphNode(node) => node.graph.context.handle,
            Object::GraphExec(exec) => exec.context.handle,
        })
    }
}

static TABLE: LazyLock<RwLock<HashMap<Handle, Object>>> = LazyLock::new(RwLock::default);
/// Above every number with a meaning of its own (null, legacy and per-thread stream) and spaced like pointers.
static NEXT: AtomicUsize = AtomicUsize::new(0x4b1_0000);

pub(crate) fn insert(object: Object) -> Handle {
    let handle = NEXT.fetch_add(16, Ordering::Relaxed);
    TABLE.write().unwrap_or_else(std::sync::PoisonError::into_inner).insert(handle, object);
    handle
}

pub(crate) fn get(handle: Handle) -> Outcome<Object> {
    let table = TABLE.read().unwrap_or_else(std::sync::PoisonError::into_inner);
    table.get(&handle).cloned().ok_or(Code::INVALID_HANDLE)
}

pub(crate) fn remove(handle: Handle) {
    // Dropped after the lock: dropping an object may look up others.
    let removed = TABLE.write().unwrap_or_else(std::sync::PoisonError::into_inner).remove(&handle);
    drop(removed);
}

/// Removes the context and everything that belongs to it; returns the latter.
pub(crate) fn remove_all_of(context: Handle) -> Vec<Object> {
    let mut table = TABLE.write().unwrap_or_else(std::sync::PoisonError::into_inner);
    table.remove(&context);
    table.extract_if(|_, object| object.owner() == Some(context)).map(|(_, object)| object).collect()
}

/// Everything that belongs to a context.
pub(crate) fn all_of(context: Handle) -> Vec<Object> {
    let table = TABLE.read().unwrap_or_else(std::sync::PoisonError::into_inner);
    table.values().filter(|object| object.owner() == Some(context)).cloned().collect()
}

macro_rules! typed {
    ($($function:ident -> $variant:ident($type:ty);)*) => {
        $(pub(crate) fn $function(handle: Handle) -> Outcome<$type> {
            match get(handle)? {
                Object::$variant(object) => Ok(object),
                _ => Err(Code::INVALID_HANDLE),
            }
        })*
    };
}

typed! {
    event -> Event(Arc<Event>);
    module -> Module(Arc<LoadedModule>);
    function -> Function(Arc<Function>);
    graph -> Graph(Arc<Graph>);
    graph_node -> GraphNode(Arc<GraphNode>);
    graph_exec -> GraphExec(Arc<GraphExec>);
}

pub(crate) fn context(handle: Handle) -> Outcome<Arc<Context>> {
    match get(handle)? {
        Object::Context(context) => context.upgrade().ok_or(Code::INVALID_HANDLE),
        _ => Err(Code::INVALID_HANDLE),
    }
}

pub(crate) fn stream(handle: Handle) -> Outcome<(Arc<Context>, StreamId)> {
    match get(handle)? {
        Object::Stream(context, id) => Ok((context, id)),
        _ => Err(Code::INVALID_HANDLE),
    }
}
