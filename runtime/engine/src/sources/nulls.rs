//! Text that stands for NULL in a CSV file.
//!
//! DataFusion looks at such text when it guesses types and forgets it when it reads.
//! So every column is read as text, and a view turns the text into NULL and the rest
//! into the column's type.

use std::sync::Arc;

use datafusion::arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::catalog::TableProvider;
use datafusion::common::Column;
use datafusion::datasource::{ViewTable, provider_as_source};
use datafusion::functions::core::expr_fn::nullif;
use datafusion::logical_expr::{Expr, LogicalPlanBuilder, cast, lit};

use crate::error::{Error, Result};

/// The same columns as nullable text.
pub fn all_text(schema: &SchemaRef) -> SchemaRef {
    let fields: Vec<Field> = schema
        .fields()
        .iter()
        .map(|field| Field::new(field.name(), DataType::Utf8, true))
        .collect();
    Arc::new(Schema::new(fields))
}

/// A view over a table of text: `text` becomes NULL, columns get the types of `schema`.
pub fn view(
    name: &str,
    table: Arc<dyn TableProvider>,
    schema: &SchemaRef,
    text: &str,
) -> Result<Arc<dyn TableProvider>> {
    let failed = |error| Error::from_datafusion(&error, 0);
    let n_data = schema.fields().len();
    let partitions = table.schema().fields()[n_data..].to_vec();
    let scan = LogicalPlanBuilder::scan(name, provider_as_source(table), None).map_err(failed)?;
    let column = |name: &str| Expr::Column(Column::from_name(name));
    let columns = schema
        .fields()
        .iter()
        .map(|field| {
            let value = nullif(column(field.name()), lit(text));
            cast(value, field.data_type().clone()).alias(field.name())
        })
        .chain(partitions.iter().map(|field| column(field.name())));
    let plan = scan
        .project(columns)
        .and_then(LogicalPlanBuilder::build)
        .map_err(failed)?;
    Ok(Arc::new(ViewTable::new(plan, None)))
}
