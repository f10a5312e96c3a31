//! Columns of values of any number of bytes: text, and decimals that are stored so.

use super::ColumnPages;
use super::decode::{Decoder, FaultOf, Wide};
use super::pages::{Levels, Tables, launch, n_shares, n_warps, warp_shape};
use super::plan::{THREADS, texts_text};
use crate::error::Result;
use crate::gpu::{DeviceBuffer, Kernel};
use crate::ir::{Range, Type};

/// Bytes, offsets, and what a kernel calls text with such offsets.
pub(super) type TextParts = (DeviceBuffer, DeviceBuffer, &'static str);

/// Bytes of a `TextSource`.
const SOURCE_BYTES: usize = 16;

/// `TEXT_ROUNDS` of `cuda/parquet/text_column.h`.
const TILE_ROUNDS: usize = 8;

#[repr(C)]
#[derive(Clone, Copy)]
struct TextsPass {
    n_pages: u64,
    n_shares: u64,
    pages: u64,
    states: u64,
    row_of: u64,
    out: u64,
    dictionary: u64,
    value_bytes: u64,
    first_fault: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct TextOffsetsPass {
    n_rows: u64,
    tiles: u64,
    sources: u64,
    offsets: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct TextCopyPass {
    n_rows: u64,
    n_pages: u64,
    pages: u64,
    states: u64,
    row_of: u64,
    sources: u64,
    offsets: u64,
    bytes: u64,
    is_not_ascii: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct TextCheckPass {
    n_rows: u64,
    offsets: u64,
    bytes: u64,
    first_fault: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct TextDecimalsPass {
    type_least: i128,
    type_most: i128,
    n_rows: u64,
    value_bytes: u64,
    validity: u64,
    offsets: u64,
    bytes: u64,
    out: u64,
    ranges: u64,
    first_fault: u64,
}

impl Decoder {
    /// The text of a column, and of a column of decimals their values.
    pub(super) fn texts(
        &mut self,
        pages: &ColumnPages,
        tables: &Tables,
        levels: &Levels,
    ) -> Result<(Option<Wide>, TextParts)> {
        let n_rows = pages.n_rows();
        let sources = self.sources(pages, tables, levels)?;
        let gpu = self.context.gpu.clone();

        let tile_rows = TILE_ROUNDS * THREADS.min(gpu.info().max_block_threads) as usize;
        let n_tiles = n_rows.div_ceil(tile_rows);
        let tiles = DeviceBuffer::zeroed(&gpu, &self.context.stream, (n_tiles + 1) * 8)?;
        let offsets = DeviceBuffer::zeroed(&gpu, &self.context.stream, (n_rows + 1) * 8)?;
        let params = TextOffsetsPass {
            n_rows: n_rows as u64,
            tiles: tiles.ptr().0,
            sources: sources.ptr().0,
            offsets: offsets.ptr().0,
        };
        let shape = self.rows_shape(n_rows.div_ceil(TILE_ROUNDS));
        let kernel = self.text_kernel("parquet_text_offsets")?;
        // SAFETY: the struct is that of `cuda/parquet/text_column.h`; its buffers outlive
        // the wait below.
        unsafe { launch(&self.context, &kernel, shape, &params)? };
        let n_bytes: Vec<i64> = offsets.read(&self.context.stream, n_rows * 8, 1)?;
        let n_bytes = n_bytes.first().copied().unwrap_or(0) as usize;

        let bytes = DeviceBuffer::allocate(&gpu, n_bytes)?;
        let is_not_ascii = DeviceBuffer::zeroed(&gpu, &self.context.stream, 4)?;
        let params = TextCopyPass {
            n_rows: n_rows as u64,
            n_pages: tables.data.len() as u64,
            pages: tables.data.refs.ptr().0,
            states: levels.states.ptr().0,
            row_of: levels.row_of.ptr().0,
            sources: sources.ptr().0,
            offsets: offsets.ptr().0,
            bytes: bytes.ptr().0,
            is_not_ascii: is_not_ascii.ptr().0,
        };
        let kernel = self.text_kernel("parquet_copy_texts")?;
        let shape = warp_shape(&self.context, n_rows);
        // SAFETY: as above.
        unsafe { launch(&self.context, &kernel, shape, &params)? };
        if tables.has_delta_bytes {
            let kernel = self.text_kernel("parquet_copy_prefixes")?;
            let shape = warp_shape(&self.context, tables.data.len());
            // SAFETY: as above.
            unsafe { launch(&self.context, &kernel, shape, &params)? };
        }
        if pages.ty != Type::Utf8 {
            let wide = self.decimals(pages, tables, levels, &offsets, &bytes)?;
            return Ok((Some(wide), (bytes, offsets, "long_text")));
        }
        let is_not_ascii: Vec<u32> = is_not_ascii.to_vec(&self.context.stream)?;
        if is_not_ascii != [0] {
            let params = TextCheckPass {
                n_rows: n_rows as u64,
                offsets: offsets.ptr().0,
                bytes: bytes.ptr().0,
                first_fault: self.fault_address(FaultOf::Row),
            };
            let kernel = self.text_kernel("parquet_check_utf8")?;
            // SAFETY: as above.
            unsafe { launch(&self.context, &kernel, self.rows_shape(n_rows), &params)? };
            self.check_faults(pages, tables)?;
        }
        if i32::try_from(n_bytes).is_err() {
            return Ok((None, (bytes, offsets, "long_text")));
        }
        let short = self.narrow(&offsets, "i64", "i32", n_rows + 1)?;
        Ok((None, (bytes, short, "text")))
    }

    fn text_kernel(&mut self, name: &str) -> Result<Kernel> {
        self.kernel("parquet_texts", texts_text, name)
    }

    /// Where the bytes of every row's value are.
    fn sources(
        &mut self,
        pages: &ColumnPages,
        tables: &Tables,
        levels: &Levels,
    ) -> Result<DeviceBuffer> {
        let kernel = self.text_kernel("parquet_texts")?;
        let (gpu, stream) = (&self.context.gpu, &self.context.stream);
        let dictionary = DeviceBuffer::zeroed(gpu, stream, tables.n_entries * SOURCE_BYTES)?;
        let sources = DeviceBuffer::zeroed(gpu, stream, pages.n_rows() * SOURCE_BYTES)?;
        let entries = TextsPass {
            n_pages: tables.dictionaries.len() as u64,
            n_shares: 1,
            pages: tables.dictionaries.refs.ptr().0,
            states: 0,
            row_of: 0,
            out: dictionary.ptr().0,
            dictionary: 0,
            value_bytes: pages.physical.value_bytes(),
            first_fault: self.fault_address(FaultOf::Dictionary),
        };
        let data = TextsPass {
            n_pages: tables.data.len() as u64,
            n_shares: n_shares(&self.context, tables.data.len(), pages.n_rows()) as u64,
            pages: tables.data.refs.ptr().0,
            states: levels.states.ptr().0,
            row_of: levels.row_of.ptr().0,
            out: sources.ptr().0,
            dictionary: dictionary.ptr().0,
            first_fault: self.fault_address(FaultOf::Data),
            ..entries
        };
        for params in [entries, data] {
            let shape = warp_shape(&self.context, (params.n_pages * params.n_shares) as usize);
            // SAFETY: the struct is that of `cuda/parquet/texts.h`; its buffers outlive the
            // wait below.
            unsafe { launch(&self.context, &kernel, shape, &params)? };
        }
        // Lengths are used only when all pages are as they should be.
        self.check_faults(pages, tables)?;
        Ok(sources)
    }

    /// The numbers that texts stand for.
    fn decimals(
        &mut self,
        pages: &ColumnPages,
        tables: &Tables,
        levels: &Levels,
        offsets: &DeviceBuffer,
        bytes: &DeviceBuffer,
    ) -> Result<Wide> {
        let kernel = self.text_kernel("parquet_decimals_of_texts")?;
        let (gpu, stream) = (&self.context.gpu, &self.context.stream);
        let n_rows = pages.n_rows();
        let shape = self.rows_shape(n_rows);
        let values = DeviceBuffer::for_values::<i128>(gpu, n_rows)?;
        let ranges = DeviceBuffer::for_values::<i128>(gpu, 2 * n_warps(&self.context, shape))?;
        let full = pages.ty.full_range().unwrap_or(Range::point(0));
        let params = TextDecimalsPass {
            type_least: full.min,
            type_most: full.max,
            n_rows: n_rows as u64,
            value_bytes: pages.physical.value_bytes(),
            validity: match pages.is_optional {
                true => levels.validity.ptr().0,
                false => 0,
            },
            offsets: offsets.ptr().0,
            bytes: bytes.ptr().0,
            out: values.ptr().0,
            ranges: ranges.ptr().0,
            first_fault: self.fault_address(FaultOf::Row),
        };
        // SAFETY: the struct is that of `cuda/parquet/text_column.h`; its buffers outlive
        // the wait below.
        unsafe { launch(&self.context, &kernel, shape, &params)? };
        self.check_faults(pages, tables)?;
        let of_warps: Vec<i128> = ranges.to_vec(stream)?;
        let (pairs, _) = of_warps.as_chunks::<2>();
        let there = pairs.iter().filter(|[min, max]| min <= max);
        let range = there
            .map(|[min, max]| Range::new(*min, *max))
            .reduce(Range::union);
        Ok(Wide {
            values,
            element: Some("i128"),
            range,
        })
    }
}
