//! The kernels of a window: totals over tiles of rows in window order, and then the columns
//! of each row.
//!
//! ```text
//! NAME_tiles      add_up_tiles<SumAs<i64>>(p.n_rows, groups, p.r0, a0);
//! NAME_carry      carry_over_tiles<SumAs<i64>>(p.n_rows, p.r0);
//! NAME_leaves     plant_leaves<ExtremeOf<i32, true>>(p.n_rows, p.t0, a0);
//! NAME_level0     grow_level<ExtremeOf<i32, true>>(p);         once a level
//! NAME            store<i32>(p.o0, at, row_number(place));
//! ```

use std::collections::HashMap;
use std::fmt::Write as _;

use super::emit::{ColumnShape, Emitter, Parameter};
use super::error::Unsupported;
use super::rows::{OutputShape, ROWS_BLOCK_THREADS};
use super::tile;
use super::widest::widest_columns;
use super::window_calls::{Calls, emit_value};
use super::window_totals::{Adds, CallTotals, TotalKind, Totals, kind_of};
use crate::ir::{Expr, Window};

/// Rows of a block's tile where partitions are told apart. Keep in step with
/// `cuda/rows/window_groups.h`.
pub fn heads_tile_rows(threads: u32) -> usize {
    8 * threads as usize
}

/// Rows of a block's tile of running totals. Keep in step with
/// `cuda/rows/window_totals.h`.
pub fn totals_tile_rows(threads: u32) -> usize {
    8 * threads as usize
}

/// Nodes below a node of a tree. Keep in step with `cuda/rows/window_totals.h`.
pub const TREE_FAN: usize = 4;

/// A window's kernels and what is needed to launch them. All but the levels share one
/// parameter struct.
#[derive(Debug, Clone)]
pub struct WindowKernel {
    /// The entry point of the last: `window_` and a hash of the text. Those before it have
    /// more behind this name.
    pub name: String,
    /// The CUDA C++ text.
    pub text: String,
    /// Columns, in the order of their fields in the parameters.
    pub columns: Vec<usize>,
    /// Constants, in the order of their fields.
    pub parameters: Vec<Parameter>,
    /// The columns that are written: those that are passed, then those of the calls.
    pub outputs: Vec<OutputShape>,
    /// Running totals.
    pub running: Vec<TotalKind>,
    /// Totals in trees.
    pub trees: Vec<TotalKind>,
}

/// Generates the kernels of a window over these columns.
pub fn generate_window(
    window: &Window,
    columns: &HashMap<usize, ColumnShape>,
) -> Result<WindowKernel, Unsupported> {
    let mut totals = Totals::default();
    let of_calls: Vec<CallTotals> = window.calls.iter().map(|call| totals.of(call)).collect();
    let mut emitter = Emitter::new(columns.clone());
    let mut kernels = String::new();

    let (running, body) = total_body(&mut emitter, &totals.running, |at, kind| {
        format!(
            "add_up_tiles<{}>(p.n_rows, groups, p.r{at}, a{at});",
            kind.function()
        )
    })?;
    if !running.is_empty() {
        kernels.push_str(&kernel("_tiles", &body));
        let carries = running.iter().enumerate().map(|(at, kind)| {
            let function = kind.function();
            format!("  carry_over_tiles<{function}>(p.n_rows, p.r{at});\n")
        });
        let carries: String = carries.collect();
        let _ = writeln!(
            kernels,
            "WL_KERNEL(@name@_carry, Params, p) {{\n{carries}}}\n"
        );
    }
    let (trees, body) = total_body(&mut emitter, &totals.trees, |at, kind| {
        let function = kind.function();
        format!("plant_leaves<{function}>(p.n_rows, p.t{at}, a{at});")
    })?;
    if !trees.is_empty() {
        kernels.push_str(&kernel("_leaves", &body));
    }
    for (at, kind) in trees.iter().enumerate() {
        let function = kind.function();
        let _ = writeln!(
            kernels,
            "WL_KERNEL(@name@_level{at}, TreeLevel, p) {{ grow_level<{function}>(p); }}\n"
        );
    }

    let before = emitter.body().len();
    let outputs = Calls {
        emitter: &mut emitter,
        window,
        running: &running,
        trees: &trees,
        frames: Vec::new(),
    }
    .emit(&of_calls)?;
    kernels.push_str(&kernel("", &emitter.body()[before..]));

    let mut fields = String::new();
    for (at, kind) in running.iter().enumerate() {
        let function = kind.function();
        let _ = writeln!(fields, "  alignas(16) RunningRef<{function}::T> r{at};");
    }
    for (at, kind) in trees.iter().enumerate() {
        let function = kind.function();
        let _ = writeln!(fields, "  alignas(16) {function}::T* t{at};");
    }
    for at in 0..outputs.len() {
        let _ = writeln!(fields, "  alignas(16) OutputRef o{at};");
    }
    let mut sizes = String::new();
    for kind in running.iter().chain(&trees) {
        let function = kind.function();
        let _ = writeln!(
            sizes,
            "static_assert(sizeof({function}::T) == {} && sizeof(Run<{function}::T>) == {}, \
             \"the host reserves as much\");",
            kind.bytes(),
            kind.tile_bytes()
        );
    }
    let used = window.columns();
    let inputs = tile::fields(0, &used, emitter.columns(), emitter.parameters());
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
#include "table/group_values.h"
#include "rows/tiles.h"
#include "rows/window_groups.h"
#include "rows/window.h"
#include "rows/window_totals.h"

struct Params {{
  alignas(16) u64 n_rows;
  alignas(16) u64* first_fault;
  alignas(16) const u32* order;
  alignas(16) const u32* partition_of;
  alignas(16) const u32* peers_of;
  alignas(16) const u32* partition_first;
  alignas(16) const u32* peers_first;
{fields}{inputs}}};
{sizes}
{kernels}"#
    );
    let (name, text) = tile::named("window", &text);
    Ok(WindowKernel {
        name,
        text,
        columns: used,
        parameters: emitter.parameters().to_vec(),
        outputs,
        running,
        trees,
    })
}

/// Whether a window has device code whatever its columns hold: what cannot be refused any
/// more once rows are there.
pub fn check_window(window: &Window) -> Result<(), Unsupported> {
    let keys = window.sort.keys.iter().map(|key| &key.value);
    let values = window.calls.iter().filter_map(|c| c.function.value());
    let columns = widest_columns(window.passed.iter().chain(keys).chain(values))?;
    generate_window(window, &columns).map(|_| ())
}

/// The kernel that tells partitions and peers apart; every window has the same.
pub const WINDOW_GROUPS_TEXT: &str = r#"#define WL_BLOCK_THREADS 256
#include "prelude.h"
#include "thread/value.h"
#include "thread/arithmetic.h"
#include "thread/compare.h"
#include "thread/memory.h"
#include "table/accumulators.h"
#include "table/groups.h"
#include "rows/tiles.h"
#include "rows/window_groups.h"

WL_KERNEL(window_groups, WindowHeads, p) { find_heads(p); }
"#;

fn kernel(suffix: &str, body: &str) -> String {
    format!(
        r#"WL_KERNEL(@name@{suffix}, Params, p) {{
  Thread thread{{0, NO_FAULT}};
  const WindowGroups groups{{p.order, p.partition_of, p.peers_of, p.partition_first, p.peers_first}};
{body}  report_fault(thread, p.first_fault);
}}

"#
    )
}

/// The statements that add something up, `call` for each total.
fn total_body(
    emitter: &mut Emitter,
    totals: &[(Adds, Expr)],
    call: impl Fn(usize, TotalKind) -> String,
) -> Result<(Vec<TotalKind>, String), Unsupported> {
    let before = emitter.body().len();
    let mut kinds = Vec::new();
    for (at, (adds, arg)) in totals.iter().enumerate() {
        let value = emit_value(emitter, &format!("a{at}"), arg)?;
        let kind = kind_of(*adds, &value)?;
        emitter.line(&call(at, kind));
        kinds.push(kind);
    }
    Ok((kinds, emitter.body()[before..].to_string()))
}
