//! One table of groups on the device that every chunk of a run adds to.

use super::context::Context;
use super::distinct::DistinctSets;
use super::hash_rows::{HashRows, inside_chunk};
use super::output::WrittenOutput;
use super::parameters::ParameterBytes;
use super::relations::Relations;
use super::totals::{Number, decode};
use crate::codegen::{
    CallState, GroupKeys, GroupLayout, GroupOutput, KeyWords, ManyGroupsKernel, ROWS_UNDER_WAY,
    generate_group_values,
};
use crate::columns::DeviceChunk;
use crate::error::{Error, Result};
use crate::gpu::{DeviceBuffer, Kernel};
use crate::ir::{Function, Type};

/// A table that was too small has room for so many times its groups next.
const GROWTH: usize = 3;

/// Rows of the first launch over a chunk, unless somebody says otherwise.
pub(super) const FIRST_ROWS: usize = 1 << 22;

/// How many rows come through the steps.
#[derive(Debug, Clone, Copy)]
pub(super) enum ComesThrough {
    /// So many of a whole chunk; one row may do so any number of times.
    All(usize),
    /// Each row at most so many times.
    Each(usize),
}

/// The table's owner: see `cuda/table/group_table.h`.
#[derive(Debug)]
pub(super) struct GroupTable {
    rows: HashRows,
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
        let row_words = kernel.key_words + kernel.state_words;
        Ok(GroupTable {
            rows: HashRows::new(context, kernel.key_words, row_words)?,
            first_rows: first_rows.max(1),
            keys: kernel.keys.clone(),
            calls: kernel.calls.clone(),
        })
    }

    /// Adds a chunk.
    ///
    /// How many groups there will be is not known, so the table starts small. A kernel that
    /// can stop does so when little room is left, and goes on in a larger table; any other
    /// takes no more rows than there is room for, as each may be a group of its own.
    pub(super) fn add(
        &mut self,
        context: &mut Context,
        kernel: &ManyGroupsKernel,
        rows: &Relations<'_>,
        comes_through: ComesThrough,
        sets: &mut DistinctSets,
    ) -> Result<()> {
        if kernel.keys != self.keys
            || kernel.key_words + kernel.state_words != self.rows.row_words()
        {
            return Err(Error::Internal(
                "two chunks lay their groups out differently".into(),
            ));
        }
        let entry = context.kernel(&kernel.name, &kernel.text)?;
        self.calls.clone_from(&kernel.calls);
        let mut head = ParameterBytes::default();
        rows.push(&mut head, context, &kernel.columns, &kernel.parameters)?;
        let (n_rows, n_before) = (rows.n_rows(), self.rows.len());
        if kernel.stops {
            return self.add_by_stops(context, &entry, rows.n_rows(), &head);
        }
        sets.start(context, &kernel.sets)?;
        let mut begin = 0;
        while begin < n_rows {
            let left = n_rows - begin;
            let n_now = match comes_through {
                // Which rows do so many times is not known: all of them must fit.
                ComesThrough::All(rows_max) => {
                    self.rows.make_room(context, rows_max).and_then(|()| {
                        sets.make_room(context, rows_max)?;
                        Ok(left)
                    })
                }
                ComesThrough::Each(times) => {
                    let wanted = if begin == 0 {
                        left.min(self.first_rows)
                    } else {
                        let n_new = (self.rows.len() - n_before) as f64;
                        let likely = n_new / (begin * times) as f64 * left as f64 * 1.2;
                        left.min((likely as usize).max(self.first_rows))
                    };
                    let made = self.rows.make_room(context, wanted.saturating_mul(times));
                    made.and_then(|()| {
                        let n_now = left.min(self.rows.room() / times);
                        sets.make_room(context, n_now.saturating_mul(times))?;
                        Ok(n_now)
                    })
                }
            };
            let n_now = n_now.map_err(|error| inside_chunk(error, begin))?;
            let mut params = ParameterBytes::default();
            params.word((begin + n_now) as u64);
            params.word(context.fault_address());
            params.word(begin as u64);
            self.rows.push_reference(&mut params);
            sets.push_references(&mut params);
            params.append(&head);
            let shape = context.shape(&entry, n_now, |_| 0)?;
            // SAFETY: the fields were appended in the order of the generated struct;
            // table and rows outlive the call, which waits for the kernel.
            unsafe { context.run(&entry, shape, &params)? };
            self.rows.read_len(context)?;
            sets.read_lens(context)?;
            begin += n_now;
        }
        Ok(())
    }

    /// Launches until no thread has rows left.
    fn add_by_stops(
        &mut self,
        context: &mut Context,
        entry: &Kernel,
        n_rows: usize,
        head: &ParameterBytes,
    ) -> Result<()> {
        let shape = context.shape(entry, n_rows, |_| 0)?;
        let n_threads = shape.grid as usize * shape.block as usize;
        let under_way = n_threads * ROWS_UNDER_WAY;
        let (gpu, stream) = (&context.gpu, &context.stream);
        let done = DeviceBuffer::zeroed(gpu, stream, n_threads * size_of::<u64>())?;
        let mut wanted = self.first_rows.max(2 * under_way).min(n_rows);
        for launch in 0.. {
            let room = self.rows.make_room(context, wanted);
            room.map_err(|error| inside_chunk(error, launch))?;
            let room = self.rows.room();
            // A row makes one group at most.
            let limit = match room >= n_rows {
                true => u64::MAX,
                false => (self.rows.len() + room.saturating_sub(under_way)) as u64,
            };
            let stopped = DeviceBuffer::zeroed(&context.gpu, &context.stream, size_of::<u32>())?;
            let mut params = ParameterBytes::default();
            params.word(n_rows as u64);
            params.word(context.fault_address());
            params.word(0);
            self.rows.push_reference(&mut params);
            params.pair(done.ptr().0, stopped.ptr().0);
            params.word(limit);
            params.append(head);
            // SAFETY: the fields were appended in the order of the generated struct;
            // table, progress and rows outlive the call, which waits for the kernel.
            // `done` has a word for each thread, and above the limit there is room for
            // every row that threads have under way.
            unsafe { context.run(entry, shape, &params)? };
            self.rows.read_len(context)?;
            let stopped: Vec<u32> = stopped.to_vec(&context.stream)?;
            if stopped.first() == Some(&0) {
                break;
            }
            wanted = (GROWTH * self.rows.len()).max(2 * under_way).min(n_rows);
        }
        Ok(())
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
                n_words: self.rows.key_words(),
            },
            calls: &self.calls,
            functions,
        };
        let kernel = generate_group_values(layout, outputs)
            .map_err(|reason| Error::Unsupported(reason.message))?;
        let entry = context.kernel(&kernel.name, &kernel.text)?;
        let n_rows = self.rows.len();
        let mut params = ParameterBytes::default();
        params.word(n_rows as u64);
        params.word(context.fault_address());
        params.word(self.rows.address());
        params.word(self.rows.row_words() as u64);
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
        let words = self.rows.words(context)?;
        context.counts.bytes_to_host += words.len() as u64 * 8;
        Ok(ManyGroups {
            words,
            n_groups: self.rows.len(),
            key_words: self.rows.key_words(),
            row_words: self.rows.row_words(),
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
