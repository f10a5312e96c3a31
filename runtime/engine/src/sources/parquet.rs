//! Parquet whose statistics do not speak about floats.
//!
//! A file's minimum and maximum leave NaN out, and DataFusion takes a column whose
//! two are equal for a constant: `[1.0, NaN]` is read as `[1.0, 1.0]`. So the
//! minimum and maximum of a float column are not passed on. Everything else is
//! DataFusion's Parquet.

use std::sync::Arc;

use async_trait::async_trait;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::catalog::Session;
use datafusion::common::stats::Precision;
use datafusion::common::{Result, Statistics};
use datafusion::datasource::file_format::file_compression_type::FileCompressionType;
use datafusion::datasource::file_format::parquet::ParquetFormat;
use datafusion::datasource::file_format::{FileFormat, FileMeta};
use datafusion::datasource::physical_plan::{FileScanConfig, FileSource};
use datafusion::datasource::table_schema::TableSchema;
use datafusion::object_store::{ObjectMeta, ObjectStore};
use datafusion::physical_expr::LexOrdering;
use datafusion::physical_plan::ExecutionPlan;

/// DataFusion's Parquet with careful statistics.
#[derive(Debug)]
pub struct CarefulParquet {
    plain: ParquetFormat,
}

impl CarefulParquet {
    /// Takes the format with its options.
    pub fn new(plain: ParquetFormat) -> Self {
        Self { plain }
    }
}

fn without_floats(mut statistics: Statistics, schema: &SchemaRef) -> Statistics {
    for (column, field) in statistics.column_statistics.iter_mut().zip(schema.fields()) {
        if field.data_type().is_floating() {
            column.min_value = Precision::Absent;
            column.max_value = Precision::Absent;
            column.sum_value = Precision::Absent;
        }
    }
    statistics
}

#[async_trait]
impl FileFormat for CarefulParquet {
    fn get_ext(&self) -> String {
        self.plain.get_ext()
    }

    fn get_ext_with_compression(&self, compression: &FileCompressionType) -> Result<String> {
        self.plain.get_ext_with_compression(compression)
    }

    fn compression_type(&self) -> Option<FileCompressionType> {
        self.plain.compression_type()
    }

    async fn infer_schema(
        &self,
        state: &dyn Session,
        store: &Arc<dyn ObjectStore>,
        objects: &[ObjectMeta],
    ) -> Result<SchemaRef> {
        self.plain.infer_schema(state, store, objects).await
    }

    async fn infer_stats(
        &self,
        state: &dyn Session,
        store: &Arc<dyn ObjectStore>,
        table_schema: SchemaRef,
        object: &ObjectMeta,
    ) -> Result<Statistics> {
        let statistics = self
            .plain
            .infer_stats(state, store, Arc::clone(&table_schema), object)
            .await?;
        Ok(without_floats(statistics, &table_schema))
    }

    async fn infer_ordering(
        &self,
        state: &dyn Session,
        store: &Arc<dyn ObjectStore>,
        table_schema: SchemaRef,
        object: &ObjectMeta,
    ) -> Result<Option<LexOrdering>> {
        self.plain
            .infer_ordering(state, store, table_schema, object)
            .await
    }

    async fn infer_stats_and_ordering(
        &self,
        state: &dyn Session,
        store: &Arc<dyn ObjectStore>,
        table_schema: SchemaRef,
        object: &ObjectMeta,
    ) -> Result<FileMeta> {
        let mut meta = self
            .plain
            .infer_stats_and_ordering(state, store, Arc::clone(&table_schema), object)
            .await?;
        meta.statistics = without_floats(meta.statistics, &table_schema);
        Ok(meta)
    }

    async fn create_physical_plan(
        &self,
        state: &dyn Session,
        config: FileScanConfig,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        self.plain.create_physical_plan(state, config).await
    }

    fn file_source(&self, table_schema: TableSchema) -> Arc<dyn FileSource> {
        self.plain.file_source(table_schema)
    }
}
