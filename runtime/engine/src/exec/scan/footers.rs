//! Footers to the row groups that are read.

use std::sync::Arc;

use arrow::datatypes::{DataType, Schema, SchemaRef};
use datafusion::common::ScalarValue;
use datafusion::datasource::listing::PartitionedFile;
use datafusion::datasource::physical_plan::ParquetFileMetrics;
use datafusion::datasource::physical_plan::parquet::metadata::DFParquetMetadata;
use datafusion::datasource::physical_plan::parquet::{
    BloomFilterStatistics, Int96Coercer, ParquetAccessPlan, RowGroupAccessPlanFilter,
    apply_file_schema_type_coercions,
};
use datafusion::error::DataFusionError;
use datafusion::execution::TaskContext;
use datafusion::object_store::{ObjectMeta, ObjectStore};
use datafusion::physical_optimizer::pruning::PruningPredicateBuilder;
use futures::{StreamExt, TryStreamExt};
use kernels::parquet::{Physical, check};
use parquet::arrow::{parquet_column, parquet_to_arrow_schema};
use parquet::basic::{Compression, Type as FileType};
use parquet::bloom_filter::Sbbf;

use parquet::file::metadata::{ColumnChunkMetaData, PageIndexPolicy, ParquetMetaData};

use super::fetch::get;
use super::plan::Scan;
use super::reason;
use crate::exec::failure::Failure;
use crate::report::Reason;

/// A file whose footer was read.
#[derive(Debug)]
pub struct File {
    /// Where it is.
    pub store: Arc<dyn ObjectStore>,
    /// What the listing said of it.
    pub meta: ObjectMeta,
    /// What it is called in messages.
    pub name: Arc<str>,
    /// Its footer.
    pub metadata: Arc<ParquetMetaData>,
    /// For each wanted column its number in the footer.
    pub leaves: Vec<usize>,
    /// The values of the columns that stand in its directories.
    pub partition_values: Vec<ScalarValue>,
}

impl File {
    /// How the wanted columns are stored, and whether they have nulls.
    fn stored(&self) -> Vec<(Physical, bool)> {
        let described = self.metadata.file_metadata().schema_descr();
        let columns = self.leaves.iter().map(|leaf| {
            let column = described.column(*leaf);
            let physical = physical(column.physical_type(), column.type_length());
            (physical, column.max_def_level() > 0)
        });
        columns.collect()
    }
}

/// A row group that is read.
#[derive(Debug, Clone)]
pub struct Piece {
    /// Its file.
    pub file: Arc<File>,
    /// Its number there.
    pub row_group: usize,
}

impl Piece {
    /// Its rows.
    pub fn n_rows(&self) -> usize {
        let group = self.file.metadata.row_group(self.row_group);
        usize::try_from(group.num_rows()).unwrap_or(0)
    }

    /// Bytes of its wanted columns, decompressed.
    pub fn n_bytes(&self) -> usize {
        (0..self.file.leaves.len())
            .map(|column| self.column_bytes(column))
            .sum()
    }

    /// Bytes of a wanted column, decompressed.
    pub fn column_bytes(&self, column: usize) -> usize {
        usize::try_from(self.column(column).uncompressed_size()).unwrap_or(0)
    }

    /// Bytes of a wanted column in the file.
    pub fn packed_bytes(&self, column: usize) -> usize {
        usize::try_from(self.column(column).compressed_size()).unwrap_or(0)
    }

    /// How a wanted column is compressed.
    pub fn compression(&self, column: usize) -> Compression {
        self.column(column).compression()
    }

    fn column(&self, column: usize) -> &ColumnChunkMetaData {
        let group = self.file.metadata.row_group(self.row_group);
        group.column(self.file.leaves[column])
    }
}

/// The row groups that a scan reads, in the order of its partitions.
#[derive(Debug, Default)]
pub struct Pieces {
    /// All of them.
    pub pieces: Vec<Piece>,
    /// How many files there are.
    pub n_files: usize,
    /// Row groups that statistics rule out.
    pub n_pruned: usize,
}

/// Reads the footers of all files and prunes. The reason when the device cannot read them.
pub async fn pieces(
    scan: &Scan,
    context: &Arc<TaskContext>,
) -> Result<Result<Pieces, Reason>, Failure> {
    let config = scan.config();
    let store = context
        .runtime_env()
        .object_store(&config.object_store_url)?;
    let n_at_once = context
        .session_config()
        .options()
        .execution
        .meta_fetch_concurrency;
    let counters = scan.counters();
    let groups = config.file_groups.iter();
    let files: Vec<PartitionedFile> = groups.flat_map(|g| g.files().iter().cloned()).collect();
    let read = files.into_iter().map(|file| {
        let (store, scan, context) = (Arc::clone(&store), scan.clone(), Arc::clone(context));
        let counters = counters.clone();
        async move { of_file(store, file, &scan, &counters, &context).await }
    });
    let read: Vec<_> = futures::stream::iter(read)
        .buffered(n_at_once.into())
        .try_collect()
        .await?;
    let mut all = Pieces {
        n_files: read.len(),
        ..Pieces::default()
    };
    for file in read {
        match file {
            Ok((pieces, n_pruned)) => {
                // One kernel reads a column of all files, so they must store it alike.
                if let (Some(first), Some(own)) = (all.pieces.first(), pieces.first())
                    && first.file.stored() != own.file.stored()
                {
                    let (first, own) = (&first.file.name, &own.file.name);
                    let message = format!("{first} and {own} store a column differently");
                    return Ok(Err(reason("scan-schema", message)));
                }
                all.pieces.extend(pieces);
                all.n_pruned += n_pruned;
            }
            Err(reason) => return Ok(Err(reason)),
        }
    }
    Ok(Ok(all))
}

type OfFile = Result<(Vec<Piece>, usize), Reason>;

async fn of_file(
    store: Arc<dyn ObjectStore>,
    file: PartitionedFile,
    scan: &Scan,
    counters: &ParquetFileMetrics,
    context: &Arc<TaskContext>,
) -> Result<OfFile, Failure> {
    let meta = file.object_meta.clone();
    if file.extensions.get::<ParquetAccessPlan>().is_some() {
        let message = format!("{}: only some rows of it are read", meta.location);
        return Ok(Err(reason("scan-selection", message)));
    }
    let cache = context
        .runtime_env()
        .cache_manager
        .get_file_metadata_cache();
    let metadata = DFParquetMetadata::new(store.as_ref(), &meta)
        .with_metadata_size_hint(file.metadata_size_hint)
        .with_file_metadata_cache(Some(cache))
        .with_page_index_policy(Some(PageIndexPolicy::Skip))
        .fetch_metadata()
        .await?;
    let leaves = match leaves(scan, &meta, &metadata)? {
        Ok(leaves) => leaves,
        Err(reason) => return Ok(Err(reason)),
    };
    let own = File {
        store,
        name: format!("{}{}", scan.config().object_store_url, meta.location).into(),
        meta,
        metadata,
        leaves: leaves.columns,
        partition_values: file.partition_values.clone(),
    };
    let groups = row_groups(scan, &file, &own, &leaves.schema, counters).await?;
    let n_pruned = groups.n_pruned;
    let file = Arc::new(own);
    let pieces = groups.kept.into_iter().map(|row_group| Piece {
        file: Arc::clone(&file),
        row_group,
    });
    Ok(Ok((pieces.collect(), n_pruned)))
}

/// Where the wanted columns are in a footer, and the columns of the file as they are read.
struct Leaves {
    columns: Vec<usize>,
    schema: SchemaRef,
}

fn leaves(
    scan: &Scan,
    meta: &ObjectMeta,
    metadata: &ParquetMetaData,
) -> Result<Result<Leaves, Reason>, Failure> {
    let of_file = metadata.file_metadata();
    let described = of_file.schema_descr();
    let schema = parquet_to_arrow_schema(described, of_file.key_value_metadata())
        .map_err(DataFusionError::from)?;
    let schema = apply_file_schema_type_coercions(scan.file_schema(), &schema).unwrap_or(schema);
    let coerced = Int96Coercer::new(described, &schema, &scan.int96_unit).coerce();
    let schema = coerced.unwrap_or(schema);
    let mut columns = Vec::with_capacity(scan.columns.len());
    for wanted in scan.columns.iter() {
        let refuse = |code: &str, what: String| {
            let message = format!("{}: column {} {what}", meta.location, wanted.name);
            Ok(Err(reason(code, message)))
        };
        let Some((leaf, field)) = parquet_column(described, &schema, &wanted.name) else {
            return refuse("scan-schema", "is not in the file, or is nested".into());
        };
        if field.data_type() != &wanted.data_type {
            let (own, table) = (field.data_type(), &wanted.data_type);
            return refuse(
                "scan-schema",
                format!("is {own} there and {table} in the table"),
            );
        }
        let column = described.column(leaf);
        if column.max_rep_level() > 0 || column.max_def_level() > 1 {
            return refuse("scan-nested", "is nested".into());
        }
        let physical = physical(column.physical_type(), column.type_length());
        if let Err(refused) = check(physical, wanted.ty) {
            return refuse("scan-type", format!("is {}", refused.message));
        }
        columns.push(leaf);
    }
    Ok(Ok(Leaves {
        columns,
        schema: Arc::new(schema),
    }))
}

/// The decoder's name of a physical type.
pub fn physical(physical: FileType, length: i32) -> Physical {
    match physical {
        FileType::BOOLEAN => Physical::Boolean,
        FileType::INT32 => Physical::Int32,
        FileType::INT64 => Physical::Int64,
        FileType::INT96 => Physical::Int96,
        FileType::FLOAT => Physical::Float,
        FileType::DOUBLE => Physical::Double,
        FileType::BYTE_ARRAY => Physical::ByteArray,
        FileType::FIXED_LEN_BYTE_ARRAY => {
            Physical::FixedLenByteArray(usize::try_from(length).unwrap_or(0))
        }
    }
}

struct Kept {
    kept: Vec<usize>,
    n_pruned: usize,
}

/// The row groups of the file's range that neither statistics nor Bloom filters rule out, as
/// DataFusion's own reader picks them.
async fn row_groups(
    scan: &Scan,
    file: &PartitionedFile,
    own: &File,
    schema: &SchemaRef,
    counters: &ParquetFileMetrics,
) -> Result<Kept, Failure> {
    let groups = own.metadata.row_groups();
    if groups.iter().any(|group| group.num_columns() == 0) {
        let none = ParquetAccessPlan::new_all(groups.len());
        return Ok(Kept {
            kept: none.row_group_indexes(),
            n_pruned: 0,
        });
    }
    let mut filter = RowGroupAccessPlanFilter::new(ParquetAccessPlan::new_all(groups.len()));
    if let Some(range) = &file.range {
        filter.prune_by_range(groups, range);
    }
    let n_in_range = filter.remaining_row_group_count();
    // Names and types must be those that the predicate speaks of.
    if let Some(predicate) = &scan.predicate
        && is_same(schema, scan.file_schema())
        && let Some(predicate) = PruningPredicateBuilder::new()
            .with_file_schema(Arc::clone(schema))
            .build(Arc::clone(predicate))
    {
        let described = own.metadata.file_metadata().schema_descr();
        filter.prune_by_statistics(schema, described, groups, &predicate, counters);
        if scan.reads_bloom_filters {
            let kept: Vec<usize> = filter.row_group_indexes().collect();
            let columns = predicate.literal_columns();
            let filters = bloom_filters(own, schema, columns, &kept).await;
            filter.prune_by_bloom_filters(&predicate, counters, &filters);
        }
    }
    let kept: Vec<usize> = filter.row_group_indexes().collect();
    Ok(Kept {
        n_pruned: n_in_range - kept.len(),
        kept,
    })
}

/// Bloom filters that are read at a time.
const BLOOM_FILTERS_AT_ONCE: usize = 16;

/// One that is larger costs more than it may save.
const BLOOM_FILTER_BYTES_MAX: u64 = 8 << 20;

/// For each row group of the file the Bloom filters of some columns, empty for those that are
/// not in `kept`. One that cannot be read rules nothing out.
async fn bloom_filters(
    file: &File,
    schema: &SchemaRef,
    columns: impl IntoIterator<Item = String>,
    kept: &[usize],
) -> Vec<BloomFilterStatistics> {
    let described = file.metadata.file_metadata().schema_descr();
    let groups = file.metadata.row_groups();
    let mut all = vec![BloomFilterStatistics::new(); groups.len()];
    let mut wanted = Vec::new();
    for name in columns {
        let Some((leaf, _)) = parquet_column(described, schema, &name) else {
            continue;
        };
        for group in kept {
            let meta = groups[*group].column(leaf);
            let start = meta.bloom_filter_offset().map(u64::try_from);
            let n = meta.bloom_filter_length().map(u64::try_from);
            let (Some(Ok(start)), Some(Ok(n))) = (start, n) else {
                continue;
            };
            let end = start.checked_add(n).filter(|end| *end <= file.meta.size);
            if let Some(end) = end.filter(|_| n <= BLOOM_FILTER_BYTES_MAX) {
                wanted.push((*group, leaf, name.clone(), start..end));
            }
        }
    }
    let read = wanted
        .into_iter()
        .map(
            |(group, leaf, name, range)| async move { (group, leaf, name, get(file, range).await) },
        );
    let mut read = futures::stream::iter(read).buffer_unordered(BLOOM_FILTERS_AT_ONCE);
    while let Some((group, leaf, name, bytes)) = read.next().await {
        let read = match bytes {
            Ok(bytes) => Sbbf::from_bytes(&bytes).map_err(|e| e.to_string()),
            Err(failure) => Err(format!("{failure:?}")),
        };
        match read {
            Ok(filter) => {
                let column = described.column(leaf);
                let (ty, length) = (column.physical_type(), column.type_length());
                all[group].insert(name, filter, ty, length);
            }
            Err(error) => {
                tracing::warn!(file = %file.name, column = name, group, error, "a Bloom filter cannot be read");
            }
        }
    }
    all
}

/// Whether two schemas have the same names and types.
fn is_same(one: &Schema, other: &Schema) -> bool {
    let of = |schema: &Schema| -> Vec<(String, DataType)> {
        let fields = schema.fields().iter();
        fields
            .map(|f| (f.name().clone(), f.data_type().clone()))
            .collect()
    };
    of(one) == of(other)
}
