//! How many rows come through the steps of a pipeline.

use super::context::Context;
use super::parameters::ParameterBytes;
use super::relations::Relations;
use crate::codegen::{Unsupported, generate_count};
use crate::error::{Error, Result};
use crate::gpu::DeviceBuffer;
use crate::ir::Step;

/// Counts them, on the device.
pub(super) fn rows_through(
    context: &mut Context,
    steps: &[Step],
    rows: &Relations<'_>,
) -> Result<usize> {
    let kernel = generate_count(steps, &rows.shapes(), &rows.table_shapes())
        .map_err(|reason: Unsupported| Error::Unsupported(reason.message))?;
    let entry = context.kernel(&kernel.name, &kernel.text)?;
    let total = DeviceBuffer::zeroed(&context.gpu, &context.stream, size_of::<u64>())?;
    let mut params = ParameterBytes::default();
    params.word(rows.n_rows() as u64);
    params.word(context.fault_address());
    params.word(total.ptr().0);
    rows.push(&mut params, context, &kernel.columns, &kernel.parameters)?;
    let n_pieces = rows.n_rows().div_ceil(context.rows_threads() as usize);
    let shape = context.rows_shape(&entry, n_pieces)?;
    // SAFETY: the fields were appended in the order of the generated struct; total and
    // rows outlive the call, which waits for the kernel.
    unsafe { context.run(&entry, shape, &params)? };
    let total: Vec<u64> = total.to_vec(&context.stream)?;
    let total = total.first().copied().unwrap_or(0);
    usize::try_from(total).map_err(|_| Error::Unsupported(format!("{total} rows after a join")))
}
