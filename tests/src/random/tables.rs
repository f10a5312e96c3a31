//! Tables of columns of every type, few or many values, none or all of them null.

use std::sync::Arc;

use arrow::array::{
    ArrayRef, BooleanArray, Date32Array, Decimal128Array, Float32Array, Float64Array, Int8Array,
    Int16Array, Int32Array, Int64Array, RecordBatch, RecordBatchOptions, StringArray,
    TimestampMicrosecondArray, TimestampNanosecondArray, UInt8Array, UInt16Array, UInt32Array,
    UInt64Array,
};
use arrow::datatypes::{Field, Schema};

use super::Dice;

/// What may be compared with one another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// Integers of any width.
    Integer,
    /// Decimals of any precision.
    Decimal,
    /// Floats of both precisions.
    Float,
    /// Dates.
    Date,
    /// Timestamps of one unit.
    Timestamp,
    /// Timestamps of another unit.
    Nanoseconds,
    /// Truth values.
    Bool,
    /// Text.
    Text,
}

/// A column of a table or of a query's source.
#[derive(Debug, Clone)]
pub struct Column {
    /// How SQL says it.
    pub name: String,
    /// What it can be compared with.
    pub class: Class,
    /// Whether its values stay small in sums and products.
    pub is_small: bool,
}

/// A table.
#[derive(Debug, Clone)]
pub struct Table {
    /// Its name.
    pub name: String,
    /// Its columns.
    pub columns: Vec<Column>,
    /// Its rows.
    pub rows: RecordBatch,
}

/// Types a column may have.
const KINDS: [&str; 18] = [
    "i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64", "d5", "d18", "d38", "f32", "f64", "date",
    "us", "ns", "bool", "text",
];

/// Where a column's values lie.
#[derive(Clone, Copy, PartialEq)]
enum Spread {
    /// A dozen values, most rows one of them.
    Skewed,
    /// A few values.
    Few,
    /// Values of all sizes of the type, and its ends.
    Wide,
}

/// Three tables, one of them of any size.
pub fn tables(dice: &mut Dice) -> Vec<Table> {
    let n_rows = [
        *dice.pick(&[0, 1, 6, 50, 300]),
        *dice.pick(&[20, 40]),
        *dice.pick(&[50, 120]),
    ];
    let names = ["a", "b", "c"].into_iter().zip(n_rows);
    names
        .map(|(name, n_rows)| table(name, n_rows, dice))
        .collect()
}

fn table(name: &str, n_rows: usize, dice: &mut Dice) -> Table {
    let mut columns = Vec::new();
    let mut fields = Vec::new();
    let mut arrays = Vec::new();
    // Every table has something to be joined by.
    let mut kinds = vec!["i32", "text"];
    for _ in 0..dice.within(4, 7) {
        kinds.push(*dice.pick(&KINDS));
    }
    for (number, kind) in kinds.iter().enumerate() {
        let spread = match number < 2 {
            true => Spread::Few,
            false => *dice.pick(&[Spread::Skewed, Spread::Few, Spread::Few, Spread::Wide]),
        };
        let nulls = *dice.pick(&[0, 0, 0, 10, 10, 10, 40, 100]);
        let nulls = match number < 2 {
            true => nulls.min(10),
            false => nulls,
        };
        let (array, class) = column(kind, spread, nulls, n_rows, dice);
        let name = format!("{name}{number}_{kind}");
        let nullable = nulls > 0 || dice.chance(30);
        fields.push(Field::new(&name, array.data_type().clone(), nullable));
        columns.push(Column {
            name,
            class,
            is_small: spread != Spread::Wide,
        });
        arrays.push(array);
    }
    let options = RecordBatchOptions::new().with_row_count(Some(n_rows));
    let schema = Arc::new(Schema::new(fields));
    let rows = RecordBatch::try_new_with_options(schema, arrays, &options);
    Table {
        name: name.to_string(),
        columns,
        rows: rows.expect("columns of one length"),
    }
}

/// A number of `bits` bits, by the spread.
fn number(spread: Spread, bits: u32, signed: bool, dice: &mut Dice) -> i128 {
    let (min, max) = match signed {
        true => (-(1i128 << (bits - 1)), (1i128 << (bits - 1)) - 1),
        false => (0, (1i128 << bits) - 1),
    };
    let lowest = if signed { -4 } else { 0 };
    let few = |dice: &mut Dice| i128::from(dice.within(lowest, 7));
    match spread {
        Spread::Skewed if dice.chance(80) => 3,
        Spread::Skewed | Spread::Few => few(dice),
        Spread::Wide => match dice.below(6) {
            0 => min,
            1 => max,
            2 => few(dice),
            _ => {
                let shift = dice.below(bits as usize) as u32;
                let random = i128::from(dice.roll() >> (64 - bits)) >> shift;
                let signed_one = if dice.chance(50) { -random - 1 } else { random };
                signed_one.clamp(min, max)
            }
        },
    }
}

fn float(spread: Spread, dice: &mut Dice) -> f64 {
    let special = if spread == Spread::Wide { 40 } else { 5 };
    if dice.chance(special) {
        let specials = [
            f64::NAN,
            f64::INFINITY,
            f64::NEG_INFINITY,
            -0.0,
            0.0,
            -f64::NAN,
        ];
        return *dice.pick(&specials);
    }
    // Quarters: their sums are exact.
    number(spread, 12, true, dice) as f64 / 4.0
}

const TEXTS: [&str; 16] = [
    "",
    "a",
    "b",
    "ab",
    "abc",
    "B",
    "aé",
    "日本",
    "a%b",
    "a_b",
    "\\",
    "zz top",
    "x\ny",
    " ",
    "ß",
    "a text of more than twelve bytes",
];

fn column(
    kind: &str,
    spread: Spread,
    nulls: usize,
    n_rows: usize,
    dice: &mut Dice,
) -> (ArrayRef, Class) {
    macro_rules! array {
        ($array:ty, $class:expr, |$dice:ident| $value:expr) => {{
            let values: Vec<_> = (0..n_rows)
                .map(|_| {
                    let $dice = &mut *dice;
                    let value = $value;
                    (!$dice.chance(nulls)).then_some(value)
                })
                .collect();
            (Arc::new(<$array>::from(values)) as ArrayRef, $class)
        }};
    }
    macro_rules! integers {
        ($array:ty, $ty:ty, $signed:expr) => {
            array!($array, Class::Integer, |dice| {
                number(spread, <$ty>::BITS, $signed, dice) as $ty
            })
        };
    }
    macro_rules! decimals {
        ($precision:literal, $scale:literal, $bits:literal) => {{
            let values: Vec<_> = (0..n_rows)
                .map(|_| {
                    let value = number(spread, $bits, true, dice);
                    (!dice.chance(nulls)).then_some(value)
                })
                .collect();
            let array = Decimal128Array::from(values);
            let array = array.with_precision_and_scale($precision, $scale);
            (
                Arc::new(array.expect("digits that fit")) as ArrayRef,
                Class::Decimal,
            )
        }};
    }
    match kind {
        "i8" => integers!(Int8Array, i8, true),
        "i16" => integers!(Int16Array, i16, true),
        "i32" => integers!(Int32Array, i32, true),
        "i64" => integers!(Int64Array, i64, true),
        "u8" => integers!(UInt8Array, u8, false),
        "u16" => integers!(UInt16Array, u16, false),
        "u32" => integers!(UInt32Array, u32, false),
        "u64" => integers!(UInt64Array, u64, false),
        "d5" => decimals!(5, 2, 16),
        "d18" => decimals!(18, 4, 58),
        "d38" => decimals!(38, 6, 64),
        "f32" => array!(Float32Array, Class::Float, |dice| float(spread, dice)
            as f32),
        "f64" => array!(Float64Array, Class::Float, |dice| float(spread, dice)),
        "date" => array!(Date32Array, Class::Date, |dice| {
            number(spread, 16, true, dice) as i32
        }),
        "us" => array!(TimestampMicrosecondArray, Class::Timestamp, |dice| {
            number(spread, 54, true, dice) as i64
        }),
        "ns" => array!(TimestampNanosecondArray, Class::Nanoseconds, |dice| {
            number(spread, 60, true, dice) as i64
        }),
        "bool" => array!(BooleanArray, Class::Bool, |dice| dice.chance(50)),
        _ => array!(StringArray, Class::Text, |dice| {
            let n = if spread == Spread::Wide {
                TEXTS.len()
            } else {
                5
            };
            match spread == Spread::Skewed && dice.chance(80) {
                true => "ab",
                false => *dice.pick(&TEXTS[..n]),
            }
        }),
    }
}
