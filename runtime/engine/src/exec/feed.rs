//! All partitions of a source at once, gathered to chunks.
//!
//! ```text
//!   partition 0 ── record batches ── chunk laid out ──┐
//!   partition 1 ── record batches ── chunk laid out ──┤ permit ── copy, launch
//!   ...                                               │
//!   partition N ── record batches ── chunk laid out ──┘
//! ```
//!
//! Decoding and laying out run on all cores; no more chunks than the device's permits
//! are between copy and result at a time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arrow::array::RecordBatch;
use arrow::compute::concat_batches;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};
use futures::StreamExt;
use tokio::task::JoinSet;

use super::Device;
use super::codes::internal;
use super::failure::Failure;
use super::relation::blocking;

/// Rows gathered before a launch: enough to fill a device, little enough that every
/// core can hold a chunk.
pub const CHUNK_ROWS: usize = 1 << 18;

/// What takes the chunks of one partition. It runs on blocking threads.
pub trait Consumer: Send + 'static {
    /// A chunk that is ready to be copied.
    type LaidOut: Send + 'static;

    /// Lays a chunk out in host memory.
    fn lay_out(&mut self, chunk: RecordBatch) -> Result<Self::LaidOut, Failure>;

    /// Brings a chunk to the device and adds it.
    fn add(&mut self, chunk: Self::LaidOut) -> Result<(), Failure>;
}

/// Executes every partition of `source` and gives its chunks to a consumer of its own.
/// Ends with the first failure, when all partitions have ended: the others do at their next
/// record batch.
pub async fn feed<C: Consumer>(
    source: &Arc<dyn ExecutionPlan>,
    context: &Arc<TaskContext>,
    device: &Device,
    mut consumer: impl FnMut() -> Result<C, Failure>,
) -> Result<(), Failure> {
    let mut tasks = JoinSet::new();
    let stop = Arc::new(AtomicBool::new(false));
    for partition in 0..source.output_partitioning().partition_count() {
        let stream = source.execute(partition, Arc::clone(context))?;
        tasks.spawn(drain(
            stream,
            device.clone(),
            consumer()?,
            Arc::clone(&stop),
        ));
    }
    let mut first = Ok(());
    while let Some(ended) = tasks.join_next().await {
        let ended = ended.map_err(|error| {
            Failure::from(internal(format!("a task of the pipeline ended: {error}")))
        });
        if let Err(failure) = ended.and_then(|ended| ended) {
            stop.store(true, Ordering::Relaxed);
            first = first.and(Err(failure));
        }
    }
    first
}

async fn drain<C: Consumer>(
    mut stream: SendableRecordBatchStream,
    device: Device,
    mut consumer: C,
    stop: Arc<AtomicBool>,
) -> Result<(), Failure> {
    let mut pending: Vec<RecordBatch> = Vec::new();
    let mut n_rows = 0;
    loop {
        if stop.load(Ordering::Relaxed) {
            return Ok(());
        }
        let next = stream.next().await.transpose()?;
        let is_done = next.is_none();
        if let Some(batch) = next
            && batch.num_rows() > 0
        {
            n_rows += batch.num_rows();
            pending.push(batch);
        }
        if n_rows >= CHUNK_ROWS || (is_done && n_rows > 0) {
            let batches = std::mem::take(&mut pending);
            n_rows = 0;
            // Laying out, copying and waiting block; a thread of the runtime must not.
            let (used, laid_out) = blocking(move || {
                let chunk = concat_batches(&batches[0].schema(), &batches)?;
                drop(batches);
                let laid_out = consumer.lay_out(chunk)?;
                Ok((consumer, laid_out))
            })
            .await?;
            let permit = device.admission.acquire().await;
            consumer = blocking(move || {
                let _permit = permit;
                let mut consumer = used;
                consumer.add(laid_out)?;
                Ok(consumer)
            })
            .await?;
        }
        if is_done {
            return Ok(());
        }
    }
}
