//! Text that is read as views, below a node that takes it so.
//!
//! Parquet writes a column of few texts as numbers into a dictionary. To plain strings
//! these are copied byte by byte; a view is copied as one word, and compared as one.

use std::sync::Arc;

use datafusion::arrow::datatypes::{DataType, Schema};
use datafusion::common::Result;
use datafusion::datasource::physical_plan::{
    FileScanConfig, FileScanConfigBuilder, FileSource, ParquetSource,
};
use datafusion::datasource::source::DataSourceExec;
use datafusion::datasource::table_schema::TableSchema;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_expr::utils::collect_columns;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::filter::{FilterExec, FilterExecBuilder};
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::repartition::RepartitionExec;

/// The plan with these columns as views, where they are plain strings of a Parquet file
/// that nothing on the way looks at. `None` if nothing changes.
pub fn with_views(
    plan: &Arc<dyn ExecutionPlan>,
    columns: &[usize],
) -> Result<Option<Arc<dyn ExecutionPlan>>> {
    let schema = plan.schema();
    let mut columns = columns.to_vec();
    columns.retain(|column| *schema.field(*column).data_type() == DataType::Utf8);
    if columns.is_empty() {
        return Ok(None);
    }
    if let Some(filter) = plan.downcast_ref::<FilterExec>() {
        let mut below: Vec<usize> = match filter.projection() {
            Some(projection) => columns.iter().map(|column| projection[*column]).collect(),
            None => columns,
        };
        let tested = collect_columns(filter.predicate());
        below.retain(|column| tested.iter().all(|tested| tested.index() != *column));
        let Some(input) = with_views(filter.input(), &below)? else {
            return Ok(None);
        };
        let filter = FilterExecBuilder::from(filter).with_input(input).build()?;
        return Ok(Some(Arc::new(filter)));
    }
    if let Some(projection) = plan.downcast_ref::<ProjectionExec>() {
        let mut below = Vec::new();
        for column in &columns {
            if let Some(column) = projection.expr()[*column].expr.downcast_ref::<Column>() {
                below.push(column.index());
            }
        }
        // What another expression takes as well stays as it is.
        for (number, projected) in projection.expr().iter().enumerate() {
            if !columns.contains(&number) {
                let taken = collect_columns(&projected.expr);
                below.retain(|column| taken.iter().all(|taken| taken.index() != *column));
            }
        }
        let Some(input) = with_views(projection.input(), &below)? else {
            return Ok(None);
        };
        let exprs = projection.expr().iter().cloned();
        return Ok(Some(Arc::new(ProjectionExec::try_new(exprs, input)?)));
    }
    if let Some(exchange) = plan.downcast_ref::<RepartitionExec>()
        && matches!(
            exchange.partitioning(),
            datafusion::physical_plan::Partitioning::RoundRobinBatch(_)
        )
    {
        let Some(input) = with_views(exchange.input(), &columns)? else {
            return Ok(None);
        };
        let exchange = RepartitionExec::try_new(input, exchange.partitioning().clone())?;
        return Ok(Some(Arc::new(exchange)));
    }
    scan_with_views(plan, &columns)
}

fn scan_with_views(
    plan: &Arc<dyn ExecutionPlan>,
    columns: &[usize],
) -> Result<Option<Arc<dyn ExecutionPlan>>> {
    let Some(config) = plan
        .downcast_ref::<DataSourceExec>()
        .and_then(|scan| scan.data_source().downcast_ref::<FileScanConfig>())
    else {
        return Ok(None);
    };
    let Some(parquet) = config.file_source.downcast_ref::<ParquetSource>() else {
        return Ok(None);
    };
    let Some(projection) = parquet.projection().cloned() else {
        return Ok(None);
    };
    if !config.output_ordering.is_empty() || config.output_partitioning.is_some() {
        return Ok(None);
    }
    let table = parquet.table_schema();
    let file_schema = table.file_schema();
    let mut as_views = Vec::new();
    for (number, projected) in projection.iter().enumerate() {
        match projected.expr.downcast_ref::<Column>() {
            Some(column) if columns.contains(&number) => as_views.push(column.index()),
            _ => {}
        }
    }
    let mut others: Vec<usize> = projection
        .iter()
        .enumerate()
        .filter(|(number, _)| !columns.contains(number))
        .flat_map(|(_, projected)| collect_columns(&projected.expr))
        .map(|column| column.index())
        .collect();
    if let Some(predicate) = parquet.filter() {
        others.extend(collect_columns(&predicate).iter().map(Column::index));
    }
    // Columns after those of the file are values of its directories.
    as_views.retain(|column| !others.contains(column) && *column < file_schema.fields().len());
    if as_views.is_empty() {
        return Ok(None);
    }
    let fields = file_schema
        .fields()
        .iter()
        .enumerate()
        .map(|(index, field)| {
            if as_views.contains(&index) {
                Arc::new(field.as_ref().clone().with_data_type(DataType::Utf8View))
            } else {
                Arc::clone(field)
            }
        });
    let file_schema =
        Schema::new_with_metadata(fields.collect::<Vec<_>>(), file_schema.metadata().clone());
    let table = TableSchema::builder(Arc::new(file_schema))
        .with_table_partition_cols(table.table_partition_cols().clone())
        .with_virtual_columns(table.virtual_columns().clone())
        .build();
    let options = parquet.table_parquet_options().clone();
    let size_hint = options.global.metadata_size_hint;
    let mut source = ParquetSource::new(table).with_table_parquet_options(options);
    if let Some(size_hint) = size_hint {
        source = source.with_metadata_size_hint(size_hint);
    }
    if let Some(factory) = parquet.parquet_file_reader_factory() {
        source = source.with_parquet_file_reader_factory(Arc::clone(factory));
    }
    if let Some(predicate) = parquet.filter() {
        source = source.with_predicate(predicate);
    }
    let Some(source) = source.try_pushdown_projection(&projection)? else {
        return Ok(None);
    };
    let config = FileScanConfigBuilder::from(config.clone())
        .with_source(source)
        .build();
    Ok(Some(DataSourceExec::from_data_source(config)))
}
