//! Devices: memory, streams, events, modules and launches behind one object-safe
//! trait, [`Gpu`].
//!
//! Two implementations run the same generated text. [`open_cuda`] gives an NVIDIA
//! device through its driver, which is loaded at run time. [`open_host`] compiles
//! the text with the system's C++ compiler and runs it in this process; it is for
//! tests and is never picked for a user's work.
//!
//! A device is always a value that is passed. There is no current device: every
//! entry makes its own context current first, so any thread may call.
//!
//! The owners ([`DeviceBuffer`], [`PinnedBuffer`], [`Stream`], [`Event`],
//! [`Kernel`]) are what other modules use; the trait's memory entries are raw and
//! therefore unsafe.
//!
//! This module knows nothing of columns, expressions or SQL.

mod buffer;
mod cuda;
mod driver;
mod host;
mod kept;
mod meter;
mod pinned;
mod pod;
mod probe;
mod stream;

use std::fmt;
use std::mem::MaybeUninit;
use std::sync::Arc;

pub use buffer::DeviceBuffer;
pub use cuda::open_cuda;
pub use host::{HostOptions, open_host};
pub use meter::{Meter, Reclaim};
pub use pinned::{PinnedBuffer, PinnedPool, PinnedStats};
pub use pod::Pod;
pub use probe::{DeviceReport, Finding, ReportedDevice, devices};
pub use stream::{Event, Kernel, Stream};

use crate::error::Result;
use crate::jit::{CompiledImage, Header, Source};

/// Every device allocation starts at a multiple of this.
pub const ALIGNMENT: usize = 256;

/// Every device allocation has at least this many readable bytes after its end, so
/// that a vector load that begins inside it may run past the end.
pub const PADDING: usize = 64;

/// Size of the page-locked memory that belongs to each stream: see [`Gpu::stream_page`].
pub const STREAM_PAGE_BYTES: usize = 4096;

/// The most bytes a kernel's parameter struct may have.
pub const MAX_PARAMETER_BYTES: usize = 4096;

/// Which compiler and machine run the kernels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Target {
    /// An NVIDIA GPU.
    Cuda,
    /// This process, for tests: one lane, one thread a block.
    Host,
}

/// What is known of a device from the start.
#[derive(Debug, Clone)]
pub struct DeviceInfo {
    /// Which kind of device.
    pub target: Target,
    /// A number that no other device opened by this process has.
    pub instance: u64,
    /// The driver's number of the device.
    pub ordinal: usize,
    /// Its name.
    pub name: String,
    /// What code is compiled for, as `sm_90`; `host` for the host target.
    pub arch: String,
    /// Memory in all.
    pub memory_bytes: usize,
    /// Multiprocessors; 1 for the host target.
    pub multiprocessors: u32,
    /// Lanes of a warp: 32, or 1 for the host target.
    pub warp_lanes: u32,
    /// The most threads a block may have.
    pub max_block_threads: u32,
    /// The most shared memory a block may have, static and dynamic together.
    pub max_shared_bytes_per_block: usize,
    /// Second-level cache.
    pub l2_bytes: usize,
    /// Memory bandwidth by clock and bus width, where the driver tells them.
    pub bandwidth_bytes_per_s: Option<f64>,
    /// The driver's CUDA version, as 13.0 is (13, 0).
    pub driver_version: Option<(u32, u32)>,
    /// The device's identity, as `GPU-xxxxxxxx-xxxx-...`.
    pub uuid: Option<String>,
    /// Where it sits, as `0000:3b:00.0`.
    pub pci_bus_id: Option<String>,
}

/// An address in device memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[repr(transparent)]
pub struct DevicePtr(pub u64);

impl DevicePtr {
    /// Address 0, which no allocation has.
    pub const NULL: DevicePtr = DevicePtr(0);

    /// The address `bytes` further on.
    pub fn offset(self, bytes: usize) -> DevicePtr {
        DevicePtr(self.0 + bytes as u64)
    }
}

/// A device's handle of a stream. Owned by [`Stream`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct StreamId(pub(crate) u64);

/// A device's handle of an event. Owned by [`Event`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct EventId(pub(crate) u64);

/// A device's handle of a kernel. Owned by [`Kernel`], which keeps its module.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KernelHandle {
    pub(crate) raw: u64,
    /// What the kernel needs.
    pub resources: KernelResources,
}

/// What a kernel needs, as its loaded code says. The host target tells no registers
/// and no memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct KernelResources {
    /// Registers a thread.
    pub registers: u32,
    /// Local memory a thread, in bytes: spills and indexed arrays.
    pub local_bytes: u32,
    /// Static shared memory a block, in bytes.
    pub static_shared_bytes: u32,
    /// The most dynamic shared memory a block may have, in bytes.
    pub max_dynamic_shared_bytes: u32,
    /// The most threads a block may have.
    pub max_block_threads: u32,
    /// Size of the parameter struct.
    pub parameter_bytes: u32,
}

/// How many blocks run, of how many threads, with how much dynamic shared memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LaunchShape {
    /// Blocks; a launch of none does nothing.
    pub grid: u32,
    /// Threads a block. The host target always runs one and ignores this.
    pub block: u32,
    /// Dynamic shared memory a block, in bytes.
    pub shared_bytes: u32,
}

impl LaunchShape {
    /// A shape without dynamic shared memory.
    pub fn new(grid: u32, block: u32) -> LaunchShape {
        LaunchShape {
            grid,
            block,
            shared_bytes: 0,
        }
    }
}

/// Code that was loaded into a device. It stays loaded while this lives.
pub trait Module: Send + Sync + fmt::Debug {
    /// Looks a kernel up by its C name.
    fn kernel(&self, name: &str) -> Result<KernelHandle>;
}

/// A device.
///
/// Work on one stream happens in order; work on different streams does not, unless
/// an event orders it. On the host target every call is done when it returns.
///
/// Memory entries take raw addresses. For all of them: the ranges must lie within
/// live allocations of this device (or, for host pointers, within live host
/// memory), and host memory must stay alive and, except for reads of both sides,
/// untouched until the stream has passed the call.
pub trait Gpu: Send + Sync + fmt::Debug {
    /// What is known of the device from the start.
    fn info(&self) -> &DeviceInfo;

    /// Whether the device can still be used. Once an error has broken its context,
    /// every later call fails too.
    fn is_healthy(&self) -> bool;

    /// The account of its memory, which every [`DeviceBuffer`] is counted in.
    fn meter(&self) -> &Meter;

    /// Device memory that is free now, counting what the pool keeps for reuse.
    fn free_bytes(&self) -> Result<usize>;

    /// Allocates device memory, at a multiple of [`ALIGNMENT`] and with
    /// [`PADDING`]. Its content is undefined. It may be used on any stream at once.
    fn allocate(&self, bytes: usize) -> Result<DevicePtr>;

    /// Gives memory back. It is not handed out again before all work that was
    /// enqueued on any stream of this device until now has passed.
    ///
    /// # Safety
    /// `ptr` and `bytes` are an allocation's; nothing enqueued later may use it.
    unsafe fn free(&self, ptr: DevicePtr, bytes: usize);

    /// Gives memory that the pool keeps for reuse back to the system.
    fn trim(&self) -> Result<()>;

    /// Allocates page-locked host memory, aligned to 4 KiB.
    fn allocate_pinned(&self, bytes: usize) -> Result<*mut u8>;

    /// Frees page-locked host memory.
    ///
    /// # Safety
    /// `ptr` and `bytes` are an allocation's of [`Gpu::allocate_pinned`] that no
    /// enqueued work uses any more.
    unsafe fn free_pinned(&self, ptr: *mut u8, bytes: usize);

    /// Makes a stream.
    fn create_stream(&self) -> Result<StreamId>;

    /// Waits for a stream's work and ends it.
    ///
    /// # Safety
    /// `stream` is a live stream of this device and is not used again.
    unsafe fn destroy_stream(&self, stream: StreamId);

    /// [`STREAM_PAGE_BYTES`] of page-locked host memory that belong to the stream while it
    /// lives.
    fn stream_page(&self, stream: StreamId) -> Result<*mut u8>;

    /// Waits for all work enqueued on the stream. Reports faults of that work.
    fn synchronize(&self, stream: StreamId) -> Result<()>;

    /// Whether all work enqueued on the stream is done. Reports faults of that work.
    fn is_idle(&self, stream: StreamId) -> Result<bool>;

    /// Fills device memory with a byte.
    ///
    /// # Safety
    /// As the trait says of memory entries.
    unsafe fn memset(
        &self,
        stream: StreamId,
        dst: DevicePtr,
        value: u8,
        bytes: usize,
    ) -> Result<()>;

    /// Copies from host memory to the device.
    ///
    /// # Safety
    /// As the trait says of memory entries.
    unsafe fn copy_to_device(
        &self,
        stream: StreamId,
        dst: DevicePtr,
        src: *const u8,
        bytes: usize,
    ) -> Result<()>;

    /// Copies from the device to host memory.
    ///
    /// # Safety
    /// As the trait says of memory entries.
    unsafe fn copy_to_host(
        &self,
        stream: StreamId,
        dst: *mut u8,
        src: DevicePtr,
        bytes: usize,
    ) -> Result<()>;

    /// Copies within the device; the ranges do not overlap.
    ///
    /// # Safety
    /// As the trait says of memory entries.
    unsafe fn copy_on_device(
        &self,
        stream: StreamId,
        dst: DevicePtr,
        src: DevicePtr,
        bytes: usize,
    ) -> Result<()>;

    /// Makes an event. Only a timing event can be asked for elapsed time.
    fn create_event(&self, timing: bool) -> Result<EventId>;

    /// Ends an event.
    ///
    /// # Safety
    /// `event` is a live event of this device and is not used again.
    unsafe fn destroy_event(&self, event: EventId);

    /// Marks the stream's present end with the event.
    fn record(&self, event: EventId, stream: StreamId) -> Result<()>;

    /// Waits for the event. One that was never recorded has passed.
    fn wait_for(&self, event: EventId) -> Result<()>;

    /// Whether the event has passed.
    fn has_passed(&self, event: EventId) -> Result<bool>;

    /// Makes later work on `stream` wait for the event.
    fn stream_waits(&self, stream: StreamId, event: EventId) -> Result<()>;

    /// Milliseconds between two timing events that have passed.
    fn elapsed_ms(&self, from: EventId, to: EventId) -> Result<f32>;

    /// What the compiler of this device is: it goes into cache keys.
    fn compiler(&self) -> Result<String>;

    /// Compiles a kernel's text for this device. Callers go through [`crate::jit::Jit`].
    fn compile(&self, source: &Source, headers: &[Header]) -> Result<CompiledImage>;

    /// Loads compiled code into the device.
    fn load(&self, image: &CompiledImage) -> Result<Arc<dyn Module>>;

    /// How many blocks of this shape run at once on one multiprocessor.
    fn blocks_per_multiprocessor(
        &self,
        kernel: &Kernel,
        block: u32,
        shared_bytes: u32,
    ) -> Result<u32>;

    /// Enqueues a kernel with one by-value parameter struct, given as its bytes
    /// (padding bytes need no value). [`Stream::launch`] checks the shape first.
    ///
    /// # Safety
    /// The shape is within the kernel's limits. The bytes are the struct that the kernel takes, and every address in it is
    /// good for what the kernel does with it until the stream has passed the launch.
    unsafe fn launch(
        &self,
        stream: StreamId,
        kernel: &Kernel,
        shape: LaunchShape,
        params: &[MaybeUninit<u8>],
    ) -> Result<()>;
}

/// A number that no other device opened by this process has.
pub(crate) fn next_instance() -> u64 {
    use std::sync::atomic::{AtomicU64, Ordering};
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}
