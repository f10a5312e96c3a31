//! An NVIDIA GPU through its driver.
//!
//! Only raw driver calls, each checked, so that nothing hidden happens: no implicit
//! stream, no implicit synchronisation, no current context that an entry relies on.
//!
//! **Memory.** Allocations come from the device's stream-ordered pool, on a stream
//! of its own that never has other work, so that an allocation is ready at once for
//! every stream. Freed blocks are kept for the next allocation of about their size, once
//! all work has passed that was enqueued on any stream at the time:
//!
//! ```text
//! free(p) -- no stream busy ------------------------> kept
//!        \-- some busy: fence = an event on each ---> pending --(fence passed)--> kept
//! allocate: keep what has passed; take what is kept, or from the pool; if it is empty,
//!           wait for the pending ones and try again; then give all that is kept back to
//!           the pool, and what the pool keeps to the system, and try again
//! ```
//!
//! Streams and events are kept for reuse too: each call to make or end one costs
//! microseconds.

use std::collections::HashMap;
use std::ffi::{CString, c_int, c_void};
use std::fmt;
use std::mem::MaybeUninit;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, RwLock};

use cudarc::driver::sys::{
    self, CUdevice_attribute as Attribute, CUfunction_attribute as FunctionAttribute, CUresult,
};

use super::driver::{self, check};
use super::kept::KeptBlocks;
use super::{
    ALIGNMENT, DeviceInfo, DevicePtr, EventId, Gpu, Kernel, KernelHandle, KernelResources,
    LaunchShape, Meter, Module, PADDING, STREAM_PAGE_BYTES, StreamId, Target,
};
use crate::error::{Error, OutOfMemory, Result};
use crate::jit::{CompiledImage, Header, Nvrtc, Source};

/// Set in the number of an event that tells time.
const TIMING_BIT: u64 = 1;

/// Opens an NVIDIA GPU by the driver's number. Takes some hundred milliseconds the
/// first time in a process: the driver makes its context.
pub fn open_cuda(ordinal: usize) -> Result<Arc<dyn Gpu>> {
    driver::load()?;
    let n_devices = driver::device_count()?;
    if ordinal >= n_devices {
        return Err(Error::NoSuchDevice { ordinal, n_devices });
    }
    let device = driver::device(ordinal)?;
    let info = describe(ordinal, device)?;
    let device = Arc::new(Device::open(device, info.memory_bytes)?);
    Ok(Arc::new(Cuda { info, device }))
}

/// What the driver tells of a device without a context.
pub(super) fn describe(ordinal: usize, device: sys::CUdevice) -> Result<DeviceInfo> {
    use Attribute::*;
    let ask = |attribute| driver::attribute(device, attribute);
    let arch = format!(
        "sm_{}{}",
        ask(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
        ask(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?
    );
    let clock_khz = ask(CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE).unwrap_or(0);
    let bus_bits = ask(CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH).unwrap_or(0);
    // Two transfers a clock.
    let bandwidth = f64::from(clock_khz) * 1e3 * 2.0 * f64::from(bus_bits) / 8.0;
    Ok(DeviceInfo {
        target: Target::Cuda,
        instance: super::next_instance(),
        ordinal,
        name: driver::device_name(device)?,
        arch,
        memory_bytes: driver::total_memory(device)?,
        multiprocessors: ask(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
        warp_lanes: ask(CU_DEVICE_ATTRIBUTE_WARP_SIZE)?,
        max_block_threads: ask(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK)?,
        max_shared_bytes_per_block: ask(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?
            as usize,
        l2_bytes: ask(CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)? as usize,
        bandwidth_bytes_per_s: (bandwidth > 0.0).then_some(bandwidth),
        driver_version: driver::version().ok(),
        uuid: driver::uuid(device).ok(),
        pci_bus_id: driver::pci_bus_id(device).ok(),
    })
}

struct Cuda {
    info: DeviceInfo,
    device: Arc<Device>,
}

impl fmt::Debug for Cuda {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Cuda({}, {}, {})",
            self.info.ordinal, self.info.name, self.info.arch
        )
    }
}

/// The device's context and memory. Modules keep it alive.
struct Device {
    device: sys::CUdevice,
    context: sys::CUcontext,
    /// None where the device has no stream-ordered pool; then memory is allocated
    /// and freed plainly.
    pool: Option<sys::CUmemoryPool>,
    /// Orders the pool's allocations and frees; has no other work.
    memory_stream: sys::CUstream,
    memory_bytes: usize,
    meter: Meter,
    streams: RwLock<HashMap<u64, Arc<StreamState>>>,
    /// Calls that enqueued work, over all streams.
    n_enqueued: AtomicU64,
    frees: Mutex<Frees>,
    spare_streams: Mutex<Vec<SpareStream>>,
    spare_timers: Mutex<Vec<sys::CUevent>>,
    /// Set by the first error that breaks the context.
    broken: AtomicBool,
}

// SAFETY: the driver's handles may be used from any thread; the rest is
// synchronised.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

/// How much work a stream was given, and how much of that is known to be done.
struct StreamState {
    n_enqueued: AtomicU64,
    n_done: AtomicU64,
    page: *mut u8,
}

// SAFETY: the page's address is only handed on; who uses it orders the accesses.
unsafe impl Send for StreamState {}
// SAFETY: as above.
unsafe impl Sync for StreamState {}

/// A stream without work, and its page of page-locked memory.
struct SpareStream {
    stream: sys::CUstream,
    page: *mut u8,
}

// SAFETY: handles of the driver, which takes them from any thread.
unsafe impl Send for SpareStream {}

impl StreamState {
    fn is_busy(&self) -> bool {
        self.n_enqueued.load(Ordering::SeqCst) > self.n_done.load(Ordering::SeqCst)
    }
}

/// Memory that waits to go back to the pool.
#[derive(Default)]
struct Frees {
    kept: KeptBlocks,
    pending: Vec<(sys::CUdeviceptr, Arc<Fence>)>,
    /// The newest fence, and `n_enqueued` when it was made: while nothing more is
    /// enqueued, it serves every free.
    newest: Option<(u64, Arc<Fence>)>,
    spare_events: Vec<sys::CUevent>,
}

/// The ends of all busy streams at one moment.
struct Fence {
    events: Vec<sys::CUevent>,
}

// SAFETY: an event is a handle of the driver, which takes it from any thread whose
// current context is the event's; every entry makes it current first.
unsafe impl Send for Fence {}
// SAFETY: as above; the list itself is not changed after it was made.
unsafe impl Sync for Fence {}

impl Device {
    fn open(device: sys::CUdevice, memory_bytes: usize) -> Result<Device> {
        let mut context = null_mut();
        // SAFETY: the pointer is valid for writes.
        check("cuDevicePrimaryCtxRetain", unsafe {
            sys::cuDevicePrimaryCtxRetain(&mut context, device)
        })?;
        // From here on, dropping `opened` releases the context.
        let mut opened = Device {
            device,
            context,
            pool: None,
            memory_stream: null_mut(),
            memory_bytes,
            meter: Meter::new(memory_bytes),
            streams: RwLock::default(),
            n_enqueued: AtomicU64::new(0),
            frees: Mutex::default(),
            spare_streams: Mutex::default(),
            spare_timers: Mutex::default(),
            broken: AtomicBool::new(false),
        };
        opened.enter()?;
        let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: the context is current; the pointer is valid for writes.
        check("cuStreamCreate", unsafe {
            sys::cuStreamCreate(&mut opened.memory_stream, flags)
        })?;
        if driver::attribute(
            device,
            Attribute::CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED,
        )? != 0
        {
            let mut pool = null_mut();
            // SAFETY: the pointer is valid for writes.
            check("cuDeviceGetDefaultMemPool", unsafe {
                sys::cuDeviceGetDefaultMemPool(&mut pool, device)
            })?;
            // Keep what is freed, instead of giving it back at each synchronisation.
            let mut threshold = u64::MAX;
            let attribute = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
            // SAFETY: this attribute is a 64-bit number.
            check("cuMemPoolSetAttribute", unsafe {
                sys::cuMemPoolSetAttribute(pool, attribute, (&raw mut threshold).cast())
            })?;
            opened.pool = Some(pool);
        }
        Ok(opened)
    }

    /// Makes the context current on this thread; every entry calls it first.
    fn enter(&self) -> Result<()> {
        // SAFETY: the context is retained while `self` lives.
        check("cuCtxSetCurrent", unsafe {
            sys::cuCtxSetCurrent(self.context)
        })
    }

    /// Checks a call made after `enter`, and notes a broken context.
    fn check(&self, call: &'static str, result: CUresult) -> Result<()> {
        let checked = check(call, result);
        if let Err(error) = &checked
            && error.is_fatal_for_device()
            && !self.broken.swap(true, Ordering::Relaxed)
        {
            tracing::error!(%error, "the GPU's context is broken; this process can't use the GPU any more");
        }
        checked
    }

    fn stream(&self, stream: StreamId) -> Result<Arc<StreamState>> {
        let streams = self.streams.read().unwrap_or_else(|e| e.into_inner());
        let state = streams.get(&stream.0).cloned();
        state.ok_or_else(|| Error::Internal("a stream that this device does not have".into()))
    }

    /// Makes a call that enqueues work, and counts it.
    fn enqueue(
        &self,
        stream: StreamId,
        call: &'static str,
        enqueue: impl FnOnce(sys::CUstream) -> CUresult,
    ) -> Result<()> {
        self.enter()?;
        let state = self.stream(stream)?;
        let result = enqueue(raw_stream(stream));
        // Counted after the call: a synchronisation that saw this count also saw
        // the work. Counted also if the call failed: it may have enqueued a part.
        state.n_enqueued.fetch_add(1, Ordering::SeqCst);
        self.n_enqueued.fetch_add(1, Ordering::SeqCst);
        self.check(call, result)
    }

    fn lock_frees(&self) -> MutexGuard<'_, Frees> {
        self.frees.lock().unwrap_or_else(|e| e.into_inner())
    }

    fn allocate(&self, bytes: usize) -> Result<DevicePtr> {
        let refused = |free: usize| OutOfMemory {
            what: "device memory",
            requested: bytes,
            free,
            limit: self.memory_bytes,
        };
        let padded = bytes.checked_add(PADDING);
        let Some(padded) = padded.filter(|padded| *padded <= self.memory_bytes) else {
            return Err(refused(self.free_bytes()?).into());
        };
        let padded = KeptBlocks::rounded(padded);
        self.enter()?;
        self.return_passed(&mut self.lock_frees());
        // Three tries: as it is; after all pending frees; after everything kept was
        // given back, which helps where memory is in pieces.
        for attempt in 0..3 {
            if let Some(ptr) = self.lock_frees().kept.take(padded) {
                return Ok(DevicePtr(ptr));
            }
            // What is kept counts too: others use the device.
            if self
                .lock_frees()
                .kept
                .would_pass(padded, self.meter.limit())
            {
                self.trim()?;
            }
            match self.take(padded) {
                Ok(ptr) => {
                    debug_assert_eq!(ptr.0 as usize % ALIGNMENT, 0);
                    self.lock_frees().kept.made(ptr.0, padded);
                    return Ok(ptr);
                }
                Err(Error::Driver(e)) if e.code == CUresult::CUDA_ERROR_OUT_OF_MEMORY as u32 => {}
                Err(error) => return Err(error),
            }
            match attempt {
                0 => self.return_all()?,
                1 => self.trim()?,
                _ => {}
            }
        }
        Err(refused(self.free_bytes()?).into())
    }

    fn take(&self, bytes: usize) -> Result<DevicePtr> {
        let mut ptr = 0;
        let Some(pool) = self.pool else {
            // SAFETY: the context is current; the pointer is valid for writes.
            self.check("cuMemAlloc", unsafe { sys::cuMemAlloc_v2(&mut ptr, bytes) })?;
            return Ok(DevicePtr(ptr));
        };
        // SAFETY: as above; pool and stream live as long as `self`.
        self.check("cuMemAllocFromPoolAsync", unsafe {
            sys::cuMemAllocFromPoolAsync(&mut ptr, bytes, pool, self.memory_stream)
        })?;
        // The stream has no work but this, so the wait is short; afterwards the
        // memory may be used on any stream.
        self.synchronize_memory_stream()?;
        Ok(DevicePtr(ptr))
    }

    fn synchronize_memory_stream(&self) -> Result<()> {
        // SAFETY: the stream lives as long as `self`.
        self.check("cuStreamSynchronize", unsafe {
            sys::cuStreamSynchronize(self.memory_stream)
        })
    }

    fn free(&self, ptr: DevicePtr) {
        if let Err(error) = self.enter() {
            tracing::debug!(%error, "device memory was not freed");
            return;
        }
        let mut frees = self.lock_frees();
        self.return_passed(&mut frees);
        match self.fence(&mut frees) {
            None => self.put(&mut frees, ptr.0),
            Some(fence) => frees.pending.push((ptr.0, fence)),
        }
    }

    /// A fence over what is enqueued now, or none if nothing is.
    fn fence(&self, frees: &mut Frees) -> Option<Arc<Fence>> {
        // Read before the streams are looked at: work counted later makes the next
        // free take a new fence.
        let n_enqueued = self.n_enqueued.load(Ordering::SeqCst);
        if let Some((at, fence)) = &frees.newest
            && *at == n_enqueued
        {
            return Some(fence.clone());
        }
        let streams = self.streams.read().unwrap_or_else(|e| e.into_inner());
        let mut events = Vec::new();
        for (raw, _) in streams.iter().filter(|(_, state)| state.is_busy()) {
            let stream = raw_stream(StreamId(*raw));
            match self.spare_event(frees) {
                // SAFETY: event and stream are live and of this context.
                Ok(event) => match self.check("cuEventRecord", unsafe {
                    sys::cuEventRecord(event, stream)
                }) {
                    Ok(()) => events.push(event),
                    Err(_) => frees.spare_events.push(event),
                },
                Err(_) => {
                    // Without an event, wait here.
                    // SAFETY: the stream is live.
                    let waited = self.check("cuStreamSynchronize", unsafe {
                        sys::cuStreamSynchronize(stream)
                    });
                    if let Err(error) = waited {
                        tracing::debug!(%error, "a stream failed while memory was freed");
                    }
                }
            }
        }
        if events.is_empty() {
            return None;
        }
        let fence = Arc::new(Fence { events });
        if let Some((_, old)) = frees.newest.replace((n_enqueued, fence.clone())) {
            frees.recycle(old);
        }
        Some(fence)
    }

    fn spare_event(&self, frees: &mut Frees) -> Result<sys::CUevent> {
        match frees.spare_events.pop() {
            Some(event) => Ok(event),
            None => self.create_event(false),
        }
    }

    fn create_event(&self, timing: bool) -> Result<sys::CUevent> {
        let flags = match timing {
            true => sys::CUevent_flags::CU_EVENT_DEFAULT,
            false => sys::CUevent_flags::CU_EVENT_DISABLE_TIMING,
        };
        let mut event = null_mut();
        // SAFETY: the context is current; the pointer is valid for writes.
        self.check("cuEventCreate", unsafe {
            sys::cuEventCreate(&mut event, flags as u32)
        })?;
        Ok(event)
    }

    /// Keeps memory whose fence has passed.
    fn return_passed(&self, frees: &mut Frees) {
        let mut i = 0;
        while i < frees.pending.len() {
            // Fences are in order of time, and a later one covers the earlier.
            if !self.has_passed(&frees.pending[i].1) {
                break;
            }
            i += 1;
        }
        let passed: Vec<_> = frees.pending.drain(..i).collect();
        for (ptr, fence) in passed {
            self.put(frees, ptr);
            frees.recycle(fence);
        }
        let newest_passed = frees
            .newest
            .as_ref()
            .is_some_and(|(_, fence)| self.has_passed(fence));
        if newest_passed && let Some((_, fence)) = frees.newest.take() {
            frees.recycle(fence);
        }
    }

    /// Waits for all pending memory and keeps it.
    fn return_all(&self) -> Result<()> {
        let pending = std::mem::take(&mut self.lock_frees().pending);
        for (ptr, fence) in pending {
            for event in &fence.events {
                // SAFETY: the event is live while its fence is shared.
                let waited = self.check("cuEventSynchronize", unsafe {
                    sys::cuEventSynchronize(*event)
                });
                if let Err(error) = waited {
                    tracing::debug!(%error, "a stream failed while memory was freed");
                }
            }
            let mut frees = self.lock_frees();
            self.put(&mut frees, ptr);
            frees.recycle(fence);
        }
        Ok(())
    }

    /// Whether all of a fence has passed. A failed event counts: its context is
    /// broken, and no work will touch the memory.
    fn has_passed(&self, fence: &Fence) -> bool {
        fence.events.iter().all(|event| {
            // SAFETY: the event is live while its fence is shared.
            unsafe { sys::cuEventQuery(*event) != CUresult::CUDA_ERROR_NOT_READY }
        })
    }

    /// Keeps memory that no work uses.
    fn put(&self, frees: &mut Frees, ptr: sys::CUdeviceptr) {
        if !frees.kept.keep(ptr) {
            self.give_back(ptr);
        }
    }

    /// Gives memory that no work uses back to the pool.
    fn give_back(&self, ptr: sys::CUdeviceptr) {
        let freed = match self.pool {
            // SAFETY: the allocation is live and nothing uses it any more.
            Some(_) => self.check("cuMemFreeAsync", unsafe {
                sys::cuMemFreeAsync(ptr, self.memory_stream)
            }),
            // SAFETY: as above.
            None => self.check("cuMemFree", unsafe { sys::cuMemFree_v2(ptr) }),
        };
        if let Err(error) = freed {
            tracing::debug!(%error, "device memory was not freed");
        }
    }

    fn trim(&self) -> Result<()> {
        self.enter()?;
        let kept = {
            let mut frees = self.lock_frees();
            self.return_passed(&mut frees);
            frees.kept.drain()
        };
        for ptr in kept {
            self.give_back(ptr);
        }
        self.synchronize_memory_stream()?;
        match self.pool {
            // SAFETY: the pool lives as long as the device.
            Some(pool) => self.check("cuMemPoolTrimTo", unsafe { sys::cuMemPoolTrimTo(pool, 0) }),
            None => Ok(()),
        }
    }

    fn free_bytes(&self) -> Result<usize> {
        self.enter()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: both pointers are valid for writes.
        self.check("cuMemGetInfo", unsafe {
            sys::cuMemGetInfo_v2(&mut free, &mut total)
        })?;
        let free = free + self.lock_frees().kept.bytes();
        let Some(pool) = self.pool else {
            return Ok(free);
        };
        let ask = |attribute| -> Result<u64> {
            let mut value = 0_u64;
            // SAFETY: these attributes are 64-bit numbers.
            self.check("cuMemPoolGetAttribute", unsafe {
                sys::cuMemPoolGetAttribute(pool, attribute, (&raw mut value).cast())
            })?;
            Ok(value)
        };
        let reserved = ask(sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT)?;
        let used = ask(sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_USED_MEM_CURRENT)?;
        Ok(free + reserved.saturating_sub(used) as usize)
    }
}

impl Frees {
    /// Keeps a fence's events for another, if nobody else has the fence.
    fn recycle(&mut self, fence: Arc<Fence>) {
        if let Some(fence) = Arc::into_inner(fence) {
            self.spare_events.extend(fence.events);
        }
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        if self.enter().is_ok() {
            if !self.memory_stream.is_null() {
                if let Err(error) = self.return_all().and_then(|()| self.trim()) {
                    tracing::debug!(%error, "device memory was not freed");
                }
                // SAFETY: the stream is live and dies here.
                unsafe { sys::cuStreamDestroy_v2(self.memory_stream) };
            }
            let mut frees = std::mem::take(&mut *self.lock_frees());
            if let Some((_, fence)) = frees.newest.take() {
                frees.recycle(fence);
            }
            let timers = std::mem::take(&mut *lock(&self.spare_timers));
            for event in frees.spare_events.into_iter().chain(timers) {
                // SAFETY: the event is live and dies here.
                unsafe { sys::cuEventDestroy_v2(event) };
            }
            for spare in std::mem::take(&mut *lock(&self.spare_streams)) {
                // SAFETY: the stream is live, has no work, and dies here with its page.
                unsafe {
                    sys::cuStreamDestroy_v2(spare.stream);
                    sys::cuMemFreeHost(spare.page.cast());
                }
            }
        }
        // SAFETY: retained by `open`; nothing of this device is used afterwards.
        unsafe { sys::cuDevicePrimaryCtxRelease_v2(self.device) };
    }
}

fn raw_stream(stream: StreamId) -> sys::CUstream {
    std::ptr::with_exposed_provenance_mut(stream.0 as usize)
}

fn raw_event(event: EventId) -> sys::CUevent {
    std::ptr::with_exposed_provenance_mut((event.0 & !TIMING_BIT) as usize)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}

fn raw_function(kernel: &Kernel) -> sys::CUfunction {
    std::ptr::with_exposed_provenance_mut(kernel.handle().raw as usize)
}

impl Gpu for Cuda {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn is_healthy(&self) -> bool {
        !self.device.broken.load(Ordering::Relaxed)
    }

    fn meter(&self) -> &Meter {
        &self.device.meter
    }

    fn free_bytes(&self) -> Result<usize> {
        self.device.free_bytes()
    }

    fn allocate(&self, bytes: usize) -> Result<DevicePtr> {
        self.device.allocate(bytes)
    }

    unsafe fn free(&self, ptr: DevicePtr, _bytes: usize) {
        self.device.free(ptr);
    }

    fn trim(&self) -> Result<()> {
        self.device.trim()
    }

    fn allocate_pinned(&self, bytes: usize) -> Result<*mut u8> {
        self.device.enter()?;
        let mut ptr = null_mut();
        // SAFETY: the context is current; the pointer is valid for writes. Fresh
        // pages from the system are zero, so the bytes are initialised.
        let result =
            unsafe { sys::cuMemHostAlloc(&mut ptr, bytes.max(1), sys::CU_MEMHOSTALLOC_PORTABLE) };
        if result == CUresult::CUDA_ERROR_OUT_OF_MEMORY {
            return Err(OutOfMemory {
                what: "pinned memory",
                requested: bytes,
                free: 0,
                limit: 0,
            }
            .into());
        }
        self.device.check("cuMemHostAlloc", result)?;
        Ok(ptr.cast())
    }

    unsafe fn free_pinned(&self, ptr: *mut u8, _bytes: usize) {
        let freed = self.device.enter().and_then(|()| {
            // SAFETY: passed on to the caller.
            self.device
                .check("cuMemFreeHost", unsafe { sys::cuMemFreeHost(ptr.cast()) })
        });
        if let Err(error) = freed {
            tracing::debug!(%error, "pinned memory was not freed");
        }
    }

    fn create_stream(&self) -> Result<StreamId> {
        self.device.enter()?;
        let spare = lock(&self.device.spare_streams).pop();
        let SpareStream { stream, page } = match spare {
            Some(spare) => spare,
            None => {
                let page = self.allocate_pinned(STREAM_PAGE_BYTES)?;
                let mut stream = null_mut();
                let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
                // SAFETY: the context is current; the pointer is valid for writes.
                self.device.check("cuStreamCreate", unsafe {
                    sys::cuStreamCreate(&mut stream, flags)
                })?;
                SpareStream { stream, page }
            }
        };
        let id = StreamId(stream.expose_provenance() as u64);
        let state = StreamState {
            n_enqueued: AtomicU64::new(0),
            n_done: AtomicU64::new(0),
            page,
        };
        let mut streams = self
            .device
            .streams
            .write()
            .unwrap_or_else(|e| e.into_inner());
        streams.insert(id.0, Arc::new(state));
        Ok(id)
    }

    unsafe fn destroy_stream(&self, stream: StreamId) {
        // Waited for first: once it is off the list, no free waits for its work.
        let ended = self.synchronize(stream);
        let mut streams = self
            .device
            .streams
            .write()
            .unwrap_or_else(|e| e.into_inner());
        let Some(state) = streams.remove(&stream.0) else {
            return;
        };
        let spare = SpareStream {
            stream: raw_stream(stream),
            page: state.page,
        };
        match ended {
            Ok(()) => lock(&self.device.spare_streams).push(spare),
            Err(error) => {
                tracing::debug!(%error, "a stream ended with a failure");
                // SAFETY: passed on to the caller. Destroyed under the lock, so that no
                // fence is being recorded on it. The page is left: a broken context's
                // work may still be under way.
                unsafe { sys::cuStreamDestroy_v2(spare.stream) };
            }
        }
    }

    fn stream_page(&self, stream: StreamId) -> Result<*mut u8> {
        Ok(self.device.stream(stream)?.page)
    }

    fn synchronize(&self, stream: StreamId) -> Result<()> {
        self.device.enter()?;
        let state = self.device.stream(stream)?;
        let n_enqueued = state.n_enqueued.load(Ordering::SeqCst);
        // SAFETY: the stream is live.
        self.device.check("cuStreamSynchronize", unsafe {
            sys::cuStreamSynchronize(raw_stream(stream))
        })?;
        state.n_done.fetch_max(n_enqueued, Ordering::SeqCst);
        Ok(())
    }

    fn is_idle(&self, stream: StreamId) -> Result<bool> {
        self.device.enter()?;
        let state = self.device.stream(stream)?;
        let n_enqueued = state.n_enqueued.load(Ordering::SeqCst);
        // SAFETY: the stream is live.
        let result = unsafe { sys::cuStreamQuery(raw_stream(stream)) };
        if result == CUresult::CUDA_ERROR_NOT_READY {
            return Ok(false);
        }
        self.device.check("cuStreamQuery", result)?;
        state.n_done.fetch_max(n_enqueued, Ordering::SeqCst);
        Ok(true)
    }

    unsafe fn memset(
        &self,
        stream: StreamId,
        dst: DevicePtr,
        value: u8,
        bytes: usize,
    ) -> Result<()> {
        // SAFETY: passed on to the caller; so for the three copies.
        self.device.enqueue(stream, "cuMemsetD8Async", |s| unsafe {
            sys::cuMemsetD8Async(dst.0, value, bytes, s)
        })
    }

    unsafe fn copy_to_device(
        &self,
        stream: StreamId,
        dst: DevicePtr,
        src: *const u8,
        bytes: usize,
    ) -> Result<()> {
        // SAFETY: passed on to the caller.
        self.device
            .enqueue(stream, "cuMemcpyHtoDAsync", |s| unsafe {
                sys::cuMemcpyHtoDAsync_v2(dst.0, src.cast(), bytes, s)
            })
    }

    unsafe fn copy_to_host(
        &self,
        stream: StreamId,
        dst: *mut u8,
        src: DevicePtr,
        bytes: usize,
    ) -> Result<()> {
        // SAFETY: passed on to the caller.
        self.device
            .enqueue(stream, "cuMemcpyDtoHAsync", |s| unsafe {
                sys::cuMemcpyDtoHAsync_v2(dst.cast(), src.0, bytes, s)
            })
    }

    unsafe fn copy_on_device(
        &self,
        stream: StreamId,
        dst: DevicePtr,
        src: DevicePtr,
        bytes: usize,
    ) -> Result<()> {
        // SAFETY: passed on to the caller.
        self.device
            .enqueue(stream, "cuMemcpyDtoDAsync", |s| unsafe {
                sys::cuMemcpyDtoDAsync_v2(dst.0, src.0, bytes, s)
            })
    }

    fn create_event(&self, timing: bool) -> Result<EventId> {
        self.device.enter()?;
        let spare = match timing {
            true => lock(&self.device.spare_timers).pop(),
            false => self.device.lock_frees().spare_events.pop(),
        };
        let event = match spare {
            Some(event) => event,
            None => self.device.create_event(timing)?,
        };
        let address = event.expose_provenance() as u64;
        debug_assert_eq!(address & TIMING_BIT, 0, "the driver aligns its objects");
        Ok(EventId(if timing {
            address | TIMING_BIT
        } else {
            address
        }))
    }

    unsafe fn destroy_event(&self, event: EventId) {
        // One that is still pending is recorded anew by its next owner; whoever waits for
        // it on the device waits for what was recorded when it was asked to.
        let raw = raw_event(event);
        match event.0 & TIMING_BIT {
            0 => self.device.lock_frees().spare_events.push(raw),
            _ => lock(&self.device.spare_timers).push(raw),
        }
    }

    fn record(&self, event: EventId, stream: StreamId) -> Result<()> {
        self.device.enter()?;
        // SAFETY: event and stream are live and of this device.
        self.device.check("cuEventRecord", unsafe {
            sys::cuEventRecord(raw_event(event), raw_stream(stream))
        })
    }

    fn wait_for(&self, event: EventId) -> Result<()> {
        self.device.enter()?;
        // SAFETY: the event is live.
        self.device.check("cuEventSynchronize", unsafe {
            sys::cuEventSynchronize(raw_event(event))
        })
    }

    fn has_passed(&self, event: EventId) -> Result<bool> {
        self.device.enter()?;
        // SAFETY: the event is live.
        match unsafe { sys::cuEventQuery(raw_event(event)) } {
            CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            result => self.device.check("cuEventQuery", result).map(|()| true),
        }
    }

    fn stream_waits(&self, stream: StreamId, event: EventId) -> Result<()> {
        self.device.enter()?;
        // SAFETY: event and stream are live and of this device; 0 is the only flag
        // that means no flag.
        self.device.check("cuStreamWaitEvent", unsafe {
            sys::cuStreamWaitEvent(raw_stream(stream), raw_event(event), 0)
        })
    }

    fn elapsed_ms(&self, from: EventId, to: EventId) -> Result<f32> {
        self.device.enter()?;
        let mut ms = 0.0;
        // SAFETY: both events are live; the pointer is valid for writes.
        self.device.check("cuEventElapsedTime", unsafe {
            sys::cuEventElapsedTime_v2(&mut ms, raw_event(from), raw_event(to))
        })?;
        Ok(ms)
    }

    fn compiler(&self) -> Result<String> {
        Ok(Nvrtc::get()?.identity())
    }

    fn compile(&self, source: &Source, headers: &[Header]) -> Result<CompiledImage> {
        Nvrtc::get()?.compile(source, headers, &self.info.arch)
    }

    fn load(&self, image: &CompiledImage) -> Result<Arc<dyn Module>> {
        self.device.enter()?;
        // The driver reads 64-bit fields of the image where they lie.
        let mut aligned = vec![0_u64; image.bytes.len().div_ceil(8)];
        // SAFETY: `aligned` has at least that many bytes, and they do not overlap.
        unsafe {
            aligned
                .as_mut_ptr()
                .cast::<u8>()
                .copy_from_nonoverlapping(image.bytes.as_ptr(), image.bytes.len());
        }
        let mut module = null_mut();
        // SAFETY: the image is a whole cubin, which tells its own size.
        self.device.check("cuModuleLoadData", unsafe {
            sys::cuModuleLoadData(&mut module, aligned.as_ptr().cast::<c_void>())
        })?;
        Ok(Arc::new(CudaModule {
            module,
            device: self.device.clone(),
            max_shared_bytes: self.info.max_shared_bytes_per_block,
        }))
    }

    fn blocks_per_multiprocessor(
        &self,
        kernel: &Kernel,
        block: u32,
        shared_bytes: u32,
    ) -> Result<u32> {
        self.device.enter()?;
        let mut n_blocks: c_int = 0;
        // SAFETY: the function is live while `kernel` is; the pointer is valid.
        let code = unsafe {
            sys::cuOccupancyMaxActiveBlocksPerMultiprocessor(
                &mut n_blocks,
                raw_function(kernel),
                block as c_int,
                shared_bytes as usize,
            )
        };
        self.device
            .check("cuOccupancyMaxActiveBlocksPerMultiprocessor", code)?;
        Ok(n_blocks as u32)
    }

    unsafe fn launch(
        &self,
        stream: StreamId,
        kernel: &Kernel,
        shape: LaunchShape,
        params: &[MaybeUninit<u8>],
    ) -> Result<()> {
        let mut arguments = [params.as_ptr().cast_mut().cast::<c_void>()];
        // SAFETY: the function is live while `kernel` is. It takes one parameter of
        // as many bytes as `params` has (checked before), which the call copies.
        // What the kernel does is the caller's promise.
        self.device.enqueue(stream, "cuLaunchKernel", |s| unsafe {
            sys::cuLaunchKernel(
                raw_function(kernel),
                shape.grid,
                1,
                1,
                shape.block,
                1,
                1,
                shape.shared_bytes,
                s,
                arguments.as_mut_ptr(),
                null_mut(),
            )
        })
    }
}

struct CudaModule {
    module: sys::CUmodule,
    device: Arc<Device>,
    max_shared_bytes: usize,
}

// SAFETY: the handle may be used from any thread.
unsafe impl Send for CudaModule {}
// SAFETY: as above.
unsafe impl Sync for CudaModule {}

impl Module for CudaModule {
    fn kernel(&self, name: &str) -> Result<KernelHandle> {
        self.device.enter()?;
        let no_such = || Error::NoSuchKernel {
            name: name.to_owned(),
        };
        let c_name = CString::new(name).map_err(|_| no_such())?;
        let mut function = null_mut();
        // SAFETY: the module is live; the name ends in 0 and lives through the call.
        let result =
            unsafe { sys::cuModuleGetFunction(&mut function, self.module, c_name.as_ptr()) };
        if result == CUresult::CUDA_ERROR_NOT_FOUND {
            return Err(no_such());
        }
        self.device.check("cuModuleGetFunction", result)?;
        let ask = |attribute| -> Result<u32> {
            let mut value: c_int = 0;
            // SAFETY: the function is live; the pointer is valid for writes.
            self.device.check("cuFuncGetAttribute", unsafe {
                sys::cuFuncGetAttribute(&mut value, attribute, function)
            })?;
            Ok(value as u32)
        };
        let static_shared_bytes = ask(FunctionAttribute::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES)?;
        let max_dynamic_shared_bytes =
            (self.max_shared_bytes as u32).saturating_sub(static_shared_bytes);
        // Allows more than 48 KiB. What a launch asks for is what it gets, so this
        // costs a launch that asks for less nothing.
        // SAFETY: the function is live.
        self.device.check("cuFuncSetAttribute", unsafe {
            sys::cuFuncSetAttribute(
                function,
                FunctionAttribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                max_dynamic_shared_bytes as c_int,
            )
        })?;
        Ok(KernelHandle {
            raw: function.expose_provenance() as u64,
            resources: KernelResources {
                registers: ask(FunctionAttribute::CU_FUNC_ATTRIBUTE_NUM_REGS)?,
                local_bytes: ask(FunctionAttribute::CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES)?,
                static_shared_bytes,
                max_dynamic_shared_bytes,
                max_block_threads: ask(FunctionAttribute::CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK)?,
                parameter_bytes: self.parameter_bytes(function)?,
            },
        })
    }
}

impl CudaModule {
    /// The size of the kernel's parameter. `WL_KERNEL` gives it exactly one.
    fn parameter_bytes(&self, function: sys::CUfunction) -> Result<u32> {
        let (mut offset, mut size) = (0, 0);
        // SAFETY: the function is live; both pointers are valid for writes.
        self.device.check("cuFuncGetParamInfo", unsafe {
            sys::cuFuncGetParamInfo(function, 0, &mut offset, &mut size)
        })?;
        Ok(size as u32)
    }
}

impl fmt::Debug for CudaModule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CudaModule({:p})", self.module)
    }
}

impl Drop for CudaModule {
    fn drop(&mut self) {
        let unloaded = self.device.enter().and_then(|()| {
            // SAFETY: the module is live and dies here; kernels keep it alive, and
            // the driver lets launches under way finish.
            self.device.check("cuModuleUnload", unsafe {
                sys::cuModuleUnload(self.module)
            })
        });
        if let Err(error) = unloaded {
            tracing::debug!(%error, "a module was not unloaded");
        }
    }
}
