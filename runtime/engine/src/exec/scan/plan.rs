//! Which scans the device can read, as far as the plan tells.

use std::sync::Arc;

use arrow::datatypes::{DataType, SchemaRef, TimeUnit};
use datafusion::datasource::physical_plan::{
    FileScanConfig, FileSource, ParquetFileMetrics, ParquetSource,
};
use datafusion::datasource::source::DataSourceExec;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::metrics::{BaselineMetrics, ExecutionPlanMetricsSet};
use kernels::columns::type_of;
use kernels::ir::Type;

use super::reason;
use crate::exec::codes::{Codes, Wanted};
use crate::report::Reason;

/// A column that is wanted on the device.
#[derive(Debug, Clone)]
pub struct WantedColumn {
    /// Its number there.
    pub number: usize,
    /// As what it is wanted.
    pub wanted: Wanted,
    /// Its name in the files.
    pub name: String,
    /// Its type in the table.
    pub data_type: DataType,
    /// What the decoder makes of it.
    pub ty: Type,
}

/// A column that is wanted and stands in the names of directories.
#[derive(Debug, Clone)]
pub struct ConstantColumn {
    /// Its number on the device.
    pub number: usize,
    /// As what it is wanted.
    pub wanted: Wanted,
    /// Its number among such columns.
    pub partition: usize,
}

/// A scan of Parquet files that may be read on the device.
#[derive(Debug, Clone)]
pub struct Scan {
    config: FileScanConfig,
    /// The columns of the files that are wanted.
    pub columns: Arc<Vec<WantedColumn>>,
    /// The columns of directories that are.
    pub constants: Arc<Vec<ConstantColumn>>,
    /// The unit that INT96 is read in.
    pub int96_unit: TimeUnit,
    /// What prunes, if anything does.
    pub predicate: Option<Arc<dyn PhysicalExpr>>,
    /// Whether Bloom filters prune too.
    pub reads_bloom_filters: bool,
}

impl Scan {
    /// The plan as such a scan, with the columns that are wanted of it. `None` if it is no
    /// scan of files at all.
    pub fn of(
        plan: &Arc<dyn ExecutionPlan>,
        wanted: &[(usize, Wanted)],
        codes: &Codes,
    ) -> Option<Result<Scan, Reason>> {
        let scan = plan.downcast_ref::<DataSourceExec>()?;
        let config = scan.data_source().downcast_ref::<FileScanConfig>()?;
        Some(Scan::of_files(config, plan, wanted, codes))
    }

    fn of_files(
        config: &FileScanConfig,
        plan: &Arc<dyn ExecutionPlan>,
        wanted: &[(usize, Wanted)],
        codes: &Codes,
    ) -> Result<Scan, Reason> {
        let source = config.file_source();
        let own: &dyn std::any::Any = source.as_ref();
        let Some(source) = own.downcast_ref::<ParquetSource>() else {
            let message = format!("{} files are read on the CPU", source.file_type());
            return Err(reason("scan-format", message));
        };
        let options = source.table_parquet_options();
        if config.limit.is_some() {
            let message = "a scan that ends after some rows";
            return Err(reason("scan-limit", message.to_string()));
        }
        if options.global.pushdown_filters {
            let message = "a scan that filters rows itself";
            return Err(reason("scan-filter", message.to_string()));
        }
        let int96_unit = match options.global.coerce_int96.as_deref() {
            Some("us") => TimeUnit::Microsecond,
            Some("ms") => TimeUnit::Millisecond,
            Some("s") => TimeUnit::Second,
            _ => TimeUnit::Nanosecond,
        };
        let schema = plan.schema();
        let of_files = source.table_schema().file_schema();
        let of_directories = source.table_schema().table_partition_cols();
        let (mut columns, mut constants) = (Vec::new(), Vec::new());
        for (number, wanted) in wanted {
            let (index, is_code) = match wanted {
                Wanted::Own(index) => (*index, false),
                Wanted::Codes(of) => {
                    let text = codes.text(*of);
                    let text = text.map_err(|e| reason("scan-column", e.to_string()))?;
                    (text.column, true)
                }
            };
            let in_table = match source.projection() {
                None => Some(index),
                Some(exprs) => exprs.iter().nth(index).and_then(|projected| {
                    let column = projected.expr.downcast_ref::<Column>()?;
                    Some(column.index())
                }),
            };
            let n_files = of_files.fields().len();
            let partition = in_table.and_then(|column| column.checked_sub(n_files));
            if let Some((partition, field)) =
                partition.and_then(|number| Some((number, of_directories.get(number)?)))
            {
                type_in_kernels(field.data_type(), is_code)?;
                constants.push(ConstantColumn {
                    number: *number,
                    wanted: *wanted,
                    partition,
                });
                continue;
            }
            let Some(in_table) = in_table.filter(|column| *column < n_files) else {
                let name = schema.field(index).name();
                let message = format!("column {name} is not of the files");
                return Err(reason("scan-column", message));
            };
            let field = of_files.field(in_table);
            columns.push(WantedColumn {
                number: *number,
                wanted: *wanted,
                name: field.name().clone(),
                ty: type_in_kernels(field.data_type(), is_code)?,
                data_type: field.data_type().clone(),
            });
        }
        Ok(Scan {
            config: config.clone(),
            columns: Arc::new(columns),
            constants: Arc::new(constants),
            int96_unit,
            predicate: source.filter(),
            reads_bloom_filters: options.global.bloom_filter_on_read,
        })
    }

    /// The files and where they are.
    pub fn config(&self) -> &FileScanConfig {
        &self.config
    }

    /// The columns of the files as the table has them.
    pub fn file_schema(&self) -> &SchemaRef {
        self.config.file_source().table_schema().file_schema()
    }

    fn metrics(&self) -> &ExecutionPlanMetricsSet {
        self.config.file_source().metrics()
    }

    /// Counts what is read where DataFusion's reader counts it.
    pub fn counters(&self) -> ParquetFileMetrics {
        ParquetFileMetrics::new(0, &location_of(&self.config), self.metrics())
    }

    /// Counts rows that leave the scan.
    pub fn count_rows(&self, n_rows: usize) {
        BaselineMetrics::new(self.metrics(), 0).record_output(n_rows);
    }
}

/// The place of a scan's first file, for the report.
pub fn location(plan: &Arc<dyn ExecutionPlan>) -> String {
    let scan = plan.downcast_ref::<DataSourceExec>();
    let config = scan.and_then(|scan| scan.data_source().downcast_ref::<FileScanConfig>());
    config.map_or_else(String::new, location_of)
}

/// The place of the first file.
pub fn location_of(config: &FileScanConfig) -> String {
    let mut files = config.file_groups.iter().flat_map(|group| group.files());
    let url = config.object_store_url.as_str().trim_end_matches('/');
    match files.next() {
        Some(file) => {
            let path = file.object_meta.location.as_ref();
            let folder = path.rsplit_once('/').map_or(path, |(folder, _)| folder);
            format!("{url}/{folder}")
        }
        None => url.to_string(),
    }
}

/// What the decoder makes of a column; text of any layout if codes are wanted of it.
fn type_in_kernels(data_type: &DataType, is_code: bool) -> Result<Type, Reason> {
    if is_code && is_text(data_type) {
        return Ok(Type::Utf8);
    }
    type_of(data_type).map_err(|refused| reason(refused.code, refused.message))
}

fn is_text(data_type: &DataType) -> bool {
    match data_type {
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => true,
        DataType::Dictionary(_, values) => is_text(values),
        _ => false,
    }
}
