//! What only the evaluator of a window function knows: the planner may have turned the order
//! of the window around and with it the function, and nulls may be passed over. The plan
//! shows neither, so the evaluator is asked for rows and values that tell them apart.

use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array};
use datafusion::common::ScalarValue;
use datafusion::functions_window::nth_value::NthValueKind;
use datafusion::physical_expr::window::{StandardWindowExpr, WindowExpr};
use datafusion::physical_plan::windows::WindowUDFExpr;

use super::window::{FAR, constant, integer};

/// The most rows that the evaluator of `nth_value` is asked about, in each direction.
const NTH_MAX: u64 = 1 << 16;

/// How far on `lag` and `lead` look, and whether rows without a value do not count. `None`
/// when that cannot be told.
pub(super) fn distance(window: &dyn WindowExpr) -> Option<(i64, bool)> {
    let call = window.as_any().downcast_ref::<StandardWindowExpr>()?;
    let call = call.get_standard_func_expr();
    let arguments = call.as_any().downcast_ref::<WindowUDFExpr>()?.args();
    let n = match arguments.get(1) {
        None => 1,
        Some(n) => integer(n)?,
    };
    let n = i64::try_from(n.unsigned_abs()).unwrap_or(FAR).min(FAR);
    if n == 0 {
        // Which of the two it is, and whether it passes over nulls, shows only in a default.
        let has_default = arguments
            .get(2)
            .and_then(constant)
            .is_some_and(|d| !d.is_null());
        return (!has_default).then_some((0, false));
    }
    // The rows that it asks for around the middle of many.
    let (middle, all) = (1 << 40, 1 << 41);
    let range = call.create_evaluator().ok()?.get_range(middle, all).ok()?;
    // Without counting, it needs all rows on that side.
    Some(match range.start < middle {
        true => (-n, range.start == 0),
        false => (n, range.end == all),
    })
}

/// The number of the row that `first_value`, `last_value` and `nth_value` take, and whether
/// rows without a value do not count. `None` when that cannot be told.
pub(super) fn nth_number(
    window: &dyn WindowExpr,
    kind: &NthValueKind,
    n: i64,
) -> Option<(i64, bool)> {
    if n == 0 {
        return Some((0, false));
    }
    if n.unsigned_abs() > NTH_MAX {
        return None;
    }
    let call = window.as_any().downcast_ref::<StandardWindowExpr>()?;
    let call = call.get_standard_func_expr();
    let far = n.unsigned_abs();
    // Row number i of 2n has the value i, but the row that is taken first has none.
    let rows = 2 * far as i64;
    let taken = |missing: Option<i64>| {
        let values = (0..rows).map(|at| (Some(at) != missing).then_some(at));
        let values: ArrayRef = Arc::new(Int64Array::from_iter(values));
        let value = call
            .create_evaluator()
            .ok()?
            .evaluate(&[values], &(0..rows as usize));
        match value.ok()? {
            ScalarValue::Int64(value) => Some(value),
            _ => None,
        }
    };
    let first = taken(None)??;
    let over_nulls = taken(Some(first))?.is_some();
    let number = match kind {
        NthValueKind::First => (first == 0).then_some(1),
        NthValueKind::Last => (first == rows - 1).then_some(-1),
        NthValueKind::Nth if first == n.abs() - 1 => Some(n.abs()),
        NthValueKind::Nth => (first == rows - n.abs()).then_some(-n.abs()),
    };
    Some((number?, over_nulls))
}
