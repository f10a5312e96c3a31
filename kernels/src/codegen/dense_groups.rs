//! The aggregate kernel for one integral key whose values lie close together: a group's
//! states stand at the key's distance from the smallest key. Nothing is hashed, compared
//! or inserted.
//!
//! ```text
//! state   [ group of min | min + 1 | ... | max | null ]     the first word counts rows
//! ```

use std::collections::HashMap;

use super::accumulate::{Accumulators, CallState, Lifetime, Slot};
use super::aggregate::BLOCK_THREADS;
use super::emit::{ColumnShape, Emitter, Parameter, ValueRegister};
use super::error::Unsupported;
use super::phases::Phases;
use super::steps::TableShape;
use super::tile::{Span, fields, named};
use crate::ir::Aggregate;

/// What adding a row to a group's states costs: see `Phases::emit`.
const SINK_COST: f64 = 1.0;

/// A generated kernel and what is needed to launch it and to read its result.
#[derive(Debug, Clone)]
pub struct DenseGroupsKernel {
    /// The entry point: `dense_` and a hash of the text.
    pub name: String,
    /// The CUDA C++ text.
    pub text: String,
    /// Columns, in the order of their fields in the parameters.
    pub columns: Vec<usize>,
    /// Constants, in the order of their fields.
    pub parameters: Vec<Parameter>,
    /// Words of a group's state; all start as 0 but those of a `Min`.
    pub state_words: usize,
    /// Every accumulator; the first counts the rows of the group.
    pub slots: Vec<Slot>,
    /// How each call is read back.
    pub calls: Vec<CallState>,
}

/// Generates the kernel of an aggregate with one integral key. `rows_max` bounds the rows
/// that are ever added.
pub fn generate_dense(
    aggregate: &Aggregate,
    columns: &HashMap<usize, ColumnShape>,
    tables: &[TableShape],
    rows_max: u64,
) -> Result<DenseGroupsKernel, Unsupported> {
    let [key] = aggregate.keys.as_slice() else {
        return Err(Unsupported::expression("dense groups of several keys"));
    };
    if aggregate.has_distinct() {
        return Err(Unsupported::expression("DISTINCT over dense groups"));
    }
    let used = aggregate.columns();
    let mut emitter = Emitter::new(columns.clone());
    let steps = &aggregate.steps;
    let phases = Phases::emit(&mut emitter, steps, &used, columns, tables, SINK_COST)?;
    let value = emitter.emit(key)?;
    if !matches!(value.register, ValueRegister::Integer(..)) {
        return Err(Unsupported::expression("dense groups of such a key"));
    }
    emitter.line(&format!(
        "const u64 group = dense_group({}, p.min, p.n_values);",
        value.text
    ));
    let mut accumulators = Accumulators::new(Lifetime::Chunk(rows_max));
    emitter.line("const GlobalWords words{p.state + group * state_words};");
    accumulators.count_rows(&mut emitter);
    let mut calls = Vec::new();
    for call in &aggregate.calls {
        calls.push(accumulators.emit_call(&mut emitter, call)?);
    }
    let state_words = accumulators.n_words();
    let rows = phases.finish(&mut emitter, &Span::ALL);
    let fields = fields(tables.len(), &used, columns, emitter.parameters());
    let text = format!(
        r#"#define WL_BLOCK_THREADS {BLOCK_THREADS}
#include "prelude.h"
#include "thread/value.h"
#include "thread/arithmetic.h"
#include "thread/compare.h"
#include "thread/dates.h"
#include "thread/memory.h"
#include "thread/text.h"
#include "thread/text_parts.h"
#include "table/accumulators.h"
#include "table/groups.h"
#include "table/hash.h"
#include "table/join_table.h"
#include "rows/queue.h"

struct Params {{
  alignas(16) u64 n_rows;
  alignas(16) u64* first_fault;
  alignas(16) u64* state;
  alignas(16) i64 min;
  alignas(16) u64 n_values;
{fields}}};

static constexpr u32 state_words = {state_words};

WL_KERNEL(@name@, Params, p) {{
  Thread thread{{0, NO_FAULT}};
{rows}  report_fault(thread, p.first_fault);
}}
"#
    );
    let (name, text) = named("dense", &text);
    Ok(DenseGroupsKernel {
        name,
        text,
        columns: used,
        parameters: emitter.parameters().to_vec(),
        state_words,
        slots: accumulators.into_slots(),
        calls,
    })
}
