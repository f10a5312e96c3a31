//! Rows of words on the device that are found by their first words: the owner of
//! `cuda/table/group_table.h`.

use super::context::Context;
use super::parameters::ParameterBytes;
use crate::codegen::rehash_kernel;
use crate::error::{Error, Result};
use crate::gpu::DeviceBuffer;

/// The fewest slots of a table.
const SLOTS_MIN: usize = 1 << 12;

/// A table that grows between launches.
#[derive(Debug)]
pub(super) struct HashRows {
    slots: DeviceBuffer,
    n_slots: usize,
    rows: DeviceBuffer,
    /// How many `rows` has room for.
    rows_max: usize,
    /// How many there are, as the device counts them, and as they were last read.
    n_rows: DeviceBuffer,
    n_rows_host: usize,
    key_words: usize,
    row_words: usize,
}

impl HashRows {
    /// An empty table.
    pub(super) fn new(context: &Context, key_words: usize, row_words: usize) -> Result<HashRows> {
        let (gpu, stream) = (&context.gpu, &context.stream);
        Ok(HashRows {
            slots: DeviceBuffer::zeroed(gpu, stream, SLOTS_MIN * size_of::<u32>())?,
            n_slots: SLOTS_MIN,
            rows: DeviceBuffer::allocate(gpu, 0)?,
            rows_max: 0,
            n_rows: DeviceBuffer::zeroed(gpu, stream, size_of::<u32>())?,
            n_rows_host: 0,
            key_words,
            row_words,
        })
    }

    /// How many rows there were after the last launch.
    pub(super) fn len(&self) -> usize {
        self.n_rows_host
    }

    /// Words by which a row is found.
    pub(super) fn key_words(&self) -> usize {
        self.key_words
    }

    /// Words of a row.
    pub(super) fn row_words(&self) -> usize {
        self.row_words
    }

    /// Where the rows start.
    pub(super) fn address(&self) -> u64 {
        self.rows.ptr().0
    }

    /// How many more rows fit.
    pub(super) fn room(&self) -> usize {
        self.rows_max.min(self.n_slots / 2) - self.n_rows_host
    }

    pub(super) fn push_reference(&self, params: &mut ParameterBytes) {
        params.pair(self.slots.ptr().0, self.rows.ptr().0);
        params.pair(self.n_rows.ptr().0, self.n_slots as u64 - 1);
    }

    /// Reads how many rows there are after a launch.
    pub(super) fn read_len(&mut self, context: &Context) -> Result<()> {
        let n_rows: Vec<u32> = self.n_rows.to_vec(&context.stream)?;
        self.n_rows_host = n_rows.first().copied().unwrap_or(0) as usize;
        Ok(())
    }

    /// All words, on the host.
    pub(super) fn words(&self, context: &Context) -> Result<Vec<u64>> {
        match self.n_rows_host * self.row_words {
            0 => Ok(Vec::new()),
            n_words => self.rows.read::<u64>(&context.stream, 0, n_words),
        }
    }

    /// Makes the table large enough for `more` rows: twice as many slots, and a row
    /// each. Both at least double, so growing costs a bounded part of the run. When memory
    /// is short the table stays as it was.
    pub(super) fn make_room(&mut self, context: &mut Context, more: usize) -> Result<()> {
        let n = self.n_rows_host.saturating_add(more);
        // Numbers 0 and 1 of a slot have a meaning of their own.
        if n > u32::MAX as usize - 2 {
            return Err(Error::Unsupported(format!(
                "{n} groups: a table holds 2^32 - 3"
            )));
        }
        if n > self.rows_max {
            let rows_max = n.max(2 * self.rows_max);
            let bytes = rows_max * self.row_words * size_of::<u64>();
            let rows = DeviceBuffer::allocate(&context.gpu, bytes)?;
            let used = self.n_rows_host * self.row_words * size_of::<u64>();
            if used > 0 {
                rows.copy_from(&context.stream, 0, &self.rows, 0..used)?;
            }
            self.rows = rows;
            self.rows_max = rows_max;
        }
        if 2 * n > self.n_slots {
            let n_slots = (2 * n).next_power_of_two();
            let bytes = n_slots * size_of::<u32>();
            self.slots = DeviceBuffer::zeroed(&context.gpu, &context.stream, bytes)?;
            self.n_slots = n_slots;
            self.rehash(context)?;
        }
        Ok(())
    }

    fn rehash(&self, context: &mut Context) -> Result<()> {
        if self.n_rows_host == 0 {
            return Ok(());
        }
        let (name, text) = rehash_kernel();
        let entry = context.kernel(name, &text)?;
        let mut params = ParameterBytes::default();
        params.word(self.n_rows_host as u64);
        self.push_reference(&mut params);
        params.word(self.key_words as u64);
        params.word(self.row_words as u64);
        let shape = context.shape(&entry, self.n_rows_host, |_| 0)?;
        // SAFETY: the fields are those of `rehash`; the table outlives the call.
        unsafe { context.run(&entry, shape, &params) }
    }
}

/// The error of a launch that would have begun at this row. Rows before it are added
/// already, so whoever could try again with less memory must not.
pub(super) fn inside_chunk(error: Error, begin: usize) -> Error {
    match error.out_of_memory() {
        Some(short) if begin > 0 => Error::OutOfMemoryInside(short.clone()),
        _ => error,
    }
}
