//! Device memory, copies and fills, with the driver's rules on what is asynchronous with respect to the host.
//! Source: CUDA Driver API, "API synchronization behavior".

use std::sync::Arc;

use super::abi::{In, Outcome};
use super::codes::Code;
use super::config::Call;
use super::context::Context;
use super::machine;
use super::stream::{LEGACY, StreamId};
use super::work::{Source, Work};

/// Pageable copies up to here are staged: the call returns before the device has the data.
const STAGED: usize = 64 << 10;

impl Context {
    /// `cuMemAlloc`. It may synchronise on a GPU, so here it always does: a program that allocates behind a kernel
    /// that waits for it must not work by luck.
    pub(crate) fn allocate(&self, bytes: u64) -> Outcome<u64> {
        if bytes == 0 {
            return Err(Code::INVALID_VALUE);
        }
        self.state().captures.refuse_unsafe()?;
        self.device.injected(Call::Allocate)?;
        self.drain("cuMemAlloc")?;
        let address = self.memory.alloc(bytes).map_err(|_| Code::OUT_OF_MEMORY)?;
        self.state().allocations.insert(address, bytes);
        Ok(address)
    }

    /// `cuMemFree`, which waits for all work of the context.
    pub(crate) fn free(&self, address: u64) -> Outcome {
        if address == 0 {
            return Ok(());
        }
        self.state().captures.refuse_unsafe()?;
        if !self.state().allocations.contains_key(&address) {
            return Err(Code::INVALID_VALUE);
        }
        let waited = self.wait_for_all("cuMemFree");
        if self.state().allocations.remove(&address).is_some() {
            let _ = self.memory.free(address);
        }
        waited
    }

    /// What is done instead of a copy that an injection makes fail while it is executed.
    fn injected_copy(&self) -> Outcome<Option<Work>> {
        match self.device.injected(Call::Copy) {
            Err(code) if code.is_sticky() => Ok(Some(Work::Fail(code))),
            Err(code) => Err(code),
            Ok(()) => Ok(None),
        }
    }

    fn is_capturing(&self, stream: StreamId) -> bool {
        self.state().captures.status(stream) != 0
    }

    fn is_pinned(&self, address: usize, bytes: usize) -> bool {
        self.state().pinned(address, bytes).is_some()
    }

    fn check_device(&self, address: u64, bytes: usize) -> Outcome {
        if machine::contains(&self.memory, address, bytes as u64) { Ok(()) } else { Err(Code::INVALID_VALUE) }
    }

    /// Queues work and, if asked, waits for it.
    fn transfer(self: &Arc<Self>, stream: StreamId, work: Work, wait: Option<&'static str>) -> Outcome {
        let ticket = self.enqueue(stream, work, Vec::new())?;
        match (ticket, wait) {
            (Some(ticket), Some(call)) => self.wait(call, &[ticket]),
            _ => Ok(()),
        }
    }

    /// Host to device. `stream` is `None` for the synchronous form.
    pub(crate) fn copy_in(self: &Arc<Self>, to: u64, from: usize, bytes: usize, stream: Option<StreamId>) -> Outcome {
        if bytes == 0 {
            return Ok(());
        }
        if from == 0 {
            return Err(Code::INVALID_VALUE);
        }
        self.check_device(to, bytes)?;
        let injected = self.injected_copy()?;
        let id = stream.unwrap_or(LEGACY);
        let pinned = self.is_pinned(from, bytes);
        // A capture keeps the pointer; a pageable source is read before the call returns; a pinned one when its turn comes.
        let stage = !pinned && !self.is_capturing(id) && (stream.is_some() || bytes <= STAGED);
        if stream.is_none() && !pinned {
            let before = self.state().pending(LEGACY);
            self.wait("cuMemcpyHtoD", &before)?;
        }
        let source = if stage {
            Source::Staged(In::from_address(from).bytes(bytes)?.into())
        } else {
            Source::Host { address: from, bytes }
        };
        let wait = (stream.is_none() && !stage).then_some("cuMemcpyHtoD");
        self.transfer(id, injected.unwrap_or(Work::CopyIn { to, source }), wait)
    }

    /// Device to host. The asynchronous form waits too where the host memory is pageable.
    pub(crate) fn copy_out(self: &Arc<Self>, to: usize, from: u64, bytes: usize, stream: Option<StreamId>) -> Outcome {
        if bytes == 0 {
            return Ok(());
        }
        if to == 0 {
            return Err(Code::INVALID_VALUE);
        }
        self.check_device(from, bytes)?;
        let injected = self.injected_copy()?;
        let id = stream.unwrap_or(LEGACY);
        let wait = match stream {
            None => Some("cuMemcpyDtoH"),
            Some(_) if self.is_capturing(id) || self.is_pinned(to, bytes) => None,
            Some(_) => Some("cuMemcpyDtoHAsync"),
        };
        self.transfer(id, injected.unwrap_or(Work::CopyOut { to, from, bytes }), wait)
    }

    /// Device to device, never waited for.
    pub(crate) fn copy_device(self: &Arc<Self>, to: u64, from: u64, bytes: usize, stream: Option<StreamId>) -> Outcome {
        if bytes == 0 {
            return Ok(());
        }
        self.check_device(to, bytes)?;
        self.check_device(from, bytes)?;
        let work = self.injected_copy()?.unwrap_or(Work::CopyDevice { to, from, bytes });
        self.transfer(stream.unwrap_or(LEGACY), work, None)
    }

    /// Fills with `count` elements of `width` bytes; waited for only by the synchronous form on page-locked memory.
    pub(crate) fn fill(
        self: &Arc<Self>,
        to: u64,
        value: u32,
        width: usize,
        count: usize,
        stream: Option<StreamId>,
    ) -> Outcome {
        if count == 0 {
            return Ok(());
        }
        let bytes = count.checked_mul(width).ok_or(Code::INVALID_VALUE)?;
        if !to.is_multiple_of(width as u64) {
            return Err(Code::INVALID_VALUE);
        }
        self.check_device(to, bytes)?;
        let work = self.injected_copy()?.unwrap_or(Work::Fill { to, value, width, count });
        let wait = (stream.is_none() && self.state().is_host(to)).then_some("cuMemset");
        self.transfer(stream.unwrap_or(LEGACY), work, wait)
    }
}
