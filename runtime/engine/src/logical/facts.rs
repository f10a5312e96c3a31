//! What is known of tables before they are read, and how many rows a plan has by that.
//!
//! Row counts and value ranges come from the metadata of files. A range of whole numbers
//! bounds how many distinct values there are; for other columns none is known. Estimates
//! follow the usual assumptions of relational optimisers (Selinger et al., SIGMOD 1979):
//! values spread evenly, conditions do not depend on each other, and of two columns that are
//! compared the one with fewer values has all of them in the other.

use std::collections::HashMap;
use std::sync::{PoisonError, RwLock};

use datafusion::common::stats::Precision;
use datafusion::common::{Column, ScalarValue, Statistics, TableReference};
use datafusion::logical_expr::utils::split_conjunction;
use datafusion::logical_expr::{BinaryExpr, Expr, JoinType, LogicalPlan, Operator};

use super::columns::through;

/// Of a condition that says nothing about how many rows it keeps.
const UNKNOWN_PART: f64 = 0.25;
/// Of an equality with a column whose values are not known.
const EQUAL_PART: f64 = 0.1;
/// Of a pattern.
const LIKE_PART: f64 = 0.1;

/// The tables of a session that have been asked about, by name.
#[derive(Debug, Default)]
pub struct Facts(RwLock<HashMap<String, Option<Table>>>);

/// What is known of one table.
#[derive(Debug, Clone)]
struct Table {
    n_rows: f64,
    /// The least and the greatest value of its columns, as numbers.
    ranges: HashMap<String, (f64, f64)>,
    /// Columns whose values are whole numbers.
    whole: Vec<String>,
}

impl Facts {
    /// Whether a table has been asked about.
    pub fn knows(&self, table: &TableReference) -> bool {
        let tables = self.0.read().unwrap_or_else(PoisonError::into_inner);
        tables.contains_key(table.table())
    }

    /// Keeps what the metadata of a table's files say; `None` where there are none.
    pub fn learn(&self, table: &TableReference, names: &[String], statistics: Option<&Statistics>) {
        let known = statistics.and_then(|statistics| Table::of(names, statistics));
        let mut tables = self.0.write().unwrap_or_else(PoisonError::into_inner);
        tables.insert(table.table().to_owned(), known);
    }

    /// Forgets a table, whose name now stands for another.
    pub fn forget(&self, table: &TableReference) {
        let mut tables = self.0.write().unwrap_or_else(PoisonError::into_inner);
        tables.remove(table.table());
    }

    /// How many rows a plan has, and distinct values its columns; `None` where a table below
    /// it is not known.
    pub fn estimate(&self, plan: &LogicalPlan) -> Option<Estimated> {
        match plan {
            LogicalPlan::TableScan(scan) => self.scan(scan, &[]),
            LogicalPlan::Filter(filter) => match filter.input.as_ref() {
                // What is pushed into a scan stands above it, too.
                LogicalPlan::TableScan(scan) => {
                    self.scan(scan, &split_conjunction(&filter.predicate))
                }
                input => {
                    let mut rows = self.estimate(input)?;
                    let parts = split_conjunction(&filter.predicate).into_iter();
                    rows.keep(parts.map(|part| rows.part(part)).product());
                    Some(rows)
                }
            },
            LogicalPlan::Projection(_) | LogicalPlan::SubqueryAlias(_) => {
                let input = self.estimate(plan.inputs().first()?)?;
                let columns = plan.schema().columns().into_iter();
                let known = columns.filter_map(|column| {
                    let own = through(plan, &column)?;
                    Some((column, *input.columns.get(&own)?))
                });
                Some(Estimated {
                    n_rows: input.n_rows,
                    columns: known.collect(),
                })
            }
            LogicalPlan::Aggregate(aggregate) => {
                let input = self.estimate(&aggregate.input)?;
                let groups = aggregate.group_expr.iter().map(|key| match key {
                    Expr::Column(column) => input.n_distinct(column),
                    _ => input.n_rows,
                });
                let n_rows = groups.product::<f64>().min(input.n_rows).max(1.0);
                let mut columns = input.columns;
                columns
                    .retain(|column, _| aggregate.schema.maybe_index_of_column(column).is_some());
                let mut rows = Estimated { n_rows, columns };
                rows.bound();
                Some(rows)
            }
            LogicalPlan::Join(join) => {
                let (left, right) = (self.estimate(&join.left)?, self.estimate(&join.right)?);
                let parts: Vec<f64> = join
                    .on
                    .iter()
                    .map(|(l, r)| equal_part(left.of(l), right.of(r)))
                    .collect();
                let part = met_part(parts, left.n_rows, right.n_rows);
                let met = left.n_rows * right.n_rows * part;
                let n_rows = match join.join_type {
                    JoinType::Inner => met,
                    JoinType::Left => met.max(left.n_rows),
                    JoinType::Right => met.max(right.n_rows),
                    JoinType::Full => met.max(left.n_rows).max(right.n_rows),
                    JoinType::LeftSemi => met.min(left.n_rows),
                    JoinType::RightSemi => met.min(right.n_rows),
                    JoinType::LeftAnti | JoinType::LeftMark => left.n_rows,
                    JoinType::RightAnti | JoinType::RightMark => right.n_rows,
                };
                let mut columns = left.columns;
                columns.extend(right.columns);
                columns.retain(|column, _| join.schema.maybe_index_of_column(column).is_some());
                let mut rows = Estimated { n_rows, columns };
                rows.bound();
                Some(rows)
            }
            LogicalPlan::Sort(sort) => {
                let mut rows = self.estimate(&sort.input)?;
                if let Some(fetch) = sort.fetch {
                    rows.n_rows = rows.n_rows.min(fetch as f64);
                    rows.bound();
                }
                Some(rows)
            }
            LogicalPlan::Distinct(_) | LogicalPlan::Limit(_) => {
                self.estimate(plan.inputs().first()?)
            }
            _ => None,
        }
    }

    fn scan(
        &self,
        scan: &datafusion::logical_expr::TableScan,
        above: &[&Expr],
    ) -> Option<Estimated> {
        let tables = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let table = tables.get(scan.table_name.table())?.as_ref()?;
        let column = |name: &str| Column::new(Some(scan.table_name.clone()), name);
        let values = table.ranges.iter().filter_map(|(name, (least, most))| {
            let whole = table.whole.contains(name).then_some(most - least + 1.0)?;
            Some((column(name), whole.min(table.n_rows).max(1.0)))
        });
        let mut rows = Estimated {
            n_rows: table.n_rows,
            columns: values.collect(),
        };
        let mut conditions: Vec<&Expr> = scan.filters.iter().flat_map(split_conjunction).collect();
        for expr in above {
            if !conditions.contains(expr) {
                conditions.push(expr);
            }
        }
        let part = conditions.into_iter().map(|condition| {
            let of_range = within(condition, &table.ranges);
            of_range.unwrap_or_else(|| rows.part(condition))
        });
        rows.keep(part.product());
        Some(rows)
    }
}

impl Table {
    fn of(names: &[String], statistics: &Statistics) -> Option<Table> {
        let n_rows = *statistics.num_rows.get_value()? as f64;
        let mut table = Table {
            n_rows,
            ranges: HashMap::new(),
            whole: Vec::new(),
        };
        for (name, column) in names.iter().zip(&statistics.column_statistics) {
            let number = |value: &Precision<ScalarValue>| number(value.get_value()?);
            let (Some(least), Some(most)) = (number(&column.min_value), number(&column.max_value))
            else {
                continue;
            };
            table.ranges.insert(name.clone(), (least, most));
            if column.min_value.get_value().is_some_and(is_whole) {
                table.whole.push(name.clone());
            }
        }
        Some(table)
    }
}

/// Rows, and distinct values of columns where they are known.
#[derive(Debug, Clone)]
pub struct Estimated {
    /// Rows.
    pub n_rows: f64,
    columns: HashMap<Column, f64>,
}

impl Estimated {
    /// Distinct values of a column; all rows differ where nothing else is known.
    pub fn n_distinct(&self, column: &Column) -> f64 {
        self.columns
            .get(column)
            .copied()
            .unwrap_or(self.n_rows)
            .max(1.0)
    }

    /// Distinct values of an expression.
    pub fn of(&self, expr: &Expr) -> f64 {
        match expr {
            Expr::Column(column) => self.n_distinct(column),
            _ => self.n_rows.max(1.0),
        }
    }

    /// The part of the rows that a condition keeps.
    fn part(&self, condition: &Expr) -> f64 {
        match condition {
            Expr::BinaryExpr(BinaryExpr { left, op, right }) => {
                match (left.as_ref(), op, right.as_ref()) {
                    (l, Operator::Or, r) => (self.part(l) + self.part(r)).min(1.0),
                    (l, Operator::And, r) => self.part(l) * self.part(r),
                    (Expr::Column(column), Operator::Eq, Expr::Literal(..))
                    | (Expr::Literal(..), Operator::Eq, Expr::Column(column)) => {
                        match self.columns.get(column) {
                            Some(n) => 1.0 / n.max(1.0),
                            None => EQUAL_PART,
                        }
                    }
                    (_, Operator::NotEq, _) => 1.0 - EQUAL_PART,
                    _ => UNKNOWN_PART,
                }
            }
            Expr::InList(list) if !list.negated => match list.expr.as_ref() {
                Expr::Column(column) if self.columns.contains_key(column) => {
                    (list.list.len() as f64 / self.n_distinct(column)).min(1.0)
                }
                _ => (list.list.len() as f64 * EQUAL_PART).min(1.0),
            },
            Expr::Like(like) if !like.negated => LIKE_PART,
            Expr::Not(_) | Expr::IsNotNull(_) | Expr::Like(_) | Expr::InList(_) => 1.0,
            _ => UNKNOWN_PART,
        }
    }

    fn keep(&mut self, part: f64) {
        self.n_rows = (self.n_rows * part).max(1.0);
        self.bound();
    }

    /// No column has more values than there are rows.
    fn bound(&mut self) {
        let n_rows = self.n_rows.max(1.0);
        for n in self.columns.values_mut() {
            *n = n.min(n_rows);
        }
    }
}

/// The part of all pairs in which two keys with so many values are equal.
pub fn equal_part(left: f64, right: f64) -> f64 {
    1.0 / left.max(right).max(1.0)
}

/// The part of the pairs of rows of two relations that meet, by the conditions on them. Several
/// columns are the key of one side more often than not: each row of the larger side then has
/// its row in the other.
pub fn met_part(parts: Vec<f64>, left_rows: f64, right_rows: f64) -> f64 {
    let of_key = match parts.len() {
        0 | 1 => 0.0,
        _ => 1.0 / left_rows.min(right_rows).max(1.0),
    };
    together(parts).max(of_key)
}

/// Several conditions on the same two relations. They hardly ever are independent, so that
/// each counts for less than the stronger one before it.
fn together(mut parts: Vec<f64>) -> f64 {
    parts.sort_by(f64::total_cmp);
    let mut exponent = 1.0;
    let mut product = 1.0;
    for part in parts {
        product *= part.powf(exponent);
        exponent /= 2.0;
    }
    product
}

/// The part of a range of values that a comparison with a constant keeps.
fn within(condition: &Expr, ranges: &HashMap<String, (f64, f64)>) -> Option<f64> {
    let Expr::BinaryExpr(BinaryExpr { left, op, right }) = condition else {
        return None;
    };
    let (column, op, value) = match (left.as_ref(), right.as_ref()) {
        (Expr::Column(column), Expr::Literal(value, _)) => (column, *op, value),
        (Expr::Literal(value, _), Expr::Column(column)) => (column, op.swap()?, value),
        _ => return None,
    };
    let ((least, most), value) = (*ranges.get(&column.name)?, number(value)?);
    let below = ((value - least) / (most - least).max(f64::MIN_POSITIVE)).clamp(0.0, 1.0);
    match op {
        Operator::Lt | Operator::LtEq => Some(below),
        Operator::Gt | Operator::GtEq => Some(1.0 - below),
        _ => None,
    }
}

/// A value as a number: ranges and constants of a column are of its type.
fn number(value: &ScalarValue) -> Option<f64> {
    Some(match value {
        ScalarValue::Int8(Some(v)) => f64::from(*v),
        ScalarValue::Int16(Some(v)) => f64::from(*v),
        ScalarValue::Int32(Some(v)) | ScalarValue::Date32(Some(v)) => f64::from(*v),
        ScalarValue::Int64(Some(v))
        | ScalarValue::TimestampSecond(Some(v), _)
        | ScalarValue::TimestampMillisecond(Some(v), _)
        | ScalarValue::TimestampMicrosecond(Some(v), _)
        | ScalarValue::TimestampNanosecond(Some(v), _) => *v as f64,
        ScalarValue::UInt8(Some(v)) => f64::from(*v),
        ScalarValue::UInt16(Some(v)) => f64::from(*v),
        ScalarValue::UInt32(Some(v)) => f64::from(*v),
        ScalarValue::UInt64(Some(v)) => *v as f64,
        ScalarValue::Decimal128(Some(v), _, scale) => *v as f64 / 10f64.powi(i32::from(*scale)),
        _ => return None,
    })
}

fn is_whole(value: &ScalarValue) -> bool {
    matches!(
        value,
        ScalarValue::Int8(_)
            | ScalarValue::Int16(_)
            | ScalarValue::Int32(_)
            | ScalarValue::Int64(_)
            | ScalarValue::UInt8(_)
            | ScalarValue::UInt16(_)
            | ScalarValue::UInt32(_)
            | ScalarValue::UInt64(_)
            | ScalarValue::Date32(_)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_on_the_same_pair_count_for_less_and_less() {
        assert_eq!(together(vec![]), 1.0);
        assert_eq!(together(vec![0.25]), 0.25);
        assert_eq!(together(vec![0.25, 0.01]), 0.01 * 0.5);
    }
}
