//! Guests that try to hurt the host, a file each in `tests/hostile`: the first line says
//! what it tries, `meta:` is its metadata, `expect:` the exact outcome. Each gets one
//! column of five integers, 0 to 4.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use arrow::array::{ArrayRef, AsArray, Int64Array};
use arrow::datatypes::Int64Type;
use sandbox::{Argument, Budget, Compiler, Error, Limits, OnError, Runtime, Setup, Stop};

const N_ROWS: usize = 5;

/// What the runs of one fixture may take.
const LIMITS: Limits = Limits {
    memory_bytes: 8 << 20,
    call_time: Duration::from_millis(50),
    arena_bytes: 1 << 20,
};

#[derive(Default)]
struct Charged(AtomicUsize);

impl Budget for Charged {
    fn grow(&self, bytes: usize) -> bool {
        self.0.fetch_add(bytes, Ordering::Relaxed);
        true
    }

    fn shrink(&self, bytes: usize) {
        self.0.fetch_sub(bytes, Ordering::Relaxed);
    }
}

#[derive(Default)]
struct Fixture {
    meta: Vec<serde_json::Value>,
    expect: String,
    on_error: OnError,
    n_calls: usize,
    wasm: Vec<u8>,
}

fn read(path: &Path) -> Fixture {
    let text = std::fs::read_to_string(path).expect("a fixture");
    let mut fixture = Fixture {
        n_calls: 1,
        ..Fixture::default()
    };
    for line in text.lines() {
        let Some((key, value)) = line.strip_prefix(";; ").and_then(|l| l.split_once(": ")) else {
            continue;
        };
        match key {
            "meta" => fixture
                .meta
                .push(serde_json::from_str(value).expect("JSON")),
            "expect" => fixture.expect = value.to_string(),
            "on_error" => fixture.on_error = OnError::Null,
            "calls" => fixture.n_calls = value.parse().expect("a number"),
            _ => {}
        }
    }
    let wasm = wat::parse_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    fixture.wasm = match fixture.meta.is_empty() {
        true => wasm,
        false => sandbox::pack(&wasm, &fixture.meta).expect("a module"),
    };
    fixture
}

/// What came of a fixture, in words.
fn outcome(runtime: &Arc<Runtime>, fixture: &Fixture, budget: &Arc<Charged>) -> String {
    let column: ArrayRef = Arc::new(Int64Array::from_iter_values(0..N_ROWS as i64));
    let charged = Arc::clone(budget) as Arc<dyn Budget>;
    let ran = runtime
        .load(&fixture.wasm, LIMITS, charged, Stop::default())
        .and_then(|module| {
            let mut last = None;
            for _ in 0..fixture.n_calls {
                let args = [Argument::Column(ArrayRef::clone(&column))];
                last = Some(module.call(0, &args, N_ROWS, 0, fixture.on_error)?);
                assert!(
                    budget.0.load(Ordering::Relaxed) < 20 << 20,
                    "memory is not flat"
                );
            }
            Ok(last)
        });
    match ran {
        Ok(Some(array)) => shown(&array),
        Ok(None) => String::new(),
        Err(error) => redacted(&error),
    }
}

fn shown(array: &ArrayRef) -> String {
    if let Some(text) = array.as_string_opt::<i32>() {
        return format!("{:?}", text.iter().flatten().collect::<Vec<_>>());
    }
    let numbers: Vec<String> = array
        .as_primitive::<Int64Type>()
        .iter()
        .map(|value| value.map_or("NULL".to_string(), |value| value.to_string()))
        .collect();
    format!("[{}]", numbers.join(", "))
}

/// The message without the module's hash.
fn redacted(error: &Error) -> String {
    let text = error.to_string();
    match text.split_once("sha256:") {
        Some((before, after)) => format!("{before}sha256:...{}", &after[12..]),
        None => text,
    }
}

fn fixtures() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/hostile");
    let mut paths: Vec<PathBuf> = std::fs::read_dir(folder)
        .expect("the folder")
        .map(|entry| entry.expect("an entry").path())
        .collect();
    paths.sort();
    paths
}

fn runtime() -> Arc<Runtime> {
    Runtime::new(Setup {
        compiler: Compiler::Child {
            program: env!("CARGO_BIN_EXE_compile-guest").into(),
            args: Vec::new(),
        },
        cache: None,
        deterministic: false,
    })
    .expect("a sandbox")
}

#[test]
fn every_attack_ends_as_its_file_says() {
    let runtime = runtime();
    let mut wrong = Vec::new();
    for path in fixtures() {
        let fixture = read(&path);
        let budget = Arc::new(Charged::default());
        let found = outcome(&runtime, &fixture, &budget);
        if found != fixture.expect {
            wrong.push(format!(
                "{}\n  expected {}\n  found    {found}",
                path.display(),
                fixture.expect
            ));
        }
        let left = budget.0.load(Ordering::Relaxed);
        assert_eq!(
            left,
            0,
            "{} keeps {left} bytes of the budget",
            path.display()
        );
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_process_survives_ten_thousand_attacks_in_flat_memory() {
    let runtime = runtime();
    let column: ArrayRef = Arc::new(Int64Array::from_iter_values(0..N_ROWS as i64));
    // What waits for a time limit would make this a test of patience.
    let modules: Vec<_> = fixtures()
        .iter()
        .filter(|path| {
            let name = path.to_string_lossy();
            !["endless", "spins", "17_"]
                .iter()
                .any(|slow| name.contains(slow))
        })
        .filter_map(|path| {
            let budget = Arc::new(Charged::default());
            let wasm = read(path).wasm;
            runtime.load(&wasm, LIMITS, budget, Stop::default()).ok()
        })
        .collect();
    assert!(modules.len() > 20, "{}", modules.len());
    let mut after_warm_up = 0;
    for n in 0..10_000 {
        let args = [Argument::Column(ArrayRef::clone(&column))];
        let _ = modules[n % modules.len()].call(0, &args, N_ROWS, 0, OnError::Fail);
        if n == 1_000 {
            after_warm_up = resident_bytes();
        }
    }
    let grown = resident_bytes().saturating_sub(after_warm_up);
    assert!(grown < 16 << 20, "{grown} bytes more");
}

#[test]
fn a_request_to_stop_ends_a_call_that_would_go_on() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/hostile/01_endless_loop.wat");
    let patient = Limits {
        call_time: Duration::from_secs(60),
        ..LIMITS
    };
    let stop = Stop::default();
    let module = runtime()
        .load(
            &read(&path).wasm,
            patient,
            Arc::new(Charged::default()),
            stop.clone(),
        )
        .expect("a module");
    let column: ArrayRef = Arc::new(Int64Array::from_iter_values(0..N_ROWS as i64));
    let call = || {
        module.call(
            0,
            &[Argument::Column(Arc::clone(&column))],
            N_ROWS,
            0,
            OnError::Fail,
        )
    };
    let (outcome, took) = std::thread::scope(|scope| {
        let running = scope.spawn(call);
        std::thread::sleep(Duration::from_millis(30));
        let asked = Instant::now();
        stop.now();
        (running.join().expect("no panic"), asked.elapsed())
    });
    assert!(matches!(outcome, Err(Error::Stopped)), "{outcome:?}");
    assert!(took < Duration::from_secs(5), "{took:?}");
    // Later calls do not start.
    assert!(matches!(call(), Err(Error::Stopped)));
}

/// The physical memory of this process.
fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/statm").expect("Linux");
    let pages: u64 = status
        .split_whitespace()
        .nth(1)
        .and_then(|pages| pages.parse().ok())
        .expect("a number");
    pages * 4096
}
