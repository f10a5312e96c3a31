//! The sink that makes a join table: each row that comes through the steps is inserted
//! under its keys.

use std::collections::HashMap;

use super::aggregate::BLOCK_THREADS;
use super::emit::{ColumnShape, Emitter, Parameter};
use super::error::Unsupported;
use super::steps::emit_bucket;
use super::tile::{eager_columns, fields, named, row_loop};
use crate::ir::{Build, Step, columns_read};

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
        emitter.line("p.facts->has_null_keys = 1;");
        emitter.line("continue;");
        emitter.close();
    }
    emitter.line("++n_inserted;");
    emitter.line(&format!(
        "insert_row(p.j1, p.facts, {}, static_cast<u32>(thread.row));",
        bucket.text
    ));
    let rows = row_loop("0", &eager, tile_rows, emitter.body());
    let fields = fields(1, &used, columns, emitter.parameters());
    let text = format!(
        r#"#define WL_BLOCK_THREADS {BLOCK_THREADS}
#include "prelude.h"
#include "thread/value.h"
#include "thread/arithmetic.h"
#include "thread/compare.h"
#include "thread/dates.h"
#include "thread/memory.h"
#include "thread/text.h"
#include "table/accumulators.h"
#include "table/groups.h"
#include "table/hash.h"
#include "table/join_table.h"

struct Params {{
  alignas(16) u64 n_rows;
  alignas(16) u64* first_fault;
  alignas(16) JoinTableFacts* facts;
{fields}}};

WL_KERNEL(@name@, Params, p) {{
  Thread thread{{0, NO_FAULT}};
  u32 n_inserted = 0;
{rows}  WL_UNROLL
  for (u32 delta = WARP_LANES / 2; delta > 0; delta /= 2) n_inserted += shuffle_down(n_inserted, delta);
  if (lane_index() == 0 && n_inserted != 0) atomic_add_u32(&p.facts->n_rows, n_inserted);
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
