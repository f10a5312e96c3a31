//! Decimal arithmetic in 64 bits, where the values at hand prove that it fits.
//!
//! A `Decimal128` takes 128 bits whatever it holds, and DataFusion's arithmetic on it
//! tests every row for overflow. Prices fit 64 bits with room to spare. So a column is
//! read once into 64 bits with a bound on its magnitude; the bound of a result follows
//! from the bounds of its operands, and while it fits 64 bits no row can overflow:
//!
//! ```text
//!   price * (1 - discount)     |price| < 2^24,  |1 - discount| < 2^8
//!                              so every product is below 2^32: no test per row
//! ```
//!
//! Where it does not fit, the plain expression is evaluated instead. The bound comes
//! from the record batch, not from the type, whose precision soon reaches 38 digits.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use datafusion::arrow::array::{Array, ArrayRef, AsArray, Decimal128Array, RecordBatch};
use datafusion::arrow::buffer::{NullBuffer, ScalarBuffer};
use datafusion::arrow::datatypes::{
    DataType, Decimal128Type, FieldRef, Int32Type, Int64Type, Schema,
};
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{Result, ScalarValue, internal_err};
use datafusion::logical_expr::{ColumnarValue, Operator};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::{BinaryExpr, CastExpr, Column, Literal};

/// The digits of a column.
#[derive(Debug, Clone)]
pub enum Digits {
    /// The same in every row.
    Same(i64),
    /// One for each row; what stands in the place of a NULL has no meaning.
    Each(ScalarBuffer<i64>),
}

/// A column whose digits fit 64 bits.
#[derive(Debug, Clone)]
pub struct Narrow {
    /// The digits, without the scale.
    pub digits: Digits,
    /// Which rows are NULL.
    pub nulls: Option<NullBuffer>,
    /// No digits are further from zero, in the places of NULLs too.
    pub bound: u64,
}

/// The largest bound that 64 bits with a sign can hold.
const BOUND_MAX: u64 = i64::MAX as u64;

/// Expressions over the columns of a record batch, each kept once: an expression that
/// occurs in two of them is computed once for both.
#[derive(Debug, Clone, Default)]
pub struct Program {
    steps: Vec<Step>,
}

/// One expression; operands are numbers of earlier steps.
#[derive(Debug, Clone, PartialEq)]
enum Step {
    Column(usize),
    Literal(i64),
    /// An operand is multiplied to bring it to the scale of the result.
    Sum {
        left: (usize, i64),
        right: (usize, i64),
        is_minus: bool,
    },
    Product(usize, usize),
    /// Digits below this limit, after they were multiplied.
    Cast {
        from: usize,
        factor: i64,
        limit: i128,
    },
}

impl Program {
    /// The number of an expression, or `None` if it has no narrow form.
    pub fn add(&mut self, expr: &Arc<dyn PhysicalExpr>, schema: &Schema) -> Option<usize> {
        let step = if let Some(column) = expr.downcast_ref::<Column>() {
            match schema.fields().get(column.index())?.data_type() {
                DataType::Decimal128(_, _) | DataType::Int64 | DataType::Int32 => {
                    Step::Column(column.index())
                }
                _ => return None,
            }
        } else if let Some(literal) = expr.downcast_ref::<Literal>() {
            match literal.value() {
                ScalarValue::Decimal128(Some(value), _, _) => {
                    Step::Literal(i64::try_from(*value).ok()?)
                }
                _ => return None,
            }
        } else if let Some(narrow) = expr.downcast_ref::<NarrowExpr>() {
            return self.add(narrow.plain(), schema);
        } else if let Some(cast) = expr.downcast_ref::<CastExpr>() {
            self.cast(cast, schema)?
        } else if let Some(binary) = expr.downcast_ref::<BinaryExpr>() {
            self.binary(binary, schema)?
        } else {
            return None;
        };
        if let Some(known) = self.steps.iter().position(|known| *known == step) {
            return Some(known);
        }
        self.steps.push(step);
        Some(self.steps.len() - 1)
    }

    fn cast(&mut self, cast: &CastExpr, schema: &Schema) -> Option<Step> {
        let DataType::Decimal128(precision, scale) = cast.cast_type() else {
            return None;
        };
        let from_scale = match cast.expr().data_type(schema).ok()? {
            DataType::Decimal128(_, scale) => scale,
            DataType::Int64 | DataType::Int32 => 0,
            _ => return None,
        };
        Some(Step::Cast {
            factor: power(*scale, from_scale)?,
            limit: 10_i128.checked_pow(u32::from(*precision))?,
            from: self.add(cast.expr(), schema)?,
        })
    }

    fn binary(&mut self, binary: &BinaryExpr, schema: &Schema) -> Option<Step> {
        let scale = |expr: &Arc<dyn PhysicalExpr>| match expr.data_type(schema).ok()? {
            DataType::Decimal128(_, scale) => Some(scale),
            _ => None,
        };
        let (left, right) = (scale(binary.left())?, scale(binary.right())?);
        let sum = left.max(right);
        match binary.op() {
            Operator::Plus | Operator::Minus => Some(Step::Sum {
                left: (self.add(binary.left(), schema)?, power(sum, left)?),
                right: (self.add(binary.right(), schema)?, power(sum, right)?),
                is_minus: *binary.op() == Operator::Minus,
            }),
            Operator::Multiply => Some(Step::Product(
                self.add(binary.left(), schema)?,
                self.add(binary.right(), schema)?,
            )),
            _ => None,
        }
    }

    /// A run over one record batch. Nothing is computed before it is asked for.
    pub fn run<'a>(&'a self, batch: &'a RecordBatch) -> Run<'a> {
        Run {
            program: self,
            batch,
            done: vec![None; self.steps.len()],
        }
    }
}

/// Ten to the difference of two scales.
fn power(to: i8, from: i8) -> Option<i64> {
    let digits = to.checked_sub(from)?;
    10_i64.checked_pow(u32::try_from(digits).ok()?)
}

/// What a program's expressions are for one record batch.
pub struct Run<'a> {
    program: &'a Program,
    batch: &'a RecordBatch,
    /// `Some(None)` for what does not fit.
    done: Vec<Option<Option<Narrow>>>,
}

impl Run<'_> {
    /// The value of an expression, or `None` where it does not fit 64 bits.
    pub fn get(&mut self, number: usize) -> Option<Narrow> {
        if let Some(done) = &self.done[number] {
            return done.clone();
        }
        let value = self.step(&self.program.steps[number]);
        self.done[number] = Some(value.clone());
        value
    }

    fn step(&mut self, step: &Step) -> Option<Narrow> {
        match step {
            Step::Column(index) => Narrow::read(self.batch.column(*index)),
            Step::Literal(value) => Some(Narrow {
                digits: Digits::Same(*value),
                nulls: None,
                bound: value.unsigned_abs(),
            }),
            Step::Product(left, right) => {
                let (left, right) = (self.get(*left)?, self.get(*right)?);
                let bound = left.bound.checked_mul(right.bound)?;
                combine(left, right, bound, |left, right| left.wrapping_mul(right))
            }
            Step::Sum {
                left,
                right,
                is_minus,
            } => {
                let left = scaled(self.get(left.0)?, left.1)?;
                let right = scaled(self.get(right.0)?, right.1)?;
                let bound = left.bound.checked_add(right.bound)?;
                if *is_minus {
                    combine(left, right, bound, |left, right| left.wrapping_sub(right))
                } else {
                    combine(left, right, bound, |left, right| left.wrapping_add(right))
                }
            }
            Step::Cast {
                from,
                factor,
                limit,
            } => {
                let value = scaled(self.get(*from)?, *factor)?;
                (i128::from(value.bound) < *limit).then_some(value)
            }
        }
    }
}

impl Narrow {
    /// A column in 64 bits, if it fits.
    pub fn read(array: &ArrayRef) -> Option<Self> {
        let (digits, spread) = match array.data_type() {
            DataType::Decimal128(_, _) => {
                let values = array.as_primitive::<Decimal128Type>().values();
                let (mut spread, mut lost) = (0, 0);
                let mut digits = vec![0; values.len()];
                for (digits, value) in digits.iter_mut().zip(values) {
                    let low = *value as i64;
                    let sign = low >> 63;
                    spread |= low ^ sign;
                    lost |= (*value >> 64) as i64 ^ sign;
                    *digits = low;
                }
                if lost != 0 {
                    return None;
                }
                (digits.into(), spread)
            }
            DataType::Int64 => {
                let values = array.as_primitive::<Int64Type>().values();
                let spread = values
                    .iter()
                    .fold(0, |spread, value| spread | (value ^ (value >> 63)));
                (values.clone(), spread)
            }
            DataType::Int32 => {
                let values = array.as_primitive::<Int32Type>().values();
                let digits: Vec<i64> = values.iter().map(|value| i64::from(*value)).collect();
                (digits.into(), i64::from(i32::MAX))
            }
            _ => return None,
        };
        // All bits up to the highest that is used; one more for the negative.
        let bound = u64::MAX.checked_shr(spread.leading_zeros()).unwrap_or(0) + 1;
        (bound <= BOUND_MAX).then(|| Self {
            digits: Digits::Each(digits),
            nulls: array
                .nulls()
                .filter(|nulls| nulls.null_count() > 0)
                .cloned(),
            bound,
        })
    }
}

fn scaled(value: Narrow, factor: i64) -> Option<Narrow> {
    if factor == 1 {
        return Some(value);
    }
    let bound = value.bound.checked_mul(factor.unsigned_abs())?;
    map(value, bound, |digits| digits.wrapping_mul(factor))
}

fn map(value: Narrow, bound: u64, each: impl Fn(i64) -> i64) -> Option<Narrow> {
    (bound <= BOUND_MAX).then(|| Narrow {
        digits: match value.digits {
            Digits::Same(value) => Digits::Same(each(value)),
            Digits::Each(values) => Digits::Each(values.iter().map(|value| each(*value)).collect()),
        },
        nulls: value.nulls,
        bound,
    })
}

fn combine(
    left: Narrow,
    right: Narrow,
    bound: u64,
    each: impl Fn(i64, i64) -> i64,
) -> Option<Narrow> {
    if bound > BOUND_MAX {
        return None;
    }
    let nulls = NullBuffer::union(left.nulls.as_ref(), right.nulls.as_ref());
    let digits = match (left.digits, right.digits) {
        (Digits::Same(left), Digits::Same(right)) => Digits::Same(each(left, right)),
        (Digits::Same(left), Digits::Each(right)) => {
            Digits::Each(right.iter().map(|right| each(left, *right)).collect())
        }
        (Digits::Each(left), Digits::Same(right)) => {
            Digits::Each(left.iter().map(|left| each(*left, right)).collect())
        }
        (Digits::Each(left), Digits::Each(right)) => Digits::Each(
            left.iter()
                .zip(right.iter())
                .map(|(left, right)| each(*left, *right))
                .collect(),
        ),
    };
    Some(Narrow {
        digits,
        nulls,
        bound,
    })
}

/// Decimal arithmetic that is tried in 64 bits first.
#[derive(Debug, Clone)]
pub struct NarrowExpr {
    plain: Arc<dyn PhysicalExpr>,
    program: Arc<Program>,
    precision: u8,
    scale: i8,
}

impl NarrowExpr {
    /// The expression with all decimal arithmetic in it tried in 64 bits first.
    pub fn inside(
        expr: Arc<dyn PhysicalExpr>,
        schema: &Schema,
    ) -> Result<Transformed<Arc<dyn PhysicalExpr>>> {
        expr.transform_down(|expr| {
            Ok(match Self::of(&expr, schema) {
                Some(narrow) => {
                    let narrow: Arc<dyn PhysicalExpr> = Arc::new(narrow);
                    Transformed::new(narrow, true, TreeNodeRecursion::Jump)
                }
                None => Transformed::no(expr),
            })
        })
    }

    fn of(expr: &Arc<dyn PhysicalExpr>, schema: &Schema) -> Option<Self> {
        let binary = expr.downcast_ref::<BinaryExpr>()?;
        if binary.left().is::<Literal>() && binary.right().is::<Literal>() {
            return None;
        }
        let DataType::Decimal128(precision, scale) = expr.data_type(schema).ok()? else {
            return None;
        };
        let mut program = Program::default();
        program.add(expr, schema)?;
        Some(Self {
            plain: Arc::clone(expr),
            program: Arc::new(program),
            precision,
            scale,
        })
    }

    /// The same expression, evaluated by DataFusion.
    pub fn plain(&self) -> &Arc<dyn PhysicalExpr> {
        &self.plain
    }

    fn narrow(&self, batch: &RecordBatch) -> Option<Decimal128Array> {
        // The expression itself is the last step.
        let value = self.program.run(batch).get(self.program.steps.len() - 1)?;
        let Digits::Each(digits) = value.digits else {
            return None;
        };
        let digits: Vec<i128> = digits.iter().map(|digits| i128::from(*digits)).collect();
        Decimal128Array::new(digits.into(), value.nulls)
            .with_precision_and_scale(self.precision, self.scale)
            .ok()
    }
}

impl PartialEq for NarrowExpr {
    fn eq(&self, other: &Self) -> bool {
        self.plain.eq(&other.plain)
    }
}

impl Eq for NarrowExpr {}

impl Hash for NarrowExpr {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.plain.hash(state);
    }
}

impl fmt::Display for NarrowExpr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.plain.fmt(f)
    }
}

impl PhysicalExpr for NarrowExpr {
    fn data_type(&self, schema: &Schema) -> Result<DataType> {
        self.plain.data_type(schema)
    }

    fn nullable(&self, schema: &Schema) -> Result<bool> {
        self.plain.nullable(schema)
    }

    fn return_field(&self, schema: &Schema) -> Result<FieldRef> {
        self.plain.return_field(schema)
    }

    fn evaluate(&self, batch: &RecordBatch) -> Result<ColumnarValue> {
        match self.narrow(batch) {
            Some(array) => Ok(ColumnarValue::Array(Arc::new(array))),
            None => self.plain.evaluate(batch),
        }
    }

    fn children(&self) -> Vec<&Arc<dyn PhysicalExpr>> {
        vec![&self.plain]
    }

    // Other columns may have other types, for which the program was not made.
    fn with_new_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn PhysicalExpr>>,
    ) -> Result<Arc<dyn PhysicalExpr>> {
        match <[_; 1]>::try_from(children) {
            Ok([plain]) if plain.eq(&self.plain) => Ok(self),
            Ok([plain]) => Ok(plain),
            Err(_) => internal_err!("one child expected"),
        }
    }

    fn fmt_sql(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.plain.fmt_sql(f)
    }
}
