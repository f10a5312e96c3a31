//! Calls of scalar functions: columns in, a column out, and what happens when rows fail.
//! A record batch that does not fit is halved until it does.

use std::ops::Range;
use std::sync::atomic::Ordering;
use std::time::Instant;

use arrow::array::{Array, ArrayRef, AsArray, new_null_array};
use arrow::buffer::NullBuffer;
use arrow::compute;
use arrow::datatypes::DataType;

use crate::abi::{call, error};
use crate::error::{Fault, Result};
use crate::frame::{Frame, Head, Input};
use crate::guest::{Guest, Status};
use crate::metadata::{Function, Nulls, Volatility};
use crate::module::{Meter, Module};
use crate::write::{Full, Writer};
use crate::{read, write};

/// What a row that fails costs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum OnError {
    /// The query.
    #[default]
    Fail,
    /// Its value, which becomes NULL.
    Null,
}

/// An argument of a call.
#[derive(Debug, Clone)]
pub enum Argument {
    /// A value for each row.
    Column(ArrayRef),
    /// One value for all of them, in an array of length 1.
    Constant(ArrayRef),
}

/// Rows that trap, each of which costs an instance, before a record batch is given up.
const TRAPPED_ROWS_MAX: usize = 1_000;

/// The one record batch that a call is about.
struct Work<'a> {
    module: &'a Module,
    at: usize,
    function: &'a Function,
    args: Vec<Argument>,
    record_batch: u64,
    /// Microseconds since 1970.
    query_time: i64,
    on_error: OnError,
    n_trapped: usize,
}

/// A piece's fault, and the row in the record batch where it is known.
type Failure = (Option<usize>, Fault);

impl Module {
    /// Calls a scalar function over a record batch.
    pub fn call(
        &self,
        at: usize,
        args: &[Argument],
        n_rows: usize,
        query_time: i64,
        on_error: OnError,
    ) -> Result<ArrayRef> {
        let started = Instant::now();
        let function = self.function(at);
        let meter = self.meter(at);
        let record_batch = meter.record_batches.fetch_add(1, Ordering::Relaxed);
        let outcome = self.call_inner(
            at,
            function,
            args,
            n_rows,
            record_batch,
            query_time,
            on_error,
        );
        Meter::add(&meter.rows, n_rows);
        Meter::add(&meter.nanoseconds, started.elapsed().as_nanos() as usize);
        outcome.map_err(|(row, fault)| self.call_error(at, record_batch, row, n_rows, fault))
    }

    #[expect(clippy::too_many_arguments, reason = "they are the parts of one call")]
    fn call_inner(
        &self,
        at: usize,
        function: &Function,
        args: &[Argument],
        n_rows: usize,
        record_batch: u64,
        query_time: i64,
        on_error: OnError,
    ) -> std::result::Result<ArrayRef, Failure> {
        let bad = |problem: String| (None, Fault::BadInput(problem));
        if args.len() != function.args.len() {
            return Err(bad(format!(
                "it takes {} arguments and got {}",
                function.args.len(),
                args.len()
            )));
        }
        if let Some(result) = self.by_dictionary(at, function, args, n_rows, query_time) {
            return Ok(result);
        }
        let args = args
            .iter()
            .zip(&function.args)
            .map(|(arg, declared)| {
                let (array, length) = match arg {
                    Argument::Column(array) => (array, n_rows),
                    Argument::Constant(array) => (array, 1),
                };
                if array.len() != length {
                    return Err(format!(
                        "argument `{}` has {} elements instead of {length}",
                        declared.name,
                        array.len()
                    ));
                }
                let array = write::in_layout(array, &declared.kind)
                    .map_err(|problem| format!("argument `{}`: {problem}", declared.name))?;
                Ok(match arg {
                    Argument::Column(_) => Argument::Column(array),
                    Argument::Constant(_) => Argument::Constant(array),
                })
            })
            .collect::<std::result::Result<Vec<_>, String>>()
            .map_err(bad)?;
        // A constant NULL decides everything.
        let is_null = |arg: &Argument| match arg {
            Argument::Constant(value) => value.is_null(0),
            Argument::Column(_) => false,
        };
        if function.nulls == Nulls::Strict && args.iter().any(is_null) {
            return Ok(new_null_array(&function.returns.arrow(), n_rows));
        }
        let mut work = Work {
            module: self,
            at,
            function,
            args,
            record_batch,
            query_time,
            on_error,
            n_trapped: 0,
        };
        let mut pieces = Vec::new();
        work.run(0..n_rows, &mut pieces)?;
        match pieces.len() {
            1 => Ok(pieces.swap_remove(0)),
            _ => {
                let pieces: Vec<&dyn Array> = pieces.iter().map(AsRef::as_ref).collect();
                compute::concat(&pieces).map_err(|error| bad(error.to_string()))
            }
        }
    }

    /// Calls the function over a dictionary's values instead of over the rows, where that
    /// gives the same and is less work. None where it does not, or where a value fails
    /// that perhaps no row has.
    fn by_dictionary(
        &self,
        at: usize,
        function: &Function,
        args: &[Argument],
        n_rows: usize,
        query_time: i64,
    ) -> Option<ArrayRef> {
        if function.volatility != Volatility::Immutable || function.nulls != Nulls::Strict {
            return None;
        }
        let mut columns = args.iter().enumerate().filter_map(|(i, arg)| match arg {
            Argument::Column(array) => Some((i, array)),
            Argument::Constant(_) => None,
        });
        let (i, array) = columns.next()?;
        if columns.next().is_some() || !matches!(array.data_type(), DataType::Dictionary(..)) {
            return None;
        }
        let dictionary = array.as_any_dictionary();
        let values = dictionary.values();
        if values.len() >= n_rows || values.is_empty() {
            return None;
        }
        let mut args = args.to_vec();
        args[i] = Argument::Column(ArrayRef::clone(values));
        let made = self
            .call_inner(
                at,
                function,
                &args,
                values.len(),
                0,
                query_time,
                OnError::Fail,
            )
            .ok()?;
        compute::take(&made, dictionary.keys(), None).ok()
    }
}

impl Work<'_> {
    /// Handles a range of rows, in pieces if need be.
    fn run(
        &mut self,
        rows: Range<usize>,
        pieces: &mut Vec<ArrayRef>,
    ) -> std::result::Result<(), Failure> {
        let guest = self.module.guest(self.at).map_err(|fault| (None, fault))?;
        let (fault, row) = match self.attempt(guest, &rows) {
            Attempt::Done(array) => {
                pieces.push(array);
                return Ok(());
            }
            Attempt::Full if rows.len() > 1 => {
                let middle = rows.start + rows.len() / 2;
                self.run(rows.start..middle, pieces)?;
                return self.run(middle..rows.end, pieces);
            }
            Attempt::Full => {
                let problem = "the arguments and the result of one row do not fit the memory \
                               that columns have in the sandbox"
                    .to_string();
                return Err((Some(rows.start), Fault::BadInput(problem)));
            }
            Attempt::Failed(fault, row) => (fault, row),
        };
        if !matches!(fault, Fault::Failed(_)) {
            Meter::add(&self.module.meter(self.at).traps, 1);
        }
        // A row that the guest made up is none.
        let row = row
            .map(|row| rows.start + row)
            .filter(|row| rows.contains(row))
            .or((rows.len() == 1).then_some(rows.start));
        match self.on_error {
            OnError::Null if fault.is_of_rows() => self.without(rows, row, fault, pieces),
            _ if row.is_some() || !fault.is_of_rows() => Err((row, fault)),
            _ if self.function.volatility == Volatility::Volatile => Err((None, fault)),
            _ => Err((self.find(rows), fault)),
        }
    }

    /// Makes the row that fails NULL and handles the others.
    fn without(
        &mut self,
        rows: Range<usize>,
        row: Option<usize>,
        fault: Fault,
        pieces: &mut Vec<ArrayRef>,
    ) -> std::result::Result<(), Failure> {
        self.n_trapped += 1;
        if self.n_trapped > TRAPPED_ROWS_MAX {
            return Err((row, fault));
        }
        let (before, after) = match row {
            Some(row) => (rows.start..row, row + 1..rows.end),
            None => {
                let middle = rows.start + rows.len() / 2;
                (rows.start..middle, middle..rows.end)
            }
        };
        if !before.is_empty() {
            self.run(before, pieces)?;
        }
        if row.is_some() {
            pieces.push(new_null_array(&self.function.returns.arrow(), 1));
            Meter::add(&self.module.meter(self.at).nulled_rows, 1);
        }
        if !after.is_empty() {
            self.run(after, pieces)?;
        }
        Ok(())
    }

    /// The first row that fails by itself, by halving; none when it does not happen again.
    fn find(&self, rows: Range<usize>) -> Option<usize> {
        let mut rows = rows;
        while rows.len() > 1 {
            let middle = rows.start + rows.len() / 2;
            let first = rows.start..middle;
            let guest = self.module.fresh_guest(self.at).ok()?;
            rows = match self.attempt(guest, &first) {
                Attempt::Failed(fault, row) if fault.is_of_rows() => {
                    if let Some(row) = row.filter(|row| *row < first.len()) {
                        return Some(first.start + row);
                    }
                    first
                }
                Attempt::Done(_) => middle..rows.end,
                _ => return None,
            };
        }
        let guest = self.module.fresh_guest(self.at).ok()?;
        match self.attempt(guest, &rows) {
            Attempt::Failed(fault, _) if fault.is_of_rows() => Some(rows.start),
            _ => None,
        }
    }

    /// One call over a range of rows.
    fn attempt(&self, mut guest: Guest, rows: &Range<usize>) -> Attempt {
        let meter = self.module.meter(self.at);
        let nulls = match self.function.nulls {
            Nulls::Strict => self.joined_nulls(rows),
            Nulls::Called => None,
        };
        let arena = guest.arena();
        let mut writer = Writer::new(guest.memory_mut(), arena);
        let Ok(frame) = self.lay_out(&mut writer, rows, nulls.as_ref()) else {
            self.module.keep(guest);
            return Attempt::Full;
        };
        Meter::add(&meter.bytes_in, writer.n_copied);
        Meter::add(&meter.calls, 1);
        let entry = self.module.scalar_entry(self.at);
        let called = guest.call(self.module.runtime.ticker(), entry, frame.call as u32);
        meter
            .memory_bytes_max
            .fetch_max(guest.own_bytes(), Ordering::Relaxed);
        let (row, code, message) = read::message(guest.memory(), frame.error);
        match called {
            Ok(Status::Done) => {}
            Ok(Status::Failed) => {
                self.module.keep(guest);
                let message = if message.is_empty() {
                    "it failed without a message".to_string()
                } else {
                    message
                };
                return Attempt::Failed(Fault::Failed(message), row);
            }
            // The instance is dropped: what it holds is in no known state.
            Err(Fault::Trapped(_)) if code == error::PANICKED => {
                return Attempt::Failed(Fault::Panicked(message), row);
            }
            Err(fault) => return Attempt::Failed(fault, row),
        }
        let n_rows = rows.len();
        let read = match &frame.result {
            Some(place) => read::result(
                guest.memory(),
                place,
                &self.function.returns,
                n_rows,
                nulls.as_ref(),
            ),
            None => Err("there is no place for it".to_string()),
        };
        let array = match read {
            Ok(array) => array,
            Err(problem) => return Attempt::Failed(Fault::BadOutput(problem), None),
        };
        if self.on_error == OnError::Null && code > 0 {
            // At most what it could be; a guest's word is enough for a counter.
            Meter::add(&meter.nulled_rows, (code as usize).min(n_rows));
        }
        Meter::add(&meter.bytes_out, array.get_buffer_memory_size());
        self.module.keep(guest);
        Attempt::Done(array)
    }

    fn lay_out(
        &self,
        writer: &mut Writer<'_>,
        rows: &Range<usize>,
        nulls: Option<&NullBuffer>,
    ) -> std::result::Result<Frame, Full> {
        let pieces: Vec<(ArrayRef, bool)> = self
            .args
            .iter()
            .map(|arg| match arg {
                Argument::Column(array) => (array.slice(rows.start, rows.len()), false),
                Argument::Constant(array) => (ArrayRef::clone(array), true),
            })
            .collect();
        let inputs: Vec<Input<'_>> = pieces
            .iter()
            .zip(&self.function.args)
            .map(|((array, is_constant), declared)| (array.as_ref(), &declared.kind, *is_constant))
            .collect();
        let mut flags = 0;
        if self.function.nulls == Nulls::Strict {
            flags |= call::STRICT;
        }
        if self.on_error == OnError::Null {
            flags |= call::NULL_ON_ERROR;
        }
        let head = Head {
            flags,
            n_rows: rows.len(),
            state: 0,
            record_batch: self.record_batch,
            seed: seed(self.record_batch, rows.start, self.function.volatility),
            query_time: self.query_time,
        };
        Frame::lay_out(
            writer,
            &head,
            &inputs,
            Some((&self.function.returns, nulls)),
        )
    }

    /// The rows that are NULL because an argument is.
    fn joined_nulls(&self, rows: &Range<usize>) -> Option<NullBuffer> {
        self.args.iter().fold(None, |nulls, arg| match arg {
            Argument::Column(array) => {
                let own = array
                    .nulls()
                    .map(|nulls| nulls.slice(rows.start, rows.len()));
                NullBuffer::union(nulls.as_ref(), own.as_ref())
            }
            // A constant NULL was answered before.
            Argument::Constant(_) => nulls,
        })
    }
}

enum Attempt {
    Done(ArrayRef),
    /// The arena is too small for that many rows.
    Full,
    /// Why, and the row in the piece where the guest says which.
    Failed(Fault, Option<usize>),
}

/// Another number for each call of a volatile function; 0 for the others.
fn seed(record_batch: u64, row: usize, volatility: Volatility) -> u64 {
    if volatility != Volatility::Volatile {
        return 0;
    }
    // SplitMix64 over what tells calls apart.
    let mut z = record_batch
        .wrapping_mul(0x9e37_79b9_7f4a_7c15)
        .wrapping_add(row as u64)
        .wrapping_add(std::process::id().into());
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
