//! The aggregate kernel: scan, filter, and accumulate in one pass.
//!
//! ```text
//!   thread      its own words, no atomics         registers (one group) or shared memory
//!     | merge, shared atomics
//!   block       one copy in shared memory
//!     | merge, global atomics
//!   device      state[group * words + at]         finished on the host
//! ```
//!
//! Groups are numbered by the product of their key ranges, so this kernel serves
//! keys whose proved ranges are small: dictionary codes, flags, years.

use std::collections::HashMap;

use super::accumulate::{Accumulators, CallState, Lifetime, Slot};
use super::distinct::set_fields;
use super::emit::{ColumnShape, Emitter, Parameter, ValueRegister};
use super::error::Unsupported;
use super::phases::{Phases, share_through};
use super::steps::TableShape;
use super::tile::{Span, fields, named};
use crate::ir::{Aggregate, Expr, Range, Step};

/// Threads a block. With 128, a thread's private copy may take 1.7 KiB of the
/// 227 KiB of shared memory that a block can have on sm_90.
pub const BLOCK_THREADS: u32 = 128;

/// The most words of private state a thread may have in shared memory: six blocks
/// of 128 threads then fit one sm_90 multiprocessor with 36 words each, which is
/// enough to hide memory latency; with the limit's 96 words, two do.
const PRIVATE_WORDS_MAX: usize = 96;

/// One integral group key and how its values are numbered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyCode {
    /// The smallest value, which has code 0.
    pub min: i128,
    /// Number of values that are not null.
    pub n_values: usize,
    /// Whether one more code, the last, stands for null.
    pub nullable: bool,
}

impl KeyCode {
    /// Number of codes.
    pub fn n_codes(&self) -> usize {
        self.n_values + usize::from(self.nullable)
    }
}

/// A generated kernel and what is needed to launch it and to read its result.
#[derive(Debug, Clone)]
pub struct AggregateKernel {
    /// The entry point: `aggregate_` and a hash of the text.
    pub name: String,
    /// The CUDA C++ text.
    pub text: String,
    /// Source columns, in the order of their fields in the parameters.
    pub columns: Vec<usize>,
    /// Constants, in the order of their fields.
    pub parameters: Vec<Parameter>,
    /// How group numbers are made of keys, first key most significant.
    pub keys: Vec<KeyCode>,
    /// Number of groups, including those that no row falls into.
    pub n_groups: usize,
    /// Words of one group's state.
    pub n_words: usize,
    /// Every accumulator; the first counts the rows of the group.
    pub slots: Vec<Slot>,
    /// How each call is read back.
    pub calls: Vec<CallState>,
    /// Bytes of dynamic shared memory for a block of `threads` threads.
    pub shared_words_per_thread: usize,
    /// Words of a member of each set that calls with DISTINCT keep. A kernel that has any
    /// takes the rows from `begin` on, so that the sets need no room for all rows at once.
    pub sets: Vec<usize>,
}

impl AggregateKernel {
    /// Bytes of dynamic shared memory of a block of `threads` threads.
    pub fn shared_bytes(&self, threads: u32) -> usize {
        let state = self.n_groups * self.n_words;
        (state + self.shared_words_per_thread * threads as usize) * size_of::<u64>()
    }
}

/// Generates the kernel of an aggregate over these columns and join tables.
///
/// `rows_max` bounds the number of rows that will ever be added, which proves
/// whether an integer sum fits 64 bits.
pub fn generate(
    aggregate: &Aggregate,
    columns: &HashMap<usize, ColumnShape>,
    tables: &[TableShape],
    rows_max: u64,
) -> Result<AggregateKernel, Unsupported> {
    let used = aggregate.columns();
    let mut emitter = Emitter::new(columns.clone());
    let steps = &aggregate.steps;
    let phases = Phases::emit(&mut emitter, steps, &used, columns, tables, SINK_COST)?;
    let keys = emit_keys(&mut emitter, &aggregate.keys)?;
    let n_groups = keys
        .iter()
        .try_fold(1usize, |n, key| n.checked_mul(key.n_codes()))
        .ok_or_else(too_many_groups)?;

    let mut accumulators = Accumulators::new(Lifetime::Chunk(rows_max)).with_keys(&aggregate.keys);
    accumulators.count_rows(&mut emitter);
    let mut calls = Vec::new();
    for call in &aggregate.calls {
        calls.push(accumulators.emit_call(&mut emitter, call)?);
    }
    let n_words = accumulators.n_words();
    let in_registers = n_groups == 1;
    if !in_registers
        && n_groups
            .checked_mul(n_words)
            .is_none_or(|words| words > PRIVATE_WORDS_MAX)
    {
        return Err(too_many_groups());
    }
    // States in shared memory leave room for few threads, which then wait for probes; when
    // few rows come through, a table that all threads share takes them as well.
    let has_probes = steps.iter().any(|step| matches!(step, Step::Probe(_)));
    if has_probes
        && !in_registers
        && n_groups * n_words > PROBING_WORDS_MAX
        && share_through(steps, tables) < FEW_ROWS_SHARE
    {
        return Err(too_many_groups());
    }

    let mut kernel = AggregateKernel {
        name: String::new(),
        text: String::new(),
        columns: used,
        parameters: emitter.parameters().to_vec(),
        keys,
        n_groups,
        n_words,
        sets: accumulators.sets().to_vec(),
        slots: accumulators.into_slots(),
        calls,
        shared_words_per_thread: if in_registers { 0 } else { n_groups * n_words },
    };
    let begin = if kernel.sets.is_empty() {
        "0"
    } else {
        "p.begin"
    };
    let span = Span {
        begin,
        stops: false,
    };
    let rows = phases.finish(&mut emitter, &span);
    (kernel.name, kernel.text) = named(
        "aggregate",
        &kernel_text(&kernel, tables.len(), columns, &rows),
    );
    Ok(kernel)
}

/// What adding a row to a thread's own states costs: see `Phases::emit`.
const SINK_COST: f64 = 0.1;

/// Words of states of a thread up to which enough threads fit to hide the latency of
/// probes: with 24, eight blocks of 128 threads a multiprocessor.
const PROBING_WORDS_MAX: usize = 24;

/// The share of rows below which atomics on few groups do not wait for each other.
const FEW_ROWS_SHARE: f64 = 0.1;

/// The code of the refusal that [`super::generate_many`] answers.
pub const TOO_MANY_GROUPS: &str = "too-many-groups";

fn too_many_groups() -> Unsupported {
    Unsupported {
        code: TOO_MANY_GROUPS,
        message: "the group keys have more values than a thread can keep apart".to_string(),
    }
}

/// Emits the group number: `group = group * n + code` for each key.
fn emit_keys(emitter: &mut Emitter, keys: &[Expr]) -> Result<Vec<KeyCode>, Unsupported> {
    let mut codes = Vec::new();
    emitter.line("u32 group = 0;");
    for key in keys {
        let value = emitter.emit(key)?;
        let range = match value.register {
            ValueRegister::Bool => Range::new(0, 1),
            ValueRegister::Integer(_, range) => range,
            // Floats are not numbered by their range.
            ValueRegister::F32 | ValueRegister::F64 => return Err(too_many_groups()),
            ValueRegister::Text => return Err(Unsupported::expression("a computed text key")),
        };
        let size = range
            .max
            .checked_sub(range.min)
            .and_then(|n| n.checked_add(1));
        let n_values = size
            .and_then(|n| usize::try_from(n).ok())
            .filter(|n| *n <= PRIVATE_WORDS_MAX && range.min > i128::from(i64::MIN))
            .ok_or_else(too_many_groups)?;
        let code = KeyCode {
            min: range.min,
            n_values,
            nullable: value.nullable,
        };
        emitter.line(&format!(
            "group = group * {} + group_code({}, {}, {});",
            code.n_codes(),
            value.text,
            range.min,
            n_values
        ));
        codes.push(code);
    }
    emitter.line("const PrivateWords words = own.group(group);");
    Ok(codes)
}

fn kernel_text(
    kernel: &AggregateKernel,
    n_tables: usize,
    shapes: &HashMap<usize, ColumnShape>,
    rows: &str,
) -> String {
    let fields = fields(n_tables, &kernel.columns, shapes, &kernel.parameters);
    let mut initial = String::new();
    let mut merge_block = String::new();
    let mut merge_device = String::new();
    for slot in &kernel.slots {
        let (kind, at) = (slot.kind.name(), slot.at);
        for word in 0..slot.kind.words() {
            initial.push_str(&format!(
                "  case {}: return {kind}::initial({word});\n",
                at + word
            ));
        }
        merge_block.push_str(&format!("    merge_warp<{kind}>(block, mine, {at});\n"));
        merge_device.push_str(&format!("    {kind}::merge(device, {at}, block + {at});\n"));
    }
    let (groups, words) = (kernel.n_groups, kernel.n_words);
    let mut sets = set_fields(&kernel.sets);
    if !sets.is_empty() {
        sets.insert_str(0, "  alignas(16) u64 begin;\n");
    }
    let own = if kernel.shared_words_per_thread == 0 {
        format!("  u64 registers[{words}];\n  const OwnWords own{{registers, 1, {words}}};\n")
    } else {
        format!(
            "  const OwnWords own{{shared + {groups} * {words} + thread_index(), block_threads(), {words}}};\n"
        )
    };
    format!(
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
#include "table/group_table.h"
#include "table/join_table.h"
#include "rows/queue.h"

struct Params {{
  alignas(16) u64 n_rows;
  alignas(16) u64* first_fault;
  alignas(16) u64* state;
{sets}{fields}}};

WL_DEVICE u64 initial_word(u32 at) {{
  switch (at) {{
{initial}  default: return 0;
  }}
}}

WL_KERNEL(@name@, Params, p) {{
  u64* const shared = shared_memory<u64>();
  Thread thread{{0, NO_FAULT}};
{own}  for (u32 i = 0; i < {groups} * {words}; ++i) own.set(i, initial_word(i % {words}));
  for (u32 i = thread_index(); i < {groups} * {words}; i += block_threads()) shared[i] = initial_word(i % {words});
  wl_barrier();
{rows}  for (u32 group = 0; group < {groups}; ++group) {{
    const GlobalWords block{{shared + group * {words}}};
    const PrivateWords mine = own.group(group);
{merge_block}  }}
  wl_barrier();
  for (u32 group = thread_index(); group < {groups}; group += block_threads()) {{
    const GlobalWords device{{p.state + group * {words}}};
    const u64* const block = shared + group * {words};
{merge_device}  }}
  report_fault(thread, p.first_fault);
}}
"#
    )
}
