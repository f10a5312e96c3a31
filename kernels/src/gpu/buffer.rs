//! Device memory that frees itself.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use super::pod::bytes_of;
use super::stream::FETCH_BYTES_MAX;
use super::{DevicePtr, Gpu, PinnedBuffer, Pod, Stream};
use crate::error::Result;

/// An owned piece of device memory.
///
/// It may be dropped while work that uses it is still enqueued: the memory is not
/// handed out again before that work has passed, on whatever stream it is.
pub struct DeviceBuffer {
    gpu: Arc<dyn Gpu>,
    ptr: DevicePtr,
    bytes: usize,
}

impl DeviceBuffer {
    /// Memory of undefined content. No bytes need no allocation, and give an
    /// address that must not be read.
    pub fn allocate(gpu: &Arc<dyn Gpu>, bytes: usize) -> Result<DeviceBuffer> {
        let ptr = match bytes {
            0 => DevicePtr::NULL,
            _ => counted(gpu, bytes)?,
        };
        Ok(DeviceBuffer {
            gpu: gpu.clone(),
            ptr,
            bytes,
        })
    }

    /// Memory of undefined content for `n` values.
    pub fn for_values<T: Pod>(gpu: &Arc<dyn Gpu>, n: usize) -> Result<DeviceBuffer> {
        DeviceBuffer::allocate(gpu, n * size_of::<T>())
    }

    /// Memory whose bytes are zero once `stream` gets there.
    pub fn zeroed(gpu: &Arc<dyn Gpu>, stream: &Stream, bytes: usize) -> Result<DeviceBuffer> {
        DeviceBuffer::filled(gpu, stream, bytes, 0)
    }

    /// Memory whose bytes are `value` once `stream` gets there.
    pub fn filled(
        gpu: &Arc<dyn Gpu>,
        stream: &Stream,
        bytes: usize,
        value: u8,
    ) -> Result<DeviceBuffer> {
        let buffer = DeviceBuffer::allocate(gpu, bytes)?;
        buffer.fill(stream, value)?;
        Ok(buffer)
    }

    /// A copy of `values`, there when this returns. Waits for the stream; large
    /// data goes through a [`PinnedBuffer`] and [`DeviceBuffer::upload`].
    pub fn from_slice<T: Pod>(
        gpu: &Arc<dyn Gpu>,
        stream: &Stream,
        values: &[T],
    ) -> Result<DeviceBuffer> {
        let buffer = DeviceBuffer::allocate(gpu, size_of_val(values))?;
        buffer.write(stream, 0, values)?;
        Ok(buffer)
    }

    /// The device.
    pub fn gpu(&self) -> &Arc<dyn Gpu> {
        &self.gpu
    }

    /// Where it starts.
    pub fn ptr(&self) -> DevicePtr {
        self.ptr
    }

    /// The address `bytes` further on.
    pub fn at(&self, bytes: usize) -> DevicePtr {
        assert!(
            bytes <= self.bytes,
            "offset {bytes} in a buffer of {} bytes",
            self.bytes
        );
        self.ptr.offset(bytes)
    }

    /// Its size.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Sets every byte to `value`.
    pub fn fill(&self, stream: &Stream, value: u8) -> Result<()> {
        self.fill_range(stream, 0..self.bytes, value)
    }

    /// Sets the bytes of `range` to `value`.
    pub fn fill_range(&self, stream: &Stream, range: Range<usize>, value: u8) -> Result<()> {
        self.check(&range);
        // SAFETY: the range lies within this allocation, which is not handed out
        // again before the stream has passed.
        unsafe { stream.memset(self.ptr.offset(range.start), value, range.len()) }
    }

    /// Copies `values` to byte `offset`. Waits for the stream.
    pub fn write<T: Pod>(&self, stream: &Stream, offset: usize, values: &[T]) -> Result<()> {
        let bytes = bytes_of(values);
        self.check(&(offset..offset + bytes.len()));
        if bytes.is_empty() {
            return Ok(());
        }
        // SAFETY: the target lies within this allocation; the source is borrowed
        // until the stream has passed, below.
        let copied = unsafe {
            self.gpu.copy_to_device(
                stream.id(),
                self.ptr.offset(offset),
                bytes.as_ptr(),
                bytes.len(),
            )
        };
        copied.and(stream.synchronize())
    }

    /// Copies `n` values from byte `offset` home. Waits for the stream.
    pub fn read<T: Pod>(&self, stream: &Stream, offset: usize, n: usize) -> Result<Vec<T>> {
        let mut values = vec![T::default(); n];
        let bytes = size_of_val(values.as_slice());
        self.check(&(offset..offset + bytes));
        if bytes == 0 {
            return Ok(values);
        }
        if bytes <= FETCH_BYTES_MAX {
            // SAFETY: any bytes make a Pod, and a Pod is made of initialised bytes; the
            // source lies within this allocation.
            unsafe {
                let target = std::slice::from_raw_parts_mut(values.as_mut_ptr().cast(), bytes);
                stream.fetch(self.ptr.offset(offset), target)?;
            }
            return Ok(values);
        }
        // SAFETY: the source lies within this allocation; the target is alive and
        // untouched until the stream has passed, below; any bytes make a Pod.
        let copied = unsafe {
            self.gpu.copy_to_host(
                stream.id(),
                values.as_mut_ptr().cast(),
                self.ptr.offset(offset),
                bytes,
            )
        };
        copied.and(stream.synchronize())?;
        Ok(values)
    }

    /// All of it as values, as many as fit. Waits for the stream.
    pub fn to_vec<T: Pod>(&self, stream: &Stream) -> Result<Vec<T>> {
        self.read(stream, 0, self.bytes / size_of::<T>())
    }

    /// Enqueues a copy of `range` of `src` to byte `offset`. `src` waits for it
    /// before it lets its bytes be changed.
    pub fn upload(
        &self,
        stream: &Stream,
        offset: usize,
        src: &PinnedBuffer,
        range: Range<usize>,
    ) -> Result<()> {
        self.check(&(offset..offset + range.len()));
        src.send(stream, self.ptr.offset(offset), range)
    }

    /// Enqueues a copy from byte `offset` into `range` of `dst`. `dst` waits for it
    /// before it lets its bytes be read.
    pub fn download(
        &self,
        stream: &Stream,
        offset: usize,
        dst: &mut PinnedBuffer,
        range: Range<usize>,
    ) -> Result<()> {
        self.check(&(offset..offset + range.len()));
        dst.receive(stream, self.ptr.offset(offset), range)
    }

    /// Enqueues a copy of `range` of `src`, on the same device, to byte `offset`.
    pub fn copy_from(
        &self,
        stream: &Stream,
        offset: usize,
        src: &DeviceBuffer,
        range: Range<usize>,
    ) -> Result<()> {
        src.check(&range);
        self.check(&(offset..offset + range.len()));
        assert!(
            self.ptr != src.ptr || range.is_empty(),
            "a copy within one buffer"
        );
        if range.is_empty() {
            return Ok(());
        }
        // SAFETY: both ranges lie within live allocations that are not handed out
        // again before the stream has passed; they differ, so do not overlap.
        unsafe {
            self.gpu.copy_on_device(
                stream.id(),
                self.ptr.offset(offset),
                src.ptr.offset(range.start),
                range.len(),
            )
        }
    }

    fn check(&self, range: &Range<usize>) {
        assert!(
            range.start <= range.end && range.end <= self.bytes,
            "bytes {range:?} of a buffer of {}",
            self.bytes
        );
    }
}

/// An allocation that the device's meter counts. When the device itself has no room, others
/// are asked to give some up.
fn counted(gpu: &Arc<dyn Gpu>, bytes: usize) -> Result<DevicePtr> {
    let meter = gpu.meter();
    meter.take(bytes)?;
    loop {
        match gpu.allocate(bytes) {
            Ok(ptr) => return Ok(ptr),
            Err(error) if error.out_of_memory().is_some() && meter.reclaim(bytes) => {}
            Err(error) => {
                meter.give(bytes);
                return Err(error);
            }
        }
    }
}

impl Drop for DeviceBuffer {
    fn drop(&mut self) {
        if self.bytes > 0 {
            // SAFETY: the allocation is this one's and dies here.
            unsafe { self.gpu.free(self.ptr, self.bytes) }
            self.gpu.meter().give(self.bytes);
        }
    }
}

impl fmt::Debug for DeviceBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DeviceBuffer({:#x}, {} bytes)", self.ptr.0, self.bytes)
    }
}
