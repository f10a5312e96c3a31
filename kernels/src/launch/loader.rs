//! Record batches to chunks on the device: laying out, page-locking, copying. One
//! loader a thread; several work at once, and their copies overlap with kernels.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use arrow::array::{Array, RecordBatch};

use super::staged::StagedBatch;
use crate::codegen::Unsupported;
use crate::columns::{DeviceChunk, stage};
use crate::error::{Error, Result};
use crate::gpu::{Gpu, PinnedPool, Stream};
use crate::ir::Range;

/// How long a loader waits for page-locked memory that others hold.
const PINNED_WAIT: Duration = Duration::from_secs(60);

/// Copies the columns that a pipeline reads.
#[derive(Debug)]
pub struct Loader {
    gpu: Arc<dyn Gpu>,
    stream: Stream,
    pool: PinnedPool,
    columns: Vec<usize>,
    known: Arc<HashMap<usize, Range>>,
}

impl Loader {
    /// A loader of these columns. `known` holds ranges that statistics prove; they are
    /// used where the values do not contradict them.
    pub fn new(
        gpu: &Arc<dyn Gpu>,
        pool: &PinnedPool,
        columns: Vec<usize>,
        known: Arc<HashMap<usize, Range>>,
    ) -> Result<Loader> {
        Ok(Loader {
            gpu: Arc::clone(gpu),
            stream: Stream::new(gpu)?,
            pool: pool.clone(),
            columns,
            known,
        })
    }

    /// Lays the columns out. Takes no device memory.
    pub fn stage(&self, record_batch: &RecordBatch) -> Result<StagedBatch> {
        let mut columns = HashMap::new();
        for index in &self.columns {
            let array: &dyn Array = record_batch.column(*index);
            let known = self.known.get(index).copied();
            columns.insert(*index, stage(array, known).map_err(unsupported)?);
        }
        Ok(StagedBatch::new(columns, record_batch.num_rows()))
    }

    /// Copies a staged batch to the device. The copies are under way when this
    /// returns; whoever uses the chunk waits for them on the device.
    pub fn upload(&self, staged: &StagedBatch) -> Result<DeviceChunk> {
        DeviceChunk::upload(
            &self.gpu,
            &self.stream,
            &self.pool,
            PINNED_WAIT,
            staged.columns(),
            staged.n_rows(),
        )
    }
}

fn unsupported(reason: Unsupported) -> Error {
    Error::Unsupported(reason.message)
}
