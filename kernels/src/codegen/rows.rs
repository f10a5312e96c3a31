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

use super::emit::{ColumnShape, Emitter, Parameter, Value, ValueRegister, full_register};
use super::error::Unsupported;
use super::tile;
use crate::ir::{Collect, Expr, Register, Sort, SortKey, Type};

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
    /// The C name of an element.
    pub fn stored(&self) -> &'static str {
        match self.register {
            ValueRegister::Bool => "u8",
            other => other.name(),
        }
    }

    /// Bytes of an element.
    pub fn stored_bytes(&self) -> usize {
        match self.register {
            ValueRegister::Bool => 1,
            ValueRegister::F32 | ValueRegister::Integer(Register::I32, _) => 4,
            ValueRegister::F64 | ValueRegister::Integer(Register::I64, _) => 8,
            // Text is refused before a shape is made of it.
            ValueRegister::Integer(Register::I128, _) | ValueRegister::Text => 16,
        }
    }
}

/// A generated collect kernel and what is needed to launch it.
#[derive(Debug, Clone)]
pub struct CollectKernel {
    /// The entry point: `collect_` and a hash of the text.
    pub name: String,
    /// The CUDA C++ text.
    pub text: String,
    /// Source columns, in the order of their fields in the parameters.
    pub columns: Vec<usize>,
    /// Constants, in the order of their fields.
    pub parameters: Vec<Parameter>,
    /// Whether rows are left out: then their tiles and numbers are parameters.
    pub filters: bool,
    /// The columns that are written.
    pub outputs: Vec<OutputShape>,
}

/// Generates the kernel of a collect over these columns.
pub fn generate_collect(
    collect: &Collect,
    columns: &HashMap<usize, ColumnShape>,
) -> Result<CollectKernel, Unsupported> {
    let mut emitter = Emitter::new(columns.clone());
    if let Some(filter) = &collect.filter {
        emitter.open("const auto passes = [&]() -> bool");
        emitter.filter(filter, "return false")?;
        emitter.line("return true;");
        emitter.close();
        emitter.line(";");
    }
    let filters = collect.filter.is_some();
    let mut outputs = Vec::new();
    emitter.open("const auto write = [&](u64 to)");
    if filters {
        emitter.line("p.rows[to] = static_cast<u32>(thread.row);");
    }
    for (index, expr) in collect.outputs.iter().enumerate() {
        let value = emitter.emit(expr)?;
        if value.register == ValueRegister::Text {
            return Err(Unsupported::expression(format!("a computed text ({expr})")));
        }
        let shape = OutputShape {
            register: value.register,
            nullable: value.nullable,
        };
        emitter.line(&format!(
            "store<{}>(p.o{index}, to, {});",
            shape.stored(),
            value.text
        ));
        outputs.push(shape);
    }
    emitter.close();
    emitter.line(";");
    emitter.line(if filters {
        "collect_rows(thread, p.n_rows, p.tiles, p.n_kept, passes, write);"
    } else {
        "write_rows(thread, p.n_rows, write);"
    });

    let mut fields = String::new();
    if filters {
        fields.push_str("  alignas(16) TilesRef tiles;\n  alignas(16) u64* n_kept;\n");
        fields.push_str("  alignas(16) u32* rows;\n");
    }
    for index in 0..outputs.len() {
        let _ = writeln!(fields, "  alignas(16) OutputRef o{index};");
    }
    let used = collect.columns();
    let (name, text) = kernel_text("collect", &fields, &used, &emitter);
    Ok(CollectKernel {
        name,
        text,
        columns: used,
        parameters: emitter.parameters().to_vec(),
        filters,
        outputs,
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
    }
    emitter.close();
    emitter.line(";");
    emitter.line(&format!(
        "write_sort_keys<{n_words}>(thread, p.n_rows, p.words, p.seen, key);"
    ));
    let fields = "  alignas(16) u64* words;\n  alignas(16) u64* seen;\n";
    let used = sort.columns();
    let (name, text) = kernel_text("sort_keys", fields, &used, &emitter);
    Ok(SortKeyKernel {
        name,
        text,
        columns: used,
        parameters: emitter.parameters().to_vec(),
        n_words,
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

/// The kernels that every sort shares.
pub const RADIX_TEXT: &str = r#"#define WL_BLOCK_THREADS 256
#include "prelude.h"
#include "thread/value.h"
#include "thread/arithmetic.h"
#include "thread/compare.h"
#include "thread/memory.h"
#include "thread/text.h"
#include "table/accumulators.h"
#include "table/groups.h"
#include "rows/tiles.h"
#include "rows/radix.h"

WL_KERNEL(radix_count, RadixPass, p) { radix_count_tile(p); }
WL_KERNEL(radix_scan, RadixScan, p) { radix_scan_counts(p); }
WL_KERNEL(radix_scatter, RadixPass, p) { radix_scatter_tile(p); }
WL_KERNEL(radix_gather, RadixGather, p) { radix_gather_keys(p); }
"#;

/// Whether a collect has device code whatever its columns hold: what cannot be
/// refused any more once rows are there.
pub fn check_collect(collect: &Collect) -> Result<(), Unsupported> {
    let exprs = collect.filter.iter().chain(&collect.outputs);
    generate_collect(collect, &widest_columns(exprs)?).map(|_| ())
}

/// As [`check_collect`], for a sort.
pub fn check_sort(sort: &Sort) -> Result<(), Unsupported> {
    let columns = widest_columns(sort.keys.iter().map(|key| &key.value))?;
    generate_sort_keys(sort, &columns).map(|_| ())
}

/// Every column that is read, as wide as its type.
fn widest_columns<'a>(
    exprs: impl Iterator<Item = &'a Expr>,
) -> Result<HashMap<usize, ColumnShape>, Unsupported> {
    let mut found: HashMap<usize, (Type, bool)> = HashMap::new();
    for expr in exprs {
        expr.walk(&mut |e| {
            if let crate::ir::Kind::Column(index) = e.kind {
                found.insert(index, (e.ty, e.nullable));
            }
        });
    }
    found
        .into_iter()
        .map(|(index, (ty, nullable))| {
            let register = full_register(ty)?;
            let stored = match register {
                ValueRegister::Bool => "u8",
                other => other.name(),
            };
            let shape = ColumnShape {
                register,
                stored,
                nullable,
            };
            Ok((index, shape))
        })
        .collect()
}

/// The text of a kernel whose body is the emitter's, and its name.
fn kernel_text(kind: &str, fields: &str, columns: &[usize], emitter: &Emitter) -> (String, String) {
    let inputs = tile::fields(columns, emitter.columns(), emitter.parameters());
    let body = emitter.body();
    let text = format!(
        r#"#define WL_BLOCK_THREADS {ROWS_BLOCK_THREADS}
#include "prelude.h"
#include "thread/value.h"
#include "thread/arithmetic.h"
#include "thread/compare.h"
#include "thread/memory.h"
#include "thread/text.h"
#include "table/accumulators.h"
#include "table/groups.h"
#include "rows/tiles.h"
#include "rows/collect.h"
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
