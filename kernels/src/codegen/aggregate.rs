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
use std::fmt::Write as _;

use sha2::{Digest, Sha256};

use super::emit::{ColumnShape, Emitter, Parameter, Value, ValueRegister};
use super::error::Unsupported;
use crate::ir::{Aggregate, Expr, Function, Range, Register};

/// Threads a block. With 128, a thread's private copy may take 1.7 KiB of the
/// 227 KiB of shared memory that a block can have on sm_90.
pub const BLOCK_THREADS: u32 = 128;

/// The most words of private state a thread may have in shared memory: six blocks
/// of 128 threads then fit one sm_90 multiprocessor with 36 words each, which is
/// enough to hide memory latency; with the limit's 96 words, two do.
const PRIVATE_WORDS_MAX: usize = 96;

/// How an aggregate's state is held. The names are those of
/// `cuda/table/accumulators.h`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs)] // each variant is its own documentation
pub enum AccumulatorKind {
    Count,
    SumI64,
    SumI192,
    SumF64,
    Min,
    Max,
}

impl AccumulatorKind {
    /// Number of 64-bit words.
    pub fn words(self) -> usize {
        match self {
            AccumulatorKind::SumI192 => 3,
            _ => 1,
        }
    }

    /// What every word starts as.
    pub fn initial(self) -> u64 {
        match self {
            AccumulatorKind::Min => u64::MAX,
            _ => 0,
        }
    }

    fn name(self) -> &'static str {
        match self {
            AccumulatorKind::Count => "Count",
            AccumulatorKind::SumI64 => "SumI64",
            AccumulatorKind::SumI192 => "SumI192",
            AccumulatorKind::SumF64 => "SumF64",
            AccumulatorKind::Min => "Min",
            AccumulatorKind::Max => "Max",
        }
    }
}

/// Where one accumulator's words stand in a group's state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slot {
    /// How the state is held.
    pub kind: AccumulatorKind,
    /// Its first word.
    pub at: usize,
}

/// How the state of one call is read back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CallState {
    /// The value's accumulator.
    pub value: Slot,
    /// The number of rows that went in: none means a null result.
    pub rows: Slot,
    /// How the argument was held, which says how `Min` and `Max` words decode.
    pub register: Option<ValueRegister>,
}

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
}

impl AggregateKernel {
    /// Bytes of dynamic shared memory of a block of `threads` threads.
    pub fn shared_bytes(&self, threads: u32) -> usize {
        let state = self.n_groups * self.n_words;
        (state + self.shared_words_per_thread * threads as usize) * size_of::<u64>()
    }
}

/// Generates the kernel of an aggregate over these columns.
///
/// `rows_max` bounds the number of rows that will ever be added, which proves
/// whether an integer sum fits 64 bits.
pub fn generate(
    aggregate: &Aggregate,
    columns: &HashMap<usize, ColumnShape>,
    rows_max: u64,
) -> Result<AggregateKernel, Unsupported> {
    let used = columns_of(aggregate);
    let (eager, tile_rows) = eager_columns(aggregate, &used, columns);
    let mut emitter = Emitter::new(columns.clone());
    emitter.preload(eager.iter().map(|(index, _)| *index));
    if let Some(filter) = &aggregate.filter {
        emitter.filter(filter, "continue")?;
    }
    let keys = emit_keys(&mut emitter, &aggregate.keys)?;
    let n_groups = keys
        .iter()
        .try_fold(1usize, |n, key| n.checked_mul(key.n_codes()))
        .ok_or_else(too_many_groups)?;

    let mut accumulators = Accumulators::default();
    let rows = accumulators.slot(AccumulatorKind::Count);
    emitter.line("Count::update(words, 0);");
    let mut calls = Vec::new();
    for call in &aggregate.calls {
        if let Some(filter) = &call.filter {
            let condition = emitter.emit(filter)?;
            emitter.open(&format!("if (is_true({}))", condition.text));
        }
        calls.push(emit_call(
            &mut emitter,
            &mut accumulators,
            call.function,
            call.arg.as_ref(),
            call.filter.as_ref(),
            rows,
            rows_max,
        )?);
        if call.filter.is_some() {
            emitter.close();
        }
    }
    let n_words = accumulators.n_words;
    let in_registers = n_groups == 1;
    if !in_registers
        && n_groups
            .checked_mul(n_words)
            .is_none_or(|words| words > PRIVATE_WORDS_MAX)
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
        slots: accumulators.slots,
        calls,
        shared_words_per_thread: if in_registers { 0 } else { n_groups * n_words },
    };
    let text = kernel_text(&kernel, emitter.body(), &eager, tile_rows, "@name@");
    kernel.name = format!("aggregate_{}", short_hash(&text));
    kernel.text = text.replace("@name@", &kernel.name);
    Ok(kernel)
}

/// Bytes of a row up to which all its columns are read before the filter. Narrow
/// columns share sectors of 32 bytes with 8 rows and more, so a filter that keeps
/// several per cent of the rows saves next to no traffic on them, and loads that do
/// not wait for it overlap.
const EAGER_BYTES: usize = 16;

/// Bytes that a thread should have under way to hide the latency of memory.
const BYTES_IN_FLIGHT: usize = 64;

/// The columns that are read for a whole tile before its rows are looked at, and the
/// number of rows of a thread's tile.
fn eager_columns(
    aggregate: &Aggregate,
    used: &[usize],
    columns: &HashMap<usize, ColumnShape>,
) -> (Vec<(usize, ColumnShape)>, usize) {
    let shapes = |wanted: &[usize]| -> Vec<(usize, ColumnShape)> {
        let known = wanted
            .iter()
            .filter_map(|i| columns.get(i).map(|shape| (*i, *shape)));
        known.collect()
    };
    let bytes = |list: &[(usize, ColumnShape)]| -> usize {
        list.iter().map(|(_, shape)| shape.stored_bytes()).sum()
    };
    let mut eager = shapes(used);
    if bytes(&eager) > EAGER_BYTES
        && let Some(filter) = &aggregate.filter
    {
        // Only what the first conjunct reads: the rest waits for the rows that pass.
        let mut first = filter;
        while let crate::ir::Kind::Binary(crate::ir::BinaryOp::And, left, _) = &first.kind {
            first = left;
        }
        let mut wanted = Vec::new();
        add_columns(first, &mut wanted);
        eager = shapes(&wanted);
    }
    let tile_rows = match BYTES_IN_FLIGHT / bytes(&eager).max(1) {
        0 | 1 => 1,
        2 | 3 => 2,
        4..8 => 4,
        _ => 8,
    };
    (eager, tile_rows)
}

/// The columns that the aggregate reads, in order.
pub fn columns_of(aggregate: &Aggregate) -> Vec<usize> {
    let mut used = Vec::new();
    for expr in expressions(aggregate) {
        add_columns(expr, &mut used);
    }
    used.sort_unstable();
    used
}

fn add_columns(expr: &Expr, used: &mut Vec<usize>) {
    expr.walk(&mut |e| {
        if let crate::ir::Kind::Column(index) = e.kind
            && !used.contains(&index)
        {
            used.push(index);
        }
    });
}

fn too_many_groups() -> Unsupported {
    Unsupported {
        code: "too-many-groups",
        message: "the group keys have more values than a thread can keep apart".to_string(),
    }
}

fn expressions(aggregate: &Aggregate) -> impl Iterator<Item = &Expr> {
    let calls = aggregate
        .calls
        .iter()
        .flat_map(|call| call.arg.iter().chain(&call.filter));
    aggregate.filter.iter().chain(&aggregate.keys).chain(calls)
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
            other => {
                return Err(Unsupported::expression(format!(
                    "a group key of type {}",
                    other.name()
                )));
            }
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

#[derive(Default)]
struct Accumulators {
    slots: Vec<Slot>,
    n_words: usize,
    /// What is already accumulated: the same sum is kept once.
    known: HashMap<(AccumulatorKind, Expr, Option<Expr>), Slot>,
}

impl Accumulators {
    fn slot(&mut self, kind: AccumulatorKind) -> Slot {
        let slot = Slot {
            kind,
            at: self.n_words,
        };
        self.n_words += kind.words();
        self.slots.push(slot);
        slot
    }
}

/// Emits the updates of one call; the surrounding block already tests its filter.
fn emit_call(
    emitter: &mut Emitter,
    accumulators: &mut Accumulators,
    function: Function,
    arg: Option<&Expr>,
    filter: Option<&Expr>,
    group_rows: Slot,
    rows_max: u64,
) -> Result<CallState, Unsupported> {
    let Some(arg) = arg else {
        let rows = match filter {
            None => group_rows,
            Some(_) => {
                let slot = accumulators.slot(AccumulatorKind::Count);
                emitter.line(&format!("Count::update(words, {});", slot.at));
                slot
            }
        };
        return Ok(CallState {
            value: rows,
            rows,
            register: None,
        });
    };
    let value = emitter.emit(arg)?;
    let key = |kind| (kind, arg.clone(), filter.cloned());
    let mut updates = Vec::new();
    // Every row of the group counts when nothing can keep one out.
    let rows = if !value.nullable && filter.is_none() {
        group_rows
    } else if let Some(known) = accumulators.known.get(&key(AccumulatorKind::Count)) {
        *known
    } else {
        let slot = accumulators.slot(AccumulatorKind::Count);
        accumulators.known.insert(key(AccumulatorKind::Count), slot);
        updates.push(format!("Count::update(words, {});", slot.at));
        slot
    };
    let slot = match function {
        Function::Count => rows,
        Function::Sum | Function::Min | Function::Max => {
            let kind = accumulator_kind(function, &value, rows_max)?;
            match accumulators.known.get(&key(kind)) {
                Some(known) => *known,
                None => {
                    let slot = accumulators.slot(kind);
                    accumulators.known.insert(key(kind), slot);
                    updates.push(format!(
                        "{}::update(words, {}, value_of({}));",
                        kind.name(),
                        slot.at,
                        value.text
                    ));
                    slot
                }
            }
        }
    };
    if !updates.is_empty() {
        if value.nullable {
            emitter.open(&format!("if (is_valid({}))", value.text));
        }
        for update in &updates {
            emitter.line(update);
        }
        if value.nullable {
            emitter.close();
        }
    }
    Ok(CallState {
        value: slot,
        rows,
        register: Some(value.register),
    })
}

fn accumulator_kind(
    function: Function,
    value: &Value,
    rows_max: u64,
) -> Result<AccumulatorKind, Unsupported> {
    Ok(match (function, value.register) {
        (Function::Sum, ValueRegister::Integer(_, range)) => {
            let total = range
                .union(Range::point(0))
                .product(Range::new(0, i128::from(rows_max)));
            match total {
                Some(total) if total.fits(64) => AccumulatorKind::SumI64,
                _ => AccumulatorKind::SumI192,
            }
        }
        (Function::Sum, ValueRegister::F32 | ValueRegister::F64) => AccumulatorKind::SumF64,
        (Function::Min | Function::Max, ValueRegister::Integer(Register::I128, _)) => {
            return Err(Unsupported::expression("min or max of a 128-bit value"));
        }
        (Function::Min, _) => AccumulatorKind::Min,
        (Function::Max, _) => AccumulatorKind::Max,
        (_, register) => {
            return Err(Unsupported::expression(format!(
                "{function:?} of {}",
                register.name()
            )));
        }
    })
}

fn kernel_text(
    kernel: &AggregateKernel,
    body: &str,
    eager: &[(usize, ColumnShape)],
    tile_rows: usize,
    name: &str,
) -> String {
    let mut fields = String::new();
    for column in &kernel.columns {
        fields.push_str(&format!("  alignas(16) ColumnRef c{column};\n"));
    }
    for parameter in &kernel.parameters {
        fields.push_str(&format!(
            "  alignas(16) {} {};\n",
            parameter.register.name(),
            parameter.name
        ));
    }
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
    let (mut tiles, mut loads) = (String::new(), String::new());
    for (index, shape) in eager {
        let (register, load) = (shape.value_name(), shape.load_call(*index, "row"));
        let _ = writeln!(tiles, "    {register} t{index}[{tile_rows}];");
        let _ = writeln!(loads, "      t{index}[r] = {load};");
    }
    let (groups, words) = (kernel.n_groups, kernel.n_words);
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
#include "thread/memory.h"
#include "table/accumulators.h"
#include "table/groups.h"

struct Params {{
  alignas(16) u64 n_rows;
  alignas(16) u64* first_fault;
  alignas(16) u64* state;
{fields}}};

WL_DEVICE u64 initial_word(u32 at) {{
  switch (at) {{
{initial}  default: return 0;
  }}
}}

WL_KERNEL({name}, Params, p) {{
  u64* const shared = shared_memory<u64>();
  Thread thread{{0, NO_FAULT}};
{own}  for (u32 i = 0; i < {groups} * {words}; ++i) own.set(i, initial_word(i % {words}));
  for (u32 i = thread_index(); i < {groups} * {words}; i += block_threads()) shared[i] = initial_word(i % {words});
  wl_barrier();
  for (u64 base = first_row(); base < p.n_rows; base += {tile_rows} * row_step()) {{
{tiles}    WL_UNROLL
    for (u32 r = 0; r < {tile_rows}; ++r) {{
      const u64 row = clamp_row(base + r * row_step(), p.n_rows);
{loads}    }}
    WL_UNROLL
    for (u32 r = 0; r < {tile_rows}; ++r) {{
      thread.row = base + r * row_step();
      if (thread.row >= p.n_rows) break;
{body}    }}
  }}
  for (u32 group = 0; group < {groups}; ++group) {{
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

/// Twelve hex digits that tell kernels apart in a profile.
fn short_hash(text: &str) -> String {
    let digest = Sha256::digest(text.as_bytes());
    digest
        .iter()
        .take(6)
        .map(|byte| format!("{byte:02x}"))
        .collect()
}
