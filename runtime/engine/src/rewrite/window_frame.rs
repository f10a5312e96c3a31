//! Frames of windows.

use datafusion::common::ScalarValue;
use datafusion::logical_expr::{WindowFrame, WindowFrameBound, WindowFrameUnits};
use kernels::ir::{Bound, Expr, Frame, FrameUnit, Kind, Literal, Type};

use super::mark::refused;
use super::window::FAR;
use crate::lower::{lower_literal, reason};
use crate::report::Reason;

const NANOSECONDS_A_DAY: i128 = 86_400_000_000_000;

/// Lowers a frame over an order whose first key is of this type.
pub(super) fn frame(frame: &WindowFrame, key: Option<Type>) -> Result<Frame, Reason> {
    let unit = match frame.units {
        WindowFrameUnits::Rows => FrameUnit::Rows,
        WindowFrameUnits::Groups => FrameUnit::Groups,
        WindowFrameUnits::Range => FrameUnit::Range,
    };
    let unknown = || {
        let message = format!("the frame {frame} is not on the GPU yet");
        refused("unsupported-window", &message)
    };
    // A bound that its key's type does not hold is null, on the far side too: then no row is
    // in the frame.
    let is_null = |value: &ScalarValue| value.is_null();
    match (&frame.start_bound, &frame.end_bound) {
        (WindowFrameBound::Following(n), _) | (_, WindowFrameBound::Preceding(n)) if is_null(n) => {
            return Err(unknown());
        }
        _ => {}
    }
    let offset = |value: &ScalarValue| -> Result<Expr, Reason> {
        if unit == FrameUnit::Range {
            return match (value, key) {
                (ScalarValue::IntervalMonthDayNano(_), Some(ty)) => {
                    let ticks = ticks(value, ty).ok_or_else(unknown)?;
                    Ok(Expr::literal(Literal::Integer(ticks), ty))
                }
                _ => lower_literal(value).map_err(|e| reason(&e, frame)),
            };
        }
        match lower_literal(value).map_err(|e| reason(&e, frame))?.kind {
            Kind::Literal(Literal::Integer(n)) => {
                let n = Literal::Integer(n.min(i128::from(FAR)));
                Ok(Expr::literal(n, Type::I64))
            }
            _ => Err(unknown()),
        }
    };
    let bound = |bound: &WindowFrameBound| {
        Ok(match bound {
            bound if bound.is_unbounded() => Bound::Unbounded,
            WindowFrameBound::CurrentRow => Bound::Current,
            WindowFrameBound::Preceding(n) => Bound::Before(offset(n)?),
            WindowFrameBound::Following(n) => Bound::After(offset(n)?),
        })
    };
    Ok(Frame {
        unit,
        start: bound(&frame.start_bound)?,
        end: bound(&frame.end_bound)?,
    })
}

/// An interval in the units of a date or timestamp, if it is a number of them whatever it is
/// added to: months are not.
fn ticks(value: &ScalarValue, ty: Type) -> Option<i128> {
    let ScalarValue::IntervalMonthDayNano(Some(interval)) = value else {
        return None;
    };
    let unit = match ty {
        Type::Date32 => NANOSECONDS_A_DAY,
        Type::Timestamp(arrow::datatypes::TimeUnit::Second) => 1_000_000_000,
        Type::Timestamp(arrow::datatypes::TimeUnit::Millisecond) => 1_000_000,
        Type::Timestamp(arrow::datatypes::TimeUnit::Microsecond) => 1_000,
        Type::Timestamp(arrow::datatypes::TimeUnit::Nanosecond) => 1,
        _ => return None,
    };
    let nanoseconds =
        i128::from(interval.days) * NANOSECONDS_A_DAY + i128::from(interval.nanoseconds);
    let fits = interval.months == 0 && nanoseconds >= 0 && nanoseconds % unit == 0;
    fits.then_some(nanoseconds / unit)
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::datatypes::{IntervalMonthDayNano, TimeUnit};

    #[test]
    fn only_intervals_of_one_length_are_numbers() {
        let interval = |months, days, nanoseconds| {
            let interval = IntervalMonthDayNano::new(months, days, nanoseconds);
            ScalarValue::IntervalMonthDayNano(Some(interval))
        };
        let seconds = Type::Timestamp(TimeUnit::Second);
        assert_eq!(ticks(&interval(0, 7, 0), Type::Date32), Some(7));
        assert_eq!(ticks(&interval(0, 1, 0), seconds), Some(86_400));
        assert_eq!(ticks(&interval(0, 0, 2_000_000_000), seconds), Some(2));
        assert_eq!(ticks(&interval(0, 0, 1), seconds), None);
        assert_eq!(ticks(&interval(0, 0, 1), Type::Date32), None);
        assert_eq!(ticks(&interval(1, 0, 0), Type::Date32), None);
        assert_eq!(ticks(&interval(0, -1, 0), Type::Date32), None);
    }
}
