//! The pages of a column as kernels get them, and their levels.

use super::fault::{PageNumber, malformed};
use super::plan::{THREADS, number_of};
use super::{ColumnPages, Encoding, PageKind, Physical};
use crate::error::{Error, Result};
use crate::gpu::{DeviceBuffer, Kernel, LaunchShape};
use crate::launch::context::Context;

/// `LEVELS_WITH_LENGTH` of `cuda/parquet/page.h`.
const LEVELS_WITH_LENGTH: u32 = u32::MAX;

/// Words of 64 bits of a `PageRef`.
const PAGE_WORDS: usize = 6;

/// A block for so many pages or rows a warp, but not more than keep a device busy.
pub(super) fn warp_shape(context: &Context, n: usize) -> LaunchShape {
    let info = context.gpu.info();
    let threads = THREADS.min(info.max_block_threads);
    let warps = (threads / info.warp_lanes).max(1) as usize;
    let blocks_max = info.multiprocessors.max(1) * 32;
    let grid = u32::try_from(n.div_ceil(warps)).unwrap_or(u32::MAX);
    LaunchShape::new(grid.min(blocks_max), threads)
}

/// Values of a page that a warp takes at least, where several share it.
const SHARE_VALUES_MIN: usize = 1 << 8;

/// How many warps share a page so that the device has enough of them.
pub(super) fn n_shares(context: &Context, n_pages: usize, n_rows: usize) -> usize {
    let wanted = context.gpu.info().multiprocessors.max(1) as usize * 32;
    let most = n_rows / n_pages.max(1) / SHARE_VALUES_MIN;
    (wanted / n_pages.max(1)).min(most).max(1)
}

/// Warps of a launch.
pub(super) fn n_warps(context: &Context, shape: LaunchShape) -> usize {
    let info = context.gpu.info();
    shape.grid as usize * (shape.block / info.warp_lanes).max(1) as usize
}

/// Pages on the device.
pub(super) struct PageTable {
    pub(super) refs: DeviceBuffer,
    /// Which pages they are.
    pub(super) numbers: Vec<PageNumber>,
}

impl PageTable {
    pub(super) fn len(&self) -> usize {
        self.numbers.len()
    }
}

/// The data pages and the dictionary pages of a column, checked as far as their headers go.
pub(super) struct Tables {
    pub(super) data: PageTable,
    pub(super) dictionaries: PageTable,
    /// Entries of all dictionaries.
    pub(super) n_entries: usize,
    /// Whether a data page has this encoding.
    pub(super) has_delta_bytes: bool,
    /// For each data page its first row.
    pub(super) first_rows: Vec<usize>,
}

/// The fewest bytes of a value in a PLAIN page, times 8.
fn least_bits(physical: Physical) -> usize {
    match physical {
        Physical::Boolean => 1,
        Physical::Int32 | Physical::Float | Physical::ByteArray => 32,
        Physical::Int64 | Physical::Double => 64,
        Physical::Int96 => 96,
        Physical::FixedLenByteArray(bytes) => 8 * bytes,
    }
}

impl Tables {
    /// Checks the headers and brings them to the device. `dictionaries` has the number of
    /// entries of each chunk's dictionary where that is not the page's.
    pub(super) fn of(
        context: &Context,
        column: &ColumnPages,
        dictionaries: Option<&[Vec<i32>]>,
    ) -> Result<Tables> {
        let (mut data, mut entries) = (Vec::new(), Vec::new());
        let (mut data_numbers, mut entry_numbers) = (Vec::new(), Vec::new());
        let (mut n_entries, mut first_row) = (0, 0);
        let mut first_rows = Vec::new();
        let mut has_delta_bytes = false;
        for (at, chunk) in column.chunks.iter().enumerate() {
            let mut dictionary = match dictionaries {
                Some(all) => all.get(at).map(|own| (n_entries, own.len())),
                None => None,
            };
            n_entries += dictionary.map_or(0, |(_, n)| n);
            let mut n_rows = 0;
            for (place, page) in chunk.pages.iter().enumerate() {
                let number = PageNumber {
                    chunk: at,
                    page: place,
                };
                let refuse = |reason: &str| Err(malformed(column, number, reason.to_string()));
                let n_values = page.n_values as usize;
                if page.bytes.start > page.bytes.end || page.bytes.end > chunk.bytes.bytes() {
                    return Err(Error::Internal("a page outside of its buffer".into()));
                }
                let words = |first: usize, dictionary: (usize, usize), level_bytes: u32| {
                    let encoding = number_of(page.encoding);
                    [
                        chunk.bytes.at(page.bytes.start).0,
                        page.bytes.len() as u64,
                        first as u64,
                        dictionary.0 as u64,
                        dictionary.1 as u64 | u64::from(page.n_values) << 32,
                        u64::from(encoding) | u64::from(level_bytes) << 32,
                    ]
                };
                let level_bytes = match page.kind {
                    PageKind::Dictionary if place > 0 => {
                        return refuse("a dictionary is not the first page");
                    }
                    PageKind::Dictionary => {
                        if page.encoding != Encoding::Plain {
                            return refuse("a dictionary is not in PLAIN encoding");
                        }
                        // What the page cannot hold must not become an allocation.
                        let bits = n_values.checked_mul(least_bits(column.physical));
                        if bits.is_none_or(|bits| bits.div_ceil(8) > page.bytes.len()) {
                            return refuse("a dictionary has fewer bytes than values");
                        }
                        if dictionaries.is_none() {
                            dictionary = Some((n_entries, n_values));
                            entries.extend(words(n_entries, (0, 0), 0));
                            entry_numbers.push(number);
                            n_entries += n_values;
                        }
                        continue;
                    }
                    PageKind::DataV1 => LEVELS_WITH_LENGTH,
                    PageKind::DataV2 { level_bytes } => level_bytes,
                };
                if level_bytes != LEVELS_WITH_LENGTH && level_bytes as usize > page.bytes.len() {
                    return refuse("the levels reach past the end of the page");
                }
                if page.encoding == Encoding::Dictionary && dictionary.is_none() {
                    return refuse("indices without a dictionary");
                }
                has_delta_bytes |= page.encoding == Encoding::DeltaByteArray;
                data.extend(words(
                    first_row + n_rows,
                    dictionary.unwrap_or_default(),
                    level_bytes,
                ));
                data_numbers.push(number);
                first_rows.push(first_row + n_rows);
                n_rows += n_values;
                if n_rows > chunk.n_rows {
                    return refuse("the pages have more values than the row group has rows");
                }
            }
            if n_rows != chunk.n_rows {
                let number = PageNumber {
                    chunk: at,
                    page: usize::MAX,
                };
                let reason = format!("{n_rows} values for {} rows", chunk.n_rows);
                return Err(malformed(column, number, reason));
            }
            first_row += n_rows;
        }
        debug_assert_eq!(data.len(), data_numbers.len() * PAGE_WORDS);
        let table = |words: Vec<u64>, numbers| -> Result<PageTable> {
            let refs = DeviceBuffer::from_slice(&context.gpu, &context.stream, &words)?;
            Ok(PageTable { refs, numbers })
        };
        Ok(Tables {
            data: table(data, data_numbers)?,
            dictionaries: table(entries, entry_numbers)?,
            n_entries,
            has_delta_bytes,
            first_rows,
        })
    }

    /// The page that has this row of the column.
    pub(super) fn page_of_row(&self, row: usize) -> usize {
        self.first_rows
            .partition_point(|first| *first <= row)
            .max(1)
            - 1
    }
}

/// What reading the levels of a column found out.
pub(super) struct Levels {
    /// For each data page a `PageState`.
    pub(super) states: DeviceBuffer,
    /// Whole words of validity bits.
    pub(super) validity: DeviceBuffer,
    /// For each value of a page its row.
    pub(super) row_of: DeviceBuffer,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct LevelsPass {
    n_pages: u64,
    optional: u64,
    pages: u64,
    states: u64,
    validity: u64,
    row_of: u64,
    first_fault: u64,
}

impl Levels {
    /// Enqueues the reading of levels.
    pub(super) fn read(
        context: &Context,
        kernel: &Kernel,
        column: &ColumnPages,
        tables: &Tables,
        first_fault: u64,
    ) -> Result<Levels> {
        let (gpu, stream) = (&context.gpu, &context.stream);
        let n_rows = match column.is_optional {
            true => column.n_rows(),
            false => 0,
        };
        let levels = Levels {
            states: DeviceBuffer::for_values::<u64>(gpu, tables.data.len())?,
            validity: DeviceBuffer::zeroed(gpu, stream, n_rows.div_ceil(32) * 4)?,
            row_of: DeviceBuffer::for_values::<u32>(gpu, n_rows)?,
        };
        let params = LevelsPass {
            n_pages: tables.data.len() as u64,
            optional: u64::from(column.is_optional),
            pages: tables.data.refs.ptr().0,
            states: levels.states.ptr().0,
            validity: levels.validity.ptr().0,
            row_of: levels.row_of.ptr().0,
            first_fault,
        };
        let shape = warp_shape(context, tables.data.len());
        // SAFETY: the struct is that of `cuda/parquet/levels.h`; its buffers outlive the
        // work on this stream.
        unsafe { launch(context, kernel, shape, &params)? };
        Ok(levels)
    }

    /// How many rows are not null.
    pub(super) fn n_values(&self, context: &Context) -> Result<usize> {
        let states: Vec<u64> = self.states.to_vec(&context.stream)?;
        Ok(states.iter().map(|state| *state as u32 as usize).sum())
    }
}

/// Enqueues a kernel.
///
/// # Safety
/// As for [`Stream::launch`](crate::gpu::Stream::launch).
pub(super) unsafe fn launch<P: Copy>(
    context: &Context,
    kernel: &Kernel,
    shape: LaunchShape,
    params: &P,
) -> Result<()> {
    // SAFETY: the caller's.
    unsafe { context.stream.launch(kernel, shape, params) }
}
