//! Kernels on a device: the module of a bake that the device runs, a function with what the bake says of it, and its
//! launches.

use std::marker::PhantomData;
use std::sync::Arc;

use crate::baked::{BakedKernel, BakedKernels, BakedModule};
use crate::driver::{Device, Function, LaunchConfig, Module, Stream};
use crate::launch::{self, Arguments, Entry, Launch};
use crate::shape::Grid;
use crate::{Error, Result};

/// The first driver that records programmatic launches in graphs.
const PROGRAMMATIC_SINCE: (i32, i32) = (12, 3);

/// A function with what its bake says of its launch.
#[derive(Debug)]
pub(crate) struct Loaded {
    function: Function,
    baked: &'static BakedKernel,
    /// Bytes of dynamic shared memory that launches give.
    shared: u32,
    resident: u32,
    /// Whether launches are programmatic.
    begins_early: bool,
}

impl Loaded {
    /// Finds the kernel in a loaded module. Also opts in to the shared memory, which launches then need not do.
    pub(crate) fn find(module: &Module, baked: &'static BakedKernel) -> Result<Loaded> {
        Loaded::with_more(module, baked, 0)
    }

    /// As [`Loaded::find`], for launches that give so many bytes of shared memory more than the kernel takes.
    pub(crate) fn with_more(module: &Module, baked: &'static BakedKernel, more: u32) -> Result<Loaded> {
        let function = module.function(baked.name)?;
        let shared = baked.dynamic_shared.saturating_add(more);
        let resident = function.resident_blocks(baked.block, shared)?;
        let begins_early = baked.begins_early && module.device().driver().version()? >= PROGRAMMATIC_SINCE;
        Ok(Loaded { function, baked, shared, resident, begins_early })
    }

    /// The entry's name.
    pub(crate) fn name(&self) -> &'static str {
        self.baked.name
    }
}

/// A module of a bake on a device.
#[derive(Debug)]
pub struct LoadedModule {
    module: Module,
    baked: &'static BakedModule,
}

impl LoadedModule {
    /// Brings a module of a bake onto a device.
    ///
    /// # Errors
    /// As [`BakedModule::load`].
    pub fn new(device: &Device, baked: &'static BakedModule) -> Result<LoadedModule> {
        Ok(LoadedModule { module: baked.load(device)?, baked })
    }

    /// The kernel that a launch of a bake names.
    ///
    /// # Errors
    /// [`Error::KernelNotBaked`] if the module has none of that name, [`Error::KernelParameter`] if it has other
    /// parameters.
    pub fn kernel<L: Entry>(&self) -> Result<Kernel<L>> {
        self.find(L::NAME, "a bake that has it: the launch was written by another")
    }

    /// The kernel of that name; `setting` is what bakes it.
    pub(crate) fn find<L: Launch>(&self, name: &str, setting: &str) -> Result<Kernel<L>> {
        self.find_with(name, setting, 0)
    }

    /// The same, for launches that give so many bytes of shared memory more than it takes.
    pub(crate) fn find_with<L: Launch>(&self, name: &str, setting: &str, more: u32) -> Result<Kernel<L>> {
        let baked = self.baked.kernel(name);
        let not_baked = || Error::KernelNotBaked { kernel: name.to_owned(), setting: setting.to_owned() };
        Kernel::of(Arc::new(Loaded::with_more(&self.module, baked.ok_or_else(not_baked)?, more)?))
    }
}

impl BakedKernels {
    /// Brings the kernels onto a device: the module that [`BakedKernels::module_for`] chooses.
    ///
    /// # Errors
    /// As [`BakedKernels::module_for`] and [`BakedModule::load`].
    pub fn load(&self, device: &Device) -> Result<LoadedModule> {
        LoadedModule::new(device, self.module_for(device)?)
    }
}

/// A kernel on a device, whose parameters are the fields of the launch `L`.
pub struct Kernel<L> {
    loaded: Arc<Loaded>,
    launch: PhantomData<fn(L)>,
}

impl<L: Launch> Kernel<L> {
    /// Holds the kernel's parameters to the launch's.
    ///
    /// # Errors
    /// [`Error::KernelParameter`](crate::Error::KernelParameter) where they differ.
    pub(crate) fn of(loaded: Arc<Loaded>) -> Result<Kernel<L>> {
        launch::check::<L>(loaded.baked.name, loaded.baked.params)?;
        Ok(Kernel { loaded, launch: PhantomData })
    }

    /// Threads of a block.
    pub fn block(&self) -> u32 {
        self.loaded.baked.block
    }

    /// Blocks that the device can hold at once.
    pub fn resident(&self) -> u32 {
        self.loaded.resident
    }

    /// Bytes of dynamic shared memory that a launch may give besides what launches have else.
    #[cfg(feature = "gguf")]
    pub(crate) fn dynamic_shared_left(&self) -> u32 {
        self.function().max_dynamic_shared().saturating_sub(self.loaded.shared)
    }

    /// The grid of the bake; `rows` is the length of the output, or the number of blocks, where the bake does not know it.
    pub fn grid(&self, rows: u32) -> [u32; 3] {
        let blocks = match self.loaded.baked.grid {
            Grid::Blocks(blocks) => blocks,
            Grid::UpTo(blocks) => blocks.min(self.resident()),
            Grid::PerRows(each) => rows.div_ceil(each.max(1)).min(self.resident()),
            Grid::Launch => rows,
        };
        [blocks.max(1), 1, 1]
    }

    /// Enqueues the kernel, with the uses of its buffers.
    ///
    /// # Errors
    /// What the driver says of the launch, and of waiting for what uses its buffers.
    ///
    /// # Safety
    /// The kernel reads and writes within its buffers for these numbers and this grid; buffers that it takes as
    /// [`In::noted`](launch::In::noted) or [`Out::noted`](launch::Out::noted) are live, and their uses noted, until it
    /// ends. As for [`Function::launch`], but for the number, order and types of the parameters.
    pub unsafe fn enqueue(&self, stream: &Stream, grid: [u32; 3], launch: &L::At<'_>) -> Result<()> {
        let arguments = Arguments::of(launch);
        stream.enqueue_noted(arguments.uses(), |stream| {
            // SAFETY: the caller's contract; the uses are noted.
            unsafe { self.function().launch(stream, &self.config(grid, 0), arguments.params()) }
        })
    }

    /// Launches the kernel, within work that notes what it uses.
    ///
    /// # Safety
    /// As [`Function::launch`], but for the number, order and types of the parameters.
    pub(crate) unsafe fn launch(&self, stream: &Stream, grid: [u32; 3], launch: &L::At<'_>) -> Result<()> {
        // SAFETY: the caller's contract.
        unsafe { self.launch_with(stream, grid, 0, launch) }
    }

    /// The same with so many bytes of shared memory more than launches have else.
    ///
    /// # Safety
    /// As [`Kernel::launch`].
    pub(crate) unsafe fn launch_with(
        &self,
        stream: &Stream,
        grid: [u32; 3],
        more: u32,
        launch: &L::At<'_>,
    ) -> Result<()> {
        // SAFETY: the caller's contract.
        unsafe { self.function().launch(stream, &self.config(grid, more), Arguments::of(launch).params()) }
    }

    /// As [`Kernel::launch`], with all blocks resident together.
    ///
    /// # Safety
    /// As [`Kernel::launch`].
    #[cfg(feature = "gguf")]
    pub(crate) unsafe fn launch_cooperative(&self, stream: &Stream, blocks: u32, launch: &L::At<'_>) -> Result<()> {
        let config = self.config([blocks, 1, 1], 0).with_cooperative();
        // SAFETY: the caller's contract.
        unsafe { self.function().launch(stream, &config, Arguments::of(launch).params()) }
    }

    fn function(&self) -> &Function {
        &self.loaded.function
    }

    fn config(&self, grid: [u32; 3], more: u32) -> LaunchConfig {
        let shared = self.loaded.shared.saturating_add(more);
        let config = self.loaded.baked.config(grid).with_dynamic_shared(shared);
        if self.loaded.begins_early { config.with_programmatic() } else { config }
    }
}

impl<L> std::fmt::Debug for Kernel<L> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.loaded.fmt(f)
    }
}
