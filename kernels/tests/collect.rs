//! Collect kernels against plain loops over the same arrays, on the host target,
//! which runs the very text that a GPU runs, or on a GPU.
//!
//! Lengths surround warp and tile sizes; nulls are none, all or mixed; arrays are
//! sliced so that validity starts in the middle of a byte.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BooleanArray, Date32Array, Decimal128Array, Float32Array,
    Float64Array, Int8Array, Int32Array, Int64Array, RecordBatch, TimestampMicrosecondArray,
    UInt64Array,
};
use arrow::compute::{cast, take};
use arrow::datatypes::{DataType, Int64Type, TimeUnit};
use kernels::gpu::{Gpu, HostOptions, PinnedPool, open_cuda, open_host};
use kernels::ir::{BinaryOp, Collect, Expr, IntWidth, Kind, Literal, Step, Type, UnaryOp};
use kernels::jit::Jit;
use kernels::launch::{CollectRun, Collected};

const LENGTHS: [usize; 12] = [0, 1, 31, 32, 33, 127, 128, 129, 2047, 2048, 2049, 5000];
const LONG: Type = Type::I64;

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

fn run(
    device: &(Arc<dyn Gpu>, Arc<Jit>),
    collect: &Collect,
    batch: &RecordBatch,
) -> kernels::error::Result<Collected> {
    let (gpu, jit) = device;
    let pool = PinnedPool::new(gpu, 64 << 20);
    let collect = collect.clone();
    CollectRun::new(gpu.clone(), jit.clone(), &pool, collect, Arc::default())?.collect(batch)
}

fn column(index: usize, ty: Type) -> Expr {
    Expr::column(index, ty, true)
}

fn integer(value: i128, ty: Type) -> Expr {
    Expr::literal(Literal::Integer(value), ty)
}

fn binary(op: BinaryOp, a: Expr, b: Expr, ty: Type) -> Expr {
    Expr {
        kind: Kind::Binary(op, Arc::new(a), Arc::new(b)),
        ty,
        nullable: true,
    }
}

fn pseudo_random(row: usize, salt: u64) -> u64 {
    let x = (row as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ salt.wrapping_mul(0xd134_2543);
    (x ^ (x >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 20
}

fn longs(length: usize, pattern: &str, salt: u64) -> Vec<Option<i64>> {
    let values = (0..length).map(|row| {
        let value = (pseudo_random(row, salt) % 1000) as i64 - 300;
        match pattern {
            "none" => Some(value),
            "all" => None,
            _ => (!pseudo_random(row, salt + 9).is_multiple_of(3)).then_some(value),
        }
    });
    values.collect()
}

/// `a > 0`, and outputs `a + b` and `b is null`.
fn positive_sums(filter: bool) -> Collect {
    let positive = binary(
        BinaryOp::Greater,
        column(0, LONG),
        integer(0, LONG),
        Type::Bool,
    );
    Collect {
        steps: Step::filter(filter.then_some(positive)),
        outputs: vec![
            binary(BinaryOp::Add, column(0, LONG), column(1, LONG), LONG),
            Expr {
                kind: Kind::Unary(UnaryOp::IsNull, Arc::new(column(1, LONG))),
                ty: Type::Bool,
                nullable: false,
            },
        ],
    }
}

#[test]
fn every_length_and_null_pattern_keeps_rows_and_their_order() {
    let device = device();
    for length in LENGTHS {
        for pattern in ["none", "all", "mixed"] {
            let a = longs(length + 5, pattern, 1);
            let b = longs(length + 5, "mixed", 2);
            let data = batch(vec![
                Arc::new(Int64Array::from(a.clone())),
                Arc::new(Int64Array::from(b.clone())),
            ])
            .slice(5, length);
            for filter in [true, false] {
                let kept: Vec<u32> = (0..length as u32)
                    .filter(|row| !filter || a[*row as usize + 5].is_some_and(|v| v > 0))
                    .collect();
                let got = run(&device, &positive_sums(filter), &data).unwrap();
                let what = format!("{length} rows, {pattern} null, filter {filter}");
                assert_eq!(got.n_rows, kept.len(), "{what}");
                match &got.rows {
                    Some(rows) => assert_eq!(*rows, kept, "{what}"),
                    None => assert_eq!(kept.len(), length, "{what}"),
                }
                let sums: Vec<Option<i64>> = kept
                    .iter()
                    .map(|row| Some(a[*row as usize + 5]? + b[*row as usize + 5]?))
                    .collect();
                assert_eq!(got.outputs[0].as_ref(), &Int64Array::from(sums), "{what}");
                let missing: Vec<bool> = kept
                    .iter()
                    .map(|row| b[*row as usize + 5].is_none())
                    .collect();
                let missing = BooleanArray::from(missing);
                assert_eq!(got.outputs[1].as_ref(), &missing, "{what}");
            }
        }
    }
}

#[test]
fn many_tiles_keep_their_order() {
    let n = (1 << 17) + 77;
    let a = Int64Array::from_iter_values((0..n).map(|row| (row % 7) as i64));
    let data = batch(vec![Arc::new(a)]);
    let collect = Collect {
        steps: vec![Step::Filter(binary(
            BinaryOp::Equal,
            column(0, LONG),
            integer(3, LONG),
            Type::Bool,
        ))],
        outputs: vec![],
    };
    let got = run(&device(), &collect, &data).unwrap();
    let expected: Vec<u32> = (0..n as u32).filter(|row| row % 7 == 3).collect();
    assert_eq!(got.rows, Some(expected));
}

#[test]
fn every_type_comes_back_as_it_was() {
    let money = Type::Decimal {
        precision: 38,
        scale: 4,
    };
    let small = Type::Decimal {
        precision: 9,
        scale: 2,
    };
    let decimals = |values: Vec<Option<i128>>, precision, scale| -> ArrayRef {
        let array = Decimal128Array::from(values);
        Arc::new(array.with_precision_and_scale(precision, scale).unwrap())
    };
    let most = 10i128.pow(38) - 1;
    let cases: Vec<(ArrayRef, Type)> = vec![
        (
            Arc::new(BooleanArray::from(vec![Some(true), None, Some(false)])),
            Type::Bool,
        ),
        (
            Arc::new(Int8Array::from(vec![Some(-128), None, Some(127)])),
            Type::Int(IntWidth::W8),
        ),
        (
            Arc::new(Int32Array::from(vec![Some(i32::MIN), None, Some(7)])),
            Type::Int(IntWidth::W32),
        ),
        (
            Arc::new(Int64Array::from(vec![Some(i64::MIN), None, Some(i64::MAX)])),
            LONG,
        ),
        (
            Arc::new(UInt64Array::from(vec![Some(u64::MAX), None, Some(0)])),
            Type::UInt(IntWidth::W64),
        ),
        (
            Arc::new(Float32Array::from(vec![Some(-0.5), None, Some(f32::MAX)])),
            Type::Float32,
        ),
        (
            Arc::new(Float64Array::from(vec![
                Some(f64::NEG_INFINITY),
                None,
                Some(0.1),
            ])),
            Type::Float64,
        ),
        (decimals(vec![Some(-most), None, Some(most)], 38, 4), money),
        (decimals(vec![Some(-5), None, Some(99)], 9, 2), small),
        (
            Arc::new(Date32Array::from(vec![Some(-719_162), None, Some(20_000)])),
            Type::Date32,
        ),
        (
            Arc::new(TimestampMicrosecondArray::from(vec![
                Some(i64::MIN),
                None,
                Some(1),
            ])),
            Type::Timestamp(TimeUnit::Microsecond),
        ),
    ];
    let device = device();
    for (array, ty) in cases {
        // A column is an expression too; whoever holds the batch has no need of it.
        let collect = Collect {
            steps: Vec::new(),
            outputs: vec![column(0, ty)],
        };
        let got = run(&device, &collect, &batch(vec![array.clone()])).unwrap();
        assert_eq!(&got.outputs[0], &array, "{ty}");
        assert_eq!(got.outputs[0].data_type(), array.data_type());
    }
}

#[test]
fn rows_that_are_left_out_cannot_fail() {
    let data = batch(vec![Arc::new(Int64Array::from(vec![4, 0, 2, 0]))]);
    let quotient = binary(BinaryOp::Divide, integer(8, LONG), column(0, LONG), LONG);
    let not_zero = binary(
        BinaryOp::NotEqual,
        column(0, LONG),
        integer(0, LONG),
        Type::Bool,
    );
    let guarded = Collect {
        steps: Step::filter(Some(not_zero)),
        outputs: vec![quotient.clone()],
    };
    let device = device();
    let got = run(&device, &guarded, &data).unwrap();
    assert_eq!(got.outputs[0].as_primitive::<Int64Type>().values(), &[2, 4]);
    let open = Collect {
        steps: Vec::new(),
        outputs: vec![quotient],
    };
    let error = run(&device, &open, &data).unwrap_err();
    assert!(error.to_string().contains("division by zero"), "{error}");
    assert!(error.to_string().contains("row 1"), "{error}");
}

#[test]
fn a_product_that_leaves_its_digits_is_an_error() {
    let ty = Type::Decimal {
        precision: 4,
        scale: 0,
    };
    let array = Decimal128Array::from(vec![99, 100])
        .with_precision_and_scale(4, 0)
        .unwrap();
    let square = binary(BinaryOp::Multiply, column(0, ty), column(0, ty), ty);
    let collect = Collect {
        steps: Vec::new(),
        outputs: vec![square],
    };
    let error = run(&device(), &collect, &batch(vec![Arc::new(array)])).unwrap_err();
    assert!(error.to_string().contains("overflow"), "{error}");
}

#[test]
fn an_expression_without_columns_is_computed_for_every_row() {
    let data = batch(vec![Arc::new(Int64Array::from(vec![1, 2, 3]))]);
    let collect = Collect {
        steps: Vec::new(),
        outputs: vec![integer(7, LONG)],
    };
    let got = run(&device(), &collect, &data).unwrap();
    assert_eq!(got.outputs[0].as_primitive::<Int64Type>().values(), &[7; 3]);
}

#[test]
fn what_the_host_takes_by_the_rows_equals_what_the_device_writes() {
    let a = longs(3000, "mixed", 5);
    let data = batch(vec![
        Arc::new(Int64Array::from(a)),
        Arc::new(Int64Array::from(longs(3000, "mixed", 6))),
    ]);
    let mut collect = positive_sums(true);
    collect.outputs = vec![column(1, LONG)];
    let got = run(&device(), &collect, &data).unwrap();
    let rows = arrow::array::UInt32Array::from(got.rows.unwrap());
    let taken = take(data.column(1), &rows, None).unwrap();
    assert_eq!(&got.outputs[0], &taken);
    assert!(cast(&taken, &DataType::Float64).is_ok());
}
