//! Aggregate functions: states of groups, kept by one guest until they are taken.
//!
//! ```text
//! rows   --update--> states --take_states--> binary column (spilled, shuffled)
//! binary --merge---> states --finish-------> results
//! ```

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use arrow::array::{Array, ArrayRef, BooleanArray, UInt32Array, new_empty_array};
use arrow::buffer::NullBuffer;
use arrow::compute;

use crate::abi::{self, call, error};
use crate::error::{Fault, Result};
use crate::frame::{Frame, Head, Input};
use crate::guest::{Guest, Status};
use crate::metadata::Nulls;
use crate::module::{Meter, Module};
use crate::scalar::Argument;
use crate::types::Type;
use crate::write::Writer;
use crate::{read, write};

/// Groups whose states or results one call gives out.
const GROUPS_TAKEN: usize = 8_192;

/// The groups of one aggregate function in one part of a query.
///
/// Groups are numbered from 0. Taking the first ones renumbers those that are left.
pub struct Groups {
    module: Arc<Module>,
    at: usize,
    /// None after a fault: the states are in no known condition.
    guest: Option<Guest>,
    /// The guest's handle of its states.
    state: u32,
    n_groups: usize,
    /// Microseconds since 1970.
    query_time: i64,
    /// The record batch that is worked on, and its rows, for messages.
    record_batch: u64,
    n_rows: usize,
}

impl std::fmt::Debug for Groups {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Groups")
            .field("function", &self.module.function(self.at).name)
            .field("n_groups", &self.n_groups)
            .finish_non_exhaustive()
    }
}

/// A piece's fault, and the row in the record batch where it is known.
type Failure = (Option<usize>, Fault);

impl Groups {
    /// No groups yet.
    pub fn new(module: &Arc<Module>, at: usize, query_time: i64) -> Self {
        Groups {
            module: Arc::clone(module),
            at,
            guest: None,
            state: 0,
            n_groups: 0,
            query_time,
            record_batch: 0,
            n_rows: 0,
        }
    }

    /// Takes rows: their arguments and their groups, of which there are `n_groups` by now.
    /// Rows with NULL count only for a function that sees it.
    pub fn update(&mut self, args: &[Argument], groups: &[usize], n_groups: usize) -> Result<()> {
        let clock = self.begin(groups.len());
        let outcome = self.update_inner(args, groups, n_groups);
        self.end(clock, outcome)
    }

    fn update_inner(
        &mut self,
        args: &[Argument],
        groups: &[usize],
        n_groups: usize,
    ) -> std::result::Result<(), Failure> {
        let module = Arc::clone(&self.module);
        let function = module.function(self.at);
        self.ensure(n_groups)?;
        let bad = |problem: String| (None, Fault::BadInput(problem));
        let mut columns = Vec::with_capacity(args.len());
        for (arg, declared) in args.iter().zip(&function.args) {
            let (Argument::Column(array) | Argument::Constant(array)) = arg;
            let array = write::in_layout(array, &declared.kind)
                .map_err(|problem| bad(format!("argument `{}`: {problem}", declared.name)))?;
            columns.push((array, matches!(arg, Argument::Constant(_))));
        }
        if args.len() != function.args.len() {
            return Err(bad(format!(
                "it takes {} arguments and got {}",
                function.args.len(),
                args.len()
            )));
        }
        let mut groups = numbers(groups);
        if function.nulls == Nulls::Strict {
            if columns
                .iter()
                .any(|(array, is_constant)| *is_constant && array.is_null(0))
            {
                return Ok(());
            }
            let nulls = columns
                .iter()
                .filter(|(_, is_constant)| !is_constant)
                .fold(None, |nulls, (array, _)| {
                    NullBuffer::union(nulls.as_ref(), array.nulls())
                });
            if let Some(nulls) = nulls.filter(|nulls| nulls.null_count() > 0) {
                let keep = BooleanArray::new(nulls.into_inner(), None);
                let filter = |array: &dyn Array| {
                    compute::filter(array, &keep).map_err(|error| bad(error.to_string()))
                };
                for (array, is_constant) in &mut columns {
                    if !*is_constant {
                        *array = filter(array.as_ref())?;
                    }
                }
                groups = filter(groups.as_ref())?;
            }
        }
        let kinds: Vec<Type> = function.args.iter().map(|arg| arg.kind.clone()).collect();
        self.feed("update", &columns, &kinds, &groups)
    }

    /// Takes states that [`Groups::take_states`] gave, with each one's group.
    pub fn merge(&mut self, states: &ArrayRef, groups: &[usize], n_groups: usize) -> Result<()> {
        let clock = self.begin(groups.len());
        let outcome = self.merge_inner(states, groups, n_groups);
        self.end(clock, outcome)
    }

    fn merge_inner(
        &mut self,
        states: &ArrayRef,
        groups: &[usize],
        n_groups: usize,
    ) -> std::result::Result<(), Failure> {
        self.ensure(n_groups)?;
        let bad = |problem: String| (None, Fault::BadInput(problem));
        let states = write::in_layout(states, &Type::Binary).map_err(bad)?;
        let (mut states, mut groups) = (states, numbers(groups));
        if let Some(nulls) = states.nulls().filter(|nulls| nulls.null_count() > 0) {
            // A state that is NULL is one of no rows.
            let keep = BooleanArray::new(nulls.inner().clone(), None);
            let filter = |array: &dyn Array| {
                compute::filter(array, &keep).map_err(|error| bad(error.to_string()))
            };
            (states, groups) = (filter(states.as_ref())?, filter(groups.as_ref())?);
        }
        self.feed("merge", &[(states, false)], &[Type::Binary], &groups)
    }

    /// The states of the first groups as a binary column; these groups are gone then.
    pub fn take_states(&mut self, n: usize) -> Result<ArrayRef> {
        self.take("state", &Type::Binary, n)
    }

    /// The results of the first groups; these groups are gone then.
    pub fn finish(&mut self, n: usize) -> Result<ArrayRef> {
        let returns = self.module.function(self.at).returns.clone();
        self.take("finish", &returns, n)
    }

    /// Memory that the states take, with what else the guest has.
    pub fn bytes(&self) -> usize {
        self.guest.as_ref().map_or(0, Guest::own_bytes)
    }

    fn begin(&mut self, n_rows: usize) -> Instant {
        let meter = self.module.meter(self.at);
        self.record_batch = meter.record_batches.fetch_add(1, Ordering::Relaxed);
        self.n_rows = n_rows;
        Meter::add(&meter.rows, n_rows);
        Instant::now()
    }

    fn end<T>(&mut self, clock: Instant, outcome: std::result::Result<T, Failure>) -> Result<T> {
        let meter = self.module.meter(self.at);
        Meter::add(&meter.nanoseconds, clock.elapsed().as_nanos() as usize);
        outcome.map_err(|(row, fault)| {
            // The states are void, whatever happened.
            self.guest = None;
            if !matches!(fault, Fault::Failed(_) | Fault::BadInput(_)) {
                Meter::add(&meter.traps, 1);
            }
            self.module
                .call_error(self.at, self.record_batch, row, self.n_rows, fault)
        })
    }

    /// Makes states for groups that are new.
    fn ensure(&mut self, n_groups: usize) -> std::result::Result<(), Failure> {
        if n_groups > self.n_groups {
            let n_new = n_groups - self.n_groups;
            self.call("init", n_new, &[], None)?;
            self.n_groups = n_groups;
        }
        Ok(())
    }

    /// Hands rows over, in pieces if need be.
    fn feed(
        &mut self,
        which: &str,
        columns: &[(ArrayRef, bool)],
        kinds: &[Type],
        groups: &ArrayRef,
    ) -> std::result::Result<(), Failure> {
        let all: Range<usize> = 0..groups.len();
        let mut waiting = Vec::from([all]);
        while let Some(rows) = waiting.pop() {
            if rows.is_empty() {
                continue;
            }
            let piece = |array: &ArrayRef| array.slice(rows.start, rows.len());
            let mut pieces: Vec<(ArrayRef, bool)> = columns
                .iter()
                .map(|(array, is_constant)| match is_constant {
                    true => (ArrayRef::clone(array), true),
                    false => (piece(array), false),
                })
                .collect();
            pieces.push((piece(groups), false));
            let inputs: Vec<Input<'_>> = pieces
                .iter()
                .zip(kinds.iter().chain([&Type::U32]))
                .map(|((array, is_constant), kind)| (array.as_ref(), kind, *is_constant))
                .collect();
            match self.call(which, rows.len(), &inputs, None) {
                Ok(_) => {}
                Err((_, Fault::BadInput(_))) if rows.len() > 1 => {
                    let middle = rows.start + rows.len() / 2;
                    waiting.push(middle..rows.end);
                    waiting.push(rows.start..middle);
                }
                Err((row, fault)) => {
                    // A row of what is left without NULL says nothing where some are gone.
                    let row = row.filter(|_| groups.len() == self.n_rows);
                    return Err((row.map(|row| rows.start + row), fault));
                }
            }
        }
        Ok(())
    }

    fn take(&mut self, which: &str, kind: &Type, n: usize) -> Result<ArrayRef> {
        let clock = Instant::now();
        let outcome = self.take_inner(which, kind, n);
        self.end(clock, outcome)
    }

    fn take_inner(
        &mut self,
        which: &str,
        kind: &Type,
        n: usize,
    ) -> std::result::Result<ArrayRef, Failure> {
        self.ensure(n)?;
        let mut pieces: Vec<ArrayRef> = vec![new_empty_array(&kind.arrow())];
        let mut left = n;
        let mut most = GROUPS_TAKEN;
        while left > 0 {
            let n = left.min(most);
            match self.call(which, n, &[], Some(kind)) {
                Ok(Some(array)) => pieces.push(array),
                Ok(None) => {}
                Err((_, Fault::BadInput(_))) if most > 1 => {
                    most /= 2;
                    continue;
                }
                Err(failure) => return Err(failure),
            }
            left -= n;
            self.n_groups -= n;
        }
        let pieces: Vec<&dyn Array> = pieces.iter().map(AsRef::as_ref).collect();
        compute::concat(&pieces).map_err(|error| (None, Fault::BadInput(error.to_string())))
    }

    /// One call of an entry point. `BadInput` where the arena has no room for it, and then
    /// nothing has happened.
    fn call(
        &mut self,
        which: &str,
        n_rows: usize,
        inputs: &[Input<'_>],
        result: Option<&Type>,
    ) -> std::result::Result<Option<ArrayRef>, Failure> {
        let fail = |fault| (None, fault);
        if self.guest.is_none() {
            if self.n_groups > 0 {
                return Err(fail(Fault::BadInput("its states are lost".into())));
            }
            self.guest = Some(self.module.fresh_guest(self.at).map_err(fail)?);
            self.state = 0;
        }
        let Some(guest) = &mut self.guest else {
            return Ok(None);
        };
        let meter = self.module.meter(self.at);
        let head = Head {
            flags: call::STRICT,
            n_rows,
            state: self.state,
            record_batch: self.record_batch,
            seed: 0,
            query_time: self.query_time,
        };
        let arena = guest.arena();
        let mut writer = Writer::new(guest.memory_mut(), arena);
        let wanted = result.map(|kind| (kind, None));
        let Ok(frame) = Frame::lay_out(&mut writer, &head, inputs, wanted) else {
            return Err(fail(Fault::BadInput(
                "the arguments of one row do not fit the memory that columns have in the sandbox"
                    .into(),
            )));
        };
        Meter::add(&meter.bytes_in, writer.n_copied);
        Meter::add(&meter.calls, 1);
        let entry = abi::aggregate_entry(&self.module.function(self.at).name, which);
        let called = guest.call(self.module.runtime.ticker(), &entry, frame.call as u32);
        meter
            .memory_bytes_max
            .fetch_max(guest.own_bytes(), Ordering::Relaxed);
        let (row, code, message) = read::message(guest.memory(), frame.error);
        let row = row.filter(|row| *row < n_rows);
        match called {
            Ok(Status::Done) => {}
            Ok(Status::Failed) if message.is_empty() => {
                return Err((row, Fault::Failed("it failed without a message".into())));
            }
            Ok(Status::Failed) => return Err((row, Fault::Failed(message))),
            Err(Fault::Trapped(_)) if code == error::PANICKED => {
                return Err((row, Fault::Panicked(message)));
            }
            Err(fault) => return Err(fail(fault)),
        }
        self.state = read::u32_at(guest.memory(), frame.call + call::STATE);
        let (Some(kind), Some(place)) = (result, &frame.result) else {
            return Ok(None);
        };
        let array = read::result(guest.memory(), place, kind, n_rows, None)
            .map_err(|problem| fail(Fault::BadOutput(problem)))?;
        Meter::add(&meter.bytes_out, array.get_buffer_memory_size());
        Ok(Some(array))
    }
}

/// Numbers of groups as a column.
fn numbers(groups: &[usize]) -> ArrayRef {
    // There are fewer groups than a 32-bit memory has bytes.
    Arc::new(UInt32Array::from_iter_values(
        groups.iter().map(|group| *group as u32),
    ))
}
