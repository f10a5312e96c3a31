//! Launching the kernel that keeps a thread's groups apart.

use super::context::Context;
use super::distinct::DistinctSets;
use super::hash_rows::inside_chunk;
use super::many_groups::FIRST_ROWS;
use super::parameters::ParameterBytes;
use super::relations::Relations;
use crate::codegen::AggregateKernel;
use crate::error::Result;
use crate::gpu::DeviceBuffer;

/// Runs the kernel over a chunk and returns the states of all its groups. `rows_through`
/// counts the rows that come through the steps where joins let some do so several times; else
/// each does `n_sets` times at most.
pub(super) fn launch(
    context: &mut Context,
    kernel: &AggregateKernel,
    rows: &Relations<'_>,
    sets: &mut DistinctSets,
    rows_through: Option<usize>,
    n_sets: usize,
) -> Result<Vec<u64>> {
    let entry = context.kernel(&kernel.name, &kernel.text)?;
    let mut initial = Vec::with_capacity(kernel.n_groups * kernel.n_words);
    for _ in 0..kernel.n_groups {
        for slot in &kernel.slots {
            initial.extend(std::iter::repeat_n(slot.kind.initial(), slot.kind.words()));
        }
    }
    let state = DeviceBuffer::from_slice(&context.gpu, &context.stream, &initial)?;
    let mut head = ParameterBytes::default();
    rows.push(&mut head, context, &kernel.columns, &kernel.parameters)?;
    sets.start(context, &kernel.sets)?;
    let (n_rows, mut begin) = (rows.n_rows(), 0);
    while begin < n_rows {
        let left = n_rows - begin;
        // Each row may be new to every set, and sets grow only between launches.
        let (n_now, may_be_new) = match (kernel.sets.is_empty(), rows_through) {
            (true, _) => (left, 0),
            (false, Some(rows)) => (left, rows),
            (false, None) => {
                let n_now = left.min(FIRST_ROWS);
                (n_now, n_now.saturating_mul(n_sets))
            }
        };
        let made = sets.make_room(context, may_be_new);
        made.map_err(|error| inside_chunk(error, begin))?;
        let mut params = ParameterBytes::default();
        params.word((begin + n_now) as u64);
        params.word(context.fault_address());
        params.word(state.ptr().0);
        if !kernel.sets.is_empty() {
            params.word(begin as u64);
        }
        sets.push_references(&mut params);
        params.append(&head);
        let shape = context.shape(&entry, n_now, |threads| kernel.shared_bytes(threads))?;
        // SAFETY: the fields were appended in the order of the generated struct; state,
        // sets and rows outlive the call, which waits for the kernel.
        unsafe { context.run(&entry, shape, &params)? };
        sets.read_lens(context)?;
        begin += n_now;
    }
    let words: Vec<u64> = state.to_vec(&context.stream)?;
    context.counts.bytes_to_host += words.len() as u64 * 8;
    Ok(words)
}
