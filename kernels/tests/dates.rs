//! Date fields and truncations against Arrow's, over days from year 1 to 9999 and
//! around every border that could be off by one.

use std::sync::Arc;

use arrow::array::types::Int32Type;
use arrow::array::{ArrayRef, AsArray, Date32Array, RecordBatch, TimestampMicrosecondArray};
use arrow::compute::{self, date_part};
use arrow::datatypes::TimeUnit;
use kernels::gpu::{HostOptions, PinnedPool, open_cuda, open_host};
use kernels::ir::{Aggregate, Call, DatePart, Expr, Function, Kind, Type};
use kernels::jit::Jit;
use kernels::launch::{AggregateRun, Number};

const DAY_US: i64 = 86_400_000_000;

/// Sum, least and largest of an expression over one column, nulls left out.
fn totals(column: ArrayRef, expr: Expr) -> [Option<i128>; 3] {
    let gpu = match std::env::var("WARPLINE_TEST_GPU") {
        Ok(ordinal) => open_cuda(ordinal.parse().expect("a number")).expect("a GPU"),
        Err(_) => open_host(HostOptions::default()),
    };
    let call = |function| Call {
        function,
        arg: Some(expr.clone()),
        filter: None,
    };
    let aggregate = Aggregate {
        steps: Vec::new(),
        keys: vec![],
        calls: vec![
            call(Function::Sum),
            call(Function::Min),
            call(Function::Max),
        ],
    };
    let pool = PinnedPool::new(&gpu, 64 << 20);
    let jit = Arc::new(Jit::new(None));
    let mut run = AggregateRun::new(gpu, jit, &pool, aggregate, Arc::default()).unwrap();
    run.add(&RecordBatch::try_from_iter([("c0", column)]).unwrap())
        .unwrap();
    let (groups, _) = run.finish().unwrap();
    [0, 1, 2].map(|call| match groups.value(call, 0).unwrap() {
        None => None,
        Some(Number::Integer(value)) => Some(value),
        Some(other) => panic!("{other:?}"),
    })
}

fn expected(values: impl Iterator<Item = Option<i128>>) -> [Option<i128>; 3] {
    let values: Vec<i128> = values.flatten().collect();
    let sum = values.iter().copied().reduce(|a, b| a + b);
    [
        sum,
        values.iter().copied().min(),
        values.iter().copied().max(),
    ]
}

/// A stride that is no multiple of a week, a month or a year, and the borders.
fn days() -> Vec<Option<i32>> {
    let mut days: Vec<Option<i32>> = (-719_162..2_932_896).step_by(97).map(Some).collect();
    for border in [0, 31, 59, 60, 365, 11_016, 11_322, -719_162, 10_957] {
        days.extend([border - 1, border, border + 1].map(Some));
    }
    days.push(None);
    days
}

fn instants() -> Vec<Option<i64>> {
    let mut instants: Vec<Option<i64>> = Vec::new();
    for (i, day) in days().into_iter().enumerate() {
        let time = (i as i64 * 7_919_777_333) % DAY_US;
        instants.push(day.map(|day| i64::from(day) * DAY_US + time));
    }
    // The last microsecond before 1970.
    instants.push(Some(-1));
    instants
}

const PARTS: [(DatePart, compute::DatePart); 10] = [
    (DatePart::Year, compute::DatePart::Year),
    (DatePart::Quarter, compute::DatePart::Quarter),
    (DatePart::Month, compute::DatePart::Month),
    (DatePart::Week, compute::DatePart::Week),
    (DatePart::Day, compute::DatePart::Day),
    (DatePart::DayOfWeek, compute::DatePart::DayOfWeekSunday0),
    (DatePart::DayOfYear, compute::DatePart::DayOfYear),
    (DatePart::Hour, compute::DatePart::Hour),
    (DatePart::Minute, compute::DatePart::Minute),
    (DatePart::Second, compute::DatePart::Second),
];

#[test]
fn fields_are_those_of_arrow() {
    let dates: ArrayRef = Arc::new(Date32Array::from(days()));
    let times: ArrayRef = Arc::new(TimestampMicrosecondArray::from(instants()));
    let micro = Type::Timestamp(TimeUnit::Microsecond);
    for (array, ty) in [(dates, Type::Date32), (times, micro)] {
        for (part, arrows) in PARTS {
            let oracle = date_part(&array, arrows).unwrap();
            let oracle = oracle.as_primitive::<Int32Type>().iter();
            let expr = Expr {
                kind: Kind::Extract(part, Arc::new(Expr::column(0, ty, true))),
                ty: Type::Int(kernels::ir::IntWidth::W32),
                nullable: true,
            };
            let got = totals(Arc::clone(&array), expr);
            assert_eq!(
                got,
                expected(oracle.map(|v| v.map(i128::from))),
                "{part:?} of {ty}"
            );
        }
    }
}

/// The start of the period as a person would find it: step back until the field before
/// differs.
#[test]
fn truncation_goes_down_also_before_1970() {
    let micro = Type::Timestamp(TimeUnit::Microsecond);
    let instants = instants();
    let array = TimestampMicrosecondArray::from(instants.clone());
    let fields = |part| {
        let parts = date_part(&array, part).unwrap();
        parts
            .as_primitive::<Int32Type>()
            .iter()
            .map(|v| v.map(i64::from))
            .collect::<Vec<_>>()
    };
    let day_of_year = fields(compute::DatePart::DayOfYear);
    let day = fields(compute::DatePart::Day);
    let monday = fields(compute::DatePart::DayOfWeekMonday0);
    let start_of_day = |v: i64| v.div_euclid(DAY_US) * DAY_US;
    for part in [
        DatePart::Year,
        DatePart::Month,
        DatePart::Week,
        DatePart::Day,
        DatePart::Hour,
        DatePart::Minute,
        DatePart::Second,
    ] {
        let oracle = instants.iter().enumerate().map(|(i, v)| {
            let v = (*v)?;
            let back = |days: Option<i64>| Some(start_of_day(v) - days? * DAY_US);
            let start = match part {
                DatePart::Year => back(day_of_year[i].map(|d| d - 1))?,
                DatePart::Month => back(day[i].map(|d| d - 1))?,
                DatePart::Week => back(monday[i])?,
                DatePart::Day => start_of_day(v),
                DatePart::Hour => v.div_euclid(3_600_000_000) * 3_600_000_000,
                DatePart::Minute => v.div_euclid(60_000_000) * 60_000_000,
                _ => v.div_euclid(1_000_000) * 1_000_000,
            };
            Some(i128::from(start))
        });
        let oracle = expected(oracle);
        let expr = Expr {
            kind: Kind::Truncate(part, Arc::new(Expr::column(0, micro, true))),
            ty: micro,
            nullable: true,
        };
        // The sum of timestamps is no timestamp; its least and largest are.
        let [_, least, largest] = totals(Arc::new(array.clone()), expr);
        assert_eq!([least, largest], [oracle[1], oracle[2]], "{part:?}");
    }
}
