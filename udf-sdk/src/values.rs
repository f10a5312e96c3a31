//! Values that SQL has and Rust has not.

use core::fmt;

/// A decimal number of up to `P` digits, `S` of them after the point.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct Decimal<const P: u8, const S: i8>(i128);

impl<const P: u8, const S: i8> Decimal<P, S> {
    /// What one stands for: 10 to the power of `S`.
    const ONE: i128 = 10_i128.pow(S as u32);

    /// The number without its point: 12.50 is 1250 where `S` is 2.
    pub const fn from_unscaled(unscaled: i128) -> Self {
        Decimal(unscaled)
    }

    /// The number without its point.
    pub const fn unscaled(self) -> i128 {
        self.0
    }

    /// What stands before the point, towards zero.
    pub const fn whole(self) -> i128 {
        self.0 / Self::ONE
    }

    /// The nearest float.
    pub fn to_f64(self) -> f64 {
        self.0 as f64 / Self::ONE as f64
    }

    /// The sum; none where it has more digits than an `i128`.
    pub fn checked_add(self, other: Self) -> Option<Self> {
        self.0.checked_add(other.0).map(Decimal)
    }

    /// The difference; none where it has more digits than an `i128`.
    pub fn checked_sub(self, other: Self) -> Option<Self> {
        self.0.checked_sub(other.0).map(Decimal)
    }
}

impl<const P: u8, const S: i8> fmt::Display for Decimal<P, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = if self.0 < 0 { "-" } else { "" };
        let (whole, rest) = (
            self.0.unsigned_abs() / Self::ONE.unsigned_abs(),
            self.0.unsigned_abs() % Self::ONE.unsigned_abs(),
        );
        match S {
            0 => write!(f, "{sign}{whole}"),
            _ => write!(f, "{sign}{whole}.{rest:0width$}", width = S as usize),
        }
    }
}

/// A day.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct Date {
    /// Days since 1970-01-01.
    pub days: i32,
}

impl Date {
    /// The day of a calendar date; none where there is none.
    pub fn new(year: i32, month: u32, day: u32) -> Option<Date> {
        let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
        let n_days = match month {
            2 => 28 + u32::from(leap),
            4 | 6 | 9 | 11 => 30,
            1..=12 => 31,
            _ => return None,
        };
        if !(1..=n_days).contains(&day) {
            return None;
        }
        // Years that start in March, so that a leap day is the last of its year; 400 years
        // have 146,097 days.
        let year = i64::from(year) - i64::from(month <= 2);
        let (era, of_era) = (year.div_euclid(400), year.rem_euclid(400));
        let of_year = i64::from((153 * ((month + 9) % 12) + 2) / 5 + day - 1);
        let days = era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468;
        i32::try_from(days).ok().map(|days| Date { days })
    }

    /// Year, month and day.
    pub fn ymd(self) -> (i32, u32, u32) {
        let days = i64::from(self.days) + 719_468;
        let (era, of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
        let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
        let of_year = of_era - (365 * year + year / 4 - year / 100);
        let month = (5 * of_year + 2) / 153;
        let day = of_year - (153 * month + 2) / 5 + 1;
        let month = if month < 10 { month + 3 } else { month - 9 };
        let year = year + era * 400 + i64::from(month <= 2);
        (year as i32, month as u32, day as u32)
    }
}

/// A point in time without a zone.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct Timestamp {
    /// Microseconds since 1970-01-01 00:00.
    pub microseconds: i64,
}

impl Timestamp {
    /// The day that it is on.
    pub fn date(self) -> Date {
        let days = self.microseconds.div_euclid(86_400_000_000);
        Date { days: days as i32 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_come_back_from_their_days() {
        for (days, ymd) in [
            (0, (1970, 1, 1)),
            (-1, (1969, 12, 31)),
            (11_016, (2000, 2, 29)),
            (11_017, (2000, 3, 1)),
            (-719_468, (0, 3, 1)),
            (19_782, (2024, 2, 29)),
        ] {
            assert_eq!(Date { days }.ymd(), ymd);
            assert_eq!(Date::new(ymd.0, ymd.1, ymd.2), Some(Date { days }));
        }
        for days in (-1_000_000..1_000_000).step_by(97) {
            let (year, month, day) = Date { days }.ymd();
            assert_eq!(Date::new(year, month, day), Some(Date { days }));
        }
        assert_eq!(Date::new(1900, 2, 29), None);
        assert_eq!(Date::new(2000, 13, 1), None);
    }

    #[test]
    fn decimals_show_their_point() {
        let shown = |unscaled| Decimal::<9, 2>::from_unscaled(unscaled).to_string();
        assert_eq!(shown(1_250), "12.50");
        assert_eq!(shown(-5), "-0.05");
        assert_eq!(Decimal::<9, 0>::from_unscaled(-7).to_string(), "-7");
        assert_eq!(Decimal::<9, 2>::from_unscaled(-199).whole(), -1);
    }
}
