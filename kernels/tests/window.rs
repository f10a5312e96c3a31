//! Windows against plain loops over the frames' definitions, on the host target, which runs
//! the very text that a GPU runs, or on a GPU.
//!
//! A block of the host target has one thread and its tiles have 8 rows, so a few dozen rows
//! are many tiles there.

use std::cmp::Ordering;
use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, Decimal128Array, Float64Array, Int32Array, Int64Array, RecordBatch,
};
use arrow::datatypes::{Decimal128Type, Float64Type, Int32Type, Int64Type, UInt64Type};
use kernels::columns::read_column;
use kernels::error::Error;
use kernels::gpu::{Gpu, HostOptions, PinnedPool, Stream, open_cuda, open_host};
use kernels::ir::{
    Bound, Expr, Frame, FrameUnit, IntWidth, Literal, Sort, SortKey, Type, Window, WindowCall,
    WindowFunction,
};
use kernels::jit::Jit;
use kernels::launch::{Loader, window_resident};

const LENGTHS: [usize; 12] = [0, 1, 2, 7, 8, 9, 31, 32, 33, 64, 257, 700];

const I32: Type = Type::Int(IntWidth::W32);
const U64: Type = Type::UInt(IntWidth::W64);
const WIDE: Type = Type::Decimal {
    precision: 38,
    scale: 2,
};

/// The host target, or with `WARPLINE_TEST_GPU=N` the GPU of that number.
fn device() -> (Arc<dyn Gpu>, Arc<Jit>) {
    let gpu = match std::env::var("WARPLINE_TEST_GPU") {
        Ok(ordinal) => open_cuda(ordinal.parse().expect("a number")).expect("a GPU"),
        Err(_) => open_host(HostOptions::default()),
    };
    (gpu, Arc::new(Jit::new(None)))
}

fn pseudo_random(row: usize, salt: u64) -> u64 {
    let x = (row as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ salt.wrapping_mul(0xd134_2543);
    (x ^ (x >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 8
}

/// Rows of a table as the model sees them.
struct Rows {
    partition: Vec<Option<i32>>,
    key: Vec<Option<f64>>,
    id: Vec<i32>,
    whole: Vec<Option<i64>>,
    wide: Vec<Option<i128>>,
    float: Vec<Option<f64>>,
}

impl Rows {
    /// `n_partitions` partitions of `n` rows; `n_keys` keys in them, of which some are NaN
    /// or one of the zeros.
    fn new(n: usize, n_partitions: u64, n_keys: u64) -> Rows {
        let null = |row: usize, salt: u64| pseudo_random(row, salt).is_multiple_of(9);
        let key = |row: usize| match pseudo_random(row, 2) % n_keys {
            0 => f64::NAN,
            1 => -0.0,
            2 => 0.0,
            other => other as f64 - 4.0,
        };
        Rows {
            partition: (0..n)
                .map(|row| (!null(row, 10)).then(|| (pseudo_random(row, 1) % n_partitions) as i32))
                .collect(),
            key: (0..n)
                .map(|row| (!null(row, 11)).then(|| key(row)))
                .collect(),
            id: (0..n as i32).collect(),
            whole: (0..n)
                .map(|row| (!null(row, 12)).then(|| (pseudo_random(row, 3) % 1000) as i64 - 500))
                .collect(),
            wide: (0..n)
                .map(|row| {
                    let value = i128::from(pseudo_random(row, 4)) << 40;
                    let value = if row % 2 == 0 { value } else { -value };
                    (!null(row, 13)).then_some(value)
                })
                .collect(),
            float: (0..n)
                .map(|row| {
                    let value = match pseudo_random(row, 5) % 50 {
                        0 => f64::NAN,
                        1 => f64::INFINITY,
                        other => other as f64 / 4.0,
                    };
                    (!null(row, 14)).then_some(value)
                })
                .collect(),
        }
    }

    fn batch(&self) -> RecordBatch {
        let wide = Decimal128Array::from(self.wide.clone());
        let wide = wide.with_precision_and_scale(38, 2).unwrap();
        let columns: [ArrayRef; 6] = [
            Arc::new(Int32Array::from(self.partition.clone())),
            Arc::new(Float64Array::from(self.key.clone())),
            Arc::new(Int32Array::from(self.id.clone())),
            Arc::new(Int64Array::from(self.whole.clone())),
            Arc::new(wide),
            Arc::new(Float64Array::from(self.float.clone())),
        ];
        let named = columns.into_iter().enumerate();
        RecordBatch::try_from_iter_with_nullable(named.map(|(i, c)| (format!("c{i}"), c, true)))
            .unwrap()
    }
}

fn column(index: usize) -> Expr {
    let ty = [I32, Type::Float64, I32, Type::I64, WIDE, Type::Float64][index];
    Expr::column(index, ty, index != 2)
}

fn compare_floats(a: f64, b: f64) -> Ordering {
    match (a.is_nan(), b.is_nan()) {
        (false, false) => a.partial_cmp(&b).unwrap(),
        (a, b) => a.cmp(&b),
    }
}

fn with_nulls<T: Copy>(
    a: Option<T>,
    b: Option<T>,
    nulls_first: bool,
    compare: impl Fn(T, T) -> Ordering,
) -> Ordering {
    match (a, b) {
        (None, None) => Ordering::Equal,
        (None, _) if nulls_first => Ordering::Less,
        (_, None) if nulls_first => Ordering::Greater,
        (None, _) => Ordering::Greater,
        (_, None) => Ordering::Less,
        (Some(a), Some(b)) => compare(a, b),
    }
}

/// A window by its definition: every question is answered by looking at all rows of the
/// partition.
struct Model<'a> {
    rows: &'a Rows,
    descending: bool,
    nulls_first: bool,
    /// Row numbers in window order.
    order: Vec<usize>,
}

impl<'a> Model<'a> {
    fn new(rows: &'a Rows, descending: bool, nulls_first: bool) -> Model<'a> {
        let mut model = Model {
            rows,
            descending,
            nulls_first,
            order: Vec::new(),
        };
        let mut order: Vec<usize> = (0..rows.id.len()).collect();
        order.sort_by(|a, b| {
            let (x, y) = (rows.partition[*a], rows.partition[*b]);
            with_nulls(x, y, true, |a, b| a.cmp(&b)).then_with(|| model.compare(*a, *b))
        });
        model.order = order;
        model
    }

    fn compare(&self, a: usize, b: usize) -> Ordering {
        with_nulls(
            self.rows.key[a],
            self.rows.key[b],
            self.nulls_first,
            |a, b| match self.descending {
                true => compare_floats(b, a),
                false => compare_floats(a, b),
            },
        )
    }

    /// The places of the partition of a place.
    fn partition(&self, place: usize) -> std::ops::Range<usize> {
        let of = |place: usize| self.rows.partition[self.order[place]];
        let first = (0..=place)
            .rev()
            .take_while(|at| of(*at) == of(place))
            .last();
        let n = (place..self.order.len())
            .take_while(|at| of(*at) == of(place))
            .count();
        first.unwrap()..place + n
    }

    /// The number of a place's group of peers in its partition.
    fn group(&self, place: usize) -> i64 {
        let partition = self.partition(place);
        let heads = (partition.start + 1..=place)
            .filter(|at| self.compare(self.order[at - 1], self.order[*at]).is_ne());
        heads.count() as i64
    }

    /// The places of a frame.
    fn frame(&self, place: usize, frame: &Frame) -> Vec<usize> {
        let groups: Vec<i64> = match frame.unit {
            FrameUnit::Groups => self.partition(place).map(|at| self.group(at)).collect(),
            _ => Vec::new(),
        };
        let partition = self.partition(place);
        let is_in = |at: &usize| {
            let (after_start, before_end) = match frame.unit {
                FrameUnit::Rows => {
                    let distance = *at as i64 - place as i64;
                    (
                        lower(&frame.start).is_none_or(|n| distance >= n),
                        lower(&frame.end).is_none_or(|n| distance <= n),
                    )
                }
                FrameUnit::Groups => {
                    let of = |at: usize| groups[at - partition.start];
                    let distance = of(*at) - of(place);
                    (
                        lower(&frame.start).is_none_or(|n| distance >= n),
                        lower(&frame.end).is_none_or(|n| distance <= n),
                    )
                }
                FrameUnit::Range => (
                    self.in_range(*at, place, &frame.start, Ordering::Less),
                    self.in_range(*at, place, &frame.end, Ordering::Greater),
                ),
            };
            after_start && before_end
        };
        self.partition(place).filter(is_in).collect()
    }

    /// Whether a row is on the right side of a bound: its order with regard to the row
    /// moved by the offset is not `wrong`.
    fn in_range(&self, at: usize, place: usize, bound: &Bound, wrong: Ordering) -> bool {
        let Some(n) = lower(bound) else {
            return true;
        };
        let (here, own) = (
            self.rows.key[self.order[at]],
            self.rows.key[self.order[place]],
        );
        let Some(own) = own else {
            // Moved by anything, a missing key stays missing.
            return with_nulls(here, None, self.nulls_first, |_, _| Ordering::Equal) != wrong;
        };
        let to = if self.descending {
            own - n as f64
        } else {
            own + n as f64
        };
        let order = with_nulls(here, Some(to), self.nulls_first, |a, b| {
            match self.descending {
                true => compare_floats(b, a),
                false => compare_floats(a, b),
            }
        });
        order != wrong
    }
}

/// How far a bound is from the current row; `None` when it is the partition's.
fn lower(bound: &Bound) -> Option<i64> {
    let n = |offset: &Expr| match &offset.kind {
        kernels::ir::Kind::Literal(Literal::Integer(n)) => *n as i64,
        kernels::ir::Kind::Literal(Literal::Float(bits)) => f64::from_bits(*bits) as i64,
        _ => unreachable!(),
    };
    match bound {
        Bound::Unbounded => None,
        Bound::Current => Some(0),
        Bound::Before(offset) => Some(-n(offset)),
        Bound::After(offset) => Some(n(offset)),
    }
}

fn window(descending: bool, nulls_first: bool, calls: Vec<WindowCall>) -> Window {
    let key = |value, descending, nulls_first| SortKey {
        value,
        descending,
        nulls_first,
    };
    Window {
        sort: Sort {
            keys: vec![
                key(column(0), false, true),
                key(column(1), descending, nulls_first),
            ],
        },
        n_partition: 1,
        n_peers: 2,
        passed: vec![column(2)],
        calls,
    }
}

fn call(function: WindowFunction, frame: Frame, ty: Type) -> WindowCall {
    WindowCall {
        function,
        frame,
        ty,
    }
}

/// Runs a window; the columns of its calls, and the row at each place.
fn run(window: &Window, rows: &Rows) -> Result<(Vec<usize>, Vec<ArrayRef>), Error> {
    let (gpu, jit) = device();
    run_on(&gpu, &jit, window, rows)
}

fn run_on(
    gpu: &Arc<dyn Gpu>,
    jit: &Arc<Jit>,
    window: &Window,
    rows: &Rows,
) -> Result<(Vec<usize>, Vec<ArrayRef>), Error> {
    let pool = PinnedPool::new(gpu, 1 << 26);
    let loader = Loader::new(gpu, &pool, window.columns(), Arc::default())?;
    let staged = loader.stage(&rows.batch())?;
    let chunk = loader.upload(&staged)?;
    let done = window_resident(Arc::clone(gpu), Arc::clone(jit), window, &chunk)?;
    assert_eq!(done.chunk.n_rows, rows.id.len());
    let stream = Stream::new(gpu)?;
    let types = std::iter::once(I32).chain(window.calls.iter().map(|call| call.ty));
    let read = types
        .enumerate()
        .map(|(at, ty)| read_column(&stream, done.chunk.column(at)?, done.chunk.n_rows, ty));
    let mut columns = read.collect::<Result<Vec<_>, _>>()?;
    let ids = columns.remove(0);
    let ids = ids.as_primitive::<Int32Type>().values().iter();
    Ok((ids.map(|id| *id as usize).collect(), columns))
}

#[test]
fn numbers_of_rows_follow_partitions_and_peers() {
    let (gpu, jit) = device();
    let calls = [
        (WindowFunction::RowNumber, U64),
        (WindowFunction::Rank, U64),
        (WindowFunction::DenseRank, U64),
        (WindowFunction::PercentRank, Type::Float64),
        (WindowFunction::CumeDist, Type::Float64),
        (WindowFunction::Ntile(3), U64),
        (WindowFunction::Ntile(1 << 40), U64),
    ];
    let calls = calls.map(|(function, ty)| call(function, Frame::WHOLE, ty));
    for n in LENGTHS {
        for (n_partitions, n_keys) in [(1, 1 << 40), (4, 9), (1 << 40, 3)] {
            let rows = Rows::new(n, n_partitions, n_keys);
            let window = window(n % 2 == 0, n % 3 == 0, calls.to_vec());
            let model = Model::new(&rows, n % 2 == 0, n % 3 == 0);
            let (order, columns) = run_on(&gpu, &jit, &window, &rows).unwrap();
            assert_eq!(order, model.order, "{n} rows");
            for place in 0..n {
                let partition = model.partition(place);
                let len = partition.len();
                let number = place - partition.start;
                let peers: Vec<usize> = partition
                    .clone()
                    .filter(|at| model.compare(model.order[*at], model.order[place]).is_eq())
                    .collect();
                let rank = peers[0] - partition.start;
                let end = peers[peers.len() - 1] + 1 - partition.start;
                let bucket = |n: usize| {
                    let sizes = (0..n.min(len)).map(|b| len / n + usize::from(b < len % n));
                    let mut ends = sizes.scan(0, |end, size| {
                        *end += size;
                        Some(*end)
                    });
                    ends.position(|end| number < end).unwrap() + 1
                };
                let whole = |at: usize| columns[at].as_primitive::<UInt64Type>().value(place);
                let part = |at: usize| columns[at].as_primitive::<Float64Type>().value(place);
                assert_eq!(whole(0), number as u64 + 1);
                assert_eq!(whole(1), rank as u64 + 1);
                assert_eq!(whole(2), model.group(place) as u64 + 1);
                let others = (len - 1).max(1);
                assert_eq!(part(3), rank as f64 / others as f64);
                assert_eq!(part(4), end as f64 / len as f64);
                assert_eq!(whole(5), bucket(3) as u64);
                assert_eq!(whole(6), number as u64 + 1);
            }
        }
    }
}

#[test]
fn values_of_other_rows_stay_in_the_partition() {
    let (gpu, jit) = device();
    let none = Expr::literal(Literal::Null, Type::I64);
    let large = Expr::literal(Literal::Integer(1 << 40), Type::I64);
    let offset = |n: i128| Expr::literal(Literal::Integer(n), Type::I64);
    let sliding = Frame {
        unit: FrameUnit::Rows,
        start: Bound::Before(offset(2)),
        end: Bound::After(offset(1)),
    };
    let distances = [-1, 1, 0, -3, i64::from(i32::MAX)];
    let numbers = [1, -1, 2, -3, 0, 9];
    for over_nulls in [false, true] {
        let distances: Vec<i64> = distances
            .into_iter()
            .filter(|distance| !over_nulls || *distance != 0)
            .collect();
        let mut calls: Vec<WindowCall> = Vec::new();
        for distance in distances.iter().copied() {
            let otherwise = if distance < 0 { &none } else { &large };
            let shift = WindowFunction::Shift {
                value: column(3),
                distance,
                otherwise: otherwise.clone(),
                over_nulls,
            };
            calls.push(call(shift, Frame::WHOLE, Type::I64));
        }
        for n in numbers {
            let nth = WindowFunction::Nth {
                value: column(3),
                n,
                over_nulls,
            };
            calls.push(call(nth, sliding.clone(), Type::I64));
        }
        for n in LENGTHS {
            let rows = Rows::new(n, 4, 1 << 40);
            let window = window(false, false, calls.clone());
            let model = Model::new(&rows, false, false);
            let (order, columns) = run_on(&gpu, &jit, &window, &rows).unwrap();
            assert_eq!(order, model.order);
            let counts = |at: &usize| !over_nulls || rows.whole[order[*at]].is_some();
            for place in 0..n {
                let got = |at: usize| {
                    let column = columns[at].as_primitive::<Int64Type>();
                    column.is_valid(place).then(|| column.value(place))
                };
                let partition = model.partition(place);
                for (at, distance) in distances.iter().copied().enumerate() {
                    let far = distance.unsigned_abs() as usize;
                    let to = match distance {
                        0 => Some(place),
                        1.. => (place + 1..partition.end).filter(counts).nth(far - 1),
                        _ => (partition.start..place).rev().filter(counts).nth(far - 1),
                    };
                    let expected = match to {
                        Some(to) => rows.whole[order[to]],
                        None => (distance >= 0).then_some(1 << 40),
                    };
                    let what = format!("{n} rows, {place} by {distance}, {over_nulls}");
                    assert_eq!(got(at), expected, "{what}");
                }
                let frame = model.frame(place, &sliding).into_iter();
                let frame: Vec<usize> = frame.filter(counts).collect();
                for (at, number) in numbers.into_iter().enumerate() {
                    let from_start = match number {
                        0 => usize::MAX,
                        n if n > 0 => n as usize - 1,
                        n => frame.len().wrapping_sub(n.unsigned_abs() as usize),
                    };
                    let expected = frame.get(from_start).and_then(|at| rows.whole[order[*at]]);
                    let what = format!("{n} rows, {place}, number {number}, {over_nulls}");
                    assert_eq!(got(distances.len() + at), expected, "{what}");
                }
            }
        }
    }
}

/// Frames of every unit: growing, shrinking, sliding, to one side, empty.
fn frames() -> Vec<Frame> {
    let mut frames = vec![Frame::WHOLE];
    for unit in [FrameUnit::Rows, FrameUnit::Groups, FrameUnit::Range] {
        let offset = |n: u32| match unit {
            FrameUnit::Range => {
                Expr::literal(Literal::Float(f64::from(n).to_bits()), Type::Float64)
            }
            _ => Expr::literal(Literal::Integer(n.into()), Type::I64),
        };
        let (before, after) = (|n| Bound::Before(offset(n)), |n| Bound::After(offset(n)));
        for (start, end) in [
            (Bound::Unbounded, Bound::Current),
            (Bound::Current, Bound::Unbounded),
            (Bound::Unbounded, before(2)),
            (before(3), after(2)),
            (before(40), before(2)),
            (after(1), after(19)),
            (after(2), Bound::Unbounded),
            (before(0), Bound::Current),
            (before(1), before(2)),
        ] {
            frames.push(Frame { unit, start, end });
        }
    }
    frames
}

#[test]
fn totals_are_those_of_the_rows_of_the_frame() {
    let (gpu, jit) = device();
    for frame in frames() {
        let average = |value, scale| WindowFunction::Average { value, scale };
        let wide_average = Type::Decimal {
            precision: 38,
            scale: 6,
        };
        let calls = vec![
            call(WindowFunction::Count(None), frame.clone(), Type::I64),
            call(
                WindowFunction::Count(Some(column(3))),
                frame.clone(),
                Type::I64,
            ),
            call(WindowFunction::Sum(column(3)), frame.clone(), Type::I64),
            call(WindowFunction::Sum(column(4)), frame.clone(), WIDE),
            call(WindowFunction::Sum(column(5)), frame.clone(), Type::Float64),
            call(WindowFunction::Min(column(3)), frame.clone(), Type::I64),
            call(WindowFunction::Max(column(5)), frame.clone(), Type::Float64),
            call(WindowFunction::Min(column(4)), frame.clone(), WIDE),
            call(average(column(5), 0), frame.clone(), Type::Float64),
            call(average(column(4), 2), frame.clone(), wide_average),
            call(WindowFunction::Sum(column(2)), frame.clone(), Type::I64),
        ];
        let sizes: &[(usize, bool, bool)] = match frame.start {
            Bound::Unbounded => &[(0, true, false), (1, true, false), (257, true, false)],
            _ => &[(60, true, false), (257, false, true)],
        };
        for (n, descending, nulls_first) in sizes.iter().copied() {
            let rows = Rows::new(n, 3, 20);
            let window = window(descending, nulls_first, calls.clone());
            let model = Model::new(&rows, descending, nulls_first);
            let (order, columns) = run_on(&gpu, &jit, &window, &rows).unwrap();
            assert_eq!(order, model.order);
            for place in 0..n {
                let of = model.frame(place, &frame);
                let of: Vec<usize> = of.into_iter().map(|at| order[at]).collect();
                let whole: Vec<i64> = of.iter().filter_map(|row| rows.whole[*row]).collect();
                let wide: Vec<i128> = of.iter().filter_map(|row| rows.wide[*row]).collect();
                let float: Vec<f64> = of.iter().filter_map(|row| rows.float[*row]).collect();
                let ids: i64 = of.iter().map(|row| i64::from(rows.id[*row])).sum();
                let at = format!("{frame}, {n} rows, place {place}");
                let integer = |at: usize| {
                    let column = columns[at].as_primitive::<Int64Type>();
                    column.is_valid(place).then(|| column.value(place))
                };
                let decimal = |at: usize| {
                    let column = columns[at].as_primitive::<Decimal128Type>();
                    column.is_valid(place).then(|| column.value(place))
                };
                let same_float = |column: usize, expected: Option<f64>| {
                    let got = columns[column].as_primitive::<Float64Type>();
                    let got = got.is_valid(place).then(|| got.value(place));
                    let same = match (got, expected) {
                        (Some(a), Some(b)) => {
                            a == b || a.is_nan() && b.is_nan() || (a - b).abs() < 1e-9 * b.abs()
                        }
                        (a, b) => a.is_none() && b.is_none(),
                    };
                    assert!(same, "{at}: {got:?} for {expected:?}");
                };
                let some = |n: usize| (n > 0).then_some(());
                assert_eq!(integer(0), Some(of.len() as i64), "{at}");
                assert_eq!(integer(1), Some(whole.len() as i64), "{at}");
                assert_eq!(
                    integer(2),
                    some(whole.len()).map(|()| whole.iter().sum()),
                    "{at}"
                );
                assert_eq!(
                    decimal(3),
                    some(wide.len()).map(|()| wide.iter().sum()),
                    "{at}"
                );
                same_float(4, some(float.len()).map(|()| float.iter().sum()));
                assert_eq!(integer(5), whole.iter().min().copied(), "{at}");
                same_float(
                    6,
                    float.iter().copied().max_by(|a, b| compare_floats(*a, *b)),
                );
                assert_eq!(decimal(7), wide.iter().min().copied(), "{at}");
                let mean = |()| float.iter().sum::<f64>() / float.len() as f64;
                same_float(8, some(float.len()).map(mean));
                let mean = |()| wide.iter().sum::<i128>() * 10_000 / wide.len() as i128;
                assert_eq!(decimal(9), some(wide.len()).map(mean), "{at}");
                assert_eq!(integer(10), some(of.len()).map(|()| ids), "{at}");
            }
        }
    }
}

#[test]
fn only_a_frame_that_does_not_fit_is_a_fault() {
    let mut rows = Rows::new(12, 1, 1 << 40);
    rows.partition = vec![Some(1); 12];
    rows.key = (0..12).map(|row| Some(f64::from(row))).collect();
    let end = 10i128.pow(38) - 1;
    // Running totals leave 128 bits; the frames of two rows do not.
    rows.wide = vec![Some(end); 12];
    let offset = |n: i128| Expr::literal(Literal::Integer(n), Type::I64);
    let frame = |n| Frame {
        unit: FrameUnit::Rows,
        start: Bound::Before(offset(n)),
        end: Bound::Current,
    };
    let sum = |n| vec![call(WindowFunction::Sum(column(4)), frame(n), WIDE)];
    let (_, columns) = run(&window(false, false, sum(0)), &rows).unwrap();
    let got = columns[0].as_primitive::<Decimal128Type>();
    assert!(got.iter().all(|value| value == Some(end)));
    let failed = run(&window(false, false, sum(1)), &rows);
    assert!(matches!(failed, Err(Error::DataFault(_))), "{failed:?}");
    rows.whole = vec![Some(i64::MAX); 12];
    let sum = |n| vec![call(WindowFunction::Sum(column(3)), frame(n), Type::I64)];
    assert!(run(&window(false, false, sum(0)), &rows).is_ok());
    assert!(run(&window(false, false, sum(1)), &rows).is_err());
}

#[test]
fn a_window_without_keys_keeps_the_order_of_rows() {
    let rows = Rows::new(50, 3, 9);
    let all = Window {
        sort: Sort { keys: vec![] },
        n_partition: 0,
        n_peers: 0,
        passed: vec![column(2)],
        calls: vec![
            call(WindowFunction::RowNumber, Frame::WHOLE, U64),
            call(WindowFunction::Count(None), Frame::WHOLE, Type::I64),
        ],
    };
    let (order, columns) = run(&all, &rows).unwrap();
    assert_eq!(order, (0..50).collect::<Vec<_>>());
    let numbers = columns[0].as_primitive::<UInt64Type>();
    assert!(numbers.values().iter().copied().eq(1..=50));
    let counts = columns[1].as_primitive::<Int64Type>();
    assert!(counts.values().iter().all(|n| *n == 50));
}
