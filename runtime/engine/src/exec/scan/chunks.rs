//! A scan as one relation on the device, or chunk by chunk.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use arrow::array::{Array, ArrayRef, AsArray, Int32Array, StringArray};
use arrow::datatypes::Int32Type;
use datafusion::execution::TaskContext;
use futures::{StreamExt, TryStreamExt};
use kernels::columns::{DeviceChunk, DeviceColumn, StagedColumn, stage};
use kernels::gpu::Stream;
use kernels::ir::Range;
use kernels::launch::{Loader, RunCounts, StagedBatch};
use kernels::parquet::Decoder;
use tokio::sync::Semaphore;

use super::columns::ColumnOfPages;
use super::footers::{Piece, Pieces};
use super::load::{TOGETHER_BYTES, host_gate};
use super::pages::Target;
use super::plan::{Scan, location_of};
use crate::exec::Device;
use crate::exec::codes::{Codes, Texts, Wanted, encode, in_order, internal};
use crate::exec::dictionary::{Dictionary, Encoder};
use crate::exec::failure::{Failure, is_out_of_memory};
use crate::exec::held::Held;
use crate::exec::relation::{Relation, blocking, encoded};
use crate::report::{CodecReport, ScanReport};

/// Row groups are gathered to chunks of at most so many rows and bytes: enough to fill a
/// device, little enough that reading, decoding and computing overlap.
const CHUNK_ROWS: usize = 8 << 20;
const CHUNK_BYTES: usize = 256 << 20;

/// Groups of columns of a relation that are read at a time.
const GROUPS_AT_ONCE: usize = 3;

/// Chunks that are read or computed at a time.
const CHUNKS_AT_ONCE: usize = 3;

/// What takes the chunks of a stream. It runs on blocking threads, several at a time.
pub trait ChunkSink: Send + Sync + 'static {
    /// Adds a chunk.
    fn add(&self, chunk: &DeviceChunk) -> Result<(), Failure>;
}

/// What one scan shares.
#[derive(Clone)]
pub(super) struct Job {
    pub(super) scan: Scan,
    pub(super) codes: Codes,
    known: Arc<HashMap<usize, Range>>,
    pub(super) device: Device,
    pub(super) context: Arc<TaskContext>,
    pub(super) account: Arc<Account>,
    /// Permits for host memory, and how many there are.
    pub(super) host: (Arc<Semaphore>, usize),
}

/// What was done so far.
#[derive(Default)]
pub(super) struct Account {
    pub(super) fetched_bytes: AtomicU64,
    pub(super) decompressed_bytes: AtomicU64,
    pub(super) device_bytes: AtomicU64,
    pub(super) copied_bytes: AtomicU64,
    texts_on_host: AtomicU64,
    pub(super) fetch_us: AtomicU64,
    pub(super) decompress_us: AtomicU64,
    counts: Mutex<RunCounts>,
    unpacked: Mutex<Unpacked>,
}

/// What was decompressed.
#[derive(Default)]
struct Unpacked {
    codecs: Vec<CodecReport>,
    device_ms: f64,
}

impl Account {
    /// Notes how a column chunk is decompressed.
    pub(super) fn add_codec(&self, codec: CodecReport) {
        let mut unpacked = self.unpacked.lock().unwrap_or_else(PoisonError::into_inner);
        codec.add_to(&mut unpacked.codecs);
    }

    /// Notes what kernels did to decompress.
    pub(super) fn add_unpacked(&self, counts: RunCounts, device_ms: f64) {
        self.add_counts(counts);
        let mut unpacked = self.unpacked.lock().unwrap_or_else(PoisonError::into_inner);
        unpacked.device_ms += device_ms;
    }

    fn add_counts(&self, counts: RunCounts) {
        let mut all = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        *all = all.and(&counts);
    }
}

pub(super) fn add(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Ordering::Relaxed);
}

pub(super) fn us_since(started: Instant) -> u64 {
    started.elapsed().as_micros() as u64
}

/// A scan whose footers were read.
#[derive(Debug)]
pub struct Opened {
    /// The scan.
    pub scan: Scan,
    /// Its row groups.
    pub pieces: Pieces,
}

impl Opened {
    /// Reads all chunks and gives them to the sink, in any order. `dictionaries` numbers the
    /// texts of each number of codes. Gives what was done.
    pub async fn stream(
        self,
        codes: &Codes,
        known: Arc<HashMap<usize, Range>>,
        dictionaries: &Arc<BTreeMap<usize, Arc<Dictionary>>>,
        device: &Device,
        context: &Arc<TaskContext>,
        sink: Arc<dyn ChunkSink>,
    ) -> Result<RunCounts, Failure> {
        let job = Job::new(self.scan, codes, known, device, context);
        let started = Instant::now();
        // After a failure nothing more is begun, and what is under way ends.
        let stop = Arc::new(AtomicBool::new(false));
        let chunks = gathered(&self.pieces.pieces).into_iter().map(|pieces| {
            let (job, sink) = (job.clone(), Arc::clone(&sink));
            let (dictionaries, stop) = (Arc::clone(dictionaries), Arc::clone(&stop));
            async move {
                if stop.load(Ordering::Relaxed) {
                    return Ok(());
                }
                let done = job.add_chunk(pieces, &dictionaries, &sink).await;
                stop.fetch_or(done.is_err(), Ordering::Relaxed);
                done
            }
        });
        // One thread means one order of additions.
        let n_at_once = match context.session_config().target_partitions() {
            1 => 1,
            _ => CHUNKS_AT_ONCE,
        };
        let mut chunks = futures::stream::iter(chunks).buffer_unordered(n_at_once);
        let mut first = Ok(());
        while let Some(done) = chunks.next().await {
            first = first.and(done);
        }
        first?;
        Ok(job.finish(started, &self.pieces))
    }

    /// Reads all rows to one relation. There must be some.
    pub async fn relation(
        self,
        codes: &Codes,
        known: Arc<HashMap<usize, Range>>,
        device: &Device,
        context: &Arc<TaskContext>,
    ) -> Result<Relation, Failure> {
        let job = Job::new(self.scan, codes, known, device, context);
        let started = Instant::now();
        let pieces = &self.pieces.pieces;
        let mut columns = HashMap::new();
        let mut texts = Texts::new();
        // While one group is decoded the next is on its way, where there is room for many.
        let groups = job.together(pieces);
        let n_at_once = match device.gpu.meter().limit() / TOGETHER_BYTES {
            0..16 => 1,
            _ => GROUPS_AT_ONCE,
        };
        let read = groups.into_iter().map(|group| job.columns(pieces, group));
        let mut read = futures::stream::iter(read).buffered(n_at_once);
        while let Some((own, own_texts)) = read.try_next().await? {
            columns.extend(own);
            texts.extend(own_texts);
        }
        drop(read);
        if !job.scan.constants.is_empty() {
            let (job, pieces) = (job.clone(), pieces.clone());
            let own = blocking(move || job.constants_of_relation(&pieces)).await?;
            columns.extend(own.0);
            texts.extend(own.1);
        }
        let counts = job.finish(started, &self.pieces);
        let stream = Stream::new(&job.device.gpu)?;
        let n_rows = pieces.iter().map(Piece::n_rows).sum();
        Ok(Relation {
            rows: Held::Rows(Arc::new(DeviceChunk::of_columns(&stream, columns, n_rows)?)),
            texts,
            staging_ms: 0.0,
            counts,
        })
    }
}

/// Columns of a relation on the device, and the texts of codes.
pub(super) type Columns = (HashMap<usize, Arc<DeviceColumn>>, Texts);

impl Job {
    fn new(
        scan: Scan,
        codes: &Codes,
        known: Arc<HashMap<usize, Range>>,
        device: &Device,
        context: &Arc<TaskContext>,
    ) -> Job {
        Job {
            scan,
            codes: codes.clone(),
            known,
            device: device.clone(),
            context: Arc::clone(context),
            account: Arc::default(),
            host: host_gate(context),
        }
    }

    /// Writes the account down.
    fn finish(&self, started: Instant, pieces: &Pieces) -> RunCounts {
        let n_rows: usize = pieces.pieces.iter().map(Piece::n_rows).sum();
        let account = &self.account;
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let counts = *account
            .counts
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let unpacked = std::mem::take(
            &mut *account
                .unpacked
                .lock()
                .unwrap_or_else(PoisonError::into_inner),
        );
        self.scan.count_rows(n_rows);
        let fetched = read(&account.fetched_bytes);
        self.scan.counters().bytes_scanned.add(fetched as usize);
        self.device.scans.add(ScanReport {
            location: location_of(self.scan.config()),
            on_device: true,
            reason: None,
            files: pieces.n_files as u64,
            row_groups: pieces.pieces.len() as u64,
            row_groups_pruned: pieces.n_pruned as u64,
            rows: n_rows as u64,
            bytes_fetched: fetched,
            bytes_decompressed_on_cpu: read(&account.decompressed_bytes),
            bytes_of_pages: read(&account.device_bytes),
            codecs: unpacked.codecs,
            texts_numbered_on_cpu: read(&account.texts_on_host),
            elapsed_ms: started.elapsed().as_secs_f64() * 1e3,
            fetch_ms: read(&account.fetch_us) as f64 / 1e3,
            decompress_ms: read(&account.decompress_us) as f64 / 1e3,
            unpack_ms: unpacked.device_ms,
            decode_ms: counts.device_ms - unpacked.device_ms,
        });
        RunCounts {
            bytes_to_device: counts.bytes_to_device + read(&account.copied_bytes),
            ..counts
        }
    }

    /// Reads one chunk and adds it; in halves when device memory is short.
    async fn add_chunk(
        &self,
        pieces: Vec<Piece>,
        dictionaries: &Arc<BTreeMap<usize, Arc<Dictionary>>>,
        sink: &Arc<dyn ChunkSink>,
    ) -> Result<(), Failure> {
        let mut waiting = vec![pieces];
        while let Some(pieces) = waiting.pop() {
            match self.add_once(&pieces, dictionaries, sink).await {
                Err(failure) if is_out_of_memory(&failure) && pieces.len() > 1 => {
                    let (first, second) = pieces.split_at(pieces.len() / 2);
                    waiting.push(second.to_vec());
                    waiting.push(first.to_vec());
                }
                other => other?,
            }
        }
        Ok(())
    }

    async fn add_once(
        &self,
        pieces: &[Piece],
        dictionaries: &Arc<BTreeMap<usize, Arc<Dictionary>>>,
        sink: &Arc<dyn ChunkSink>,
    ) -> Result<(), Failure> {
        let all: Vec<usize> = (0..self.scan.columns.len()).collect();
        let (loaded, target) = self.load(pieces, all).await?;
        let permit = self.device.admission.acquire().await;
        let (job, sink) = (self.clone(), Arc::clone(sink));
        let dictionaries = Arc::clone(dictionaries);
        let n_rows = pieces.iter().map(Piece::n_rows).sum();
        let pieces = pieces.to_vec();
        blocking(move || {
            let _permit = permit;
            let mut decoder = job.decoder(&target)?;
            let (mut columns, mut at_home) = (HashMap::new(), HashMap::new());
            for (wanted, pages) in loaded {
                match wanted.wanted {
                    Wanted::Own(index) => {
                        let known = job.known.get(&index).copied();
                        columns.insert(wanted.number, pages.decode(&mut decoder, known)?);
                    }
                    Wanted::Codes(of) => {
                        let text = job.codes.text(of)?;
                        let dictionary = dictionaries.get(&of);
                        let dictionary = dictionary
                            .ok_or_else(|| internal(format!("codes {of} have no texts")))?;
                        let mut encoder = Encoder::new(dictionary);
                        match pages.decode_codes(&mut decoder, &text, &mut encoder)? {
                            Some(column) => {
                                columns.insert(wanted.number, column);
                            }
                            None => {
                                let texts = job.texts(&pages, &mut decoder)?;
                                let codes = encode(&mut encoder, &text, &texts)?;
                                at_home.insert(wanted.number, staged(codes.as_ref())?);
                            }
                        }
                    }
                }
            }
            job.constants_of_chunk(&pieces, &dictionaries, &mut at_home)?;
            job.upload(at_home, n_rows, &mut columns)?;
            job.account.add_counts(decoder.counts());
            let chunk = DeviceChunk::of_columns(decoder.stream(), columns, n_rows)?;
            sink.add(&chunk)
        })
        .await
    }

    /// Some columns of a relation, of all rows.
    async fn columns(&self, pieces: &[Piece], group: Vec<usize>) -> Result<Columns, Failure> {
        let (loaded, target) = self.load(pieces, group).await?;
        let job = self.clone();
        let n_rows = pieces.iter().map(Piece::n_rows).sum();
        blocking(move || {
            let mut decoder = job.decoder(&target)?;
            let (mut columns, mut at_home) = (HashMap::new(), HashMap::new());
            let mut texts = Texts::new();
            for (wanted, pages) in loaded {
                match wanted.wanted {
                    Wanted::Own(index) => {
                        let known = job.known.get(&index).copied();
                        columns.insert(wanted.number, pages.decode(&mut decoder, known)?);
                    }
                    Wanted::Codes(of) => match job.codes_of(&pages, &mut decoder, of)? {
                        Some((column, own)) => {
                            columns.insert(wanted.number, column);
                            texts.insert(of, own);
                        }
                        None => {
                            let all = job.texts(&pages, &mut decoder)?;
                            let (codes, own) = encoded(&[all.as_ref()], &job.codes, of)?;
                            at_home.insert(wanted.number, staged(codes.as_ref())?);
                            texts.insert(of, own);
                        }
                    },
                }
            }
            job.upload(at_home, n_rows, &mut columns)?;
            job.account.add_counts(decoder.counts());
            Ok((columns, texts))
        })
        .await
    }

    /// Codes of all rows and their texts, if every entry of the dictionaries has one.
    fn codes_of(
        &self,
        pages: &ColumnOfPages,
        decoder: &mut Decoder,
        of: usize,
    ) -> Result<Option<(Arc<DeviceColumn>, StringArray)>, Failure> {
        let text = self.codes.text(of)?;
        let dictionary = Arc::new(Dictionary::default());
        let mut encoder = Encoder::new(&dictionary);
        let Some(mut tables) = pages.code_tables(&text, &mut encoder)? else {
            return Ok(None);
        };
        let mut texts = dictionary.texts();
        if self.codes.is_ordered(of) {
            let own: ArrayRef = Arc::new(Int32Array::from_iter_values(0..texts.len() as i32));
            let (ranks, sorted) = in_order(&own, &texts)?;
            let ranks = ranks.as_primitive::<Int32Type>().values();
            for code in tables.iter_mut().flatten() {
                *code = ranks[*code as usize];
            }
            texts = sorted;
        }
        let column = decoder.decode_codes(&pages.pages, &tables)?.column;
        Ok(Some((column, texts)))
    }

    /// The texts of a column whose pages do not all have a dictionary.
    fn texts(&self, pages: &ColumnOfPages, decoder: &mut Decoder) -> Result<ArrayRef, Failure> {
        let texts = pages.texts(decoder)?;
        add(&self.account.texts_on_host, texts.len() as u64);
        Ok(texts)
    }

    /// A decoder that comes after what is enqueued now.
    fn decoder(&self, target: &Target) -> Result<Decoder, Failure> {
        let decoder = Decoder::new(&self.device.gpu, &self.device.jit)?;
        decoder.stream().wait_for_stream(&target.stream)?;
        Ok(decoder)
    }

    /// Brings what was laid out on the host to the other columns.
    pub(super) fn upload(
        &self,
        at_home: HashMap<usize, StagedColumn>,
        n_rows: usize,
        columns: &mut HashMap<usize, Arc<DeviceColumn>>,
    ) -> Result<(), Failure> {
        if at_home.is_empty() {
            return Ok(());
        }
        let numbers: Vec<usize> = at_home.keys().copied().collect();
        let device = &self.device;
        let loader = Loader::new(&device.gpu, &device.pinned, Vec::new(), Arc::default())?;
        let copied = loader.upload(&StagedBatch::new(at_home, n_rows))?;
        for number in numbers {
            columns.insert(number, Arc::clone(copied.shared_column(number)?));
        }
        copied.wait()?;
        Ok(())
    }
}

pub(super) fn staged(array: &dyn Array) -> Result<StagedColumn, Failure> {
    let staged = stage(array, None);
    staged.map_err(|e| kernels::error::Error::Unsupported(e.message).into())
}

/// Row groups in their order, gathered to chunks.
fn gathered(pieces: &[Piece]) -> Vec<Vec<Piece>> {
    let mut chunks: Vec<Vec<Piece>> = Vec::new();
    let (mut n_rows, mut n_bytes) = (0, 0);
    for piece in pieces {
        let (rows, bytes) = (piece.n_rows(), piece.n_bytes());
        let fits = n_rows + rows <= CHUNK_ROWS && n_bytes + bytes <= CHUNK_BYTES;
        match chunks.last_mut() {
            Some(chunk) if fits => chunk.push(piece.clone()),
            _ => {
                chunks.push(vec![piece.clone()]);
                (n_rows, n_bytes) = (0, 0);
            }
        }
        n_rows += rows;
        n_bytes += bytes;
    }
    chunks
}
