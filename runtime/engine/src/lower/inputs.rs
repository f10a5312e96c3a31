//! What the columns of a plan node are, seen from the relations that its pipeline reads.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, StringArray};
use arrow::datatypes::{DataType, Schema};
use datafusion::common::ScalarValue;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::physical_expr::expressions::{CastExpr, Column, Literal as PhysicalLiteral};
use datafusion::physical_expr::utils::collect_columns;
use datafusion::physical_expr_common::physical_expr::is_volatile;
use datafusion::physical_plan::PhysicalExpr;
use kernels::codegen::Unsupported;
use kernels::columns::{arrow_type, type_of};
use kernels::ir::{Expr, RELATION_COLUMNS};

use super::choice::Choice;
use super::expr::{lower, reason};
use super::late::LateValues;
use crate::report::Reason;

/// Where a column of a plan node comes from.
#[derive(Debug, Clone)]
pub enum Origin {
    /// A column of a relation, as it is; any Arrow type.
    Column(usize),
    /// The same value in every row; any Arrow type.
    Constant(ScalarValue),
    /// Text that follows from one column of text.
    Text(DerivedText),
    /// One of some texts.
    Choice(Choice),
    /// Any other expression.
    Computed,
}

/// Text that a function gives for one column of text.
#[derive(Debug, Clone)]
pub struct DerivedText {
    /// The column, by its number in the pipeline.
    pub column: usize,
    /// The function, over rows whose column 0 it is.
    pub function: Arc<dyn PhysicalExpr>,
    /// Whether a row that is missing has a text all the same: that which the function gives
    /// for null.
    pub of_missing: bool,
}

/// What each column of a plan node is: an expression over the pipeline's relations, or
/// the reason why it has no device form.
#[derive(Debug, Clone)]
pub struct Inputs {
    columns: Vec<Result<Expr, Reason>>,
    origins: Vec<Origin>,
    /// Relations whose row may be missing: their columns are then null.
    missing: Vec<usize>,
    late: LateValues,
}

impl Inputs {
    /// The columns of a relation. A column of a type without a device form is only
    /// refused when an expression reads it.
    pub fn of_relation(schema: &Schema, relation: usize, late: &LateValues) -> Inputs {
        let all: Vec<usize> = (0..schema.fields().len()).collect();
        let own = Inputs::numbered(schema, &all, late);
        own.in_relation(relation, false)
    }

    /// The columns of a source of which only `used` are there, in that order.
    pub fn numbered(schema: &Schema, used: &[usize], late: &LateValues) -> Inputs {
        let lowered = |index: usize| {
            let field = schema.field(index);
            let ty = type_of(field.data_type()).map_err(|e| reason(&e, field.name()))?;
            let number = used.iter().position(|column| *column == index);
            let number = number.ok_or_else(|| reason(&Unsupported::expression(index), "column"))?;
            Ok(Expr::column(number, ty, field.is_nullable()))
        };
        let n = schema.fields().len();
        Inputs {
            columns: (0..n).map(lowered).collect(),
            origins: (0..n).map(Origin::Column).collect(),
            missing: Vec::new(),
            late: late.clone(),
        }
    }

    /// The same columns of another relation; of one whose row may be missing all of them
    /// can be null.
    pub fn in_relation(self, relation: usize, may_miss: bool) -> Inputs {
        let moved = |expr: Expr| {
            let moved = expr.of_relation(relation);
            Expr {
                nullable: moved.nullable || may_miss,
                ..moved
            }
        };
        let first = relation * RELATION_COLUMNS;
        let origins = self.origins.into_iter().map(|origin| match origin {
            Origin::Column(index) => Origin::Column(index + first),
            Origin::Text(text) => Origin::Text(DerivedText {
                column: text.column + first,
                ..text
            }),
            Origin::Choice(choice) => Origin::Choice(choice.of_relation(relation)),
            other => other,
        });
        Inputs {
            columns: self.columns.into_iter().map(|c| c.map(moved)).collect(),
            origins: origins.collect(),
            missing: may_miss.then_some(relation).into_iter().collect(),
            late: self.late,
        }
    }

    /// Whether every column is one of a relation, as it is.
    pub fn are_columns(&self) -> bool {
        let mut origins = self.origins.iter();
        origins.all(|origin| matches!(origin, Origin::Column(_)))
    }

    /// Whether some column is the same in every row.
    pub fn any_constant(&self) -> bool {
        let mut origins = self.origins.iter();
        origins.any(|origin| matches!(origin, Origin::Constant(_)))
    }

    /// These inputs and then others.
    pub fn then(mut self, others: Inputs) -> Inputs {
        self.columns.extend(others.columns);
        self.origins.extend(others.origins);
        self.missing.extend(others.missing);
        self
    }

    /// These inputs and then one that is computed.
    pub fn then_computed(mut self, value: Expr) -> Inputs {
        self.columns.push(Ok(value));
        self.origins.push(Origin::Computed);
        self
    }

    /// Some of these inputs, in this order.
    pub fn select(&self, kept: impl IntoIterator<Item = usize>) -> Inputs {
        let kept = kept.into_iter();
        let known = kept.filter_map(|index| {
            Some((
                self.columns.get(index)?.clone(),
                self.origins.get(index)?.clone(),
            ))
        });
        let (columns, origins) = known.unzip();
        Inputs {
            columns,
            origins,
            missing: self.missing.clone(),
            late: self.late.clone(),
        }
    }

    /// The outputs of a projection over these inputs.
    pub fn project<'a>(
        &self,
        exprs: impl IntoIterator<Item = &'a Arc<dyn PhysicalExpr>>,
    ) -> Inputs {
        let outputs = exprs
            .into_iter()
            .map(|expr| (lower(expr, self), self.origin(expr)));
        let (columns, origins) = outputs.unzip();
        Inputs {
            columns,
            origins,
            missing: self.missing.clone(),
            late: self.late.clone(),
        }
    }

    /// Every column: where it comes from, and what computes it or why nothing can.
    pub fn iter(&self) -> impl Iterator<Item = (&Origin, &Result<Expr, Reason>)> {
        self.origins.iter().zip(&self.columns)
    }

    /// What computes a column.
    pub fn column(&self, index: usize) -> Option<&Result<Expr, Reason>> {
        self.columns.get(index)
    }

    /// The constants that are known when the pipeline starts.
    pub fn late(&self) -> &LateValues {
        &self.late
    }

    /// Where an expression over these inputs comes from.
    pub fn origin(&self, expr: &Arc<dyn PhysicalExpr>) -> Origin {
        if let Some(column) = expr.downcast_ref::<Column>() {
            let known = self.origins.get(column.index());
            return known.cloned().unwrap_or(Origin::Computed);
        }
        if let Some(cast) = expr.downcast_ref::<CastExpr>()
            && self.type_of(cast.expr()).as_ref() == Some(cast.cast_type())
        {
            return self.origin(cast.expr());
        }
        if let Some(literal) = expr.downcast_ref::<PhysicalLiteral>() {
            return Origin::Constant(literal.value().clone());
        }
        if let Some(text) = self.derived_text(expr) {
            return Origin::Text(text);
        }
        match Choice::of(expr, self) {
            Some(choice) => Origin::Choice(choice),
            None => Origin::Computed,
        }
    }

    /// The expression as text that follows from one column of text, if it is that.
    fn derived_text(&self, expr: &Arc<dyn PhysicalExpr>) -> Option<DerivedText> {
        let used = collect_columns(expr);
        let mut used = used.iter();
        let (Some(column), None) = (used.next(), used.next()) else {
            return None;
        };
        let (number, inner): (usize, Arc<dyn PhysicalExpr>) =
            match self.origins.get(column.index())? {
                Origin::Column(number) => {
                    let is_text = self.columns.get(column.index())?.as_ref();
                    is_text.ok().filter(|e| e.ty == kernels::ir::Type::Utf8)?;
                    (*number, Arc::new(Column::new("text", 0)))
                }
                Origin::Text(text) => (text.column, Arc::clone(&text.function)),
                Origin::Constant(_) | Origin::Choice(_) | Origin::Computed => return None,
            };
        if is_volatile(expr) || has_subquery(expr) {
            return None;
        }
        let function = Arc::clone(expr).transform(|node| {
            Ok(match node.is::<Column>() {
                true => Transformed::yes(Arc::clone(&inner)),
                false => Transformed::no(node),
            })
        });
        let function = function.ok()?.data;
        let text = Schema::new(vec![arrow::datatypes::Field::new(
            "text",
            DataType::Utf8,
            true,
        )]);
        let gives = function.data_type(&text).ok()?;
        let derived = DerivedText {
            column: number,
            function,
            of_missing: false,
        };
        // Codes of a row that is missing are null, which the function may make a text.
        let may_miss = self.missing.contains(&(number / RELATION_COLUMNS));
        let of_missing = may_miss && !derived.keeps_null();
        let derived = DerivedText {
            of_missing,
            ..derived
        };
        (gives == DataType::Utf8).then_some(derived)
    }

    /// The type of a column that is passed on.
    fn type_of(&self, expr: &Arc<dyn PhysicalExpr>) -> Option<DataType> {
        let column = expr.downcast_ref::<Column>()?;
        let known = self.columns.get(column.index())?.as_ref();
        Some(arrow_type(known.ok()?.ty))
    }
}

impl DerivedText {
    /// Whether null gives null.
    fn keeps_null(&self) -> bool {
        let null: ArrayRef = Arc::new(StringArray::new_null(1));
        self.of(&null).is_ok_and(|text| text.is_null(0))
    }
}

fn has_subquery(expr: &Arc<dyn PhysicalExpr>) -> bool {
    use datafusion::physical_expr::scalar_subquery::ScalarSubqueryExpr;
    expr.is::<ScalarSubqueryExpr>() || expr.children().into_iter().any(has_subquery)
}
