//! The rows of a kernel that adds them up, in one phase or in two.
//!
//! ```text
//! one    for each row: all steps, sink
//! two    for each row: the first steps, then into the warp's queue
//!        whenever every lane has a row: the other steps, sink      (cuda/rows/queue.h)
//! ```
//!
//! In one phase a warp is busy with a step as long as one of its rows is, and after a test
//! that one row in twenty passes that is nearly always the case.

use std::collections::HashMap;
use std::fmt::Write as _;

use super::emit::{ColumnShape, Emitter};
use super::error::Unsupported;
use super::steps::{TableShape, close, emit_steps};
use super::tile::{Span, TILE_ROWS_MAX, eager_columns, row_loop, tile_text};
use crate::ir::{ProbeKind, Step};

/// The most groups that a thread makes after it was told to go on: a tile of rows, and what
/// its warp's queue holds of earlier ones.
pub(crate) const ROWS_UNDER_WAY: usize = TILE_ROWS_MAX + 2;

/// The most rows that a thread puts into the queue before some are taken out: the queue
/// stands in shared memory.
const ROUNDS_MAX: usize = 4;

/// Lanes of a warp, for estimates only.
const LANES: f64 = 32.0;

/// The share of rows that a filter is taken to keep.
const FILTER_SHARE: f64 = 0.3;

/// What following a probe costs, in reads of far memory.
const PROBE_COST: f64 = 1.0;
const HASHED_PROBE_COST: f64 = 2.5;

/// What it costs to put all rows of a warp into the queue, and for each of them that is
/// taken out to read its columns again.
const QUEUE_COST: f64 = 0.1;
const RELOAD_COST: f64 = 0.3;

/// The rows of a kernel whose steps were emitted; the sink comes next.
#[derive(Debug)]
pub(super) struct Phases {
    eager: Vec<(usize, ColumnShape)>,
    tile_rows: usize,
    n_loops: usize,
    first: Option<FirstPhase>,
}

#[derive(Debug)]
struct FirstPhase {
    body: String,
    /// Relations whose row is known after it.
    relations: Vec<usize>,
}

impl Phases {
    /// Emits the steps. `sink_cost` is what the sink costs a row, in reads of far memory.
    pub(super) fn emit(
        emitter: &mut Emitter,
        steps: &[Step],
        used: &[usize],
        columns: &HashMap<usize, ColumnShape>,
        tables: &[TableShape],
        sink_cost: f64,
    ) -> Result<Phases, Unsupported> {
        let (eager, tile_rows) = eager_columns(steps, used, columns);
        emitter.preload(eager.iter().map(|(index, _)| *index));
        let Some(n_first) = split(steps, tables, sink_cost) else {
            let n_loops = emit_steps(emitter, steps, tables)?;
            return Ok(Phases {
                eager,
                tile_rows,
                n_loops,
                first: None,
            });
        };
        let (first, second) = steps.split_at(n_first);
        emitter.push_exit("return false");
        emit_steps(emitter, first, tables)?;
        emitter.pop_exit();
        let relations: Vec<usize> = first.iter().filter_map(known_row).collect();
        for relation in &relations {
            emitter.line(&format!("q{relation} = r{relation};"));
        }
        let body = emitter.next_phase();
        emitter.push_exit("return");
        let n_loops = emit_steps(emitter, second, tables)?;
        Ok(Phases {
            eager,
            tile_rows: tile_rows.min(ROUNDS_MAX),
            n_loops,
            first: Some(FirstPhase { body, relations }),
        })
    }

    /// The loop over all rows, now that the sink stands too.
    pub(super) fn finish(self, emitter: &mut Emitter, span: &Span<'_>) -> String {
        close(emitter, self.n_loops);
        let Some(first) = self.first else {
            return row_loop(span, &self.eager, self.tile_rows, emitter.body());
        };
        emitter.pop_exit();
        let (tiles, loads) = tile_text(&self.eager, self.tile_rows);
        let rounds = self.tile_rows;
        let n_fields = first.relations.len();
        let (mut known, mut puts, mut unused) = (String::new(), String::new(), String::new());
        let (mut parameters, mut gets) = (Vec::new(), Vec::new());
        for (number, relation) in first.relations.iter().enumerate() {
            let _ = write!(known, " u32 q{relation} = NO_ROW;");
            let _ = write!(puts, " queue.field({number}, at) = q{relation};");
            let _ = writeln!(unused, "      static_cast<void>(r{relation});");
            parameters.push(format!("u32 r{relation}"));
            gets.push(format!("queue.field({number}, at)"));
        }
        let (parameters, gets) = (parameters.join(", "), gets.join(", "));
        let (body, rest) = (first.body, emitter.body());
        let (first_row, keep) = (span.first(), span.keep());
        // All lanes of a warp stop together.
        let goes_on = match span.stops {
            true => " && !any_lane(must_stop(p.table, p.progress))",
            false => "",
        };
        format!(
            r#"  WL_SHARED RowQueue<{n_fields}, {rounds}> queue;
  u32 waiting = 0;
  // All lanes of a warp go round equally often.
  u64 base = {first_row};
  for (;; base += {rounds} * row_step()) {{
    const bool more = base < p.n_rows + lane_index(){goes_on};
    if (more) {{
{tiles}    WL_UNROLL
    for (u32 r = 0; r < {rounds}; ++r) {{
      const u64 row = clamp_row(base + r * row_step(), p.n_rows);
{loads}    }}
    WL_UNROLL
    for (u32 r = 0; r < {rounds}; ++r) {{
      thread.row = base + r * row_step();
     {known}
      const bool goes_on = [&]() -> bool {{
      if (thread.row >= p.n_rows) return false;
{body}      return true;
      }}();
      const u32 at = queue.place(waiting, goes_on);
      if (goes_on) {{ queue.row(at) = thread.row;{puts} }}
    }}
    }}
    warp_sync();
    while (waiting >= (more ? WARP_LANES : 1)) {{
      const u32 n_taken = min_of(waiting, WARP_LANES);
      waiting -= n_taken;
      if (lane_index() < n_taken) {{
      const u32 at = waiting + lane_index();
      thread.row = queue.row(at);
      [&]({parameters}) {{
{unused}{rest}      }}({gets});
      }}
    }}
    warp_sync();
    if (!more) break;
  }}
{keep}"#
        )
    }
}

/// The relation of which a step makes one row known.
fn known_row(step: &Step) -> Option<usize> {
    match step {
        Step::Lookup { relation, .. } => Some(*relation),
        Step::Probe(probe) => probe.kind.has_columns().then_some(probe.relation),
        Step::Filter(_) | Step::EachSet(_) => None,
    }
}

/// The share of rows that is likely to come through some steps.
pub(super) fn share_through(steps: &[Step], tables: &[TableShape]) -> f64 {
    let shares = steps.iter().map(|step| match step {
        Step::Filter(_) => FILTER_SHARE,
        Step::Lookup { .. } | Step::EachSet(_) => 1.0,
        Step::Probe(probe) => {
            let table = probe.relation.checked_sub(1).and_then(|at| tables.get(at));
            let found = table.map_or(1.0, |table| f64::from(table.match_percent) / 100.0);
            match probe.kind {
                ProbeKind::Matches | ProbeKind::IfAny => found,
                ProbeKind::IfNone | ProbeKind::NotIn => 1.0 - 0.5 * found,
                ProbeKind::MatchesOrNull | ProbeKind::Full | ProbeKind::Mark => 1.0,
            }
        }
    });
    shares.product()
}

/// How many steps belong to the first phase, when two are likely to be faster than one.
///
/// A warp spends a step's cost when at least one of its rows gets there.
fn split(steps: &[Step], tables: &[TableShape], sink_cost: f64) -> Option<usize> {
    let busy = |share: f64| (LANES * share).min(1.0);
    let mut costs = Vec::new();
    let mut shares = Vec::new();
    let (mut share, mut n_first_max) = (1.0, steps.len());
    for (at, step) in steps.iter().enumerate() {
        let cost = match step {
            Step::Filter(_) => 0.0,
            Step::Lookup { .. } => PROBE_COST,
            Step::EachSet(_) => {
                n_first_max = n_first_max.min(at);
                0.0
            }
            Step::Probe(probe) => {
                let table = tables.get(probe.relation.checked_sub(1)?)?;
                let opens_loop = probe.kind.has_columns() && !table.is_unique;
                if opens_loop || probe.kind == ProbeKind::Mark {
                    // What follows stands in a loop, or reads more than rows.
                    n_first_max = n_first_max.min(at);
                }
                match table.is_dense {
                    true => PROBE_COST,
                    false => HASHED_PROBE_COST,
                }
            }
        };
        let kept = share_through(std::slice::from_ref(step), tables);
        costs.push((cost, share));
        share *= kept;
        shares.push(share);
    }
    costs.push((sink_cost, share));
    let one_phase: f64 = costs.iter().map(|(cost, share)| cost * busy(*share)).sum();
    let two_phases = |n_first: usize| {
        let through = shares[n_first - 1];
        let first: f64 = costs[..n_first]
            .iter()
            .map(|(cost, share)| cost * busy(*share))
            .sum();
        let second: f64 = costs[n_first..]
            .iter()
            .map(|(cost, share)| cost * busy(share / through.max(1e-9)))
            .sum();
        first + QUEUE_COST + through * (RELOAD_COST + second)
    };
    let best = (1..=n_first_max).min_by(|a, b| two_phases(*a).total_cmp(&two_phases(*b)))?;
    (two_phases(best) < one_phase).then_some(best)
}
