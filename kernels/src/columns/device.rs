//! Columns in device memory: a chunk that kernels can read any number of times.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use super::StagedColumn;
use crate::codegen::ColumnShape;
use crate::error::{Error, Result};
use crate::gpu::{DeviceBuffer, Event, Gpu, PinnedPool, Stream};
use crate::ir::Range;

/// One column of a chunk on the device.
#[derive(Debug)]
pub struct DeviceColumn {
    /// How a kernel reads it.
    pub shape: ColumnShape,
    /// The interval of its values where that is known better than the shape says.
    pub range: Option<Range>,
    values: DeviceBuffer,
    validity: Option<DeviceBuffer>,
    /// Of text: where each row starts, and the end.
    offsets: Option<DeviceBuffer>,
}

impl DeviceColumn {
    /// A column of buffers that a kernel filled: elements, and one validity bit a row.
    pub(crate) fn new(
        shape: ColumnShape,
        values: DeviceBuffer,
        validity: Option<DeviceBuffer>,
    ) -> DeviceColumn {
        DeviceColumn {
            shape,
            range: None,
            values,
            validity,
            offsets: None,
        }
    }

    /// The same column with what is known better than the shape says: the interval of
    /// its values, and of text where each row starts.
    pub(crate) fn with(self, range: Option<Range>, offsets: Option<DeviceBuffer>) -> DeviceColumn {
        DeviceColumn {
            range,
            offsets,
            ..self
        }
    }

    /// Of text: where each row starts, and the end.
    pub(crate) fn offsets(&self) -> Option<&DeviceBuffer> {
        self.offsets.as_ref()
    }

    /// The device that it is on.
    pub fn gpu(&self) -> &Arc<dyn Gpu> {
        self.values.gpu()
    }

    /// The buffers of elements and of validity bits.
    pub(crate) fn buffers(&self) -> (&DeviceBuffer, Option<&DeviceBuffer>) {
        (&self.values, self.validity.as_ref())
    }

    /// Where the elements start.
    pub fn values_address(&self) -> u64 {
        self.values.ptr().0
    }

    /// Where the validity bits start; 0 when no row is null.
    pub fn validity_address(&self) -> u64 {
        self.validity.as_ref().map_or(0, |bits| bits.ptr().0)
    }

    /// The words of its reference in a kernel's parameters, two for each 16 bytes.
    pub(crate) fn reference(&self) -> Vec<(u64, u64)> {
        let mut words = vec![(self.values_address(), self.validity_address())];
        if let Some(offsets) = &self.offsets {
            words.push((offsets.ptr().0, 0));
        }
        words
    }

    /// Bytes of elements, offsets and validity.
    pub fn bytes(&self) -> usize {
        let beside = self.validity.iter().chain(&self.offsets);
        self.values.bytes() + beside.map(DeviceBuffer::bytes).sum::<usize>()
    }
}

/// Some columns of one chunk, by their number in the source.
#[derive(Debug)]
pub struct DeviceChunk {
    /// Number of rows.
    pub n_rows: usize,
    columns: HashMap<usize, Arc<DeviceColumn>>,
    /// The end of the copies.
    ready: Event,
}

/// Page-locked memory that one copy takes at most: a column may be larger than all of it.
const PIECE_BYTES: usize = 128 << 20;

impl DeviceChunk {
    /// Copies staged columns to the device, through page-locked memory of `pool`,
    /// which the device reads eight times as fast as pageable. The copies are enqueued
    /// on `stream` when this returns.
    pub fn upload(
        gpu: &Arc<dyn Gpu>,
        stream: &Stream,
        pool: &PinnedPool,
        pinned_wait: Duration,
        staged: &HashMap<usize, StagedColumn>,
        n_rows: usize,
    ) -> Result<DeviceChunk> {
        let upload = |bytes: &[u8]| -> Result<DeviceBuffer> {
            let buffer = DeviceBuffer::allocate(gpu, bytes.len())?;
            for (number, piece) in bytes.chunks(PIECE_BYTES).enumerate() {
                let mut pinned = pool.take_or_wait(piece.len(), pinned_wait)?;
                pinned.as_mut_slice()[..piece.len()].copy_from_slice(piece);
                buffer.upload(stream, number * PIECE_BYTES, &pinned, 0..piece.len())?;
            }
            Ok(buffer)
        };
        let mut columns = HashMap::with_capacity(staged.len());
        for (index, column) in staged {
            let values = upload(column.values.as_slice())?;
            let validity = match &column.validity {
                Some(bits) => Some(upload(bits)?),
                None => None,
            };
            let offsets = match &column.offsets {
                Some(offsets) => Some(upload(offsets.as_slice())?),
                None => None,
            };
            let column = DeviceColumn {
                shape: column.shape,
                range: column.range,
                values,
                validity,
                offsets,
            };
            columns.insert(*index, Arc::new(column));
        }
        let ready = Event::record(stream)?;
        Ok(DeviceChunk {
            n_rows,
            columns,
            ready,
        })
    }

    /// A chunk of columns that are there once what is now on `stream` is done.
    pub fn of_columns(
        stream: &Stream,
        columns: HashMap<usize, Arc<DeviceColumn>>,
        n_rows: usize,
    ) -> Result<DeviceChunk> {
        let ready = Event::record(stream)?;
        Ok(DeviceChunk {
            n_rows,
            columns,
            ready,
        })
    }

    /// The same rows with one more column. Later work on `stream` waits for all of them.
    pub(crate) fn with_column(
        &self,
        stream: &Stream,
        index: usize,
        column: Arc<DeviceColumn>,
    ) -> Result<DeviceChunk> {
        self.wait_on(stream)?;
        let mut columns = self.columns.clone();
        columns.insert(index, column);
        DeviceChunk::of_columns(stream, columns, self.n_rows)
    }

    /// Waits until the columns are there.
    pub fn wait(&self) -> Result<()> {
        self.ready.wait()
    }

    /// Makes later work on `stream` wait for the copies.
    pub fn wait_on(&self, stream: &Stream) -> Result<()> {
        stream.wait_for(&self.ready)
    }

    /// The column of this number.
    pub fn column(&self, index: usize) -> Result<&DeviceColumn> {
        self.shared_column(index).map(|column| column.as_ref())
    }

    /// As [`DeviceChunk::column`], to be kept.
    pub fn shared_column(&self, index: usize) -> Result<&Arc<DeviceColumn>> {
        self.columns
            .get(&index)
            .ok_or_else(|| Error::Internal(format!("column {index} is not on the device")))
    }

    /// The numbers of the columns.
    pub fn numbers(&self) -> Vec<usize> {
        self.columns.keys().copied().collect()
    }

    /// How every column is read.
    pub fn shapes(&self) -> HashMap<usize, ColumnShape> {
        self.columns
            .iter()
            .map(|(index, column)| (*index, column.shape))
            .collect()
    }

    /// Bytes of all columns.
    pub fn bytes(&self) -> usize {
        self.columns.values().map(|column| column.bytes()).sum()
    }
}
