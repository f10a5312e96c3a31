//! What must hold for every function, whatever it computes: tried with random columns. The
//! author's tool runs it; the engine relies on what it looks for.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Float64Array};
use arrow::compute;
use arrow::datatypes::DataType;

use crate::aggregate::Groups;
use crate::error::{Error, Fault, Result};
use crate::metadata::{Function, Kind, Volatility};
use crate::module::Module;
use crate::sample;
use crate::scalar::{Argument, OnError};

/// Something that an author should look at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// Whether queries can give wrong answers because of it.
    pub is_wrong: bool,
    /// What was seen.
    pub message: String,
}

/// Sizes around the edges of bitmaps, strips and record batches.
const SIZES: [usize; 7] = [0, 1, 31, 32, 33, 1_000, 8_192];
/// Rows that are compared one at a time.
const N_SINGLE: usize = 64;
/// Calls in which a leak shows.
const N_CALLS: usize = 1_000;
const N_GROUPS: usize = 37;

/// Tries a function out.
pub fn check(module: &Arc<Module>, at: usize) -> Result<Vec<Finding>> {
    let function = module.function(at).clone();
    let mut trial = Trial {
        module,
        at,
        function: &function,
        findings: Vec::new(),
    };
    let tried = match function.kind {
        Kind::Scalar => trial.scalar(),
        Kind::Aggregate => trial.aggregate(),
        Kind::Table => Ok(()),
    };
    match tried {
        // No policy helps against a result that is no column, or a limit.
        Err(Error::Call(error)) => trial.find(true, error.fault.to_string()),
        Err(other) => return Err(other),
        Ok(()) => {}
    }
    Ok(trial.findings)
}

struct Trial<'a> {
    module: &'a Arc<Module>,
    at: usize,
    function: &'a Function,
    findings: Vec<Finding>,
}

impl Trial<'_> {
    fn find(&mut self, is_wrong: bool, message: String) {
        self.findings.push(Finding { is_wrong, message });
    }

    fn columns(&self, n_rows: usize, seed: u64, with_nulls: bool) -> Vec<ArrayRef> {
        self.function
            .args
            .iter()
            .enumerate()
            .map(|(i, arg)| sample::column(&arg.kind, n_rows, seed + 1_000 * i as u64, with_nulls))
            .collect()
    }

    fn call(&self, args: &[Argument], n_rows: usize) -> Result<ArrayRef> {
        self.module.call(self.at, args, n_rows, 0, OnError::Null)
    }

    fn scalar(&mut self) -> Result<()> {
        let whole = |columns: &[ArrayRef]| -> Vec<Argument> {
            columns.iter().cloned().map(Argument::Column).collect()
        };
        let columns = self.columns(1_000, 77, true);
        self.panics(&columns);
        for (seed, n_rows) in SIZES.into_iter().enumerate() {
            for with_nulls in [false, true] {
                let columns = self.columns(n_rows, seed as u64, with_nulls);
                self.call(&whole(&columns), n_rows)?;
            }
        }
        if self.function.volatility == Volatility::Volatile {
            return self.leaks(&columns);
        }
        let all = self.call(&whole(&columns), 1_000)?;
        let again = self.call(&whole(&columns), 1_000)?;
        if let Some(row) = first_difference(&all, &again) {
            let message = format!(
                "a second call with the same arguments gives another result in row {row}; it \
                 keeps something between calls, so declare it `volatile`"
            );
            self.find(true, message);
        }
        self.module.drop_idle();
        let single = (0..N_SINGLE)
            .map(|row| {
                let row: Vec<ArrayRef> = columns.iter().map(|array| array.slice(row, 1)).collect();
                self.call(&whole(&row), 1)
            })
            .collect::<Result<Vec<_>>>()?;
        let single: Vec<&dyn Array> = single.iter().map(AsRef::as_ref).collect();
        if !single.is_empty() {
            let single = compute::concat(&single).map_err(|error| told(&error))?;
            if let Some(row) = first_difference(&all.slice(0, N_SINGLE), &single) {
                let message = format!(
                    "row {row} has another result alone than among other rows: a row must not \
                     depend on its neighbours"
                );
                self.find(true, message);
            }
        }
        self.constants(&columns)?;
        self.leaks(&columns)
    }

    /// A constant is the same as a column that repeats it.
    fn constants(&mut self, columns: &[ArrayRef]) -> Result<()> {
        for i in 0..columns.len() {
            let n_rows = 100;
            let value = columns[i].slice(5, 1);
            let repeated: Vec<&dyn Array> = vec![value.as_ref(); n_rows];
            let repeated = compute::concat(&repeated).map_err(|error| told(&error))?;
            let with = |other: Argument| -> Vec<Argument> {
                let mut args: Vec<Argument> = columns
                    .iter()
                    .map(|array| Argument::Column(array.slice(0, n_rows)))
                    .collect();
                args[i] = other;
                args
            };
            let constant = self.call(&with(Argument::Constant(value)), n_rows)?;
            let column = self.call(&with(Argument::Column(repeated)), n_rows)?;
            if let Some(row) = first_difference(&constant, &column) {
                let message = format!(
                    "a constant for `{}` gives another result in row {row} than a column that \
                     repeats it",
                    self.function.args[i].name
                );
                self.find(true, message);
            }
        }
        Ok(())
    }

    /// A panic is an error of the author's, an `Err` is meant.
    fn panics(&mut self, columns: &[ArrayRef]) {
        for row in 0..200.min(columns.first().map_or(0, |array| array.len())) {
            let args: Vec<Argument> = columns
                .iter()
                .map(|array| Argument::Column(array.slice(row, 1)))
                .collect();
            let outcome = self.module.call(self.at, &args, 1, 0, OnError::Fail);
            if let Err(Error::Call(error)) = outcome
                && !matches!(error.fault, Fault::Failed(_))
            {
                let values: Vec<String> = columns
                    .iter()
                    .map(|array| shown(&array.slice(row, 1)))
                    .collect();
                let message = format!("for ({}) {}", values.join(", "), error.fault);
                return self.find(false, message);
            }
        }
    }

    /// Memory that grows with every call.
    fn leaks(&mut self, columns: &[ArrayRef]) -> Result<()> {
        let args: Vec<Argument> = columns
            .iter()
            .map(|array| Argument::Column(array.slice(0, 256)))
            .collect();
        let before = self.module.meter(self.at).read();
        for _ in 0..N_CALLS {
            self.call(&args, 256)?;
        }
        let after = self.module.meter(self.at).read();
        let (dropped, traps) = (
            after.instances - before.instances,
            after.traps - before.traps,
        );
        if traps == 0 && dropped > 4 {
            let message = format!(
                "{dropped} instances had to be dropped over {N_CALLS} calls because their memory \
                 grew: something is kept that is never freed"
            );
            self.find(false, message);
        }
        Ok(())
    }

    /// Groups split over parts and merged give what they give in one part.
    fn aggregate(&mut self) -> Result<()> {
        for with_nulls in [false, true] {
            let n_rows = 5_000;
            let columns = self.columns(n_rows, 5, with_nulls);
            // Floats without the extremes, which no order of additions survives.
            let columns: Vec<ArrayRef> = columns.iter().map(tame).collect();
            let groups: Vec<usize> = (0..n_rows).map(|row| row * 7 % N_GROUPS).collect();
            let rows = |from: usize, to: usize| -> Vec<Argument> {
                columns
                    .iter()
                    .map(|array| Argument::Column(array.slice(from, to - from)))
                    .collect()
            };
            let mut whole = Groups::new(self.module, self.at, 0);
            whole.update(&rows(0, n_rows), &groups, N_GROUPS)?;
            let expected = whole.finish(N_GROUPS)?;
            let mut merged = Groups::new(self.module, self.at, 0);
            let all: Vec<usize> = (0..N_GROUPS).collect();
            for from in (0..n_rows).step_by(777) {
                let to = (from + 777).min(n_rows);
                let mut part = Groups::new(self.module, self.at, 0);
                part.update(&rows(from, to), &groups[from..to], N_GROUPS)?;
                let states = part.take_states(N_GROUPS)?;
                merged.merge(&states, &all, N_GROUPS)?;
            }
            let found = merged.finish(N_GROUPS)?;
            if let Some(group) = first_far(&expected, &found) {
                let message = format!(
                    "split into parts and merged, group {group} is {} and not {}: look at `merge` \
                     and at what the state saves",
                    shown(&found.slice(group, 1)),
                    shown(&expected.slice(group, 1))
                );
                self.find(true, message);
            }
            // No rows at all.
            let mut none = Groups::new(self.module, self.at, 0);
            none.update(&rows(0, 0), &[], 1)?;
            none.finish(1)?;
        }
        Ok(())
    }
}

/// A float column without its extremes and NaNs; another column as it is.
fn tame(array: &ArrayRef) -> ArrayRef {
    match array.as_primitive_opt::<arrow::datatypes::Float64Type>() {
        Some(floats) => {
            let tamed = floats
                .iter()
                .map(|value| value.map(|value| if value.abs() < 1e6 { value } else { 1.5 }));
            Arc::new(tamed.collect::<Float64Array>())
        }
        None => ArrayRef::clone(array),
    }
}

/// The first row in which two columns differ, by their bits.
fn first_difference(one: &ArrayRef, other: &ArrayRef) -> Option<usize> {
    (0..one.len().max(other.len())).find(|row| {
        *row >= one.len()
            || *row >= other.len()
            || one.slice(*row, 1).to_data() != other.slice(*row, 1).to_data()
    })
}

/// The first row in which two columns differ by more than additions in another order do.
fn first_far(one: &ArrayRef, other: &ArrayRef) -> Option<usize> {
    if *one.data_type() != DataType::Float64 {
        return first_difference(one, other);
    }
    type Float = arrow::datatypes::Float64Type;
    let (one, other) = (one.as_primitive::<Float>(), other.as_primitive::<Float>());
    one.iter().zip(other).position(|pair| match pair {
        (Some(one), Some(other)) => {
            let most = one.abs().max(other.abs());
            !(one == other || (one - other).abs() <= 1e-9 * most || one.is_nan() && other.is_nan())
        }
        (one, other) => one.is_some() != other.is_some(),
    })
}

/// A value in words.
fn shown(value: &ArrayRef) -> String {
    if value.is_null(0) {
        return "NULL".into();
    }
    arrow::util::display::array_value_to_string(value, 0).unwrap_or_else(|_| "a value".into())
}

fn told(error: &arrow::error::ArrowError) -> Error {
    Error::System {
        what: "put columns together",
        problem: error.to_string(),
    }
}
