//! Types of arguments.

use super::frame::Column;
use super::name::Name;
use crate::values::{Date, Decimal, Timestamp};

/// A type that an argument may have.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be an argument of a user function",
    note = "arguments are bool, i8 to i64, u8 to u64, f32, f64, &str, &[u8], Decimal<P, S>, Date, \
            Timestamp, and Option of these to see NULL"
)]
pub trait Arg<'a>: Sized {
    /// Its name in metadata.
    const NAME: Name;
    /// Whether it can be NULL.
    const SEES_NULL: bool = false;
    /// Gets values out of a column.
    type Reader: Copy;

    /// A reader of a column of this type.
    fn reader(column: &'a Column) -> Self::Reader;
    /// The value of a row, of any column.
    fn get(reader: &Self::Reader, row: usize) -> Self;
    /// The value of a row of a column that is no constant and has no nulls.
    fn dense(reader: &Self::Reader, row: usize) -> Self;
}

/// A type of a whole column of arguments.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be an argument of a vectorized user function",
    note = "arguments of vectorized functions are `Col<T>`, and the last parameter is a `ColMut<T>`"
)]
pub trait ColumnArg<'a>: Sized {
    /// Its name in metadata.
    const NAME: Name;
    /// Whether the function sees NULL.
    const SEES_NULL: bool;
    /// The column.
    fn column(column: &'a Column) -> Self;
}

/// A type whose values are of one width and lie in memory as in a column.
pub trait Fixed: Copy {
    /// Its name in metadata.
    const TYPE: Name;
}

/// Reads values of one width.
pub struct Values<T> {
    values: *const T,
    mask: usize,
}

impl<T> Clone for Values<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Values<T> {}

macro_rules! fixed {
    ($($kind:ty, $name:expr, [$($generics:tt)*];)*) => {$(
        impl<$($generics)*> Fixed for $kind {
            const TYPE: Name = $name;
        }

        impl<'a, $($generics)*> Arg<'a> for $kind {
            const NAME: Name = $name;
            type Reader = Values<$kind>;

            #[inline]
            fn reader(column: &'a Column) -> Self::Reader {
                Values {
                    values: column.values(),
                    mask: column.mask(),
                }
            }

            #[inline]
            fn get(reader: &Self::Reader, row: usize) -> Self {
                // SAFETY: the column has a value for each row, or one where the mask is 0.
                unsafe { reader.values.add(row & reader.mask).read() }
            }

            #[inline]
            fn dense(reader: &Self::Reader, row: usize) -> Self {
                // SAFETY: the column has a value for each row.
                unsafe { reader.values.add(row).read() }
            }
        }
    )*};
}

fixed! {
    i8, Name::new("i8"), [];
    i16, Name::new("i16"), [];
    i32, Name::new("i32"), [];
    i64, Name::new("i64"), [];
    u8, Name::new("u8"), [];
    u16, Name::new("u16"), [];
    u32, Name::new("u32"), [];
    u64, Name::new("u64"), [];
    f32, Name::new("f32"), [];
    f64, Name::new("f64"), [];
    Date, Name::new("date32"), [];
    Timestamp, Name::new("timestamp(us)"), [];
    Decimal<P, S>, Name::decimal(P, S), [const P: u8, const S: i8];
}

/// Reads bits.
#[derive(Clone, Copy)]
pub struct Bits {
    bits: *const u8,
    mask: usize,
}

impl<'a> Arg<'a> for bool {
    const NAME: Name = Name::new("bool");
    type Reader = Bits;

    fn reader(column: &'a Column) -> Bits {
        Bits {
            bits: column.values(),
            mask: column.mask(),
        }
    }

    #[inline]
    fn get(reader: &Bits, row: usize) -> bool {
        Self::dense(reader, row & reader.mask)
    }

    #[inline]
    fn dense(reader: &Bits, row: usize) -> bool {
        // SAFETY: the column has a bit for each row.
        let byte = unsafe { reader.bits.add(row / 8).read() };
        byte >> (row % 8) & 1 != 0
    }
}

/// Reads pieces of bytes.
#[derive(Clone, Copy)]
pub struct Pieces {
    offsets: *const u32,
    bytes: *const u8,
    mask: usize,
}

impl<'a> Arg<'a> for &'a [u8] {
    const NAME: Name = Name::new("binary");
    type Reader = Pieces;

    fn reader(column: &'a Column) -> Pieces {
        Pieces {
            offsets: column.values(),
            bytes: column.bytes(),
            mask: column.mask(),
        }
    }

    #[inline]
    fn get(reader: &Pieces, row: usize) -> Self {
        Self::dense(reader, row & reader.mask)
    }

    #[inline]
    fn dense(reader: &Pieces, row: usize) -> Self {
        // SAFETY: the column has one offset more than rows; they do not decrease and end
        // with its bytes.
        unsafe {
            let from = reader.offsets.add(row).read() as usize;
            let to = reader.offsets.add(row + 1).read() as usize;
            core::slice::from_raw_parts(reader.bytes.add(from), to - from)
        }
    }
}

impl<'a> Arg<'a> for &'a str {
    const NAME: Name = Name::new("utf8");
    type Reader = Pieces;

    fn reader(column: &'a Column) -> Pieces {
        <&[u8]>::reader(column)
    }

    #[inline]
    fn get(reader: &Pieces, row: usize) -> Self {
        // SAFETY: the host gives out UTF-8 alone, cut between characters.
        unsafe { core::str::from_utf8_unchecked(<&[u8]>::get(reader, row)) }
    }

    #[inline]
    fn dense(reader: &Pieces, row: usize) -> Self {
        // SAFETY: as above.
        unsafe { core::str::from_utf8_unchecked(<&[u8]>::dense(reader, row)) }
    }
}

/// Reads values that may be NULL.
#[derive(Clone, Copy)]
pub struct Nullable<'a, R> {
    inner: R,
    column: &'a Column,
}

impl<'a, T: Arg<'a>> Arg<'a> for Option<T> {
    const NAME: Name = T::NAME;
    const SEES_NULL: bool = true;
    type Reader = Nullable<'a, T::Reader>;

    fn reader(column: &'a Column) -> Self::Reader {
        Nullable {
            inner: T::reader(column),
            column,
        }
    }

    #[inline]
    fn get(reader: &Self::Reader, row: usize) -> Self {
        reader
            .column
            .is_valid(row)
            .then(|| T::get(&reader.inner, row))
    }

    #[inline]
    fn dense(reader: &Self::Reader, row: usize) -> Self {
        Some(T::dense(&reader.inner, row))
    }
}
