//! Columns of files that stay on the device after the pipeline that brought them there.
//!
//! A column is known by its files (place, size, time of change, parts), so a file that
//! was written again is another one. What is not in use by a pipeline is given up, the
//! longest unused first, when memory is short.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex, PoisonError};

use arrow::array::StringArray;
use datafusion::datasource::physical_plan::{
    FileScanConfig, FileScanConfigBuilder, FileSource, ParquetSource,
};
use datafusion::datasource::source::DataSourceExec;
use datafusion::error::Result;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_plan::ExecutionPlan;
use kernels::columns::DeviceColumn;

/// The cached columns of one device.
#[derive(Debug, Default)]
pub struct ColumnCache {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    /// Counts uses, so that the longest unused can be told.
    now: u64,
    entries: HashMap<Key, Entry>,
}

/// Which column: the files, its name, and the function of it if it is derived text.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Key {
    files: Arc<str>,
    column: String,
    codes_of: Option<String>,
}

#[derive(Debug)]
struct Entry {
    cached: Cached,
    used: u64,
}

/// A cached column.
#[derive(Debug, Clone)]
pub struct Cached {
    /// The column, or its codes.
    pub column: Arc<DeviceColumn>,
    /// The texts of codes.
    pub texts: Option<StringArray>,
    /// Number of rows.
    pub n_rows: usize,
}

impl ColumnCache {
    /// The column, if it is there.
    pub fn get(&self, key: &Key) -> Option<Cached> {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.now += 1;
        let now = inner.now;
        let entry = inner.entries.get_mut(key)?;
        entry.used = now;
        Some(entry.cached.clone())
    }

    /// Keeps a column; others go so that all take at most `limit` bytes.
    pub fn put(&self, key: Key, cached: Cached, limit: usize) {
        let over = (self.bytes() + cached.column.bytes()).saturating_sub(limit);
        if over > 0 {
            self.evict(over);
        }
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.now += 1;
        let used = inner.now;
        let entry = Entry { cached, used };
        inner.entries.insert(key, entry);
    }

    /// Gives up unused columns until `bytes` are free or none is left; how many bytes that
    /// freed.
    pub fn evict(&self, bytes: usize) -> usize {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let unused = |entry: &Entry| Arc::strong_count(&entry.cached.column) == 1;
        let mut candidates: Vec<(u64, Key)> = inner
            .entries
            .iter()
            .filter(|(_, entry)| unused(entry))
            .map(|(key, entry)| (entry.used, key.clone()))
            .collect();
        candidates.sort_unstable_by_key(|(used, _)| *used);
        let mut freed = 0;
        for (_, key) in candidates {
            if freed >= bytes {
                break;
            }
            if let Some(entry) = inner.entries.remove(&key) {
                freed += entry.cached.column.bytes();
            }
        }
        freed
    }

    /// Bytes of all cached columns.
    pub fn bytes(&self) -> usize {
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let entries = inner.entries.values();
        entries.map(|entry| entry.cached.column.bytes()).sum()
    }
}

/// A scan of whole Parquet files whose columns can be cached.
#[derive(Debug)]
pub struct FileScan {
    config: FileScanConfig,
    files: Arc<str>,
    /// For each column of the scan its number in the table.
    columns: Vec<usize>,
}

impl FileScan {
    /// The plan as such a scan, if it is one: Parquet, no row limit, and columns as the
    /// files have them. A predicate of it is not applied: what it leaves out is tested
    /// above the scan anyway.
    pub fn of(plan: &Arc<dyn ExecutionPlan>) -> Option<FileScan> {
        let scan = plan.downcast_ref::<DataSourceExec>()?;
        let (config, source) = scan.downcast_to_file_source::<ParquetSource>()?;
        if config.limit.is_some() || source.table_parquet_options().global.pushdown_filters {
            return None;
        }
        let columns = match source.projection() {
            None => (0..source.table_schema().table_schema().fields().len()).collect(),
            Some(exprs) => exprs
                .iter()
                .map(|projected| {
                    let column = projected.expr.downcast_ref::<Column>()?;
                    Some(column.index())
                })
                .collect::<Option<Vec<_>>>()?,
        };
        let mut files = config.object_store_url.to_string();
        for group in &config.file_groups {
            files.push('|');
            for file in group.iter() {
                let (meta, range) = (&file.object_meta, &file.range);
                let (etag, time) = (meta.e_tag.as_deref().unwrap_or(""), meta.last_modified);
                let _ = write!(files, "{} {} {time} {etag}", meta.location, meta.size);
                if let Some(range) = range {
                    let _ = write!(files, " {}-{}", range.start, range.end);
                }
                files.push(';');
            }
        }
        Some(FileScan {
            config: config.clone(),
            files: files.into(),
            columns,
        })
    }

    /// The key of a column of the scan, or of codes of it.
    pub fn key(&self, column: usize, codes_of: Option<String>) -> Key {
        Key {
            files: Arc::clone(&self.files),
            column: self.columns[column].to_string(),
            codes_of,
        }
    }

    /// A scan of all rows of all its columns, in their order.
    pub fn of_all_columns(&self) -> Result<Arc<dyn ExecutionPlan>> {
        let all: Vec<usize> = (0..self.columns.len()).collect();
        self.of_columns(&all)
    }

    /// A scan of all rows of some of its columns, in this order.
    pub fn of_columns(&self, columns: &[usize]) -> Result<Arc<dyn ExecutionPlan>> {
        let source = self.config.file_source();
        let mut plain = ParquetSource::new(source.table_schema().clone());
        let own: &dyn std::any::Any = source.as_ref();
        if let Some(own) = own.downcast_ref::<ParquetSource>() {
            plain = plain.with_table_parquet_options(own.table_parquet_options().clone());
            if let Some(factory) = own.parquet_file_reader_factory() {
                plain = plain.with_parquet_file_reader_factory(Arc::clone(factory));
            }
        }
        let wanted = columns.iter().map(|column| self.columns[*column]).collect();
        let config = FileScanConfigBuilder::from(self.config.clone())
            .with_source(Arc::new(plain))
            // Columns that are read by different queries must have the same order of rows:
            // partitions may not take files over from one another.
            .with_preserve_order(true)
            .with_projection_indices(Some(wanted))?
            .build();
        Ok(DataSourceExec::from_data_source(config))
    }
}
