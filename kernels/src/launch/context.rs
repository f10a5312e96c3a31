//! What every launch needs: the device, its stream, its kernels, and the account of
//! what was done.

use std::sync::Arc;
use std::time::Instant;

use super::parameters::{ParameterBytes, fault};
use crate::codegen::{BLOCK_THREADS, ROWS_BLOCK_THREADS};
use crate::error::{Error, Result};
use crate::gpu::{DeviceBuffer, Event, Gpu, Kernel, LaunchShape, Stream};
use crate::jit::{Jit, Loaded, Source};

/// No launch has more blocks than this many a multiprocessor: each thread then takes
/// many rows, and what it does once costs next to nothing.
const BLOCKS_PER_MULTIPROCESSOR: u32 = 16;

/// The fault word while no row has met one.
const NO_FAULT: u64 = u64::MAX;

/// What a run did so far.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct RunCounts {
    /// Rows read.
    pub rows: u64,
    /// Launches over chunks.
    pub chunks: u64,
    /// Bytes of the columns that the kernels read.
    pub bytes_read: u64,
    /// Bytes copied to the device.
    pub bytes_to_device: u64,
    /// Bytes copied back.
    pub bytes_to_host: u64,
    /// Time in kernels by device events, milliseconds.
    pub device_ms: f64,
    /// Kernels that were compiled.
    pub jit_compiled: u64,
    /// Kernels that were in the cache.
    pub jit_cached: u64,
    /// Time to compile or to look up, milliseconds.
    pub jit_ms: f64,
}

impl RunCounts {
    /// The sums of two counts.
    pub fn and(&self, other: &RunCounts) -> RunCounts {
        RunCounts {
            rows: self.rows + other.rows,
            chunks: self.chunks + other.chunks,
            bytes_read: self.bytes_read + other.bytes_read,
            bytes_to_device: self.bytes_to_device + other.bytes_to_device,
            bytes_to_host: self.bytes_to_host + other.bytes_to_host,
            device_ms: self.device_ms + other.device_ms,
            jit_compiled: self.jit_compiled + other.jit_compiled,
            jit_cached: self.jit_cached + other.jit_cached,
            jit_ms: self.jit_ms + other.jit_ms,
        }
    }
}

/// A device as one run uses it.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) gpu: Arc<dyn Gpu>,
    pub(crate) stream: Stream,
    pub(crate) counts: RunCounts,
    jit: Arc<Jit>,
    /// The row and code of the first fault of a launch, [`NO_FAULT`] between launches.
    first_fault: DeviceBuffer,
}

impl Context {
    pub(crate) fn new(gpu: Arc<dyn Gpu>, jit: Arc<Jit>) -> Result<Context> {
        let stream = Stream::new(&gpu)?;
        let first_fault = DeviceBuffer::filled(&gpu, &stream, size_of::<u64>(), 0xff)?;
        Ok(Context {
            gpu,
            stream,
            counts: RunCounts::default(),
            jit,
            first_fault,
        })
    }

    /// Where a kernel writes its first fault: a row and a code.
    pub(super) fn fault_address(&self) -> u64 {
        self.first_fault.ptr().0
    }

    /// The kernel of a text, compiled if it is new.
    pub(super) fn kernel(&mut self, name: &str, text: &str) -> Result<Kernel> {
        self.load(name, text)?.kernel(name)
    }

    /// The code of a text that holds any number of kernels, compiled if it is new.
    pub(crate) fn load(&mut self, name: &str, text: &str) -> Result<Arc<Loaded>> {
        let source = Source::new(name, text);
        let (started, n_before) = (Instant::now(), self.jit.stats().n_compiled);
        let loaded = self.jit.get(&self.gpu, &source)?;
        // Another run that compiles at the same moment may be counted here too.
        if self.jit.stats().n_compiled > n_before {
            self.counts.jit_compiled += 1;
        } else {
            self.counts.jit_cached += 1;
        }
        self.counts.jit_ms += started.elapsed().as_secs_f64() * 1e3;
        Ok(loaded)
    }

    /// Adds device time.
    pub(crate) fn note(&mut self, kernel: &str, device_ms: f64) {
        self.counts.device_ms += device_ms;
        self.jit.note_launch(kernel, device_ms);
    }

    /// Threads a block of the kernels that give rows back.
    pub(super) fn rows_threads(&self) -> u32 {
        ROWS_BLOCK_THREADS.min(self.gpu.info().max_block_threads)
    }

    /// A block of such a kernel for each piece of work, but no more than run at once.
    pub(super) fn rows_shape(&self, kernel: &Kernel, n_pieces: usize) -> Result<LaunchShape> {
        let threads = self.rows_threads();
        let resident = self
            .gpu
            .blocks_per_multiprocessor(kernel, threads, 0)?
            .clamp(1, BLOCKS_PER_MULTIPROCESSOR);
        let blocks_max = self.gpu.info().multiprocessors.max(1) * resident;
        let grid = u32::try_from(n_pieces).unwrap_or(u32::MAX).min(blocks_max);
        Ok(LaunchShape::new(grid, threads))
    }

    /// Blocks enough for `n_rows`, but no more than run at once.
    pub(super) fn shape(
        &self,
        kernel: &Kernel,
        n_rows: usize,
        shared_bytes: impl Fn(u32) -> usize,
    ) -> Result<LaunchShape> {
        let info = self.gpu.info();
        let threads = BLOCK_THREADS.min(info.max_block_threads);
        let shared_bytes = u32::try_from(shared_bytes(threads))
            .map_err(|_| Error::Internal("the private states exceed 4 GiB".into()))?;
        let resident = self
            .gpu
            .blocks_per_multiprocessor(kernel, threads, shared_bytes)?
            .clamp(1, BLOCKS_PER_MULTIPROCESSOR);
        let blocks_max = info.multiprocessors.max(1) * resident;
        let blocks_wanted = n_rows.div_ceil(threads as usize);
        let grid = u32::try_from(blocks_wanted)
            .unwrap_or(u32::MAX)
            .min(blocks_max);
        Ok(LaunchShape {
            grid,
            block: threads,
            shared_bytes,
        })
    }

    /// Launches, waits, adds the device time, and fails with the first fault.
    ///
    /// # Safety
    /// The fields are those of the kernel's parameter struct, in order, and every
    /// address in them is good for what the kernel does with it.
    pub(super) unsafe fn run(
        &mut self,
        kernel: &Kernel,
        shape: LaunchShape,
        params: &ParameterBytes,
    ) -> Result<()> {
        let before = Event::record_timing(&self.stream)?;
        // SAFETY: the caller's; what the addresses belong to outlives the wait below.
        unsafe { self.stream.launch_bytes(kernel, shape, params.bytes())? };
        let after = Event::record_timing(&self.stream)?;
        let faults: Vec<u64> = self.first_fault.read(&self.stream, 0, 1)?;
        let device_ms = f64::from(after.ms_since(&before)?);
        self.note(kernel.name(), device_ms);
        match faults.first().copied() {
            Some(NO_FAULT) => Ok(()),
            Some(word) => {
                self.first_fault.fill(&self.stream, 0xff)?;
                Err(fault(word))
            }
            None => Err(Error::Internal("the fault word was not read back".into())),
        }
    }
}
