//! One table of groups on the device that every chunk of a run adds to.

use super::context::Context;
use super::output::WrittenOutput;
use super::parameters::ParameterBytes;
use super::relations::Relations;
use super::totals::{Number, decode};
use crate::codegen::{
    CallState, GroupKeys, GroupLayout, GroupOutput, KeyWords, ManyGroupsKernel,
    generate_group_values, rehash_kernel,
};
use crate::columns::DeviceChunk;
use crate::error::{Error, Result};
use crate::gpu::DeviceBuffer;
use crate::ir::{Function, Type};

/// The fewest slots of a table.
const SLOTS_MIN: usize = 1 << 12;

/// Rows of the first launch over a chunk, unless somebody says otherwise.
pub(super) const FIRST_ROWS: usize = 1 << 22;

/// The table's owner: see `cuda/table/group_table.h`.
#[derive(Debug)]
pub(super) struct GroupTable {
    slots: DeviceBuffer,
    n_slots: usize,
    rows: DeviceBuffer,
    /// Groups that `rows` has room for.
    rows_max: usize,
    n_groups: DeviceBuffer,
    n_groups_host: usize,
    key_words: usize,
    row_words: usize,
    /// Rows of the first launch over a chunk.
    first_rows: usize,
    /// How the last kernel laid keys and states out; every kernel of a run agrees.
    keys: Vec<KeyWords>,
    calls: Vec<CallState>,
}

impl GroupTable {
    /// An empty table for the groups of this kernel.
    pub(super) fn new(
        context: &Context,
        kernel: &ManyGroupsKernel,
        first_rows: usize,
    ) -> Result<GroupTable> {
        let (gpu, stream) = (&context.gpu, &context.stream);
        Ok(GroupTable {
            slots: DeviceBuffer::zeroed(gpu, stream, SLOTS_MIN * size_of::<u32>())?,
            n_slots: SLOTS_MIN,
            rows: DeviceBuffer::allocate(gpu, 0)?,
            rows_max: 0,
            n_groups: DeviceBuffer::zeroed(gpu, stream, size_of::<u32>())?,
            n_groups_host: 0,
            key_words: kernel.key_words,
            row_words: kernel.key_words + kernel.state_words,
            first_rows: first_rows.max(1),
            keys: kernel.keys.clone(),
            calls: kernel.calls.clone(),
        })
    }

    /// Adds a chunk, of which `rows_max` rows come through the steps at most: more than
    /// it has when some come through several times.
    ///
    /// Each row may be a group of its own, so the table has room for all rows of a launch
    /// before it starts, and nothing can overflow during it. How many groups there will
    /// be is not known, so the first launch takes few rows, and later ones as many as the
    /// share of new groups so far lets fit.
    pub(super) fn add(
        &mut self,
        context: &mut Context,
        kernel: &ManyGroupsKernel,
        rows: &Relations<'_>,
        rows_max: usize,
    ) -> Result<()> {
        if kernel.keys != self.keys || kernel.key_words + kernel.state_words != self.row_words {
            return Err(Error::Internal(
                "two chunks lay their groups out differently".into(),
            ));
        }
        let entry = context.kernel(&kernel.name, &kernel.text)?;
        self.calls.clone_from(&kernel.calls);
        let mut head = ParameterBytes::default();
        rows.push(&mut head, context, &kernel.columns, &kernel.parameters)?;
        let (n_rows, n_before) = (rows.n_rows(), self.n_groups_host);
        let mut begin = 0;
        while begin < n_rows {
            let left = n_rows - begin;
            let wanted = if rows_max > n_rows {
                // Some rows come through many times: all of them must fit.
                rows_max
            } else if begin == 0 {
                left.min(self.first_rows)
            } else {
                let n_new = (self.n_groups_host - n_before) as f64;
                let likely = n_new / begin as f64 * left as f64 * 1.2;
                left.min((likely as usize).max(self.first_rows))
            };
            self.make_room(context, self.n_groups_host.saturating_add(wanted))?;
            let n_now = match rows_max > n_rows {
                true => left,
                false => left.min(self.room()),
            };
            let mut params = ParameterBytes::default();
            params.word((begin + n_now) as u64);
            params.word(context.fault_address());
            params.word(begin as u64);
            self.push_reference(&mut params);
            params.append(&head);
            let shape = context.shape(&entry, n_now, |_| 0)?;
            // SAFETY: the fields were appended in the order of the generated struct;
            // table and rows outlive the call, which waits for the kernel.
            unsafe { context.run(&entry, shape, &params)? };
            let n_groups: Vec<u32> = self.n_groups.to_vec(&context.stream)?;
            self.n_groups_host = n_groups.first().copied().unwrap_or(0) as usize;
            begin += n_now;
        }
        Ok(())
    }

    /// How many more groups fit.
    fn room(&self) -> usize {
        self.rows_max.min(self.n_slots / 2) - self.n_groups_host
    }

    fn push_reference(&self, params: &mut ParameterBytes) {
        params.pair(self.slots.ptr().0, self.rows.ptr().0);
        params.pair(self.n_groups.ptr().0, self.n_slots as u64 - 1);
    }

    /// Makes the table large enough for `n` groups: twice as many slots, and a row
    /// each. Both at least double, so growing costs a bounded part of the run.
    fn make_room(&mut self, context: &mut Context, n: usize) -> Result<()> {
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
            let used = self.n_groups_host * self.row_words * size_of::<u64>();
            if used > 0 {
                rows.copy_from(&context.stream, 0, &self.rows, 0..used)?;
            }
            self.rows = rows;
            self.rows_max = rows_max;
        }
        if 2 * n > self.n_slots {
            self.n_slots = (2 * n).next_power_of_two();
            let bytes = self.n_slots * size_of::<u32>();
            self.slots = DeviceBuffer::zeroed(&context.gpu, &context.stream, bytes)?;
            self.rehash(context)?;
        }
        Ok(())
    }

    fn rehash(&self, context: &mut Context) -> Result<()> {
        if self.n_groups_host == 0 {
            return Ok(());
        }
        let (name, text) = rehash_kernel();
        let entry = context.kernel(name, &text)?;
        let mut params = ParameterBytes::default();
        params.word(self.n_groups_host as u64);
        self.push_reference(&mut params);
        params.word(self.key_words as u64);
        params.word(self.row_words as u64);
        let shape = context.shape(&entry, self.n_groups_host, |_| 0)?;
        // SAFETY: the fields are those of `rehash`; the table outlives the call.
        unsafe { context.run(&entry, shape, &params) }
    }

    /// The groups as columns on the device, numbered from 0.
    pub(super) fn columns(
        &self,
        context: &mut Context,
        functions: &[Function],
        outputs: &[(GroupOutput, Type)],
    ) -> Result<DeviceChunk> {
        let layout = GroupLayout {
            keys: GroupKeys::Words {
                keys: &self.keys,
                n_words: self.key_words,
            },
            calls: &self.calls,
            functions,
        };
        let kernel = generate_group_values(layout, outputs)
            .map_err(|reason| Error::Unsupported(reason.message))?;
        let entry = context.kernel(&kernel.name, &kernel.text)?;
        let n_rows = self.n_groups_host;
        let mut params = ParameterBytes::default();
        params.word(n_rows as u64);
        params.word(context.fault_address());
        params.word(self.rows.ptr().0);
        params.word(self.row_words as u64);
        let written = WrittenOutput::allocate(context, &kernel.outputs, n_rows, &mut params)?;
        let n_pieces = n_rows.div_ceil(context.rows_threads() as usize);
        let shape = context.rows_shape(&entry, n_pieces)?;
        // SAFETY: the fields were appended in the order of the generated struct; table
        // and outputs outlive the call, and have a place for every group.
        unsafe { context.run(&entry, shape, &params)? };
        WrittenOutput::columns(context, written, n_rows)
    }

    /// Copies the groups home.
    pub(super) fn finish(
        self,
        context: &mut Context,
        functions: &[Function],
    ) -> Result<ManyGroups> {
        let n_words = self.n_groups_host * self.row_words;
        let words = if n_words == 0 {
            Vec::new()
        } else {
            self.rows.read::<u64>(&context.stream, 0, n_words)?
        };
        context.counts.bytes_to_host += n_words as u64 * 8;
        Ok(ManyGroups {
            words,
            n_groups: self.n_groups_host,
            key_words: self.key_words,
            row_words: self.row_words,
            keys: self.keys,
            calls: self.calls,
            functions: functions.to_vec(),
        })
    }
}

/// The groups of a table, on the host, as the device laid them out.
#[derive(Debug)]
pub(super) struct ManyGroups {
    words: Vec<u64>,
    n_groups: usize,
    key_words: usize,
    row_words: usize,
    keys: Vec<KeyWords>,
    calls: Vec<CallState>,
    functions: Vec<Function>,
}

impl ManyGroups {
    /// Number of groups.
    pub(super) fn len(&self) -> usize {
        self.n_groups
    }

    /// The value of key `key` of a group; null when it is null.
    pub(super) fn key(&self, key: usize, group: usize) -> Option<Number> {
        let row = &self.words[group * self.row_words..][..self.row_words];
        let words = self.keys[key];
        if words.null_bit.is_some_and(|bit| row[0] >> bit & 1 == 1) {
            return None;
        }
        let low = row[words.at];
        Some(if words.is_float {
            Number::Float(f64::from_bits(low))
        } else if words.n_words == 2 {
            Number::Integer((u128::from(row[words.at + 1]) << 64 | u128::from(low)) as i128)
        } else {
            Number::Integer(i128::from(low as i64))
        })
    }

    /// The value of call `call` of a group; null when no row went in.
    pub(super) fn value(&self, call: usize, group: usize) -> Result<Option<Number>> {
        let row = &self.words[group * self.row_words..][..self.row_words];
        decode(
            self.functions[call],
            &self.calls[call],
            &row[self.key_words..],
        )
    }
}
