//! The types a pipeline computes with, and the ranges that narrow them.

use std::fmt;

use arrow::datatypes::TimeUnit;

/// The type of a value inside a pipeline.
///
/// It says what a value means; how wide it is in a register follows from its
/// [`Range`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Type {
    /// True or false; unknown is a null.
    Bool,
    /// Signed integers of 8, 16, 32 and 64 bits.
    Int(IntWidth),
    /// Unsigned integers of 8, 16, 32 and 64 bits.
    UInt(IntWidth),
    /// IEEE 754 binary32.
    Float32,
    /// IEEE 754 binary64.
    Float64,
    /// An exact decimal of at most 38 digits, held as an integer times `10^-scale`.
    Decimal {
        /// Number of digits, 1 to 38.
        precision: u8,
        /// Digits after the point.
        scale: i8,
    },
    /// Days since 1970-01-01.
    Date32,
    /// Ticks since 1970-01-01T00:00:00 without a time zone.
    Timestamp(TimeUnit),
    /// UTF-8 text.
    Utf8,
}

/// Width of an integer type in bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs)] // each variant is its own documentation
pub enum IntWidth {
    W8,
    W16,
    W32,
    W64,
}

impl IntWidth {
    /// Width in bits.
    pub fn bits(self) -> u32 {
        match self {
            IntWidth::W8 => 8,
            IntWidth::W16 => 16,
            IntWidth::W32 => 32,
            IntWidth::W64 => 64,
        }
    }
}

impl Type {
    /// `Int64`, the type most literals have.
    pub const I64: Type = Type::Int(IntWidth::W64);

    /// Whether values of this type are held as integers in registers.
    pub fn is_integral(self) -> bool {
        !matches!(
            self,
            Type::Bool | Type::Float32 | Type::Float64 | Type::Utf8
        )
    }

    /// Whether this is a floating-point type.
    pub fn is_float(self) -> bool {
        matches!(self, Type::Float32 | Type::Float64)
    }

    /// Every value the type can hold; `None` for types that are not integral.
    pub fn full_range(self) -> Option<Range> {
        let signed = |bits: u32| Range::new(-(1i128 << (bits - 1)), (1i128 << (bits - 1)) - 1);
        Some(match self {
            Type::Int(w) => signed(w.bits()),
            Type::UInt(w) => Range::new(0, (1i128 << w.bits()) - 1),
            Type::Decimal { precision, .. } => {
                let bound = 10i128.pow(u32::from(precision.min(38))) - 1;
                Range::new(-bound, bound)
            }
            Type::Date32 => signed(32),
            Type::Timestamp(_) => signed(64),
            Type::Bool | Type::Float32 | Type::Float64 | Type::Utf8 => return None,
        })
    }
}

impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Type::Bool => f.write_str("bool"),
            Type::Int(w) => write!(f, "i{}", w.bits()),
            Type::UInt(w) => write!(f, "u{}", w.bits()),
            Type::Float32 => f.write_str("f32"),
            Type::Float64 => f.write_str("f64"),
            Type::Decimal { precision, scale } => write!(f, "decimal({precision},{scale})"),
            Type::Date32 => f.write_str("date"),
            Type::Timestamp(TimeUnit::Second) => f.write_str("timestamp(s)"),
            Type::Timestamp(TimeUnit::Millisecond) => f.write_str("timestamp(ms)"),
            Type::Timestamp(TimeUnit::Microsecond) => f.write_str("timestamp(us)"),
            Type::Timestamp(TimeUnit::Nanosecond) => f.write_str("timestamp(ns)"),
            Type::Utf8 => f.write_str("utf8"),
        }
    }
}

/// A closed interval that holds every value of an integral expression.
///
/// Ranges decide register widths: a `decimal(15,2)` column whose statistics say
/// 0 to 10 is an `i32`, and a product of two such columns needs no overflow check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Range {
    /// The smallest value.
    pub min: i128,
    /// The largest value.
    pub max: i128,
}

impl Range {
    /// The interval from `min` to `max`, both included.
    pub fn new(min: i128, max: i128) -> Range {
        Range { min, max }
    }

    /// The interval of one value.
    pub fn point(value: i128) -> Range {
        Range::new(value, value)
    }

    /// The smallest interval that holds both.
    pub fn union(self, other: Range) -> Range {
        Range::new(self.min.min(other.min), self.max.max(other.max))
    }

    /// The values both hold, or `self` when they have none in common.
    pub fn intersect(self, other: Range) -> Range {
        let (min, max) = (self.min.max(other.min), self.max.min(other.max));
        if min <= max {
            Range::new(min, max)
        } else {
            self
        }
    }

    /// Whether every value fits a signed integer of `bits` bits.
    pub fn fits(self, bits: u32) -> bool {
        bits >= 128 || (self.min >= -(1i128 << (bits - 1)) && self.max < (1i128 << (bits - 1)))
    }

    /// The interval of sums; `None` when an end leaves 128 bits.
    pub fn sum(self, other: Range) -> Option<Range> {
        Some(Range::new(
            self.min.checked_add(other.min)?,
            self.max.checked_add(other.max)?,
        ))
    }

    /// The interval of differences; `None` when an end leaves 128 bits.
    pub fn difference(self, other: Range) -> Option<Range> {
        Some(Range::new(
            self.min.checked_sub(other.max)?,
            self.max.checked_sub(other.min)?,
        ))
    }

    /// The interval of products; `None` when an end leaves 128 bits.
    pub fn product(self, other: Range) -> Option<Range> {
        let ends = [
            self.min.checked_mul(other.min)?,
            self.min.checked_mul(other.max)?,
            self.max.checked_mul(other.min)?,
            self.max.checked_mul(other.max)?,
        ];
        let min = ends.into_iter().min()?;
        let max = ends.into_iter().max()?;
        Some(Range::new(min, max))
    }

    /// The interval of negated values; `None` when an end leaves 128 bits.
    pub fn negated(self) -> Option<Range> {
        Range::point(0).difference(self)
    }

    /// The narrowest register that holds the interval.
    pub fn register(self) -> Register {
        if self.fits(32) {
            Register::I32
        } else if self.fits(64) {
            Register::I64
        } else {
            Register::I128
        }
    }

    /// The interval rounded outwards to a power of two, so that kernels compiled
    /// for one file also serve the next one with slightly different values.
    pub fn rounded(self) -> Range {
        let up = |v: i128| -> i128 {
            // The smallest 2^k - 1 that is at least v, for v >= 0.
            let bits = 128 - v.leading_zeros();
            if bits >= 127 {
                i128::MAX
            } else {
                (1i128 << bits) - 1
            }
        };
        // `min + 1` first: the smallest 128-bit value has no positive twin.
        let min = if self.min < 0 {
            -up(-(self.min + 1)) - 1
        } else {
            0
        };
        let max = if self.max < 0 { 0 } else { up(self.max) };
        Range::new(min, max)
    }
}

/// How an integral value is held in a register.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs)] // each variant is its own documentation
pub enum Register {
    I32,
    I64,
    I128,
}

impl Register {
    /// The type's name in device code.
    pub fn name(self) -> &'static str {
        match self {
            Register::I32 => "i32",
            Register::I64 => "i64",
            Register::I128 => "i128",
        }
    }

    /// Width in bits.
    pub fn bits(self) -> u32 {
        match self {
            Register::I32 => 32,
            Register::I64 => 64,
            Register::I128 => 128,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_follow_interval_arithmetic() {
        let a = Range::new(-3, 5);
        let b = Range::new(2, 7);
        assert_eq!(a.sum(b), Some(Range::new(-1, 12)));
        assert_eq!(a.difference(b), Some(Range::new(-10, 3)));
        assert_eq!(a.product(b), Some(Range::new(-21, 35)));
        assert_eq!(a.product(a), Some(Range::new(-15, 25)));
        assert_eq!(Range::point(i128::MAX).sum(Range::point(1)), None);
        assert_eq!(Range::point(i128::MIN).negated(), None);
    }

    #[test]
    fn registers_are_the_narrowest_that_hold_the_range() {
        assert_eq!(
            Range::new(0, i128::from(i32::MAX)).register(),
            Register::I32
        );
        assert_eq!(
            Range::new(0, i128::from(i32::MAX) + 1).register(),
            Register::I64
        );
        assert_eq!(
            Range::new(i128::from(i64::MIN), 0).register(),
            Register::I64
        );
        assert_eq!(
            Range::new(i128::from(i64::MIN) - 1, 0).register(),
            Register::I128
        );
    }

    #[test]
    fn rounding_only_widens_and_keeps_the_register() {
        for (min, max) in [
            (0, 10),
            (-1, 0),
            (5, 5),
            (-128, 127),
            (-129, 300),
            (1, i128::MAX),
            (i128::MIN, -1),
        ] {
            let range = Range::new(min, max);
            let rounded = range.rounded();
            assert!(
                rounded.min <= min && rounded.max >= max,
                "{range:?} -> {rounded:?}"
            );
            assert_eq!(
                rounded.register(),
                range.union(Range::point(0)).register(),
                "{range:?}"
            );
            assert_eq!(rounded.rounded(), rounded);
        }
    }
}
