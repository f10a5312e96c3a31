//! Random columns, for trying functions out: the same for the same seed.

use std::sync::Arc;

use arrow::array::{
    ArrayRef, BinaryArray, BooleanArray, Decimal128Array, Float32Array, Float64Array, ListArray,
    StringArray, StructArray, make_array,
};
use arrow::buffer::{BooleanBuffer, Buffer, NullBuffer, OffsetBuffer, ScalarBuffer};
use arrow::datatypes::{DataType, Field};

use crate::types::Type;

/// Numbers that look random (SplitMix64).
#[derive(Debug, Clone)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Random(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.next() % n.max(1)
    }

    /// An integer of so many bits: small, now and then the least or the greatest.
    fn integer(&mut self, bits: u32, signed: bool) -> i128 {
        let (least, greatest) = match signed {
            true => (-(1_i128 << (bits - 1)), (1_i128 << (bits - 1)) - 1),
            false => (0, (1_i128 << bits) - 1),
        };
        match self.below(40) {
            0 => least,
            1 => greatest,
            2 => 0,
            _ => {
                let small = i128::from(self.below(2_001));
                let value = if signed { small - 1_000 } else { small };
                value.clamp(least, greatest)
            }
        }
    }
}

/// What text is made of.
const PIECES: [&str; 12] = [
    "",
    "a",
    "hello world",
    "42",
    "-1.5",
    "ä",
    "日本",
    "x=1&y=2",
    " ",
    "https://example.com/a?b=c",
    "2024-02-29",
    "{\"k\": [1, 2]}",
];

/// A column of a type; about an eighth of it is NULL where that is asked for.
pub fn column(kind: &Type, n_rows: usize, seed: u64, with_nulls: bool) -> ArrayRef {
    let mut random = Random::new(seed);
    make(kind, n_rows, &mut random, with_nulls)
}

fn make(kind: &Type, n: usize, random: &mut Random, with_nulls: bool) -> ArrayRef {
    let nulls = with_nulls
        .then(|| NullBuffer::new(BooleanBuffer::collect_bool(n, |_| random.below(8) != 0)));
    let bits = |bits: u32, signed: bool, random: &mut Random| -> ArrayRef {
        let mut bytes = Vec::with_capacity(n * bits as usize / 8);
        for _ in 0..n {
            let value = random.integer(bits, signed).to_le_bytes();
            bytes.extend_from_slice(&value[..bits as usize / 8]);
        }
        let data = arrow::array::ArrayData::builder(kind.arrow())
            .len(n)
            // A copy, which is aligned as values have to be.
            .add_buffer(Buffer::from(bytes.as_slice()))
            .nulls(nulls.clone())
            .build()
            .expect("as many values as rows");
        make_array(data)
    };
    match kind {
        Type::I8 => bits(8, true, random),
        Type::I16 => bits(16, true, random),
        Type::I32 | Type::Date32 => bits(32, true, random),
        Type::I64 | Type::Timestamp(_) => bits(64, true, random),
        Type::U8 => bits(8, false, random),
        Type::U16 => bits(16, false, random),
        Type::U32 => bits(32, false, random),
        Type::U64 => bits(64, false, random),
        Type::F32 => Arc::new(Float32Array::new(
            (0..n).map(|_| float(random) as f32).collect(),
            nulls,
        )),
        Type::F64 => Arc::new(Float64Array::new(
            (0..n).map(|_| float(random)).collect(),
            nulls,
        )),
        Type::Decimal(precision, scale) => {
            let most = 10_i128.pow(u32::from(*precision)) - 1;
            let values: ScalarBuffer<i128> = (0..n)
                .map(|_| random.integer(64, true).clamp(-most, most))
                .collect();
            let decimals = Decimal128Array::new(values, nulls);
            Arc::new(
                decimals
                    .with_precision_and_scale(*precision, *scale)
                    .expect("a type of the sandbox"),
            )
        }
        Type::Bool => Arc::new(BooleanArray::new(
            BooleanBuffer::collect_bool(n, |_| random.below(2) == 0),
            nulls,
        )),
        Type::Utf8 => Arc::new(with_nulls_of(
            (0..n).map(|_| text(random)).collect::<StringArray>(),
            nulls,
        )),
        Type::Binary => {
            let bytes: Vec<Vec<u8>> = (0..n)
                .map(|_| {
                    let length = random.below(12);
                    (0..length).map(|_| random.next() as u8).collect()
                })
                .collect();
            let plain = BinaryArray::from_iter_values(bytes);
            let (offsets, values, _) = plain.into_parts();
            Arc::new(BinaryArray::new(offsets, values, nulls))
        }
        Type::List(item) => {
            let mut offsets = vec![0_i32];
            let mut last = 0;
            for _ in 0..n {
                last += random.below(4) as i32;
                offsets.push(last);
            }
            let items = make(item, last as usize, random, with_nulls);
            let field = Field::new_list_field(item.arrow(), true);
            let offsets = OffsetBuffer::new(ScalarBuffer::from(offsets));
            Arc::new(ListArray::new(Arc::new(field), offsets, items, nulls))
        }
        Type::Struct(fields) => {
            let columns = fields
                .iter()
                .map(|(_, kind)| make(kind, n, random, with_nulls))
                .collect();
            let DataType::Struct(fields) = kind.arrow() else {
                unreachable!("a struct's Arrow type is a struct");
            };
            Arc::new(StructArray::new(fields, columns, nulls))
        }
    }
}

fn with_nulls_of(plain: StringArray, nulls: Option<NullBuffer>) -> StringArray {
    let (offsets, values, _) = plain.into_parts();
    StringArray::new(offsets, values, nulls)
}

fn float(random: &mut Random) -> f64 {
    match random.below(40) {
        0 => 0.0,
        1 => -0.0,
        2 => 1e300,
        3 => f64::NAN,
        _ => (random.below(2_000_001) as f64 - 1_000_000.0) / 1_024.0,
    }
}

fn text(random: &mut Random) -> Option<String> {
    let n_pieces = random.below(3) + 1;
    Some(
        (0..n_pieces)
            .map(|_| PIECES[random.below(PIECES.len() as u64) as usize])
            .collect(),
    )
}
