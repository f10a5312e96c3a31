//! Groups of one integral key, at the key's distance from the smallest.

use super::context::Context;
use super::output::WrittenOutput;
use super::parameters::ParameterBytes;
use super::relations::Relations;
use crate::codegen::{
    CallState, DenseGroupsKernel, GroupKeys, GroupLayout, GroupOutput, collect_tile_rows,
    generate_group_values,
};
use crate::columns::DeviceChunk;
use crate::error::{Error, Result};
use crate::gpu::DeviceBuffer;
use crate::ir::{Aggregate, Function, Kind, Range, Type};

/// Words of state for each row that is read, up to which groups are laid out densely: a
/// hashed table has twice as many slots as groups, and their keys.
const WORDS_PER_ROW: usize = 6;

/// So many words are always worth it: they stay in the fastest cache.
const WORDS_FREE: usize = 1 << 20;

/// The states of all groups: see `codegen::dense_groups`.
#[derive(Debug)]
pub(super) struct DenseGroups {
    state: DeviceBuffer,
    /// Groups that there can be, with that of null.
    n_groups: usize,
    state_words: usize,
    range: Range,
    nullable: bool,
    calls: Vec<CallState>,
}

/// The interval of the only key, if it is an integral column whose values are known to
/// lie so close together that dense groups with states of `state_words` are worth it, and take
/// a part of the `free` bytes of memory only.
pub(super) fn dense_key(
    aggregate: &Aggregate,
    rows: &Relations<'_>,
    state_words: usize,
    free: usize,
) -> Option<Range> {
    let range = key_range(aggregate, rows)?;
    let n_values = usize::try_from(range.max.checked_sub(range.min)?.checked_add(2)?).ok()?;
    let words = n_values.checked_mul(state_words)?;
    let worth = rows.n_rows().saturating_mul(WORDS_PER_ROW).max(WORDS_FREE);
    let affordable = free / FREE_PART / size_of::<u64>();
    (words <= worth.min(affordable)).then_some(range)
}

/// Dense groups take this part of the free memory at most.
const FREE_PART: usize = 4;

/// The interval of the only key, if it is an integral column and that is known.
pub(super) fn key_range(aggregate: &Aggregate, rows: &Relations<'_>) -> Option<Range> {
    let [key] = aggregate.keys.as_slice() else {
        return None;
    };
    let Kind::Column(index) = key.kind else {
        return None;
    };
    let range = rows.column(index).ok()?.range?;
    (range.fits(64) && key.ty.is_integral()).then_some(range)
}

impl DenseGroups {
    /// Adds up all rows.
    pub(super) fn of(
        context: &mut Context,
        aggregate: &Aggregate,
        kernel: &DenseGroupsKernel,
        rows: &Relations<'_>,
        range: Range,
    ) -> Result<DenseGroups> {
        let nullable = aggregate.keys.first().is_some_and(|key| key.nullable);
        let n_values = usize::try_from(range.max - range.min + 1)
            .map_err(|_| Error::Internal("too many dense groups".into()))?;
        let n_groups = n_values + usize::from(nullable);
        let words = n_groups * kernel.state_words;
        let bytes = words * size_of::<u64>();
        let state = DeviceBuffer::zeroed(&context.gpu, &context.stream, bytes)?;
        let min = i64::try_from(range.min)
            .map_err(|_| Error::Internal("a dense key past 64 bits".into()))?;
        let entry = context.kernel(&kernel.name, &kernel.text)?;
        let mut params = ParameterBytes::default();
        params.word(rows.n_rows() as u64);
        params.word(context.fault_address());
        params.word(state.ptr().0);
        params.word(min as u64);
        params.word(n_values as u64);
        rows.push(&mut params, context, &kernel.columns, &kernel.parameters)?;
        let shape = context.shape(&entry, rows.n_rows(), |_| 0)?;
        // SAFETY: the fields were appended in the order of the generated struct; state
        // and rows outlive the call, which waits for the kernel. Every key is in the
        // interval that the state was made for.
        unsafe { context.run(&entry, shape, &params)? };
        Ok(DenseGroups {
            state,
            n_groups,
            state_words: kernel.state_words,
            range,
            nullable,
            calls: kernel.calls.clone(),
        })
    }

    /// The groups that have rows, as columns on the device, numbered from 0.
    pub(super) fn columns(
        &self,
        context: &mut Context,
        functions: &[Function],
        outputs: &[(GroupOutput, Type)],
    ) -> Result<DeviceChunk> {
        let layout = GroupLayout {
            keys: GroupKeys::Dense {
                nullable: self.nullable,
                range: self.range,
            },
            calls: &self.calls,
            functions,
        };
        let kernel = generate_group_values(layout, outputs)
            .map_err(|reason| Error::Unsupported(reason.message))?;
        let entry = context.kernel(&kernel.name, &kernel.text)?;
        let n_tiles = self
            .n_groups
            .div_ceil(collect_tile_rows(context.rows_threads()));
        let (gpu, stream) = (&context.gpu, &context.stream);
        let tiles = DeviceBuffer::zeroed(gpu, stream, (n_tiles + 2) * 8)?;
        let n_kept_at = (n_tiles + 1) * 8;
        let mut params = ParameterBytes::default();
        params.word(self.n_groups as u64);
        params.word(context.fault_address());
        params.word(self.state.ptr().0);
        params.word(self.state_words as u64);
        params.word(self.range.min as i64 as u64);
        params.word(tiles.ptr().0);
        params.word(tiles.at(n_kept_at).0);
        let written =
            WrittenOutput::allocate(context, &kernel.outputs, self.n_groups, &mut params)?;
        let shape = context.rows_shape(&entry, n_tiles)?;
        // SAFETY: the fields were appended in the order of the generated struct; all
        // buffers outlive the call, and the outputs have a place for every group.
        unsafe { context.run(&entry, shape, &params)? };
        let n_kept = tiles.read::<u64>(&context.stream, n_kept_at, 1)?;
        let n_kept = n_kept.first().copied().unwrap_or(0) as usize;
        WrittenOutput::columns(context, written, n_kept.min(self.n_groups))
    }
}

/// Whether all states of a kernel start as 0.
pub(super) fn starts_as_zero(kernel: &DenseGroupsKernel) -> bool {
    let mut kinds = kernel.slots.iter().map(|slot| slot.kind);
    kinds.all(|kind| kind.initial() == 0)
}
