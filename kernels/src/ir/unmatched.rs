//! The second pass of a full join: the rows of the probed relation that no row matched.
//!
//! ```text
//! probe  Full of relation 2 ...        filter (not c1048575:bool)   what was matched
//!                                      filter ...                   that of the build
//! output c3                     ->     output null
//! output c2097153                      output c1
//! ```

use std::sync::Arc;

use super::expr::{Expr, Kind, Literal, UnaryOp};
use super::rows::Collect;
use super::steps::{ProbeKind, RELATION_COLUMNS, Step};
use super::types::Type;

/// The number of the column that says which rows of a relation were matched.
pub const MATCHED_COLUMN: usize = RELATION_COLUMNS - 1;

impl Collect {
    /// The relation of a full join, if the last step is one.
    pub fn full_relation(&self) -> Option<usize> {
        match self.steps.last()? {
            Step::Probe(probe) if probe.kind == ProbeKind::Full => Some(probe.relation),
            _ => None,
        }
    }

    /// What is computed for the rows of this relation that were not matched, over its own
    /// columns and [`MATCHED_COLUMN`]. `filter` is that of its table: rows that it drops
    /// are none of the join.
    ///
    /// Every output that is no column of the relation belongs to the row that is missing.
    pub fn of_unmatched(&self, relation: usize, filter: Option<&Expr>) -> Collect {
        let matched = Expr::column(MATCHED_COLUMN, Type::Bool, false);
        let not_matched = Expr {
            kind: Kind::Unary(UnaryOp::Not, Arc::new(matched)),
            ty: Type::Bool,
            nullable: false,
        };
        let outputs = self.outputs.iter().map(|output| match output.kind {
            Kind::Column(index) if index / RELATION_COLUMNS == relation => {
                Expr::column(index % RELATION_COLUMNS, output.ty, output.nullable)
            }
            _ => Expr::literal(Literal::Null, output.ty),
        });
        let filters = std::iter::once(&not_matched).chain(filter);
        Collect {
            steps: filters.map(|filter| Step::Filter(filter.clone())).collect(),
            outputs: outputs.collect(),
        }
    }
}
