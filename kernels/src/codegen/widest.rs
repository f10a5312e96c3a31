//! Whether something has device code whatever its columns hold: what cannot be refused
//! any more once rows are there.

use std::collections::HashMap;

use super::emit::{ColumnShape, ValueRegister, full_register};
use super::error::Unsupported;
use super::rows::generate_collect;
use super::steps::TableShape;
use crate::ir::{Collect, Expr, Step, Type};

/// Checks steps and outputs, over tables of any shape.
pub fn check_collect(collect: &Collect) -> Result<(), Unsupported> {
    let steps = collect.steps.iter().flat_map(Step::expressions);
    let columns = widest_columns(steps.chain(&collect.outputs))?;
    let n_tables = collect
        .steps
        .iter()
        .filter(|step| !matches!(step, Step::Filter(_)))
        .count();
    // Hashed tables also compare the keys, so nothing else can be refused later.
    let any = TableShape {
        is_dense: false,
        is_unique: false,
        has_chains: true,
        is_flags: false,
        is_empty: false,
        has_null_keys: true,
        match_percent: 100,
    };
    generate_collect(collect, &columns, &vec![any; n_tables]).map(|_| ())
}

/// Every column that is read, as wide as its type.
pub(super) fn widest_columns<'a>(
    exprs: impl Iterator<Item = &'a Expr>,
) -> Result<HashMap<usize, ColumnShape>, Unsupported> {
    let mut found: HashMap<usize, (Type, bool)> = HashMap::new();
    for expr in exprs {
        expr.walk(&mut |e| {
            if let crate::ir::Kind::Column(index) = e.kind {
                found.insert(index, (e.ty, e.nullable));
            }
        });
    }
    found
        .into_iter()
        .map(|(index, (ty, nullable))| {
            let register = full_register(ty)?;
            let stored = match register {
                ValueRegister::Bool => "u8",
                other => other.name(),
            };
            let shape = ColumnShape {
                register,
                stored,
                nullable,
            };
            Ok((index, shape))
        })
        .collect()
}
