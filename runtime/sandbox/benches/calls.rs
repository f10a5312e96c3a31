//! What the sandbox costs: `cargo bench -p sandbox`.
//!
//! The model is: a call costs a fixed time, a copy of its columns in and out, and its rows.
//! Each function runs as plain Rust over the same arrays and as a guest; both times include
//! making the column of results. Figures are the shortest of many runs, so they are about
//! the code and not about what else the machine does. Nothing is asserted.

use std::hint::black_box;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow::array::{
    Array, ArrayRef, ArrowPrimitiveType, AsArray, PrimitiveArray, StringArray, StringBuilder,
};
use arrow::datatypes::{Decimal128Type, Float64Type, Int64Type};
use sandbox::{Argument, Compiler, Limits, Module, OnError, Runtime, Setup, Stop, Type, Unbounded};
use udf_sdk::{Decimal, StrWriter};

const SIZES: [usize; 3] = [1_024, 8_192, 65_536];
const PATIENCE: Duration = Duration::from_millis(200);

type Native = Box<dyn Fn(&[ArrayRef]) -> ArrayRef>;

fn two<T: ArrowPrimitiveType>(f: impl Fn(T::Native, T::Native) -> T::Native + 'static) -> Native {
    Box::new(move |args| {
        let (a, b) = (args[0].as_primitive::<T>(), args[1].as_primitive::<T>());
        let made: PrimitiveArray<T> =
            arrow::compute::binary(a, b, &f).expect("columns of one length");
        Arc::new(made)
    })
}

fn text(f: impl Fn(&str, &mut StringBuilder) + 'static) -> Native {
    Box::new(move |args| {
        let column = args[0].as_string::<i32>();
        let mut out = StringBuilder::with_capacity(column.len(), column.value_data().len());
        for value in column.iter().flatten() {
            f(value, &mut out);
            out.append_value("");
        }
        Arc::new(out.finish())
    })
}

fn functions() -> Vec<(&'static str, Native)> {
    vec![
        ("add", two::<Int64Type>(udf_fixture::add)),
        ("scale", two::<Float64Type>(|x, k| x * k)),
        ("gcd", two::<Int64Type>(udf_fixture::gcd)),
        (
            "with_tax",
            Box::new(|args: &[ArrayRef]| -> ArrayRef {
                let prices = args[0].as_primitive::<Decimal128Type>();
                let taxed: PrimitiveArray<Decimal128Type> = prices
                    .unary(|cents| udf_fixture::with_tax(Decimal::from_unscaled(cents)).unscaled());
                Arc::new(taxed.with_precision_and_scale(15, 2).expect("a decimal"))
            }),
        ),
        (
            "n_bytes",
            Box::new(|args: &[ArrayRef]| -> ArrayRef {
                let bytes = args[0].as_binary::<i32>();
                let lengths = bytes.iter().map(|b| b.map(udf_fixture::n_bytes));
                Arc::new(lengths.collect::<arrow::array::Int32Array>())
            }),
        ),
        (
            "first_word",
            text(|value, out| {
                let mut word = StrWriter::new();
                udf_fixture::first_word(value, &mut word);
                use std::fmt::Write;
                let _ = out.write_str(word.as_str());
            }),
        ),
        (
            "first_piece",
            text(|value, out| {
                use std::fmt::Write;
                let _ = out.write_str(udf_fixture::first_piece(value));
            }),
        ),
    ]
}

/// Columns that the functions meet in practice: small integers, two words of text.
fn column(kind: &Type, n: usize, seed: u64) -> ArrayRef {
    match kind {
        Type::Utf8 => Arc::new(StringArray::from_iter_values(
            (0..n).map(|i| format!("word{} of {i}", i as u64 * seed % 1_000)),
        )),
        Type::I64 => Arc::new(PrimitiveArray::<Int64Type>::from_iter_values(
            (0..n as i64).map(|i| i * seed as i64 % 10_007 + 1),
        )),
        kind => sandbox::sample::column(kind, n, seed, false),
    }
}

fn module(runtime: &Arc<Runtime>, wasm: &[u8], limits: Limits) -> Arc<Module> {
    runtime
        .load(wasm, limits, Arc::new(Unbounded), Stop::default())
        .expect("a module")
}

/// The shortest of many runs.
fn shortest(run: impl Fn()) -> Duration {
    let started = Instant::now();
    let mut shortest = Duration::MAX;
    while started.elapsed() < PATIENCE {
        let clock = Instant::now();
        run();
        shortest = shortest.min(clock.elapsed());
    }
    shortest
}

fn main() {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../udf-sdk/fixture/fixture.wasm"
    );
    let wasm = std::fs::read(path).expect("the checked-in module");
    let cache = Path::new(env!("CARGO_TARGET_TMPDIR")).join("machine-code");
    let setup = || Setup {
        compiler: Compiler::InProcess,
        cache: Some(&cache),
        deterministic: false,
    };
    let clock = Instant::now();
    let cold = Runtime::new(Setup {
        cache: None,
        ..setup()
    })
    .expect("a sandbox");
    module(&cold, &wasm, Limits::default());
    let from_wasm = clock.elapsed();
    module(
        &Runtime::new(setup()).expect("a sandbox"),
        &wasm,
        Limits::default(),
    );
    let clock = Instant::now();
    let runtime = Runtime::new(setup()).expect("a sandbox");
    let fixture = module(&runtime, &wasm, Limits::default());
    let from_cache = clock.elapsed();

    println!("| function | rows | native ns/row | guest ns/row | guest / native |");
    println!("|---|---|---|---|---|");
    for (name, native) in functions() {
        let at = fixture.find(name).expect("a function of the fixture");
        let kinds: Vec<Type> = fixture
            .function(at)
            .args
            .iter()
            .map(|a| a.kind.clone())
            .collect();
        for n in SIZES {
            let columns: Vec<ArrayRef> = kinds
                .iter()
                .enumerate()
                .map(|(i, kind)| column(kind, n, 7 + i as u64))
                .collect();
            let args: Vec<Argument> = columns.iter().cloned().map(Argument::Column).collect();
            let outside = shortest(|| {
                black_box(native(black_box(&columns)));
            });
            let inside = shortest(|| {
                let made = fixture.call(at, black_box(&args), n, 0, OnError::Fail);
                black_box(made.expect("a result"));
            });
            let per_row = |time: Duration| time.as_nanos() as f64 / n as f64;
            println!(
                "| {name} | {n} | {:.2} | {:.2} | {:.2} |",
                per_row(outside),
                per_row(inside),
                per_row(inside) / per_row(outside)
            );
        }
    }

    println!("\n| what | time |\n|---|---|");
    let at = fixture.find("add").expect("a function of the fixture");
    let one = [column(&Type::I64, 1, 1), column(&Type::I64, 1, 2)].map(Argument::Column);
    let fixed = shortest(|| {
        black_box(
            fixture
                .call(at, &one, 1, 0, OnError::Fail)
                .expect("a result"),
        );
    });
    println!("| a call of one row, all included | {fixed:?} |");
    let fresh = shortest(|| {
        fixture.drop_idle();
        black_box(
            fixture
                .call(at, &one, 1, 0, OnError::Fail)
                .expect("a result"),
        );
    });
    println!(
        "| a new instance for that call, and the old one dropped | {:?} |",
        fresh - fixed
    );
    println!(
        "| loading the {} KiB module from .wasm | {from_wasm:?} |",
        wasm.len() >> 10
    );
    println!("| the same from the cache of machine code | {from_cache:?} |");
    let (p50, p99) = stops(&runtime);
    println!("| ending an endless loop after its limit, p50 / p99 | {p50:?} / {p99:?} |");

    println!("\n| threads | add, million rows/s |\n|---|---|");
    let columns = [column(&Type::I64, 8_192, 1), column(&Type::I64, 8_192, 2)];
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let mut threads = 1;
    while threads <= cores {
        let rate = rate(&fixture, at, &columns, threads);
        println!("| {threads} | {rate:.0} |");
        threads *= 2;
    }
}

/// How long after its limit of 20 ms an endless loop goes on.
fn stops(runtime: &Arc<Runtime>) -> (Duration, Duration) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/hostile/01_endless_loop.wat");
    let text = std::fs::read_to_string(path).expect("a fixture");
    let meta = text
        .lines()
        .find_map(|line| line.strip_prefix(";; meta: "))
        .map(|meta| serde_json::from_str(meta).expect("JSON"))
        .expect("metadata");
    let wasm = sandbox::pack(&wat::parse_str(&text).expect("a module"), &[meta]).expect("packed");
    let limit = Duration::from_millis(20);
    let limits = Limits {
        call_time: limit,
        ..Limits::default()
    };
    let endless = module(runtime, &wasm, limits);
    let args = [Argument::Column(column(&Type::I64, 1, 1))];
    let mut late: Vec<Duration> = (0..100)
        .map(|_| {
            let clock = Instant::now();
            let _ = black_box(endless.call(0, &args, 1, 0, OnError::Fail));
            clock.elapsed().saturating_sub(limit)
        })
        .collect();
    late.sort();
    (late[50], late[99])
}

/// Million rows a second over all threads.
fn rate(module: &Arc<Module>, at: usize, columns: &[ArrayRef; 2], threads: usize) -> f64 {
    let args = columns.clone().map(Argument::Column);
    let started = Instant::now();
    let n_calls: usize = std::thread::scope(|scope| {
        let running: Vec<_> = (0..threads)
            .map(|_| {
                scope.spawn(|| {
                    let mut n = 0;
                    while started.elapsed() < PATIENCE * 3 {
                        let made = module.call(at, &args, columns[0].len(), 0, OnError::Fail);
                        black_box(made.expect("a result"));
                        n += 1;
                    }
                    n
                })
            })
            .collect();
        running
            .into_iter()
            .map(|one| one.join().expect("no panic"))
            .sum()
    });
    (n_calls * columns[0].len()) as f64 / started.elapsed().as_secs_f64() / 1e6
}
