//! Sorting the rows of a source: keys to words, then one stable pass for each byte
//! of the words that varies, the least significant first.
//!
//! ```text
//!   key columns ──sort_keys──> words[w][row]
//!                                │ word 0 as it stands, later ones in the order so far
//!                              (key, row) ──count, scan, scatter──> (key, row) ...
//!                                                                   rows in order
//! ```

use std::sync::Arc;

use arrow::array::RecordBatch;

use super::context::{Context, RunCounts};
use super::loader::Loader;
use super::parameters::ParameterBytes;
use crate::codegen::{RADIX_TEXT, SortKeyKernel, Unsupported, generate_sort_keys, radix_tile_rows};
use crate::columns::DeviceChunk;
use crate::error::{Error, Result};
use crate::gpu::{DeviceBuffer, DevicePtr, Event, Gpu, Kernel, LaunchShape, PinnedPool};
use crate::ir::Sort;
use crate::jit::Jit;

/// The most rows of one sort.
pub const SORT_ROWS_MAX: usize = 1 << 31;

/// Values of the digit that one pass looks at.
const DIGITS: usize = 256;

/// An order of rows.
#[derive(Debug, Clone, Default)]
pub struct Sorted {
    /// Row numbers in order, as many as were wanted.
    pub rows: Vec<u32>,
    /// What was done.
    pub counts: RunCounts,
    /// The kernel that made the keys; empty when there was nothing to sort.
    pub kernel: String,
}

/// The stable order of these rows, whose columns are the source's; only the first
/// `fetch` row numbers when that is given.
///
/// Fails with [`Error::Unsupported`] when there are more rows than the device can
/// sort at once.
pub fn sort(
    gpu: Arc<dyn Gpu>,
    jit: Arc<Jit>,
    pool: &PinnedPool,
    sort: &Sort,
    rows: &RecordBatch,
    fetch: Option<usize>,
) -> Result<Sorted> {
    if rows.num_rows() == 0 || fetch == Some(0) {
        return Ok(Sorted::default());
    }
    let loader = Loader::new(&gpu, pool, sort.columns(), Arc::default())?;
    let staged = loader.stage(rows)?;
    let chunk = loader.upload(&staged)?;
    drop(staged);
    let bytes = chunk.bytes() as u64;
    let mut sorted = sort_resident(gpu, jit, sort, &chunk, fetch)?;
    sorted.counts.bytes_to_device += bytes;
    Ok(sorted)
}

/// As [`sort`], of rows that are on the device already.
pub fn sort_resident(
    gpu: Arc<dyn Gpu>,
    jit: Arc<Jit>,
    sort: &Sort,
    chunk: &DeviceChunk,
    fetch: Option<usize>,
) -> Result<Sorted> {
    let n_rows = chunk.n_rows;
    let n_wanted = fetch.unwrap_or(n_rows).min(n_rows);
    if n_wanted == 0 {
        return Ok(Sorted::default());
    }
    if n_rows > SORT_ROWS_MAX {
        return Err(Error::Unsupported(format!(
            "sorting {n_rows} rows at once, at most {SORT_ROWS_MAX}"
        )));
    }
    let mut context = Context::new(gpu, jit)?;
    chunk.wait_on(&context.stream)?;
    let ordered = order(&mut context, sort, chunk)?;
    let rows = match &ordered.rows {
        None => (0..n_wanted as u32).collect(),
        Some(rows) => {
            context.counts.bytes_to_host += n_wanted as u64 * 4;
            rows.read(&context.stream, 0, n_wanted)?
        }
    };
    context.counts.rows = n_rows as u64;
    context.counts.chunks = 1;
    Ok(Sorted {
        rows,
        counts: context.counts,
        kernel: ordered.kernel,
    })
}

/// An order of rows, on the device.
pub(super) struct Ordered {
    /// The keys: word `w` of row `i` is element `w * n_rows + i`.
    pub(super) words: DeviceBuffer,
    /// 64-bit words of a row's key.
    pub(super) n_words: usize,
    /// As in [`SortKeyKernel`].
    pub(super) low_bits: Vec<u32>,
    /// Row numbers in order; `None` when the rows stand in order already.
    pub(super) rows: Option<DeviceBuffer>,
    /// The kernel that made the keys.
    pub(super) kernel: String,
}

/// The stable order of a chunk that has rows.
pub(super) fn order(context: &mut Context, sort: &Sort, chunk: &DeviceChunk) -> Result<Ordered> {
    let n_rows = chunk.n_rows;
    let kernel = generate_sort_keys(sort, &chunk.shapes()).map_err(unsupported)?;
    let (words, varying) = make_keys(context, &kernel, chunk)?;
    let rows = if varying.iter().all(|bits| *bits == 0) {
        None
    } else {
        let code = context.load("radix_sort", RADIX_TEXT)?;
        let before = Event::record_timing(&context.stream)?;
        let mut radix = Radix::new(context, |name| code.kernel(name), n_rows)?;
        for (word, bits) in varying.iter().enumerate() {
            radix.sort_word(words.at(word * n_rows * 8), *bits)?;
        }
        let after = Event::record_timing(&context.stream)?;
        // The passes are done before their buffers go.
        let device_ms = f64::from(after.ms_since(&before)?);
        let rows = radix.into_rows()?;
        context.note("radix_sort", device_ms);
        Some(rows)
    };
    Ok(Ordered {
        words,
        n_words: kernel.n_words,
        low_bits: kernel.low_bits,
        rows,
        kernel: kernel.name,
    })
}

/// Every row's words, and for each word the bits that are not the same in all rows.
fn make_keys(
    context: &mut Context,
    kernel: &SortKeyKernel,
    chunk: &DeviceChunk,
) -> Result<(DeviceBuffer, Vec<u64>)> {
    let entry = context.kernel(&kernel.name, &kernel.text)?;
    let n_rows = chunk.n_rows;
    let words = DeviceBuffer::for_values::<u64>(&context.gpu, n_rows * kernel.n_words)?;
    let seen = DeviceBuffer::zeroed(&context.gpu, &context.stream, kernel.n_words * 16)?;
    let mut params = ParameterBytes::default();
    params.word(n_rows as u64);
    params.word(context.fault_address());
    params.word(words.ptr().0);
    params.word(seen.ptr().0);
    for index in &kernel.columns {
        let column = chunk.column(*index)?;
        params.column(column);
        context.counts.bytes_read += column.bytes() as u64;
    }
    params.constants(&kernel.parameters, &context.gpu, &context.stream)?;
    let pieces = n_rows.div_ceil(context.rows_threads() as usize);
    let shape = context.rows_shape(&entry, pieces)?;
    // SAFETY: the fields were appended in the order of the generated struct; all
    // buffers and the chunk outlive the call, which waits for the kernel.
    unsafe { context.run(&entry, shape, &params)? };
    let seen: Vec<u64> = seen.to_vec(&context.stream)?;
    context.counts.bytes_to_host += seen.len() as u64 * 8;
    let (pairs, _) = seen.as_chunks::<2>();
    Ok((
        words,
        pairs.iter().map(|[ones, zeros]| ones & zeros).collect(),
    ))
}

/// The passes over pairs of key and row, in two buffers that take turns.
struct Radix<'a> {
    context: &'a Context,
    n_rows: usize,
    n_tiles: usize,
    tile_rows: usize,
    count: Kernel,
    scan: Kernel,
    scatter: Kernel,
    gather: Kernel,
    keys: [DeviceBuffer; 2],
    rows: [DeviceBuffer; 2],
    counts: DeviceBuffer,
    scan_tiles: DeviceBuffer,
    /// Which buffers hold the order so far; `None` before the first pass.
    current: Option<usize>,
}

impl<'a> Radix<'a> {
    fn new(
        context: &'a Context,
        kernel: impl Fn(&str) -> Result<Kernel>,
        n_rows: usize,
    ) -> Result<Radix<'a>> {
        let gpu = &context.gpu;
        let tile_rows = radix_tile_rows(context.rows_threads());
        let n_tiles = n_rows.div_ceil(tile_rows);
        let n_scan_tiles = (n_tiles * DIGITS).div_ceil(tile_rows);
        let keys = || DeviceBuffer::for_values::<u64>(gpu, n_rows);
        let rows = || DeviceBuffer::for_values::<u32>(gpu, n_rows);
        Ok(Radix {
            context,
            n_rows,
            n_tiles,
            tile_rows,
            count: kernel("radix_count")?,
            scan: kernel("radix_scan")?,
            scatter: kernel("radix_scatter")?,
            gather: kernel("radix_gather")?,
            keys: [keys()?, keys()?],
            rows: [rows()?, rows()?],
            counts: DeviceBuffer::for_values::<u32>(gpu, n_tiles * DIGITS)?,
            scan_tiles: DeviceBuffer::allocate(gpu, (n_scan_tiles + 1) * 8)?,
            current: None,
        })
    }

    /// Orders by one word of the keys, keeping the order so far among equals.
    fn sort_word(&mut self, words: DevicePtr, varying: u64) -> Result<()> {
        if varying == 0 {
            return Ok(());
        }
        // The first word is read where it stands; later ones in the order so far.
        let mut keys = words;
        if let Some(current) = self.current {
            keys = self.keys[current].ptr();
            let mut params = ParameterBytes::default();
            params.word(self.n_rows as u64);
            params.word(words.0);
            params.word(self.rows[current].ptr().0);
            params.word(keys.0);
            let pieces = self.n_rows.div_ceil(self.context.rows_threads() as usize);
            let shape = self.context.rows_shape(&self.gather, pieces)?;
            self.launch(&self.gather, shape, &params)?;
        }
        for byte in 0..8 {
            if (varying >> (8 * byte)) & 0xff != 0 {
                let to = self.pass(keys, 8 * byte)?;
                keys = self.keys[to].ptr();
            }
        }
        Ok(())
    }

    /// One pass; gives the buffers that hold the order after it.
    fn pass(&mut self, keys: DevicePtr, shift: u64) -> Result<usize> {
        let (rows, to) = match self.current {
            None => (DevicePtr::NULL, 0),
            Some(current) => (self.rows[current].ptr(), 1 - current),
        };
        let mut params = ParameterBytes::default();
        params.word(self.n_rows as u64);
        params.word(self.n_tiles as u64);
        params.word(shift);
        params.word(keys.0);
        params.word(rows.0);
        params.word(self.counts.ptr().0);
        params.word(self.keys[to].ptr().0);
        params.word(self.rows[to].ptr().0);
        let n_tiles = u32::try_from(self.n_tiles)
            .map_err(|_| Error::Internal("a sort has too many tiles".into()))?;
        let every_tile = LaunchShape::new(n_tiles, self.context.rows_threads());
        self.launch(&self.count, every_tile, &params)?;

        self.scan_tiles.fill(&self.context.stream, 0)?;
        let n_counts = self.n_tiles * DIGITS;
        let mut scan = ParameterBytes::default();
        scan.word(n_counts as u64);
        scan.word(self.scan_tiles.ptr().0);
        scan.word(self.counts.ptr().0);
        let pieces = n_counts.div_ceil(self.tile_rows);
        let scan_shape = self.context.rows_shape(&self.scan, pieces)?;
        self.launch(&self.scan, scan_shape, &scan)?;

        self.launch(&self.scatter, every_tile, &params)?;
        self.current = Some(to);
        Ok(to)
    }

    fn launch(&self, kernel: &Kernel, shape: LaunchShape, params: &ParameterBytes) -> Result<()> {
        let stream = &self.context.stream;
        // SAFETY: the callers append the fields in the order of the structs in
        // `cuda/rows/radix.h`, each in its own 16 bytes; the buffers are this value's
        // or the caller's, which frees them for work that comes after this only.
        unsafe { stream.launch_bytes(kernel, shape, params.bytes()) }
    }

    /// The numbers of the rows in order.
    fn into_rows(self) -> Result<DeviceBuffer> {
        let current = self
            .current
            .ok_or_else(|| Error::Internal("nothing was sorted".into()))?;
        let [first, second] = self.rows;
        Ok(if current == 0 { first } else { second })
    }
}

fn unsupported(reason: Unsupported) -> Error {
    Error::Unsupported(reason.message)
}
