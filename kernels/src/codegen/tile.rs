//! What every kernel text shares: the parameter struct, and the loop that reads tiles
//! of rows before it looks at them.

use std::collections::HashMap;
use std::fmt::Write as _;

use sha2::{Digest, Sha256};

use super::emit::{ColumnShape, Parameter, ValueRegister};
use crate::ir::{BinaryOp, Kind, RELATION_COLUMNS, Step, columns_read};

/// Bytes of a row up to which all its columns are read before the filter. Narrow
/// columns share sectors of 32 bytes with 8 rows and more, so a filter that keeps
/// several per cent of the rows saves next to no traffic on them, and loads that do
/// not wait for it overlap.
const EAGER_BYTES: usize = 16;

/// The most rows of a thread's tile.
pub(super) const TILE_ROWS_MAX: usize = 8;

/// Bytes that a thread should have under way to hide the latency of memory.
const BYTES_IN_FLIGHT: usize = 64;

/// The columns that are read for a whole tile before its rows are looked at, and the
/// number of rows of a thread's tile.
pub(super) fn eager_columns(
    steps: &[Step],
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
    let of_source = |columns: Vec<usize>| -> Vec<usize> {
        let columns = columns.into_iter();
        columns.filter(|index| *index < RELATION_COLUMNS).collect()
    };
    let mut eager = shapes(&of_source(used.to_vec()));
    // Only what the first test reads: the rest waits for the rows that pass.
    match steps.first() {
        Some(Step::Filter(filter)) if bytes(&eager) > EAGER_BYTES || steps.len() > 1 => {
            let mut first = filter;
            while let Kind::Binary(BinaryOp::And, left, _) = &first.kind {
                first = left;
            }
            eager = shapes(&of_source(columns_read([first])));
        }
        Some(Step::Probe(probe)) => {
            let keys = probe.keys.iter().map(|key| &key.probe);
            eager = shapes(&of_source(columns_read(keys)));
        }
        Some(Step::Lookup { row, .. }) => eager = shapes(&of_source(columns_read([row]))),
        _ => {}
    }
    let tile_rows = match BYTES_IN_FLIGHT / bytes(&eager).max(1) {
        0 | 1 => 1,
        2 | 3 => 2,
        4..8 => 4,
        _ => TILE_ROWS_MAX,
    };
    (eager, tile_rows)
}

/// The fields of join tables, columns and constants, each from a multiple of 16 bytes
/// on.
pub(super) fn fields(
    n_tables: usize,
    columns: &[usize],
    shapes: &HashMap<usize, ColumnShape>,
    parameters: &[Parameter],
) -> String {
    let mut text = String::new();
    for table in 1..=n_tables {
        let _ = writeln!(text, "  alignas(16) JoinTableRef j{table};");
    }
    for column in columns {
        let is_text = shapes.get(column).is_some_and(ColumnShape::is_text);
        let kind = if is_text {
            "TextColumnRef"
        } else {
            "ColumnRef"
        };
        let _ = writeln!(text, "  alignas(16) {kind} c{column};");
    }
    for parameter in parameters {
        let register = match parameter.register {
            ValueRegister::Text => "TextConstant",
            register => register.name(),
        };
        let _ = writeln!(text, "  alignas(16) {register} {};", parameter.name);
    }
    text
}

/// Which rows a loop is over.
#[derive(Debug, Clone, Copy)]
pub(super) struct Span<'a> {
    /// The first one, in device code.
    pub(super) begin: &'a str,
    /// Whether the loop stops when the table of groups is nearly full, and goes on from
    /// there in the next launch.
    pub(super) stops: bool,
}

impl Span<'_> {
    /// All rows, in one launch.
    pub(super) const ALL: Span<'static> = Span {
        begin: "0",
        stops: false,
    };

    /// The thread's first row.
    pub(super) fn first(&self) -> String {
        let begin = self.begin;
        match self.stops {
            true => format!("{begin} + first_row() + p.progress.done[global_thread_index()]"),
            false => format!("{begin} + first_row()"),
        }
    }

    /// What stands before a tile.
    fn check(&self) -> &'static str {
        match self.stops {
            true => "    if (must_stop(p.table, p.progress)) break;\n",
            false => "",
        }
    }

    /// What stands behind the loop.
    pub(super) fn keep(&self) -> String {
        let begin = self.begin;
        match self.stops {
            true => format!(
                "  p.progress.done[global_thread_index()] = base - first_row() - {begin};\n"
            ),
            false => String::new(),
        }
    }
}

/// The loop over the rows of a thread: loads of a tile, then `body` for each row.
pub(super) fn row_loop(
    span: &Span<'_>,
    eager: &[(usize, ColumnShape)],
    tile_rows: usize,
    body: &str,
) -> String {
    let (tiles, loads) = tile_text(eager, tile_rows);
    let (first, check, keep) = (span.first(), span.check(), span.keep());
    format!(
        r#"  u64 base = {first};
  for (; base < p.n_rows; base += {tile_rows} * row_step()) {{
{check}{tiles}    WL_UNROLL
    for (u32 r = 0; r < {tile_rows}; ++r) {{
      const u64 row = clamp_row(base + r * row_step(), p.n_rows);
{loads}    }}
    WL_UNROLL
    for (u32 r = 0; r < {tile_rows}; ++r) {{
      thread.row = base + r * row_step();
      if (thread.row >= p.n_rows) break;
{body}    }}
  }}
{keep}"#
    )
}

/// The declarations of a tile's columns, and their loads for row `r` of a thread.
pub(super) fn tile_text(eager: &[(usize, ColumnShape)], tile_rows: usize) -> (String, String) {
    let (mut tiles, mut loads) = (String::new(), String::new());
    for (index, shape) in eager {
        let (register, load) = (shape.value_name(), shape.load_call(*index, "row"));
        let _ = writeln!(tiles, "    {register} t{index}[{tile_rows}];");
        let _ = writeln!(loads, "      t{index}[r] = {load};");
    }
    (tiles, loads)
}

/// Names a kernel by its kind and a hash of its text, in which `@name@` stands for the
/// name: a profiler line can then be traced to the source.
pub(super) fn named(kind: &str, text: &str) -> (String, String) {
    let name = format!("{kind}_{}", short_hash(text));
    let text = text.replace("@name@", &name);
    (name, text)
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
