//! The rows of a plan as columns on the device, and tables of them to probe.
//!
//! ```text
//!   CPU plan, all partitions ── record batches ── one array a column ── copy ─┐
//!   GpuCollectExec ── its output, which is on the device already ─────────────┴─ chunk
//! ```

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use arrow::array::{Array, ArrayRef, RecordBatch, StringArray, make_array};
use arrow::compute::cast;
use arrow::datatypes::{DataType, SchemaRef};
use datafusion::error::{DataFusionError, Result as DataFusionResult};
use datafusion::execution::TaskContext;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};
use futures::future::BoxFuture;
use futures::stream::BoxStream;
use futures::{FutureExt, StreamExt};
use kernels::codegen::Unsupported;
use kernels::columns::{DeviceChunk, StagedColumn, stage, stage_parts};
use kernels::error::Error as KernelError;
use kernels::gpu::Stream;
use kernels::ir::{Build, Expr, Range};
use kernels::launch::{JoinTable, Loader, RunCounts, StagedBatch};

use super::Device;
use super::aggregate::GpuAggregateExec;
use super::cache::{Cached, FileScan, Key};
use super::codes::{Codes, Texts, Wanted, decode, in_order, internal};
use super::collect::{GpuCollectExec, Left};
use super::failure::{Failure, is_out_of_memory};
use super::held::{Held, Parked};
use super::numbering::encode_all;
use super::original::in_parts;
use super::scan;
use super::spill::Spill;
use super::window::GpuWindowExec;
use crate::lower::{Joined, without_exchange};
use crate::statistics::statistics_of;

/// All rows of a plan.
#[derive(Debug)]
pub struct Relation {
    /// The columns that were wanted: on the device, or on the host if it has no room.
    pub rows: Held,
    /// The texts of its codes.
    pub texts: Texts,
    /// Time to lay columns out, milliseconds.
    pub staging_ms: f64,
    /// What was done to get it there.
    pub counts: RunCounts,
}

impl Relation {
    fn of_host(
        rows: StagedBatch,
        texts: Texts,
        staging_ms: f64,
        spill: &Spill,
    ) -> Result<Relation, Failure> {
        Ok(Relation {
            rows: Held::Host(spill.keep_staged(rows)?),
            texts,
            staging_ms,
            counts: RunCounts::default(),
        })
    }
}

/// The relations that a pipeline probes.
#[derive(Debug, Default)]
pub struct Tables {
    /// Relation 1 first: its table, or its rows on the host.
    pub tables: Vec<Parked>,
    /// How each is built.
    pub builds: Vec<Build>,
    /// The texts of all codes.
    pub texts: Texts,
    /// As in [`Relation`].
    pub staging_ms: f64,
    /// As in [`Relation`].
    pub counts: RunCounts,
}

/// What a pipeline runs with.
#[derive(Clone, Copy)]
pub struct Place<'a> {
    /// The device.
    pub device: &'a Device,
    /// Where rows go that have no room there.
    pub spill: &'a Arc<Spill>,
    /// The task.
    pub context: &'a Arc<TaskContext>,
}

/// Makes the table of every joined relation, all at the same time. `columns` are those
/// that the pipeline reads, of any relation.
pub async fn tables(
    joined: &[Joined],
    columns: &[usize],
    codes: &Codes,
    late: &[Expr],
    place: Place<'_>,
) -> Result<Tables, Failure> {
    let built = joined.iter().enumerate().map(|(number, joined)| {
        let build = joined.build.map(&|expr| expr.with_late(late));
        let mut wanted = Codes::wanted(columns, number + 1);
        for (column, own) in Codes::wanted(&build.columns(), 0) {
            if !wanted.contains(&(column, own)) {
                wanted.push((column, own));
            }
        }
        async move {
            let known = Arc::default();
            let relation = relation(&joined.plan, wanted, codes, known, place).await?;
            let (device, spill) = (place.device.clone(), Arc::clone(place.spill));
            let (held, own) = (relation.rows, build.clone());
            let (held, counts) = blocking(move || built(held, &own, &device, &spill)).await?;
            let parked = place.device.waiting.park(held, place.spill);
            let counts = relation.counts.and(&counts);
            Ok::<_, Failure>((parked, build, relation.texts, relation.staging_ms, counts))
        }
    });
    let mut all = Tables::default();
    for (table, build, texts, staging_ms, counts) in futures::future::try_join_all(built).await? {
        all.tables.push(table);
        all.builds.push(build);
        all.texts.extend(texts);
        all.staging_ms += staging_ms;
        all.counts = all.counts.and(&counts);
    }
    Ok(all)
}

/// The table of a relation that is on the device; its rows if there is no room for it.
fn built(
    held: Held,
    build: &Build,
    device: &Device,
    spill: &Spill,
) -> Result<(Held, RunCounts), Failure> {
    let Held::Rows(rows) = held else {
        return Ok((held, RunCounts::default()));
    };
    match JoinTable::build(&device.gpu, &device.jit, build, Arc::clone(&rows)) {
        Ok((table, counts)) => Ok((Held::Table(Box::new(table)), counts)),
        Err(error) if error.ran_short() => {
            let rows = Held::Rows(rows).into_host(spill)?;
            Ok((Held::Host(rows), RunCounts::default()))
        }
        Err(error) => Err(error.into()),
    }
}

/// The rows of a plan, where a GPU node leaves them.
#[derive(Debug)]
pub enum SourceRows {
    /// On the device.
    Left(Box<Left>),
    /// On the host.
    Host(HostRows),
    /// Nowhere yet: the plan is no such node.
    Stream,
}

/// Record batches, and what keeps their memory counted.
#[derive(Debug)]
pub struct HostRows {
    /// The rows.
    pub batches: Vec<RecordBatch>,
    spill: Option<Arc<Spill>>,
}

impl HostRows {
    /// One record batch.
    pub fn one(batch: RecordBatch) -> HostRows {
        HostRows {
            batches: vec![batch],
            spill: None,
        }
    }

    /// Record batches that were kept in a place for them.
    pub fn kept(batches: Vec<RecordBatch>, spill: Arc<Spill>) -> HostRows {
        HostRows {
            batches,
            spill: Some(spill),
        }
    }

    /// How many rows there are.
    pub fn n_rows(&self) -> usize {
        self.batches.iter().map(RecordBatch::num_rows).sum()
    }

    /// The rows, so many at a time.
    pub fn stream(self, rows: usize) -> BoxStream<'static, DataFusionResult<RecordBatch>> {
        let HostRows { batches, spill } = self;
        let parts = futures::stream::iter(batches).flat_map(move |batch| in_parts(batch, rows));
        // The place goes when the rows have gone.
        parts
            .map(move |part| {
                let _kept = &spill;
                part
            })
            .boxed()
    }
}

impl SourceRows {
    /// The rows, so many at a time; all are on the host when this returns.
    pub async fn stream(
        self,
        rows: usize,
    ) -> Result<BoxStream<'static, DataFusionResult<RecordBatch>>, Failure> {
        Ok(match self {
            SourceRows::Left(left) => in_parts(blocking(move || left.batch()).await?, rows),
            SourceRows::Host(host) => host.stream(rows),
            SourceRows::Stream => futures::stream::empty().boxed(),
        })
    }
}

/// Runs a GPU node whose rows can stay on the device.
pub fn source_rows<'a>(
    plan: &'a Arc<dyn ExecutionPlan>,
    context: &'a Arc<TaskContext>,
) -> BoxFuture<'a, Result<SourceRows, Failure>> {
    rows_of(plan, context).boxed()
}

async fn rows_of(
    plan: &Arc<dyn ExecutionPlan>,
    context: &Arc<TaskContext>,
) -> Result<SourceRows, Failure> {
    let plan = without_exchange(plan);
    let (rows, original) = if let Some(node) = plan.downcast_ref::<GpuAggregateExec>() {
        (node.run_on_device(context).await, node.original())
    } else if let Some(node) = plan.downcast_ref::<GpuWindowExec>() {
        let left = node.run_on_device(context).await;
        let rows = left.map(|left| SourceRows::Left(Box::new(left)));
        (rows, node.original())
    } else if let Some(node) = plan.downcast_ref::<GpuCollectExec>()
        && node.has_device_form()
    {
        (node.run_on_device(context).await, node.original())
    } else {
        return renamed_rows(plan, context).await;
    };
    match rows {
        Ok(rows) => Ok(rows),
        Err(failure) => {
            let batch = original.or_batch(failure, context).await?;
            Ok(SourceRows::Host(HostRows::one(batch)))
        }
    }
}

/// The rows below a projection that only names and orders them, under its names.
async fn renamed_rows(
    plan: &Arc<dyn ExecutionPlan>,
    context: &Arc<TaskContext>,
) -> Result<SourceRows, Failure> {
    let Some((columns, below)) = renamed(plan) else {
        return Ok(SourceRows::Stream);
    };
    Ok(match source_rows(below, context).await? {
        SourceRows::Left(left) => SourceRows::Left(Box::new(left.select(&columns, plan.schema())?)),
        SourceRows::Host(HostRows { batches, spill }) => {
            let renamed = batches.iter().map(|batch| {
                let kept = columns.iter().map(|column| batch.column(*column).clone());
                RecordBatch::try_new(plan.schema(), kept.collect())
            });
            let batches = renamed.collect::<std::result::Result<_, _>>()?;
            SourceRows::Host(HostRows { batches, spill })
        }
        SourceRows::Stream => SourceRows::Stream,
    })
}

/// The columns of a projection that only names and orders them, and what it is over.
fn renamed(plan: &Arc<dyn ExecutionPlan>) -> Option<(Vec<usize>, &Arc<dyn ExecutionPlan>)> {
    let projection = plan.downcast_ref::<ProjectionExec>()?;
    let columns = projection.expr().iter().map(|output| {
        let column = output.expr.downcast_ref::<Column>()?;
        Some(column.index())
    });
    let columns = columns.collect::<Option<Vec<_>>>()?;
    (!columns.is_empty()).then(|| (columns, projection.input()))
}

/// Whether a pipeline should read this source whole: its rows are on the device already,
/// or will stay there.
pub fn is_whole(source: &Arc<dyn ExecutionPlan>, device: &Device) -> bool {
    leaves_rows(source) || cached_scan(without_exchange(source), device).is_some()
}

/// Whether a node leaves its rows on the device.
fn leaves_rows(source: &Arc<dyn ExecutionPlan>) -> bool {
    let source = without_exchange(source);
    let collect = source.downcast_ref::<GpuCollectExec>();
    collect.is_some_and(GpuCollectExec::has_device_form)
        || source.is::<GpuAggregateExec>()
        || source.is::<GpuWindowExec>()
        || renamed(source).is_some_and(|(_, below)| leaves_rows(below))
}

/// The source as a scan whose columns are cached, if it is one and all of them fit the cache.
fn cached_scan(source: &Arc<dyn ExecutionPlan>, device: &Device) -> Option<FileScan> {
    if device.cache_bytes == 0 {
        return None;
    }
    let scan = FileScan::of(source)?;
    let n_rows = statistics_of(source.as_ref())?
        .num_rows
        .get_value()
        .copied()?;
    let schema = source.schema();
    let widths = schema.fields().iter().map(|field| match field.data_type() {
        DataType::Utf8 => TEXT_BYTES,
        other => other.primitive_width().unwrap_or(1).min(8),
    });
    let row_bytes: usize = widths.sum();
    (n_rows.saturating_mul(row_bytes) <= device.cache_bytes).then_some(scan)
}

/// What the text of a row is taken to need on the device.
const TEXT_BYTES: usize = 24;

/// Brings all rows of a plan to the device, or to the host if the device has no room; the
/// columns get the numbers that they are wanted under. `known` holds ranges of the plan's
/// columns.
pub async fn relation(
    plan: &Arc<dyn ExecutionPlan>,
    wanted: Vec<(usize, Wanted)>,
    codes: &Codes,
    known: Arc<HashMap<usize, Range>>,
    place: Place<'_>,
) -> Result<Relation, Failure> {
    let Place {
        device,
        spill,
        context,
    } = place;
    // A sort that stays on the CPU is why the rows have an order.
    let below = without_exchange(plan);
    let keeps_order = plan.output_ordering().is_some() && !Arc::ptr_eq(plan, below);
    let plan = if keeps_order { plan } else { below };
    let rows = match keeps_order {
        true => SourceRows::Stream,
        false => source_rows(plan, context).await?,
    };
    match rows {
        SourceRows::Left(left) => {
            let (device, codes, spill) = (device.clone(), codes.clone(), Arc::clone(spill));
            return blocking(move || of_left(*left, wanted, &codes, &device, &spill)).await;
        }
        SourceRows::Host(host) => {
            return of_batches(host.batches, plan.schema(), wanted, codes, known, place).await;
        }
        SourceRows::Stream => {}
    }
    if let Some(scan) = cached_scan(plan, device) {
        match cached(&scan, wanted.clone(), codes, device, context).await {
            Err(failure) if is_out_of_memory(&failure) => {}
            found => return found,
        }
    }
    if let Some(scan) = scan::open(plan, &wanted, codes, device, context).await?
        && !scan.pieces.pieces.is_empty()
    {
        let known = Arc::clone(&known);
        match scan.relation(codes, known, device, context).await {
            Err(failure) if is_out_of_memory(&failure) => {}
            read => return read,
        }
    }
    let batches = read_all(plan, context).await?;
    of_batches(batches, plan.schema(), wanted, codes, known, place).await
}

/// The relation of rows on the host.
async fn of_batches(
    batches: Vec<RecordBatch>,
    schema: SchemaRef,
    wanted: Vec<(usize, Wanted)>,
    codes: &Codes,
    known: Arc<HashMap<usize, Range>>,
    place: Place<'_>,
) -> Result<Relation, Failure> {
    let (device, codes) = (place.device.clone(), codes.clone());
    let spill = Arc::clone(place.spill);
    blocking(move || {
        let started = Instant::now();
        let n_rows = batches.iter().map(RecordBatch::num_rows).sum();
        let mut columns = HashMap::new();
        let mut texts = Texts::new();
        for (number, wanted) in wanted {
            let own = own_column(wanted, &codes)?;
            let parts = parts_of(&batches, own);
            let data_type = schema.field(own).data_type();
            let known = known.get(&own).copied();
            let (column, of_codes) = laid_out(&parts, data_type, wanted, &codes, known)?;
            texts.extend(of_codes);
            columns.insert(number, column);
        }
        drop(batches);
        let staging_ms = started.elapsed().as_secs_f64() * 1e3;
        let staged = StagedBatch::new(columns, n_rows);
        match upload(&device, &staged) {
            Ok((rows, counts)) => Ok(Relation {
                rows: Held::Rows(Arc::new(rows)),
                texts,
                staging_ms,
                counts,
            }),
            Err(failure) if is_out_of_memory(&failure) => {
                Relation::of_host(staged, texts, staging_ms, &spill)
            }
            Err(failure) => Err(failure),
        }
    })
    .await
}

/// The relation of a scan whose columns stay on the device: those that are there
/// already, and those that are read now.
async fn cached(
    scan: &FileScan,
    wanted: Vec<(usize, Wanted)>,
    codes: &Codes,
    device: &Device,
    context: &Arc<TaskContext>,
) -> Result<Relation, Failure> {
    let mut found = HashMap::new();
    let mut missing = Vec::new();
    for (number, wanted) in wanted {
        let own = own_column(wanted, codes)?;
        let codes_of = match wanted {
            Wanted::Own(_) => None,
            Wanted::Codes(of) => {
                let order = if codes.is_ordered(of) { "ordered " } else { "" };
                let text = codes.text(of)?;
                let missing = if text.of_missing { "missing " } else { "" };
                Some(format!("{order}{missing}{}", text.function))
            }
        };
        let key = scan.key(own, codes_of);
        match device.cache.get(&key) {
            Some(cached) => {
                found.insert(number, (wanted, cached));
            }
            None => missing.push((number, wanted, own, key)),
        }
    }
    let mut counts = RunCounts::default();
    let mut staging_ms = 0.0;
    if let Some(read) = read_missing(scan, &missing, codes, device, context).await?
        && let Held::Rows(rows) = &read.rows
    {
        for (number, wanted, _, key) in std::mem::take(&mut missing) {
            let of_codes = match wanted {
                Wanted::Codes(of) => read.texts.get(&of).cloned(),
                Wanted::Own(_) => None,
            };
            let cached = Cached {
                column: Arc::clone(rows.shared_column(number)?),
                texts: of_codes,
                n_rows: rows.n_rows,
            };
            device.cache.put(key, cached.clone(), device.cache_bytes);
            found.insert(number, (wanted, cached));
        }
        counts = read.counts;
    }
    // Without any column it is the rows that are counted.
    if !missing.is_empty() || found.is_empty() {
        let mut read: Vec<usize> = missing.iter().map(|(_, _, own, _)| *own).collect();
        read.sort_unstable();
        read.dedup();
        let plan = scan.of_columns(&read)?;
        let batches = read_all(&plan, context).await?;
        let gpu = Arc::clone(&device.gpu);
        let (device, codes, schema) = (device.clone(), codes.clone(), plan.schema());
        let (columns, n_rows, ms, bytes) = blocking(move || {
            let started = Instant::now();
            let n_rows: usize = batches.iter().map(RecordBatch::num_rows).sum();
            let mut columns = Vec::new();
            let mut bytes = 0;
            let mut ms = 0.0;
            for (number, wanted, own, key) in missing {
                let at = read.binary_search(&own).unwrap_or_default();
                let parts = parts_of(&batches, at);
                let data_type = schema.field(at).data_type();
                let (column, of_codes) = laid_out(&parts, data_type, wanted, &codes, None)?;
                ms += started.elapsed().as_secs_f64() * 1e3;
                let one = StagedBatch::new(HashMap::from([(0, column)]), n_rows);
                let (chunk, copied) = upload(&device, &one)?;
                chunk.wait()?;
                bytes += copied.bytes_to_device;
                let cached = Cached {
                    column: Arc::clone(chunk.shared_column(0)?),
                    texts: of_codes.map(|(_, texts)| texts),
                    n_rows,
                };
                device.cache.put(key, cached.clone(), device.cache_bytes);
                columns.push((number, (wanted, cached)));
            }
            Ok((columns, n_rows, ms, bytes))
        })
        .await?;
        staging_ms = ms;
        counts.bytes_to_device = bytes;
        if columns.is_empty() {
            let stream = Stream::new(&gpu)?;
            let rows = DeviceChunk::of_columns(&stream, HashMap::new(), n_rows)?;
            return Ok(Relation {
                rows: Held::Rows(Arc::new(rows)),
                texts: Texts::new(),
                staging_ms,
                counts,
            });
        }
        found.extend(columns);
    }
    let mut columns = HashMap::new();
    let mut texts = Texts::new();
    let mut n_rows = 0;
    for (number, (wanted, cached)) in found {
        if let (Wanted::Codes(of), Some(own)) = (wanted, cached.texts) {
            texts.insert(of, own);
        }
        n_rows = cached.n_rows;
        columns.insert(number, cached.column);
    }
    let stream = Stream::new(&device.gpu)?;
    let rows = DeviceChunk::of_columns(&stream, columns, n_rows)?;
    Ok(Relation {
        rows: Held::Rows(Arc::new(rows)),
        texts,
        staging_ms,
        counts,
    })
}

/// A column that is not cached: its number, as what it is wanted, its number in the scan,
/// and what it will be known by.
type Missing = (usize, Wanted, usize, Key);

/// Columns that the device reads by itself, if it can.
async fn read_missing(
    scan: &FileScan,
    missing: &[Missing],
    codes: &Codes,
    device: &Device,
    context: &Arc<TaskContext>,
) -> Result<Option<Relation>, Failure> {
    if missing.is_empty() {
        return Ok(None);
    }
    let plan = scan.of_all_columns()?;
    let wanted: Vec<(usize, Wanted)> = missing.iter().map(|(n, w, _, _)| (*n, *w)).collect();
    match scan::open(&plan, &wanted, codes, device, context).await? {
        Some(opened) if !opened.pieces.pieces.is_empty() => {
            let read = opened
                .relation(codes, Arc::default(), device, context)
                .await?;
            Ok(Some(read))
        }
        _ => Ok(None),
    }
}

/// The plan's column that is read for what is wanted.
fn own_column(wanted: Wanted, codes: &Codes) -> Result<usize, Failure> {
    Ok(match wanted {
        Wanted::Own(index) => index,
        Wanted::Codes(number) => codes.text(number)?.column,
    })
}

fn parts_of(batches: &[RecordBatch], column: usize) -> Vec<&dyn Array> {
    let parts = batches.iter().map(|batch| batch.column(column).as_ref());
    parts.collect()
}

/// A column, or the codes of one with their number and texts.
fn laid_out(
    parts: &[&dyn Array],
    data_type: &DataType,
    wanted: Wanted,
    codes: &Codes,
    known: Option<Range>,
) -> Result<(StagedColumn, Option<(usize, StringArray)>), Failure> {
    match wanted {
        Wanted::Own(_) => {
            let threads = std::thread::available_parallelism().map_or(1, usize::from);
            let staged = stage_parts(parts, data_type, known, threads);
            Ok((staged.map_err(refused)?, None))
        }
        Wanted::Codes(number) => {
            let (codes, texts) = encoded(parts, codes, number)?;
            Ok((staged(codes.as_ref(), None)?, Some((number, texts))))
        }
    }
}

fn refused(reason: Unsupported) -> Failure {
    KernelError::Unsupported(reason.message).into()
}

/// The relation of a collect's output, most of which is where it should be.
fn of_left(
    left: Left,
    wanted: Vec<(usize, Wanted)>,
    codes: &Codes,
    device: &Device,
    spill: &Spill,
) -> Result<Relation, Failure> {
    let mut columns = HashMap::new();
    let mut at_home = HashMap::new();
    let mut texts = Texts::new();
    for (number, wanted) in wanted {
        match wanted {
            Wanted::Own(index) => match left.column(index) {
                Some(column) => {
                    columns.insert(number, Arc::clone(column));
                }
                None => {
                    at_home.insert(number, staged(left.array(index)?.as_ref(), None)?);
                }
            },
            Wanted::Codes(of) => {
                let text = codes.text(of)?;
                let is_same = text.is_column() && !codes.is_ordered(of);
                match left.codes(text.column).filter(|_| is_same) {
                    Some((column, of_codes)) => {
                        columns.insert(number, Arc::clone(column));
                        texts.insert(of, of_codes.clone());
                    }
                    None => {
                        let array = left.array(text.column)?;
                        let (codes, of_codes) = encoded(&[array.as_ref()], codes, of)?;
                        at_home.insert(number, staged(codes.as_ref(), None)?);
                        texts.insert(of, of_codes);
                    }
                }
            }
        }
    }
    let n_rows = left.n_rows();
    let mut counts = left.counts;
    left.chunk.wait()?;
    let stream = Stream::new(&device.gpu)?;
    if !at_home.is_empty() {
        let at_home = StagedBatch::new(at_home, n_rows);
        match upload(device, &at_home) {
            Ok((copied, copies)) => {
                for number in at_home.columns().keys() {
                    columns.insert(*number, Arc::clone(copied.shared_column(*number)?));
                }
                counts = counts.and(&copies);
                // Whoever reads the columns waits for one event only, so these must be there.
                copied.wait()?;
            }
            Err(failure) if is_out_of_memory(&failure) => {
                let there = DeviceChunk::of_columns(&stream, columns, n_rows)?;
                let rows = StagedBatch::of_device(&there)?.beside(at_home);
                return Relation::of_host(rows, texts, left.staging_ms, spill);
            }
            Err(failure) => return Err(failure),
        }
    }
    let rows = DeviceChunk::of_columns(&stream, columns, n_rows)?;
    Ok(Relation {
        rows: Held::Rows(Arc::new(rows)),
        texts,
        staging_ms: left.staging_ms,
        counts,
    })
}

fn upload(device: &Device, staged: &StagedBatch) -> Result<(DeviceChunk, RunCounts), Failure> {
    let loader = Loader::new(&device.gpu, &device.pinned, Vec::new(), Arc::default())?;
    let rows = loader.upload(staged)?;
    let counts = RunCounts {
        bytes_to_device: staged.bytes() as u64,
        ..RunCounts::default()
    };
    Ok((rows, counts))
}

fn staged(array: &dyn Array, known: Option<Range>) -> Result<StagedColumn, Failure> {
    stage(array, known).map_err(refused)
}

/// The codes of a column that comes in parts, and their texts.
pub(super) fn encoded(
    parts: &[&dyn Array],
    codes: &Codes,
    number: usize,
) -> Result<(ArrayRef, StringArray), Failure> {
    let text = codes.text(number)?;
    let values = parts.iter().map(|part| {
        let values = text.of(&make_array(part.to_data()))?;
        Ok(match values.data_type() {
            DataType::Utf8 => values,
            _ => cast(&values, &DataType::Utf8)?,
        })
    });
    let values = values.collect::<Result<Vec<_>, Failure>>()?;
    let missing = text.text_of_missing()?;
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let (of_texts, texts) = encode_all(&values, missing.as_deref(), threads)?;
    let of_texts: ArrayRef = Arc::new(of_texts);
    match codes.is_ordered(number) {
        true => Ok(in_order(&of_texts, &texts)?),
        false => Ok((of_texts, texts)),
    }
}

/// All record batches of a plan, those of partition 0 first.
pub async fn read_all(
    plan: &Arc<dyn ExecutionPlan>,
    context: &Arc<TaskContext>,
) -> Result<Vec<RecordBatch>, Failure> {
    let mut tasks = tokio::task::JoinSet::new();
    for partition in 0..plan.output_partitioning().partition_count() {
        let mut rows = plan.execute(partition, Arc::clone(context))?;
        tasks.spawn(async move {
            let mut batches = Vec::new();
            while let Some(batch) = rows.next().await.transpose()? {
                if batch.num_rows() > 0 {
                    batches.push(batch);
                }
            }
            Ok::<_, DataFusionError>((partition, batches))
        });
    }
    let mut partitions = Vec::new();
    while let Some(ended) = tasks.join_next().await {
        let ended = ended.map_err(|e| internal(format!("a source task ended: {e}")))?;
        partitions.push(ended?);
    }
    partitions.sort_by_key(|(partition, _)| *partition);
    Ok(partitions
        .into_iter()
        .flat_map(|(_, batches)| batches)
        .collect())
}

/// Runs what blocks: laying out, copying, launching. A thread of the runtime must not.
pub async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Failure> + Send + 'static,
) -> Result<T, Failure> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|e| internal(format!("a thread of the pipeline ended: {e}")))?
}

/// A column of codes as text.
pub fn text_of(codes: &dyn Array, texts: &Texts, number: usize) -> Result<ArrayRef, Failure> {
    let texts = texts
        .get(&number)
        .ok_or_else(|| internal(format!("codes {number} have no texts")))?;
    Ok(decode(codes, texts)?)
}
