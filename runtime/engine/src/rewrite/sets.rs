//! Grouping sets: each row goes to a group of every set.
//!
//! ```text
//! GROUPING SETS ((a, b), (a), ())      each of 3 sets
//!                                      key  case when set in (0, 1) then a end
//!                                      key  case when set in (0) then b end
//!                                      key  case when set in (0) then 0 when set in (1) then 1 ...
//! ```
//!
//! The last key is DataFusion's grouping id: a bit for each key that the set does without, the
//! last key's lowest, and above them the number of earlier sets with the same keys.

use std::sync::Arc;

use arrow::datatypes::DataType;
use kernels::columns::type_of;
use kernels::ir::{Expr, IntWidth, Kind, Literal, Step, Type};

use crate::lower::reason;
use crate::report::Reason;

/// The step that lets a row go on for each set. `groups` says of each set which keys it does
/// without.
pub fn each_set(groups: &[Vec<bool>]) -> Result<Step, Reason> {
    match u32::try_from(groups.len()) {
        Ok(n) if n < i32::MAX as u32 => Ok(Step::EachSet(n)),
        _ => Err(refused("so many grouping sets")),
    }
}

/// The keys of a row for each set, and the grouping id of this type.
pub fn keys_of_sets(
    keys: Vec<Expr>,
    groups: &[Vec<bool>],
    id: &DataType,
) -> Result<Vec<Expr>, Reason> {
    let id = type_of(id).map_err(|unsupported| reason(&unsupported, "grouping id"))?;
    let of_sets = keys.into_iter().enumerate().map(|(number, key)| {
        let with = (0..groups.len()).filter(|set| !groups[*set][number]);
        let with: Vec<usize> = with.collect();
        match with.len() {
            0 => Expr::literal(Literal::Null, key.ty),
            _ => Expr {
                ty: key.ty,
                nullable: true,
                kind: Kind::Case {
                    branches: vec![(is_one_of(&with), key)],
                    otherwise: None,
                },
            },
        }
    });
    let mut of_sets: Vec<Expr> = of_sets.collect();
    let ids = (0..groups.len()).map(|set| {
        let value = Expr::literal(Literal::Integer(grouping_id(groups, set)), id);
        (is_one_of(&[set]), value)
    });
    let mut ids: Vec<(Expr, Expr)> = ids.collect();
    let last = ids.pop().ok_or_else(|| refused("no grouping set"))?;
    of_sets.push(Expr {
        ty: id,
        nullable: false,
        kind: Kind::Case {
            branches: ids,
            otherwise: Some(Arc::new(last.1)),
        },
    });
    Ok(of_sets)
}

/// The grouping ids of the sets without keys.
pub fn without_keys(groups: &[Vec<bool>]) -> Vec<i128> {
    let sets = (0..groups.len()).filter(|set| groups[*set].iter().all(|without| *without));
    sets.map(|set| grouping_id(groups, set)).collect()
}

fn grouping_id(groups: &[Vec<bool>], set: usize) -> i128 {
    let without = &groups[set];
    let bits = without
        .iter()
        .fold(0i128, |bits, null| bits << 1 | i128::from(*null));
    let earlier = groups[..set].iter().filter(|other| *other == without);
    bits | (earlier.count() as i128) << without.len()
}

/// Whether the row goes on for one of these sets.
fn is_one_of(sets: &[usize]) -> Expr {
    let int = Type::Int(IntWidth::W32);
    let items = sets
        .iter()
        .map(|set| Expr::literal(Literal::Integer(*set as i128), int));
    Expr {
        ty: Type::Bool,
        nullable: false,
        kind: Kind::InList {
            arg: Arc::new(Expr {
                ty: int,
                nullable: false,
                kind: Kind::SetNumber,
            }),
            items: items.collect(),
            negated: false,
        },
    }
}

fn refused(message: &str) -> Reason {
    Reason {
        code: "unsupported-grouping".to_string(),
        message: format!("{message} are not on the GPU"),
        fix: String::new(),
    }
}
