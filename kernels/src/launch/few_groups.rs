//! Launching the kernel that keeps a thread's groups apart.

use super::context::Context;
use super::parameters::ParameterBytes;
use crate::codegen::AggregateKernel;
use crate::columns::DeviceChunk;
use crate::error::Result;
use crate::gpu::DeviceBuffer;

/// Runs the kernel over a chunk and returns the states of all its groups.
pub(super) fn launch(
    context: &mut Context,
    kernel: &AggregateKernel,
    chunk: &DeviceChunk,
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
    params.word(chunk.n_rows as u64);
    params.word(context.fault_address());
    params.word(state.ptr().0);
    for index in &kernel.columns {
        let column = chunk.column(*index)?;
        params.column(column);
        context.counts.bytes_read += column.bytes() as u64;
    }
    params.constants(&kernel.parameters, &context.gpu, &context.stream)?;
    let shape = context.shape(&entry, chunk.n_rows, |threads| kernel.shared_bytes(threads))?;
    // SAFETY: the fields were appended in the order of the generated struct; state and
    // chunk outlive the call, which waits for the kernel.
    unsafe { context.run(&entry, shape, &params)? };
    let words: Vec<u64> = state.to_vec(&context.stream)?;
    context.counts.bytes_to_host += words.len() as u64 * 8;
    Ok(words)
}
