//! The aggregate kernel for any number of groups: one table on the device that every
//! chunk adds to.
//!
//! Chunks may be stored in different widths and so run different kernels; keys and
//! states therefore have a layout that follows from types alone.

use std::collections::HashMap;
use std::fmt::Write as _;

use super::accumulate::{Accumulators, CallState, Lifetime, Slot};
use super::aggregate::BLOCK_THREADS;
use super::distinct::set_fields;
use super::emit::{ColumnShape, Emitter, Parameter, ValueRegister};
use super::error::Unsupported;
use super::phases::Phases;
use super::steps::TableShape;
use super::tile::{Span, fields, named};
use crate::ir::{Aggregate, Expr, Type};

/// Where a key stands among the words of a group's key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyWords {
    /// Its first word.
    pub at: usize,
    /// One word, or two for values that need 128 bits.
    pub n_words: usize,
    /// Whether the word holds the bits of a binary64.
    pub is_float: bool,
    /// Its bit in the first key word when the key can be null.
    pub null_bit: Option<u32>,
}

/// What finding a row's group and adding to its states costs: see `Phases::emit`.
const SINK_COST: f64 = 3.0;

/// A generated kernel and what is needed to launch it and to read its result.
#[derive(Debug, Clone)]
pub struct ManyGroupsKernel {
    /// The entry point: `group_` and a hash of the text.
    pub name: String,
    /// The CUDA C++ text.
    pub text: String,
    /// Source columns, in the order of their fields in the parameters.
    pub columns: Vec<usize>,
    /// Constants, in the order of their fields.
    pub parameters: Vec<Parameter>,
    /// Where each key stands.
    pub keys: Vec<KeyWords>,
    /// Words of a group's key.
    pub key_words: usize,
    /// Words of a group's state, which follow the key.
    pub state_words: usize,
    /// Every accumulator.
    pub slots: Vec<Slot>,
    /// How each call is read back.
    pub calls: Vec<CallState>,
    /// Whether it stops when the table is nearly full, and takes up its progress.
    pub stops: bool,
    /// Words of a member of each set that calls with DISTINCT keep.
    pub sets: Vec<usize>,
}

/// Generates the kernel that adds a chunk with these columns and join tables to a
/// group table. `rows_max` bounds the rows that are ever added, if the chunk is the only
/// one: sums may then be proved to fit 64 bits. `expands` tells whether rows may come
/// through the steps several times.
pub fn generate_many(
    aggregate: &Aggregate,
    columns: &HashMap<usize, ColumnShape>,
    tables: &[TableShape],
    rows_max: Option<u64>,
    expands: bool,
) -> Result<ManyGroupsKernel, Unsupported> {
    let used = aggregate.columns();
    let mut emitter = Emitter::new(columns.clone());
    let steps = &aggregate.steps;
    let phases = Phases::emit(&mut emitter, steps, &used, columns, tables, SINK_COST)?;
    let (keys, key_words) = key_layout(&aggregate.keys)?;
    emit_key(&mut emitter, &aggregate.keys, &keys, key_words)?;
    let mut accumulators = Accumulators::new(match rows_max {
        Some(rows) => Lifetime::Chunk(rows),
        None => Lifetime::Run,
    })
    .with_keys(&aggregate.keys);
    let mut calls = Vec::new();
    for call in &aggregate.calls {
        calls.push(accumulators.emit_call(&mut emitter, call)?);
    }
    let state_words = accumulators.n_words();
    // How much a row that comes through many times adds is not known, nor what goes into a
    // set: then there is room for everything before the launch.
    let stops = !expands && accumulators.sets().is_empty();
    let mut kernel = ManyGroupsKernel {
        stops,
        name: String::new(),
        text: String::new(),
        columns: used,
        parameters: emitter.parameters().to_vec(),
        keys,
        key_words,
        state_words,
        sets: accumulators.sets().to_vec(),
        slots: accumulators.into_slots(),
        calls,
    };
    let span = Span {
        begin: "p.begin",
        stops,
    };
    let rows = phases.finish(&mut emitter, &span);
    (kernel.name, kernel.text) =
        named("group", &kernel_text(&kernel, tables.len(), columns, &rows));
    Ok(kernel)
}

/// The layout of keys: a word of null bits when some key can be null, then the keys.
pub(super) fn key_layout(keys: &[Expr]) -> Result<(Vec<KeyWords>, usize), Unsupported> {
    let any_null = keys.iter().any(|key| key.nullable);
    let mut n_words = usize::from(any_null);
    let mut layout = Vec::new();
    let mut n_nullable = 0;
    for key in keys {
        let wide = key.ty.full_range().is_some_and(|range| !range.fits(64));
        if key.ty == Type::Utf8 || n_nullable == 64 {
            return Err(Unsupported::expression(format!(
                "a group key of type {}",
                key.ty
            )));
        }
        let null_bit = key.nullable.then(|| {
            n_nullable += 1;
            n_nullable - 1
        });
        let words = KeyWords {
            at: n_words,
            n_words: if wide { 2 } else { 1 },
            is_float: key.ty.is_float(),
            null_bit,
        };
        n_words += words.n_words;
        layout.push(words);
    }
    Ok((layout, n_words))
}

fn emit_key(
    emitter: &mut Emitter,
    keys: &[Expr],
    layout: &[KeyWords],
    key_words: usize,
) -> Result<(), Unsupported> {
    emit_words(emitter, "key", keys, layout, key_words)?;
    emitter.line(
        "u64* const group = find_or_insert<key_words, state_words>(p.table, key, \
         [](u32 at) { return initial_word(at); });",
    );
    emitter.line("const GlobalWords words{group + key_words};");
    Ok(())
}

/// Emits the words of these keys as an array of this name.
pub(super) fn emit_words(
    emitter: &mut Emitter,
    name: &str,
    keys: &[Expr],
    layout: &[KeyWords],
    key_words: usize,
) -> Result<(), Unsupported> {
    let values = keys
        .iter()
        .map(|key| emitter.emit(key))
        .collect::<Result<Vec<_>, _>>()?;
    emitter.line(&format!("u64 {name}[{key_words}]{{}};"));
    for (value, words) in values.iter().zip(layout) {
        let guarded = value.nullable;
        if guarded {
            emitter.open(&format!("if (is_valid({}))", value.text));
        }
        let at = words.at;
        if words.n_words == 2 {
            let wide = format!("static_cast<i128>(value_of({}))", value.text);
            emitter.line(&format!("{name}[{at}] = static_cast<u64>({wide});"));
            emitter.line(&format!(
                "{name}[{}] = static_cast<u64>({wide} >> 64);",
                at + 1
            ));
        } else {
            // A value of a narrow type may be held wider than its type for a moment.
            let narrow = match value.register {
                ValueRegister::Integer(crate::ir::Register::I128, _) => "static_cast<i64>",
                _ => "",
            };
            emitter.line(&format!(
                "{name}[{at}] = key_word({narrow}(value_of({})));",
                value.text
            ));
        }
        if guarded {
            emitter.close();
            if let Some(bit) = words.null_bit {
                emitter.open(&format!("if (!is_valid({}))", value.text));
                emitter.line(&format!("{name}[0] |= {}ULL;", 1u64 << bit));
                emitter.close();
            }
        }
    }
    Ok(())
}

fn kernel_text(
    kernel: &ManyGroupsKernel,
    n_tables: usize,
    shapes: &HashMap<usize, ColumnShape>,
    rows: &str,
) -> String {
    let fields = fields(n_tables, &kernel.columns, shapes, &kernel.parameters);
    let mut initial = String::new();
    for slot in &kernel.slots {
        for word in 0..slot.kind.words() {
            let (at, kind) = (slot.at + word, slot.kind.name());
            let _ = writeln!(initial, "  case {at}: return {kind}::initial({word});");
        }
    }
    let (key_words, state_words) = (kernel.key_words, kernel.state_words);
    let sets = set_fields(&kernel.sets);
    let progress = match kernel.stops {
        true => "  alignas(16) GroupProgressRef progress;\n",
        false => "",
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
  alignas(16) u64 begin;
  alignas(16) GroupTableRef table;
{progress}{sets}{fields}}};

static constexpr u32 key_words = {key_words};
static constexpr u32 state_words = {state_words};

WL_DEVICE u64 initial_word(u32 at) {{
  switch (at) {{
{initial}  default: return 0;
  }}
}}

WL_KERNEL(@name@, Params, p) {{
  Thread thread{{0, NO_FAULT}};
{rows}  report_fault(thread, p.first_fault);
}}
"#
    )
}

/// The text that fills a larger table with the numbers of the groups there are, and
/// its entry point.
pub fn rehash_kernel() -> (&'static str, String) {
    let text = format!(
        r#"#define WL_BLOCK_THREADS {BLOCK_THREADS}
#include "prelude.h"
#include "thread/value.h"
#include "thread/arithmetic.h"
#include "thread/memory.h"
#include "table/accumulators.h"
#include "table/groups.h"
#include "table/hash.h"
#include "table/group_table.h"

struct Params {{
  alignas(16) u64 n_groups;
  alignas(16) GroupTableRef table;
  alignas(16) u64 key_words;
  alignas(16) u64 row_words;
}};

WL_KERNEL(rehash, Params, p) {{
  for (u64 group = first_row(); group < p.n_groups; group += row_step()) {{
    const u64* const key = p.table.rows + group * p.row_words;
    u64 at = hash_key(key, static_cast<u32>(p.key_words)) & p.table.mask;
    while (atomic_cas_u32(p.table.slots + at, 0, static_cast<u32>(group) + 2) != 0) {{
      at = (at + 1) & p.table.mask;
    }}
  }}
}}
"#
    );
    ("rehash", text)
}
