//! Are the answers to TPC-H right?
//!
//! At scale 0.01 against the answers in `tpch/answers`. Another scale runs when
//! `WARPLINE_TPCH_SCALE` names it and `WARPLINE_TPCH_ANSWERS` says where its answers
//! are; `WARPLINE_CACHE` keeps the generated tables; `WARPLINE_TPCH_QUERIES`, such as
//! `1,6`, picks some. With the parameters of `tpch/parameters.txt` the paths are compared with
//! each other.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use engine::exec::{CachePart, Device, DeviceLimits};
use engine::explain::outcomes;
use engine::session::{Session, StageRun};
use engine::settings::{FallbackPolicy, Format, Settings, Stage, Table};
use engine::{Cancel, tpch};
use kernels::gpu::{Gpu, HostOptions, open_cuda, open_host};
use kernels::jit::Jit;
use tests::answers::{Answer, check};
use tests::parameters;
use tests::rows::Rows;

fn home() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tpch")
}

fn sql_of(query: usize) -> String {
    std::fs::read_to_string(home().join(format!("queries/q{query:02}.sql"))).unwrap()
}

fn cache() -> PathBuf {
    std::env::var_os("WARPLINE_CACHE").map_or_else(
        || Path::new(env!("CARGO_TARGET_TMPDIR")).join("warpline"),
        PathBuf::from,
    )
}

/// The device that tests run on, and its kernels.
fn gpu() -> (Arc<dyn Gpu>, Arc<Jit>) {
    let gpu = match std::env::var("WARPLINE_TEST_GPU") {
        Ok(ordinal) => open_cuda(ordinal.parse().expect("a number")).expect("a GPU"),
        Err(_) => open_host(HostOptions::default()),
    };
    (gpu, Arc::new(Jit::new(Some(cache().join("kernels")))))
}

async fn session(scale: &str, device: Option<Device>) -> Session {
    let settings = Settings {
        cache_dir: cache(),
        preview_rows: usize::MAX,
        fallback: FallbackPolicy::Fail,
        ..Settings::default()
    };
    let session = match device {
        Some(device) => Session::with_device(settings, device).unwrap(),
        None => Session::new(settings).unwrap(),
    };
    let tables: Vec<Table> = tpch::TABLES
        .iter()
        .map(|name| Table::new(*name, format!("tpch://{scale}/{name}"), Format::Parquet))
        .collect();
    session.register_tables(&tables).await.unwrap();
    session
}

#[tokio::test(flavor = "multi_thread")]
async fn all_22_answers_are_right_on_the_cpu() {
    check_all(None).await;
}

/// Every operator of every query, with fallback forbidden, on the host target or with
/// `WARPLINE_TEST_GPU=N` on the GPU of that number.
#[tokio::test(flavor = "multi_thread")]
async fn all_22_answers_are_right_on_the_device() {
    let (gpu, jit) = gpu();
    let device = |cache_part| {
        let limits = DeviceLimits {
            cache_part: CachePart(cache_part),
            ..DeviceLimits::default()
        };
        Some(Device::new(Arc::clone(&gpu), Arc::clone(&jit), limits))
    };
    check_all(device(0)).await;
    // From the second query on most columns are on the device already.
    check_all(device(60)).await;
    hot_queries_read_no_file(device(60)).await;
}

/// Seven sessions on one device at once, each with the queries in another order, with room
/// for all and with little: memory that others hold is waited for.
#[tokio::test(flavor = "multi_thread")]
async fn seven_streams_at_once_answer_as_one_does() {
    const STREAMS: usize = 7;
    let (gpu, jit) = gpu();
    for memory_bytes in [usize::MAX, 8 << 20] {
        let limits = DeviceLimits {
            memory_bytes,
            cache_part: CachePart(60),
            ..DeviceLimits::default()
        };
        let device = Device::new(Arc::clone(&gpu), Arc::clone(&jit), limits);
        let streams = (0..STREAMS).map(|stream| {
            let device = device.clone();
            tokio::spawn(async move {
                let session = session("0.01", Some(device)).await;
                let mut wrong = Vec::new();
                for turn in 0..22 {
                    // Five and 22 have no common factor, so every query has its turn.
                    let query = (5 * turn + 3 * stream) % 22 + 1;
                    if let Err(problem) = checked(&session, query, &answers("0.01")).await {
                        wrong.push(format!(
                            "stream {stream} in {memory_bytes} bytes: {problem}"
                        ));
                    }
                }
                wrong
            })
        });
        let streams: Vec<_> = streams.collect();
        let mut wrong = Vec::new();
        for stream in streams {
            wrong.extend(stream.await.expect("a stream ends"));
        }
        gpu.meter().set_limit(usize::MAX);
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }
}

/// What a table or a chunk of the least size takes, several times over.
const LITTLE_MEMORY: usize = 256 << 10;

/// The same with a quarter of the device memory that each query needs, and a sixteenth.
#[tokio::test(flavor = "multi_thread")]
async fn all_22_answers_are_right_in_little_device_memory() {
    let (gpu, jit) = gpu();
    let mut n_passes = [0; 2];
    let mut wrong = Vec::new();
    for query in 1..=22 {
        let (mut memory_bytes, mut needed) = (usize::MAX, 0);
        for part in [1, 4, 16] {
            let limits = DeviceLimits {
                memory_bytes,
                ..DeviceLimits::default()
            };
            let device = Device::new(Arc::clone(&gpu), Arc::clone(&jit), limits);
            gpu.meter().reset_peak();
            let session = session("0.01", Some(device)).await;
            let told = format!("q{query:02} in {memory_bytes} bytes");
            match checked(&session, query, &answers("0.01")).await {
                Ok(run) => {
                    let (pipelines, _) = outcomes(&run.plan);
                    let passes: u64 = pipelines.iter().map(|pipeline| pipeline.passes).sum();
                    let peak = gpu.meter().peak();
                    println!(
                        "{told}: peak {peak}, {passes} passes, {} ms",
                        run.report.elapsed_ms
                    );
                    assert!(peak <= memory_bytes, "{told}: peak {peak}");
                    if part == 1 {
                        assert_eq!(passes, 0, "{told}");
                        needed = peak;
                    } else {
                        n_passes[usize::from(part == 16)] += passes;
                    }
                }
                Err(problem) => wrong.push(format!("{told}: {problem}")),
            }
            memory_bytes = (needed / (4 * part)).max(LITTLE_MEMORY);
        }
        gpu.meter().set_limit(usize::MAX);
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(n_passes.iter().all(|n| *n > 22), "{n_passes:?}");
}

/// What was read once stays, whatever ran in between.
async fn hot_queries_read_no_file(device: Option<Device>) {
    let session = session("0.01", device).await;
    for (pass, query) in [(0, 3), (0, 10), (0, 18), (1, 3), (1, 10), (1, 18)] {
        let sql = sql_of(query);
        let stage = Stage::new(format!("q{query:02}"), sql.as_str());
        let ran = session.run_stage(&stage, &|_| {}, &Cancel::new()).await;
        let read = ran.unwrap().report.scans.len();
        assert!(pass == 0 || read == 0, "q{query:02}: {read} scans");
    }
}

/// The folder of the answers that are kept for a scale.
fn answers(scale: &str) -> PathBuf {
    home().join(format!("answers/sf{scale}"))
}

/// Runs a query and compares its rows with the answer in this folder.
async fn checked(session: &Session, query: usize, answers: &Path) -> Result<StageRun, String> {
    let name = format!("q{query:02}");
    let sql = sql_of(query);
    let answer = Answer::read(&answers.join(format!("{name}.csv"))).unwrap();
    let stage = Stage::new(name.as_str(), sql.as_str());
    let run = session.run_stage(&stage, &|_| {}, &Cancel::new()).await;
    let run = run.map_err(|error| format!("{name}: {error}"))?;
    match check(&sql, &answer, &run.report.preview) {
        Ok(()) => Ok(run),
        Err(difference) => Err(format!("{name}: {difference}")),
    }
}

async fn check_all(device: Option<Device>) {
    let scale = std::env::var("WARPLINE_TPCH_SCALE").unwrap_or_else(|_| "0.01".into());
    let answers =
        std::env::var_os("WARPLINE_TPCH_ANSWERS").map_or_else(|| answers(&scale), PathBuf::from);
    let session = session(&scale, device).await;
    let queries: Vec<usize> = match std::env::var("WARPLINE_TPCH_QUERIES") {
        Ok(list) => list
            .split(',')
            .map(|query| query.parse().unwrap())
            .collect(),
        Err(_) => (1..=22).collect(),
    };
    let mut wrong = Vec::new();
    for query in queries {
        match checked(&session, query, &answers).await {
            Ok(run) => println!(
                "q{query:02}: {} ms, peak {} MiB",
                run.report.elapsed_ms,
                run.report.peak_memory_bytes >> 20
            ),
            Err(problem) => wrong.push(problem),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Three more sets of parameters, so that nothing fits one literal: the device gives what the
/// CPU path gives.
#[tokio::test(flavor = "multi_thread")]
async fn other_parameters_have_the_same_answers_on_the_device() {
    let (gpu, jit) = gpu();
    let limits = DeviceLimits {
        cache_part: CachePart(60),
        ..DeviceLimits::default()
    };
    let device = session("0.01", Some(Device::new(gpu, jit, limits))).await;
    let cpu = session("0.01", None).await;
    let all = parameters::read(&home().join("parameters.txt")).unwrap();
    assert_eq!(all.len(), 3 * 22);
    let (mut wrong, mut n_empty) = (Vec::new(), 0);
    for parameters in &all {
        let file = home().join(format!("queries/{}.sql", parameters.query));
        let sql = std::fs::read_to_string(file).unwrap();
        let sql = parameters.apply(&sql).unwrap();
        let name = format!("{}_{}", parameters.query, parameters.set);
        let stage = Stage::new(&name, sql.as_str());
        let rows = async |session: &Session| {
            let run = session.run_stage(&stage, &|_| {}, &Cancel::new()).await;
            Rows::of(&run.map_err(|error| error.to_string())?.report.preview)
        };
        match (rows(&device).await, rows(&cpu).await) {
            (Ok(ours), Ok(theirs)) => {
                n_empty += usize::from(theirs.n_rows() == 0);
                if let Some(difference) = ours.difference(&theirs, false) {
                    wrong.push(format!("{name}: {difference}"));
                }
            }
            (ours, theirs) => wrong.push(format!("{name}: {ours:?}, CPU {theirs:?}")),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(n_empty <= 12, "{n_empty} answers are empty");
}
