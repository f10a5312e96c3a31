//! Making a join table of a relation that is on the device.

use std::sync::Arc;

use super::context::Context;
use super::parameters::ParameterBytes;
use super::relations::Relations;
use crate::codegen::{
    ColumnShape, TableShape, Unsupported, ValueRegister, generate_build, generate_duplicates,
};
use crate::columns::{DeviceChunk, DeviceColumn};
use crate::error::{Error, Result};
use crate::gpu::{DeviceBuffer, Gpu, Stream};
use crate::ir::{Build, Expr, Kind, RELATION_COLUMNS, Range};
use crate::jit::Jit;
use crate::launch::RunCounts;

/// Buckets that a dense table may have for each row. Most of them are empty then, but to
/// clear them costs less than the reads that a hash scatters: rows that probe often stand
/// in the order of their keys, and nothing has to be compared.
const DENSE_BUCKETS_PER_ROW: i128 = 32;

/// No dense table has more buckets, which is 4 GiB.
const DENSE_BUCKETS_MAX: i128 = 1 << 30;

/// A dense table takes this part of the free memory at most.
const FREE_PART: i128 = 4;

/// A dense table of so many buckets is always worth it: it stays in the fastest cache.
const DENSE_BUCKETS_FREE: i128 = 1 << 16;

/// The rows of a relation by their keys: see `cuda/table/join_table.h`.
#[derive(Debug)]
pub struct JoinTable {
    rows: Arc<DeviceChunk>,
    heads: DeviceBuffer,
    next: DeviceBuffer,
    n_buckets: u64,
    min: i64,
    shape: TableShape,
    /// Rows for which this is not true are not in it.
    filter: Option<Expr>,
    /// A byte a row that a full join sets for those that were matched.
    matched: Option<Arc<DeviceColumn>>,
}

impl JoinTable {
    /// A relation whose rows are looked up by their numbers only.
    pub fn of_rows(gpu: &Arc<dyn Gpu>, rows: Arc<DeviceChunk>) -> Result<JoinTable> {
        Ok(JoinTable {
            rows,
            heads: DeviceBuffer::allocate(gpu, 0)?,
            next: DeviceBuffer::allocate(gpu, 0)?,
            n_buckets: 0,
            min: 0,
            shape: TableShape {
                is_dense: true,
                is_unique: true,
                has_chains: false,
                is_flags: false,
                is_empty: false,
                has_null_keys: false,
                match_percent: 100,
            },
            filter: None,
            matched: None,
        })
    }

    /// Makes the table. The rows are those of `rows` that pass the build's filter.
    ///
    /// Fails with [`Error::Unsupported`] for more than 2^32 - 2 rows.
    pub fn build(
        gpu: &Arc<dyn Gpu>,
        jit: &Arc<Jit>,
        build: &Build,
        rows: Arc<DeviceChunk>,
    ) -> Result<(JoinTable, RunCounts)> {
        let mut context = Context::new(Arc::clone(gpu), Arc::clone(jit))?;
        rows.wait_on(&context.stream)?;
        let n_rows = rows.n_rows;
        if n_rows >= u32::MAX as usize {
            return Err(Error::Unsupported(format!(
                "a join with {n_rows} rows on the side that is looked up"
            )));
        }
        if build.keys.is_empty() {
            let all = JoinTable {
                n_buckets: n_rows as u64,
                shape: TableShape {
                    is_dense: true,
                    is_unique: n_rows <= 1,
                    has_chains: n_rows > 1,
                    is_flags: false,
                    is_empty: n_rows == 0,
                    has_null_keys: false,
                    match_percent: 100,
                },
                filter: build.filter.clone(),
                ..JoinTable::of_rows(gpu, rows)?
            };
            return Ok((all, context.counts));
        }
        let dense = dense_range(build, &rows, gpu.meter().free());
        let (n_buckets, min) = match dense {
            Some((min, n_buckets)) => (n_buckets, min),
            None => ((2 * n_rows).next_power_of_two().max(2) as u64, 0),
        };
        let is_flags = build.only_exists && dense.is_some();
        let stream = &context.stream;
        let (heads, next) = match is_flags {
            true => (
                DeviceBuffer::zeroed(gpu, stream, n_buckets as usize)?,
                DeviceBuffer::allocate(gpu, 0)?,
            ),
            false => {
                let heads_bytes = n_buckets as usize * size_of::<u32>();
                (
                    DeviceBuffer::filled(gpu, stream, heads_bytes, 0xff)?,
                    DeviceBuffer::for_values::<u32>(gpu, n_rows)?,
                )
            }
        };
        let mut table = JoinTable {
            rows,
            heads,
            next,
            n_buckets,
            min,
            shape: TableShape {
                is_dense: dense.is_some(),
                is_unique: true,
                has_chains: false,
                is_flags,
                is_empty: true,
                has_null_keys: false,
                match_percent: 100,
            },
            filter: build.filter.clone(),
            matched: None,
        };
        if n_rows > 0 {
            let [duplicates, null_keys, n_inserted] = table.fill(&mut context, build)?;
            table.shape.has_chains = duplicates != 0;
            table.shape.is_unique = duplicates == 0
                || !table.shape.is_dense && table.keys_differ(&mut context, build)?;
            table.shape.has_null_keys = null_keys != 0;
            table.shape.is_empty = n_inserted == 0 && null_keys == 0;
            let n_values = key_range(build, &table.rows)
                .and_then(|range| range.max.checked_sub(range.min)?.checked_add(1));
            if let Some(n_values) = n_values.filter(|n| *n > 0) {
                let percent = i128::from(n_inserted).saturating_mul(100) / n_values;
                table.shape.match_percent = percent.clamp(1, 100) as u8;
            }
        }
        Ok((table, context.counts))
    }

    /// Inserts all rows; whether some bucket has several, whether keys were null, and
    /// how many rows are in it.
    fn fill(&self, context: &mut Context, build: &Build) -> Result<[u32; 3]> {
        let kernel = generate_build(
            build,
            &self.rows.shapes(),
            self.shape.is_dense,
            self.shape.is_flags,
        )
        .map_err(unsupported)?;
        let entry = context.kernel(&kernel.name, &kernel.text)?;
        let facts = DeviceBuffer::zeroed(&context.gpu, &context.stream, 3 * size_of::<u32>())?;
        let mut params = ParameterBytes::default();
        params.word(self.rows.n_rows as u64);
        params.word(context.fault_address());
        params.word(facts.ptr().0);
        self.push_reference(&mut params);
        let rows = Relations {
            source: &self.rows,
            tables: &[],
        };
        rows.push(&mut params, context, &kernel.columns, &kernel.parameters)?;
        let shape = context.shape(&entry, self.rows.n_rows, |_| 0)?;
        // SAFETY: the fields were appended in the order of the generated struct; table
        // and rows outlive the call, which waits for the kernel. `next` has a place for
        // every row and `heads` one for every bucket.
        unsafe { context.run(&entry, shape, &params)? };
        context.counts.rows += self.rows.n_rows as u64;
        context.counts.chunks += 1;
        let facts: Vec<u32> = facts.to_vec(&context.stream)?;
        match <[u32; 3]>::try_from(facts) {
            Ok(facts) => Ok(facts),
            Err(_) => Err(Error::Internal("a table's facts were not read".into())),
        }
    }

    /// Whether no two rows of a hashed table have the same keys.
    fn keys_differ(&self, context: &mut Context, build: &Build) -> Result<bool> {
        if build.only_exists {
            // Nobody asks.
            return Ok(false);
        }
        let kernel = generate_duplicates(build, &self.rows.shapes()).map_err(unsupported)?;
        let entry = context.kernel(&kernel.name, &kernel.text)?;
        let facts = DeviceBuffer::zeroed(&context.gpu, &context.stream, 3 * size_of::<u32>())?;
        let mut params = ParameterBytes::default();
        params.word(context.fault_address());
        params.word(facts.ptr().0);
        self.push_reference(&mut params);
        for index in &kernel.columns {
            let column = self.rows.column(index % RELATION_COLUMNS)?;
            params.column(column);
        }
        params.constants(&kernel.parameters, &context.gpu, &context.stream)?;
        let shape = context.shape(&entry, self.n_buckets as usize, |_| 0)?;
        // SAFETY: the fields were appended in the order of the generated struct; table
        // and rows outlive the call, which waits for the kernel.
        unsafe { context.run(&entry, shape, &params)? };
        let facts: Vec<u32> = facts.read(&context.stream, 0, 1)?;
        Ok(facts.first() == Some(&0))
    }

    /// The relation's rows.
    pub fn rows(&self) -> &DeviceChunk {
        &self.rows
    }

    /// The relation's rows, without the table.
    pub fn into_rows(self) -> Arc<DeviceChunk> {
        self.rows
    }

    /// Says of a table of some of a relation's rows what is so of all of them, which `NOT IN`
    /// asks for.
    pub fn with_facts(mut self, has_null_keys: bool, is_empty: bool) -> JoinTable {
        self.shape.has_null_keys = has_null_keys;
        self.shape.is_empty = is_empty;
        self
    }

    /// How it is probed.
    pub fn shape(&self) -> TableShape {
        self.shape
    }

    /// Bytes of the table, without the relation's columns.
    pub fn bytes(&self) -> usize {
        self.heads.bytes() + self.next.bytes()
    }

    /// Makes room for the marks of a full join; no row is matched yet.
    pub(super) fn keep_matches(&mut self, stream: &Stream) -> Result<()> {
        let bytes = DeviceBuffer::zeroed(self.heads.gpu(), stream, self.rows.n_rows)?;
        let shape = ColumnShape {
            register: ValueRegister::Bool,
            stored: "u8",
            nullable: false,
        };
        self.matched = Some(Arc::new(DeviceColumn::new(shape, bytes, None)));
        Ok(())
    }

    /// Which rows were matched, if that is kept.
    pub(super) fn matched(&self) -> Option<&Arc<DeviceColumn>> {
        self.matched.as_ref()
    }

    /// Rows for which this is not true are not in the table.
    pub(super) fn filter(&self) -> Option<&Expr> {
        self.filter.as_ref()
    }

    pub(super) fn push_reference(&self, params: &mut ParameterBytes) {
        params.pair(self.heads.ptr().0, self.next.ptr().0);
        params.pair(self.n_buckets, self.min as u64);
        let matched = self.matched.as_ref();
        params.pair(matched.map_or(0, |bytes| bytes.values_address()), 0);
    }
}

/// The smallest key and the number of buckets of a dense table, if one is worth it: one
/// integral key whose values are known to lie close together. Of the `free` bytes of memory
/// it takes a part only, unless a hashed table would take as much.
fn dense_range(build: &Build, rows: &DeviceChunk, free: usize) -> Option<(i64, u64)> {
    let [key] = build.keys.as_slice() else {
        return None;
    };
    if key.null_equal && key.value.nullable {
        return None;
    }
    let Range { min, max } = key_range(build, rows)?;
    let n_buckets = max.checked_sub(min)?.checked_add(1)?;
    let worth = (rows.n_rows as i128 * DENSE_BUCKETS_PER_ROW).max(DENSE_BUCKETS_FREE);
    let bucket_bytes = if build.only_exists {
        1
    } else {
        size_of::<u32>() as i128
    };
    let hashed_bytes = rows.n_rows as i128 * 2 * size_of::<u32>() as i128;
    let affordable = hashed_bytes.max(free as i128 / FREE_PART) / bucket_bytes;
    if n_buckets > worth.min(DENSE_BUCKETS_MAX).min(affordable) {
        return None;
    }
    Some((i64::try_from(min).ok()?, u64::try_from(n_buckets).ok()?))
}

/// The interval of the only key, if it is an integral column.
fn key_range(build: &Build, rows: &DeviceChunk) -> Option<Range> {
    let [key] = build.keys.as_slice() else {
        return None;
    };
    let Kind::Column(index) = key.value.kind else {
        return None;
    };
    let column = rows.column(index).ok()?;
    match column.shape.register {
        ValueRegister::Integer(_, proved) => Some(column.range.unwrap_or(proved)),
        _ => None,
    }
}

fn unsupported(reason: Unsupported) -> Error {
    Error::Unsupported(reason.message)
}
