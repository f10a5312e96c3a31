//! Fields and periods of dates and timestamps.

use super::emit::{Emitter, Value, ValueRegister};
use super::error::Unsupported;
use crate::ir::{DatePart, Expr, Range, Register, Type};
use arrow::datatypes::TimeUnit;

/// Ticks of a date or timestamp in a day.
pub(super) fn ticks_per_day(ty: Type) -> Option<i64> {
    Some(match ty {
        Type::Date32 => 1,
        Type::Timestamp(unit) => 86_400 * ticks_per_second(unit),
        _ => return None,
    })
}

fn ticks_per_second(unit: TimeUnit) -> i64 {
    match unit {
        TimeUnit::Second => 1,
        TimeUnit::Millisecond => 1_000,
        TimeUnit::Microsecond => 1_000_000,
        TimeUnit::Nanosecond => 1_000_000_000,
    }
}

impl Emitter {
    /// `extract(part from arg)`, an `i32`.
    pub(super) fn extract(&mut self, part: DatePart, arg: &Expr) -> Result<Value, Unsupported> {
        let per_day = ticks_per_day(arg.ty).ok_or_else(|| Unsupported::data_type(arg.ty))?;
        let value = self.emit(arg)?;
        let (_, ticks) = value.integer()?;
        let clock = |per_second_divisor: i64, modulus: i64| match arg.ty {
            Type::Timestamp(unit) => Ok((ticks_per_second(unit) * per_second_divisor, modulus)),
            // A date is its first instant.
            _ => Ok((1, 1)),
        };
        let (call, range) = match part {
            DatePart::Hour | DatePart::Minute | DatePart::Second => {
                let (unit, modulus) = match part {
                    DatePart::Hour => clock(3_600, 24),
                    DatePart::Minute => clock(60, 60),
                    _ => clock(1, 60),
                }?;
                let call = format!("extract_time({}, {unit}LL, {modulus}LL)", value.text);
                (call, Range::new(0, i128::from(modulus) - 1))
            }
            _ => {
                let (name, range) = match part {
                    DatePart::Year => {
                        let year = |ticks: i128| civil_year(ticks.div_euclid(per_day.into()));
                        ("ExtractYear", Range::new(year(ticks.min), year(ticks.max)))
                    }
                    DatePart::Quarter => ("ExtractQuarter", Range::new(1, 4)),
                    DatePart::Month => ("ExtractMonth", Range::new(1, 12)),
                    DatePart::Week => ("ExtractWeek", Range::new(1, 53)),
                    DatePart::Day => ("ExtractDay", Range::new(1, 31)),
                    DatePart::DayOfWeek => ("ExtractDayOfWeek", Range::new(0, 6)),
                    _ => ("ExtractDayOfYear", Range::new(1, 366)),
                };
                (
                    format!("extract<{name}>({}, {per_day}LL)", value.text),
                    range,
                )
            }
        };
        // Seconds since the year -292 billion still give a year of 40 bits.
        if !range.fits(32) {
            return Err(Unsupported::expression("a year of more than 32 bits"));
        }
        let register = ValueRegister::Integer(Register::I32, range);
        Ok(self.define(register, value.nullable, &call))
    }

    /// The start of the period that holds a timestamp, in its own ticks.
    pub(super) fn truncate(
        &mut self,
        part: DatePart,
        arg: &Expr,
        ty: Type,
    ) -> Result<Value, Unsupported> {
        if arg.ty != ty {
            return Err(Unsupported::expression(format!(
                "a truncation of {} to {ty}",
                arg.ty
            )));
        }
        let per_day = ticks_per_day(ty).ok_or_else(|| Unsupported::data_type(ty))?;
        let value = self.emit(arg)?;
        let (_, range) = value.integer()?;
        // A period starts at most a leap year before what it holds.
        let start = Range::new(range.min - 366 * i128::from(per_day), range.max);
        let register = start.register();
        let name = register.name();
        let text = &value.text;
        let ticks = |seconds: i64| match ty {
            Type::Timestamp(unit) => ticks_per_second(unit) * seconds,
            _ => 1,
        };
        let call = match part {
            DatePart::Year => format!("truncate<{name}, TruncateYear>({text}, {per_day}LL)"),
            DatePart::Quarter => format!("truncate<{name}, TruncateQuarter>({text}, {per_day}LL)"),
            DatePart::Month => format!("truncate<{name}, TruncateMonth>({text}, {per_day}LL)"),
            DatePart::Week => format!("truncate<{name}, TruncateWeek>({text}, {per_day}LL)"),
            DatePart::Day => format!("truncate_ticks<{name}>({text}, {per_day}LL)"),
            DatePart::Hour => format!("truncate_ticks<{name}>({text}, {}LL)", ticks(3_600)),
            DatePart::Minute => format!("truncate_ticks<{name}>({text}, {}LL)", ticks(60)),
            DatePart::Second => format!("truncate_ticks<{name}>({text}, {}LL)", ticks(1)),
            DatePart::DayOfWeek | DatePart::DayOfYear => {
                return Err(Unsupported::expression(format!("a truncation to {part:?}")));
            }
        };
        let register = ValueRegister::Integer(register, start);
        let start = self.define(register, value.nullable, &call);
        self.checked(start, ty)
    }
}

/// The year of a day since 1970-01-01: as `civil_of` in `cuda/thread/dates.h`.
fn civil_year(days: i128) -> i128 {
    let since_march_0 = days + 719_468;
    let era = since_march_0.div_euclid(146_097);
    let day_of_era = since_march_0.rem_euclid(146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    // January and February belong to the next year's number: the last 59 or 60 days.
    year_of_era + era * 400 + i128::from(day_of_year >= 306)
}

#[cfg(test)]
mod tests {
    use super::civil_year;

    #[test]
    fn years_begin_in_january() {
        for (days, year) in [
            (0, 1970),
            (-1, 1969),
            (364, 1970),
            (365, 1971),
            (11_016, 2000),
            (11_322, 2000),
            (11_323, 2001),
            (-719_528, 0),
            (-719_529, -1),
            (-719_162, 1),
        ] {
            assert_eq!(civil_year(days), year, "{days}");
        }
    }
}
