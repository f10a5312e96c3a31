//! Where results go, and how a write becomes visible: as a whole or not at all.
//!
//! ```text
//! plan --batches--> dispatcher --+--> writer --> part-00000-<run>.parquet --+
//!                                +--> writer --> part-00001-<run>.parquet --+--> publish
//! ```
//!
//! A write that may be repeated has a name, [`crate::settings::WriteId`], and its files bear it.
//! What an earlier attempt has published is found by that name and left as it is; what it
//! has published in part is completed or removed first.
//!
//! A second writer starts only when the first cannot keep up, so a small result is
//! one file. An ordered result has one writer, and its files' names are in order.

pub mod encode;
pub mod local;
pub mod remote;

use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use datafusion::arrow::array::{Array, AsArray, RecordBatch, UInt32Array};
use datafusion::arrow::compute::{cast, take_record_batch};
use datafusion::arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::execution::SendableRecordBatchStream;
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryPool, MemoryReservation};
use datafusion::object_store::ObjectStore;
use futures::StreamExt;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::error::{Error, Result};
use crate::report::{OutputFile, OutputReport};
use crate::settings::{Output, OutputFormat, WriteMode};
use crate::sources::Location;
use crate::words::clean;
use encode::Encoder;

/// The name of the directory of rows whose partition column is NULL.
const NULL_PARTITION: &str = "__HIVE_DEFAULT_PARTITION__";
/// Another writer starts only after this many bytes for each that is running.
const BYTES_PER_WRITER_MIN: u64 = 32 << 20;
/// Files that one writer keeps open.
const OPEN_FILES_MAX: usize = 64;

enum Place {
    Local(local::Staging),
    Remote(remote::Staging),
}

/// An output that is being written. Dropping it leaves nothing visible.
pub struct Sink {
    place: Place,
    output: Output,
    /// In the names of its files.
    file_id: String,
}

/// How an output stands before a stage runs.
#[derive(Debug)]
pub enum Standing {
    /// It is to be written.
    Open,
    /// An earlier attempt of this write has published it.
    Published(OutputReport),
}

/// Whether an output may be written at all; called before anything runs.
pub async fn check(
    output: &Output,
    location: &Location,
    store: &dyn ObjectStore,
) -> Result<Standing> {
    let problem = |problem: &str| Error::Output {
        location: output.location.clone(),
        problem: problem.to_owned(),
    };
    if location.pattern.is_some() {
        return Err(problem("it has a pattern; an output is one directory"));
    }
    if location.root.scheme().starts_with("http") {
        return Err(problem(
            "it cannot be written over http; use a bucket or a path",
        ));
    }
    if location.prefix.as_ref().is_empty() {
        return Err(problem(
            "it is a whole bucket or file system; name a directory in it",
        ));
    }
    if output.target_file_bytes == 0 {
        return Err(problem("it has a target file size of 0"));
    }
    if let Some(files) = published(output, location, store).await? {
        return Ok(Standing::Published(OutputReport {
            location: output.location.clone(),
            rows: 0,
            bytes: files.iter().map(|file| file.bytes).sum(),
            files,
            recovered: true,
        }));
    }
    match output.mode {
        WriteMode::Error if location.is_local() => {
            local::check_absent(&output.location, &location.local_path())?;
        }
        WriteMode::Error => remote::check_absent(store, location).await?,
        WriteMode::Overwrite | WriteMode::Append => {}
    }
    Ok(Standing::Open)
}

/// The files that an earlier attempt of this write has published; none when it has not.
async fn published(
    output: &Output,
    location: &Location,
    store: &dyn ObjectStore,
) -> Result<Option<Vec<OutputFile>>> {
    let Some(write) = output.write_id.as_ref().filter(|write| write.is_repeated) else {
        return Ok(None);
    };
    if location.is_local() {
        local::published(&output.location, &location.local_path(), &write.id)
    } else {
        remote::published(store, location, output.mode, &write.id).await
    }
}

/// Whether a file's name says that a write made it.
fn is_of_write(path: &str, id: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path);
    name.starts_with("part-") && name.contains(&format!("-{id}."))
}

/// Whether a result's columns can be written as asked; called before anything runs.
pub fn check_columns(output: &Output, schema: &Schema) -> Result<()> {
    let problem = |problem: String| Error::Output {
        location: output.location.clone(),
        problem,
    };
    for name in &output.partition_by {
        if schema.field_with_name(name).is_err() {
            let known = schema.fields().iter().map(|field| field.name().as_str());
            let hint =
                crate::error::nearest(name, known).map(|near| format!("; did you mean `{near}`?"));
            return Err(problem(format!(
                "the result has no column `{name}` to partition by{}",
                hint.unwrap_or_default()
            )));
        }
    }
    if !output.partition_by.is_empty() && output.partition_by.len() >= schema.fields().len() {
        return Err(problem(
            "every column is a partition column, so the files would be empty".into(),
        ));
    }
    let mut names = std::collections::HashSet::new();
    for field in schema.fields() {
        if !names.insert(field.name()) {
            return Err(problem(format!(
                "two columns are called `{}`; rename one with AS",
                field.name()
            )));
        }
        if output.format == OutputFormat::Csv && field.data_type().is_nested() {
            return Err(problem(format!(
                "CSV cannot hold the nested column `{}`; write Parquet or JSON",
                field.name()
            )));
        }
    }
    Ok(())
}

impl Sink {
    /// Prepares the hidden place that the files are written to.
    pub fn create(
        output: &Output,
        location: Location,
        store: Arc<dyn ObjectStore>,
    ) -> Result<Sink> {
        // Two attempts of one write never share a hidden place.
        let (run_id, file_id) = match &output.write_id {
            Some(write) => (format!("{}{}", write.id, run_id()), write.id.clone()),
            None => {
                let id = run_id();
                (id.clone(), id)
            }
        };
        let place = if location.is_local() {
            Place::Local(local::Staging::create(
                &output.location,
                &location.local_path(),
                &run_id,
            )?)
        } else {
            Place::Remote(remote::Staging::new(store, location))
        };
        Ok(Sink {
            place,
            output: output.clone(),
            file_id,
        })
    }

    /// Writes every row of a stream; nothing is visible yet.
    pub async fn write(
        self: &Arc<Self>,
        mut batches: SendableRecordBatchStream,
        is_ordered: bool,
        n_writers_max: usize,
        pool: &Arc<dyn MemoryPool>,
        on_rows: &(dyn Fn(u64) + Send + Sync),
    ) -> Result<OutputReport, WriteError> {
        let split = Arc::new(Split::new(&self.output.partition_by, &batches.schema()));
        let numbers = Arc::new(AtomicUsize::new(0));
        let mut writers = Writers {
            sink: Arc::clone(self),
            schema: Arc::clone(&split.data_schema),
            numbers,
            pool: Arc::clone(pool),
            senders: Vec::new(),
            tasks: JoinSet::new(),
            n_max: if is_ordered { 1 } else { n_writers_max.max(1) },
            n_bytes: 0,
        };
        while let Some(batch) = batches.next().await {
            let batch = batch.map_err(WriteError::Plan)?;
            on_rows(batch.num_rows() as u64);
            if batch.num_rows() == 0 {
                continue;
            }
            for (directory, rows) in split.split(&batch)? {
                if !writers.send(directory, rows).await {
                    // A writer is gone; its error is the one to report.
                    let error = writers.finish().await.err();
                    return Err(error
                        .unwrap_or(Error::Internal {
                            message: "a writer stopped early".into(),
                        })
                        .into());
                }
            }
        }
        let mut files = writers.finish().await?;
        if files.is_empty() {
            files.push(self.write_empty(&split.data_schema).await?);
        }
        files.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(OutputReport {
            location: self.output.location.clone(),
            rows: files.iter().map(|file| file.rows).sum(),
            bytes: files.iter().map(|file| file.bytes).sum(),
            files,
            recovered: false,
        })
    }

    async fn write_empty(&self, schema: &SchemaRef) -> Result<OutputFile> {
        let mut file = OpenFile::create(self, "", 0, schema)?;
        file.n_rows = 0;
        file.close(self).await
    }

    /// Makes the output visible.
    pub async fn publish(self) -> Result<()> {
        let mode = self.output.mode;
        match self.place {
            Place::Local(staging) => staging.publish(mode),
            Place::Remote(staging) => staging.publish(mode).await,
        }
    }

    /// Gives up. Local files go when the sink is dropped.
    pub async fn abort(self) {
        if let Place::Remote(staging) = &self.place {
            staging.abort().await;
        }
    }

    fn extension(&self) -> &'static str {
        match self.output.format {
            OutputFormat::Parquet => "parquet",
            OutputFormat::Csv => "csv",
            OutputFormat::Json => "json",
        }
    }
}

/// Why a write failed: the plan that makes the rows, or the writing.
#[derive(Debug)]
pub enum WriteError {
    /// The plan failed.
    Plan(datafusion::common::DataFusionError),
    /// Writing failed.
    Sink(Error),
}

impl From<Error> for WriteError {
    fn from(error: Error) -> Self {
        WriteError::Sink(error)
    }
}

/// A name that no other run uses.
fn run_id() -> String {
    static COUNTER: AtomicU64 = AtomicU64::new(0);
    let now = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |elapsed| elapsed.as_nanos() as u64);
    let mut hasher = std::hash::RandomState::new().build_hasher();
    hasher.write_u64(now);
    hasher.write_u32(std::process::id());
    hasher.write_u64(COUNTER.fetch_add(1, Ordering::Relaxed));
    format!("{:016x}", hasher.finish())
}

/// Rows to directories.
struct Split {
    partition_by: Vec<usize>,
    names: Vec<String>,
    data: Vec<usize>,
    data_schema: SchemaRef,
}

impl Split {
    fn new(partition_by: &[String], schema: &SchemaRef) -> Self {
        let is_partition = |name: &str| partition_by.iter().any(|column| column == name);
        let data: Vec<usize> = (0..schema.fields().len())
            .filter(|index| !is_partition(schema.field(*index).name()))
            .collect();
        let fields: Vec<Field> = data
            .iter()
            .map(|index| schema.field(*index).clone())
            .collect();
        Self {
            partition_by: partition_by
                .iter()
                .filter_map(|name| schema.index_of(name).ok())
                .collect(),
            names: partition_by.to_vec(),
            data,
            data_schema: Arc::new(Schema::new(fields)),
        }
    }

    fn split(&self, batch: &RecordBatch) -> Result<Vec<(String, RecordBatch)>> {
        let failed = |error: &dyn std::fmt::Display| Error::Data {
            message: clean(&error.to_string()),
        };
        let data = batch.project(&self.data).map_err(|error| failed(&error))?;
        // The plan may know a column as never NULL where the schema does not say so.
        let data = RecordBatch::try_new(Arc::clone(&self.data_schema), data.columns().to_vec())
            .map_err(|error| failed(&error))?;
        if self.partition_by.is_empty() {
            return Ok(vec![(String::new(), data)]);
        }
        let values = self
            .partition_by
            .iter()
            .map(|index| {
                cast(batch.column(*index), &DataType::Utf8).map_err(|error| failed(&error))
            })
            .collect::<Result<Vec<_>>>()?;
        let mut rows_by_directory: HashMap<String, Vec<u32>> = HashMap::new();
        for row in 0..batch.num_rows() {
            let directory: Vec<String> = self
                .names
                .iter()
                .zip(&values)
                .map(|(name, values)| {
                    let values = values.as_string::<i32>();
                    let value = if values.is_null(row) {
                        NULL_PARTITION.to_owned()
                    } else {
                        escape(values.value(row))
                    };
                    format!("{}={value}", escape(name))
                })
                .collect();
            rows_by_directory
                .entry(directory.join("/"))
                .or_default()
                .push(row as u32);
        }
        rows_by_directory
            .into_iter()
            .map(|(directory, rows)| {
                let rows = take_record_batch(&data, &UInt32Array::from(rows))
                    .map_err(|error| failed(&error))?;
                Ok((directory, rows))
            })
            .collect()
    }
}

/// A partition value as part of a path, the way Hive escapes it.
fn escape(value: &str) -> String {
    if value.is_empty() {
        return NULL_PARTITION.to_owned();
    }
    let mut escaped = String::with_capacity(value.len());
    for c in value.chars() {
        if c.is_alphanumeric() || "-_. +@".contains(c) {
            escaped.push(c);
        } else {
            for byte in c.to_string().bytes() {
                escaped.push_str(&format!("%{byte:02X}"));
            }
        }
    }
    escaped
}

struct Writers {
    sink: Arc<Sink>,
    schema: SchemaRef,
    numbers: Arc<AtomicUsize>,
    pool: Arc<dyn MemoryPool>,
    senders: Vec<mpsc::Sender<(String, RecordBatch)>>,
    tasks: JoinSet<Result<Vec<OutputFile>>>,
    n_max: usize,
    n_bytes: u64,
}

impl Writers {
    /// Hands rows to a writer; false if it is gone.
    async fn send(&mut self, directory: String, rows: RecordBatch) -> bool {
        self.n_bytes += rows.get_array_memory_size() as u64;
        if !directory.is_empty() {
            // One directory, one writer: no more files than needed.
            let n_wanted = self
                .n_max
                .min(1 + (self.n_bytes / BYTES_PER_WRITER_MIN) as usize);
            while self.senders.len() < self.n_max.min(n_wanted.max(1)) {
                self.spawn();
            }
            let mut hasher = std::hash::DefaultHasher::new();
            hasher.write(directory.as_bytes());
            let writer = hasher.finish() as usize % self.senders.len();
            return self.senders[writer].send((directory, rows)).await.is_ok();
        }
        let mut item = (directory, rows);
        for sender in &self.senders {
            match sender.try_send(item) {
                Ok(()) => return true,
                Err(mpsc::error::TrySendError::Full(back)) => item = back,
                Err(mpsc::error::TrySendError::Closed(_)) => return false,
            }
        }
        let n_running = self.senders.len();
        if n_running == 0
            || (n_running < self.n_max && self.n_bytes > n_running as u64 * BYTES_PER_WRITER_MIN)
        {
            self.spawn();
        }
        match self.senders.last() {
            Some(sender) => sender.send(item).await.is_ok(),
            None => false,
        }
    }

    fn spawn(&mut self) {
        let (sender, receiver) = mpsc::channel(4);
        let writer = Writer {
            sink: Arc::clone(&self.sink),
            schema: Arc::clone(&self.schema),
            numbers: Arc::clone(&self.numbers),
            memory: MemoryConsumer::new("output").register(&self.pool),
            open: HashMap::new(),
            files: Vec::new(),
        };
        self.tasks.spawn(writer.run(receiver));
        self.senders.push(sender);
    }

    async fn finish(mut self) -> Result<Vec<OutputFile>> {
        self.senders.clear();
        let mut files = Vec::new();
        while let Some(outcome) = self.tasks.join_next().await {
            match outcome {
                Ok(written) => files.extend(written?),
                Err(error) if error.is_panic() => {
                    return Err(Error::Internal {
                        message: "a writer panicked".into(),
                    });
                }
                Err(_) => return Err(Error::Cancelled),
            }
        }
        Ok(files)
    }
}

struct Writer {
    sink: Arc<Sink>,
    schema: SchemaRef,
    numbers: Arc<AtomicUsize>,
    memory: MemoryReservation,
    open: HashMap<String, OpenFile>,
    files: Vec<OutputFile>,
}

impl Writer {
    async fn run(
        mut self,
        mut rows: mpsc::Receiver<(String, RecordBatch)>,
    ) -> Result<Vec<OutputFile>> {
        while let Some((directory, rows)) = rows.recv().await {
            if !self.open.contains_key(&directory) {
                if self.open.len() >= OPEN_FILES_MAX {
                    self.close_largest().await?;
                }
                let number = self.numbers.fetch_add(1, Ordering::Relaxed);
                let file = OpenFile::create(&self.sink, &directory, number, &self.schema)?;
                self.open.insert(directory.clone(), file);
            }
            let Some(file) = self.open.get_mut(&directory) else {
                continue;
            };
            file.write(&self.sink, &rows).await?;
            if file.encoder.n_bytes() >= self.sink.output.target_file_bytes
                && let Some(file) = self.open.remove(&directory)
            {
                self.files.push(file.close(&self.sink).await?);
            }
            self.account().await?;
        }
        for (_, file) in std::mem::take(&mut self.open) {
            self.files.push(file.close(&self.sink).await?);
        }
        Ok(self.files)
    }

    /// Charges what the encoders hold; when the budget is short, row groups end early.
    async fn account(&mut self) -> Result<()> {
        let held = self
            .open
            .values()
            .map(|file| file.encoder.memory_bytes())
            .sum();
        if self.memory.try_resize(held).is_err() {
            for file in self.open.values_mut() {
                file.encoder.flush()?;
                file.drain(&self.sink).await?;
            }
            let held = self
                .open
                .values()
                .map(|file| file.encoder.memory_bytes())
                .sum();
            self.memory.resize(held);
        }
        Ok(())
    }

    async fn close_largest(&mut self) -> Result<()> {
        let largest = self
            .open
            .iter()
            .max_by_key(|(_, file)| file.encoder.n_bytes())
            .map(|(directory, _)| directory.clone());
        if let Some(file) = largest.and_then(|directory| self.open.remove(&directory)) {
            self.files.push(file.close(&self.sink).await?);
        }
        Ok(())
    }
}

enum Target {
    Local(local::LocalFile),
    Remote(remote::RemoteFile),
}

struct OpenFile {
    relative: String,
    encoder: Encoder,
    target: Target,
    n_rows: u64,
    n_bytes: u64,
}

impl OpenFile {
    fn create(sink: &Sink, directory: &str, number: usize, schema: &SchemaRef) -> Result<Self> {
        let name = format!("part-{number:05}-{}.{}", sink.file_id, sink.extension());
        let relative = if directory.is_empty() {
            name
        } else {
            format!("{directory}/{name}")
        };
        let target = match &sink.place {
            Place::Local(staging) => Target::Local(staging.create_file(&relative)?),
            Place::Remote(staging) => Target::Remote(staging.create_file(&relative)?),
        };
        let encoder = Encoder::new(sink.output.format, sink.output.compression, schema)?;
        Ok(Self {
            relative,
            encoder,
            target,
            n_rows: 0,
            n_bytes: 0,
        })
    }

    async fn write(&mut self, sink: &Sink, rows: &RecordBatch) -> Result<()> {
        self.encoder.write(rows)?;
        self.n_rows += rows.num_rows() as u64;
        self.drain(sink).await
    }

    async fn drain(&mut self, sink: &Sink) -> Result<()> {
        match self.encoder.take_full() {
            Some(bytes) => self.put(sink, &bytes).await,
            None => Ok(()),
        }
    }

    async fn put(&mut self, sink: &Sink, bytes: &[u8]) -> Result<()> {
        self.n_bytes += bytes.len() as u64;
        match (&mut self.target, &sink.place) {
            (Target::Local(file), _) => file.write(bytes),
            (Target::Remote(file), Place::Remote(staging)) => file.write(staging, bytes).await,
            (Target::Remote(_), Place::Local(_)) => Err(Error::Internal {
                message: "a file without its place".into(),
            }),
        }
    }

    async fn close(self, sink: &Sink) -> Result<OutputFile> {
        let OpenFile {
            relative,
            encoder,
            target,
            n_rows,
            mut n_bytes,
        } = self;
        let last = encoder.finish()?;
        n_bytes += last.len() as u64;
        match (target, &sink.place) {
            (Target::Local(mut file), _) => {
                file.write(&last)?;
                file.finish()?;
            }
            (Target::Remote(mut file), Place::Remote(staging)) => {
                file.write(staging, &last).await?;
                file.finish(staging).await?;
            }
            (Target::Remote(_), Place::Local(_)) => {
                return Err(Error::Internal {
                    message: "a file without its place".into(),
                });
            }
        }
        Ok(OutputFile {
            path: relative,
            rows: n_rows,
            bytes: n_bytes,
        })
    }
}
