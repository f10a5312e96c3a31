//! The pages of some row groups to the device.

use std::sync::Arc;
use std::time::Instant;

use datafusion::execution::TaskContext;
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryLimit, MemoryReservation};
use futures::{StreamExt, TryStreamExt};
use kernels::gpu::Stream;
use kernels::ir::Type;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::chunks::{Job, add, us_since};
use super::columns::ColumnOfPages;
use super::fetch::fetch;
use super::footers::Piece;
use super::pages::{Chunk, Loaded, Sent, Target, codec_of};
use super::plan::WantedColumn;
use super::unpack::unpack;
use crate::exec::codes::{Wanted, internal};
use crate::exec::failure::Failure;
use crate::exec::relation::blocking;

/// Row groups of a chunk that are fetched ahead of those that are decompressed.
const FETCHED_AHEAD: usize = 4;

/// Columns of a relation are read together up to here.
pub(super) const TOGETHER_BYTES: usize = 1 << 30;

/// A row group's compressed columns, each with its place in the file, and the host memory
/// that it takes until they are on the device.
type Fetched = (Piece, Vec<(u64, bytes::Bytes)>, Arc<HostMemory>);

/// Memory that a row group takes on the host: of the batch, and of what its scan may take.
struct HostMemory {
    _reserved: MemoryReservation,
    _of_scan: OwnedSemaphorePermit,
}

/// What a scan takes of the batch's memory at most: this part, and not less or more than
/// these bytes.
const HOST_PART: usize = 4;
const HOST_BYTES: std::ops::RangeInclusive<usize> = 64 << 20..=2 << 30;

/// A scan's memory is counted in these.
const HOST_UNIT: usize = 1 << 10;

/// Permits for the memory of a scan: what is read ahead waits for what is under way.
pub(super) fn host_gate(context: &TaskContext) -> (Arc<Semaphore>, usize) {
    let bytes = match context.memory_pool().memory_limit() {
        MemoryLimit::Finite(bytes) => {
            (bytes / HOST_PART).clamp(*HOST_BYTES.start(), *HOST_BYTES.end())
        }
        _ => *HOST_BYTES.end(),
    };
    let units = bytes / HOST_UNIT;
    (Arc::new(Semaphore::new(units)), units)
}

impl Job {
    /// Columns by their numbers in the scan, gathered so that each group needs not too much
    /// memory while it is read.
    pub(super) fn together(&self, pieces: &[Piece]) -> Vec<Vec<usize>> {
        let mut groups: Vec<Vec<usize>> = Vec::new();
        let mut bytes = 0;
        for column in 0..self.scan.columns.len() {
            let own = self.device_bytes(pieces, &[column]);
            match groups.last_mut() {
                Some(group) if bytes + own <= TOGETHER_BYTES => group.push(column),
                _ => {
                    groups.push(vec![column]);
                    bytes = 0;
                }
            }
            bytes += own;
        }
        groups
    }

    /// Device memory that reading some columns takes, as far as footers tell.
    fn device_bytes(&self, pieces: &[Piece], columns: &[usize]) -> usize {
        let n_rows: usize = pieces.iter().map(Piece::n_rows).sum();
        let of_columns = columns.iter().map(|column| {
            let pages = pieces.iter().map(|piece| piece.column_bytes(*column));
            let pages: usize = pages.sum();
            // Where kernels decompress, the compressed bytes too.
            let packed = pieces
                .iter()
                .map(|piece| match self.unpacks(piece, *column) {
                    true => piece.packed_bytes(*column),
                    false => 0,
                });
            let pages = pages + packed.sum::<usize>();
            // Wide and narrow elements, and the row of each value.
            match self.scan.columns[*column].ty {
                Type::Bool => pages + n_rows * 6,
                Type::Utf8 => pages * 2 + n_rows * 40,
                Type::Decimal { .. } => pages + n_rows * 37,
                _ => pages + n_rows * 21,
            }
        });
        of_columns.sum()
    }

    /// Whether kernels decompress a column chunk, as far as the footer tells.
    fn unpacks(&self, piece: &Piece, column: usize) -> bool {
        let is_on_host = self.device.unpacks_on_host;
        codec_of(piece.compression(column), is_on_host).is_ok()
    }

    /// The pages of some columns, on the device or on their way.
    pub(super) async fn load(
        &self,
        pieces: &[Piece],
        columns: Vec<usize>,
    ) -> Result<(Vec<(WantedColumn, ColumnOfPages)>, Target), Failure> {
        let Some(first) = pieces.first() else {
            return Err(internal("a scan of no row groups".to_string()).into());
        };
        let (device, bytes) = (self.device.clone(), self.device_bytes(pieces, &columns));
        blocking(move || Ok(device.make_room(bytes)?)).await?;
        let device = &self.device;
        let target = Target {
            gpu: Arc::clone(&device.gpu),
            pinned: device.pinned.clone(),
            stream: Arc::new(Stream::new(&device.gpu)?),
        };
        let sent = self.send_pages(pieces, &columns, &target).await?;
        for one in &sent {
            add(&self.account.copied_bytes, one.copied_bytes);
            if let Some(codec) = &one.unpacked {
                if !codec.on_device {
                    add(&self.account.decompressed_bytes, codec.bytes);
                }
                self.account.add_codec(codec.clone());
            }
        }
        let (device, own) = (self.device.clone(), target.clone());
        let (loaded, counts, unpack_ms) =
            blocking(move || Ok(unpack(sent, &device, &own)?)).await?;
        self.account.add_unpacked(counts, unpack_ms);
        let mut by_column: Vec<Vec<Loaded>> = columns.iter().map(|_| Vec::new()).collect();
        for (at, one) in loaded.into_iter().enumerate() {
            add(&self.account.device_bytes, one.chunk.bytes.bytes() as u64);
            by_column[at % columns.len()].push(one);
        }
        let of_columns = columns.iter().zip(by_column).map(|(column, loaded)| {
            let wanted = self.scan.columns[*column].clone();
            let pages = ColumnOfPages::of(&wanted, *column, &first.file, loaded);
            (wanted, pages)
        });
        Ok((of_columns.collect(), target))
    }

    /// Fetches and sends: for each row group its columns in their order.
    async fn send_pages(
        &self,
        pieces: &[Piece],
        columns: &[usize],
        target: &Target,
    ) -> Result<Vec<Sent>, Failure> {
        let n_threads = std::thread::available_parallelism().map_or(1, usize::from);
        let threads = Arc::new(Semaphore::new(n_threads));
        let fetched = pieces.iter().cloned().map(|piece| {
            let (job, columns) = (self.clone(), columns.to_vec());
            async move { job.fetch_piece(piece, columns).await }
        });
        let mut fetched = futures::stream::iter(fetched).buffered(FETCHED_AHEAD);
        let mut running = Vec::new();
        while let Some((piece, bytes, memory)) = fetched.try_next().await? {
            for (column, (start, bytes)) in columns.iter().zip(bytes) {
                let wanted = &self.scan.columns[*column];
                let chunk = Chunk {
                    piece: piece.clone(),
                    column: *column,
                    start,
                    bytes,
                    wants_dictionary: matches!(wanted.wanted, Wanted::Codes(_)),
                };
                let permit = Arc::clone(&threads).acquire_owned().await;
                let (target, account) = (target.clone(), Arc::clone(&self.account));
                let memory = Arc::clone(&memory);
                let is_on_host = self.device.unpacks_on_host;
                running.push(tokio::task::spawn_blocking(move || {
                    let (_permit, _memory) = (permit, memory);
                    let started = Instant::now();
                    let sent = chunk.send(&target, is_on_host);
                    add(&account.decompress_us, us_since(started));
                    sent
                }));
            }
        }
        let mut sent = Vec::with_capacity(running.len());
        for one in running {
            let one = one.await;
            let one = one.map_err(|e| internal(format!("a thread of the scan ended: {e}")))?;
            sent.push(one?);
        }
        Ok(sent)
    }

    /// The compressed columns of a row group, and the host memory that it takes until they
    /// are on the device.
    async fn fetch_piece(&self, piece: Piece, columns: Vec<usize>) -> Result<Fetched, Failure> {
        let bytes = columns
            .iter()
            .map(|column| match self.unpacks(&piece, *column) {
                true => piece.packed_bytes(*column),
                false => piece.packed_bytes(*column) + piece.column_bytes(*column),
            });
        let bytes: usize = bytes.sum();
        let (gate, units_max) = &self.host;
        // A row group that is larger than all of it goes by itself.
        let units = bytes.div_ceil(HOST_UNIT).min(*units_max) as u32;
        let of_scan = Arc::clone(gate).acquire_many_owned(units).await;
        let of_scan = of_scan.map_err(|e| internal(format!("a scan without memory: {e}")))?;
        let reserved = MemoryConsumer::new("GpuScan").register(self.context.memory_pool());
        reserved
            .try_grow(bytes)
            .map_err(|e| Failure::device("out-of-memory", e.to_string()))?;
        let memory = HostMemory {
            _reserved: reserved,
            _of_scan: of_scan,
        };
        let started = Instant::now();
        let fetched = fetch(&piece, &columns).await?;
        add(&self.account.fetch_us, us_since(started));
        add(&self.account.fetched_bytes, fetched.n_bytes);
        Ok((piece, fetched.columns, Arc::new(memory)))
    }
}
