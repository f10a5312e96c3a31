//! Types of results.

use core::fmt::Display;
use std::borrow::Cow;

use super::args::Fixed;
use super::frame::{Call, Column, set_bit};
use super::name::Name;
use super::panic;
use crate::text::StrWriter;
use crate::values::{Date, Decimal, Timestamp};

/// A type that a function may return.
#[diagnostic::on_unimplemented(
    message = "a user function cannot return `{Self}`",
    note = "results are bool, i8 to i64, u8 to u64, f32, f64, &str, String, &[u8], Vec<u8>, \
            Decimal<P, S>, Date, Timestamp, Option of these for NULL, and Result of these with an \
            error that can be displayed"
)]
pub trait Out: Sized {
    /// Its name in metadata.
    const NAME: Name;
    /// Whether a value can be an error.
    const FALLIBLE: bool = false;
    /// Whether a row can be so little work that the host's looks at the time show.
    const IS_TIGHT: bool = false;
    /// Takes the values.
    type Sink: Sink;

    /// Puts the value where it belongs; false when it is an error, which was told.
    fn put(self, sink: &mut Self::Sink, row: usize) -> bool;
}

/// A type of a whole column of results.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be the result of a vectorized user function",
    note = "the last parameter of a vectorized function is a `ColMut<T>` of numbers, decimals, \
            dates or times"
)]
pub trait ColumnOut<'a>: Sized {
    /// Its name in metadata.
    const NAME: Name;
    /// The column.
    fn column(column: &'a Column, n_rows: usize) -> Self;
}

/// Where results of a kind go.
pub trait Sink {
    /// The sink of a call.
    fn new(call: &Call) -> Self;
    /// Makes the row NULL.
    fn null(&mut self, row: usize);
    /// The row is done, however it ended.
    fn end(&mut self, row: usize);
    /// All rows are done.
    fn finish(self, call: &Call);
}

/// Takes values of one width.
pub struct Values<T> {
    values: *mut T,
    validity: *mut u8,
}

impl<T> Sink for Values<T> {
    fn new(call: &Call) -> Self {
        Values {
            values: call.ret().values_mut(),
            validity: call.ret().validity_mut(),
        }
    }

    fn null(&mut self, row: usize) {
        // SAFETY: the host made room for a bit for each row.
        unsafe { set_bit(self.validity, row, false) };
    }

    #[inline]
    fn end(&mut self, _: usize) {}

    fn finish(self, _: &Call) {}
}

macro_rules! fixed {
    ($($kind:ty, [$($generics:tt)*];)*) => {$(
        impl<$($generics)*> Out for $kind {
            const NAME: Name = <$kind as Fixed>::TYPE;
            const IS_TIGHT: bool = true;
            type Sink = Values<$kind>;

            #[inline]
            fn put(self, sink: &mut Values<$kind>, row: usize) -> bool {
                // SAFETY: the host made room for a value for each row.
                unsafe { sink.values.add(row).write(self) };
                true
            }
        }
    )*};
}

fixed! {
    i8, []; i16, []; i32, []; i64, []; u8, []; u16, []; u32, []; u64, []; f32, []; f64, [];
    Date, []; Timestamp, []; Decimal<P, S>, [const P: u8, const S: i8];
}

impl Out for bool {
    const NAME: Name = Name::new("bool");
    const IS_TIGHT: bool = true;
    type Sink = Values<u8>;

    #[inline]
    fn put(self, sink: &mut Values<u8>, row: usize) -> bool {
        if self {
            // SAFETY: the host made room for a bit for each row, and set none.
            unsafe { set_bit(sink.values, row, true) };
        }
        true
    }
}

/// Takes text or bytes.
pub struct Pieces {
    pub(super) out: StrWriter,
    offsets: *mut u32,
    validity: *mut u8,
    /// Where the row that is written starts.
    start: usize,
}

/// What text that did not fit the host's room was in: it stays until the next call, and is
/// used again then.
static mut LAST: Vec<u8> = Vec::new();

impl Sink for Pieces {
    fn new(call: &Call) -> Self {
        let (room, capacity) = call.scratch();
        // SAFETY: a module has one thread, and nobody else touches this.
        let last = unsafe { (&raw mut LAST).replace(Vec::new()) };
        Pieces {
            // SAFETY: the scratch of a call is the function's alone until it returns.
            out: unsafe { StrWriter::over(room, capacity, last) },
            offsets: call.ret().values_mut(),
            validity: call.ret().validity_mut(),
            start: 0,
        }
    }

    fn null(&mut self, row: usize) {
        self.out.truncate(self.start);
        // SAFETY: the host made room for a bit for each row.
        unsafe { set_bit(self.validity, row, false) };
    }

    #[inline]
    fn end(&mut self, row: usize) {
        self.start = self.out.length();
        assert!(self.start <= i32::MAX as usize, "more than 2 GiB of text");
        // SAFETY: the host made room for an offset more than rows; the first is 0.
        unsafe { self.offsets.add(row + 1).write(self.start as u32) };
    }

    fn finish(self, call: &Call) {
        call.ret().set_bytes(self.out.written());
        // SAFETY: as in `new`. The vector moves, the bytes that were given out do not.
        unsafe { LAST = self.out.into_own() };
    }
}

macro_rules! pieces {
    ($($kind:ty, $name:literal, $self:ident => $bytes:expr;)*) => {$(
        impl Out for $kind {
            const NAME: Name = Name::new($name);
            type Sink = Pieces;

            #[inline]
            fn put($self, sink: &mut Pieces, _: usize) -> bool {
                sink.out.push_bytes($bytes);
                true
            }
        }
    )*};
}

pieces! {
    &str, "utf8", self => self.as_bytes();
    String, "utf8", self => self.as_bytes();
    Cow<'_, str>, "utf8", self => self.as_bytes();
    &[u8], "binary", self => self;
    Vec<u8>, "binary", self => &self;
}

impl<O: Out> Out for Option<O> {
    const NAME: Name = O::NAME;
    const FALLIBLE: bool = O::FALLIBLE;
    const IS_TIGHT: bool = O::IS_TIGHT;
    type Sink = O::Sink;

    #[inline]
    fn put(self, sink: &mut O::Sink, row: usize) -> bool {
        match self {
            Some(value) => value.put(sink, row),
            None => {
                sink.null(row);
                true
            }
        }
    }
}

impl<O: Out, E: Display> Out for Result<O, E> {
    const NAME: Name = O::NAME;
    const FALLIBLE: bool = true;
    type Sink = O::Sink;

    #[inline]
    fn put(self, sink: &mut O::Sink, row: usize) -> bool {
        match self {
            Ok(value) => value.put(sink, row),
            Err(error) => {
                panic::fail(row, &error);
                false
            }
        }
    }
}

/// What a function returned that wrote its text itself: nothing, or whether it went well.
pub struct Written<R>(pub R);

impl Out for Written<()> {
    const NAME: Name = Name::new("utf8");
    type Sink = Pieces;

    #[inline]
    fn put(self, _: &mut Pieces, _: usize) -> bool {
        true
    }
}

impl Out for Written<Option<()>> {
    const NAME: Name = Name::new("utf8");
    type Sink = Pieces;

    #[inline]
    fn put(self, sink: &mut Pieces, row: usize) -> bool {
        if self.0.is_none() {
            sink.null(row);
        }
        true
    }
}

impl<E: Display> Out for Written<Result<(), E>> {
    const NAME: Name = Name::new("utf8");
    const FALLIBLE: bool = true;
    type Sink = Pieces;

    #[inline]
    fn put(self, _: &mut Pieces, row: usize) -> bool {
        match self.0 {
            Ok(()) => true,
            Err(error) => {
                panic::fail(row, &error);
                false
            }
        }
    }
}
