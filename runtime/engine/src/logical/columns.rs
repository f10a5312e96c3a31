//! Where columns of logical plans come from.

use datafusion::common::{Column, DFSchemaRef};
use datafusion::logical_expr::{Expr, LogicalPlan, Projection};

/// Where a column of a node's output comes from in its only input; `None` where it is
/// computed or the node changes which rows there are.
pub(super) fn through(plan: &LogicalPlan, column: &Column) -> Option<Column> {
    match plan {
        LogicalPlan::Projection(projection) => projected(projection, column),
        LogicalPlan::SubqueryAlias(alias) => {
            let index = alias.schema.maybe_index_of_column(column)?;
            Some(column_at(alias.input.schema(), index))
        }
        LogicalPlan::Filter(_) => Some(column.clone()),
        _ => None,
    }
}

fn projected(projection: &Projection, column: &Column) -> Option<Column> {
    let index = projection.schema.maybe_index_of_column(column)?;
    let mut expr = projection.expr.get(index)?;
    while let Expr::Alias(alias) = expr {
        expr = &alias.expr;
    }
    match expr {
        Expr::Column(column) => Some(column.clone()),
        _ => None,
    }
}

/// A column of a schema by its place.
pub(super) fn column_at(schema: &DFSchemaRef, index: usize) -> Column {
    Column::from(schema.qualified_field(index))
}
