//! Running an aggregate over record batches: stage, launch, read back, add up.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::array::RecordBatch;

use super::context::{Context, RunCounts};
use super::count;
use super::dense_groups::{DenseGroups, dense_key, key_range, starts_as_zero};
use super::distinct::DistinctSets;
use super::few_groups;
use super::join::JoinTable;
use super::loader::Loader;
use super::many_groups::{ComesThrough, FIRST_ROWS, GroupTable, ManyGroups};
use super::relations::{Relations, source_columns};
use super::totals::{Number, Totals, merge};
use crate::codegen::{self, GroupOutput, Unsupported};
use crate::columns::DeviceChunk;
use crate::error::{Error, Result};
use crate::gpu::{Gpu, PinnedPool};
use crate::ir::{Aggregate, Function, Kind, Range, Step, Type};
use crate::jit::Jit;

/// One aggregate over any number of chunks of the same columns.
///
/// Chunks whose keys have few values are added up by each thread on its own; the
/// first chunk whose keys have too many makes a table on the device, and all later
/// chunks use it.
#[derive(Debug)]
pub struct AggregateRun {
    context: Context,
    aggregate: Aggregate,
    /// For chunks that the run loads itself.
    loader: Loader,
    totals: Totals,
    table: Option<GroupTable>,
    dense: Option<DenseGroups>,
    /// What calls with DISTINCT have seen.
    sets: DistinctSets,
    joined: Vec<JoinTable>,
    /// Of keys that are plain columns, the interval of their values so far.
    key_ranges: Vec<Option<Range>>,
    first_rows: usize,
    last_kernel: Option<String>,
}

impl AggregateRun {
    /// Prepares a run. `known` holds ranges that statistics prove; they are used
    /// where the values do not contradict them.
    pub fn new(
        gpu: Arc<dyn Gpu>,
        jit: Arc<Jit>,
        pool: &PinnedPool,
        aggregate: Aggregate,
        known: Arc<HashMap<usize, Range>>,
    ) -> Result<AggregateRun> {
        if aggregate.steps.iter().any(Step::is_full) {
            return Err(Error::Unsupported("a full join inside an aggregate".into()));
        }
        let columns = source_columns(aggregate.columns());
        let loader = Loader::new(&gpu, pool, columns, known)?;
        let totals = Totals::new(functions(&aggregate));
        Ok(AggregateRun {
            context: Context::new(gpu, jit)?,
            aggregate,
            loader,
            totals,
            table: None,
            dense: None,
            sets: DistinctSets::default(),
            joined: Vec::new(),
            key_ranges: Vec::new(),
            first_rows: FIRST_ROWS,
            last_kernel: None,
        })
    }

    /// Gives the run the tables that its steps probe, relation 1 first.
    pub fn with_tables(mut self, tables: Vec<JoinTable>) -> AggregateRun {
        self.joined = tables;
        self
    }

    /// Puts other steps, which differ in constants alone, and other tables in place for the
    /// chunks that come; the groups stay.
    pub fn go_on_with(&mut self, steps: Vec<Step>, tables: Vec<JoinTable>) {
        self.aggregate.steps = steps;
        self.joined = tables;
    }

    /// The tables, back.
    pub fn take_tables(&mut self) -> Vec<JoinTable> {
        std::mem::take(&mut self.joined)
    }

    /// How many rows the first launch over a chunk takes that has many groups; later ones
    /// follow from what it finds.
    pub fn with_first_rows(mut self, rows: usize) -> AggregateRun {
        self.first_rows = rows;
        self
    }

    /// Adds one record batch, whose columns are the source's.
    pub fn add(&mut self, record_batch: &RecordBatch) -> Result<()> {
        if record_batch.num_rows() == 0 {
            return Ok(());
        }
        let staged = self.loader.stage(record_batch)?;
        let chunk = self.loader.upload(&staged)?;
        self.add_copied(&chunk)
    }

    /// Adds a chunk that was just copied for this run.
    pub fn add_copied(&mut self, chunk: &DeviceChunk) -> Result<()> {
        self.context.counts.bytes_to_device += chunk.bytes() as u64;
        self.add_resident(chunk)
    }

    /// Adds a chunk that is on the device already.
    pub fn add_resident(&mut self, chunk: &DeviceChunk) -> Result<()> {
        if chunk.n_rows == 0 {
            return Ok(());
        }
        chunk.wait_on(&self.context.stream)?;
        if self.table.is_some() || !self.add_to_few(chunk)? {
            self.add_to_many(chunk, false)?;
        }
        self.context.counts.rows += chunk.n_rows as u64;
        self.context.counts.chunks += 1;
        Ok(())
    }

    /// Adds the only chunk: all rows of the source, which is on the device already.
    pub fn add_all(&mut self, chunk: &DeviceChunk) -> Result<()> {
        if chunk.n_rows == 0 {
            return Ok(());
        }
        chunk.wait_on(&self.context.stream)?;
        if !self.add_to_few(chunk)? && !self.add_to_dense(chunk)? {
            self.add_to_many(chunk, true)?;
        }
        self.context.counts.rows += chunk.n_rows as u64;
        self.context.counts.chunks += 1;
        Ok(())
    }

    /// Adds the chunk if its key's values lie close together; false if they do not.
    fn add_to_dense(&mut self, chunk: &DeviceChunk) -> Result<bool> {
        let rows = Relations {
            source: chunk,
            tables: &self.joined,
        };
        if self.aggregate.has_distinct() || key_range(&self.aggregate, &rows).is_none() {
            return Ok(false);
        }
        let (shapes, tables) = (rows.shapes(), rows.table_shapes());
        let kernel = codegen::generate_dense(
            &self.aggregate,
            &shapes,
            &tables,
            rows.rows_max(&self.aggregate.steps),
        );
        let kernel = kernel.map_err(unsupported)?;
        let free = self.context.gpu.meter().free();
        let Some(range) = dense_key(&self.aggregate, &rows, kernel.state_words, free) else {
            return Ok(false);
        };
        if !starts_as_zero(&kernel) {
            return Ok(false);
        }
        let (context, aggregate) = (&mut self.context, &self.aggregate);
        self.dense = Some(DenseGroups::of(context, aggregate, &kernel, &rows, range)?);
        self.last_kernel = Some(kernel.name);
        Ok(true)
    }

    /// Adds the chunk if its keys have few values; false if they have not.
    fn add_to_few(&mut self, chunk: &DeviceChunk) -> Result<bool> {
        // A kernel adds up one chunk only, so its rows bound every sum. They pick how
        // states are held and do not stand in the text, so other sizes share it.
        let rows = Relations {
            source: chunk,
            tables: &self.joined,
        };
        let n_sets = self.aggregate.n_sets();
        let rows_max = rows
            .rows_max(&self.aggregate.steps)
            .saturating_mul(n_sets as u64);
        let (shapes, tables) = (rows.shapes(), rows.table_shapes());
        let kernel = match codegen::generate(&self.aggregate, &shapes, &tables, rows_max) {
            Ok(kernel) => kernel,
            Err(reason) if reason.code == codegen::TOO_MANY_GROUPS => return Ok(false),
            Err(reason) => return Err(unsupported(reason)),
        };
        let rows_through = match rows.may_expand(&self.aggregate.steps) && !kernel.sets.is_empty() {
            true => {
                let steps = &self.aggregate.steps;
                Some(count::rows_through(&mut self.context, steps, &rows)?)
            }
            false => None,
        };
        let (context, sets) = (&mut self.context, &mut self.sets);
        let words = few_groups::launch(context, &kernel, &rows, sets, rows_through, n_sets)?;
        self.totals.add_chunk(&kernel, &words)?;
        self.last_kernel = Some(kernel.name);
        Ok(true)
    }

    fn add_to_many(&mut self, chunk: &DeviceChunk, is_only: bool) -> Result<()> {
        let rows = Relations {
            source: chunk,
            tables: &self.joined,
        };
        let n_sets = self.aggregate.n_sets();
        let rows_max = rows.rows_max(&self.aggregate.steps);
        let bound = is_only.then(|| rows_max.saturating_mul(n_sets as u64));
        let (shapes, tables) = (rows.shapes(), rows.table_shapes());
        let expands = rows.may_expand(&self.aggregate.steps);
        let kernel = codegen::generate_many(
            &self.aggregate,
            &shapes,
            &tables,
            bound,
            expands || n_sets > 1,
        )
        .map_err(unsupported)?;
        let comes_through = if expands {
            let steps = &self.aggregate.steps;
            ComesThrough::All(count::rows_through(&mut self.context, steps, &rows)?)
        } else {
            ComesThrough::Each(n_sets)
        };
        let table = match &mut self.table {
            Some(table) => table,
            none => none.insert(GroupTable::new(&self.context, &kernel, self.first_rows)?),
        };
        let (context, sets) = (&mut self.context, &mut self.sets);
        table.add(context, &kernel, &rows, comes_through, sets)?;
        let ranges = self.aggregate.keys.iter().map(|key| match key.kind {
            Kind::Column(index) => rows.column(index).ok()?.range,
            _ => None,
        });
        self.key_ranges = match self.key_ranges.is_empty() {
            true => ranges.collect(),
            false => {
                let both = self.key_ranges.iter().zip(ranges);
                both.map(|(a, b)| Some((*a)?.union(b?))).collect()
            }
        };
        self.last_kernel = Some(kernel.name);
        Ok(())
    }

    /// The groups and what was done to get them.
    pub fn finish(mut self) -> Result<(Groups, RunCounts)> {
        if self.aggregate.keys.is_empty() {
            self.totals.ensure_group_without_keys();
        }
        let groups = match self.table {
            None => Groups::few(&self.totals),
            Some(table) => {
                let functions = functions(&self.aggregate);
                let many = table.finish(&mut self.context, &functions)?;
                Groups::many(many, &self.totals, &functions)?
            }
        };
        Ok((groups, self.context.counts))
    }

    /// Whether all groups are in the device's table, so that [`AggregateRun::columns`]
    /// gives them. It does after [`AggregateRun::add_all`] of many groups.
    pub fn is_on_device(&self) -> bool {
        (self.table.is_some() || self.dense.is_some()) && self.totals.groups().is_empty()
    }

    /// Whether groups are in a hashed table, which [`AggregateRun::finish`] can copy home.
    pub fn has_table(&self) -> bool {
        self.table.is_some()
    }

    /// The groups as columns on the device, numbered from 0.
    pub fn columns(&mut self, outputs: &[(GroupOutput, Type)]) -> Result<DeviceChunk> {
        let outputs: Vec<(GroupOutput, Type)> = outputs
            .iter()
            .map(|(output, ty)| match output {
                GroupOutput::Key { key, .. } => {
                    let range = self.key_ranges.get(*key).copied().flatten();
                    (GroupOutput::Key { key: *key, range }, *ty)
                }
                other => (*other, *ty),
            })
            .collect();
        if let Some(dense) = &self.dense {
            return dense.columns(&mut self.context, &functions(&self.aggregate), &outputs);
        }
        let table = self.table.as_ref();
        let table = table.ok_or_else(|| Error::Internal("there is no table of groups".into()))?;
        table.columns(&mut self.context, &functions(&self.aggregate), &outputs)
    }

    /// What was done so far.
    pub fn counts(&self) -> RunCounts {
        self.context.counts
    }

    /// The kernel of the last chunk.
    pub fn kernel_name(&self) -> Option<&str> {
        self.last_kernel.as_deref()
    }
}

fn functions(aggregate: &Aggregate) -> Vec<Function> {
    aggregate.calls.iter().map(|call| call.function).collect()
}

fn unsupported(reason: Unsupported) -> Error {
    Error::Unsupported(reason.message)
}

/// Groups that were added up apart: few, so plain values do.
type Apart = Vec<(Vec<Option<Number>>, Vec<Option<Number>>)>;

/// The groups of a finished aggregate, numbered from 0 in no particular order.
#[derive(Debug)]
pub struct Groups {
    /// Those of the device's table.
    many: Option<ManyGroups>,
    /// Those beside it.
    apart: Apart,
    /// Groups of the table that earlier chunks had added to apart: their values.
    merged: HashMap<usize, Vec<Option<Number>>>,
}

impl Groups {
    fn few(totals: &Totals) -> Groups {
        Groups {
            many: None,
            apart: apart(totals),
            merged: HashMap::new(),
        }
    }

    /// A table's groups, and those that chunks before the table had added up.
    fn many(many: ManyGroups, totals: &Totals, functions: &[Function]) -> Result<Groups> {
        let mut earlier: Apart = apart(totals);
        let mut merged = HashMap::new();
        if !earlier.is_empty() {
            let n_keys = earlier[0].0.len();
            for group in 0..many.len() {
                let key: Vec<Option<Number>> = (0..n_keys).map(|k| many.key(k, group)).collect();
                let Some(at) = earlier.iter().position(|(known, _)| *known == key) else {
                    continue;
                };
                let (_, values) = earlier.swap_remove(at);
                let mut both = Vec::with_capacity(functions.len());
                for (call, (function, value)) in functions.iter().zip(values).enumerate() {
                    both.push(merge(*function, value, many.value(call, group)?)?);
                }
                merged.insert(group, both);
                if earlier.is_empty() {
                    break;
                }
            }
        }
        Ok(Groups {
            many: Some(many),
            apart: earlier,
            merged,
        })
    }

    /// Number of groups.
    pub fn len(&self) -> usize {
        self.n_many() + self.apart.len()
    }

    /// Whether there is no group.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn n_many(&self) -> usize {
        self.many.as_ref().map_or(0, ManyGroups::len)
    }

    /// The value of key `key` of a group; null when it is null.
    pub fn key(&self, key: usize, group: usize) -> Option<Number> {
        match &self.many {
            Some(many) if group < many.len() => many.key(key, group),
            _ => self.apart[group - self.n_many()].0[key],
        }
    }

    /// The value of call `call` of a group; null when no row went in.
    pub fn value(&self, call: usize, group: usize) -> Result<Option<Number>> {
        match &self.many {
            Some(many) if group < many.len() => match self.merged.get(&group) {
                Some(values) => Ok(values[call]),
                None => many.value(call, group),
            },
            _ => Ok(self.apart[group - self.n_many()].1[call]),
        }
    }
}

fn apart(totals: &Totals) -> Apart {
    let groups = totals.groups().iter();
    groups
        .map(|(key, values)| {
            let key = key.iter().map(|value| value.map(Number::Integer)).collect();
            (key, values.clone())
        })
        .collect()
}
