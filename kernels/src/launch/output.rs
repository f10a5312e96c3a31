//! Columns that a kernel writes and later kernels read.

use std::collections::HashMap;
use std::sync::Arc;

use super::context::Context;
use super::parameters::ParameterBytes;
use crate::codegen::{OutputShape, PACK_TEXT};
use crate::columns::{DeviceChunk, DeviceColumn};
use crate::error::Result;
use crate::gpu::DeviceBuffer;

/// One column as a kernel writes it.
#[derive(Debug)]
pub(super) struct WrittenOutput {
    pub(super) shape: OutputShape,
    pub(super) values: DeviceBuffer,
    /// One byte a row; empty when no value can be missing.
    pub(super) validity: DeviceBuffer,
}

impl WrittenOutput {
    /// Room for columns of `capacity` rows; their references are appended.
    pub(super) fn allocate(
        context: &Context,
        shapes: &[OutputShape],
        capacity: usize,
        params: &mut ParameterBytes,
    ) -> Result<Vec<WrittenOutput>> {
        let mut outputs = Vec::with_capacity(shapes.len());
        for shape in shapes {
            let gpu = &context.gpu;
            let values = DeviceBuffer::allocate(gpu, capacity * shape.stored_bytes())?;
            let validity = DeviceBuffer::allocate(gpu, if shape.nullable { capacity } else { 0 })?;
            let output = WrittenOutput {
                shape: *shape,
                values,
                validity,
            };
            output.push_reference(0, params);
            outputs.push(output);
        }
        Ok(outputs)
    }

    /// Appends the reference of a kernel that writes from row `first` on.
    pub(super) fn push_reference(&self, first: usize, params: &mut ParameterBytes) {
        let values = self.values.at(first * self.shape.stored_bytes());
        let first_byte = if self.shape.nullable { first } else { 0 };
        params.pair(values.0, self.validity.at(first_byte).0);
    }

    /// The columns, of which `n_rows` rows were written, numbered from 0.
    pub(super) fn columns(
        context: &mut Context,
        outputs: Vec<WrittenOutput>,
        n_rows: usize,
    ) -> Result<DeviceChunk> {
        let mut columns = HashMap::with_capacity(outputs.len());
        for (index, output) in outputs.into_iter().enumerate() {
            let validity = match output.shape.nullable {
                true => Some(pack(context, &output.validity, n_rows)?),
                false => None,
            };
            let bytes = n_rows * output.shape.stored_bytes();
            let values = fitted(context, output.values, bytes)?;
            let column = DeviceColumn::new(output.shape.column(), values, validity);
            columns.insert(index, Arc::new(column));
        }
        DeviceChunk::of_columns(&context.stream, columns, n_rows)
    }
}

/// Validity bits of validity bytes.
fn pack(context: &mut Context, bytes: &DeviceBuffer, n_rows: usize) -> Result<DeviceBuffer> {
    let n_bytes = n_rows.div_ceil(8);
    let bits = DeviceBuffer::allocate(&context.gpu, n_bytes)?;
    if n_bytes == 0 {
        return Ok(bits);
    }
    let entry = context.load("pack_bits", PACK_TEXT)?.kernel("pack_bits")?;
    let mut params = ParameterBytes::default();
    params.word(n_rows as u64);
    params.word(bytes.ptr().0);
    params.word(bits.ptr().0);
    let shape = context.rows_shape(&entry, n_bytes.div_ceil(context.rows_threads() as usize))?;
    // SAFETY: the fields are those of `pack_bits`; both buffers outlive the call.
    unsafe { context.run(&entry, shape, &params)? };
    Ok(bits)
}

/// The buffer's first bytes; copied when that frees at least half of it.
fn fitted(context: &Context, buffer: DeviceBuffer, bytes: usize) -> Result<DeviceBuffer> {
    if bytes * 2 > buffer.bytes() || bytes == 0 {
        return Ok(buffer);
    }
    let fitted = DeviceBuffer::allocate(&context.gpu, bytes)?;
    fitted.copy_from(&context.stream, 0, &buffer, 0..bytes)?;
    context.stream.synchronize()?;
    Ok(fitted)
}
