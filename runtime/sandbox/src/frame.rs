//! One call laid out in the arena.
//!
//! ```text
//! | Call | Error | argument Columns | result Column | buffers ... | scratch |
//! ```

use arrow::array::Array;
use arrow::buffer::NullBuffer;

use crate::abi::{self, call, error};
use crate::types::Type;
use crate::write::{Full, Place, Writer};

/// An argument: its column, its type, and whether one element stands for all rows.
pub(crate) type Input<'a> = (&'a dyn Array, &'a Type, bool);

/// What a call says beside its columns.
#[derive(Default)]
pub(crate) struct Head {
    pub(crate) flags: u32,
    pub(crate) n_rows: usize,
    pub(crate) state: u32,
    pub(crate) record_batch: u64,
    pub(crate) seed: u64,
    /// Microseconds since 1970.
    pub(crate) query_time: i64,
}

/// Where the parts of a call lie.
pub(crate) struct Frame {
    pub(crate) call: usize,
    pub(crate) error: usize,
    /// Absent where the call has no result.
    pub(crate) result: Option<Place>,
}

impl Frame {
    /// Lays a call out. `result` is the result's type and the rows that are NULL whatever
    /// the guest says.
    pub(crate) fn lay_out(
        writer: &mut Writer<'_>,
        head: &Head,
        inputs: &[Input<'_>],
        result: Option<(&Type, Option<&NullBuffer>)>,
    ) -> Result<Frame, Full> {
        let at = writer.filled(abi::CALL_BYTES, 0)?;
        let error = writer.filled(abi::ERROR_BYTES, 0)?;
        writer.put_u32(error + error::ROW, abi::NONE as usize);
        let columns = writer.reserve(abi::COLUMN_BYTES * inputs.len())?;
        let ret = writer.filled(abi::COLUMN_BYTES, 0)?;
        for (i, (array, kind, is_constant)) in inputs.iter().enumerate() {
            let column = columns + i * abi::COLUMN_BYTES;
            writer.column(column, *array, kind, *is_constant)?;
        }
        let place = match result {
            Some((kind, nulls)) => Some(writer.result(ret, kind, head.n_rows, nulls)?),
            None => None,
        };
        let (scratch, scratch_len) = writer.rest();
        // Text is seldom longer than what it is made of. A function that has only this room
        // would fail otherwise, where fewer rows do.
        let is_variable = result.is_some_and(|(kind, _)| {
            matches!(
                kind,
                Type::Utf8 | Type::Binary | Type::List(_) | Type::Struct(_)
            )
        });
        if is_variable && head.n_rows > 1 && scratch_len < writer.n_copied {
            return Err(Full);
        }
        for (field, value) in [
            (call::ABI, abi::VERSION as usize),
            (call::FLAGS, head.flags as usize),
            (call::ROWS, head.n_rows),
            (call::N_ARGS, inputs.len()),
            (call::ARGS, columns),
            (call::RET, ret),
            (call::ERROR, error),
            (call::STATE, head.state as usize),
            (call::SCRATCH, scratch),
            (call::SCRATCH_LEN, scratch_len),
        ] {
            writer.put_u32(at + field, value);
        }
        writer.put_u64(at + call::BATCH, head.record_batch);
        writer.put_u64(at + call::SEED, head.seed);
        writer.put_u64(at + call::QUERY_TIME, head.query_time as u64);
        Ok(Frame {
            call: at,
            error,
            result: place,
        })
    }
}
