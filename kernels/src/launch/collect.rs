//! Running a collect over record batches: stage, launch, read the rows back.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch};

use super::context::{Context, RunCounts};
use super::loader::Loader;
use super::parameters::ParameterBytes;
use crate::codegen::{CollectKernel, Unsupported, collect_tile_rows, generate_collect};
use crate::columns::{DeviceChunk, WrittenColumn, unstage};
use crate::error::{Error, Result};
use crate::gpu::{DeviceBuffer, Gpu, PinnedPool};
use crate::ir::{Collect, Range};
use crate::jit::Jit;

/// The rows of one chunk that passed.
#[derive(Debug, Clone)]
pub struct Collected {
    /// How many passed.
    pub n_rows: usize,
    /// Their numbers in the chunk, rising; `None` when every row passed.
    pub rows: Option<Vec<u32>>,
    /// What was computed for them.
    pub outputs: Vec<ArrayRef>,
}

/// One collect over any number of chunks of the same columns.
#[derive(Debug)]
pub struct CollectRun {
    context: Context,
    collect: Collect,
    /// For chunks that the run loads itself.
    loader: Loader,
    last_kernel: Option<String>,
}

impl CollectRun {
    /// Prepares a run. `known` holds ranges that statistics prove; they are used
    /// where the values do not contradict them.
    pub fn new(
        gpu: Arc<dyn Gpu>,
        jit: Arc<Jit>,
        pool: &PinnedPool,
        collect: Collect,
        known: Arc<HashMap<usize, Range>>,
    ) -> Result<CollectRun> {
        let loader = Loader::new(&gpu, pool, collect.columns(), known)?;
        Ok(CollectRun {
            context: Context::new(gpu, jit)?,
            collect,
            loader,
            last_kernel: None,
        })
    }

    /// The rows of one record batch that pass.
    pub fn collect(&mut self, record_batch: &RecordBatch) -> Result<Collected> {
        let staged = self.loader.stage(record_batch)?;
        let chunk = self.loader.upload(&staged)?;
        self.context.counts.bytes_to_device += chunk.bytes() as u64;
        self.collect_resident(&chunk)
    }

    /// The rows of a chunk that is on the device already.
    pub fn collect_resident(&mut self, chunk: &DeviceChunk) -> Result<Collected> {
        if u32::try_from(chunk.n_rows).is_err() {
            return Err(Error::Unsupported("a chunk of more than 2^32 rows".into()));
        }
        chunk.wait_on(&self.context.stream)?;
        let kernel = generate_collect(&self.collect, &chunk.shapes()).map_err(unsupported)?;
        let collected = self.launch(&kernel, chunk)?;
        self.context.counts.rows += chunk.n_rows as u64;
        self.context.counts.chunks += 1;
        self.last_kernel = Some(kernel.name);
        Ok(collected)
    }

    /// What was done so far.
    pub fn counts(&self) -> RunCounts {
        self.context.counts
    }

    /// The kernel of the last chunk.
    pub fn kernel_name(&self) -> Option<&str> {
        self.last_kernel.as_deref()
    }

    fn launch(&mut self, kernel: &CollectKernel, chunk: &DeviceChunk) -> Result<Collected> {
        let context = &mut self.context;
        let entry = context.kernel(&kernel.name, &kernel.text)?;
        let n_rows = chunk.n_rows;
        let n_tiles = n_rows.div_ceil(collect_tile_rows(context.rows_threads()));

        let (gpu, stream) = (&context.gpu, &context.stream);
        // Behind the tiles' words stands the number of rows that passed.
        let tiles = DeviceBuffer::zeroed(gpu, stream, (n_tiles + 2) * 8)?;
        let n_kept_at = (n_tiles + 1) * 8;
        let n_numbers = if kernel.filters { n_rows } else { 0 };
        let rows = DeviceBuffer::for_values::<u32>(gpu, n_numbers)?;
        let mut params = ParameterBytes::default();
        params.word(n_rows as u64);
        params.word(context.fault_address());
        if kernel.filters {
            params.word(tiles.ptr().0);
            params.word(tiles.at(n_kept_at).0);
            params.word(rows.ptr().0);
        }
        let mut written = Vec::new();
        for output in &kernel.outputs {
            let values = DeviceBuffer::allocate(gpu, n_rows * output.stored_bytes())?;
            let validity = DeviceBuffer::allocate(gpu, if output.nullable { n_rows } else { 0 })?;
            params.pair(values.ptr().0, validity.ptr().0);
            written.push((*output, values, validity));
        }
        for index in &kernel.columns {
            let column = chunk.column(*index)?;
            params.column(column);
            context.counts.bytes_read += column.bytes() as u64;
        }
        params.constants(&kernel.parameters, &context.gpu, &context.stream)?;
        let shape = context.rows_shape(&entry, n_tiles)?;
        // SAFETY: the fields were appended in the order of the generated struct; all
        // buffers and the chunk outlive the call, which waits for the kernel.
        unsafe { context.run(&entry, shape, &params)? };

        let stream = &context.stream;
        let n_kept = match kernel.filters {
            false => n_rows,
            true => tiles
                .read::<u64>(stream, n_kept_at, 1)?
                .first()
                .and_then(|n| usize::try_from(*n).ok())
                .filter(|n| *n <= n_rows)
                .ok_or_else(|| Error::Internal("more rows passed than there are".into()))?,
        };
        let rows = match n_kept < n_rows {
            true => Some(rows.read::<u32>(stream, 0, n_kept)?),
            false => None,
        };
        let mut to_host = 8 + rows.as_ref().map_or(0, |rows| rows.len() * 4);
        let mut outputs = Vec::with_capacity(written.len());
        for ((output, values, validity), expr) in written.iter().zip(&self.collect.outputs) {
            let column = WrittenColumn {
                shape: *output,
                values: values.read(stream, 0, n_kept * output.stored_bytes())?,
                validity: match output.nullable {
                    true => Some(validity.read(stream, 0, n_kept)?),
                    false => None,
                },
            };
            to_host += column.values.len() + column.validity.as_ref().map_or(0, Vec::len);
            outputs.push(unstage(&column, expr.ty)?);
        }
        context.counts.bytes_to_host += to_host as u64;
        Ok(Collected {
            n_rows: n_kept,
            rows,
            outputs,
        })
    }
}

fn unsupported(reason: Unsupported) -> Error {
    Error::Unsupported(reason.message)
}
