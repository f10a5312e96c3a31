//! The sink that makes a join table: each row that comes through the steps is inserted
//! under its keys.

use std::collections::HashMap;

use super::aggregate::BLOCK_THREADS;
use super::emit::{ColumnShape, Emitter, Parameter};
use super::error::Unsupported;
use super::steps::emit_bucket;
use super::tile::{Span, eager_columns, fields, named, row_loop};
use crate::ir::{Build, RELATION_COLUMNS, Step, columns_read};

/// What both texts include.
const HEADERS: &str = r#"#include "prelude.h"
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
"#;

/// A generated build kernel and what is needed to launch it.
#[derive(Debug, Clone)]
pub struct BuildKernel {
    /// The entry point: `build_` and a hash of the text.
    pub name: String,
    /// The CUDA C++ text.
    pub text: String,
    /// Columns, in the order of their fields in the parameters.
    pub columns: Vec<usize>,
    /// Constants, in the order of their fields.
    pub parameters: Vec<Parameter>,
}

/// Generates the kernel that inserts the rows of a relation into a table.
pub fn generate_build(
    build: &Build,
    columns: &HashMap<usize, ColumnShape>,
    is_dense: bool,
    is_flags: bool,
) -> Result<BuildKernel, Unsupported> {
    let filter = Step::filter(build.filter.clone());
    let keys = build.keys.iter().map(|key| &key.value);
    let used = columns_read(build.filter.iter().chain(keys));
    let (eager, tile_rows) = eager_columns(&filter, &used, columns);
    let mut emitter = Emitter::new(columns.clone());
    emitter.preload(eager.iter().map(|(index, _)| *index));
    if let Some(condition) = &build.filter {
        emitter.filter(condition)?;
    }
    let keys = build.keys.iter().map(|key| (&key.value, key.null_equal));
    // The table is field `j1` here as it is where it is probed.
    let bucket = emit_bucket(&mut emitter, 1, is_dense, keys)?;
    if let Some(valid) = &bucket.valid {
        emitter.open(&format!("if (!({valid}))"));
        emitter.line("inserted.has_null_keys = true;");
        emitter.line("continue;");
        emitter.close();
    }
    emitter.line(&match is_flags {
        true => format!("set_flag(p.j1, inserted, {});", bucket.text),
        false => format!(
            "insert_row(p.j1, inserted, {}, static_cast<u32>(thread.row));",
            bucket.text
        ),
    });
    let rows = row_loop(&Span::ALL, &eager, tile_rows, emitter.body());
    let fields = fields(1, &used, columns, emitter.parameters());
    let text = format!(
        r#"#define WL_BLOCK_THREADS {BLOCK_THREADS}
{HEADERS}
struct Params {{
  alignas(16) u64 n_rows;
  alignas(16) u64* first_fault;
  alignas(16) JoinTableFacts* facts;
{fields}}};

WL_KERNEL(@name@, Params, p) {{
  Thread thread{{0, NO_FAULT}};
  InsertedRows inserted{{0, false, false}};
{rows}  inserted.tell(p.facts);
  report_fault(thread, p.first_fault);
}}
"#
    );
    let (name, text) = named("build", &text);
    Ok(BuildKernel {
        name,
        text,
        columns: used,
        parameters: emitter.parameters().to_vec(),
    })
}

/// Generates the kernel that looks for two rows of a hashed table with the same keys.
/// Column `i` of the relation is also column `i` of relation 1: a pair is compared as a
/// row that probes is with one that it finds.
pub fn generate_duplicates(
    build: &Build,
    columns: &HashMap<usize, ColumnShape>,
) -> Result<BuildKernel, Unsupported> {
    let keys = build.keys.iter().map(|key| &key.value);
    let own = columns_read(keys);
    let both: Vec<usize> = own
        .iter()
        .copied()
        .chain(own.iter().map(|index| RELATION_COLUMNS + index))
        .collect();
    let other = columns
        .iter()
        .map(|(index, shape)| (RELATION_COLUMNS + index, *shape));
    let shapes: HashMap<usize, ColumnShape> = columns
        .iter()
        .map(|(index, shape)| (*index, *shape))
        .chain(other)
        .collect();
    let mut emitter = Emitter::new(shapes.clone());
    emitter.open("for (u64 bucket = first_row(); bucket < p.j1.n_buckets; bucket += row_step())");
    emitter.open("for (u32 row = p.j1.heads[bucket]; row != NO_ROW; row = p.j1.next[row])");
    emitter.line("if (load_relaxed(&p.facts->has_duplicates) != 0) return;");
    emitter.line("thread.row = row;");
    emitter.open_loop("for (u32 r1 = p.j1.next[row]; r1 != NO_ROW; r1 = p.j1.next[r1])");
    for key in &build.keys {
        let same = emitter.not_distinct(&key.value, &key.value.clone().of_relation(1))?;
        emitter.line(&format!("if (!{}) continue;", same.text));
    }
    emitter.line("p.facts->has_duplicates = 1;");
    emitter.line("return;");
    emitter.close_loop();
    emitter.close();
    emitter.close();
    let fields = fields(1, &both, &shapes, emitter.parameters());
    let body = emitter.body();
    let text = format!(
        r#"#define WL_BLOCK_THREADS {BLOCK_THREADS}
{HEADERS}
struct Params {{
  alignas(16) u64* first_fault;
  alignas(16) JoinTableFacts* facts;
{fields}}};

WL_KERNEL(@name@, Params, p) {{
  Thread thread{{0, NO_FAULT}};
{body}}}
"#
    );
    let (name, text) = named("duplicates", &text);
    Ok(BuildKernel {
        name,
        text,
        columns: both,
        parameters: emitter.parameters().to_vec(),
    })
}
