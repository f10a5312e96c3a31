//! A full join: the rows that come through, then those that nothing matched.
//!
//! ```text
//!   count, probing    how many rows come through; matched rows are marked    relation n
//!   count, unmatched  how many rows have no mark                                 |
//!   write, probing    outputs [0, come through)                                  |
//!   write, unmatched  outputs [come through, all)   <────────────────────────────┘
//! ```
//!
//! Both passes write the same columns, so their outputs have the shapes that hold both.

use std::sync::Arc;

use super::collect::{Written, unsupported, write};
use super::context::Context;
use super::count;
use super::output::WrittenOutput;
use super::parameters::ParameterBytes;
use super::relations::Relations;
use crate::codegen::{CollectKernel, OutputShape, generate_collect, generate_collect_as};
use crate::error::{Error, Result};
use crate::ir::{Collect, Kind, Literal, MATCHED_COLUMN};

/// Runs a collect whose last step is a full join with this relation; `probing` is its
/// kernel as it would be without the second pass.
pub(super) fn run(
    context: &mut Context,
    collect: &Collect,
    probing: CollectKernel,
    rows: &Relations<'_>,
    relation: usize,
) -> Result<(Written, CollectKernel)> {
    let table = relation.checked_sub(1).and_then(|at| rows.tables.get(at));
    let table = table.ok_or_else(|| Error::Internal(format!("relation {relation} is missing")))?;
    let Some(matched) = table.matched() else {
        let message = format!("the rows of relation {relation} cannot be marked");
        return Err(Error::Internal(message));
    };
    let n_probed = count::rows_through(context, &collect.steps, rows)?;

    let marked =
        (table.rows()).with_column(&context.stream, MATCHED_COLUMN, Arc::clone(matched))?;
    let own = Relations {
        source: &marked,
        tables: &[],
    };
    let unmatched = collect.of_unmatched(relation, table.filter());
    let n_unmatched = count::rows_through(context, &unmatched.steps, &own)?;

    let own_shapes = own.shapes();
    let alone = generate_collect(&unmatched, &own_shapes, &[]).map_err(unsupported)?;
    let shapes = common_shapes(&probing, &unmatched, &alone)?;
    let (columns, tables) = (rows.shapes(), rows.table_shapes());
    let probing = generate_collect_as(collect, &columns, &tables, &shapes).map_err(unsupported)?;
    let alone = generate_collect_as(&unmatched, &own_shapes, &[], &shapes).map_err(unsupported)?;

    let n_rows = n_probed + n_unmatched;
    let mut references = ParameterBytes::default();
    let outputs = WrittenOutput::allocate(context, &shapes, n_rows, &mut references)?;
    write(context, &probing, rows, &references)?;
    let mut after = ParameterBytes::default();
    for output in &outputs {
        output.push_reference(n_probed, &mut after);
    }
    let (n_written, _) = write(context, &alone, &own, &after)?;
    if n_written != Some(n_unmatched) {
        let message = format!("{n_written:?} of {n_unmatched} rows without a match were written");
        return Err(Error::Internal(message));
    }
    let written = Written {
        n_rows,
        rows: None,
        outputs,
    };
    Ok((written, probing))
}

/// The shapes that hold what either kernel writes.
fn common_shapes(
    probing: &CollectKernel,
    unmatched: &Collect,
    alone: &CollectKernel,
) -> Result<Vec<OutputShape>> {
    let pairs = probing.outputs.iter().zip(&alone.outputs);
    let shapes = pairs.zip(&unmatched.outputs).map(|((a, b), output)| {
        // A null needs no room.
        let is_null = output.kind == Kind::Literal(Literal::Null);
        let shape = match is_null {
            true => Some(OutputShape {
                nullable: true,
                ..*a
            }),
            false => a.union(*b),
        };
        shape.ok_or_else(|| Error::Internal(format!("a column of both {a:?} and {b:?}")))
    });
    shapes.collect()
}
