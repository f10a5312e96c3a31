//! Owners of streams, events and kernels.

use std::fmt;
use std::mem::MaybeUninit;
use std::sync::{Arc, Mutex};

use super::{
    DevicePtr, EventId, Gpu, KernelHandle, KernelResources, LaunchShape, MAX_PARAMETER_BYTES,
    Module, STREAM_PAGE_BYTES, StreamId,
};
use crate::error::{Error, Result};

/// A queue of device work. Dropping it waits for that work.
///
/// It owns a little page-locked memory, through which small results come home: several
/// times as fast as through memory that the driver must stage.
pub struct Stream {
    gpu: Arc<dyn Gpu>,
    id: StreamId,
    page: Page,
    /// Held while the page is in use.
    page_in_use: Mutex<()>,
}

/// Where a stream's page starts.
struct Page(*mut u8);

// SAFETY: the page belongs to the stream, and is used under the stream's lock.
unsafe impl Send for Page {}
// SAFETY: as above.
unsafe impl Sync for Page {}

/// The most bytes that come home through a stream's page.
pub(super) const FETCH_BYTES_MAX: usize = STREAM_PAGE_BYTES;

impl Stream {
    /// Makes a stream of the device.
    pub fn new(gpu: &Arc<dyn Gpu>) -> Result<Stream> {
        let id = gpu.create_stream()?;
        match gpu.stream_page(id) {
            Ok(page) => Ok(Stream {
                gpu: gpu.clone(),
                id,
                page: Page(page),
                page_in_use: Mutex::new(()),
            }),
            Err(error) => {
                // SAFETY: the stream was made just now and is not used again.
                unsafe { gpu.destroy_stream(id) };
                Err(error)
            }
        }
    }

    /// Copies as many bytes home as `target` has, at most [`FETCH_BYTES_MAX`]. Waits for
    /// the stream.
    ///
    /// # Safety
    /// The source lies within a live allocation.
    pub(super) unsafe fn fetch(&self, src: DevicePtr, target: &mut [u8]) -> Result<()> {
        assert!(target.len() <= FETCH_BYTES_MAX, "{} bytes", target.len());
        let _page = self.page_in_use.lock().unwrap_or_else(|e| e.into_inner());
        // SAFETY: the page has so many bytes, and nobody else uses them before the lock is
        // released; the source is the caller's promise.
        unsafe {
            let place = self.page.0;
            let copied = self.gpu.copy_to_host(self.id, place, src, target.len());
            copied.and(self.synchronize())?;
            target
                .as_mut_ptr()
                .copy_from_nonoverlapping(place, target.len());
        }
        Ok(())
    }

    /// The device.
    pub fn gpu(&self) -> &Arc<dyn Gpu> {
        &self.gpu
    }

    /// The device's handle.
    pub fn id(&self) -> StreamId {
        self.id
    }

    /// Waits for all work enqueued so far, and reports its faults.
    pub fn synchronize(&self) -> Result<()> {
        self.gpu.synchronize(self.id)
    }

    /// Whether all work enqueued so far is done.
    pub fn is_idle(&self) -> Result<bool> {
        self.gpu.is_idle(self.id)
    }

    /// Makes later work on this stream wait for the event.
    pub fn wait_for(&self, event: &Event) -> Result<()> {
        self.gpu.stream_waits(self.id, event.id)
    }

    /// Makes later work on this stream wait for all that `other` has enqueued.
    pub fn wait_for_stream(&self, other: &Stream) -> Result<()> {
        if self.id == other.id {
            return Ok(());
        }
        self.wait_for(&Event::record(other)?)
    }

    /// Enqueues a kernel with its parameter struct.
    ///
    /// # Safety
    /// `P` is laid out as the struct that the kernel takes, and every address in it
    /// is good for what the kernel does with it until the stream has passed the
    /// launch.
    pub unsafe fn launch<P: Copy>(
        &self,
        kernel: &Kernel,
        shape: LaunchShape,
        params: &P,
    ) -> Result<()> {
        // SAFETY: P lives through the call, and MaybeUninit allows for its padding.
        let bytes =
            unsafe { std::slice::from_raw_parts((&raw const *params).cast(), size_of::<P>()) };
        // SAFETY: passed on to the caller.
        unsafe { self.launch_raw(kernel, shape, bytes) }
    }

    /// Enqueues a kernel with its parameter struct, given as bytes.
    ///
    /// # Safety
    /// As for [`Stream::launch`].
    pub unsafe fn launch_bytes(
        &self,
        kernel: &Kernel,
        shape: LaunchShape,
        params: &[u8],
    ) -> Result<()> {
        // SAFETY: initialised bytes are also possibly uninitialised bytes.
        let bytes = unsafe { std::slice::from_raw_parts(params.as_ptr().cast(), params.len()) };
        // SAFETY: passed on to the caller.
        unsafe { self.launch_raw(kernel, shape, bytes) }
    }

    unsafe fn launch_raw(
        &self,
        kernel: &Kernel,
        shape: LaunchShape,
        params: &[MaybeUninit<u8>],
    ) -> Result<()> {
        kernel.check(shape, params.len())?;
        if shape.grid == 0 {
            return Ok(());
        }
        // SAFETY: passed on to the caller.
        unsafe { self.gpu.launch(self.id, kernel, shape, params) }
    }

    /// Fills device memory with a byte.
    ///
    /// # Safety
    /// The range lies within a live allocation that outlives the call on the stream.
    pub unsafe fn memset(&self, dst: DevicePtr, value: u8, bytes: usize) -> Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: passed on to the caller.
        unsafe { self.gpu.memset(self.id, dst, value, bytes) }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: `id` was made by this device and dies here.
        unsafe { self.gpu.destroy_stream(self.id) }
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stream({:#x})", self.id.0)
    }
}

/// A mark in a stream.
pub struct Event {
    gpu: Arc<dyn Gpu>,
    id: EventId,
}

impl Event {
    /// An event that orders work but tells no time; not yet recorded.
    pub fn new(gpu: &Arc<dyn Gpu>) -> Result<Event> {
        Ok(Event {
            gpu: gpu.clone(),
            id: gpu.create_event(false)?,
        })
    }

    /// An event that can be asked for elapsed time; not yet recorded.
    pub fn timing(gpu: &Arc<dyn Gpu>) -> Result<Event> {
        Ok(Event {
            gpu: gpu.clone(),
            id: gpu.create_event(true)?,
        })
    }

    /// An ordering event at the stream's present end.
    pub fn record(stream: &Stream) -> Result<Event> {
        let event = Event::new(stream.gpu())?;
        event.record_on(stream)?;
        Ok(event)
    }

    /// A timing event at the stream's present end.
    pub fn record_timing(stream: &Stream) -> Result<Event> {
        let event = Event::timing(stream.gpu())?;
        event.record_on(stream)?;
        Ok(event)
    }

    /// Moves the mark to the stream's present end.
    pub fn record_on(&self, stream: &Stream) -> Result<()> {
        self.gpu.record(self.id, stream.id)
    }

    /// Waits until the stream has passed the mark.
    pub fn wait(&self) -> Result<()> {
        self.gpu.wait_for(self.id)
    }

    /// Whether the stream has passed the mark.
    pub fn has_passed(&self) -> Result<bool> {
        self.gpu.has_passed(self.id)
    }

    /// Milliseconds of device time from `earlier` to here; waits for both.
    pub fn ms_since(&self, earlier: &Event) -> Result<f32> {
        earlier.wait()?;
        self.wait()?;
        self.gpu.elapsed_ms(earlier.id, self.id)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: `id` was made by this device and dies here.
        unsafe { self.gpu.destroy_event(self.id) }
    }
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Event({:#x})", self.id.0)
    }
}

/// A kernel of a loaded module, which stays loaded while this lives.
#[derive(Clone, Debug)]
pub struct Kernel {
    name: Arc<str>,
    handle: KernelHandle,
    _module: Arc<dyn Module>,
}

impl Kernel {
    /// Looks a kernel up by its C name.
    pub fn find(module: &Arc<dyn Module>, name: &str) -> Result<Kernel> {
        Ok(Kernel {
            name: name.into(),
            handle: module.kernel(name)?,
            _module: module.clone(),
        })
    }

    /// Its C name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The device's handle.
    pub fn handle(&self) -> KernelHandle {
        self.handle
    }

    /// What it needs.
    pub fn resources(&self) -> KernelResources {
        self.handle.resources
    }

    /// Refuses a launch that the device can't run.
    fn check(&self, shape: LaunchShape, parameter_bytes: usize) -> Result<()> {
        let limits = self.handle.resources;
        let reason = if parameter_bytes != limits.parameter_bytes as usize {
            format!(
                "{parameter_bytes} bytes of parameters, it takes {}",
                limits.parameter_bytes
            )
        } else if parameter_bytes > MAX_PARAMETER_BYTES {
            format!("{parameter_bytes} bytes of parameters, at most {MAX_PARAMETER_BYTES}")
        } else if shape.block == 0 || shape.block > limits.max_block_threads {
            format!(
                "{} threads a block, from 1 to {}",
                shape.block, limits.max_block_threads
            )
        } else if shape.shared_bytes > limits.max_dynamic_shared_bytes {
            format!(
                "{} bytes of dynamic shared memory, at most {}",
                shape.shared_bytes, limits.max_dynamic_shared_bytes
            )
        } else if shape.grid > i32::MAX as u32 {
            format!("{} blocks, at most {}", shape.grid, i32::MAX)
        } else {
            return Ok(());
        };
        Err(Error::InvalidLaunch {
            kernel: self.name.to_string(),
            reason,
        })
    }
}
