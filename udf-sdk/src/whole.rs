//! Whole columns, for `#[udf(vectorized)]`.

use core::marker::PhantomData;

use crate::rt::{Arg, Column, ColumnArg, ColumnOut, Fixed, Name, STRIP, set_bit};

/// A column of arguments. Where it stands for a constant, every row has its value.
#[derive(Clone, Copy)]
pub struct Col<'a, T: Arg<'a>> {
    reader: T::Reader,
    column: &'a Column,
}

impl<'a, T: Arg<'a>> Col<'a, T> {
    /// The value of a row. Of a row that is NULL it is some value.
    #[inline]
    pub fn get(&self, row: usize) -> T {
        T::get(&self.reader, row)
    }

    /// Whether the row is not NULL.
    #[inline]
    pub fn is_valid(&self, row: usize) -> bool {
        self.column.is_valid(row)
    }
}

impl<'a, T: Arg<'a>> ColumnArg<'a> for Col<'a, T> {
    const NAME: Name = T::NAME;
    const SEES_NULL: bool = false;

    fn column(column: &'a Column) -> Self {
        Col {
            reader: T::reader(column),
            column,
        }
    }
}

/// The column of results.
pub struct ColMut<'a, T> {
    values: *mut T,
    validity: *mut u8,
    n_rows: usize,
    of: PhantomData<&'a mut T>,
}

impl<T: Fixed> ColMut<'_, T> {
    /// Number of rows.
    pub fn len(&self) -> usize {
        self.n_rows
    }

    /// Whether there are no rows.
    pub fn is_empty(&self) -> bool {
        self.n_rows == 0
    }

    /// Sets a row's value.
    ///
    /// # Panics
    ///
    /// Where there is no such row.
    #[inline]
    pub fn set(&mut self, row: usize, value: T) {
        assert!(row < self.n_rows, "row {row} of {}", self.n_rows);
        // SAFETY: the host made room for `n_rows` values, and this column is its only user.
        unsafe { self.values.add(row).write(value) };
    }

    /// Makes a row NULL.
    ///
    /// # Panics
    ///
    /// Where there is no such row.
    pub fn set_null(&mut self, row: usize) {
        assert!(row < self.n_rows, "row {row} of {}", self.n_rows);
        // SAFETY: the host made room for a bit for each row.
        unsafe { set_bit(self.validity, row, false) };
    }

    /// Sets every row to what is made of its value in `x`.
    #[inline]
    pub fn map1<'x, X: Arg<'x>>(&mut self, x: Col<'x, X>, f: impl Fn(X) -> T) {
        if x.column.is_constant() {
            self.rows(|row| f(x.get(row)));
        } else {
            self.rows(|row| f(X::dense(&x.reader, row)));
        }
    }

    /// Sets every row to what is made of its values in `x` and `y`.
    #[inline]
    pub fn map2<'x, 'y, X: Arg<'x>, Y: Arg<'y>>(
        &mut self,
        x: Col<'x, X>,
        y: Col<'y, Y>,
        f: impl Fn(X, Y) -> T,
    ) {
        match (x.column.is_constant(), y.column.is_constant()) {
            (false, false) => {
                self.rows(|row| f(X::dense(&x.reader, row), Y::dense(&y.reader, row)));
            }
            _ => self.rows(|row| f(x.get(row), y.get(row))),
        }
    }

    #[inline]
    fn rows(&mut self, f: impl Fn(usize) -> T) {
        let put = |row: usize| {
            // SAFETY: `row` is below `n_rows`, for as many values the host made room.
            unsafe { self.values.add(row).write(f(row)) };
        };
        let mut row = 0;
        // Strips: the host looks at the time where a loop jumps back.
        while row + STRIP <= self.n_rows {
            for i in 0..STRIP {
                put(row + i);
            }
            row += STRIP;
        }
        for row in row..self.n_rows {
            put(row);
        }
    }
}

impl<'a, T: Fixed> ColumnOut<'a> for ColMut<'a, T> {
    const NAME: Name = T::TYPE;

    fn column(column: &'a Column, n_rows: usize) -> Self {
        ColMut {
            values: column.values_mut(),
            validity: column.validity_mut(),
            n_rows,
            of: PhantomData,
        }
    }
}
