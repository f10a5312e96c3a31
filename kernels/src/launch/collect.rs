//! Running a collect over record batches: stage, launch, read the rows back.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch};

use super::context::{Context, RunCounts};
use super::count;
use super::full_join;
use super::join::JoinTable;
use super::loader::Loader;
use super::output::WrittenOutput;
use super::parameters::ParameterBytes;
use super::relations::{Relations, source_columns};
use crate::codegen::{
    CollectKernel, CollectMode, Unsupported, collect_tile_rows, generate_collect,
};
use crate::columns::{DeviceChunk, WrittenColumn, read_column, unstage};
use crate::error::{Error, Result};
use crate::gpu::{DeviceBuffer, Gpu, PinnedPool};
use crate::ir::{Collect, Range, Step};
use crate::jit::Jit;

/// The rows of one chunk that passed, on the host.
#[derive(Debug, Clone)]
pub struct Collected {
    /// How many rows come out.
    pub n_rows: usize,
    /// The source's row of each, rising; `None` when every row passed. A pipeline that
    /// probes has none: it gives out all columns itself.
    pub rows: Option<Vec<u32>>,
    /// What was computed for them.
    pub outputs: Vec<ArrayRef>,
}

/// One collect over any number of chunks of the same columns.
#[derive(Debug)]
pub struct CollectRun {
    context: Context,
    collect: Collect,
    tables: Vec<JoinTable>,
    /// For chunks that the run loads itself.
    loader: Loader,
    last_kernel: Option<String>,
}

/// What a kernel wrote, still on the device.
pub(super) struct Written {
    pub(super) n_rows: usize,
    /// Numbers of rows, when rows were left out.
    pub(super) rows: Option<DeviceBuffer>,
    pub(super) outputs: Vec<WrittenOutput>,
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
        let n_before = collect.steps.len().saturating_sub(1);
        if collect.steps[..n_before].iter().any(Step::is_full) {
            return Err(Error::Unsupported("steps after a full join".into()));
        }
        let columns = source_columns(collect.columns());
        let loader = Loader::new(&gpu, pool, columns, known)?;
        Ok(CollectRun {
            context: Context::new(gpu, jit)?,
            collect,
            tables: Vec::new(),
            loader,
            last_kernel: None,
        })
    }

    /// Gives the run the tables that its steps probe, relation 1 first.
    pub fn with_tables(mut self, tables: Vec<JoinTable>) -> CollectRun {
        self.tables = tables;
        self
    }

    /// The tables, back.
    pub fn into_tables(self) -> Vec<JoinTable> {
        self.tables
    }

    /// Makes room for the marks of a full join, new for every chunk that is run.
    fn mark_tables(&mut self) -> Result<()> {
        let Some(at) = self.collect.full_relation().and_then(|n| n.checked_sub(1)) else {
            return Ok(());
        };
        match self.tables.get_mut(at) {
            Some(table) => table.keep_matches(&self.context.stream),
            None => Ok(()),
        }
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
        let written = self.run(chunk)?;
        self.read_home(&written)
    }

    /// As [`CollectRun::collect_resident`], but the outputs stay on the device, as
    /// columns that are numbered from 0.
    pub fn collect_to_device(&mut self, chunk: &DeviceChunk) -> Result<DeviceChunk> {
        let written = self.run(chunk)?;
        WrittenOutput::columns(&mut self.context, written.outputs, written.n_rows)
    }

    /// Copies column `index` of what [`CollectRun::collect_to_device`] left on the device
    /// home.
    pub fn read(&mut self, chunk: &DeviceChunk, index: usize) -> Result<ArrayRef> {
        let output = self.collect.outputs.get(index);
        let output = output.ok_or_else(|| Error::Internal(format!("no output {index}")))?;
        let column = chunk.column(index)?;
        self.context.counts.bytes_to_host += column.bytes() as u64;
        read_column(&self.context.stream, column, chunk.n_rows, output.ty)
    }

    /// What was done so far.
    pub fn counts(&self) -> RunCounts {
        self.context.counts
    }

    /// The kernel of the last chunk.
    pub fn kernel_name(&self) -> Option<&str> {
        self.last_kernel.as_deref()
    }

    fn run(&mut self, chunk: &DeviceChunk) -> Result<Written> {
        if u32::try_from(chunk.n_rows).is_err() {
            return Err(Error::Unsupported("a chunk of more than 2^32 rows".into()));
        }
        self.mark_tables()?;
        let context = &mut self.context;
        chunk.wait_on(&context.stream)?;
        let rows = Relations {
            source: chunk,
            tables: &self.tables,
        };
        let kernel = generate_collect(&self.collect, &rows.shapes(), &rows.table_shapes())
            .map_err(unsupported)?;
        let (written, kernel) = match self.collect.full_relation() {
            Some(relation) => full_join::run(context, &self.collect, kernel, &rows, relation)?,
            None => (launch(context, &self.collect, &kernel, &rows)?, kernel),
        };
        context.counts.rows += chunk.n_rows as u64;
        context.counts.chunks += 1;
        self.last_kernel = Some(kernel.name);
        Ok(written)
    }

    fn read_home(&mut self, written: &Written) -> Result<Collected> {
        let context = &mut self.context;
        let (stream, n_rows) = (&context.stream, written.n_rows);
        let rows = match &written.rows {
            Some(rows) => Some(rows.read::<u32>(stream, 0, n_rows)?),
            None => None,
        };
        let mut to_host = 8 + rows.as_ref().map_or(0, |rows| rows.len() * 4);
        let mut outputs = Vec::with_capacity(written.outputs.len());
        for (output, expr) in written.outputs.iter().zip(&self.collect.outputs) {
            let column = WrittenColumn {
                shape: output.shape,
                values: output
                    .values
                    .read(stream, 0, n_rows * output.shape.stored_bytes())?,
                validity: match output.shape.nullable {
                    true => Some(output.validity.read(stream, 0, n_rows)?),
                    false => None,
                },
            };
            to_host += column.values.len() + column.validity.as_ref().map_or(0, Vec::len);
            outputs.push(unstage(&column, expr.ty)?);
        }
        context.counts.bytes_to_host += to_host as u64;
        Ok(Collected {
            n_rows,
            rows,
            outputs,
        })
    }
}

fn launch(
    context: &mut Context,
    collect: &Collect,
    kernel: &CollectKernel,
    rows: &Relations<'_>,
) -> Result<Written> {
    let n_rows = rows.n_rows();
    let capacity = match kernel.mode {
        CollectMode::All | CollectMode::Filtered => n_rows,
        CollectMode::Expanded => count::rows_through(context, &collect.steps, rows)?,
    };
    let mut references = ParameterBytes::default();
    let outputs = WrittenOutput::allocate(context, &kernel.outputs, capacity, &mut references)?;
    let (n_kept, numbers) = write(context, kernel, rows, &references)?;
    let n_written = n_kept.unwrap_or(capacity);
    Ok(Written {
        n_rows: n_written,
        rows: numbers.filter(|_| n_written < n_rows),
        outputs,
    })
}

/// Runs a kernel that writes into these outputs. Of one that leaves rows out: how many it
/// wrote, and their numbers.
pub(super) fn write(
    context: &mut Context,
    kernel: &CollectKernel,
    rows: &Relations<'_>,
    outputs: &ParameterBytes,
) -> Result<(Option<usize>, Option<DeviceBuffer>)> {
    let entry = context.kernel(&kernel.name, &kernel.text)?;
    let n_rows = rows.n_rows();
    let n_tiles = n_rows.div_ceil(collect_tile_rows(context.rows_threads()));
    let (gpu, stream) = (&context.gpu, &context.stream);
    // Behind the tiles' words stands the number of rows that passed.
    let tiles = DeviceBuffer::zeroed(gpu, stream, (n_tiles + 2) * 8)?;
    let n_kept_at = (n_tiles + 1) * 8;
    let filters = kernel.mode == CollectMode::Filtered;
    let numbers = DeviceBuffer::for_values::<u32>(gpu, if filters { n_rows } else { 0 })?;
    let mut params = ParameterBytes::default();
    params.word(n_rows as u64);
    params.word(context.fault_address());
    if kernel.mode != CollectMode::All {
        params.word(tiles.ptr().0);
    }
    if filters {
        params.word(tiles.at(n_kept_at).0);
        params.word(numbers.ptr().0);
    }
    params.append(outputs);
    rows.push(&mut params, context, &kernel.columns, &kernel.parameters)?;
    let shape = context.rows_shape(&entry, n_tiles)?;
    // SAFETY: the fields were appended in the order of the generated struct; all
    // buffers and the rows outlive the call, which waits for the kernel, and the outputs
    // have a place for every row that it writes.
    unsafe { context.run(&entry, shape, &params)? };

    if !filters {
        return Ok((None, None));
    }
    let n_kept = tiles.read::<u64>(&context.stream, n_kept_at, 1)?;
    let n_kept = n_kept.first().and_then(|n| usize::try_from(*n).ok());
    match n_kept.filter(|n| *n <= n_rows) {
        Some(n_kept) => Ok((Some(n_kept), Some(numbers))),
        None => Err(Error::Internal("more rows passed than there are".into())),
    }
}

pub(super) fn unsupported(reason: Unsupported) -> Error {
    Error::Unsupported(reason.message)
}
