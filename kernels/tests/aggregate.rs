//! Aggregate kernels against plain arithmetic over the same arrays, on the host
//! target, which runs the very text that a GPU runs, or on a GPU.
//!
//! Lengths surround warp and tile sizes; nulls are none, all or mixed; arrays are
//! sliced so that validity starts in the middle of a byte.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BooleanArray, Decimal128Array, Float64Array, Int32Array, Int64Array,
    RecordBatch,
};
use arrow::datatypes::DataType;
use kernels::codegen::GroupOutput;
use kernels::columns::read_column;
use kernels::gpu::{Gpu, HostOptions, PinnedPool, Stream, open_cuda, open_host};
use kernels::ir::{
    Aggregate, BinaryOp, Call, Expr, Function, IntWidth, Kind, Literal, Spread, Step, Type, UnaryOp,
};
use kernels::jit::Jit;
use kernels::launch::{AggregateRun, GroupTotals, Loader, Number};

const LENGTHS: [usize; 9] = [0, 1, 31, 32, 33, 127, 128, 129, 3000];
const INT: Type = Type::Int(IntWidth::W32);
const LONG: Type = Type::I64;

/// The host target, or with `WARPLINE_TEST_GPU=N` the GPU of that number.
fn device() -> (Arc<dyn Gpu>, Arc<Jit>) {
    let gpu = match std::env::var("WARPLINE_TEST_GPU") {
        Ok(ordinal) => open_cuda(ordinal.parse().expect("a number")).expect("a GPU"),
        Err(_) => open_host(HostOptions::default()),
    };
    (gpu, Arc::new(Jit::new(None)))
}

fn start(aggregate: &Aggregate) -> kernels::error::Result<AggregateRun> {
    let (gpu, jit) = device();
    let pool = PinnedPool::new(&gpu, 64 << 20);
    AggregateRun::new(gpu, jit, &pool, aggregate.clone(), Arc::default())
}

fn batch(columns: Vec<ArrayRef>) -> RecordBatch {
    RecordBatch::try_from_iter(
        columns
            .into_iter()
            .enumerate()
            .map(|(i, c)| (format!("c{i}"), c)),
    )
    .unwrap()
}

fn run(
    aggregate: &Aggregate,
    batches: &[RecordBatch],
) -> kernels::error::Result<BTreeMap<Vec<Option<i128>>, GroupTotals>> {
    let mut run = start(aggregate)?;
    for batch in batches {
        run.add(batch)?;
    }
    let (groups, _) = run.finish()?;
    let integer = |number: Option<Number>| match number {
        Some(Number::Integer(value)) => Some(value),
        None => None,
        Some(other) => panic!("a key {other:?}"),
    };
    let mut found = BTreeMap::new();
    for group in 0..groups.len() {
        let key = (0..aggregate.keys.len())
            .map(|key| integer(groups.key(key, group)))
            .collect();
        let values = (0..aggregate.calls.len())
            .map(|call| groups.value(call, group))
            .collect::<kernels::error::Result<GroupTotals>>()?;
        assert!(found.insert(key, values).is_none(), "a group appears twice");
    }
    Ok(found)
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

fn call(function: Function, arg: Option<Expr>) -> Call {
    Call {
        function,
        arg,
        filter: None,
    }
}

fn all_of(arg: &Expr) -> Vec<Call> {
    let mut calls = vec![call(Function::Count, None)];
    for function in [Function::Count, Function::Sum, Function::Min, Function::Max] {
        calls.push(call(function, Some(arg.clone())));
    }
    calls
}

/// What the calls of `all_of` must give for these values.
fn expect(values: &[Option<i128>]) -> GroupTotals {
    let present: Vec<i128> = values.iter().flatten().copied().collect();
    let number = |v: i128| Some(Number::Integer(v));
    vec![
        number(values.len() as i128),
        number(present.len() as i128),
        if present.is_empty() {
            None
        } else {
            number(present.iter().sum())
        },
        present.iter().min().and_then(|v| number(*v)),
        present.iter().max().and_then(|v| number(*v)),
    ]
}

fn pseudo_random(row: usize, salt: u64) -> u64 {
    let mut x = (row as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
        ^ salt.wrapping_mul(0xff51_afd7_ed55_8ccd);
    x ^= x >> 33;
    x = x.wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    x ^ (x >> 29)
}

fn is_null(pattern: &str, row: usize) -> bool {
    match pattern {
        "none" => false,
        "all" => true,
        _ => pseudo_random(row, 7).is_multiple_of(3),
    }
}

/// Splits a record batch into `parts` pieces whose borders are not byte borders.
fn split(batch: &RecordBatch, parts: usize) -> Vec<RecordBatch> {
    let n = batch.num_rows();
    (0..parts)
        .map(|i| {
            let (from, to) = (i * n / parts, (i + 1) * n / parts);
            batch.slice(from, to - from)
        })
        .collect()
}

#[test]
fn one_group_over_every_length_and_null_pattern() {
    for length in LENGTHS {
        for pattern in ["none", "all", "mixed"] {
            let values: Vec<Option<i64>> = (0..length + 5)
                .map(|row| {
                    (!is_null(pattern, row)).then(|| (pseudo_random(row, 1) % 20001) as i64 - 10000)
                })
                .collect();
            let array: ArrayRef = Arc::new(Int64Array::from(values.clone()));
            // Five rows in: the validity starts inside a byte.
            let sliced = batch(vec![array]).slice(5, length);
            let aggregate = Aggregate {
                steps: Vec::new(),
                keys: vec![],
                calls: all_of(&column(0, LONG)),
            };
            let wide: Vec<Option<i128>> = values[5..].iter().map(|v| v.map(i128::from)).collect();
            for parts in [1, 2, 7] {
                let groups = run(&aggregate, &split(&sliced, parts)).unwrap();
                assert_eq!(
                    groups[&vec![]],
                    expect(&wide),
                    "{length} rows, {pattern} null, {parts} record batches"
                );
            }
        }
    }
}

#[test]
fn groups_by_small_integers_and_null() {
    let n = 2000;
    let keys: Vec<Option<i32>> = (0..n)
        .map(|row| (row % 5 != 3).then_some((pseudo_random(row, 2) % 4) as i32 - 1))
        .collect();
    let values: Vec<Option<i64>> = (0..n)
        .map(|row| (row % 7 != 0).then_some(pseudo_random(row, 3) as i64 >> 20))
        .collect();
    let data = batch(vec![
        Arc::new(Int32Array::from(keys.clone())),
        Arc::new(Int64Array::from(values.clone())),
    ]);
    let aggregate = Aggregate {
        steps: Vec::new(),
        keys: vec![column(0, INT)],
        calls: all_of(&column(1, LONG)),
    };
    let mut expected: BTreeMap<Vec<Option<i128>>, Vec<Option<i128>>> = BTreeMap::new();
    for (key, value) in keys.iter().zip(&values) {
        expected
            .entry(vec![key.map(i128::from)])
            .or_default()
            .push(value.map(i128::from));
    }
    for parts in [1, 2, 7] {
        let groups = run(&aggregate, &split(&data, parts)).unwrap();
        assert_eq!(groups.len(), expected.len());
        for (key, values) in &expected {
            assert_eq!(
                groups[key],
                expect(values),
                "group {key:?}, {parts} record batches"
            );
        }
    }
}

/// Keys far apart and many: the device's table, grown while it fills.
#[test]
fn many_groups_by_wide_keys_and_null() {
    for (n, n_keys) in [(1, 1), (33, 40), (5000, 300), (40_000, 1 << 40)] {
        let keys: Vec<Option<i64>> = (0..n)
            .map(|row| {
                (row % 11 != 3)
                    .then_some((pseudo_random(row, 12) % n_keys) as i64 * 7919 - 1_000_000)
            })
            .collect();
        let small: Vec<Option<i32>> = (0..n)
            .map(|row| (row % 13 != 5).then_some((row % 3) as i32))
            .collect();
        let values: Vec<Option<i64>> = (0..n)
            .map(|row| (row % 7 != 0).then_some(pseudo_random(row, 3) as i64 >> 3))
            .collect();
        let data = batch(vec![
            Arc::new(Int64Array::from(keys.clone())),
            Arc::new(Int32Array::from(small.clone())),
            Arc::new(Int64Array::from(values.clone())),
        ]);
        let aggregate = Aggregate {
            steps: Vec::new(),
            keys: vec![column(0, LONG), column(1, INT)],
            calls: all_of(&column(2, LONG)),
        };
        let mut expected: BTreeMap<Vec<Option<i128>>, Vec<Option<i128>>> = BTreeMap::new();
        for row in 0..n {
            let key = vec![keys[row].map(i128::from), small[row].map(i128::from)];
            expected
                .entry(key)
                .or_default()
                .push(values[row].map(i128::from));
        }
        for parts in [1, 2, 7] {
            let groups = run(&aggregate, &split(&data, parts)).unwrap();
            assert_eq!(
                groups.len(),
                expected.len(),
                "{n} rows in {parts} record batches"
            );
            for (key, values) in &expected {
                assert_eq!(
                    groups[key],
                    expect(values),
                    "group {key:?}, {parts} record batches"
                );
            }
        }
    }
}

/// 2^17 + 1 groups, each with one row, of which a wrong table loses or doubles some.
#[test]
fn a_hundred_thousand_groups_are_each_there_once() {
    let n = (1i64 << 17) + 1;
    let data = batch(vec![Arc::new(Int64Array::from_iter_values(0..n))]);
    let aggregate = Aggregate {
        steps: Vec::new(),
        keys: vec![column(0, LONG)],
        calls: vec![call(Function::Max, Some(column(0, LONG)))],
    };
    let groups = run(&aggregate, &split(&data, 2)).unwrap();
    assert_eq!(groups.len(), n as usize);
    let sum: i128 = groups
        .values()
        .map(|values| match values[0] {
            Some(Number::Integer(value)) => value,
            other => panic!("{other:?}"),
        })
        .sum();
    assert_eq!(sum, 8_590_000_128);
}

/// The first chunk has few keys and is added up apart; the second needs the table.
#[test]
fn groups_added_up_apart_meet_those_of_the_table() {
    let few = batch(vec![Arc::new(Int64Array::from(vec![1, 2, 1, 1]))]);
    let many = batch(vec![Arc::new(Int64Array::from_iter_values(
        (0..500).map(|i| i * i),
    ))]);
    let aggregate = Aggregate {
        steps: Vec::new(),
        keys: vec![column(0, LONG)],
        calls: vec![call(Function::Count, None)],
    };
    let groups = run(&aggregate, &[few, many]).unwrap();
    assert_eq!(groups.len(), 501);
    assert_eq!(groups[&vec![Some(1)]], vec![Some(Number::Integer(4))]);
    assert_eq!(groups[&vec![Some(2)]], vec![Some(Number::Integer(1))]);
    assert_eq!(groups[&vec![Some(4)]], vec![Some(Number::Integer(1))]);
}

/// One zero, one NaN: 0.0 twice, 1.0 once, NaN twice.
#[test]
fn float_keys_have_one_zero_and_one_nan() {
    let other_nan = f64::from_bits(0xfff8_0000_0000_0001);
    let values = vec![0.0, -0.0, 1.0, f64::NAN, other_nan];
    let data = batch(vec![Arc::new(Float64Array::from(values))]);
    let aggregate = Aggregate {
        steps: Vec::new(),
        keys: vec![column(0, Type::Float64)],
        calls: vec![call(Function::Count, None)],
    };
    let mut run = start(&aggregate).unwrap();
    for part in split(&data, 2) {
        run.add(&part).unwrap();
    }
    let (groups, _) = run.finish().unwrap();
    let mut found: Vec<(String, Option<Number>)> = (0..groups.len())
        .map(|group| {
            (
                format!("{:?}", groups.key(0, group)),
                groups.value(0, group).unwrap(),
            )
        })
        .collect();
    found.sort_by(|a, b| a.0.cmp(&b.0));
    let count = |n| Some(Number::Integer(n));
    assert_eq!(
        found,
        vec![
            ("Some(Float(0.0))".to_string(), count(2)),
            ("Some(Float(1.0))".to_string(), count(1)),
            ("Some(Float(NaN))".to_string(), count(2)),
        ]
    );
}

/// TPC-H Q6's shape: a filtered sum of a decimal product.
#[test]
fn a_filtered_sum_of_products_is_exact() {
    let n = 5000;
    let money = Type::Decimal {
        precision: 15,
        scale: 2,
    };
    let price: Vec<i128> = (0..n)
        .map(|row| (pseudo_random(row, 4) % 10_500_000) as i128)
        .collect();
    let discount: Vec<i128> = (0..n)
        .map(|row| (pseudo_random(row, 5) % 11) as i128)
        .collect();
    let decimal = |v: &[i128]| -> ArrayRef {
        Arc::new(
            Decimal128Array::from(v.to_vec())
                .with_precision_and_scale(15, 2)
                .unwrap(),
        )
    };
    let data = batch(vec![decimal(&price), decimal(&discount)]);
    let between = binary(
        BinaryOp::And,
        binary(
            BinaryOp::GreaterOrEqual,
            column(1, money),
            integer(5, money),
            Type::Bool,
        ),
        binary(
            BinaryOp::LessOrEqual,
            column(1, money),
            integer(7, money),
            Type::Bool,
        ),
        Type::Bool,
    );
    let product = binary(
        BinaryOp::Multiply,
        column(0, money),
        column(1, money),
        Type::Decimal {
            precision: 31,
            scale: 4,
        },
    );
    let aggregate = Aggregate {
        steps: Step::filter(Some(between)),
        keys: vec![],
        calls: vec![call(Function::Sum, Some(product))],
    };
    let expected: i128 = price
        .iter()
        .zip(&discount)
        .filter(|(_, d)| (5..=7).contains(*d))
        .map(|(p, d)| p * d)
        .sum();
    let groups = run(&aggregate, &split(&data, 2)).unwrap();
    assert_eq!(groups[&vec![]], vec![Some(Number::Integer(expected))]);
}

/// 10,000 x 9999999999999.99 passes 2^63 unscaled.
#[test]
fn a_decimal_sum_past_64_bits_does_not_wrap() {
    let value = 999_999_999_999_999i128;
    let array = Decimal128Array::from(vec![value; 10_000])
        .with_precision_and_scale(15, 2)
        .unwrap();
    let arg = column(
        0,
        Type::Decimal {
            precision: 15,
            scale: 2,
        },
    );
    let aggregate = Aggregate {
        steps: Vec::new(),
        keys: vec![],
        calls: vec![call(Function::Sum, Some(arg))],
    };
    let groups = run(&aggregate, &[batch(vec![Arc::new(array)])]).unwrap();
    assert_eq!(groups[&vec![]], vec![Some(Number::Integer(value * 10_000))]);
}

#[test]
fn a_sum_of_the_widest_decimals_is_exact_or_an_error() {
    let most = 10i128.pow(38) - 1;
    let arg = column(
        0,
        Type::Decimal {
            precision: 38,
            scale: 0,
        },
    );
    let aggregate = Aggregate {
        steps: Vec::new(),
        keys: vec![],
        calls: vec![call(Function::Sum, Some(arg))],
    };
    let data = |values: Vec<i128>| {
        let array = Decimal128Array::from(values)
            .with_precision_and_scale(38, 0)
            .unwrap();
        batch(vec![Arc::new(array)])
    };
    // Passes 128 bits on the way and comes back.
    let groups = run(&aggregate, &[data(vec![most, most, -most, -most, 7])]).unwrap();
    assert_eq!(groups[&vec![]], vec![Some(Number::Integer(7))]);
    let error = run(&aggregate, &[data(vec![most, most])]).unwrap_err();
    assert!(error.to_string().contains("128 bits"), "{error}");
}

#[test]
fn nan_is_the_largest_and_zero_has_one_sign() {
    let values = vec![Some(1.0), Some(f64::NAN), None, Some(2.0)];
    let data = batch(vec![Arc::new(Float64Array::from(values))]);
    let arg = column(0, Type::Float64);
    let calls = vec![
        call(Function::Max, Some(arg.clone())),
        call(Function::Min, Some(arg.clone())),
        call(Function::Count, Some(arg)),
    ];
    let groups = run(
        &Aggregate {
            steps: Vec::new(),
            keys: vec![],
            calls,
        },
        &split(&data, 2),
    )
    .unwrap();
    let totals = &groups[&vec![]];
    assert!(matches!(totals[0], Some(Number::Float(v)) if v.is_nan()));
    assert_eq!(totals[1], Some(Number::Float(1.0)));
    assert_eq!(totals[2], Some(Number::Integer(3)));
}

/// One of equal values goes in, wherever the group's state is and in whichever chunk the
/// first of them was.
#[test]
fn distinct_values_go_in_once() {
    let n = 4000;
    let value = |row: usize| (row % 11 != 3).then(|| (row * 7919 % 37) as i64 - 5);
    let values: Vec<Option<i64>> = (0..n).map(value).collect();
    let floats = values.iter().enumerate().map(|(row, value)| match value {
        Some(0) => Some(if row % 2 == 0 { 0.0 } else { -0.0 }),
        Some(1) => Some(f64::NAN),
        other => other.map(|v| v as f64),
    });
    let floats: Vec<Option<f64>> = floats.collect();
    for n_keys in [1, 3, 250] {
        let key = |row: usize| (row % n_keys * if n_keys > 100 { 1_000_003 } else { 1 }) as i64;
        let keys: Vec<i64> = (0..n).map(key).collect();
        let data = batch(vec![
            Arc::new(Int64Array::from(keys.clone())),
            Arc::new(Int64Array::from(values.clone())),
            Arc::new(Float64Array::from(floats.clone())),
        ]);
        let filter = binary(
            BinaryOp::Less,
            column(1, LONG),
            integer(5, LONG),
            Type::Bool,
        );
        let aggregate = Aggregate {
            steps: Vec::new(),
            keys: (n_keys > 1).then(|| column(0, LONG)).into_iter().collect(),
            calls: vec![
                call(Function::CountDistinct, Some(column(1, LONG))),
                call(Function::SumDistinct, Some(column(1, LONG))),
                call(Function::CountDistinct, Some(column(2, Type::Float64))),
                Call {
                    filter: Some(filter),
                    ..call(Function::CountDistinct, Some(column(1, LONG)))
                },
                call(Function::Count, Some(column(1, LONG))),
            ],
        };
        let mut expected: BTreeMap<Vec<Option<i128>>, GroupTotals> = BTreeMap::new();
        for (own, key) in keys.iter().enumerate().take(n_keys) {
            let rows = (0..n).filter(|row| row % n_keys == own);
            let present: Vec<i64> = rows.filter_map(|row| values[row]).collect();
            let distinct: std::collections::BTreeSet<i64> = present.iter().copied().collect();
            let small = distinct.iter().filter(|v| **v < 5).count();
            let sum: i64 = distinct.iter().sum();
            let number = |v: i64| Some(Number::Integer(i128::from(v)));
            let key = (n_keys > 1).then(|| Some(i128::from(*key)));
            expected.insert(
                key.into_iter().collect(),
                vec![
                    number(distinct.len() as i64),
                    number(sum),
                    number(distinct.len() as i64),
                    number(small as i64),
                    number(present.len() as i64),
                ],
            );
        }
        for parts in [1, 2, 9] {
            let groups = run(&aggregate, &split(&data, parts)).unwrap();
            assert_eq!(groups, expected, "{n_keys} keys in {parts} parts");
        }
    }
}

/// Variances do not cancel, however the rows are dealt to threads, groups and chunks.
#[test]
fn moments_hold_a_small_spread_around_a_large_mean() {
    let n = 3000;
    let value = |row: usize| match row % 17 {
        3 => None,
        _ => Some(1e9 + (row * 7919 % 1000) as f64 / 1000.0),
    };
    let values: Vec<Option<f64>> = (0..n).map(value).collect();
    for n_keys in [1, 3, 200] {
        // Far apart when there are many, so that they are hashed.
        let key = |row: usize| (row % n_keys * if n_keys > 100 { 1_000_003 } else { 1 }) as i64;
        let keys: Vec<i64> = (0..n).map(key).collect();
        let data = batch(vec![
            Arc::new(Int64Array::from(keys.clone())),
            Arc::new(Float64Array::from(values.clone())),
        ]);
        let aggregate = Aggregate {
            steps: Vec::new(),
            keys: (n_keys > 1).then(|| column(0, LONG)).into_iter().collect(),
            calls: vec![call(Function::Moments, Some(column(1, Type::Float64)))],
        };
        for parts in [1, 2, 7] {
            let groups = run(&aggregate, &split(&data, parts)).unwrap();
            assert_eq!(groups.len(), n_keys);
            for (group, totals) in &groups {
                let of_group = |row: &usize| group.first() != Some(&Some(i128::from(keys[*row])));
                let left_out = |row: &usize| !group.is_empty() && of_group(row);
                let own: Vec<f64> = (0..n)
                    .filter(|row| !left_out(row))
                    .filter_map(|row| values[row])
                    .collect();
                let mean = own.iter().sum::<f64>() / own.len() as f64;
                let m2: f64 = own.iter().map(|v| (v - mean) * (v - mean)).sum();
                let Some(Number::Moments(got)) = totals[0] else {
                    panic!("{totals:?}");
                };
                assert_eq!(got.n, own.len() as u64);
                assert!((got.mean - mean).abs() <= 1e-5, "{} {mean}", got.mean);
                assert!((got.m2 - m2).abs() <= 1e-6 * m2, "{} {m2}", got.m2);
            }
        }
    }
}

#[test]
fn moments_of_what_is_no_number_or_missing() {
    let aggregate = Aggregate {
        steps: Vec::new(),
        keys: vec![],
        calls: vec![call(Function::Moments, Some(column(0, Type::Float64)))],
    };
    let moments = |values: Vec<Option<f64>>| {
        let data = batch(vec![Arc::new(Float64Array::from(values))]);
        match run(&aggregate, &split(&data, 2)).unwrap()[&vec![]][0] {
            Some(Number::Moments(moments)) => Some(moments),
            None => None,
            other => panic!("{other:?}"),
        }
    };
    let both = [false, true].map(|is_sample| Spread {
        is_sample,
        is_root: false,
    });
    let spread = |values: &[Option<f64>]| {
        let moments = moments(values.to_vec());
        both.map(|spread| moments.and_then(|moments| moments.spread(spread)))
    };
    assert_eq!(spread(&[None, None]), [None, None]);
    assert_eq!(spread(&[None, Some(5.0)]), [Some(0.0), None]);
    assert_eq!(spread(&[Some(1.0), Some(3.0)]), [Some(1.0), Some(2.0)]);
    assert_eq!(spread(&[Some(0.1), Some(0.1), Some(0.1)]), [Some(0.0); 2]);
    for odd in [f64::NAN, f64::INFINITY] {
        let got = spread(&[Some(1.0), Some(odd), Some(2.0)]);
        assert!(got.iter().all(|v| v.is_some_and(f64::is_nan)), "{got:?}");
    }
}

#[test]
fn or_with_one_true_and_one_unknown_keeps_the_row() {
    let i = Int32Array::from(vec![Some(10), Some(10), None, None, Some(5)]);
    let b = Int32Array::from(vec![None, Some(200), Some(200), None, Some(5)]);
    let data = batch(vec![Arc::new(i), Arc::new(b)]);
    let filter = binary(
        BinaryOp::Or,
        binary(
            BinaryOp::Equal,
            column(0, INT),
            integer(10, INT),
            Type::Bool,
        ),
        binary(
            BinaryOp::Equal,
            column(1, INT),
            integer(200, INT),
            Type::Bool,
        ),
        Type::Bool,
    );
    let aggregate = Aggregate {
        steps: Step::filter(Some(filter)),
        keys: vec![],
        calls: vec![call(Function::Count, None)],
    };
    for parts in [1, 2, 5] {
        let groups = run(&aggregate, &split(&data, parts)).unwrap();
        assert_eq!(groups[&vec![]], vec![Some(Number::Integer(3))]);
    }
}

#[test]
fn not_in_a_list_with_null_is_never_true() {
    let data = batch(vec![Arc::new(Int32Array::from(vec![
        Some(1),
        Some(2),
        None,
    ]))]);
    let filter = Expr {
        kind: Kind::InList {
            arg: Arc::new(column(0, INT)),
            items: vec![integer(2, INT), Expr::literal(Literal::Null, INT)],
            negated: true,
        },
        ty: Type::Bool,
        nullable: true,
    };
    let aggregate = Aggregate {
        steps: Step::filter(Some(filter)),
        keys: vec![],
        calls: vec![call(Function::Count, None)],
    };
    let groups = run(&aggregate, &[data]).unwrap();
    assert_eq!(groups[&vec![]], vec![Some(Number::Integer(0))]);
}

#[test]
fn a_guarded_division_does_not_fail_and_an_unguarded_one_names_the_row() {
    let data = batch(vec![Arc::new(Int32Array::from(vec![4, 2, 0, 0]))]);
    let quotient = binary(BinaryOp::Divide, integer(8, INT), column(0, INT), INT);
    let guarded = Expr {
        kind: Kind::Case {
            branches: vec![(
                binary(
                    BinaryOp::NotEqual,
                    column(0, INT),
                    integer(0, INT),
                    Type::Bool,
                ),
                quotient.clone(),
            )],
            otherwise: None,
        },
        ty: INT,
        nullable: true,
    };
    let sum = |arg: Expr| Aggregate {
        steps: Vec::new(),
        keys: vec![],
        calls: vec![call(Function::Sum, Some(arg))],
    };
    let groups = run(&sum(guarded), std::slice::from_ref(&data)).unwrap();
    assert_eq!(groups[&vec![]], vec![Some(Number::Integer(6))]);
    let error = run(&sum(quotient), &[data]).unwrap_err();
    assert!(error.to_string().contains("division by zero"), "{error}");
    assert!(error.to_string().contains("row 2"), "{error}");
}

#[test]
fn integer_arithmetic_that_leaves_its_type_is_an_error() {
    let data = batch(vec![Arc::new(Int64Array::from(vec![1, i64::MAX]))]);
    let plus_one = binary(BinaryOp::Add, column(0, LONG), integer(1, LONG), LONG);
    let aggregate = Aggregate {
        steps: Vec::new(),
        keys: vec![],
        calls: vec![call(Function::Max, Some(plus_one))],
    };
    let error = run(&aggregate, &[data]).unwrap_err();
    assert!(error.to_string().contains("integer overflow"), "{error}");
}

#[test]
fn a_call_with_a_filter_counts_only_its_rows() {
    let data = batch(vec![
        Arc::new(Int32Array::from(vec![1, 2, 3, 4])),
        Arc::new(BooleanArray::from(vec![
            Some(true),
            None,
            Some(false),
            Some(true),
        ])),
    ]);
    let mut sum = call(Function::Sum, Some(column(0, INT)));
    sum.filter = Some(column(1, Type::Bool));
    let mut none = call(Function::Sum, Some(column(0, INT)));
    none.filter = Some(Expr {
        kind: Kind::Unary(UnaryOp::IsNull, Arc::new(column(0, INT))),
        ty: Type::Bool,
        nullable: false,
    });
    let aggregate = Aggregate {
        steps: Vec::new(),
        keys: vec![],
        calls: vec![sum, none, call(Function::Count, None)],
    };
    let groups = run(&aggregate, &split(&data, 2)).unwrap();
    assert_eq!(
        groups[&vec![]],
        vec![Some(Number::Integer(5)), None, Some(Number::Integer(4))]
    );
}

#[test]
fn types_without_a_device_form_are_refused() {
    let refused = kernels::columns::type_of(&DataType::LargeBinary).unwrap_err();
    assert!(refused.message.contains("LargeBinary"), "{refused}");
}

/// Groups as columns that stay on the device: dense for keys that lie close together,
/// hashed for others, and in several launches.
#[test]
fn groups_become_columns() {
    let (gpu, jit) = device();
    let n = 5000;
    for (spread, first_rows) in [(2, 1 << 22), (1_000_003, 1 << 22), (1_000_003, 100)] {
        let keys: Vec<Option<i64>> = (0..n)
            .map(|row| (row % 11 != 3).then_some((row * 7919 % 1777 - 5) * spread))
            .collect();
        let values: Vec<Option<i64>> = (0..n)
            .map(|row| (row % 5 != 0).then_some(row - 2500))
            .collect();
        let batch = RecordBatch::try_from_iter_with_nullable([
            (
                "k",
                Arc::new(Int64Array::from(keys.clone())) as ArrayRef,
                true,
            ),
            (
                "v",
                Arc::new(Int64Array::from(values.clone())) as ArrayRef,
                true,
            ),
        ])
        .unwrap();
        let call = |function, arg| Call {
            function,
            arg,
            filter: None,
        };
        let v = Expr::column(1, Type::I64, true);
        let aggregate = Aggregate {
            steps: Vec::new(),
            keys: vec![Expr::column(0, Type::I64, true)],
            calls: vec![
                call(Function::Count, None),
                call(Function::Sum, Some(v.clone())),
                call(Function::Max, Some(v.clone())),
                call(Function::Count, Some(v)),
            ],
        };
        let pool = PinnedPool::new(&gpu, 64 << 20);
        let loader = Loader::new(&gpu, &pool, vec![0, 1], Arc::default()).unwrap();
        let chunk = loader.upload(&loader.stage(&batch).unwrap()).unwrap();
        let mut run = AggregateRun::new(gpu.clone(), jit.clone(), &pool, aggregate, Arc::default())
            .unwrap()
            .with_first_rows(first_rows);
        run.add_all(&chunk).unwrap();
        assert!(run.is_on_device());
        let float = Type::Float64;
        let outputs = [
            (
                GroupOutput::Key {
                    key: 0,
                    range: None,
                },
                Type::I64,
            ),
            (GroupOutput::Call(0), Type::I64),
            (GroupOutput::Call(1), Type::I64),
            (GroupOutput::Call(2), Type::I64),
            (
                GroupOutput::Average {
                    sum: 1,
                    count: 3,
                    scale: 0,
                },
                float,
            ),
        ];
        let columns = run.columns(&outputs).unwrap();
        let stream = Stream::new(&gpu).unwrap();
        let read = |index: usize, ty| {
            read_column(&stream, columns.column(index).unwrap(), columns.n_rows, ty).unwrap()
        };
        let longs: Vec<ArrayRef> = (0..4).map(|index| read(index, Type::I64)).collect();
        let average = read(4, float);
        let long = |index: usize, row: usize| {
            let array: &Int64Array = longs[index].as_primitive();
            array.is_valid(row).then(|| array.value(row))
        };
        let mut got: Vec<_> = (0..columns.n_rows)
            .map(|row| {
                let average: &Float64Array = average.as_primitive();
                let average = average.is_valid(row).then(|| average.value(row));
                (
                    long(0, row),
                    long(1, row),
                    long(2, row),
                    long(3, row),
                    average,
                )
            })
            .collect();
        got.sort_by(|a, b| a.partial_cmp(b).unwrap());

        let mut groups: BTreeMap<Option<i64>, Vec<Option<i64>>> = BTreeMap::new();
        for (key, value) in keys.iter().zip(&values) {
            groups.entry(*key).or_default().push(*value);
        }
        let expected: Vec<_> = groups
            .into_iter()
            .map(|(key, values)| {
                let there: Vec<i64> = values.iter().flatten().copied().collect();
                let any = !there.is_empty();
                let sum: i64 = there.iter().sum();
                (
                    key,
                    Some(values.len() as i64),
                    any.then_some(sum),
                    there.iter().max().copied(),
                    any.then(|| sum as f64 / there.len() as f64),
                )
            })
            .collect();
        assert_eq!(got, expected, "spread {spread}, {first_rows} rows first");
    }
}

/// Extremes of values that need 128 bits, in one group, few and many.
#[test]
fn extremes_of_128_bit_values() {
    let n = 3000;
    let wide = |row: usize| {
        let high = i128::from(pseudo_random(row, 5) as i64) << 60;
        (row % 6 != 1).then_some(high + row as i128)
    };
    let values: Vec<Option<i128>> = (0..n).map(wide).collect();
    let array = Decimal128Array::from(values.clone());
    let array = array.with_precision_and_scale(38, 0).unwrap();
    let ty = Type::Decimal {
        precision: 38,
        scale: 0,
    };
    for n_groups in [1, 3, 700] {
        let keys = Int64Array::from_iter_values((0..n).map(|row| (row % n_groups) as i64));
        let data = batch(vec![Arc::new(keys), Arc::new(array.clone())]);
        let arg = Some(column(1, ty));
        let aggregate = Aggregate {
            steps: Vec::new(),
            keys: vec![column(0, LONG)],
            calls: vec![
                call(Function::Min, arg.clone()),
                call(Function::Max, arg.clone()),
            ],
        };
        for parts in [1, 7] {
            let groups = run(&aggregate, &split(&data, parts)).unwrap();
            assert_eq!(groups.len(), n_groups);
            for (key, got) in groups {
                let group = key[0].unwrap() as usize;
                let own = || (group..n).step_by(n_groups).filter_map(|row| values[row]);
                let expected = [own().min(), own().max()];
                let expected = expected.map(|v| v.map(Number::Integer));
                assert_eq!(got, expected, "group {group} of {n_groups}, {parts} parts");
            }
        }
    }
}
