//! Sums of a few groups.

use datafusion::arrow::array::{Array, ArrayRef, AsArray, PrimitiveArray};
use datafusion::arrow::buffer::NullBuffer;
use datafusion::arrow::datatypes::{ArrowPrimitiveType, DataType, Decimal128Type, Int64Type};
use datafusion::common::{Result, internal_err};

use super::keys::GROUPS_MAX;
use super::narrow::{Digits, Narrow};

/// Rows that follow one another are often of one group. Each adds to another copy of
/// the totals, so that it need not wait for the row before it.
const N_COPIES: usize = 4;

/// The sum of one argument in each group.
#[derive(Debug, Default)]
pub struct Totals {
    /// Exact unless `overflowed`.
    pub sums: Vec<i128>,
    /// Rows of each group whose argument is NULL.
    pub n_nulls: Vec<u64>,
    /// Whether a sum left 128 bits.
    pub overflowed: bool,
}

impl Totals {
    /// Makes room for so many groups.
    pub fn grow(&mut self, n_groups: usize) {
        self.sums.resize(n_groups, 0);
        self.n_nulls.resize(n_groups, 0);
    }

    fn add(&mut self, group: usize, value: i128) {
        let (sum, overflowed) = self.sums[group].overflowing_add(value);
        self.sums[group] = sum;
        self.overflowed |= overflowed;
    }

    /// Adds a column in 64 bits.
    pub fn add_narrow(&mut self, value: &Narrow, groups: &[u8]) {
        let Digits::Each(digits) = &value.digits else {
            return;
        };
        if let Some(nulls) = &value.nulls {
            self.count_nulls(nulls, groups);
            for row in nulls.valid_indices() {
                self.add(usize::from(groups[row]), digits[row].into());
            }
        } else if u128::from(value.bound) * (digits.len() as u128) < 1 << 63 {
            self.add_copies(digits, groups);
        } else {
            for (digits, group) in digits.iter().zip(groups) {
                self.add(usize::from(*group), (*digits).into());
            }
        }
    }

    /// Adds values whose sum fits 64 bits.
    fn add_copies(&mut self, values: &[i64], groups: &[u8]) {
        if self.sums.len() == 1 {
            self.add(0, values.iter().sum::<i64>().into());
            return;
        }
        let mut copies = [[0_i64; GROUPS_MAX]; N_COPIES];
        let (fours, rest) = values.as_chunks::<N_COPIES>();
        let (group_fours, group_rest) = groups.as_chunks::<N_COPIES>();
        // Written out: a loop over the copies is not unrolled.
        for ([a, b, c, d], groups) in fours.iter().zip(group_fours) {
            copies[0][usize::from(groups[0])] += a;
            copies[1][usize::from(groups[1])] += b;
            copies[2][usize::from(groups[2])] += c;
            copies[3][usize::from(groups[3])] += d;
        }
        for (value, group) in rest.iter().zip(group_rest) {
            copies[0][usize::from(*group)] += value;
        }
        for group in 0..self.sums.len() {
            let sum: i64 = copies.iter().map(|copy| copy[group]).sum();
            self.add(group, sum.into());
        }
    }

    /// Adds a column of any width.
    pub fn add_wide(&mut self, array: &ArrayRef, groups: &[u8]) -> Result<()> {
        match array.data_type() {
            DataType::Int64 => self.add_checked(array.as_primitive::<Int64Type>(), groups),
            DataType::Decimal128(_, _) => {
                self.add_checked(array.as_primitive::<Decimal128Type>(), groups);
            }
            other => return internal_err!("sum of {other}"),
        }
        Ok(())
    }

    fn add_checked<T: ArrowPrimitiveType>(&mut self, array: &PrimitiveArray<T>, groups: &[u8])
    where
        T::Native: Into<i128>,
    {
        if let Some(nulls) = array.nulls() {
            self.count_nulls(nulls, groups);
        }
        for (row, group) in groups.iter().enumerate() {
            if array.is_valid(row) {
                self.add(usize::from(*group), array.value(row).into());
            }
        }
    }

    /// Counts the NULLs of each group.
    pub fn count_nulls(&mut self, nulls: &NullBuffer, groups: &[u8]) {
        for (row, group) in groups.iter().enumerate() {
            self.n_nulls[usize::from(*group)] += u64::from(nulls.is_null(row));
        }
    }
}

/// Adds the rows of each group.
pub fn count_rows(n_rows: &mut [u64], groups: &[u8]) {
    if let [n_rows] = n_rows {
        *n_rows += groups.len() as u64;
        return;
    }
    let mut copies = [[0_u32; GROUPS_MAX]; N_COPIES];
    let (fours, rest) = groups.as_chunks::<N_COPIES>();
    for [a, b, c, d] in fours {
        copies[0][usize::from(*a)] += 1;
        copies[1][usize::from(*b)] += 1;
        copies[2][usize::from(*c)] += 1;
        copies[3][usize::from(*d)] += 1;
    }
    for group in rest {
        copies[0][usize::from(*group)] += 1;
    }
    for (group, n_rows) in n_rows.iter_mut().enumerate() {
        *n_rows += copies
            .iter()
            .map(|copy| u64::from(copy[group]))
            .sum::<u64>();
    }
}
