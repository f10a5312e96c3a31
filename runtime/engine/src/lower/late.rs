//! Constants that are known only when a pipeline starts: the answers of subqueries that
//! do not depend on the row.

use std::sync::{Arc, Mutex, PoisonError};

use arrow::array::RecordBatch;
use arrow::datatypes::Schema;
use datafusion::error::{DataFusionError, Result};
use datafusion::physical_plan::{ColumnarValue, PhysicalExpr};
use kernels::columns::type_of;
use kernels::ir::{Expr, Kind, Literal};

use super::expr::{lower_literal, reason, unsupported_expression};
use crate::report::Reason;

/// The late constants of one pipeline, by number. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct LateValues(Arc<Mutex<Vec<Arc<dyn PhysicalExpr>>>>);

impl LateValues {
    /// The constant that stands for a subquery's answer.
    pub(super) fn lower(&self, expr: &Arc<dyn PhysicalExpr>) -> Result<Expr, Reason> {
        let data_type = expr.data_type(&Schema::empty());
        let data_type = data_type.map_err(|_| unsupported_expression(expr))?;
        let ty = type_of(&data_type).map_err(|e| reason(&e, expr))?;
        let mut values = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let known = values
            .iter()
            .position(|value| value.as_ref() == expr.as_ref());
        let number = known.unwrap_or_else(|| {
            values.push(Arc::clone(expr));
            values.len() - 1
        });
        Ok(Expr {
            kind: Kind::Literal(Literal::Late(number)),
            ty,
            nullable: true,
        })
    }

    /// The values, now that the subqueries have been answered.
    pub fn values(&self) -> Result<Vec<Expr>> {
        let values = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let no_rows = RecordBatch::new_empty(Arc::new(Schema::empty()));
        let answers = values.iter().map(|value| match value.evaluate(&no_rows)? {
            ColumnarValue::Scalar(answer) => {
                lower_literal(&answer).map_err(|e| DataFusionError::Internal(e.message))
            }
            ColumnarValue::Array(_) => Err(DataFusionError::Internal(
                "a subquery has more than one answer".to_string(),
            )),
        });
        answers.collect()
    }

    /// Stand-ins that a check of the pipeline can do with.
    pub fn unknown(expr: &Expr) -> Expr {
        expr.map_leaves(&|leaf| match leaf.kind {
            Kind::Literal(Literal::Late(_)) => Expr::literal(Literal::Null, leaf.ty),
            _ => leaf.clone(),
        })
    }
}
