//! Probes against nested loops over the same rows, on the host target, which runs the
//! very text that a GPU runs, or on a GPU.
//!
//! Every kind of probe, over dense and hashed tables, with and without duplicates, nulls
//! and a residual, in front of a collect and of both kinds of aggregate.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Int64Array, RecordBatch, StringArray};
use arrow::datatypes::Int64Type;
use kernels::gpu::{Gpu, HostOptions, PinnedPool, open_cuda, open_host};
use kernels::ir::{
    Aggregate, BinaryOp, Build, BuildKey, Call, Collect, Expr, Function, JoinKey, Kind, Literal,
    Probe, ProbeKind, RELATION_COLUMNS, Step, Type,
};
use kernels::jit::Jit;
use kernels::launch::{AggregateRun, CollectRun, JoinTable, Loader, Number};

const LONG: Type = Type::I64;
const KINDS: [ProbeKind; 5] = [
    ProbeKind::Matches,
    ProbeKind::MatchesOrNull,
    ProbeKind::IfAny,
    ProbeKind::IfNone,
    ProbeKind::NotIn,
];

/// The host target, or with `WARPLINE_TEST_GPU=N` the GPU of that number.
fn device() -> (Arc<dyn Gpu>, Arc<Jit>) {
    let gpu = match std::env::var("WARPLINE_TEST_GPU") {
        Ok(ordinal) => open_cuda(ordinal.parse().expect("a number")).expect("a GPU"),
        Err(_) => open_host(HostOptions::default()),
    };
    (gpu, Arc::new(Jit::new(None)))
}

/// A relation of a key and a payload; the key may be shown in several forms.
#[derive(Clone)]
struct Side {
    keys: Vec<Option<i64>>,
    values: Vec<i64>,
}

/// How keys are compared.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Form {
    /// Numbers close together: a dense table.
    Dense,
    /// Numbers far apart.
    Sparse,
    Text,
    /// The number in two parts.
    Pair,
}

fn side(n: usize, n_keys: u64, nulls: bool, salt: u64) -> Side {
    let key = |row: usize| {
        let random = random(row, salt);
        (!nulls || !random.is_multiple_of(5)).then_some((random / 7 % n_keys) as i64 - 3)
    };
    Side {
        keys: (0..n).map(key).collect(),
        values: (0..n)
            .map(|row| (random(row, salt + 1) % 100) as i64)
            .collect(),
    }
}

/// Every key once.
fn unique_side(n: usize) -> Side {
    Side {
        keys: (0..n).map(|row| Some(row as i64 - 3)).collect(),
        values: (0..n).map(|row| (random(row, 77) % 100) as i64).collect(),
    }
}

fn random(row: usize, salt: u64) -> u64 {
    let x = (row as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ salt.wrapping_mul(0xd134_2543);
    (x ^ (x >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 20
}

impl Side {
    /// Columns: row number, value, then the key's.
    fn batch(&self, form: Form) -> RecordBatch {
        let ids = Int64Array::from_iter_values(0..self.keys.len() as i64);
        let numbers = |f: &dyn Fn(i64) -> i64| -> ArrayRef {
            Arc::new(
                self.keys
                    .iter()
                    .map(|key| key.map(f))
                    .collect::<Int64Array>(),
            )
        };
        let mut columns: Vec<ArrayRef> = vec![
            Arc::new(ids),
            Arc::new(Int64Array::from(self.values.clone())),
        ];
        match form {
            Form::Dense => columns.push(numbers(&|key| key)),
            Form::Sparse => columns.push(numbers(&|key| key * 1_000_000_007)),
            Form::Text => {
                let texts = self
                    .keys
                    .iter()
                    .map(|key| key.map(|key| format!("key é {key}")));
                columns.push(Arc::new(texts.collect::<StringArray>()));
            }
            Form::Pair => {
                columns.push(numbers(&|key| key.rem_euclid(3)));
                columns.push(numbers(&|key| key.div_euclid(3) * 1_000_000_007));
            }
        }
        let named = columns.into_iter().enumerate();
        RecordBatch::try_from_iter_with_nullable(named.map(|(i, c)| (format!("c{i}"), c, true)))
            .unwrap()
    }
}

fn key_columns(form: Form) -> Vec<Expr> {
    match form {
        Form::Text => vec![Expr::column(2, Type::Utf8, true)],
        Form::Pair => vec![Expr::column(2, LONG, true), Expr::column(3, LONG, true)],
        _ => vec![Expr::column(2, LONG, true)],
    }
}

fn less(a: Expr, b: Expr) -> Expr {
    Expr {
        kind: Kind::Binary(BinaryOp::Less, Arc::new(a), Arc::new(b)),
        ty: Type::Bool,
        nullable: true,
    }
}

struct Case {
    probe: Side,
    build: Side,
    form: Form,
    kind: ProbeKind,
    null_equal: bool,
    residual: bool,
    /// Only build rows with a value below this are there.
    below: Option<i64>,
}

impl Case {
    /// Pairs of probe row and build row that come out, in order.
    fn expected(&self) -> Vec<(i64, Option<i64>)> {
        let mut pairs = Vec::new();
        for (row, key) in self.probe.keys.iter().enumerate() {
            let matches: Vec<i64> = (0..self.build.keys.len())
                .filter(|at| {
                    let same = match (key, self.build.keys[*at]) {
                        (Some(a), Some(b)) => *a == b,
                        (None, None) => self.null_equal,
                        _ => false,
                    };
                    let there = self
                        .below
                        .is_none_or(|below| self.build.values[*at] < below);
                    let passes = !self.residual || self.probe.values[row] < self.build.values[*at];
                    same && there && passes
                })
                .map(|at| at as i64)
                .collect();
            let row = row as i64;
            if self.kind == ProbeKind::NotIn {
                let there = |at: &usize| self.below.is_none_or(|b| self.build.values[*at] < b);
                let there: Vec<usize> = (0..self.build.keys.len()).filter(there).collect();
                let unknown =
                    key.is_none() || there.iter().any(|at| self.build.keys[*at].is_none());
                if there.is_empty() || (!unknown && matches.is_empty()) {
                    pairs.push((row, None));
                }
                continue;
            }
            match self.kind {
                ProbeKind::IfAny if !matches.is_empty() => pairs.push((row, None)),
                ProbeKind::IfNone | ProbeKind::MatchesOrNull if matches.is_empty() => {
                    pairs.push((row, None));
                }
                ProbeKind::IfAny | ProbeKind::IfNone | ProbeKind::NotIn => {}
                _ => pairs.extend(matches.into_iter().map(|at| (row, Some(at)))),
            }
        }
        pairs.sort_unstable();
        pairs
    }

    /// Whether the table may forget which rows it has.
    fn only_exists(&self) -> bool {
        use ProbeKind::{IfAny, IfNone, NotIn};
        !self.residual && matches!(self.kind, IfAny | IfNone | NotIn)
    }

    fn steps(&self) -> Vec<Step> {
        let of_build = |index| Expr::column(index + RELATION_COLUMNS, LONG, true);
        let keys = key_columns(self.form).into_iter().map(|key| JoinKey {
            build: key.of_relation(1),
            probe: key,
            null_equal: self.null_equal,
        });
        let residual = less(Expr::column(1, LONG, true), of_build(1));
        vec![Step::Probe(Probe {
            relation: 1,
            keys: keys.collect(),
            residual: self.residual.then_some(residual),
            kind: self.kind,
        })]
    }

    fn table(&self, device: &(Arc<dyn Gpu>, Arc<Jit>)) -> JoinTable {
        let (gpu, jit) = device;
        let batch = self.build.batch(self.form);
        let pool = PinnedPool::new(gpu, 64 << 20);
        let columns = (0..batch.num_columns()).collect();
        let loader = Loader::new(gpu, &pool, columns, Arc::default()).unwrap();
        let chunk = loader.upload(&loader.stage(&batch).unwrap()).unwrap();
        let keys = key_columns(self.form).into_iter().map(|value| BuildKey {
            value,
            null_equal: self.null_equal,
        });
        let build = Build {
            filter: self.below.map(|below| {
                let limit = Expr::literal(Literal::Integer(i128::from(below)), LONG);
                less(Expr::column(1, LONG, true), limit)
            }),
            keys: keys.collect(),
            only_exists: self.only_exists(),
        };
        JoinTable::build(gpu, jit, &build, Arc::new(chunk))
            .unwrap()
            .0
    }

    /// Rows of probe and build as the device gives them.
    fn collected(&self, device: &(Arc<dyn Gpu>, Arc<Jit>)) -> Vec<(i64, Option<i64>)> {
        let (gpu, jit) = device;
        let mut outputs = vec![Expr::column(0, LONG, true)];
        if self.kind.has_columns() {
            outputs.push(Expr::column(RELATION_COLUMNS, LONG, true));
        }
        let collect = Collect {
            steps: self.steps(),
            outputs,
        };
        let pool = PinnedPool::new(gpu, 64 << 20);
        let mut run = CollectRun::new(gpu.clone(), jit.clone(), &pool, collect, Arc::default())
            .unwrap()
            .with_tables(vec![self.table(device)]);
        let got = run.collect(&self.probe.batch(self.form)).unwrap();
        let columns: Vec<&Int64Array> = got
            .outputs
            .iter()
            .map(|array| array.as_primitive::<Int64Type>())
            .collect();
        let pairs = (0..got.n_rows).map(|row| {
            let of_build = columns.get(1).filter(|column| column.is_valid(row));
            (
                columns[0].value(row),
                of_build.map(|column| column.value(row)),
            )
        });
        let mut pairs: Vec<_> = pairs.collect();
        assert!(
            pairs.is_sorted_by_key(|pair| pair.0),
            "the source's order is lost"
        );
        pairs.sort_unstable();
        pairs
    }

    /// Count and sum of probe rows' numbers, by the value of the probe row modulo `many`.
    fn aggregated(&self, device: &(Arc<dyn Gpu>, Arc<Jit>), many: bool) -> Vec<[i128; 3]> {
        let (gpu, jit) = device;
        let key = Expr::column(if many { 0 } else { 1 }, LONG, true);
        let call = |function, arg| Call {
            function,
            arg,
            filter: None,
        };
        let aggregate = Aggregate {
            steps: self.steps(),
            keys: vec![key],
            calls: vec![
                call(Function::Count, None),
                call(Function::Sum, Some(Expr::column(0, LONG, true))),
            ],
        };
        let pool = PinnedPool::new(gpu, 64 << 20);
        let mut run = AggregateRun::new(gpu.clone(), jit.clone(), &pool, aggregate, Arc::default())
            .unwrap()
            .with_tables(vec![self.table(device)]);
        run.add(&self.probe.batch(self.form)).unwrap();
        let (groups, _) = run.finish().unwrap();
        let number = |number: Option<Number>| match number {
            Some(Number::Integer(value)) => value,
            other => panic!("{other:?}"),
        };
        let mut found: Vec<_> = (0..groups.len())
            .map(|group| {
                let values = [0, 1].map(|call| number(groups.value(call, group).unwrap()));
                [number(groups.key(0, group)), values[0], values[1]]
            })
            .collect();
        found.sort_unstable();
        found
    }

    fn check(&self, device: &(Arc<dyn Gpu>, Arc<Jit>), what: &str) {
        let expected = self.expected();
        assert_eq!(self.collected(device), expected, "{what}");
        for many in [false, true] {
            let mut groups: BTreeMap<i128, [i128; 2]> = BTreeMap::new();
            for (row, _) in &expected {
                let key = if many {
                    *row
                } else {
                    self.probe.values[*row as usize]
                };
                let group = groups.entry(i128::from(key)).or_default();
                group[0] += 1;
                group[1] += i128::from(*row);
            }
            let expected: Vec<[i128; 3]> = groups
                .into_iter()
                .map(|(key, [count, sum])| [key, count, sum])
                .collect();
            assert_eq!(
                self.aggregated(device, many),
                expected,
                "{what}, many groups: {many}"
            );
        }
    }
}

#[test]
fn every_kind_of_probe_over_every_form_of_key() {
    let device = device();
    for form in [Form::Dense, Form::Sparse, Form::Text, Form::Pair] {
        for kind in KINDS {
            for (build, name) in [
                (side(70, 40, true, 5), "duplicates and nulls"),
                (unique_side(31), "unique"),
            ] {
                for residual in [false, true] {
                    if residual && kind == ProbeKind::NotIn {
                        continue;
                    }
                    let case = Case {
                        probe: side(301, 50, true, 1),
                        build: build.clone(),
                        form,
                        kind,
                        null_equal: false,
                        residual,
                        below: None,
                    };
                    case.check(
                        &device,
                        &format!("{form:?} {kind:?} {name} residual {residual}"),
                    );
                }
            }
        }
    }
}

#[test]
fn null_equals_null_where_it_is_asked_for() {
    let device = device();
    for form in [Form::Dense, Form::Sparse, Form::Text, Form::Pair] {
        for kind in KINDS.into_iter().filter(|kind| *kind != ProbeKind::NotIn) {
            let case = Case {
                probe: side(120, 20, true, 1),
                build: side(33, 20, true, 5),
                form,
                kind,
                null_equal: true,
                residual: false,
                below: None,
            };
            case.check(&device, &format!("{form:?} {kind:?}"));
        }
    }
}

#[test]
fn lengths_around_warps_and_tiles_and_empty_sides() {
    let device = device();
    for n in [0, 1, 31, 32, 33, 2047, 2048, 2049, 5000] {
        for n_build in [0, 1, 100] {
            for kind in KINDS {
                let case = Case {
                    probe: side(n, 90, false, 1),
                    build: side(n_build, 90, false, 5),
                    form: Form::Dense,
                    kind,
                    null_equal: false,
                    residual: false,
                    below: None,
                };
                assert_eq!(
                    case.collected(&device),
                    case.expected(),
                    "{n} rows, {n_build} to look up, {kind:?}"
                );
            }
        }
    }
}

#[test]
fn rows_that_do_not_pass_the_builds_filter_are_not_there() {
    let device = device();
    for form in [Form::Dense, Form::Sparse] {
        for kind in KINDS {
            let case = Case {
                probe: side(200, 50, true, 1),
                build: side(150, 50, true, 5),
                form,
                kind,
                null_equal: false,
                residual: false,
                below: Some(40),
            };
            case.check(&device, &format!("{form:?} {kind:?}"));
        }
    }
}

/// A full join gives what a probe that keeps its rows does, and then the rows of the table's
/// relation that nothing matched.
#[test]
fn full_joins_end_with_the_rows_that_nothing_matched() {
    let device = device();
    let (gpu, jit) = &device;
    let check = |form, residual, null_equal, below, probe: Side, build: Side| {
        let what = format!(
            "{form:?} residual {residual} null_equal {null_equal} below {below:?}, {} with {}",
            probe.keys.len(),
            build.keys.len()
        );
        let case = |kind| Case {
            probe: probe.clone(),
            build: build.clone(),
            form,
            kind,
            null_equal,
            residual,
            below,
        };
        let matched = case(ProbeKind::MatchesOrNull).expected();
        let mut expected: Vec<_> = matched.iter().map(|(a, b)| (Some(*a), *b)).collect();
        let is_there = |at: &i64| below.is_none_or(|below| build.values[*at as usize] < below);
        let alone = (0..build.keys.len() as i64)
            .filter(is_there)
            .filter(|at| matched.iter().all(|(_, other)| *other != Some(*at)));
        expected.extend(alone.map(|at| (None, Some(at))));
        expected.sort_unstable();

        let full = case(ProbeKind::Full);
        let collect = Collect {
            steps: full.steps(),
            // A narrow column and a wide one of each side.
            outputs: [0, 1, RELATION_COLUMNS, RELATION_COLUMNS + 1]
                .map(|index| Expr::column(index, LONG, true))
                .to_vec(),
        };
        let pool = PinnedPool::new(gpu, 64 << 20);
        let run = CollectRun::new(gpu.clone(), jit.clone(), &pool, collect, Arc::default());
        let mut run = run.unwrap().with_tables(vec![full.table(&device)]);
        // A second run over the same table has marks of its own.
        for _ in 0..2 {
            let got = run.collect(&probe.batch(form)).unwrap();
            let column = |index: usize| got.outputs[index].as_primitive::<Int64Type>();
            let value = |index: usize, row: usize| {
                let column = column(index);
                column.is_valid(row).then(|| column.value(row))
            };
            let of = |values: &[i64], row: Option<i64>| row.map(|row| values[row as usize]);
            let mut pairs = Vec::new();
            for row in 0..got.n_rows {
                let pair = (value(0, row), value(2, row));
                assert_eq!(value(1, row), of(&probe.values, pair.0), "{what}");
                assert_eq!(value(3, row), of(&build.values, pair.1), "{what}");
                pairs.push(pair);
            }
            pairs.sort_unstable();
            assert_eq!(pairs, expected, "{what}");
        }
    };
    for form in [Form::Dense, Form::Sparse, Form::Text, Form::Pair] {
        for residual in [false, true] {
            for build in [side(70, 40, true, 5), unique_side(60)] {
                check(form, residual, false, None, side(301, 50, true, 1), build);
            }
        }
        let (probe, build) = (side(200, 50, true, 1), side(150, 50, true, 5));
        check(form, false, true, None, probe.clone(), build.clone());
        check(form, true, true, Some(40), probe, build);
    }
    for (n, n_build) in [(0, 0), (0, 100), (100, 0), (2049, 31), (31, 5000)] {
        let (probe, build) = (side(n, 900, true, 1), side(n_build, 900, true, 5));
        check(Form::Dense, false, false, None, probe, build);
    }
}

/// What a probe of these rows gives: probe row, build row, and whether it matched.
fn probed(
    device: &(Arc<dyn Gpu>, Arc<Jit>),
    case: &Case,
    build: JoinTable,
    steps: Vec<Step>,
) -> Vec<(i64, Option<i64>, bool)> {
    let (gpu, jit) = device;
    let mut outputs = vec![Expr::column(0, LONG, true)];
    if case.kind.has_columns() {
        outputs.push(Expr::column(RELATION_COLUMNS, LONG, true));
    }
    if case.kind == ProbeKind::Mark {
        outputs.push(Expr {
            kind: Kind::Matched(1),
            ty: Type::Bool,
            nullable: false,
        });
    }
    let collect = Collect { steps, outputs };
    let pool = PinnedPool::new(gpu, 64 << 20);
    let run = CollectRun::new(gpu.clone(), jit.clone(), &pool, collect, Arc::default());
    let mut run = run.unwrap().with_tables(vec![build]);
    let got = run.collect(&case.probe.batch(case.form)).unwrap();
    let rows = got.outputs[0].as_primitive::<Int64Type>();
    let found = (0..got.n_rows).map(|row| {
        let other = got.outputs.get(1);
        let build = other.and_then(|array| array.as_primitive_opt::<Int64Type>());
        let mark = other.and_then(|array| array.as_boolean_opt());
        let build = build.filter(|array| array.is_valid(row));
        (
            rows.value(row),
            build.map(|array| array.value(row)),
            mark.is_some_and(|array| array.value(row)),
        )
    });
    let mut found: Vec<_> = found.collect();
    found.sort_unstable();
    found
}

#[test]
fn marks_say_whether_a_row_matched() {
    let device = device();
    for form in [Form::Dense, Form::Sparse, Form::Text, Form::Pair] {
        for (build, residual) in [(side(70, 40, true, 5), true), (unique_side(31), false)] {
            let case = Case {
                probe: side(301, 50, true, 1),
                build,
                form,
                kind: ProbeKind::Mark,
                null_equal: false,
                residual,
                below: None,
            };
            let any = Case {
                kind: ProbeKind::IfAny,
                probe: case.probe.clone(),
                build: case.build.clone(),
                ..case
            };
            let matched = any.expected();
            let expected: Vec<_> = (0..301)
                .map(|row| (row, None, matched.contains(&(row, None))))
                .collect();
            let got = probed(&device, &case, case.table(&device), case.steps());
            assert_eq!(got, expected, "{form:?} residual {residual}");
        }
    }
}

#[test]
fn without_keys_every_pair_is_looked_at() {
    let device = device();
    let (gpu, jit) = &device;
    let kinds = [
        ProbeKind::Matches,
        ProbeKind::MatchesOrNull,
        ProbeKind::Mark,
        ProbeKind::IfAny,
        ProbeKind::IfNone,
    ];
    for (n, n_build) in [(0, 3), (5, 0), (33, 1), (300, 41)] {
        for kind in kinds {
            for residual in [false, true] {
                let case = Case {
                    probe: side(n, 50, true, 1),
                    build: side(n_build, 50, true, 5),
                    form: Form::Dense,
                    kind,
                    null_equal: false,
                    residual,
                    below: None,
                };
                let mut expected = Vec::new();
                for (row, value) in case.probe.values.iter().enumerate() {
                    let passes = |at: &usize| !residual || *value < case.build.values[*at];
                    let all: Vec<usize> = (0..n_build).filter(passes).collect();
                    let row = row as i64;
                    match kind {
                        ProbeKind::Mark => expected.push((row, None, !all.is_empty())),
                        ProbeKind::IfAny if all.is_empty() => {}
                        ProbeKind::IfNone if !all.is_empty() => {}
                        ProbeKind::IfAny | ProbeKind::IfNone => expected.push((row, None, false)),
                        ProbeKind::MatchesOrNull if all.is_empty() => {
                            expected.push((row, None, false));
                        }
                        _ => expected.extend(all.iter().map(|at| (row, Some(*at as i64), false))),
                    }
                }
                expected.sort_unstable();
                let batch = case.build.batch(case.form);
                let pool = PinnedPool::new(gpu, 64 << 20);
                let loader = Loader::new(gpu, &pool, vec![0, 1], Arc::default()).unwrap();
                let chunk = loader.upload(&loader.stage(&batch).unwrap()).unwrap();
                let build = Build {
                    filter: None,
                    keys: Vec::new(),
                    only_exists: false,
                };
                let (table, _) = JoinTable::build(gpu, jit, &build, Arc::new(chunk)).unwrap();
                let steps = case.steps().into_iter().map(|step| match step {
                    Step::Probe(probe) => Step::Probe(Probe {
                        keys: Vec::new(),
                        ..probe
                    }),
                    other => other,
                });
                let got = probed(&device, &case, table, steps.collect());
                assert_eq!(got, expected, "{n} with {n_build}, {kind:?}, {residual}");
            }
        }
    }
}

/// One row that matches all: each thread writes many rows.
#[test]
fn one_key_that_every_row_has() {
    let device = device();
    let same = |n: usize| Side {
        keys: vec![Some(4); n],
        values: (0..n as i64).collect(),
    };
    let case = Case {
        probe: same(300),
        build: same(257),
        form: Form::Dense,
        kind: ProbeKind::Matches,
        null_equal: false,
        residual: true,
        below: None,
    };
    case.check(&device, "skew");
}

/// The output of a probe is a chunk that a second pipeline reads on the device.
#[test]
fn what_a_collect_leaves_on_the_device_is_probed_in_turn() {
    let device = device();
    let (gpu, jit) = &device;
    let case = Case {
        probe: side(500, 60, true, 1),
        build: side(80, 60, true, 5),
        form: Form::Sparse,
        kind: ProbeKind::MatchesOrNull,
        null_equal: false,
        residual: false,
        below: None,
    };
    let pool = PinnedPool::new(gpu, 64 << 20);
    let collect = Collect {
        steps: case.steps(),
        outputs: vec![
            Expr::column(0, LONG, true),
            Expr::column(RELATION_COLUMNS + 1, LONG, true),
        ],
    };
    let new = |collect| {
        CollectRun::new(gpu.clone(), jit.clone(), &pool, collect, Arc::default()).unwrap()
    };
    let mut first = new(collect).with_tables(vec![case.table(&device)]);
    let batch = case.probe.batch(case.form);
    let loader = Loader::new(gpu, &pool, vec![0, 1, 2], Arc::default()).unwrap();
    let chunk = loader.upload(&loader.stage(&batch).unwrap()).unwrap();
    let left = first.collect_to_device(&chunk).unwrap();
    let rows = first.read(&left, 0).unwrap();
    assert_eq!(rows.len(), case.expected().len());

    // Rows of the probe side that found nothing, found again by their missing value.
    let mut second = new(Collect {
        steps: vec![Step::Filter(Expr {
            kind: Kind::Unary(
                kernels::ir::UnaryOp::IsNull,
                Arc::new(Expr::column(1, LONG, true)),
            ),
            ty: Type::Bool,
            nullable: false,
        })],
        outputs: vec![Expr::column(0, LONG, true)],
    });
    let got = second.collect_resident(&left).unwrap();
    let got: Vec<i64> = got.outputs[0].as_primitive::<Int64Type>().values().to_vec();
    let expected = case.expected().into_iter().filter(|(_, at)| at.is_none());
    let expected: Vec<i64> = expected.map(|(row, _)| row).collect();
    assert_eq!(got, expected);
}
