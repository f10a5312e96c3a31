//! One session for one batch: tables in, stages run in order, reports out.

mod guests;
mod names;
mod script;
mod suspects;

use std::collections::{HashMap, HashSet};
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::catalog::MemTable;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{DataFusionError, ParamValues, TableReference};
use datafusion::config::{ConfigOptions, Dialect as SqlDialect};
use datafusion::datasource::physical_plan::FileScanConfig;
use datafusion::datasource::source::DataSourceExec;
use datafusion::datasource::{ViewTable, source_as_provider};
use datafusion::execution::disk_manager::{DiskManagerBuilder, DiskManagerMode};
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryPool, MemoryReservation};
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::execution::{SendableRecordBatchStream, SessionState, SessionStateBuilder};
use datafusion::logical_expr::{DdlStatement, LogicalPlan};
use datafusion::object_store::ObjectStore;
use datafusion::physical_optimizer::optimizer::PhysicalOptimizer;
use datafusion::physical_optimizer::{PhysicalOptimizerContext, PhysicalOptimizerRule};
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties, execute_stream};
use datafusion::physical_planner::DefaultPhysicalPlanner;
use datafusion::prelude::{SessionConfig, SessionContext};
use futures::{FutureExt, StreamExt};
use kernels::gpu::{Gpu, Meter};
use kernels::jit::Jit;

use crate::cancel::Cancel;
use crate::cpu::FastOnCpu;
use crate::error::{Error, Result};
use crate::estimate::Estimate;
use crate::exec::{Device, Scans};
use crate::explain;
use crate::guard;
use crate::guard::statement::Role;
use crate::logical::{self, facts::Facts};
use crate::memory::Budget;
use crate::report::{KernelReport, OutputReport, SourceReport, StageReport, StatementReport};
use crate::rewrite::{CpuRules, GpuRewrite, WholeOnDevice, with_plain_scans};
use crate::settings::{
    CsvOptions, Dialect, FallbackPolicy, Format, Output, OutputFormat, Settings, Stage,
    StorageOptions, Table,
};
use crate::sinks::{self, Sink, Standing, WriteError};
use crate::sources::{self, Location};
use crate::spill_folder::SpillFolder;
use crate::statistics::statistics_of;
use crate::tpch;
use crate::udf::{Loaded, Stop};
use script::Statement;

/// Memory for listings of files.
const LISTING_BYTES_MAX: usize = 64 << 20;

/// A rule that rewrites the physical plan.
pub type Rule = Arc<dyn PhysicalOptimizerRule + Send + Sync>;

/// The short way to a plan, and what makes the plan that it starts from.
struct Whole {
    way: WholeOnDevice,
    /// The session as it was made, without rules for physical plans.
    without_rules: SessionState,
}

/// What a stage would do. Nothing has been executed.
#[derive(Debug)]
pub struct StagePlan {
    /// The plan of the result, as the statement says it.
    pub logical: LogicalPlan,
    /// The plan that would be executed.
    pub physical: Arc<dyn ExecutionPlan>,
}

/// What a stage did.
#[derive(Debug)]
pub struct StageRun {
    /// The account of it.
    pub report: StageReport,
    /// The plan that was executed; its nodes carry their metrics.
    pub plan: Arc<dyn ExecutionPlan>,
}

/// How far a stage has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// The statement of this number, from 0, has started.
    Statement(usize),
    /// The result has this many rows so far.
    Rows(u64),
    /// All rows are written; they are being made visible.
    Publishing,
}

/// The tables, settings and budgets of one batch.
pub struct Session {
    context: SessionContext,
    settings: Settings,
    budget: Arc<Budget>,
    /// The storage that is open, and by which options it was opened.
    opened: Mutex<HashMap<String, Option<String>>>,
    /// Where the files of each table are, for reports.
    places: Mutex<Vec<(String, String)>>,
    /// The tables that the batch names.
    inputs: Mutex<HashSet<String>>,
    /// Memory of results that are kept for later stages.
    held: Mutex<HashMap<String, MemoryReservation>>,
    /// Whether any name stands for a query that is evaluated where it is used.
    has_views: AtomicBool,
    /// What is known of tables for the order of joins.
    facts: Arc<Facts>,
    /// The names that plans without runs gave to their stages' queries.
    planned: Mutex<Vec<TableReference>>,
    /// Time that planning took since the stage began, microseconds.
    planning_us: AtomicU64,
    /// Its device, where there is one, and its kernels.
    device: Option<(Arc<dyn Gpu>, Arc<Jit>)>,
    /// The accounts of scans that a device reads.
    scans: Scans,
    /// The modules of user functions.
    guests: Mutex<Vec<Loaded>>,
    /// What ends their calls.
    guest_stop: Stop,
    /// The short way to plans that run whole on the device, where there is one.
    whole: Option<Whole>,
    /// Whether a plan with a node that computes on the CPU is an error.
    refuses_cpu_nodes: bool,
    /// Asked before an output becomes visible.
    gate: Option<Arc<dyn PublishGate>>,
    /// Where operators spill; it goes last.
    _spill: SpillFolder,
}

/// Says whether an attempt may still make an output visible. Whoever has several attempts
/// at one batch uses it to keep a late one from publishing.
#[async_trait::async_trait]
pub trait PublishGate: std::fmt::Debug + Send + Sync {
    /// Asked once for each output, right before it becomes visible.
    async fn may_publish(&self, stage: &str) -> bool;
}

impl Session {
    /// A session that runs everything on the CPU.
    pub fn new(settings: Settings) -> Result<Self> {
        let budget = Arc::new(Budget::new(settings.memory_limit_bytes));
        let spill = match &settings.spill_directory {
            Some(directory) => SpillFolder::new(directory)?,
            None => SpillFolder::new(&std::env::temp_dir())?,
        };
        let facts = Arc::<Facts>::default();
        let state = state(&settings, &budget, &spill, &facts)?;
        let context = SessionContext::new_with_state(state);
        Ok(Self {
            context,
            settings,
            budget,
            gate: None,
            _spill: spill,
            opened: Mutex::default(),
            places: Mutex::default(),
            inputs: Mutex::default(),
            held: Mutex::default(),
            has_views: AtomicBool::new(false),
            planned: Mutex::default(),
            facts,
            planning_us: AtomicU64::new(0),
            device: None,
            scans: Scans::default(),
            guests: Mutex::default(),
            guest_stop: Stop::default(),
            whole: None,
            refuses_cpu_nodes: false,
        })
    }

    /// Asks `gate` before any output becomes visible.
    pub fn set_publish_gate(&mut self, gate: Arc<dyn PublishGate>) {
        self.gate = Some(gate);
    }

    /// A session that runs on this device what it can, and the rest as
    /// `settings.fallback` says.
    pub fn with_device(settings: Settings, device: Device) -> Result<Self> {
        Ok(Self::new(settings)?.placed_on(device))
    }

    /// The same session, its tables included, from now on with a device.
    pub fn placed_on(mut self, device: Device) -> Self {
        let allow_fallback = self.settings.fallback == FallbackPolicy::Cpu;
        self.device = Some((Arc::clone(&device.gpu), Arc::clone(&device.jit)));
        self.scans = device.scans.clone();
        let rewrite = Arc::new(GpuRewrite::new(device, allow_fallback));
        let state = self.context.state();
        let own = state.physical_optimizers().to_vec();
        let rules = on_device(own, Arc::<GpuRewrite>::clone(&rewrite));
        let without_rules = SessionStateBuilder::new_from_existing(state.clone())
            .with_physical_optimizer_rules(Vec::new())
            .build();
        self.whole = Some(Whole {
            way: WholeOnDevice::new(rewrite, &rules),
            without_rules,
        });
        let state = SessionStateBuilder::new_from_existing(state)
            .with_physical_optimizer_rules(rules)
            .build();
        self.context = SessionContext::new_with_state(state);
        self.refuses_cpu_nodes = !allow_fallback;
        self
    }

    /// DataFusion's view of the session, to register functions.
    pub fn context(&self) -> &SessionContext {
        &self.context
    }

    /// What the session was made with.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The account of the device's memory, where there is a device.
    fn device_meter(&self) -> Option<&Meter> {
        self.device.as_ref().map(|(gpu, _)| gpu.meter())
    }

    /// The memory budget.
    pub fn budget(&self) -> &Arc<Budget> {
        &self.budget
    }

    /// Looks at tables and makes them readable.
    pub async fn register_tables(&self, tables: &[Table]) -> Result<()> {
        self.open_tables(tables, &|_| {}, &Cancel::new()).await
    }

    /// Looks at tables and makes them readable, until it is cancelled. `progress` tells
    /// how the generated ones come along.
    pub async fn open_tables(
        &self,
        tables: &[Table],
        progress: &(dyn Fn(tpch::Progress) + Send + Sync),
        cancel: &Cancel,
    ) -> Result<()> {
        for table in tables {
            let made = match table.location.strip_prefix("tpch://") {
                Some(what) => &self.generate(table, what, progress, cancel).await?,
                None => table,
            };
            tokio::select! {
                biased;
                () = cancel.cancelled() => return Err(Error::Cancelled),
                attached = self.attach(made) => attached?,
            }
            self.inputs
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .insert(table.name.clone());
        }
        Ok(())
    }

    /// Looks at one table and makes it readable.
    pub async fn register_table(&self, table: &Table) -> Result<()> {
        self.register_tables(std::slice::from_ref(table)).await
    }

    /// Results may replace one another, but not a table that the batch names.
    fn check_name(&self, name: &str) -> Result<()> {
        if self
            .inputs
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .contains(name)
        {
            return Err(Error::Query {
                message: format!(
                    "`{name}` is a table of this batch; give the stage or view another name"
                ),
            });
        }
        Ok(())
    }

    async fn attach(&self, table: &Table) -> Result<()> {
        let location = Location::parse(&table.location)?;
        self.open_storage(&location, table.storage.as_deref())?;
        let source = sources::open(
            table,
            location,
            &self.context.state(),
            self.settings.reader_threads,
        )
        .await?;
        let place = source.location.prefix.to_string();
        self.places
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push((table.name.clone(), place));
        self.replace_table(&table.name, source.provider)
    }

    /// Makes the files of a generated table if need be, and returns the table over them.
    async fn generate(
        &self,
        table: &Table,
        what: &str,
        progress: &(dyn Fn(tpch::Progress) + Send + Sync),
        cancel: &Cancel,
    ) -> Result<Table> {
        let bad = || Error::Location {
            location: table.location.clone(),
            problem: "write tpch://SCALE/TABLE, such as tpch://1/lineitem".into(),
        };
        let (scale, name) = what.split_once('/').ok_or_else(bad)?;
        let scale: f64 = scale.parse().map_err(|_| bad())?;
        let name = name.trim_end_matches('/').to_owned();
        let directory = self
            .settings
            .cache_dir
            .join("tpch")
            .join(format!("sf{scale}"));
        let threads = self.settings.compute_threads;
        let stop = Arc::new(AtomicBool::new(false));
        let (sender, mut told) = tokio::sync::mpsc::unbounded_channel();
        let mut made = tokio::task::spawn_blocking({
            let stop = Arc::clone(&stop);
            // Nobody listens any more when this was given up.
            let tell = move |progress| drop(sender.send(progress));
            move || tpch::generate_table(scale, &name, &directory, threads, &tell, &stop)
        });
        let directory = loop {
            tokio::select! {
                biased;
                // The generator removes what it half wrote, so it is waited for.
                () = cancel.cancelled(), if !stop.load(Ordering::Relaxed) => {
                    stop.store(true, Ordering::Relaxed);
                }
                Some(step) = told.recv() => progress(step),
                made = &mut made => {
                    break made.map_err(|error| Error::Internal {
                        message: error.to_string(),
                    })??;
                }
            }
        };
        Ok(Table {
            location: format!("{}/", directory.display()),
            format: Format::Parquet,
            ..table.clone()
        })
    }

    fn open_storage(
        &self,
        location: &Location,
        name: Option<&str>,
    ) -> Result<Arc<dyn ObjectStore>> {
        let key = location.root.to_string();
        let mut opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        let registry = &self.context.runtime_env().object_store_registry;
        if let Some(with) = opened.get(&key) {
            if with.as_deref() != name {
                return Err(Error::StorageSettings {
                    location: location.written.clone(),
                    problem:
                        "the bucket is used with other storage options elsewhere in this batch"
                            .into(),
                });
            }
            return registry
                .get_store(&location.root)
                .map_err(|error| self.error(&error));
        }
        let options: Option<&StorageOptions> = match name {
            None => None,
            Some(name) => Some(
                self.settings
                    .storage
                    .iter()
                    .find(|options| options.name == name)
                    .ok_or_else(|| Error::StorageSettings {
                        location: location.written.clone(),
                        problem: format!("there are no storage options called `{name}`"),
                    })?,
            ),
        };
        let store = sources::store::open(location, options, self.settings.reader_threads)?;
        registry.register_store(&location.root, Arc::clone(&store));
        opened.insert(key, name.map(str::to_owned));
        Ok(store)
    }

    fn error(&self, error: &DataFusionError) -> Error {
        Error::from_datafusion(error, self.settings.memory_limit_bytes)
    }

    /// Plans a stage without executing anything. Its name, and the names that its
    /// statements define, stand for views from then on, so that later stages can be
    /// planned too.
    pub async fn plan_stage(&self, stage: &Stage) -> Result<StagePlan> {
        let planned = async {
            self.check_name(&stage.name)?;
            let mut result = None;
            for statement in self.parse(stage)? {
                let logical = self.plan_statement(&statement, stage).await?;
                match defined(&logical) {
                    Some((name, input)) => {
                        self.check_name(name.table())?;
                        self.register_planned(&name, input.clone())?;
                    }
                    None => result = Some(logical),
                }
            }
            let logical = result.ok_or(Error::NoStatement)?;
            let physical = self.physical(&logical).await?;
            let name = TableReference::bare(stage.name.as_str());
            self.register_planned(&name, logical.clone())?;
            Ok(StagePlan { logical, physical })
        };
        caught(planned)
            .await
            .map_err(|error: Error| error.in_stage(&stage.name))
    }

    /// What these stages would take, one after the other; `None` where the size of an input
    /// is not known. Nothing is executed, and no stage counts as planned afterwards.
    pub async fn estimate(&self, stages: &[Stage]) -> Result<Option<Vec<Estimate>>> {
        let mut estimates = Vec::new();
        let mut outcome = Ok(());
        for stage in stages {
            match self.plan_stage(stage).await {
                Ok(plan) => {
                    let n_cores = self.settings.compute_threads;
                    estimates.push(Estimate::of(&plan.physical, n_cores));
                }
                Err(error) => {
                    outcome = Err(error);
                    break;
                }
            }
        }
        self.forget_planned()?;
        outcome.map(|()| estimates.into_iter().collect())
    }

    /// Runs a stage. When it fails or is cancelled, its output shows nothing of it.
    pub async fn run_stage(
        &self,
        stage: &Stage,
        progress: &(dyn Fn(Progress) + Send + Sync),
        cancel: &Cancel,
    ) -> Result<StageRun> {
        let mut sink = None;
        let ran = tokio::select! {
            biased;
            () = cancel.cancelled() => Err(Error::Cancelled),
            ran = caught(self.run(stage, progress, &mut sink)) => ran,
        };
        self.rest_guests();
        let run = match ran {
            Ok(run) => run,
            Err(error) => {
                if let Some(sink) = sink {
                    give_up(sink).await;
                }
                return Err(error.in_stage(&stage.name));
            }
        };
        if let Some(output) = &stage.output {
            progress(Progress::Publishing);
            self.publish(stage, sink, output, &run)
                .await
                .map_err(|error| error.in_stage(&stage.name))?;
        }
        Ok(run)
    }

    async fn run(
        &self,
        stage: &Stage,
        progress: &(dyn Fn(Progress) + Send + Sync),
        sink: &mut Option<Arc<Sink>>,
    ) -> Result<StageRun> {
        let started = Instant::now();
        self.budget.reset_peak();
        if let Some(meter) = self.device_meter() {
            meter.reset_peak();
        }
        self.planning_us.store(0, Ordering::Relaxed);
        self.kernel_times();
        self.scans.take();
        self.check_name(&stage.name)?;
        let target = match &stage.output {
            Some(output) => {
                let location = Location::parse(&output.location)?;
                let store = self.open_storage(&location, output.storage.as_deref())?;
                let standing = sinks::check(output, &location, store.as_ref()).await?;
                Some((output, location, store, standing))
            }
            None => None,
        };
        let mut report = StageReport {
            stage: stage.name.clone(),
            statements: Vec::new(),
            output: None,
            rows: 0,
            elapsed_ms: 0,
            planning_ms: 0.0,
            kernels: Vec::new(),
            scans: Vec::new(),
            peak_memory_bytes: 0,
            peak_device_bytes: 0,
            spilled_bytes: 0,
            preview: Vec::new(),
        };
        let statements = self.parse(stage)?;
        let last_query = statements
            .iter()
            .rposition(|statement| statement.role == Role::Query)
            .ok_or(Error::NoStatement)?;
        let mut plan = None;
        for (index, statement) in statements.iter().enumerate() {
            progress(Progress::Statement(index));
            let statement_started = Instant::now();
            let logical = self.plan_statement(statement, stage).await?;
            let suspect = |error| self.suspect(error, &statements[..=index]);
            let mut done = StatementReport {
                sql: statement.text.clone(),
                rows: 0,
                elapsed_ms: 0,
                sources: Vec::new(),
            };
            if let Some((name, input)) = defined(&logical) {
                self.check_name(name.table())?;
                if matches!(logical, LogicalPlan::Ddl(DdlStatement::CreateView(_))) {
                    self.register_view(&name, input.clone())?;
                } else {
                    let collected = self.collect(input, None, &|_| {}).await;
                    let (physical, kept) = collected.map_err(suspect)?;
                    done.rows = kept.n_rows;
                    done.sources = self.sources_of(&physical);
                    report.spilled_bytes += spilled(&physical);
                    self.hold(&name, kept)?;
                }
            } else if index != last_query {
                let collected = self.collect(&logical, Some(0), &|_| {}).await;
                let (physical, kept) = collected.map_err(suspect)?;
                done.rows = kept.n_rows;
                done.sources = self.sources_of(&physical);
            } else {
                let on_rows = |rows| progress(Progress::Rows(rows));
                let physical = match &target {
                    Some((_, _, _, Standing::Published(found))) => {
                        report.output = Some(found.clone());
                        self.physical(&logical).await.map_err(suspect)?
                    }
                    Some((output, location, store, Standing::Open)) => {
                        let physical = self.physical(&logical).await.map_err(suspect)?;
                        sinks::check_columns(output, physical.schema().as_ref())?;
                        let created =
                            Arc::new(Sink::create(output, location.clone(), Arc::clone(store))?);
                        *sink = Some(Arc::clone(&created));
                        let written = self.write(&created, &physical, &on_rows).await;
                        let written = written.map_err(suspect)?;
                        report.rows = written.rows;
                        report.output = Some(written);
                        physical
                    }
                    None => {
                        let name = TableReference::bare(stage.name.as_str());
                        let limit = self.settings.memory_limit_bytes / 8;
                        let collected = self.collect(&logical, Some(limit), &on_rows).await;
                        let (physical, kept) = collected.map_err(suspect)?;
                        report.rows = kept.n_rows;
                        report.preview = preview(&kept.batches, self.settings.preview_rows);
                        if kept.is_complete {
                            self.hold(&name, kept)?;
                        } else {
                            self.register_view(&name, logical)?;
                        }
                        physical
                    }
                };
                done.rows = report.rows;
                done.sources = self.sources_of(&physical);
                report.spilled_bytes += spilled(&physical);
                plan = Some(physical);
            }
            done.elapsed_ms = statement_started.elapsed().as_millis() as u64;
            report.statements.push(done);
        }
        report.kernels = self.kernel_times();
        report.scans = self.scans.take();
        report.planning_ms = self.planning_us.load(Ordering::Relaxed) as f64 / 1e3;
        report.elapsed_ms = started.elapsed().as_millis() as u64;
        report.peak_memory_bytes = self.budget.peak_bytes();
        report.peak_device_bytes = self.device_meter().map_or(0, |meter| meter.peak() as u64);
        let plan = plan.ok_or(Error::NoStatement)?;
        Ok(StageRun { report, plan })
    }

    /// Makes a written output visible, and readable by later stages. Without a sink an
    /// earlier attempt has made it visible.
    async fn publish(
        &self,
        stage: &Stage,
        sink: Option<Arc<Sink>>,
        output: &Output,
        run: &StageRun,
    ) -> Result<()> {
        if let Some(sink) = sink {
            let sink = Arc::into_inner(sink).ok_or_else(|| Error::Internal {
                message: "the output is still being written".into(),
            })?;
            let may_publish = match &self.gate {
                Some(gate) => gate.may_publish(&stage.name).await,
                None => true,
            };
            if !may_publish {
                sink.abort().await;
                return Err(Error::PublishRefused {
                    location: output.location.clone(),
                });
            }
            sink.publish().await?;
        }
        // Stages write where later stages read.
        let cache_manager = &self.context.runtime_env().cache_manager;
        if let Some(listings) = cache_manager.get_list_files_cache() {
            listings.clear();
        }
        let schema = run.plan.schema();
        let is_partition = |name: &str| output.partition_by.iter().any(|column| column == name);
        let (partitions, data): (Vec<_>, Vec<_>) = schema
            .fields()
            .iter()
            .cloned()
            .partition(|field| is_partition(field.name()));
        let format = match output.format {
            OutputFormat::Parquet => Format::Parquet,
            OutputFormat::Csv => Format::Csv(CsvOptions::default()),
            OutputFormat::Json => Format::Json,
        };
        let data = datafusion::arrow::datatypes::Schema::new(data);
        let table = Table {
            name: stage.name.clone(),
            location: format!("{}/", output.location.trim_end_matches('/')),
            format,
            schema: Some(Arc::new(data)),
            partition_columns: output
                .partition_by
                .iter()
                .filter_map(|name| partitions.iter().find(|field| field.name() == name))
                .map(|field| (field.name().clone(), field.data_type().clone()))
                .collect(),
            storage: output.storage.clone(),
        };
        match self.attach(&table).await {
            // A result without rows in JSON is a file without bytes, which is no data file.
            Err(Error::NoFiles { .. }) => self.register_empty(&table.name, schema),
            other => other,
        }
    }

    fn register_empty(&self, name: &str, schema: SchemaRef) -> Result<()> {
        let empty = MemTable::try_new(schema, vec![vec![]]).map_err(|error| self.error(&error))?;
        self.replace_table(name, Arc::new(empty))
    }

    fn replace_table(
        &self,
        name: &str,
        provider: Arc<dyn datafusion::catalog::TableProvider>,
    ) -> Result<()> {
        self.replace_reference(&TableReference::bare(name), provider)
    }

    fn replace_reference(
        &self,
        name: &TableReference,
        provider: Arc<dyn datafusion::catalog::TableProvider>,
    ) -> Result<()> {
        self.facts.forget(name);
        self.context
            .deregister_table(name.clone())
            .map_err(|error| self.error(&error))?;
        self.context
            .register_table(name.clone(), provider)
            .map_err(|error| self.error(&error))?;
        Ok(())
    }

    fn register_view(&self, name: &TableReference, plan: LogicalPlan) -> Result<()> {
        self.has_views.store(true, Ordering::Relaxed);
        self.replace_reference(name, Arc::new(ViewTable::new(plan, None)))
    }

    fn register_planned(&self, name: &TableReference, plan: LogicalPlan) -> Result<()> {
        self.register_view(name, plan)?;
        self.planned
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(name.clone());
        Ok(())
    }

    /// Takes the names of planned stages away again.
    fn forget_planned(&self) -> Result<()> {
        let planned =
            std::mem::take(&mut *self.planned.lock().unwrap_or_else(PoisonError::into_inner));
        for name in planned {
            self.context
                .deregister_table(name)
                .map_err(|error| self.error(&error))?;
        }
        self.has_views.store(false, Ordering::Relaxed);
        Ok(())
    }

    fn hold(&self, name: &TableReference, kept: Kept) -> Result<()> {
        let table = MemTable::try_new(kept.schema, vec![kept.batches])
            .map_err(|error| self.error(&error))?;
        self.replace_reference(name, Arc::new(table))?;
        self.held
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(name.to_string(), kept.memory);
        Ok(())
    }

    fn parse(&self, stage: &Stage) -> Result<Vec<Statement>> {
        script::parse(&stage.sql, self.settings.dialect)
    }

    /// A statement's plan with its parameters bound.
    async fn plan_statement(&self, statement: &Statement, stage: &Stage) -> Result<LogicalPlan> {
        let started = Instant::now();
        let planned = self.bound_plan(statement, stage).await;
        self.count_planning(started);
        planned
    }

    /// Device time by kernel since the last call.
    fn kernel_times(&self) -> Vec<KernelReport> {
        let times = self.device.as_ref().map(|(_, jit)| jit.take_kernel_times());
        let reports = times.into_iter().flatten().map(|time| KernelReport {
            kernel: time.kernel,
            launches: time.n_launches,
            device_ms: time.device_ms,
        });
        reports.collect()
    }

    fn count_planning(&self, started: Instant) {
        let us = started.elapsed().as_micros() as u64;
        self.planning_us.fetch_add(us, Ordering::Relaxed);
    }

    async fn bound_plan(&self, statement: &Statement, stage: &Stage) -> Result<LogicalPlan> {
        let state = self.context.state();
        let logical = match state.statement_to_plan(statement.parsed.clone()).await {
            Ok(logical) => logical,
            Err(error) => {
                if let Some(unknown) = names::unknown(&statement.parsed, &self.context) {
                    return Err(unknown);
                }
                let span = error.diagnostic().and_then(|told| told.span);
                let error = self.error(&error);
                let place = match span {
                    Some(span) => Some(script::place(span.start.line, span.start.column)),
                    None => names::named_place(&statement.parsed, &error),
                };
                return Err(match place {
                    Some(place) => error.at(place),
                    None => error,
                });
            }
        };
        let wanted = logical
            .get_parameter_names()
            .map_err(|error| self.error(&error))?;
        for name in &wanted {
            let bare = name.trim_start_matches('$');
            if !stage.parameters.iter().any(|(known, _)| known == bare) {
                let known = stage.parameters.iter().map(|(known, _)| known.as_str());
                let hint = crate::error::nearest(bare, known)
                    .map(|near| format!("; did you mean `${near}`?"));
                return Err(Error::Parameter {
                    name: bare.to_owned(),
                    problem: format!("has no value{}", hint.unwrap_or_default()),
                });
            }
        }
        if wanted.is_empty() {
            return Ok(logical);
        }
        let values: Vec<(&str, datafusion::scalar::ScalarValue)> = stage
            .parameters
            .iter()
            .map(|(name, value)| (name.as_str(), value.clone()))
            .collect();
        logical
            .with_param_values(ParamValues::from(values))
            .map_err(|error| self.error(&error))
    }

    async fn physical(&self, logical: &LogicalPlan) -> Result<Arc<dyn ExecutionPlan>> {
        let started = Instant::now();
        let plan = self.create_physical(logical).await;
        self.count_planning(started);
        let plan = plan.map_err(|error| self.error(&error))?;
        if self.refuses_cpu_nodes && explain::any_on_cpu(&plan) {
            let kept = explain::planned_fallbacks(&plan);
            if !kept.is_empty() {
                let reasons: Vec<String> = kept
                    .iter()
                    .map(|kept| format!("{}: {}", kept.node, kept.reason.message))
                    .collect();
                let what = format!("not everything can run on the GPU ({})", reasons.join("; "));
                return Err(Error::FallbackRefused { what });
            }
        }
        Ok(plan)
    }

    async fn create_physical(
        &self,
        logical: &LogicalPlan,
    ) -> std::result::Result<Arc<dyn ExecutionPlan>, DataFusionError> {
        let state = self.context.state();
        self.learn(logical, &state).await?;
        let Some(whole) = &self.whole else {
            return state.create_physical_plan(logical).await;
        };
        let mut bare = whole.without_rules.clone();
        *bare.execution_props_mut() = state.execution_props().clone();
        let initial = bare.create_physical_plan(logical).await?;
        match whole.way.plan(&initial, &Planning(&state)) {
            Ok(Some(plan)) => return Ok(plan),
            Ok(None) => {}
            // What is wrong with the query shows on the long way too.
            Err(error) => tracing::debug!(%error, "the short way to a plan failed"),
        }
        DefaultPhysicalPlanner::default().optimize_physical_plan(initial, &state, |_, _| {})
    }

    /// Asks for the metadata of the tables of a plan that joins several, once for each table.
    async fn learn(
        &self,
        logical: &LogicalPlan,
        state: &SessionState,
    ) -> std::result::Result<(), DataFusionError> {
        let mut scans = Vec::new();
        logical.apply_with_subqueries(|node| {
            if let LogicalPlan::TableScan(scan) = node {
                scans.push((scan.table_name.clone(), Arc::clone(&scan.source)));
            }
            Ok(TreeNodeRecursion::Continue)
        })?;
        if scans.len() < 3 || !self.settings.join_order {
            return Ok(());
        }
        for (name, source) in scans {
            if self.facts.knows(&name) {
                continue;
            }
            let table = source_as_provider(&source)?;
            // What cannot be read is an error of the query itself.
            let scan = table.scan(state, None, &[], None).await.ok();
            let statistics = scan.and_then(|scan| statistics_of(scan.as_ref()));
            let fields = source.schema();
            let names = fields.fields().iter().map(|field| field.name().clone());
            let names: Vec<String> = names.collect();
            self.facts.learn(&name, &names, statistics.as_deref());
        }
        Ok(())
    }

    fn stream(&self, plan: &Arc<dyn ExecutionPlan>) -> Result<SendableRecordBatchStream> {
        execute_stream(Arc::clone(plan), self.context.task_ctx())
            .map_err(|error| self.error(&error))
    }

    /// Executes a plan and keeps its rows in memory: all of them, or as many as fit
    /// `limit_bytes` (and then at least the preview).
    async fn collect(
        &self,
        logical: &LogicalPlan,
        limit_bytes: Option<u64>,
        on_rows: &(dyn Fn(u64) + Send + Sync),
    ) -> Result<(Arc<dyn ExecutionPlan>, Kept)> {
        let physical = self.physical(logical).await?;
        let mut batches = self.stream(&physical)?;
        let pool: Arc<dyn MemoryPool> = Arc::<Budget>::clone(&self.budget);
        let mut kept = Kept {
            schema: physical.schema(),
            batches: Vec::new(),
            n_rows: 0,
            is_complete: true,
            memory: MemoryConsumer::new("kept result").register(&pool),
        };
        while let Some(batch) = batches.next().await {
            let batch = batch.map_err(|error| self.error_of(&physical, &error))?;
            kept.n_rows += batch.num_rows() as u64;
            on_rows(kept.n_rows);
            if !kept.is_complete {
                continue;
            }
            let size = bytes_of(&batch)?;
            let fits = limit_bytes.is_none_or(|limit| (kept.memory.size() + size) as u64 <= limit);
            match (fits, limit_bytes) {
                (true, None) => kept
                    .memory
                    .try_grow(size)
                    .map_err(|error| self.error(&error))?,
                (true, Some(_)) if kept.memory.try_grow(size).is_ok() => {}
                _ => {
                    kept.is_complete = false;
                    kept.batches.push(batch);
                    kept.batches = preview(&kept.batches, self.settings.preview_rows);
                    kept.memory.free();
                    continue;
                }
            }
            kept.batches.push(batch);
        }
        Ok((physical, kept))
    }

    async fn write(
        &self,
        sink: &Arc<Sink>,
        plan: &Arc<dyn ExecutionPlan>,
        on_rows: &(dyn Fn(u64) + Send + Sync),
    ) -> Result<OutputReport> {
        let pool: Arc<dyn MemoryPool> = Arc::<Budget>::clone(&self.budget);
        let is_ordered = plan.output_ordering().is_some();
        let n_rows = AtomicU64::new(0);
        let count = |rows: u64| {
            on_rows(n_rows.fetch_add(rows, Ordering::Relaxed) + rows);
        };
        sink.write(
            self.stream(plan)?,
            is_ordered,
            self.settings.compute_threads,
            &pool,
            &count,
        )
        .await
        .map_err(|error| match error {
            WriteError::Plan(error) => self.error_of(plan, &error),
            WriteError::Sink(error) => error,
        })
    }

    /// An error of the data with the expressions that can have caused it. Where a name
    /// may stand for a view, the expression may be in there, so none is named.
    fn suspect(&self, error: Error, statements: &[Statement]) -> Error {
        if self.has_views.load(Ordering::Relaxed) {
            return error;
        }
        let last = statements.last();
        match last.and_then(|last| names::named_place(&last.parsed, &error)) {
            Some(place) => error.at(place),
            None => suspects::name(error, statements),
        }
    }

    /// An error of a plan's execution. One about a file says which, as far as the scans
    /// of the plan tell.
    fn error_of(&self, plan: &Arc<dyn ExecutionPlan>, error: &DataFusionError) -> Error {
        let problem = match self.error(error) {
            Error::Unreadable { problem } => problem,
            other => return other,
        };
        let mut files = Vec::new();
        visit(plan, &mut |node| {
            if let Some(scan) = file_scan(node) {
                let root = scan.object_store_url.as_str();
                // A local path is spelt as its author spells it.
                let root = if root.starts_with("file:") { "/" } else { root };
                let of_scan = scan.file_groups.iter().flat_map(|group| group.files());
                files.extend(of_scan.map(|file| {
                    let path = file.object_meta.location.as_ref();
                    (self.table_of(path), format!("{root}{path}"))
                }));
            }
        });
        files.sort();
        files.dedup();
        let (table, file) = match files.as_slice() {
            [] => return Error::Unreadable { problem },
            [(table, file)] => (table.clone(), file.clone()),
            [(table, _), others @ ..] if others.iter().all(|(other, _)| other == table) => {
                (table.clone(), format!("one of its {} files", files.len()))
            }
            _ => return Error::Unreadable { problem },
        };
        Error::BadFile {
            table,
            file,
            problem,
        }
    }

    /// The table that a file belongs to, or the file where none is known.
    fn table_of(&self, path: &str) -> String {
        let places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        places
            .iter()
            .rev()
            .filter(|(_, place)| path.starts_with(place.as_str()))
            .max_by_key(|(_, place)| place.len())
            .map_or_else(|| path.to_owned(), |(table, _)| table.clone())
    }

    /// What the scans of an executed plan read.
    fn sources_of(&self, plan: &Arc<dyn ExecutionPlan>) -> Vec<SourceReport> {
        let mut sources: Vec<SourceReport> = Vec::new();
        visit(plan, &mut |node| {
            let Some(file) = file_scan(node).and_then(|scan| {
                let mut files = scan.file_groups.iter().flat_map(|group| group.files());
                files.next()
            }) else {
                return;
            };
            let table = self.table_of(file.object_meta.location.as_ref());
            let metrics = node.metrics().unwrap_or_default();
            let rows = metrics.output_rows().unwrap_or(0) as u64;
            let bytes = metrics
                .sum_by_name("bytes_scanned")
                .map_or(0, |value| value.as_usize() as u64);
            match sources.iter_mut().find(|source| source.table == table) {
                Some(source) => {
                    source.rows += rows;
                    source.bytes += bytes;
                }
                None => sources.push(SourceReport { table, rows, bytes }),
            }
        });
        sources
    }
}

/// Aborts an output once its writers, which were told to stop, have let go of it.
async fn give_up(mut sink: Arc<Sink>) {
    const PATIENCE: std::time::Duration = std::time::Duration::from_secs(10);
    let asked = Instant::now();
    loop {
        match Arc::try_unwrap(sink) {
            Ok(sink) => return sink.abort().await,
            Err(shared) if asked.elapsed() < PATIENCE => sink = shared,
            // The last writer to go removes the hidden files.
            Err(_) => return,
        }
        tokio::time::sleep(std::time::Duration::from_millis(1)).await;
    }
}

/// A result in memory.
struct Kept {
    schema: SchemaRef,
    batches: Vec<RecordBatch>,
    n_rows: u64,
    is_complete: bool,
    memory: MemoryReservation,
}

/// Bytes of a record batch's rows. The buffers that they are in may belong to many others.
fn bytes_of(batch: &RecordBatch) -> Result<usize> {
    let columns = batch.columns().iter();
    let bytes = columns.map(|column| column.to_data().get_slice_memory_size());
    bytes
        .sum::<std::result::Result<usize, _>>()
        .map_err(|error| Error::Internal {
            message: error.to_string(),
        })
}

fn preview(batches: &[RecordBatch], n_rows_max: usize) -> Vec<RecordBatch> {
    let mut left = n_rows_max;
    let mut first = Vec::new();
    for batch in batches {
        let n_rows = batch.num_rows().min(left);
        if n_rows > 0 {
            first.push(batch.slice(0, n_rows));
        }
        left -= n_rows;
    }
    first
}

/// The name that a statement defines, and the query behind it.
fn defined(plan: &LogicalPlan) -> Option<(TableReference, &LogicalPlan)> {
    match plan {
        LogicalPlan::Ddl(DdlStatement::CreateView(view)) => Some((view.name.clone(), &view.input)),
        LogicalPlan::Ddl(DdlStatement::CreateMemoryTable(table)) => {
            Some((table.name.clone(), &table.input))
        }
        _ => None,
    }
}

fn file_scan(node: &Arc<dyn ExecutionPlan>) -> Option<&FileScanConfig> {
    let scan = node.downcast_ref::<DataSourceExec>()?;
    scan.data_source().downcast_ref::<FileScanConfig>()
}

fn visit(plan: &Arc<dyn ExecutionPlan>, each: &mut dyn FnMut(&Arc<dyn ExecutionPlan>)) {
    fn walk(
        plan: &Arc<dyn ExecutionPlan>,
        seen: &mut HashSet<*const ()>,
        each: &mut dyn FnMut(&Arc<dyn ExecutionPlan>),
    ) {
        if seen.insert(Arc::as_ptr(plan).cast()) {
            each(plan);
            for child in plan.children() {
                walk(child, seen, each);
            }
        }
    }
    walk(plan, &mut HashSet::new(), each);
}

fn spilled(plan: &Arc<dyn ExecutionPlan>) -> u64 {
    let mut n_bytes = 0;
    visit(plan, &mut |node| {
        n_bytes += node
            .metrics()
            .and_then(|metrics| metrics.spilled_bytes())
            .unwrap_or(0) as u64;
    });
    n_bytes
}

/// Turns a panic of this task, or of one that it waits for, into an error.
async fn caught<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    match AssertUnwindSafe(work).catch_unwind().await {
        Ok(outcome) => outcome,
        Err(panic) => {
            let message = panic
                .downcast_ref::<&str>()
                .map(|text| (*text).to_owned())
                .or_else(|| panic.downcast_ref::<String>().cloned())
                .unwrap_or_else(|| "a panic without a message".into());
            tracing::error!(message, "a task panicked");
            Err(Error::Internal { message })
        }
    }
}

/// The rules of a session on the CPU, and the one that places nodes on a device after them.
fn on_device(own: Vec<Rule>, rewrite: Arc<GpuRewrite>) -> Vec<Rule> {
    let last = FastOnCpu.name().to_owned();
    let own = own.into_iter().filter(|rule| rule.name() != last);
    let mut rules = with_plain_scans(own.collect());
    rules.push(rewrite);
    // Last, so that every other rule sees DataFusion's own nodes.
    rules.push(Arc::new(FastOnCpu));
    rules
}

/// What rules that rewrite physical plans may ask of a session.
struct Planning<'a>(&'a SessionState);

impl PhysicalOptimizerContext for Planning<'_> {
    fn config_options(&self) -> &ConfigOptions {
        self.0.config_options()
    }
}

fn state(
    settings: &Settings,
    budget: &Arc<Budget>,
    spill: &SpillFolder,
    facts: &Arc<Facts>,
) -> Result<SessionState> {
    let failed =
        |error: DataFusionError| Error::from_datafusion(&error, settings.memory_limit_bytes);
    let nonzero = |value: usize| value.max(1);

    // A fixed order of additions needs one partition.
    let n_partitions = if settings.deterministic {
        1
    } else {
        nonzero(settings.compute_threads)
    };
    let mut config = SessionConfig::new()
        .with_target_partitions(n_partitions)
        .with_batch_size(nonzero(settings.batch_size))
        .with_information_schema(false)
        .with_collect_statistics(true);
    let mut set = |key: &str, value: &str| config.options_mut().set(key, value).map_err(failed);
    // Plain strings everywhere: one layout for the CPU, the GPU and user functions.
    set(
        "datafusion.execution.parquet.schema_force_view_types",
        "false",
    )?;
    set(
        "datafusion.sql_parser.map_string_types_to_utf8view",
        "false",
    )?;
    // INT96 in nanoseconds ends in the year 2262; in microseconds it holds every date.
    set("datafusion.execution.parquet.coerce_int96", "us")?;
    // The planner's errors then have a place in the SQL.
    set("datafusion.sql_parser.collect_spans", "true")?;
    set(
        "datafusion.execution.meta_fetch_concurrency",
        &nonzero(settings.reader_threads).to_string(),
    )?;
    set(
        "datafusion.execution.planning_concurrency",
        &nonzero(settings.compute_threads).to_string(),
    )?;
    set(
        "datafusion.sql_parser.default_null_ordering",
        match settings.dialect {
            Dialect::Generic | Dialect::PostgreSql => "nulls_max",
            Dialect::DuckDb => "nulls_last",
            Dialect::Spark => "nulls_min",
        },
    )?;
    config.options_mut().sql_parser.dialect = match settings.dialect {
        Dialect::Generic => SqlDialect::Generic,
        Dialect::PostgreSql => SqlDialect::PostgreSQL,
        Dialect::DuckDb => SqlDialect::DuckDB,
        Dialect::Spark => SqlDialect::Spark,
    };

    let disk = DiskManagerBuilder::default()
        .with_mode(DiskManagerMode::Directories(vec![
            spill.path().to_path_buf(),
        ]))
        .with_max_temp_directory_size(settings.spill_limit_bytes);
    let pool: Arc<dyn MemoryPool> = Arc::<Budget>::clone(budget);
    let runtime = RuntimeEnvBuilder::new()
        .with_memory_pool(pool)
        .with_disk_manager_builder(disk)
        // A batch reads the files that were there when it first looked: see `publish`.
        .with_object_list_cache_limit(LISTING_BYTES_MAX)
        .build_arc()
        .map_err(failed)?;

    let builder = SessionStateBuilder::new()
        .with_config(config)
        .with_runtime_env(runtime)
        .with_default_features();
    let order = settings.join_order.then_some(facts);
    let builder = logical::install(guard::install(builder), order);
    // Last, so that every other rule sees DataFusion's own nodes.
    let mut builder = builder.with_physical_optimizer_rule(Arc::new(FastOnCpu));
    if let Some(config) = builder.config() {
        let rules = PhysicalOptimizer::new().rules.into_iter();
        let rules = rules.map(guard::pushdown::walled).collect();
        config.set_extension(Arc::new(CpuRules(rules)));
    }
    let mut state = builder.build();
    for function in guard::aggregates() {
        datafusion::execution::FunctionRegistry::register_udaf(&mut state, function)
            .map_err(failed)?;
    }
    Ok(state)
}
