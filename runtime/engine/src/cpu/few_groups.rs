//! An aggregate for queries with few groups.
//!
//! ```text
//!   input ---> a group for each row ---> totals of each group ---> one record batch
//!                   |  more than 256
//!                   v
//!              the plain aggregate, with the rows that are left
//! ```
//!
//! DataFusion's aggregate keeps its keys in a hash table that is made for many groups,
//! and gives each function its own copy of the rows. Here a group is a byte, an argument
//! of several functions is added up once, and decimals are computed in 64 bits where
//! they fit. The node takes the place of an [`AggregateExec`] and gives what that gives:
//! for a partial aggregate, states that its final one merges. States can be given out at
//! any time, so when there are too many groups, those so far are, and the plain
//! aggregate goes on. Functions that are not known here use their usual accumulators.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use datafusion::arrow::array::{
    Array, ArrayRef, AsArray, Decimal128Array, Int64Array, RecordBatch, RecordBatchOptions,
    UInt64Array,
};
use datafusion::arrow::buffer::{BooleanBuffer, NullBuffer};
use datafusion::arrow::compute::cast;
use datafusion::arrow::datatypes::{DataType, Schema};
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{Result, internal_err};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::functions_aggregate::average::Avg;
use datafusion::functions_aggregate::count::Count;
use datafusion::logical_expr::{EmitTo, GroupsAccumulator};
use datafusion::physical_expr::EquivalenceProperties;
use datafusion::physical_expr::expressions::{Column, Literal};
use datafusion::physical_expr::utils::collect_columns;
use datafusion::physical_plan::InputOrderMode;
use datafusion::physical_plan::aggregates::{AggregateExec, AggregateMode};
use datafusion::physical_plan::execution_plan::{
    Boundedness, ChildrenPropertiesMode, EmissionType, ReplaceChildrenOptions,
};
use datafusion::physical_plan::metrics::{BaselineMetrics, ExecutionPlanMetricsSet, MetricsSet};
use datafusion::physical_plan::projection::{ProjectionExec, ProjectionExpr};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::udaf::AggregateFunctionExpr;
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, ExecutionPlan, Partitioning, PhysicalExpr, PlanProperties,
};
use futures::{Stream, StreamExt, TryStreamExt, stream};

use super::keys::{Keys, is_key_type};
use super::narrow::{Narrow, Program};
use super::totals::{Totals, count_rows};
use super::views::with_views;
use crate::error::Error;
use crate::guard::sum::CheckedSum;

/// So many record batches are kept before the first result, so that a query with many
/// groups, which shows at once, runs as if this node were not there.
const N_KEPT_MAX: usize = 4;

/// An [`AggregateExec`] that expects few groups.
#[derive(Debug)]
pub struct FewGroupsExec {
    /// The aggregate that this node stands for, over the input that it had.
    plain: Arc<AggregateExec>,
    input: Arc<dyn ExecutionPlan>,
    work: Arc<Work>,
    metrics: ExecutionPlanMetricsSet,
}

/// What is computed, over the columns of the node's input.
#[derive(Debug)]
struct Work {
    /// Raw rows to states: the aggregate itself, unless it gives results.
    partial: Arc<AggregateExec>,
    keys: Vec<Arc<dyn PhysicalExpr>>,
    program: Program,
    arguments: Vec<Argument>,
    functions: Vec<Function>,
    /// How a row of the aggregate's own input is made, where that is not the node's.
    projection: Option<Vec<ProjectionExpr>>,
    n_other: usize,
}

/// An expression that functions take.
#[derive(Debug)]
struct Argument {
    expr: Arc<dyn PhysicalExpr>,
    sum: Summed,
}

/// Whether an argument is added up.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Summed {
    /// Only its NULLs count.
    No,
    /// In 128 bits.
    Wide,
    /// In 64 bits where it fits, as this number of the program.
    Narrow(usize),
}

/// How the state of a function is made.
#[derive(Debug)]
enum Function {
    /// The number of rows.
    Rows,
    /// The number of rows whose argument is not NULL.
    Count(usize),
    Sum(usize),
    /// The count and the sum.
    Average(usize),
    /// By the function's own accumulator.
    Other {
        function: Arc<AggregateFunctionExpr>,
        args: Vec<Arc<dyn PhysicalExpr>>,
        filter: Option<Arc<dyn PhysicalExpr>>,
    },
}

impl FewGroupsExec {
    /// A node that stands for an aggregate, if it can.
    pub fn of(plain: &AggregateExec) -> Result<Option<Self>> {
        use AggregateMode::{Partial, Single, SinglePartitioned};
        let groups = plain.group_expr();
        let is_plain = matches!(plain.mode(), Partial | Single | SinglePartitioned)
            && !groups.has_grouping_set()
            && groups.groups().len() <= 1
            && plain.limit_options().is_none()
            && plain.dynamic_expressions_produced().is_empty()
            && *plain.input_order_mode() == InputOrderMode::Linear
            && plain.required_input_ordering().iter().all(Option::is_none);
        if !is_plain {
            return Ok(None);
        }
        let schema = plain.input().schema();
        for (key, _) in groups.expr() {
            if !is_key_type(&key.data_type(&schema)?) {
                return Ok(None);
            }
        }
        let plain = Arc::new(plain.clone());
        let Some(mut work) = Work::of(&plain)? else {
            return Ok(None);
        };
        let mut input = Arc::clone(plain.input());
        if let Some(below) = work.absorb(&plain)? {
            input = below;
        }
        work.narrow(&input.schema());
        if let Some(viewed) = with_views(&input, &work.only_keys())? {
            input = viewed;
        }
        Ok(Some(Self {
            plain,
            input,
            work: Arc::new(work),
            metrics: ExecutionPlanMetricsSet::new(),
        }))
    }
}

impl Work {
    /// The keys and functions as they are written, over the aggregate's own input.
    fn of(plain: &Arc<AggregateExec>) -> Result<Option<Self>> {
        let schema = plain.input().schema();
        let partial = match plain.mode() {
            AggregateMode::Partial => Arc::clone(plain),
            _ => Arc::new(AggregateExec::try_new(
                AggregateMode::Partial,
                plain.group_expr().clone(),
                plain.aggr_expr().to_vec(),
                plain.filter_expr().to_vec(),
                Arc::clone(plain.input()),
                plain.input_schema(),
            )?),
        };
        let keys = plain.group_expr().input_exprs();
        let mut work = Self {
            partial,
            keys,
            program: Program::default(),
            arguments: Vec::new(),
            functions: Vec::new(),
            projection: None,
            n_other: 0,
        };
        for (function, filter) in plain.aggr_expr().iter().zip(plain.filter_expr()) {
            let known = match filter {
                None => work.known(function, &schema)?,
                Some(_) => None,
            };
            let function = match known {
                Some(known) => known,
                // Without keys, accumulators of one group are faster.
                None if work.keys.is_empty()
                    || !function.groups_accumulator_supported()
                    || !function.order_bys().is_empty() =>
                {
                    return Ok(None);
                }
                None => {
                    work.n_other += 1;
                    Function::Other {
                        function: Arc::clone(function),
                        args: function.expressions(),
                        filter: filter.clone(),
                    }
                }
            };
            work.functions.push(function);
        }
        Ok(Some(work))
    }

    fn known(
        &mut self,
        function: &AggregateFunctionExpr,
        schema: &Schema,
    ) -> Result<Option<Function>> {
        let args = function.expressions();
        let [arg] = args.as_slice() else {
            return Ok(None);
        };
        if function.is_distinct() || !function.order_bys().is_empty() {
            return Ok(None);
        }
        let udf = function.fun().inner();
        if udf.is::<Count>() {
            let never_null = match arg.downcast_ref::<Literal>() {
                Some(literal) => !literal.value().is_null(),
                None => !arg.nullable(schema)?,
            };
            return Ok(Some(if never_null {
                Function::Rows
            } else {
                Function::Count(self.argument(arg, false))
            }));
        }
        let data_type = arg.data_type(schema)?;
        let is_decimal = matches!(data_type, DataType::Decimal128(_, _));
        let has_columns = !collect_columns(arg).is_empty();
        if udf.is::<CheckedSum>() && has_columns && (is_decimal || data_type == DataType::Int64) {
            return Ok(Some(Function::Sum(self.argument(arg, true))));
        }
        let states = function.state_fields()?;
        if udf.is::<Avg>()
            && has_columns
            && is_decimal
            && matches!(
                states.last().map(|state| state.data_type()),
                Some(DataType::Decimal128(_, _))
            )
        {
            return Ok(Some(Function::Average(self.argument(arg, true))));
        }
        Ok(None)
    }

    fn argument(&mut self, expr: &Arc<dyn PhysicalExpr>, is_summed: bool) -> usize {
        let known = self.arguments.iter().position(|known| known.expr.eq(expr));
        let number = known.unwrap_or_else(|| {
            self.arguments.push(Argument {
                expr: Arc::clone(expr),
                sum: Summed::No,
            });
            self.arguments.len() - 1
        });
        if is_summed {
            self.arguments[number].sum = Summed::Wide;
        }
        number
    }

    /// All expressions that are evaluated.
    fn exprs(&self) -> Vec<Arc<dyn PhysicalExpr>> {
        let mut exprs = self.keys.clone();
        exprs.extend(
            self.arguments
                .iter()
                .map(|argument| Arc::clone(&argument.expr)),
        );
        for function in &self.functions {
            if let Function::Other { args, filter, .. } = function {
                exprs.extend(args.iter().cloned());
                exprs.extend(filter.clone());
            }
        }
        exprs
    }

    /// Takes the work of a projection below over, if nothing is then computed twice, and
    /// returns what is below it.
    fn absorb(&mut self, plain: &AggregateExec) -> Result<Option<Arc<dyn ExecutionPlan>>> {
        let Some(projection) = plain.input().downcast_ref::<ProjectionExec>() else {
            return Ok(None);
        };
        let schema = projection.input().schema();
        let mut n_uses = vec![0; projection.expr().len()];
        for expr in self.exprs() {
            expr.apply(|expr| {
                if let Some(column) = expr.downcast_ref::<Column>() {
                    n_uses[column.index()] += 1;
                }
                Ok(TreeNodeRecursion::Continue)
            })?;
        }
        let twice = projection
            .expr()
            .iter()
            .zip(n_uses)
            .any(|(projected, n_uses)| {
                n_uses > 1
                    && !projected.expr.is::<Column>()
                    && !projected.expr.is::<Literal>()
                    && Program::default().add(&projected.expr, &schema).is_none()
            });
        if twice {
            return Ok(None);
        }
        let replace = |expr: &Arc<dyn PhysicalExpr>| -> Result<Arc<dyn PhysicalExpr>> {
            let replaced = Arc::clone(expr).transform_up(|expr| {
                Ok(match expr.downcast_ref::<Column>() {
                    Some(column) => {
                        Transformed::yes(Arc::clone(&projection.expr()[column.index()].expr))
                    }
                    None => Transformed::no(expr),
                })
            })?;
            Ok(replaced.data)
        };
        for key in &mut self.keys {
            *key = replace(key)?;
        }
        for argument in &mut self.arguments {
            argument.expr = replace(&argument.expr)?;
        }
        for function in &mut self.functions {
            if let Function::Other { args, filter, .. } = function {
                for arg in args {
                    *arg = replace(arg)?;
                }
                *filter = filter.as_ref().map(replace).transpose()?;
            }
        }
        self.projection = Some(projection.expr().to_vec());
        Ok(Some(Arc::clone(projection.input())))
    }

    /// Finds what can be added up in 64 bits.
    fn narrow(&mut self, schema: &Schema) {
        for argument in &mut self.arguments {
            if argument.sum == Summed::Wide
                && let Some(number) = self.program.add(&argument.expr, schema)
            {
                argument.sum = Summed::Narrow(number);
            }
        }
    }

    /// The columns that are keys and are nothing else.
    fn only_keys(&self) -> Vec<usize> {
        let mut others: Vec<usize> = self.exprs()[self.keys.len()..]
            .iter()
            .flat_map(collect_columns)
            .map(|column| column.index())
            .collect();
        let mut columns = Vec::new();
        for key in &self.keys {
            match key.downcast_ref::<Column>() {
                Some(column) => columns.push(column.index()),
                None => others.extend(collect_columns(key).iter().map(Column::index)),
            }
        }
        columns.retain(|column| !others.contains(column));
        columns
    }

    /// A record batch of the aggregate's own input.
    fn own_input(&self, batch: &RecordBatch) -> Result<RecordBatch> {
        let schema = self.partial.input().schema();
        let columns = match &self.projection {
            Some(projection) => projection
                .iter()
                .map(|projected| projected.expr.evaluate(batch)?.into_array(batch.num_rows()))
                .collect::<Result<Vec<_>>>()?,
            None => batch.columns().to_vec(),
        };
        let columns = columns
            .iter()
            .zip(schema.fields())
            .map(|(column, field)| Ok(cast(column, field.data_type())?))
            .collect::<Result<Vec<_>>>()?;
        let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
        Ok(RecordBatch::try_new_with_options(
            schema, columns, &options,
        )?)
    }
}

/// The groups of one partition.
struct Groups {
    work: Arc<Work>,
    keys: Keys,
    n_rows: Vec<u64>,
    totals: Vec<Totals>,
    others: Vec<Box<dyn GroupsAccumulator>>,
    /// The group of each row, and what is needed to find it.
    groups: Vec<u8>,
    codes: Vec<u8>,
    indices: Vec<usize>,
}

impl Groups {
    fn new(work: &Arc<Work>) -> Result<Self> {
        let others = work.functions.iter().filter_map(|function| match function {
            Function::Other { function, .. } => Some(function.create_groups_accumulator()),
            _ => None,
        });
        Ok(Self {
            keys: Keys::new(work.keys.len()),
            n_rows: Vec::new(),
            totals: work.arguments.iter().map(|_| Totals::default()).collect(),
            others: others.collect::<Result<_>>()?,
            groups: Vec::new(),
            codes: Vec::new(),
            indices: Vec::new(),
            work: Arc::clone(work),
        })
    }

    /// Adds all rows, or none where there are too many groups.
    fn add(&mut self, batch: &RecordBatch) -> Result<bool> {
        let work = Arc::clone(&self.work);
        let n_rows = batch.num_rows();
        let evaluate = |expr: &Arc<dyn PhysicalExpr>| expr.evaluate(batch)?.into_array(n_rows);
        let keys: Vec<ArrayRef> = work.keys.iter().map(evaluate).collect::<Result<_>>()?;
        let found = self
            .keys
            .find(&keys, n_rows, &mut self.groups, &mut self.codes)?;
        if !found {
            return Ok(false);
        }
        let n_groups = self.keys.len();
        self.n_rows.resize(n_groups, 0);
        count_rows(&mut self.n_rows, &self.groups);

        let mut run = work.program.run(batch);
        for (argument, total) in work.arguments.iter().zip(&mut self.totals) {
            total.grow(n_groups);
            if let Summed::Narrow(number) = argument.sum
                && let Some(value) = run.get(number)
            {
                total.add_narrow(&value, &self.groups);
                continue;
            }
            let values = evaluate(&argument.expr)?;
            if argument.sum == Summed::No {
                if let Some(nulls) = values.logical_nulls() {
                    total.count_nulls(&nulls, &self.groups);
                }
            } else if let Some(value) = Narrow::read(&values) {
                total.add_narrow(&value, &self.groups);
            } else {
                total.add_wide(&values, &self.groups)?;
            }
        }
        if work.n_other == 0 {
            return Ok(true);
        }
        self.indices.clear();
        self.indices
            .extend(self.groups.iter().map(|group| usize::from(*group)));
        let mut others = self.others.iter_mut();
        for function in &work.functions {
            let Function::Other { args, filter, .. } = function else {
                continue;
            };
            let Some(accumulator) = others.next() else {
                return internal_err!("an accumulator is missing");
            };
            let values = args.iter().map(evaluate).collect::<Result<Vec<_>>>()?;
            let filter = filter.as_ref().map(evaluate).transpose()?;
            let filter = filter.as_ref().map(|filter| filter.as_boolean());
            accumulator.update_batch(&values, &self.indices, filter, n_groups)?;
        }
        Ok(true)
    }

    /// The states of all groups.
    fn finish(&mut self) -> Result<RecordBatch> {
        let schema = self.work.partial.schema();
        let n_groups = self.keys.len();
        if n_groups == 0 {
            return Ok(RecordBatch::new_empty(schema));
        }
        self.n_rows.resize(n_groups, 0);
        for total in &mut self.totals {
            total.grow(n_groups);
        }
        let mut columns: Vec<ArrayRef> = Vec::with_capacity(schema.fields().len());
        for number in 0..self.work.keys.len() {
            columns.push(self.keys.column(number, schema.field(number).data_type())?);
        }
        let work = Arc::clone(&self.work);
        let signed = |counts: &[u64]| -> ArrayRef {
            let counts = counts.iter().map(|count| *count as i64);
            Arc::new(Int64Array::from_iter_values(counts))
        };
        let mut others = self.others.iter_mut();
        for function in &work.functions {
            match function {
                Function::Rows => columns.push(signed(&self.n_rows)),
                Function::Count(argument) => {
                    columns.push(signed(&counts(&self.n_rows, &self.totals[*argument])));
                }
                Function::Sum(argument) => {
                    let data_type = schema.field(columns.len()).data_type();
                    let total = &self.totals[*argument];
                    columns.push(sums(&self.n_rows, total, data_type, "sum")?);
                }
                Function::Average(argument) => {
                    let total = &self.totals[*argument];
                    let counts = counts(&self.n_rows, total);
                    let nulls = is_seen(&counts);
                    columns.push(Arc::new(UInt64Array::new(counts.into(), Some(nulls))));
                    let data_type = schema.field(columns.len()).data_type();
                    columns.push(sums(&self.n_rows, total, data_type, "avg")?);
                }
                Function::Other { .. } => match others.next() {
                    Some(accumulator) => columns.extend(accumulator.state(EmitTo::All)?),
                    None => return internal_err!("an accumulator is missing"),
                },
            }
        }
        Ok(RecordBatch::try_new(schema, columns)?)
    }
}

/// Rows of each group that are not NULL.
fn counts(n_rows: &[u64], total: &Totals) -> Vec<u64> {
    let both = n_rows.iter().zip(&total.n_nulls);
    both.map(|(n_rows, n_nulls)| n_rows - n_nulls).collect()
}

fn sums(n_rows: &[u64], total: &Totals, data_type: &DataType, name: &str) -> Result<ArrayRef> {
    if total.overflowed {
        let data_type = match data_type {
            DataType::Decimal128(precision, scale) => format!("DECIMAL({precision}, {scale})"),
            other => other.to_string(),
        };
        let expression = name.into();
        let error = Error::Overflow {
            expression,
            data_type,
        };
        return Err(error.into_datafusion());
    }
    let nulls = is_seen(&counts(n_rows, total));
    let sums = Decimal128Array::new(total.sums.clone().into(), Some(nulls));
    Ok(Arc::new(sums.with_data_type(data_type.clone())))
}

/// NULL where nothing was counted.
fn is_seen(counts: &[u64]) -> NullBuffer {
    NullBuffer::new(BooleanBuffer::from_iter(
        counts.iter().map(|count| *count > 0),
    ))
}

impl DisplayAs for FewGroupsExec {
    fn fmt_as(&self, format: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FewGroupsExec: ")?;
        self.plain.fmt_as(format, f)
    }
}

impl ExecutionPlan for FewGroupsExec {
    fn name(&self) -> &str {
        "FewGroupsExec"
    }

    /// Who looks at the plan sees the aggregate that it stands for.
    fn downcast_delegate(&self) -> Option<&dyn ExecutionPlan> {
        Some(self.plain.as_ref())
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        self.plain.properties()
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.input]
    }

    fn apply_expressions(
        &self,
        each: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        for expr in self.work.exprs() {
            if each(&expr)? == TreeNodeRecursion::Stop {
                return Ok(TreeNodeRecursion::Stop);
            }
        }
        Ok(TreeNodeRecursion::Continue)
    }

    fn replace_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
        _: ReplaceChildrenOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let Ok([input]) = <[_; 1]>::try_from(children) else {
            return internal_err!("one child expected");
        };
        Ok(Arc::new(Self {
            plain: Arc::clone(&self.plain),
            input,
            work: Arc::clone(&self.work),
            metrics: ExecutionPlanMetricsSet::new(),
        }))
    }

    fn with_new_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        self.replace_children(
            children,
            ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute),
        )
    }

    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.metrics.clone_inner())
    }

    fn execute(
        &self,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        let input = self.input.execute(partition, Arc::clone(&context))?;
        let job = Job {
            plain: Arc::clone(&self.plain),
            work: Arc::clone(&self.work),
            metrics: BaselineMetrics::new(&self.metrics, partition),
            context,
        };
        let metrics = job.metrics.clone();
        let rows = stream::once(job.run(input))
            .try_flatten()
            .inspect_ok(move |batch: &RecordBatch| metrics.output_rows().add(batch.num_rows()));
        Ok(Box::pin(RecordBatchStreamAdapter::new(self.schema(), rows)))
    }
}

/// One execution of one partition.
struct Job {
    plain: Arc<AggregateExec>,
    work: Arc<Work>,
    metrics: BaselineMetrics,
    context: Arc<TaskContext>,
}

impl Job {
    async fn run(self, mut input: SendableRecordBatchStream) -> Result<SendableRecordBatchStream> {
        let mut groups = Groups::new(&self.work)?;
        let mut kept = Some(Vec::new());
        while let Some(batch) = input.try_next().await? {
            let timer = self.metrics.elapsed_compute().timer();
            if batch.num_rows() == 0 {
                continue;
            }
            if !groups.add(&batch)? {
                return match kept {
                    Some(mut kept) => {
                        kept.push(batch);
                        let rest = self.rest(kept, input);
                        self.aggregate(&self.plain, rest)
                    }
                    None => {
                        let states = stream::iter([groups.finish()]);
                        let rest = self.rest(vec![batch], input);
                        let rest = self.aggregate(&self.work.partial, rest)?;
                        self.results(states.chain(rest))
                    }
                };
            }
            match &mut kept {
                Some(batches) if batches.len() < N_KEPT_MAX => batches.push(batch),
                kept => *kept = None,
            }
            timer.done();
        }
        let states = groups.finish()?;
        let states = (states.num_rows() > 0).then_some(Ok(states));
        self.results(stream::iter(states))
    }

    /// The rows of the aggregate's own input that come from here on.
    fn rest(
        &self,
        first: Vec<RecordBatch>,
        others: SendableRecordBatchStream,
    ) -> SendableRecordBatchStream {
        let work = Arc::clone(&self.work);
        let schema = work.partial.input().schema();
        let rows = stream::iter(first.into_iter().map(Ok))
            .chain(others)
            .map(move |batch| work.own_input(&batch?));
        Box::pin(RecordBatchStreamAdapter::new(schema, rows))
    }

    /// What an aggregate makes of rows.
    fn aggregate(
        &self,
        aggregate: &Arc<AggregateExec>,
        rows: SendableRecordBatchStream,
    ) -> Result<SendableRecordBatchStream> {
        let rows: Arc<dyn ExecutionPlan> = Arc::new(RowsExec::new(rows));
        let aggregate = AggregateExec::try_new(
            *aggregate.mode(),
            aggregate.group_expr().clone(),
            aggregate.aggr_expr().to_vec(),
            aggregate.filter_expr().to_vec(),
            rows,
            aggregate.input_schema(),
        )?;
        aggregate.execute(0, Arc::clone(&self.context))
    }

    /// States as they are, or merged to results where the aggregate gives those.
    fn results(
        &self,
        states: impl Stream<Item = Result<RecordBatch>> + Send + 'static,
    ) -> Result<SendableRecordBatchStream> {
        let schema = self.work.partial.schema();
        let states = Box::pin(RecordBatchStreamAdapter::new(schema, states));
        if *self.plain.mode() == AggregateMode::Partial {
            return Ok(states);
        }
        let merged = AggregateExec::try_new(
            AggregateMode::Final,
            self.plain.group_expr().as_final(),
            self.plain.aggr_expr().to_vec(),
            vec![None; self.plain.aggr_expr().len()],
            Arc::new(RowsExec::new(states)),
            self.plain.input_schema(),
        )?;
        merged.execute(0, Arc::clone(&self.context))
    }
}

/// Rows of a stream, once.
struct RowsExec {
    rows: Mutex<Option<SendableRecordBatchStream>>,
    properties: Arc<PlanProperties>,
}

impl RowsExec {
    fn new(rows: SendableRecordBatchStream) -> Self {
        let properties = PlanProperties::new(
            EquivalenceProperties::new(rows.schema()),
            Partitioning::UnknownPartitioning(1),
            EmissionType::Incremental,
            Boundedness::Bounded,
        );
        Self {
            rows: Mutex::new(Some(rows)),
            properties: Arc::new(properties),
        }
    }
}

impl fmt::Debug for RowsExec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RowsExec")
    }
}

impl DisplayAs for RowsExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RowsExec")
    }
}

impl ExecutionPlan for RowsExec {
    fn name(&self) -> &str {
        "RowsExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        Vec::new()
    }

    fn apply_expressions(
        &self,
        _: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn replace_children(
        self: Arc<Self>,
        _: Vec<Arc<dyn ExecutionPlan>>,
        _: ReplaceChildrenOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(self)
    }

    fn with_new_children(
        self: Arc<Self>,
        _: Vec<Arc<dyn ExecutionPlan>>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(self)
    }

    fn execute(&self, _: usize, _: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let mut rows = self.rows.lock().unwrap_or_else(PoisonError::into_inner);
        match rows.take() {
            Some(rows) => Ok(rows),
            None => internal_err!("the rows were read before"),
        }
    }
}
