//! The kernel that makes columns of the groups of a table.
//!
//! ```text
//! row   [ key words | state words ]      o0 = key, o1 = sum, o2 = sum / count, ...
//! ```

use std::fmt::Write as _;

use super::accumulate::{AccumulatorKind, CallState, Slot};
use super::emit::{ValueRegister, full_register, overflow_fault, wide_literal};
use super::error::Unsupported;
use super::many_groups::KeyWords;
use super::rows::{OutputShape, ROWS_BLOCK_THREADS};
use super::tile::named;
use crate::ir::{Function, Range, Register, Spread, Type};

/// What one column of the groups is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum GroupOutput {
    /// A key; `range` is what is known about its values.
    Key {
        /// Which.
        key: usize,
        /// Its interval, if that is narrower than its type.
        range: Option<Range>,
    },
    /// The value of a call.
    Call(usize),
    /// A sum divided by a count.
    Average {
        /// The call that sums.
        sum: usize,
        /// The call that counts.
        count: usize,
        /// Digits after the point of the sum.
        scale: i8,
    },
    /// A variance of what a call has the moments of.
    Spread {
        /// The call.
        call: usize,
        /// What is made of the moments.
        spread: Spread,
    },
}

/// Where the keys of groups are.
#[derive(Debug, Clone, Copy)]
pub enum GroupKeys<'a> {
    /// In words before the state.
    Words {
        /// Where each key stands.
        keys: &'a [KeyWords],
        /// Words of all keys.
        n_words: usize,
    },
    /// The one key is the group's number plus a smallest key. Groups without rows do not
    /// exist; the last is that of null.
    Dense {
        /// Whether the key can be null.
        nullable: bool,
        /// The interval of the keys.
        range: Range,
    },
}

/// How the words of groups are laid out.
#[derive(Debug, Clone, Copy)]
pub struct GroupLayout<'a> {
    /// Where the keys are.
    pub keys: GroupKeys<'a>,
    /// How each call is read back, from the words after the key.
    pub calls: &'a [CallState],
    /// What each call computes.
    pub functions: &'a [Function],
}

/// A generated kernel and what is needed to launch it.
#[derive(Debug, Clone)]
pub struct GroupValuesKernel {
    /// The entry point: `groups_` and a hash of the text.
    pub name: String,
    /// The CUDA C++ text.
    pub text: String,
    /// The columns that are written.
    pub outputs: Vec<OutputShape>,
}

/// Generates the kernel that gives these columns of these types.
pub fn generate_group_values(
    layout: GroupLayout<'_>,
    outputs: &[(GroupOutput, Type)],
) -> Result<GroupValuesKernel, Unsupported> {
    let (mut body, mut fields) = (String::new(), String::new());
    let mut shapes = Vec::new();
    for (index, (output, ty)) in outputs.iter().enumerate() {
        let (shape, value) = match output {
            GroupOutput::Key { key, range } => match layout.keys {
                GroupKeys::Words { keys, .. } => key_value(&keys[*key], *ty, *range)?,
                GroupKeys::Dense { nullable, range } => dense_key(*ty, range, nullable)?,
            },
            GroupOutput::Call(call) => call_value(&layout, *call, *ty)?,
            GroupOutput::Average { sum, count, scale } => {
                average(&layout, *sum, *count, *scale, *ty)?
            }
            GroupOutput::Spread { call, spread } => spread_value(&layout, *call, *spread, *ty)?,
        };
        let stored = shape.stored();
        let _ = writeln!(body, "    store<{stored}>(p.o{index}, to, {value});");
        let _ = writeln!(fields, "  alignas(16) OutputRef o{index};");
        shapes.push(shape);
    }
    let key_words = match layout.keys {
        GroupKeys::Words { n_words, .. } => n_words,
        GroupKeys::Dense { .. } => 0,
    };
    let (extra, run) = match layout.keys {
        GroupKeys::Words { .. } => ("", "write_rows(thread, p.n_rows, write);"),
        GroupKeys::Dense { .. } => (
            "  alignas(16) i64 min;\n  alignas(16) TilesRef tiles;\n  alignas(16) u64* n_kept;\n",
            "collect_rows(thread, p.n_rows, p.tiles, p.n_kept, \
             [&]() { return p.rows[thread.row * p.row_words] != 0; }, write);",
        ),
    };
    let text = format!(
        r#"#define WL_BLOCK_THREADS {ROWS_BLOCK_THREADS}
#include "prelude.h"
#include "thread/value.h"
#include "thread/arithmetic.h"
#include "thread/compare.h"
#include "thread/memory.h"
#include "table/accumulators.h"
#include "table/groups.h"
#include "table/group_values.h"
#include "rows/tiles.h"
#include "rows/collect.h"

struct Params {{
  alignas(16) u64 n_rows;
  alignas(16) u64* first_fault;
  alignas(16) const u64* rows;
  alignas(16) u64 row_words;
{extra}{fields}}};

WL_KERNEL(@name@, Params, p) {{
  Thread thread{{0, NO_FAULT}};
  const auto write = [&](u64 to) {{
    const u64* const key = p.rows + thread.row * p.row_words;
    const u64* const state = key + {key_words};
    static_cast<void>(state);
    static_cast<void>(to);
{body}  }};
  {run}
  report_fault(thread, p.first_fault);
}}
"#
    );
    let (name, text) = named("groups", &text);
    Ok(GroupValuesKernel {
        name,
        text,
        outputs: shapes,
    })
}

fn key_value(
    words: &KeyWords,
    ty: Type,
    range: Option<Range>,
) -> Result<(OutputShape, String), Unsupported> {
    let full = full_register(ty)?;
    let register = match (full, range) {
        (ValueRegister::Integer(_, all), Some(range)) => {
            let range = range.rounded().intersect(all);
            ValueRegister::Integer(range.register(), range)
        }
        (full, _) => full,
    };
    let at = words.at;
    let value = match (register, words.n_words) {
        (ValueRegister::F32 | ValueRegister::F64, _) => {
            format!("static_cast<{}>(float_of(key[{at}]))", register.name())
        }
        (ValueRegister::Bool, _) => format!("key[{at}] != 0"),
        (_, 2) => format!("static_cast<{}>(wide_of(key + {at}))", register.name()),
        _ => {
            let name = register.name();
            format!("static_cast<{name}>(static_cast<i64>(key[{at}]))")
        }
    };
    let nullable = words.null_bit.is_some();
    let value = match words.null_bit {
        Some(bit) => {
            let name = register.name();
            format!("Opt<{name}>{{{value}, (key[0] >> {bit} & 1) == 0}}")
        }
        None => value,
    };
    Ok((OutputShape { register, nullable }, value))
}

fn dense_key(ty: Type, range: Range, nullable: bool) -> Result<(OutputShape, String), Unsupported> {
    let ValueRegister::Integer(_, all) = full_register(ty)? else {
        return Err(Unsupported::data_type(ty));
    };
    let range = range.rounded().intersect(all);
    let register = ValueRegister::Integer(range.register(), range);
    let name = register.name();
    let value = format!("static_cast<{name}>(p.min + static_cast<i64>(thread.row))");
    let value = match nullable {
        true => format!("Opt<{name}>{{{value}, thread.row + 1 < p.n_rows}}"),
        false => value,
    };
    Ok((OutputShape { register, nullable }, value))
}

fn call_value(
    layout: &GroupLayout<'_>,
    call: usize,
    ty: Type,
) -> Result<(OutputShape, String), Unsupported> {
    let state = &layout.calls[call];
    let register = full_register(ty)?;
    if layout.functions[call].is_count() {
        let value = format!("static_cast<i64>(state[{}])", state.value.at);
        return Ok((
            OutputShape {
                register,
                nullable: false,
            },
            value,
        ));
    }
    // What a 64-bit state holds needs no more, whatever its type could.
    let register = match (state.value.kind, register) {
        (AccumulatorKind::SumI64, ValueRegister::Integer(_, all)) => {
            let range = Range::new(i128::from(i64::MIN), i128::from(i64::MAX)).intersect(all);
            ValueRegister::Integer(range.register(), range)
        }
        _ => register,
    };
    let value = match register {
        ValueRegister::Integer(held, range) => {
            let mut whole = integer(state.value, state.register, ty)?;
            if let Some(rows) = state.rows {
                // What a state begins with is no value, and need not fit the type.
                whole = format!("(state[{}] == 0 ? static_cast<i128>(0) : {whole})", rows.at);
            }
            let (min, max) = (wide_literal(range.min), wide_literal(range.max));
            let (held, fault) = (held.name(), overflow_fault(ty));
            format!("narrow<{held}>(thread, {whole}, {min}, {max}, {fault})")
        }
        _ => {
            let value = float_or_bool(state.value, state.register)?;
            format!("static_cast<{}>({value})", register.name())
        }
    };
    Ok(if_rows(register, state.rows, value))
}

fn average(
    layout: &GroupLayout<'_>,
    sum: usize,
    count: usize,
    scale: i8,
    ty: Type,
) -> Result<(OutputShape, String), Unsupported> {
    let (state, rows) = (&layout.calls[sum], layout.calls[count].value);
    let register = full_register(ty)?;
    let n = format!("static_cast<i64>(state[{}])", rows.at);
    // A group without rows has no average; the divisor is then anything but 0.
    let divisor = format!("({n} == 0 ? 1 : {n})");
    let value = match (ty, state.value.kind) {
        (Type::Float64, AccumulatorKind::SumF64) => {
            let sum = float_or_bool(state.value, state.register)?;
            format!("{sum} / static_cast<f64>({divisor})")
        }
        (Type::Float64, _) => {
            let sum = integer(state.value, state.register, ty)?;
            format!("static_cast<f64>({sum}) / 1e{scale} / static_cast<f64>({divisor})")
        }
        (Type::Decimal { scale: to, .. }, _) => {
            let shift = u32::try_from(to - scale)
                .ok()
                .and_then(|digits| 10i128.checked_pow(digits))
                .ok_or_else(|| Unsupported::expression("an average with fewer digits"))?;
            let ValueRegister::Integer(held, range) = register else {
                return Err(Unsupported::data_type(ty));
            };
            let sum = integer(state.value, state.register, ty)?;
            let (power, min, max) = (
                wide_literal(shift),
                wide_literal(range.min),
                wide_literal(range.max),
            );
            let (held, fault) = (held.name(), overflow_fault(ty));
            format!(
                "narrow<{held}>(thread, multiply_checked(thread, {sum}, {power}, {fault}) / \
                 static_cast<i128>({divisor}), {min}, {max}, {fault})"
            )
        }
        _ => return Err(Unsupported::expression(format!("an average as {ty}"))),
    };
    Ok(if_rows(register, Some(rows), value))
}

fn spread_value(
    layout: &GroupLayout<'_>,
    call: usize,
    spread: Spread,
    ty: Type,
) -> Result<(OutputShape, String), Unsupported> {
    let slot = layout.calls[call].value;
    if slot.kind != AccumulatorKind::Moments || ty != Type::Float64 {
        return Err(Unsupported::expression(format!("a variance as {ty}")));
    }
    let shape = OutputShape {
        register: full_register(ty)?,
        nullable: true,
    };
    let (is_sample, is_root, at) = (spread.is_sample, spread.is_root, slot.at);
    Ok((
        shape,
        format!("spread<{is_sample}, {is_root}>(state + {at})"),
    ))
}

fn if_rows(register: ValueRegister, rows: Option<Slot>, value: String) -> (OutputShape, String) {
    let shape = OutputShape {
        register,
        nullable: rows.is_some(),
    };
    match rows {
        Some(rows) => {
            let name = register.name();
            let value = format!("if_rows<{name}>(state[{}], {value})", rows.at);
            (shape, value)
        }
        None => (shape, value),
    }
}

/// The words of an integral state as a number.
fn integer(slot: Slot, register: Option<ValueRegister>, ty: Type) -> Result<String, Unsupported> {
    let at = slot.at;
    Ok(match slot.kind {
        AccumulatorKind::Count | AccumulatorKind::SumI64 => {
            format!("static_cast<i128>(static_cast<i64>(state[{at}]))")
        }
        AccumulatorKind::SumI128 => format!("wide_of(state + {at})"),
        AccumulatorKind::SumI192 => {
            format!("sum_of(thread, state + {at}, {})", overflow_fault(ty))
        }
        AccumulatorKind::Min | AccumulatorKind::Max => match register {
            Some(ValueRegister::Integer(Register::I32 | Register::I64, _)) => {
                format!("static_cast<i128>(integer_of_ordered(state[{at}]))")
            }
            _ => return Err(Unsupported::expression("an extreme of such a value")),
        },
        AccumulatorKind::MinI128 | AccumulatorKind::MaxI128 => {
            format!("wide_of_ordered(state + {at})")
        }
        AccumulatorKind::SumF64 | AccumulatorKind::Moments => {
            return Err(Unsupported::expression("a sum of floats as an integer"));
        }
    })
}

fn float_or_bool(slot: Slot, register: Option<ValueRegister>) -> Result<String, Unsupported> {
    let at = slot.at;
    Ok(match (slot.kind, register) {
        (AccumulatorKind::SumF64, _) => format!("float_of(state[{at}])"),
        (
            AccumulatorKind::Min | AccumulatorKind::Max,
            Some(ValueRegister::F32 | ValueRegister::F64),
        ) => format!("float_of_ordered(state[{at}])"),
        (AccumulatorKind::Min | AccumulatorKind::Max, Some(ValueRegister::Bool)) => {
            format!("state[{at}] != 0")
        }
        _ => return Err(Unsupported::expression("such a value of a group")),
    })
}
