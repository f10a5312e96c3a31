//! One column of pages to a device column.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::datatypes::TimeUnit;

use super::fault::{NO_FAULT, PageNumber, malformed, page_fault};
use super::pages::{Levels, Tables, launch, n_shares, warp_shape};
use super::plan::{Kind, columns_text, narrow_name, values_text};
use super::{ColumnPages, Encoding, PageKind};
use crate::codegen::{ColumnShape, ValueRegister};
use crate::columns::{DeviceColumn, bits};
use crate::error::{Error, Result};
use crate::gpu::{DeviceBuffer, Event, Gpu, Kernel, LaunchShape, Stream};
use crate::ir::{IntWidth, Range, Type};
use crate::jit::Jit;
use crate::launch::RunCounts;
use crate::launch::context::Context;

/// A decoded column.
#[derive(Debug)]
pub struct Decoded {
    /// The column.
    pub column: Arc<DeviceColumn>,
    /// How many of its rows are null.
    pub n_nulls: usize,
}

/// Decodes columns, one after another, on a stream of its own.
#[derive(Debug)]
pub struct Decoder {
    pub(super) context: Context,
    /// First faults: of data pages, of dictionary pages, of rows.
    faults: DeviceBuffer,
    /// The kernels that were used so far: a look-up hashes every header.
    kernels: HashMap<String, Kernel>,
}

/// Which word of the faults.
#[derive(Debug, Clone, Copy)]
pub(super) enum FaultOf {
    Data = 0,
    Dictionary = 1,
    Row = 2,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct ValuesPass {
    n_pages: u64,
    n_shares: u64,
    pages: u64,
    states: u64,
    row_of: u64,
    out: u64,
    dictionary: u64,
    ranges: u64,
    value_bytes: u64,
    ticks_per_second: u64,
    first_fault: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct NarrowPass {
    n: u64,
    from: u64,
    to: u64,
}

/// The values of a column in wide elements.
pub(super) struct Wide {
    pub(super) values: DeviceBuffer,
    /// The name of an element that can be narrower.
    pub(super) element: Option<&'static str>,
    /// The interval of the values; `None` when there are none.
    pub(super) range: Option<Range>,
}

impl Decoder {
    /// A decoder.
    pub fn new(gpu: &Arc<dyn Gpu>, jit: &Arc<Jit>) -> Result<Decoder> {
        let context = Context::new(Arc::clone(gpu), Arc::clone(jit))?;
        let faults = DeviceBuffer::filled(gpu, &context.stream, 3 * 8, 0xff)?;
        Ok(Decoder {
            context,
            faults,
            kernels: HashMap::new(),
        })
    }

    /// The stream that everything is enqueued on: page bodies must be there for it.
    pub fn stream(&self) -> &Stream {
        &self.context.stream
    }

    /// What was done so far.
    pub fn counts(&self) -> RunCounts {
        self.context.counts
    }

    /// Decodes a column. Integral ones get the narrowest element that holds `known` (what
    /// statistics prove, unless the values contradict it) or else the values. What is
    /// enqueued is done when this returns.
    pub fn decode(&mut self, pages: &ColumnPages, known: Option<Range>) -> Result<Decoded> {
        self.decode_timed(pages, known, None)
    }

    /// Decodes the indices of a column whose data pages are all dictionary-encoded: of each
    /// column chunk, index `i` becomes `codes[chunk][i]`.
    pub fn decode_codes(&mut self, pages: &ColumnPages, codes: &[Vec<i32>]) -> Result<Decoded> {
        let is_data = |kind| !matches!(kind, PageKind::Dictionary);
        let mut all = pages.chunks.iter().flat_map(|chunk| &chunk.pages);
        if all.any(|page| is_data(page.kind) && page.encoding != Encoding::Dictionary) {
            return Err(Error::Unsupported(format!(
                "codes of column {}, some of whose pages have no dictionary",
                pages.name
            )));
        }
        self.decode_timed(pages, None, Some(codes))
    }

    fn decode_timed(
        &mut self,
        pages: &ColumnPages,
        known: Option<Range>,
        codes: Option<&[Vec<i32>]>,
    ) -> Result<Decoded> {
        let before = Event::record_timing(&self.context.stream)?;
        self.faults.fill(&self.context.stream, 0xff)?;
        let decoded = self.decode_enqueued(pages, known, codes);
        // Buffers that go on an error are not handed out before the stream has passed.
        let (decoded, kernel) = decoded?;
        let after = Event::record_timing(&self.context.stream)?;
        let device_ms = f64::from(after.ms_since(&before)?);
        self.context.note(kernel, device_ms);
        self.context.counts.bytes_read += pages.n_bytes() as u64;
        Ok(decoded)
    }

    fn decode_enqueued(
        &mut self,
        pages: &ColumnPages,
        known: Option<Range>,
        codes: Option<&[Vec<i32>]>,
    ) -> Result<(Decoded, &'static str)> {
        let (kind, ty) = match codes {
            Some(_) => (Kind::I32, Type::Int(IntWidth::W32)),
            None => {
                let kind = Kind::of(pages.physical, pages.ty);
                let kind = kind.ok_or_else(|| {
                    let (ty, physical) = (pages.ty, pages.physical);
                    Error::Unsupported(format!("a column of {ty} stored as {physical:?}"))
                })?;
                (kind, pages.ty)
            }
        };
        let tables = Tables::of(&self.context, pages, codes)?;
        let fault = self.fault_address(FaultOf::Data);
        let kernel = self.kernel("parquet_columns", columns_text, "parquet_levels")?;
        let levels = Levels::read(&self.context, &kernel, pages, &tables, fault)?;
        let by_texts = kind == Kind::Bytes || (kind == Kind::Decimal && tables.has_delta_bytes);
        let n_rows = pages.n_rows();
        let (wide, texts) = match by_texts {
            true => {
                let (wide, texts) = self.texts(pages, &tables, &levels)?;
                (wide, Some(texts))
            }
            false => (
                Some(self.values(pages, kind, &tables, &levels, codes)?),
                None,
            ),
        };
        let n_values = levels.n_values(&self.context)?;
        let n_nulls = n_rows.saturating_sub(n_values);
        let validity = (n_nulls > 0).then_some(levels.validity);
        let column = match (wide, texts) {
            (Some(wide), _) => self.narrowed(ty, wide, known, validity, n_rows)?,
            (None, Some((values, offsets, stored))) => {
                let shape = ColumnShape {
                    register: ValueRegister::Text,
                    stored,
                    nullable: validity.is_some(),
                };
                DeviceColumn::new(shape, values, validity).with(None, Some(offsets))
            }
            (None, None) => return Err(Error::Internal("a column of nothing".into())),
        };
        let kernel = match by_texts {
            true => "parquet_texts",
            false => kind.names().1,
        };
        let column = Arc::new(column);
        Ok((Decoded { column, n_nulls }, kernel))
    }

    /// A kernel of a text, which is made if the kernel was not used before.
    pub(super) fn kernel(
        &mut self,
        of: &str,
        text: impl Fn() -> String,
        name: &str,
    ) -> Result<Kernel> {
        if let Some(kernel) = self.kernels.get(name) {
            return Ok(kernel.clone());
        }
        let kernel = self.context.load(of, &text())?.kernel(name)?;
        self.kernels.insert(name.to_string(), kernel.clone());
        Ok(kernel)
    }

    /// The address of a fault word.
    pub(super) fn fault_address(&self, of: FaultOf) -> u64 {
        self.faults.at(8 * of as usize).0
    }

    /// Waits, and fails with the first fault: of a dictionary before that of a page.
    pub(super) fn check_faults(&self, pages: &ColumnPages, tables: &Tables) -> Result<()> {
        let faults: Vec<u64> = self.faults.to_vec(&self.context.stream)?;
        let of = |of: FaultOf| faults.get(of as usize).copied().unwrap_or(NO_FAULT);
        if of(FaultOf::Dictionary) != NO_FAULT {
            let numbers = &tables.dictionaries.numbers;
            return Err(page_fault(pages, numbers, of(FaultOf::Dictionary)));
        }
        if of(FaultOf::Data) != NO_FAULT {
            return Err(page_fault(pages, &tables.data.numbers, of(FaultOf::Data)));
        }
        let row = of(FaultOf::Row);
        if row != NO_FAULT {
            let page = tables.page_of_row((row >> 8) as usize) as u64;
            let word = page << 8 | (row & 0xff);
            return Err(page_fault(pages, &tables.data.numbers, word));
        }
        Ok(())
    }

    /// The values as wide elements.
    fn values(
        &mut self,
        pages: &ColumnPages,
        kind: Kind,
        tables: &Tables,
        levels: &Levels,
        codes: Option<&[Vec<i32>]>,
    ) -> Result<Wide> {
        let (_, name) = kind.names();
        let kernel = self.kernel(name, || values_text(kind), name)?;
        let (gpu, stream) = (&self.context.gpu, &self.context.stream);
        let (bytes, element) = kind.element();
        let dictionary = match codes {
            Some(codes) => DeviceBuffer::from_slice(gpu, stream, &codes.concat())?,
            None => DeviceBuffer::allocate(gpu, tables.n_entries * bytes)?,
        };
        let n_rows = pages.n_rows();
        let n_pages = tables.data.len();
        // What stands under a null is the same on every run.
        let values = match pages.is_optional {
            true => DeviceBuffer::zeroed(gpu, stream, n_rows * bytes)?,
            false => DeviceBuffer::allocate(gpu, n_rows * bytes)?,
        };
        let n_shares = n_shares(&self.context, n_pages, n_rows);
        let ranges = DeviceBuffer::for_values::<i128>(gpu, 2 * n_pages * n_shares)?;
        let entries = ValuesPass {
            n_pages: tables.dictionaries.len() as u64,
            n_shares: 1,
            pages: tables.dictionaries.refs.ptr().0,
            states: 0,
            row_of: 0,
            out: dictionary.ptr().0,
            dictionary: 0,
            ranges: 0,
            value_bytes: pages.physical.value_bytes(),
            ticks_per_second: ticks_per_second(pages.ty),
            first_fault: self.fault_address(FaultOf::Dictionary),
        };
        let data = ValuesPass {
            n_pages: n_pages as u64,
            n_shares: n_shares as u64,
            pages: tables.data.refs.ptr().0,
            states: levels.states.ptr().0,
            row_of: levels.row_of.ptr().0,
            out: values.ptr().0,
            dictionary: dictionary.ptr().0,
            ranges: ranges.ptr().0,
            first_fault: self.fault_address(FaultOf::Data),
            ..entries
        };
        for params in [entries, data] {
            let shape = warp_shape(&self.context, (params.n_pages * params.n_shares) as usize);
            // SAFETY: the struct is that of `cuda/parquet/values.h`; its buffers outlive the
            // wait below.
            unsafe { launch(&self.context, &kernel, shape, &params)? };
        }
        self.check_faults(pages, tables)?;
        let range = match element {
            None => None,
            Some(_) => {
                let of_shares: Vec<i128> = ranges.to_vec(&self.context.stream)?;
                self.checked_range(pages, tables, &of_shares, codes.is_none())?
            }
        };
        Ok(Wide {
            values,
            element,
            range,
        })
    }

    /// The interval of all values. One that its type does not have is an error of its page.
    fn checked_range(
        &self,
        pages: &ColumnPages,
        tables: &Tables,
        of_shares: &[i128],
        is_typed: bool,
    ) -> Result<Option<Range>> {
        let full = pages.ty.full_range().filter(|_| is_typed);
        let mut all: Option<Range> = None;
        let (pairs, _) = of_shares.as_chunks::<2>();
        let n_shares = pairs.len() / tables.data.len().max(1);
        for (at, [min, max]) in pairs.iter().enumerate() {
            let number = &tables.data.numbers[at / n_shares];
            if min > max {
                continue;
            }
            let own = Range::new(*min, *max);
            if let Some(full) = full {
                check_type(pages, *number, own, full)?;
            }
            all = Some(all.map_or(own, |all| all.union(own)));
        }
        Ok(all)
    }

    /// The column, in the narrowest elements that hold its values.
    fn narrowed(
        &mut self,
        ty: Type,
        wide: Wide,
        known: Option<Range>,
        validity: Option<DeviceBuffer>,
        n_rows: usize,
    ) -> Result<DeviceColumn> {
        let nullable = validity.is_some();
        let Some(from) = wide.element else {
            let (register, stored) = match ty {
                Type::Bool => (ValueRegister::Bool, "u8"),
                Type::Float32 => (ValueRegister::F32, "f32"),
                _ => (ValueRegister::F64, "f64"),
            };
            let shape = ColumnShape {
                register,
                stored,
                nullable,
            };
            return Ok(DeviceColumn::new(shape, wide.values, validity));
        };
        let measured = wide.range.unwrap_or(Range::point(0));
        let holds = |known: &Range| known.min <= measured.min && known.max >= measured.max;
        let range = known.filter(holds).unwrap_or(measured).rounded();
        let to = match bits(range) {
            8 => "i8",
            16 => "i16",
            32 => "i32",
            64 => "i64",
            _ => "i128",
        };
        let shape = ColumnShape {
            register: ValueRegister::Integer(range.register(), range),
            stored: to,
            nullable,
        };
        let wide_shape = ColumnShape {
            stored: from,
            ..shape
        };
        let values = match wide_shape.stored_bytes() > shape.stored_bytes() {
            true => self.narrow(&wide.values, from, to, n_rows)?,
            // Known values that are wider than what the file can hold.
            false => wide.values,
        };
        let shape = match wide_shape.stored_bytes() < shape.stored_bytes() {
            true => wide_shape,
            false => shape,
        };
        Ok(DeviceColumn::new(shape, values, validity).with(Some(measured), None))
    }

    /// The same values in narrower elements.
    pub(super) fn narrow(
        &mut self,
        wide: &DeviceBuffer,
        from: &str,
        to: &str,
        n: usize,
    ) -> Result<DeviceBuffer> {
        let kernel = self.kernel("parquet_columns", columns_text, &narrow_name(from, to))?;
        let bytes = match to {
            "i8" => 1,
            "i16" => 2,
            "i32" => 4,
            _ => 8,
        };
        let narrow = DeviceBuffer::allocate(&self.context.gpu, n * bytes)?;
        let params = NarrowPass {
            n: n as u64,
            from: wide.ptr().0,
            to: narrow.ptr().0,
        };
        // SAFETY: the struct is that of `cuda/parquet/elements.h`; buffers that go are not
        // handed out before the stream has passed.
        unsafe { launch(&self.context, &kernel, self.rows_shape(n), &params)? };
        Ok(narrow)
    }

    /// A thread a row, but not more than keep a device busy.
    pub(super) fn rows_shape(&self, n: usize) -> LaunchShape {
        let lanes = self.context.gpu.info().warp_lanes as usize;
        warp_shape(&self.context, n.div_ceil(lanes))
    }
}

/// Fails when values are outside of their type.
fn check_type(pages: &ColumnPages, number: PageNumber, own: Range, full: Range) -> Result<()> {
    if own.min >= full.min && own.max <= full.max {
        return Ok(());
    }
    let value = match own.min < full.min {
        true => own.min,
        false => own.max,
    };
    let reason = format!("the value {value} does not fit {}", pages.ty);
    Err(malformed(pages, number, reason))
}

/// Of timestamps; 1 for other types.
fn ticks_per_second(ty: Type) -> u64 {
    match ty {
        Type::Timestamp(TimeUnit::Millisecond) => 1_000,
        Type::Timestamp(TimeUnit::Microsecond) => 1_000_000,
        Type::Timestamp(TimeUnit::Nanosecond) => 1_000_000_000,
        _ => 1,
    }
}
