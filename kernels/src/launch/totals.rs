//! The states of all groups, added up over chunks on the host.
//!
//! A chunk leaves a few words a group on the device. They are decoded with the
//! chunk's own kernel, because the next chunk's values may need wider registers and
//! so another kernel, and are added up here as exact 128-bit integers.

use std::collections::BTreeMap;

use crate::codegen::{AccumulatorKind, AggregateKernel, CallState, Slot, ValueRegister};
use crate::error::{Error, Result};
use crate::ir::{Function, Moments, Register};

/// A finished or partial value.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Number {
    /// An exact integer (or unscaled decimal, date, boolean).
    Integer(i128),
    /// A float.
    Float(f64),
    /// What variances are made of.
    Moments(Moments),
}

/// The values of one group: one for each call, null when no row went in.
pub type GroupTotals = Vec<Option<Number>>;

/// All groups so far, in the order of their keys with nulls first.
#[derive(Debug, Clone)]
pub struct Totals {
    functions: Vec<Function>,
    groups: BTreeMap<Vec<Option<i128>>, GroupTotals>,
}

impl Totals {
    /// No groups yet, for these calls.
    pub fn new(functions: Vec<Function>) -> Totals {
        Totals {
            functions,
            groups: BTreeMap::new(),
        }
    }

    /// The groups that have rows.
    pub fn groups(&self) -> &BTreeMap<Vec<Option<i128>>, GroupTotals> {
        &self.groups
    }

    /// Makes the one group of an aggregate without keys exist: over no rows at all,
    /// its counts are 0 and its other values null.
    pub fn ensure_group_without_keys(&mut self) {
        let functions = &self.functions;
        self.groups.entry(Vec::new()).or_insert_with(|| {
            functions
                .iter()
                .map(|f| f.is_count().then_some(Number::Integer(0)))
                .collect()
        });
    }

    /// Adds the words that one chunk left.
    ///
    /// Fails with [`Error::Internal`] when there are fewer words than the kernel
    /// says, and with the sum's overflow when a total leaves 128 bits.
    pub fn add_chunk(&mut self, kernel: &AggregateKernel, words: &[u64]) -> Result<()> {
        if words.len() < kernel.n_groups * kernel.n_words {
            return Err(Error::Internal(
                "the kernel left fewer words than it has groups".into(),
            ));
        }
        for (number, state) in words
            .chunks_exact(kernel.n_words)
            .take(kernel.n_groups)
            .enumerate()
        {
            // The first accumulator counts the group's rows.
            if state[0] == 0 {
                continue;
            }
            let key = decode_key(kernel, number);
            let values = self
                .functions
                .iter()
                .zip(&kernel.calls)
                .map(|(function, call)| decode(*function, call, state))
                .collect::<Result<GroupTotals>>()?;
            match self.groups.get_mut(&key) {
                None => {
                    self.groups.insert(key, values);
                }
                Some(totals) => {
                    for ((total, value), function) in
                        totals.iter_mut().zip(values).zip(&self.functions)
                    {
                        *total = merge(*function, *total, value)?;
                    }
                }
            }
        }
        Ok(())
    }
}

/// The key values of a group number: the last key is least significant.
fn decode_key(kernel: &AggregateKernel, mut number: usize) -> Vec<Option<i128>> {
    let mut key: Vec<Option<i128>> = kernel
        .keys
        .iter()
        .rev()
        .map(|code| {
            let digit = number % code.n_codes();
            number /= code.n_codes();
            (digit < code.n_values).then(|| code.min + digit as i128)
        })
        .collect();
    key.reverse();
    key
}

/// The value of one call from the words of a group's state.
pub(super) fn decode(
    function: Function,
    call: &CallState,
    state: &[u64],
) -> Result<Option<Number>> {
    let rows = call.rows.map(|rows| state[rows.at]);
    if function.is_count() {
        return Ok(Some(Number::Integer(i128::from(state[call.value.at]))));
    }
    if rows == Some(0) {
        return Ok(None);
    }
    value(call.value, call.register, state).map(Some)
}

fn value(slot: Slot, register: Option<ValueRegister>, state: &[u64]) -> Result<Number> {
    let word = state[slot.at];
    Ok(match slot.kind {
        AccumulatorKind::Count => Number::Integer(i128::from(word)),
        AccumulatorKind::SumI64 => Number::Integer(i128::from(word as i64)),
        AccumulatorKind::SumI128 => {
            Number::Integer((u128::from(state[slot.at + 1]) << 64 | u128::from(word)) as i128)
        }
        AccumulatorKind::SumI192 => {
            let low = (u128::from(state[slot.at + 1]) << 64 | u128::from(word)) as i128;
            // The third word only repeats the sign when the sum fits 128 bits.
            if state[slot.at + 2] != (low >> 127) as u64 {
                return Err(sum_overflow());
            }
            Number::Integer(low)
        }
        AccumulatorKind::MinI128 | AccumulatorKind::MaxI128 => {
            let ordered = u128::from(state[slot.at + 1]) << 64 | u128::from(word);
            Number::Integer((ordered ^ (1 << 127)) as i128)
        }
        AccumulatorKind::SumF64 => Number::Float(f64::from_bits(word)),
        AccumulatorKind::Moments => Number::Moments(Moments {
            n: word,
            mean: f64::from_bits(state[slot.at + 1]),
            m2: f64::from_bits(state[slot.at + 2]),
        }),
        AccumulatorKind::Min | AccumulatorKind::Max => match register {
            Some(ValueRegister::F32 | ValueRegister::F64) => Number::Float(unordered_float(word)),
            Some(ValueRegister::Integer(Register::I32 | Register::I64, _)) => {
                Number::Integer(i128::from((word ^ (1 << 63)) as i64))
            }
            Some(ValueRegister::Bool) => Number::Integer(i128::from(word)),
            _ => {
                return Err(Error::Internal(
                    "an extreme of a value that has no order".into(),
                ));
            }
        },
    })
}

/// The inverse of `ordered(f64)` in `cuda/table/accumulators.h`.
fn unordered_float(word: u64) -> f64 {
    if word == u64::MAX {
        return f64::NAN;
    }
    if word >> 63 == 1 {
        f64::from_bits(word ^ (1 << 63))
    } else {
        f64::from_bits(!word)
    }
}

pub(super) fn merge(
    function: Function,
    a: Option<Number>,
    b: Option<Number>,
) -> Result<Option<Number>> {
    let (Some(a), Some(b)) = (a, b) else {
        return Ok(a.or(b));
    };
    Ok(Some(match (function, a, b) {
        (
            Function::Count | Function::Sum | Function::CountDistinct | Function::SumDistinct,
            Number::Integer(a),
            Number::Integer(b),
        ) => Number::Integer(a.checked_add(b).ok_or_else(sum_overflow)?),
        (Function::Sum | Function::SumDistinct, Number::Float(a), Number::Float(b)) => {
            Number::Float(a + b)
        }
        (Function::Moments, Number::Moments(a), Number::Moments(b)) => Number::Moments(a.and(b)),
        (Function::Min, Number::Integer(a), Number::Integer(b)) => Number::Integer(a.min(b)),
        (Function::Max, Number::Integer(a), Number::Integer(b)) => Number::Integer(a.max(b)),
        // NaN is larger than every number.
        (Function::Min, Number::Float(a), Number::Float(b)) => {
            Number::Float(if b.is_nan() || a < b { a } else { b })
        }
        (Function::Max, Number::Float(a), Number::Float(b)) => {
            Number::Float(if a.is_nan() || a > b { a } else { b })
        }
        _ => {
            return Err(Error::Internal(
                "two chunks disagree on the type of an aggregate".into(),
            ));
        }
    }))
}

fn sum_overflow() -> Error {
    let message = "a sum needs more than 128 bits".to_string();
    Error::Arrow(arrow::error::ArrowError::ArithmeticOverflow(message))
}
