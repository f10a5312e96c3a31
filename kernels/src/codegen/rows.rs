//! The kernels that give rows back: `collect` and the keys of a `sort`.
//!
//! What is generated is two functions of one row; how tiles keep their order stands
//! in `cuda/rows`.
//!
//! ```text
//! const auto passes = [&]() -> bool { ... };      collect_rows(thread, ..., passes, write);
//! const auto write = [&](u64 to) { ... };
//! ```

use std::collections::HashMap;
use std::fmt::Write as _;

use super::emit::{ColumnShape, Emitter, Parameter, Value, ValueRegister};
use super::error::Unsupported;
use super::steps::{TableShape, close, emit_steps};
use super::tile;
use super::widest::widest_columns;
use crate::ir::{Collect, Register, Sort, SortKey, Step, columns_read};

/// Threads a block of every kernel here.
pub const ROWS_BLOCK_THREADS: u32 = 256;

/// Rows of a block's tile in `collect_rows`. Keep in step with `cuda/rows/collect.h`.
pub fn collect_tile_rows(threads: u32) -> usize {
    8 * threads as usize
}

/// Rows of a block's tile in a radix pass. Keep in step with `cuda/rows/radix.h`.
pub fn radix_tile_rows(threads: u32) -> usize {
    16 * threads as usize
}

/// One column that a kernel writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OutputShape {
    /// How its values are held.
    pub register: ValueRegister,
    /// Whether some may be missing.
    pub nullable: bool,
}

impl OutputShape {
    /// The shape that holds what either of these does; `None` for other kinds of values.
    pub fn union(self, other: OutputShape) -> Option<OutputShape> {
        let register = match (self.register, other.register) {
            (ValueRegister::Integer(_, a), ValueRegister::Integer(_, b)) => {
                let range = a.union(b);
                ValueRegister::Integer(range.register(), range)
            }
            (a, b) if a == b => a,
            _ => return None,
        };
        Some(OutputShape {
            register,
            nullable: self.nullable || other.nullable,
        })
    }

    /// The C name of an element: as narrow as the values that are proved.
    pub fn stored(&self) -> &'static str {
        match self.register {
            ValueRegister::Bool => "u8",
            ValueRegister::Integer(_, range) if range.fits(8) => "i8",
            ValueRegister::Integer(_, range) if range.fits(16) => "i16",
            other => other.name(),
        }
    }

    /// The column that a later kernel reads.
    pub fn column(&self) -> ColumnShape {
        ColumnShape {
            register: self.register,
            stored: self.stored(),
            nullable: self.nullable,
        }
    }

    /// Bytes of an element.
    pub fn stored_bytes(&self) -> usize {
        self.column().stored_bytes()
    }
}

/// How a collect kernel finds out which rows it writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CollectMode {
    /// Every row is written to its own place.
    All,
    /// Each row is written once or not at all; the numbers of those that are stand
    /// beside the outputs.
    Filtered,
    /// Each row is written any number of times. Another kernel counts them first.
    Expanded,
}

/// A generated collect kernel and what is needed to launch it.
#[derive(Debug, Clone)]
pub struct CollectKernel {
    /// The entry point: `collect_` and a hash of the text.
    pub name: String,
    /// The CUDA C++ text.
    pub text: String,
    /// Which rows are written.
    pub mode: CollectMode,
    /// Columns, in the order of their fields in the parameters.
    pub columns: Vec<usize>,
    /// Constants, in the order of their fields.
    pub parameters: Vec<Parameter>,
    /// The columns that are written.
    pub outputs: Vec<OutputShape>,
}

/// Generates the kernel of a collect over these columns and join tables.
pub fn generate_collect(
    collect: &Collect,
    columns: &HashMap<usize, ColumnShape>,
    tables: &[TableShape],
) -> Result<CollectKernel, Unsupported> {
    generate(collect, columns, tables, None)
}

/// As [`generate_collect`], with outputs of these shapes, which hold all that is computed:
/// another kernel writes rows of the same columns.
pub fn generate_collect_as(
    collect: &Collect,
    columns: &HashMap<usize, ColumnShape>,
    tables: &[TableShape],
    shapes: &[OutputShape],
) -> Result<CollectKernel, Unsupported> {
    generate(collect, columns, tables, Some(shapes))
}

fn generate(
    collect: &Collect,
    columns: &HashMap<usize, ColumnShape>,
    tables: &[TableShape],
    shapes: Option<&[OutputShape]>,
) -> Result<CollectKernel, Unsupported> {
    let drops = |step: &Step| !matches!(step, Step::Lookup { .. });
    let mode = if !collect.steps.iter().any(drops) {
        CollectMode::All
    } else if !tables.is_empty() {
        CollectMode::Expanded
    } else if !collect.steps.is_empty() {
        CollectMode::Filtered
    } else {
        CollectMode::All
    };
    let mut emitter = Emitter::new(columns.clone());
    match mode {
        CollectMode::All => {}
        CollectMode::Filtered => {
            emitter.open("const auto passes = [&]() -> bool");
            emitter.push_exit("return false");
            emit_steps(&mut emitter, &collect.steps, tables)?;
            emitter.line("return true;");
            emitter.pop_exit();
            emitter.close();
            emitter.line(";");
        }
        CollectMode::Expanded => emit_count(&mut emitter, &collect.steps, tables)?,
    }
    let mut outputs = Vec::new();
    emitter.open("const auto write = [&](u64 to)");
    let mut n_loops = 0;
    match mode {
        CollectMode::All => {
            emitter.push_exit("return");
            n_loops = emit_steps(&mut emitter, &collect.steps, tables)?;
        }
        CollectMode::Filtered => emitter.line("p.rows[to] = static_cast<u32>(thread.row);"),
        CollectMode::Expanded => {
            emitter.push_exit("return");
            n_loops = emit_steps(&mut emitter, &collect.steps, tables)?;
        }
    }
    for (index, expr) in collect.outputs.iter().enumerate() {
        let value = emitter.emit(expr)?;
        if value.register == ValueRegister::Text {
            return Err(Unsupported::expression(format!("a computed text ({expr})")));
        }
        let own = OutputShape {
            register: value.register,
            nullable: value.nullable,
        };
        let shape = shapes.and_then(|shapes| shapes.get(index)).copied();
        let shape = shape.unwrap_or(own);
        // A value that is always there has a byte too where others may be missing.
        let text = match shape.nullable && !own.nullable {
            true => format!("as_opt({})", value.text),
            false => value.text,
        };
        emitter.line(&format!(
            "store<{}>(p.o{index}, to, {text});",
            shape.stored()
        ));
        outputs.push(shape);
    }
    if mode == CollectMode::Expanded {
        emitter.line("++to;");
    }
    if mode != CollectMode::Filtered {
        close(&mut emitter, n_loops);
        emitter.pop_exit();
    }
    emitter.close();
    emitter.line(";");
    emitter.line(match mode {
        CollectMode::All => "write_rows(thread, p.n_rows, write);",
        CollectMode::Filtered => {
            "collect_rows(thread, p.n_rows, p.tiles, p.n_kept, passes, write);"
        }
        CollectMode::Expanded => "expand_rows(thread, p.n_rows, p.tiles, count, write);",
    });

    let mut fields = String::new();
    match mode {
        CollectMode::All => {}
        CollectMode::Filtered => {
            fields.push_str("  alignas(16) TilesRef tiles;\n  alignas(16) u64* n_kept;\n");
            fields.push_str("  alignas(16) u32* rows;\n");
        }
        CollectMode::Expanded => fields.push_str("  alignas(16) TilesRef tiles;\n"),
    }
    for index in 0..outputs.len() {
        let _ = writeln!(fields, "  alignas(16) OutputRef o{index};");
    }
    let used = collect.columns();
    let (name, text) = kernel_text("collect", &fields, tables.len(), &used, &emitter);
    Ok(CollectKernel {
        name,
        text,
        mode,
        columns: used,
        parameters: emitter.parameters().to_vec(),
        outputs,
    })
}

/// Emits `count`: how often a row comes through the steps.
fn emit_count(
    emitter: &mut Emitter,
    steps: &[Step],
    tables: &[TableShape],
) -> Result<(), Unsupported> {
    emitter.open("const auto count = [&]() -> u32");
    emitter.line("u32 n = 0;");
    emitter.push_exit("return n");
    let n_loops = emit_steps(emitter, steps, tables)?;
    emitter.line("++n;");
    close(emitter, n_loops);
    emitter.pop_exit();
    emitter.line("return n;");
    emitter.close();
    emitter.line(";");
    Ok(())
}

/// A generated kernel that counts the rows that come through some steps.
#[derive(Debug, Clone)]
pub struct CountKernel {
    /// The entry point: `count_` and a hash of the text.
    pub name: String,
    /// The CUDA C++ text.
    pub text: String,
    /// Columns, in the order of their fields in the parameters.
    pub columns: Vec<usize>,
    /// Constants, in the order of their fields.
    pub parameters: Vec<Parameter>,
}

/// Generates the kernel that counts the rows that come through these steps.
pub fn generate_count(
    steps: &[Step],
    columns: &HashMap<usize, ColumnShape>,
    tables: &[TableShape],
) -> Result<CountKernel, Unsupported> {
    let mut emitter = Emitter::new(columns.clone());
    emit_count(&mut emitter, steps, tables)?;
    emitter.line("count_rows(thread, p.n_rows, p.total, count);");
    let used = columns_read(steps.iter().flat_map(Step::expressions));
    let fields = "  alignas(16) u64* total;\n";
    let (name, text) = kernel_text("count", fields, tables.len(), &used, &emitter);
    Ok(CountKernel {
        name,
        text,
        columns: used,
        parameters: emitter.parameters().to_vec(),
    })
}

/// A generated kernel that makes sort keys.
#[derive(Debug, Clone)]
pub struct SortKeyKernel {
    /// The entry point: `sort_keys_` and a hash of the text.
    pub name: String,
    /// The CUDA C++ text.
    pub text: String,
    /// Source columns, in the order of their fields in the parameters.
    pub columns: Vec<usize>,
    /// Constants, in the order of their fields.
    pub parameters: Vec<Parameter>,
    /// 64-bit words of a row's key.
    pub n_words: usize,
    /// The lowest bit of the first so many keys; of none of them, the number of bits.
    pub low_bits: Vec<u32>,
}

/// Generates the kernel that makes the keys of a sort over these columns.
pub fn generate_sort_keys(
    sort: &Sort,
    columns: &HashMap<usize, ColumnShape>,
) -> Result<SortKeyKernel, Unsupported> {
    let mut emitter = Emitter::new(columns.clone());
    emitter.open("const auto key = [&](u64* words)");
    let values = sort
        .keys
        .iter()
        .map(|key| emitter.emit(&key.value))
        .collect::<Result<Vec<_>, _>>()?;
    if values
        .iter()
        .any(|value| value.register == ValueRegister::Text)
    {
        return Err(Unsupported::expression(
            "a sort key of text that has no rank",
        ));
    }
    let widths: Vec<u32> = values.iter().map(value_bits).collect();
    let nulls = values.iter().filter(|value| value.nullable).count() as u32;
    let mut at = widths.iter().sum::<u32>() + nulls;
    let n_words = at.div_ceil(64).max(1) as usize;
    let mut low_bits = vec![at];
    for ((key, value), width) in sort.keys.iter().zip(&values).zip(&widths) {
        if value.nullable {
            at -= 1;
            let not = if key.nulls_first { "" } else { "!" };
            let text = &value.text;
            emitter.line(&format!("put_bits<{at}, 1>(words, {not}is_valid({text}));"));
        }
        at -= width;
        if *width > 0 {
            put(&mut emitter, key, value, at, *width);
        }
        low_bits.push(at);
    }
    emitter.close();
    emitter.line(";");
    emitter.line(&format!(
        "write_sort_keys<{n_words}>(thread, p.n_rows, p.words, p.seen, key);"
    ));
    let fields = "  alignas(16) u64* words;\n  alignas(16) u64* seen;\n";
    let used = sort.columns();
    let (name, text) = kernel_text("sort_keys", fields, 0, &used, &emitter);
    Ok(SortKeyKernel {
        name,
        text,
        columns: used,
        parameters: emitter.parameters().to_vec(),
        n_words,
        low_bits,
    })
}

/// Bits that tell the values of a range apart.
fn value_bits(value: &Value) -> u32 {
    match value.register {
        ValueRegister::Bool => 1,
        // Refused before: its keys are ranks.
        ValueRegister::Text => 0,
        ValueRegister::F32 => 32,
        ValueRegister::F64 => 64,
        ValueRegister::Integer(_, range) => {
            128 - (range.max as u128)
                .wrapping_sub(range.min as u128)
                .leading_zeros()
        }
    }
}

/// Emits the bits of a value that is there; those of a missing one stay 0.
fn put(emitter: &mut Emitter, key: &SortKey, value: &Value, at: u32, width: u32) {
    let (text, descending) = (format!("value_of({})", value.text), key.descending);
    let bits = match value.register {
        ValueRegister::Bool if descending => format!("!{text}"),
        ValueRegister::Bool | ValueRegister::Text => text,
        ValueRegister::F32 | ValueRegister::F64 => format!("float_bits<{descending}>({text})"),
        ValueRegister::Integer(register, range) => {
            // Between 64-bit ends whenever the value is held in 64 bits.
            let wide = register == Register::I128;
            let end = |v: i128| {
                if wide {
                    super::emit::wide_literal(v)
                } else {
                    format!("static_cast<i64>(0x{:x}ULL)", v as i64)
                }
            };
            let name = if wide { "i128" } else { "i64" };
            format!(
                "integer_bits<{descending}>(static_cast<{name}>({text}), {}, {})",
                end(range.min),
                end(range.max)
            )
        }
    };
    let put = if width > 64 {
        "put_wide_bits"
    } else {
        "put_bits"
    };
    let call = format!("{put}<{at}, {width}>(words, {bits});");
    if value.nullable {
        emitter.line(&format!("if (is_valid({})) {call}", value.text));
    } else {
        emitter.line(&call);
    }
}

/// The kernel that makes validity bits of validity bytes, eight rows a thread.
pub const PACK_TEXT: &str = r#"#define WL_BLOCK_THREADS 256
#include "prelude.h"
#include "thread/value.h"
#include "thread/arithmetic.h"
#include "table/accumulators.h"
#include "table/groups.h"

struct Params {
  alignas(16) u64 n_rows;
  alignas(16) const u8* bytes;
  alignas(16) u8* bits;
};

WL_KERNEL(pack_bits, Params, p) {
  for (u64 at = first_row(); at * 8 < p.n_rows; at += row_step()) {
    u32 byte = 0;
    for (u32 bit = 0; bit < 8 && at * 8 + bit < p.n_rows; ++bit) {
      byte |= (p.bytes[at * 8 + bit] != 0 ? 1u : 0u) << bit;
    }
    p.bits[at] = static_cast<u8>(byte);
  }
}
"#;

/// The kernels that every sort shares.
pub const RADIX_TEXT: &str = r#"#define WL_BLOCK_THREADS 256
#include "prelude.h"
#include "thread/value.h"
#include "thread/arithmetic.h"
#include "thread/compare.h"
#include "thread/memory.h"
#include "thread/text.h"
#include "thread/text_parts.h"
#include "table/accumulators.h"
#include "table/groups.h"
#include "rows/tiles.h"
#include "rows/radix.h"

WL_KERNEL(radix_count, RadixPass, p) { radix_count_tile(p); }
WL_KERNEL(radix_scan, RadixScan, p) { radix_scan_counts(p); }
WL_KERNEL(radix_scatter, RadixPass, p) { radix_scatter_tile(p); }
WL_KERNEL(radix_gather, RadixGather, p) { radix_gather_keys(p); }
"#;

/// Whether a sort has device code whatever its columns hold: what cannot be refused any
/// more once rows are there.
pub fn check_sort(sort: &Sort) -> Result<(), Unsupported> {
    let columns = widest_columns(sort.keys.iter().map(|key| &key.value))?;
    generate_sort_keys(sort, &columns).map(|_| ())
}

/// The text of a kernel whose body is the emitter's, and its name.
fn kernel_text(
    kind: &str,
    fields: &str,
    n_tables: usize,
    columns: &[usize],
    emitter: &Emitter,
) -> (String, String) {
    let inputs = tile::fields(n_tables, columns, emitter.columns(), emitter.parameters());
    let body = emitter.body();
    let text = format!(
        r#"#define WL_BLOCK_THREADS {ROWS_BLOCK_THREADS}
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
#include "rows/tiles.h"
#include "rows/collect.h"
#include "rows/expand.h"
#include "rows/sort_keys.h"

struct Params {{
  alignas(16) u64 n_rows;
  alignas(16) u64* first_fault;
{fields}{inputs}}};

WL_KERNEL(@name@, Params, p) {{
  Thread thread{{0, NO_FAULT}};
{body}  report_fault(thread, p.first_fault);
}}
"#
    );
    tile::named(kind, &text)
}
