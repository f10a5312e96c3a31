//! A pipeline over parts of its input, for what does not fit the device at once.
//!
//! ```text
//!   relation 1   slice 0 | slice 1 | ...        by the hash of its join keys
//!   relation 2   all of it
//!   source       piece 0, piece 1, ...          by rows
//!
//!   for each slice: its table; for each piece: filter hash(probe keys) in the slice -> probe
//! ```
//!
//! The filter stands in front of the probe, so a row goes on in exactly one pass, whatever
//! kind of join it is: in the one whose slice has all rows that it can match. Relations are
//! cut by hash where they must be; the source is cut by rows. Groups that are too many for
//! one table are cut the same way, by the hash of their keys, as the last step. Relations that
//! are probed with the same keys are cut together: slice 3 of one meets slice 3 of the other.

use std::sync::Arc;

use kernels::columns::{DeviceChunk, PIECE_ROWS};
use kernels::error::{Error as KernelError, Result as KernelResult};
use kernels::ir::{
    BinaryOp, Build, Collect, Expr, IntWidth, Kind, Literal, Probe, ProbeKind, Step, Type,
};
use kernels::launch::{
    CollectRun, DeviceHashes, JoinTable, Loader, RunCounts, StagedBatch, slice_of_hashes,
};

use super::Device;
use super::failure::{Failure, is_out_of_memory};
use super::held::{Held, Parked};
use super::spill::Spill;

/// A relation is cut into this many slices at most.
const SLICES_MAX: usize = 1 << 12;

/// A piece of the source has at least so many rows, if there are as many.
const PIECE_ROWS_MIN: usize = 1 << 10;

/// Passes over the source at most: more would take longer than the CPU does.
const PASSES_MAX: usize = 1 << 12;

/// Bytes of a join table for each row of its relation, at most and on average over dense and
/// hashed ones: two to four buckets and a link of 32 bits each.
const TABLE_ROW_BYTES: usize = 20;

/// All that a pipeline reads.
#[derive(Debug)]
pub enum Inputs {
    /// Everything is where it should be.
    OnDevice {
        /// The tables, relation 1 first.
        tables: Vec<JoinTable>,
        /// The source.
        source: Arc<DeviceChunk>,
    },
    /// The device has no room for all of it.
    OnHost(HostInputs),
}

/// All that a pipeline reads, on the host.
#[derive(Debug)]
pub struct HostInputs {
    /// The source, in one part or several.
    pub source: Vec<StagedBatch>,
    /// The relations, relation 1 first.
    pub relations: Vec<StagedBatch>,
}

/// The relations that waited: their tables if all of them are on the device, else their rows.
pub fn taken(
    tables: Vec<Parked>,
    device: &Device,
    spill: &Spill,
) -> Result<Result<Vec<JoinTable>, Vec<StagedBatch>>, Failure> {
    let held = tables.into_iter().map(Parked::take);
    let held = held.collect::<Result<Vec<_>, _>>()?;
    let are_there = held.iter().all(|held| matches!(held, Held::Table(_)));
    if are_there && device.least_slices == 1 {
        let tables = held.into_iter().filter_map(|held| match held {
            Held::Table(table) => Some(*table),
            _ => None,
        });
        return Ok(Ok(tables.collect()));
    }
    let rows = held.into_iter().map(|held| held.into_host(spill));
    Ok(Err(rows.collect::<Result<_, _>>()?))
}

/// The rows of tables that are on the device, on the host.
pub fn rows_of(tables: Vec<JoinTable>, spill: &Spill) -> Result<Vec<StagedBatch>, Failure> {
    let rows = tables.into_iter();
    let rows = rows.map(|table| Held::Table(Box::new(table)).into_host(spill));
    rows.collect()
}

impl Inputs {
    /// What waited, with the source.
    pub fn of(
        tables: Vec<Parked>,
        source: Parked,
        device: &Device,
        spill: &Spill,
    ) -> Result<Inputs, Failure> {
        let source = source.take()?;
        let relations = match (taken(tables, device, spill)?, source) {
            (Ok(tables), Held::Rows(source)) => return Ok(Inputs::OnDevice { tables, source }),
            (Ok(tables), source) => (rows_of(tables, spill)?, source),
            (Err(relations), source) => (relations, source),
        };
        let (relations, source) = relations;
        Ok(Inputs::OnHost(HostInputs {
            source: vec![source.into_host(spill)?],
            relations,
        }))
    }
}

/// How the input is cut.
#[derive(Debug, Clone)]
struct Plan {
    /// For each relation the first that is probed with the same keys, itself if none is.
    first_of: Vec<usize>,
    /// For each relation; powers of two. Those that are probed with the same keys have as
    /// many.
    n_slices: Vec<usize>,
    /// For the groups of an aggregate; a power of two.
    n_group_slices: usize,
    /// Rows of a piece of the source.
    piece_rows: usize,
}

impl Plan {
    fn n_passes(&self) -> usize {
        let firsts = self.first_of.iter().enumerate();
        let firsts = firsts.filter(|(relation, first)| relation == *first);
        firsts.fold(self.n_group_slices, |all, (first, _)| {
            all.saturating_mul(self.n_slices[first])
        })
    }
}

/// What is done with the pieces that come through.
pub trait Passes {
    /// A new run begins, of one slice of the groups.
    fn start(&mut self) -> Result<(), Failure>;

    /// A pass begins, with these steps and tables.
    fn pass(&mut self, steps: Vec<Step>, tables: Vec<JoinTable>) -> Result<(), Failure>;

    /// A piece of the source, on the device.
    fn piece(&mut self, piece: DeviceChunk) -> Result<(), Failure>;

    /// Whether a piece that failed has left nothing behind, so that it can be cut in two.
    fn can_split(&self) -> bool;

    /// The tables of the pass, back.
    fn end_pass(&mut self) -> Vec<JoinTable>;

    /// The run ends.
    fn finish(&mut self) -> Result<(), Failure>;

    /// Forgets everything: the plan did not fit.
    fn reset(&mut self);
}

/// What there was no room for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Short {
    /// The table of a relation.
    Table(usize),
    /// A piece of the source, or what it comes to.
    Piece,
}

/// What running in slices did, besides the passes' own account.
#[derive(Debug, Default, Clone, Copy)]
pub struct SlicesReport {
    /// Passes over the source.
    pub n_passes: u64,
    /// Plans and pieces that did not fit and were cut finer.
    pub retries: u64,
    /// Bytes copied, and kernels for hashes and tables.
    pub counts: RunCounts,
}

/// A pipeline whose input is on the host.
pub struct Slices<'a> {
    /// The device.
    pub device: &'a Device,
    /// Where slices wait.
    pub spill: &'a Spill,
    /// The input.
    pub inputs: &'a HostInputs,
    /// How each relation's table is built.
    pub builds: &'a [Build],
    /// The steps of the pipeline.
    pub steps: &'a [Step],
    /// The keys of its groups, if it has any.
    pub group_keys: &'a [Expr],
}

impl Slices<'_> {
    /// Runs the pipeline, in ever finer parts until they fit.
    pub fn run(&self, passes: &mut dyn Passes) -> Result<SlicesReport, Failure> {
        let mut report = SlicesReport::default();
        let mut plan = self.first_plan();
        loop {
            let mut short = Short::Piece;
            match self.run_plan(&plan, passes, &mut report, &mut short) {
                Err(failure) if is_out_of_memory(&failure) => {
                    if !self.refine(&mut plan, short) || plan.n_passes() > PASSES_MAX {
                        return Err(failure);
                    }
                    tracing::debug!(?short, ?plan, "device memory is short: finer parts");
                    passes.reset();
                    report.retries += 1;
                    report.n_passes = 0;
                }
                Err(failure) => return Err(failure),
                Ok(()) => return Ok(report),
            }
        }
    }

    /// Half of the room is for tables, an eighth for a piece of the source; the rest is for
    /// what comes out.
    fn first_plan(&self) -> Plan {
        let room = self.device.room();
        let relations = &self.inputs.relations;
        let least = self.device.least_slices;
        let of_relations = (0..relations.len()).map(|relation| match self.can_slice(relation) {
            true => least,
            false => 1,
        });
        let mut plan = Plan {
            first_of: self.first_of(),
            n_slices: of_relations.collect(),
            n_group_slices: if self.group_keys.is_empty() { 1 } else { least },
            piece_rows: self.rows_within(room / 8),
        };
        if least > 1 {
            plan.piece_rows = PIECE_ROWS;
        }
        while self.table_bytes(&plan) > room / 2 && self.cut_largest(&mut plan) {}
        plan
    }

    /// For each relation the first that is probed with the same keys.
    fn first_of(&self) -> Vec<usize> {
        let all = (0..self.inputs.relations.len()).map(|relation| {
            let same = |other: &usize| self.have_same_keys(*other, relation);
            (0..relation).find(same).unwrap_or(relation)
        });
        all.collect()
    }

    /// Whether two relations are probed with the same keys, so that a row meets the slices of
    /// the same number in both.
    fn have_same_keys(&self, one: usize, other: usize) -> bool {
        let keys = |relation: usize| {
            let probe = self.probe_of(relation)?;
            let keys: Vec<&Expr> = probe.keys.iter().map(|key| &key.probe).collect();
            (!keys.is_empty()).then_some(keys)
        };
        keys(one).is_some_and(|keys_of_one| keys(other) == Some(keys_of_one))
    }

    /// Rows of the source that take so many bytes.
    fn rows_within(&self, bytes: usize) -> usize {
        let source = &self.inputs.source;
        let n_rows: usize = source.iter().map(StagedBatch::n_rows).sum();
        let all: usize = source.iter().map(StagedBatch::bytes).sum();
        let row_bytes = all.div_ceil(n_rows.max(1)).max(1);
        (bytes / row_bytes).clamp(PIECE_ROWS_MIN, u32::MAX as usize / 2)
    }

    fn bytes_of(&self, relation: usize) -> usize {
        let rows = &self.inputs.relations[relation];
        rows.bytes() + rows.n_rows() * TABLE_ROW_BYTES
    }

    fn table_bytes(&self, plan: &Plan) -> usize {
        let all = plan.n_slices.iter().enumerate();
        all.map(|(relation, n)| self.bytes_of(relation) / n).sum()
    }

    /// Cuts the relation whose slices are the largest into twice as many; false if none can
    /// be cut any more.
    fn cut_largest(&self, plan: &mut Plan) -> bool {
        let candidates = (0..plan.n_slices.len()).filter(|relation| self.can_cut(plan, *relation));
        let size = |relation: &usize| self.bytes_of(*relation) / plan.n_slices[*relation];
        match candidates.max_by_key(size) {
            Some(largest) => {
                cut(plan, largest);
                true
            }
            None => false,
        }
    }

    fn can_cut(&self, plan: &Plan, relation: usize) -> bool {
        let n = plan.n_slices[relation];
        n < self.inputs.relations[relation].n_rows().min(SLICES_MAX) && self.can_slice(relation)
    }

    fn probe_of(&self, relation: usize) -> Option<&Probe> {
        self.steps.iter().find_map(|step| match step {
            Step::Probe(probe) if probe.relation == relation + 1 => Some(probe),
            _ => None,
        })
    }

    /// Whether passes over slices of a relation give what one pass over all of it does.
    fn can_slice(&self, relation: usize) -> bool {
        // What nothing matched of a full join's relation is told once for each of its slices,
        // so no other may be cut across them.
        let full = (0..self.inputs.relations.len()).find(|relation| {
            let probe = self.probe_of(*relation);
            probe.is_some_and(|probe| probe.kind == ProbeKind::Full)
        });
        if full.is_some_and(|full| full != relation && !self.have_same_keys(full, relation)) {
            return false;
        }
        self.probe_of(relation)
            .is_some_and(|probe| match probe.keys.is_empty() {
                true => probe.kind == ProbeKind::Matches,
                false => true,
            })
    }

    /// Whether the source may come in several pieces: the rows of a full join that nothing
    /// matched are known only after all of it.
    fn can_cut_source(&self) -> bool {
        !self.steps.iter().any(Step::is_full)
    }

    /// Makes the plan need less of what was short; false if it cannot.
    fn refine(&self, plan: &mut Plan, short: Short) -> bool {
        if let Short::Table(relation) = short {
            if self.can_cut(plan, relation) {
                cut(plan, relation);
                return true;
            }
            return self.cut_largest(plan);
        }
        // Smaller pieces cost little; groups and tables cost a pass for each slice.
        if plan.piece_rows > PIECE_ROWS_MIN && self.can_cut_source() {
            plan.piece_rows = (plan.piece_rows / 4).max(PIECE_ROWS_MIN);
            return true;
        }
        let n_groups = plan.n_group_slices;
        let cut_groups = !self.group_keys.is_empty() && n_groups < SLICES_MAX;
        let largest = plan.n_slices.iter().copied().max().unwrap_or(1);
        if cut_groups && n_groups <= largest {
            plan.n_group_slices *= 2;
            return true;
        }
        if self.cut_largest(plan) {
            return true;
        }
        if cut_groups {
            plan.n_group_slices *= 2;
        }
        cut_groups
    }

    fn run_plan(
        &self,
        plan: &Plan,
        passes: &mut dyn Passes,
        report: &mut SlicesReport,
        short: &mut Short,
    ) -> Result<(), Failure> {
        let sliced = self.sliced(plan, report)?;
        let facts = self.facts(&sliced, report, short)?;
        for groups in 0..plan.n_group_slices {
            passes.start()?;
            let mut tables: Vec<Option<JoinTable>> = sliced.iter().map(|_| None).collect();
            let mut at = vec![0; sliced.len()];
            loop {
                for (relation, table) in tables.iter_mut().enumerate() {
                    if table.is_none() {
                        let rows = &sliced[relation][at[relation]];
                        *short = Short::Table(relation);
                        let built = self.build(relation, rows, report)?;
                        *table = Some(match facts[relation] {
                            Some((has_nulls, is_empty)) => built.with_facts(has_nulls, is_empty),
                            None => built,
                        });
                    }
                }
                let steps = self.steps_of(plan, &at, groups);
                *short = Short::Piece;
                passes.pass(steps, tables.drain(..).flatten().collect())?;
                report.n_passes += 1;
                self.feed(plan, passes, report)?;
                tables = passes.end_pass().into_iter().map(Some).collect();
                if !advance(plan, &mut at, &mut tables) {
                    break;
                }
            }
            drop(tables);
            passes.finish()?;
        }
        Ok(())
    }

    /// Gives all pieces of the source to the pass.
    fn feed(
        &self,
        plan: &Plan,
        passes: &mut dyn Passes,
        report: &mut SlicesReport,
    ) -> Result<(), Failure> {
        for part in &self.inputs.source {
            // Also without rows: a full join then gives those of the other side.
            if !self.can_cut_source() {
                self.feed_piece(part, passes, report)?;
                continue;
            }
            for piece in part.pieces(plan.piece_rows) {
                self.feed_piece(&piece, passes, report)?;
            }
        }
        Ok(())
    }

    fn feed_piece(
        &self,
        piece: &StagedBatch,
        passes: &mut dyn Passes,
        report: &mut SlicesReport,
    ) -> Result<(), Failure> {
        let done = match self.upload(piece, report) {
            Ok(copied) => passes.piece(copied),
            // Nothing has happened to it yet.
            Err(error) => return self.feed_halves(piece, error.into(), passes, report),
        };
        match done {
            Err(failure) if passes.can_split() && is_out_of_memory(&failure) => {
                self.feed_halves(piece, failure, passes, report)
            }
            done => done,
        }
    }

    fn feed_halves(
        &self,
        piece: &StagedBatch,
        failure: Failure,
        passes: &mut dyn Passes,
        report: &mut SlicesReport,
    ) -> Result<(), Failure> {
        if !is_out_of_memory(&failure) || piece.n_rows() <= PIECE_ROWS_MIN || !self.can_cut_source()
        {
            return Err(failure);
        }
        report.retries += 1;
        for half in piece.pieces(piece.n_rows().div_ceil(2)) {
            self.feed_piece(&half, passes, report)?;
        }
        Ok(())
    }

    fn upload(&self, rows: &StagedBatch, report: &mut SlicesReport) -> KernelResult<DeviceChunk> {
        let device = self.device;
        let loader = Loader::new(&device.gpu, &device.pinned, Vec::new(), Arc::default())?;
        let chunk = loader.upload(rows)?;
        report.counts.bytes_to_device += rows.bytes() as u64;
        Ok(chunk)
    }

    fn build(
        &self,
        relation: usize,
        rows: &StagedBatch,
        report: &mut SlicesReport,
    ) -> Result<JoinTable, Failure> {
        let (gpu, jit) = (&self.device.gpu, &self.device.jit);
        let chunk = Arc::new(self.upload(rows, report)?);
        let (table, counts) = JoinTable::build(gpu, jit, &self.builds[relation], chunk)?;
        report.counts = report.counts.and(&counts);
        Ok(table)
    }

    /// The slices of every relation.
    fn sliced(
        &self,
        plan: &Plan,
        report: &mut SlicesReport,
    ) -> Result<Vec<Vec<StagedBatch>>, Failure> {
        let relations = self.inputs.relations.iter().zip(&plan.n_slices).enumerate();
        let sliced = relations.map(|(relation, (rows, n))| match n {
            1 => Ok(vec![rows.clone()]),
            n => self.slices_of(relation, rows, *n, plan.piece_rows, report),
        });
        sliced.collect()
    }

    fn slices_of(
        &self,
        relation: usize,
        rows: &StagedBatch,
        n: usize,
        piece_rows: usize,
        report: &mut SlicesReport,
    ) -> Result<Vec<StagedBatch>, Failure> {
        let keys: Vec<Expr> = self.builds[relation]
            .keys
            .iter()
            .map(|key| key.value.clone())
            .collect();
        if keys.is_empty() {
            let mut pieces: Vec<_> = rows.pieces(rows.n_rows().div_ceil(n)).collect();
            // A piece has a least size, so there may be fewer.
            pieces.resize_with(n, || rows.none());
            return Ok(pieces);
        }
        let hash = Collect {
            steps: Vec::new(),
            outputs: vec![Expr::hash(keys)],
        };
        let read = rows.only(&hash.columns());
        let device = self.device;
        let (gpu, jit) = (Arc::clone(&device.gpu), Arc::clone(&device.jit));
        let mut run = CollectRun::new(gpu, jit, &device.pinned, hash, Arc::default())?;
        let mut hashes = Vec::new();
        for piece in read.pieces(piece_rows.min(rows.n_rows())) {
            let copied = self.upload(&piece, report)?;
            hashes.push(DeviceHashes::of_device(&run.collect_to_device(&copied)?)?);
        }
        report.counts = report.counts.and(&run.counts());
        let slices = rows.slices(&hashes, n)?.into_iter();
        let kept = slices.map(|slice| Ok(self.spill.keep_staged(slice)?));
        kept.collect()
    }

    /// For relations that `NOT IN` looks into: whether any of their rows has a null key, and
    /// whether there is no row at all. Either is so of all slices or of none.
    fn facts(
        &self,
        sliced: &[Vec<StagedBatch>],
        report: &mut SlicesReport,
        short: &mut Short,
    ) -> Result<Vec<Option<(bool, bool)>>, Failure> {
        let relations = sliced.iter().enumerate().map(|(relation, slices)| {
            let probe = self.probe_of(relation);
            if slices.len() == 1 || probe.is_none_or(|probe| probe.kind != ProbeKind::NotIn) {
                return Ok(None);
            }
            let (mut has_null_keys, mut is_empty) = (false, true);
            *short = Short::Table(relation);
            for rows in slices {
                let shape = self.build(relation, rows, report)?.shape();
                has_null_keys |= shape.has_null_keys;
                is_empty &= shape.is_empty;
            }
            Ok(Some((has_null_keys, is_empty)))
        });
        relations.collect()
    }

    /// The steps with a filter in front of each probe of a sliced relation, and one for the
    /// groups behind all.
    fn steps_of(&self, plan: &Plan, at: &[usize], groups: usize) -> Vec<Step> {
        let mut steps = Vec::new();
        for step in self.steps {
            if let Step::Probe(probe) = step
                && let Some(relation) = probe.relation.checked_sub(1)
                && plan.n_slices[relation] > 1
                && !probe.keys.is_empty()
            {
                let keys = probe.keys.iter().map(|key| key.probe.clone());
                let (slice, n) = (at[relation], plan.n_slices[relation]);
                steps.push(Step::Filter(in_slice(keys.collect(), slice, n)));
            }
            steps.push(step.clone());
        }
        if plan.n_group_slices > 1 {
            let keys = self.group_keys.to_vec();
            steps.push(Step::Filter(in_slice(keys, groups, plan.n_group_slices)));
        }
        steps
    }
}

/// Cuts a relation, and those that are probed with the same keys, into twice as many slices.
fn cut(plan: &mut Plan, relation: usize) {
    let first = plan.first_of[relation];
    let all = plan.n_slices.iter_mut().zip(&plan.first_of);
    for (n, _) in all.filter(|(_, own)| **own == first) {
        *n *= 2;
    }
}

/// Goes on to the next combination of slices; the tables of those that change are dropped.
fn advance(plan: &Plan, at: &mut [usize], tables: &mut [Option<JoinTable>]) -> bool {
    // The last relation changes most often.
    for first in (0..at.len()).rev() {
        if plan.first_of[first] != first || plan.n_slices[first] == 1 {
            continue;
        }
        let next = (at[first] + 1) % plan.n_slices[first];
        for relation in (0..at.len()).filter(|relation| plan.first_of[*relation] == first) {
            at[relation] = next;
            tables[relation] = None;
        }
        if next > 0 {
            return true;
        }
    }
    false
}

/// Whether the hash of some values is in a slice.
fn in_slice(values: Vec<Expr>, slice: usize, n_slices: usize) -> Expr {
    let (first, last) = slice_of_hashes(slice, n_slices);
    let hash = Expr::hash(values);
    let compared = |op: BinaryOp, with: i128| Expr {
        kind: Kind::Binary(
            op,
            Arc::new(hash.clone()),
            Arc::new(Expr::literal(
                Literal::Integer(with),
                Type::Int(IntWidth::W32),
            )),
        ),
        ty: Type::Bool,
        nullable: false,
    };
    Expr {
        kind: Kind::Binary(
            BinaryOp::And,
            Arc::new(compared(BinaryOp::GreaterOrEqual, first)),
            Arc::new(compared(BinaryOp::LessOrEqual, last)),
        ),
        ty: Type::Bool,
        nullable: false,
    }
}

/// A failure of the passes' own making.
pub fn without_run() -> Failure {
    KernelError::Internal("a pass without a run".into()).into()
}
