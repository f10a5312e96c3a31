//! The ways in which the rows of a table reach a query.
//!
//! An answer must not depend on how rows were split into record batches, partitions,
//! files, row groups and pages. A chunk of a pipeline is cut at partitions, so a split
//! over partitions is what a kernel sees; a split within one is what the gathering
//! before it sees.

use std::path::Path;
use std::sync::Arc;

use arrow::array::RecordBatch;
use datafusion::datasource::MemTable;
use engine::session::Session;
use engine::settings::{Format, Table};
use parquet::arrow::ArrowWriter;
use parquet::file::properties::{EnabledStatistics, WriterProperties};

/// One way to give a session the rows of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// One record batch.
    Whole,
    /// Two partitions with a record batch each.
    Halves,
    /// Seven record batches and an empty one, over three partitions.
    Sevenths,
    /// Two Parquet files of small row groups and tiny pages.
    Parquet,
}

/// Every layout.
pub const LAYOUTS: [Layout; 4] = [
    Layout::Whole,
    Layout::Halves,
    Layout::Sevenths,
    Layout::Parquet,
];

impl Layout {
    /// Makes `rows` readable as a table of this name. `folder` is where files may go.
    pub async fn register(
        self,
        session: &Session,
        name: &str,
        rows: &RecordBatch,
        folder: &Path,
    ) -> Result<(), String> {
        if self == Layout::Parquet {
            let folder = folder.join(name);
            std::fs::create_dir_all(&folder).map_err(|error| error.to_string())?;
            for (number, part) in split(rows, 2).iter().enumerate() {
                write(&folder.join(format!("{number}.parquet")), part)?;
            }
            let location = format!("{}/", folder.display());
            let table = Table::new(name, location, Format::Parquet);
            let registered = session.register_table(&table).await;
            return registered.map_err(|error| error.to_string());
        }
        let partitions = match self {
            Layout::Whole | Layout::Parquet => vec![vec![rows.clone()]],
            Layout::Halves => split(rows, 2).into_iter().map(|part| vec![part]).collect(),
            Layout::Sevenths => {
                let mut partitions = vec![Vec::new(), vec![rows.slice(0, 0)], Vec::new()];
                for (number, part) in split(rows, 7).into_iter().enumerate() {
                    partitions[number % 3].push(part);
                }
                partitions
            }
        };
        let source = MemTable::try_new(rows.schema(), partitions);
        let source = source.map_err(|error| error.to_string())?;
        session
            .context()
            .register_table(name, Arc::new(source))
            .map_err(|error| error.to_string())?;
        Ok(())
    }
}

/// The rows in `n` slices, which are empty where there are fewer rows.
fn split(rows: &RecordBatch, n: usize) -> Vec<RecordBatch> {
    let n_rows = rows.num_rows();
    let cut = |part: usize| part * n_rows / n;
    (0..n)
        .map(|part| rows.slice(cut(part), cut(part + 1) - cut(part)))
        .collect()
}

fn write(path: &Path, rows: &RecordBatch) -> Result<(), String> {
    let group = (rows.num_rows() / 3).max(3);
    let properties = WriterProperties::builder()
        .set_max_row_group_row_count(Some(group))
        .set_data_page_row_count_limit((group / 8).max(2))
        .set_write_batch_size((group / 8).max(2))
        .set_statistics_enabled(EnabledStatistics::Page)
        .build();
    let file = std::fs::File::create(path).map_err(|error| error.to_string())?;
    let writer = ArrowWriter::try_new(file, rows.schema(), Some(properties));
    let mut writer = writer.map_err(|error| error.to_string())?;
    writer.write(rows).map_err(|error| error.to_string())?;
    writer.close().map_err(|error| error.to_string())?;
    Ok(())
}
