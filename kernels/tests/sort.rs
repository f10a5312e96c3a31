//! Sorts against a stable sort of the same values on the host, on the host target,
//! which runs the very text that a GPU runs, or on a GPU.

use std::cmp::Ordering;
use std::sync::Arc;

use arrow::array::{
    ArrayRef, BooleanArray, Date32Array, Decimal128Array, Float32Array, Float64Array, Int8Array,
    Int16Array, Int32Array, Int64Array, RecordBatch, TimestampNanosecondArray, UInt8Array,
    UInt64Array,
};
use arrow::datatypes::TimeUnit;
use kernels::gpu::{Gpu, HostOptions, PinnedPool, open_cuda, open_host};
use kernels::ir::{BinaryOp, Expr, IntWidth, Kind, Literal, Sort, SortKey, Type};
use kernels::jit::Jit;
use kernels::launch::sort;

const LENGTHS: [usize; 12] = [0, 1, 31, 32, 33, 127, 128, 129, 4095, 4096, 4097, 9000];

/// The host target, or with `WARPLINE_TEST_GPU=N` the GPU of that number.
fn device() -> (Arc<dyn Gpu>, Arc<Jit>) {
    let gpu = match std::env::var("WARPLINE_TEST_GPU") {
        Ok(ordinal) => open_cuda(ordinal.parse().expect("a number")).expect("a GPU"),
        Err(_) => open_host(HostOptions::default()),
    };
    (gpu, Arc::new(Jit::new(None)))
}

fn batch(columns: Vec<ArrayRef>) -> RecordBatch {
    let named = columns.into_iter().enumerate();
    RecordBatch::try_from_iter_with_nullable(named.map(|(i, c)| (format!("c{i}"), c, true)))
        .unwrap()
}

fn pseudo_random(row: usize, salt: u64) -> u64 {
    let x = (row as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ salt.wrapping_mul(0xd134_2543);
    (x ^ (x >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9)
}

/// A value as the order sees it.
#[derive(Debug, Clone, Copy)]
enum Value {
    Integer(i128),
    Float(f64),
}

fn compare(a: Value, b: Value) -> Ordering {
    match (a, b) {
        (Value::Integer(a), Value::Integer(b)) => a.cmp(&b),
        (Value::Float(a), Value::Float(b)) => match (a.is_nan(), b.is_nan()) {
            (false, false) => a.partial_cmp(&b).unwrap(),
            (a, b) => a.cmp(&b),
        },
        _ => unreachable!(),
    }
}

/// One key: its array, its type, its values, and how it is ordered.
struct Key {
    array: ArrayRef,
    ty: Type,
    values: Vec<Option<Value>>,
    descending: bool,
    nulls_first: bool,
}

fn expected(keys: &[Key], n: usize) -> Vec<u32> {
    let mut rows: Vec<u32> = (0..n as u32).collect();
    rows.sort_by(|a, b| {
        for key in keys {
            let (x, y) = (key.values[*a as usize], key.values[*b as usize]);
            let order = match (x, y) {
                (None, None) => Ordering::Equal,
                (None, _) if key.nulls_first => Ordering::Less,
                (_, None) if key.nulls_first => Ordering::Greater,
                (None, _) => Ordering::Greater,
                (_, None) => Ordering::Less,
                (Some(x), Some(y)) if key.descending => compare(y, x),
                (Some(x), Some(y)) => compare(x, y),
            };
            if order != Ordering::Equal {
                return order;
            }
        }
        Ordering::Equal
    });
    rows
}

fn run(
    device: &(Arc<dyn Gpu>, Arc<Jit>),
    keys: &[Key],
    n: usize,
    fetch: Option<usize>,
) -> kernels::error::Result<Vec<u32>> {
    let wanted = Sort {
        keys: keys
            .iter()
            .enumerate()
            .map(|(index, key)| SortKey {
                value: Expr::column(index, key.ty, true),
                descending: key.descending,
                nulls_first: key.nulls_first,
            })
            .collect(),
    };
    let rows = batch(keys.iter().map(|key| key.array.clone()).collect());
    assert_eq!(rows.num_rows(), n);
    let (gpu, jit) = device.clone();
    let pool = PinnedPool::new(&gpu, 64 << 20);
    sort(gpu, jit, &pool, &wanted, &rows, fetch).map(|sorted| sorted.rows)
}

/// Integers of few values, so that many rows are equal.
fn integers(n: usize, nulls: &str, salt: u64, span: u64) -> Key {
    let all: Vec<Option<i64>> = (0..n + 3)
        .map(|row| {
            let value = (pseudo_random(row, salt) >> 7) % span;
            let there = match nulls {
                "none" => true,
                "all" => false,
                _ => !pseudo_random(row, salt + 50).is_multiple_of(4),
            };
            there.then(|| (value as i64).wrapping_sub((span / 2) as i64))
        })
        .collect();
    Key {
        array: Arc::new(Int64Array::from(all.clone()).slice(3, n)),
        ty: Type::I64,
        values: all[3..]
            .iter()
            .map(|v| v.map(|v| Value::Integer(v.into())))
            .collect(),
        descending: false,
        nulls_first: false,
    }
}

#[test]
fn every_length_null_pattern_and_direction() {
    let device = device();
    for n in LENGTHS {
        for nulls in ["none", "all", "mixed"] {
            for (descending, nulls_first) in
                [(false, false), (false, true), (true, false), (true, true)]
            {
                let mut first = integers(n, nulls, 1, 10);
                let second = integers(n, "mixed", 2, 1000);
                first.descending = descending;
                first.nulls_first = nulls_first;
                let keys = [first, second];
                assert_eq!(
                    run(&device, &keys, n, None).unwrap(),
                    expected(&keys, n),
                    "{n} rows, {nulls} null, descending {descending}, nulls first {nulls_first}"
                );
            }
        }
    }
}

#[test]
fn equal_keys_keep_their_order() {
    let device = device();
    let key = integers(5000, "none", 3, 2);
    let keys = [key];
    assert_eq!(
        run(&device, &keys, 5000, None).unwrap(),
        expected(&keys, 5000)
    );
    let constant = [integers(5000, "none", 3, 1)];
    let in_order: Vec<u32> = (0..5000).collect();
    assert_eq!(run(&device, &constant, 5000, None).unwrap(), in_order);
}

#[test]
fn many_tiles_and_a_fetch() {
    let n = (1 << 17) + 123;
    let device = device();
    let keys = [
        integers(n, "mixed", 4, 300),
        integers(n, "none", 5, 1 << 40),
    ];
    let all = expected(&keys, n);
    assert_eq!(run(&device, &keys, n, None).unwrap(), all);
    assert_eq!(run(&device, &keys, n, Some(10)).unwrap(), all[..10]);
    assert!(run(&device, &keys, n, Some(0)).unwrap().is_empty());
}

fn each_type() -> Vec<(ArrayRef, Type, Vec<Option<Value>>)> {
    let ints = |values: &[Option<i128>]| -> Vec<Option<Value>> {
        values.iter().map(|v| v.map(Value::Integer)).collect()
    };
    let floats = |values: &[Option<f64>]| -> Vec<Option<Value>> {
        values.iter().map(|v| v.map(Value::Float)).collect()
    };
    let most = 10i128.pow(38) - 1;
    let mut cases: Vec<(ArrayRef, Type, Vec<Option<Value>>)> = Vec::new();
    macro_rules! integral {
        ($array:ty, $native:ty, $ty:expr) => {
            let values = [
                Some(<$native>::MAX),
                None,
                Some(3),
                Some(<$native>::MIN),
                Some(0),
                Some(3),
                None,
            ];
            let wide: Vec<Option<i128>> = values.iter().map(|v| v.map(i128::from)).collect();
            cases.push((Arc::new(<$array>::from(values.to_vec())), $ty, ints(&wide)));
        };
    }
    integral!(Int8Array, i8, Type::Int(IntWidth::W8));
    integral!(Int16Array, i16, Type::Int(IntWidth::W16));
    integral!(Int32Array, i32, Type::Int(IntWidth::W32));
    integral!(Int64Array, i64, Type::Int(IntWidth::W64));
    integral!(UInt8Array, u8, Type::UInt(IntWidth::W8));
    integral!(UInt64Array, u64, Type::UInt(IntWidth::W64));
    integral!(Date32Array, i32, Type::Date32);
    integral!(
        TimestampNanosecondArray,
        i64,
        Type::Timestamp(TimeUnit::Nanosecond)
    );
    let decimals = [
        Some(most),
        None,
        Some(3),
        Some(-most),
        Some(1 << 64),
        Some(-(1 << 64)),
        Some((1 << 64) + 1),
    ];
    let array = Decimal128Array::from(decimals.to_vec());
    cases.push((
        Arc::new(array.with_precision_and_scale(38, 2).unwrap()),
        Type::Decimal {
            precision: 38,
            scale: 2,
        },
        ints(&decimals),
    ));
    let bools = [
        Some(true),
        None,
        Some(false),
        Some(true),
        None,
        Some(false),
        None,
    ];
    cases.push((
        Arc::new(BooleanArray::from(bools.to_vec())),
        Type::Bool,
        ints(&bools.map(|v| v.map(i128::from))),
    ));
    let values = [
        Some(1.5),
        Some(f64::NAN),
        None,
        Some(f64::INFINITY),
        Some(f64::NEG_INFINITY),
        Some(-0.0),
        Some(0.0),
        Some(-f64::NAN),
        Some(-0.0),
        Some(-1.5),
        Some(f64::MIN_POSITIVE),
    ];
    cases.push((
        Arc::new(Float64Array::from(values.to_vec())),
        Type::Float64,
        floats(&values),
    ));
    let narrow: Vec<Option<f32>> = values.iter().map(|v| v.map(|v| v as f32)).collect();
    let wide: Vec<Option<f64>> = narrow.iter().map(|v| v.map(f64::from)).collect();
    cases.push((
        Arc::new(Float32Array::from(narrow)),
        Type::Float32,
        floats(&wide),
    ));
    cases
}

#[test]
fn every_type_in_every_direction() {
    let device = device();
    for (array, ty, values) in each_type() {
        for (descending, nulls_first) in
            [(false, false), (false, true), (true, false), (true, true)]
        {
            let n = array.len();
            let keys = [Key {
                array: array.clone(),
                ty,
                values: values.clone(),
                descending,
                nulls_first,
            }];
            assert_eq!(
                run(&device, &keys, n, None).unwrap(),
                expected(&keys, n),
                "{ty}, descending {descending}, nulls first {nulls_first}"
            );
        }
    }
}

/// Three 128-bit keys and a flag are more than six words.
#[test]
fn keys_of_many_words() {
    let n = 3000;
    let wide = |salt: u64| -> Key {
        let values: Vec<i128> = (0..n)
            .map(|row| {
                let high = (pseudo_random(row, salt) >> 60) as i128 - 8;
                (high << 90) + (pseudo_random(row, salt + 1) >> 62) as i128
            })
            .collect();
        let array = Decimal128Array::from(values.clone());
        Key {
            array: Arc::new(array.with_precision_and_scale(38, 0).unwrap()),
            ty: Type::Decimal {
                precision: 38,
                scale: 0,
            },
            values: values
                .into_iter()
                .map(|v| Some(Value::Integer(v)))
                .collect(),
            descending: salt == 20,
            nulls_first: false,
        }
    };
    let keys = [integers(n, "mixed", 9, 2), wide(10), wide(20), wide(30)];
    let device = device();
    assert_eq!(run(&device, &keys, n, None).unwrap(), expected(&keys, n));
}

#[test]
fn a_key_can_be_an_expression_and_its_fault_is_an_error() {
    let (gpu, jit) = device();
    let ty = Type::I64;
    let key = |values: Vec<i64>, divisor: i128| {
        let value = Expr {
            kind: Kind::Binary(
                BinaryOp::Modulo,
                Arc::new(Expr::column(0, ty, false)),
                Arc::new(Expr::literal(Literal::Integer(divisor), ty)),
            ),
            ty,
            nullable: false,
        };
        let wanted = Sort {
            keys: vec![SortKey {
                value,
                descending: false,
                nulls_first: false,
            }],
        };
        let rows = batch(vec![Arc::new(Int64Array::from(values))]);
        let pool = PinnedPool::new(&gpu, 64 << 20);
        sort(gpu.clone(), jit.clone(), &pool, &wanted, &rows, None)
    };
    assert_eq!(key(vec![5, 9, 13, 4], 5).unwrap().rows, [0, 2, 1, 3]);
    let error = key(vec![1, 2], 0).unwrap_err();
    assert!(error.to_string().contains("division by zero"), "{error}");
}
