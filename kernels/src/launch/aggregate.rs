//! Running an aggregate over record batches: stage, launch, read back, add up.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use arrow::array::{Array, RecordBatch};

use super::totals::{Number, Totals};
use crate::codegen::{self, AggregateKernel, BLOCK_THREADS, Parameter, Unsupported, ValueRegister};
use crate::columns::{DeviceChunk, stage};
use crate::error::{DataFault, Error, Fault, Result};
use crate::gpu::{DeviceBuffer, Event, Gpu, Kernel, LaunchShape, Stream};
use crate::ir::{Aggregate, Literal, Range, Register};
use crate::jit::{Jit, Source};

/// No launch has more blocks than this many a multiprocessor: each thread then
/// takes many rows, and merging the private states costs next to nothing.
const BLOCKS_PER_MULTIPROCESSOR: u32 = 16;

/// What a run did so far.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct RunCounts {
    /// Rows read.
    pub rows: u64,
    /// Launches.
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

/// One aggregate over any number of chunks of the same columns.
#[derive(Debug)]
pub struct AggregateRun {
    gpu: Arc<dyn Gpu>,
    jit: Arc<Jit>,
    stream: Stream,
    aggregate: Aggregate,
    /// Columns that some expression reads.
    columns: Vec<usize>,
    /// What statistics prove about a column.
    known: HashMap<usize, Range>,
    totals: Totals,
    counts: RunCounts,
    last_kernel: Option<String>,
}

impl AggregateRun {
    /// Prepares a run. `known` holds ranges that statistics prove; they are used
    /// where the values do not contradict them.
    pub fn new(
        gpu: Arc<dyn Gpu>,
        jit: Arc<Jit>,
        aggregate: Aggregate,
        known: HashMap<usize, Range>,
    ) -> Result<AggregateRun> {
        let stream = Stream::new(&gpu)?;
        let columns = codegen::columns_of(&aggregate);
        let totals = Totals::new(aggregate.calls.iter().map(|call| call.function).collect());
        Ok(AggregateRun {
            gpu,
            jit,
            stream,
            aggregate,
            columns,
            known,
            totals,
            counts: RunCounts::default(),
            last_kernel: None,
        })
    }

    /// Adds one record batch, whose columns are the source's.
    pub fn add(&mut self, record_batch: &RecordBatch) -> Result<()> {
        let n_rows = record_batch.num_rows();
        if n_rows == 0 {
            return Ok(());
        }
        let mut staged = HashMap::new();
        for index in &self.columns {
            let array: &dyn Array = record_batch.column(*index);
            let column = stage(array, self.known.get(index).copied()).map_err(unsupported)?;
            staged.insert(*index, column);
        }
        let chunk = DeviceChunk::upload(&self.gpu, &self.stream, &staged, n_rows)?;
        self.counts.bytes_to_device += chunk.bytes() as u64;
        self.add_resident(&chunk)
    }

    /// Adds a chunk that is on the device already, by copies that this device has
    /// finished or that stand on a stream that has.
    pub fn add_resident(&mut self, chunk: &DeviceChunk) -> Result<()> {
        if chunk.n_rows == 0 {
            return Ok(());
        }
        // A kernel adds up one chunk only, so its rows bound every sum. They pick how
        // states are held and do not stand in the text, so other sizes share it.
        let rows_max = chunk.n_rows as u64;
        let kernel =
            codegen::generate(&self.aggregate, &chunk.shapes(), rows_max).map_err(unsupported)?;
        let words = self.launch(&kernel, chunk)?;
        self.totals.add_chunk(&kernel, &words)?;
        self.counts.rows += chunk.n_rows as u64;
        self.counts.chunks += 1;
        self.last_kernel = Some(kernel.name);
        Ok(())
    }

    /// The groups and what was done to get them.
    pub fn finish(mut self) -> (Totals, RunCounts) {
        if self.aggregate.keys.is_empty() {
            self.totals.ensure_group_without_keys();
        }
        (self.totals, self.counts)
    }

    /// The kernel of the last chunk.
    pub fn kernel_name(&self) -> Option<&str> {
        self.last_kernel.as_deref()
    }

    fn launch(&mut self, kernel: &AggregateKernel, chunk: &DeviceChunk) -> Result<Vec<u64>> {
        let source = Source::new(kernel.name.clone(), kernel.text.clone());
        let (started, n_before) = (Instant::now(), self.jit.stats().n_compiled);
        let loaded = self.jit.get(&self.gpu, &source)?;
        // Another run that compiles at the same moment may be counted here too.
        if self.jit.stats().n_compiled > n_before {
            self.counts.jit_compiled += 1;
        } else {
            self.counts.jit_cached += 1;
        }
        self.counts.jit_ms += started.elapsed().as_secs_f64() * 1e3;
        let entry = loaded.kernel(&kernel.name)?;

        let mut initial = Vec::with_capacity(kernel.n_groups * kernel.n_words);
        for _ in 0..kernel.n_groups {
            for slot in &kernel.slots {
                initial.extend(std::iter::repeat_n(slot.kind.initial(), slot.kind.words()));
            }
        }
        let state = DeviceBuffer::from_slice(&self.gpu, &self.stream, &initial)?;
        let first_fault = DeviceBuffer::from_slice(&self.gpu, &self.stream, &[u64::MAX])?;

        let mut params = ParameterBytes::default();
        params.word(chunk.n_rows as u64);
        params.word(first_fault.ptr().0);
        params.word(state.ptr().0);
        for index in &kernel.columns {
            let column = chunk.column(*index)?;
            params.pair(column.values_address(), column.validity_address());
            self.counts.bytes_read += column.bytes() as u64;
        }
        for parameter in &kernel.parameters {
            params.constant(parameter)?;
        }

        let shape = self.shape(&entry, kernel, chunk.n_rows)?;
        let before = Event::record_timing(&self.stream)?;
        // SAFETY: the fields were appended in the order of the generated struct, each
        // in its own 16 bytes as the struct aligns them; all buffers live until the
        // stream has passed the reads below, which wait for it.
        unsafe { self.stream.launch_bytes(&entry, shape, &params.bytes)? };
        let after = Event::record_timing(&self.stream)?;
        let faults: Vec<u64> = first_fault.to_vec(&self.stream)?;
        let words: Vec<u64> = state.to_vec(&self.stream)?;
        self.counts.bytes_to_host += (words.len() + faults.len()) as u64 * 8;
        self.counts.device_ms += f64::from(after.ms_since(&before)?);
        match faults.first().copied() {
            Some(u64::MAX) => Ok(words),
            Some(word) => Err(fault(word)),
            None => Err(Error::Internal("the fault word was not read back".into())),
        }
    }

    fn shape(
        &self,
        entry: &Kernel,
        kernel: &AggregateKernel,
        n_rows: usize,
    ) -> Result<LaunchShape> {
        let info = self.gpu.info();
        let threads = BLOCK_THREADS.min(info.max_block_threads);
        let shared_bytes = u32::try_from(kernel.shared_bytes(threads))
            .map_err(|_| Error::Internal("the private states exceed 4 GiB".into()))?;
        let resident = self
            .gpu
            .blocks_per_multiprocessor(entry, threads, shared_bytes)?
            .max(1);
        let blocks_wanted = n_rows.div_ceil(threads as usize);
        let blocks_max = info.multiprocessors * resident.min(BLOCKS_PER_MULTIPROCESSOR);
        let grid = u32::try_from(blocks_wanted)
            .unwrap_or(u32::MAX)
            .min(blocks_max.max(1));
        Ok(LaunchShape {
            grid,
            block: threads,
            shared_bytes,
        })
    }
}

fn unsupported(reason: Unsupported) -> Error {
    Error::Unsupported(reason.message)
}

/// Row in the upper 56 bits, code in the lower 8, as `raise` packs them.
fn fault(word: u64) -> Error {
    match Fault::from_code((word & 0xff) as u32) {
        Some(fault) => Error::DataFault(DataFault {
            fault,
            row: word >> 8,
            expression: 0,
        }),
        None => Error::Internal(format!(
            "a kernel reported fault {word:#x}, which does not exist"
        )),
    }
}

/// The parameter struct's bytes: every field has 16 bytes of its own.
#[derive(Default)]
struct ParameterBytes {
    bytes: Vec<u8>,
}

impl ParameterBytes {
    fn word(&mut self, value: u64) {
        self.pair(value, 0);
    }

    fn pair(&mut self, first: u64, second: u64) {
        self.bytes.extend(first.to_ne_bytes());
        self.bytes.extend(second.to_ne_bytes());
    }

    fn constant(&mut self, parameter: &Parameter) -> Result<()> {
        let field: [u8; 16] = match (&parameter.literal, parameter.register) {
            // A little-endian integer reads the same at every narrower width.
            (
                Literal::Integer(value),
                ValueRegister::Integer(Register::I32 | Register::I64 | Register::I128, _),
            ) => value.to_le_bytes(),
            (Literal::Bool(value), ValueRegister::Bool) => i128::from(*value).to_le_bytes(),
            (Literal::Float(bits), ValueRegister::F64) => u128::from(*bits).to_le_bytes(),
            (Literal::Float(bits), ValueRegister::F32) => {
                u128::from((f64::from_bits(*bits) as f32).to_bits()).to_le_bytes()
            }
            (literal, register) => {
                return Err(Error::Internal(format!(
                    "constant {literal:?} held as {}",
                    register.name()
                )));
            }
        };
        self.bytes.extend(field);
        Ok(())
    }
}

impl Totals {
    /// The values of one call over all groups, in the order of [`Totals::groups`].
    pub fn column(&self, call: usize) -> impl Iterator<Item = Option<Number>> + '_ {
        self.groups()
            .values()
            .map(move |values| values.get(call).copied().flatten())
    }
}
