//! The rows of a plan as columns on the device, and tables of them to probe.
//!
//! ```text
//!   CPU plan, all partitions ── record batches ── one array a column ── copy ─┐
//!   GpuCollectExec ── its output, which is on the device already ─────────────┴─ chunk
//! ```

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow::array::{Array, ArrayRef, RecordBatch, StringArray};
use arrow::compute::concat;
use arrow::datatypes::DataType;
use datafusion::error::DataFusionError;
use datafusion::execution::TaskContext;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};
use futures::StreamExt;
use kernels::budget::Reservation;
use kernels::columns::{DeviceChunk, StagedColumn, stage};
use kernels::error::Error as KernelError;
use kernels::gpu::Stream;
use kernels::ir::{Expr, Range};
use kernels::launch::{JoinTable, Loader, RunCounts, StagedBatch};

use super::Device;
use super::codes::{Codes, Texts, Wanted, decode, encode, internal};
use super::collect::{GpuCollectExec, Left};
use super::dictionary::{Dictionary, Encoder};
use super::failure::Failure;
use crate::lower::Joined;

/// How long a relation waits for device memory that others hold.
pub const MEMORY_WAIT: Duration = Duration::from_secs(30);

/// All rows of a plan, on the device.
#[derive(Debug)]
pub struct Relation {
    /// The columns that were wanted.
    pub rows: Arc<DeviceChunk>,
    /// The texts of its codes.
    pub texts: Texts,
    /// Time to lay columns out, milliseconds.
    pub staging_ms: f64,
    /// What was done to get it there.
    pub counts: RunCounts,
    /// Device memory that it holds.
    pub reserved: Vec<Reservation>,
}

/// Tables of the relations that a pipeline probes.
#[derive(Debug, Default)]
pub struct Tables {
    /// Relation 1 first.
    pub tables: Vec<JoinTable>,
    /// The texts of all codes.
    pub texts: Texts,
    /// As in [`Relation`].
    pub staging_ms: f64,
    /// As in [`Relation`].
    pub counts: RunCounts,
    /// As in [`Relation`].
    pub reserved: Vec<Reservation>,
}

/// Makes the table of every joined relation, all at the same time. `columns` are those
/// that the pipeline reads, of any relation.
pub async fn tables(
    joined: &[Joined],
    columns: &[usize],
    codes: &Codes,
    late: &[Expr],
    device: &Device,
    context: &Arc<TaskContext>,
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
            let relation = relation(&joined.plan, wanted, codes, known, device, context).await?;
            let device = device.clone();
            let (rows, texts) = (relation.rows, relation.texts);
            let (table, counts, own) = blocking(move || {
                let bytes = JoinTable::bytes_wanted(&build, &rows);
                let own = device.budget.reserve_or_wait(bytes, MEMORY_WAIT);
                let own = own.map_err(KernelError::from)?;
                let (table, counts) = JoinTable::build(&device.gpu, &device.jit, &build, rows)?;
                Ok((table, counts, own))
            })
            .await?;
            let mut reserved = relation.reserved;
            reserved.push(own);
            Ok::<_, Failure>((
                table,
                texts,
                relation.staging_ms,
                relation.counts.and(&counts),
                reserved,
            ))
        }
    });
    let mut all = Tables::default();
    for (table, texts, staging_ms, counts, reserved) in futures::future::try_join_all(built).await?
    {
        all.tables.push(table);
        all.texts.extend(texts);
        all.staging_ms += staging_ms;
        all.counts = all.counts.and(&counts);
        all.reserved.extend(reserved);
    }
    Ok(all)
}

/// Brings all rows of a plan to the device; the columns get the numbers that they are
/// wanted under. `known` holds ranges of the plan's columns.
pub async fn relation(
    plan: &Arc<dyn ExecutionPlan>,
    wanted: Vec<(usize, Wanted)>,
    codes: &Codes,
    known: Arc<HashMap<usize, Range>>,
    device: &Device,
    context: &Arc<TaskContext>,
) -> Result<Relation, Failure> {
    if let Some(collect) = plan.downcast_ref::<GpuCollectExec>()
        && collect.has_device_form()
    {
        let left = collect.run_on_device(context).await?;
        let (device, codes) = (device.clone(), codes.clone());
        return blocking(move || of_left(left, wanted, &codes, &device)).await;
    }
    let batches = read_all(plan, context).await?;
    let (device, codes, schema) = (device.clone(), codes.clone(), plan.schema());
    blocking(move || {
        let started = Instant::now();
        let n_rows = batches.iter().map(RecordBatch::num_rows).sum();
        let mut columns = HashMap::new();
        let mut texts = Texts::new();
        for (number, wanted) in wanted {
            let own = match wanted {
                Wanted::Own(index) => index,
                Wanted::Codes(number) => codes.text(number)?.column,
            };
            let data_type = schema.field(own).data_type();
            let parts: Vec<&dyn Array> = batches.iter().map(|b| b.column(own).as_ref()).collect();
            let column = match wanted {
                Wanted::Own(index) => {
                    let whole = whole(&parts, data_type)?;
                    staged(whole.as_ref(), known.get(&index).copied())?
                }
                Wanted::Codes(number) => {
                    let (codes, of_codes) = encoded(&parts, data_type, &codes, number)?;
                    texts.insert(number, of_codes);
                    staged(codes.as_ref(), None)?
                }
            };
            columns.insert(number, column);
        }
        let staging_ms = started.elapsed().as_secs_f64() * 1e3;
        let (rows, counts, reserved) = upload(&device, StagedBatch::new(columns, n_rows))?;
        Ok(Relation {
            rows: Arc::new(rows),
            texts,
            staging_ms,
            counts,
            reserved: vec![reserved],
        })
    })
    .await
}

/// The relation of a collect's output, most of which is where it should be.
fn of_left(
    left: Left,
    wanted: Vec<(usize, Wanted)>,
    codes: &Codes,
    device: &Device,
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
                match left.codes(text.column).filter(|_| text.is_column()) {
                    Some((column, of_codes)) => {
                        columns.insert(number, Arc::clone(column));
                        texts.insert(of, of_codes.clone());
                    }
                    None => {
                        let array = left.array(text.column)?;
                        let (codes, of_codes) =
                            encoded(&[array.as_ref()], array.data_type(), codes, of)?;
                        at_home.insert(number, staged(codes.as_ref(), None)?);
                        texts.insert(of, of_codes);
                    }
                }
            }
        }
    }
    let n_rows = left.n_rows();
    let mut reserved = left.reserved;
    let mut counts = left.counts;
    if !at_home.is_empty() {
        let numbers: Vec<usize> = at_home.keys().copied().collect();
        let (copied, copies, own) = upload(device, StagedBatch::new(at_home, n_rows))?;
        for number in numbers {
            columns.insert(number, Arc::clone(copied.shared_column(number)?));
        }
        counts = counts.and(&copies);
        reserved.push(own);
        // Whoever reads the columns waits for one event only, so these must be there.
        copied.wait()?;
    }
    let stream = Stream::new(&device.gpu)?;
    left.chunk.wait()?;
    let rows = DeviceChunk::of_columns(&stream, columns, n_rows)?;
    Ok(Relation {
        rows: Arc::new(rows),
        texts,
        staging_ms: left.staging_ms,
        counts,
        reserved,
    })
}

fn upload(
    device: &Device,
    staged: StagedBatch,
) -> Result<(DeviceChunk, RunCounts, Reservation), Failure> {
    let bytes = staged.bytes();
    let reserved = device.budget.reserve_or_wait(bytes, MEMORY_WAIT);
    let reserved = reserved.map_err(KernelError::from)?;
    let loader = Loader::new(&device.gpu, &device.pinned, Vec::new(), Arc::default())?;
    let rows = loader.upload(&staged)?;
    let counts = RunCounts {
        bytes_to_device: bytes as u64,
        ..RunCounts::default()
    };
    Ok((rows, counts, reserved))
}

fn staged(array: &dyn Array, known: Option<Range>) -> Result<StagedColumn, Failure> {
    stage(array, known).map_err(|reason| KernelError::Unsupported(reason.message).into())
}

fn whole(parts: &[&dyn Array], data_type: &DataType) -> Result<ArrayRef, Failure> {
    Ok(match parts {
        [] => arrow::array::new_empty_array(data_type),
        parts => concat(parts)?,
    })
}

/// The codes of a column that comes in parts, and their texts.
fn encoded(
    parts: &[&dyn Array],
    data_type: &DataType,
    codes: &Codes,
    number: usize,
) -> Result<(ArrayRef, StringArray), Failure> {
    let text = codes.text(number)?;
    let dictionary = Arc::new(Dictionary::default());
    let mut encoder = Encoder::new(&dictionary);
    let values = whole(parts, data_type)?;
    let codes = encode(&mut encoder, &text, &values)?;
    Ok((codes, dictionary.texts()))
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
