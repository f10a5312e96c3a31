//! Rows in host memory that are laid out as a device has them: what waits to be copied there,
//! or had to leave it.

use std::collections::HashMap;

use arrow::buffer::Buffer;

use crate::columns::{DeviceChunk, PIECE_ROWS, StagedColumn};
use crate::error::{Error, Result};
use crate::gpu::Stream;
use crate::ir::HASH_BITS;

/// Some columns of the same rows, by the numbers that they have on the device.
#[derive(Debug, Clone)]
pub struct StagedBatch {
    columns: HashMap<usize, StagedColumn>,
    n_rows: usize,
}

impl StagedBatch {
    /// Columns that are laid out already, by the numbers that they get on the device.
    pub fn new(columns: HashMap<usize, StagedColumn>, n_rows: usize) -> StagedBatch {
        StagedBatch { columns, n_rows }
    }

    /// A copy of a chunk.
    pub fn of_device(chunk: &DeviceChunk) -> Result<StagedBatch> {
        chunk.wait()?;
        let mut columns = HashMap::new();
        for number in chunk.numbers() {
            let column = chunk.column(number)?;
            let stream = Stream::new(column.gpu())?;
            let staged = StagedColumn::of_device(&stream, column, chunk.n_rows)?;
            columns.insert(number, staged);
        }
        Ok(StagedBatch::new(columns, chunk.n_rows))
    }

    /// The columns.
    pub fn columns(&self) -> &HashMap<usize, StagedColumn> {
        &self.columns
    }

    /// The columns of both, which are of the same rows.
    pub fn beside(mut self, other: StagedBatch) -> StagedBatch {
        self.columns.extend(other.columns);
        self
    }

    /// Those of the columns that have these numbers.
    pub fn only(&self, numbers: &[usize]) -> StagedBatch {
        let wanted = numbers.iter().filter_map(|number| {
            let column = self.columns.get(number)?;
            Some((*number, column.clone()))
        });
        StagedBatch::new(wanted.collect(), self.n_rows)
    }

    /// Number of rows.
    pub fn n_rows(&self) -> usize {
        self.n_rows
    }

    /// Bytes that it will take on the device.
    pub fn bytes(&self) -> usize {
        self.columns.values().map(StagedColumn::bytes).sum()
    }

    /// None of the rows.
    pub fn none(&self) -> StagedBatch {
        self.map(0, |column| column.piece(0, 0))
    }

    /// The rows in pieces of about so many, which share their memory with this.
    pub fn pieces(&self, n_rows: usize) -> impl Iterator<Item = StagedBatch> {
        let step = n_rows.next_multiple_of(PIECE_ROWS).max(PIECE_ROWS);
        let firsts = (0..self.n_rows).step_by(step);
        firsts.map(move |first| {
            let n_rows = step.min(self.n_rows - first);
            self.map(n_rows, |column| column.piece(first, n_rows))
        })
    }

    /// The rows of each slice, told by their hashes: a
    /// slice is an interval of them ([`slice_of_hashes`]). `n_slices` is a power of two.
    pub fn slices(&self, hashes: &[DeviceHashes], n_slices: usize) -> Result<Vec<StagedBatch>> {
        let n_hashes: usize = hashes.iter().map(|part| part.n_rows).sum();
        if n_hashes != self.n_rows {
            let message = format!("{n_hashes} hashes of {} rows", self.n_rows);
            return Err(Error::Internal(message));
        }
        if u32::try_from(self.n_rows).is_err() {
            return Err(Error::Unsupported("slices of more than 2^32 rows".into()));
        }
        let mut rows = vec![Vec::new(); n_slices];
        let mut row = 0;
        for part in hashes {
            for at in 0..part.n_rows {
                let slice = (part.hashes.integer(at)? as u64 * n_slices as u64) >> HASH_BITS;
                let slice = rows.get_mut(slice as usize);
                let slice = slice.ok_or_else(|| Error::Internal("a hash out of range".into()))?;
                slice.push(row);
                row += 1;
            }
        }
        let slices = rows
            .iter()
            .map(|rows| self.map(rows.len(), |column| column.select(rows)));
        Ok(slices.collect())
    }

    /// The rows with each buffer replaced by what `map` gives for it, which holds the same
    /// bytes.
    pub fn map_buffers<E>(
        self,
        map: &mut dyn FnMut(Buffer) -> std::result::Result<Buffer, E>,
    ) -> std::result::Result<StagedBatch, E> {
        let columns = self.columns.into_iter();
        let columns = columns.map(|(number, column)| Ok((number, column.map_buffers(map)?)));
        Ok(StagedBatch {
            columns: columns.collect::<std::result::Result<_, E>>()?,
            n_rows: self.n_rows,
        })
    }

    fn map(&self, n_rows: usize, map: impl Fn(&StagedColumn) -> StagedColumn) -> StagedBatch {
        let columns = self.columns.iter();
        let columns = columns.map(|(number, column)| (*number, map(column)));
        StagedBatch::new(columns.collect(), n_rows)
    }
}

/// The hashes of some rows, from the device.
#[derive(Debug)]
pub struct DeviceHashes {
    hashes: StagedColumn,
    n_rows: usize,
}

impl DeviceHashes {
    /// Column 0 of a chunk: the values of a [`crate::ir::Kind::Hash`].
    pub fn of_device(chunk: &DeviceChunk) -> Result<DeviceHashes> {
        chunk.wait()?;
        let column = chunk.column(0)?;
        let stream = Stream::new(column.gpu())?;
        let hashes = StagedColumn::of_device(&stream, column, chunk.n_rows)?;
        Ok(DeviceHashes {
            hashes,
            n_rows: chunk.n_rows,
        })
    }
}

/// The first and the last hash of a slice. `n_slices` is a power of two, at most
/// 2^[`HASH_BITS`].
pub fn slice_of_hashes(slice: usize, n_slices: usize) -> (i128, i128) {
    let width = (1i128 << HASH_BITS) / n_slices.max(1) as i128;
    let first = slice as i128 * width;
    (first, first + width - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_cover_all_hashes_once() {
        for n_slices in [1, 2, 8, 1024] {
            let mut next = 0;
            for slice in 0..n_slices {
                let (first, last) = slice_of_hashes(slice, n_slices);
                assert_eq!(first, next);
                for hash in [first, last] {
                    assert_eq!((hash as u64 * n_slices as u64) >> HASH_BITS, slice as u64);
                }
                next = last + 1;
            }
            assert_eq!(next, 1 << HASH_BITS);
        }
    }
}
