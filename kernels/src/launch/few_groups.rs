//! Launching the kernel that keeps a thread's groups apart.

use super::context::Context;
use super::parameters::ParameterBytes;
use super::relations::Relations;
use crate::codegen::AggregateKernel;
use crate::error::Result;
use crate::gpu::DeviceBuffer;

/// Runs the kernel over a chunk and returns the states of all its groups.
pub(super) fn launch(
    context: &mut Context,
    kernel: &AggregateKernel,
    rows: &Relations<'_>,
) -> Result<Vec<u64>> {
    let entry = context.kernel(&kernel.name, &kernel.text)?;
    let mut initial = Vec::with_capacity(kernel.n_groups * kernel.n_words);
    for _ in 0..kernel.n_groups {
        for slot in &kernel.slots {
            initial.extend(std::iter::repeat_n(slot.kind.initial(), slot.kind.words()));
        }
    }
    let state = DeviceBuffer::from_slice(&context.gpu, &context.stream, &initial)?;
    let mut params = ParameterBytes::default();
    params.word(rows.n_rows() as u64);
    params.word(context.fault_address());
    params.word(state.ptr().0);
    rows.push(&mut params, context, &kernel.columns, &kernel.parameters)?;
    let shape = context.shape(&entry, rows.n_rows(), |threads| {
        kernel.shared_bytes(threads)
    })?;
    // SAFETY: the fields were appended in the order of the generated struct; state and
    // rows outlive the call, which waits for the kernel.
    unsafe { context.run(&entry, shape, &params)? };
    let words: Vec<u64> = state.to_vec(&context.stream)?;
    context.counts.bytes_to_host += words.len() as u64 * 8;
    Ok(words)
}
