//! Loops over the rows of a call.

use super::frame::{Call, Column};
use super::out::{Out, Pieces, Sink};
use super::panic;
use crate::text::StrWriter;

/// Rows between two looks at the time. The host looks where a loop jumps back, and a look
/// costs more than a row of arithmetic.
pub const STRIP: usize = 32;

const OK: u32 = 0;
const FAILED: u32 = 1;

/// What a row's function gets of the sink: its writer, where it writes text itself.
pub trait WriterOf {
    /// The writer.
    type Writer;
    /// It.
    fn writer(&mut self) -> &mut Self::Writer;
}

impl WriterOf for Pieces {
    type Writer = StrWriter;

    #[inline]
    fn writer(&mut self) -> &mut StrWriter {
        &mut self.out
    }
}

impl<T> WriterOf for super::out::Values<T> {
    type Writer = Self;

    #[inline]
    fn writer(&mut self) -> &mut Self {
        self
    }
}

/// Runs a function over all rows. `dense` is the function for columns that have a value in
/// every row, `any` for all others; `columns` are the arguments, and whether the function
/// sees their nulls.
#[inline]
pub fn each_row<O, D, A>(
    call: &Call,
    columns: &[(&Column, bool)],
    null_on_error: bool,
    dense: D,
    any: A,
) -> u32
where
    O: Out,
    O::Sink: WriterOf,
    D: Fn(usize, &mut <O::Sink as WriterOf>::Writer) -> O,
    A: Fn(usize, &mut <O::Sink as WriterOf>::Writer) -> O,
{
    let n_rows = call.rows();
    let mut sink = O::Sink::new(call);
    let mut failed = Failed {
        becomes_null: null_on_error || call.is_null_on_error(),
        n: 0,
    };
    let is_dense = columns
        .iter()
        .all(|(column, _)| !column.has_validity() && !column.is_constant());
    if is_dense {
        let mut row = 0;
        while O::IS_TIGHT && row + STRIP <= n_rows {
            for i in 0..STRIP {
                if !one::<O>(&mut sink, row + i, &dense, &mut failed) {
                    return FAILED;
                }
            }
            row += STRIP;
        }
        while row < n_rows {
            if !one::<O>(&mut sink, row, &dense, &mut failed) {
                return FAILED;
            }
            row += 1;
        }
    } else {
        join_nulls(call, columns);
        for row in 0..n_rows {
            if call.ret().is_valid(row) {
                if !one::<O>(&mut sink, row, &any, &mut failed) {
                    return FAILED;
                }
            } else {
                sink.end(row);
            }
        }
    }
    sink.finish(call);
    if failed.n > 0 {
        panic::set_count(failed.n);
    }
    OK
}

struct Failed {
    becomes_null: bool,
    n: u32,
}

/// One row; false when it ends the call.
#[inline]
fn one<O>(
    sink: &mut O::Sink,
    row: usize,
    f: &impl Fn(usize, &mut <O::Sink as WriterOf>::Writer) -> O,
    failed: &mut Failed,
) -> bool
where
    O: Out,
    O::Sink: WriterOf,
{
    if O::FALLIBLE {
        panic::at(row);
    }
    let value = f(row, sink.writer());
    if !value.put(sink, row) {
        if !failed.becomes_null {
            return false;
        }
        failed.n += 1;
        sink.null(row);
    }
    sink.end(row);
    true
}

/// Makes the result NULL where an argument is whose nulls the function does not see. The
/// host has done so where it sees none at all.
#[inline(never)]
fn join_nulls(call: &Call, columns: &[(&Column, bool)]) {
    let n_rows = call.rows();
    for (column, sees_null) in columns {
        if *sees_null || !column.has_validity() {
            continue;
        }
        let n_bytes = n_rows.div_ceil(8);
        let into = call.ret().validity_mut();
        for i in 0..n_bytes {
            // SAFETY: both bitmaps have a bit for each row, or the column's one bit stands
            // for all.
            unsafe {
                let byte = if column.is_constant() {
                    if column.is_valid(0) { 0xff } else { 0 }
                } else {
                    column.validity().add(i).read()
                };
                into.add(i).write(into.add(i).read() & byte);
            }
        }
    }
}

/// Runs a function over whole columns.
pub fn whole<R>(_: &Call, run: impl FnOnce() -> R) -> u32 {
    run();
    OK
}
