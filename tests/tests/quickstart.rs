//! Does the first batch that a user runs go to the device as a whole, with right answers?
//!
//! The quickstart's own text through the host target: Q1 and Q6 against the known answers,
//! the sums by order and their bands against the CPU path. Only the user function may make
//! anything fall back.

use std::path::Path;
use std::sync::{Arc, Mutex};

use arrow::array::RecordBatch;
use arrow::util::pretty::pretty_format_batches;
use batch_specs::{GpuInfo, LoadOptions, Loaded};
use engine::exec::DeviceLimits;
use kernels::gpu::{HostOptions, open_cuda, open_host};
use kernels::jit::Jit;
use lifecycle::{
    Cancel, Compiler, Device, GpuSource, Machine, Observer, Place, Request, RunReport, StageRun,
    State,
};
use tests::answers::{Answer, check};

/// The rows of each stage.
#[derive(Default)]
struct Results(Mutex<Vec<Vec<RecordBatch>>>);

impl Observer for Results {
    fn table_generated(&self, _table: &str, _n_parts_done: usize, _n_parts: usize) {}

    fn stage_started(&self, _name: &str) {}

    fn stage_ended(&self, _stage: &StageRun, rows: &[RecordBatch]) {
        self.0.lock().expect("no holder panics").push(rows.to_vec());
    }
}

/// The host target, or with `WARPLINE_TEST_GPU=N` the GPU of that number.
fn device() -> Device {
    let gpu = match std::env::var("WARPLINE_TEST_GPU") {
        Ok(ordinal) => open_cuda(ordinal.parse().expect("a number")).expect("a GPU"),
        Err(_) => open_host(HostOptions::default()),
    };
    Device::new(gpu, Arc::new(Jit::new(None)), DeviceLimits::default())
}

/// The quickstart at scale 0.01, for a machine with a GPU.
fn load(accelerator: &str) -> Loaded {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../batch-specs/quickstart.yaml");
    let text = std::fs::read_to_string(path).expect("the quickstart");
    let module =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/price_band/price_band.wasm");
    let module = module.canonicalize().expect("the example's module");
    let gpu = GpuInfo {
        name: "NVIDIA L4".into(),
        memory_mib: 23_034,
    };
    let options = LoadOptions {
        sets: vec![
            "tables[0].location=tpch://0.01/lineitem".into(),
            format!("udfs[0].module={}", module.display()),
            format!("accelerator.type={accelerator}"),
        ],
        machine: Some(batch_specs::Machine {
            cores: 4,
            memory_mib: 16_384,
            gpus: vec![gpu],
        }),
        ..LoadOptions::default()
    };
    batch_specs::load(&text, &options)
}

async fn run(accelerator: &str, device: Option<&Device>) -> (RunReport, Vec<Vec<RecordBatch>>) {
    let loaded = load(accelerator);
    assert!(loaded.spec.is_some(), "{:?}", loaded.problems);
    let request = Request {
        loaded: &loaded,
        machine: Machine::detect(),
        gpu: device.map(|device| device as &dyn GpuSource),
        guest_compiler: &Compiler::InProcess,
        preview_rows: 1_000,
        attempt: None,
    };
    let results = Results::default();
    let report = lifecycle::run(request, Cancel::new(), &results).await;
    assert_eq!(report.state, State::Succeeded, "{:?}", report.error);
    (report, results.0.into_inner().expect("no holder panics"))
}

#[tokio::test(flavor = "multi_thread")]
async fn the_quickstart_runs_whole_on_the_device_and_answers_rightly() {
    let device = device();
    let (report, results) = run("l4", Some(&device)).await;
    assert_eq!(report.stages.len(), 4);
    assert_eq!(report.placement, None);
    // What the user function needs runs on the CPU, and nothing else does.
    for fallback in &report.fallbacks {
        assert_eq!(fallback.stage.as_deref(), Some("bands"), "{fallback:?}");
    }
    let mut codes = report
        .fallbacks
        .iter()
        .map(|f| f.fallback.reason.code.as_str());
    assert!(
        codes.any(|code| code == "user-function"),
        "{:?}",
        report.fallbacks
    );
    let function = &report.udfs[0].functions[0];
    assert_eq!((function.name.as_str(), function.traps), ("price_band", 0));
    assert!(function.rows > 1_000, "{function:?}");
    for stage in &report.stages {
        assert!(!stage.pipelines.is_empty(), "{stage:?}");
    }

    let tpch = Path::new(env!("CARGO_MANIFEST_DIR")).join("tpch");
    for (stage, query) in ["q01", "q06"].into_iter().enumerate() {
        let sql = tpch.join(format!("queries/{query}.sql"));
        let sql = std::fs::read_to_string(sql).expect("a query");
        let answer = tpch.join(format!("answers/sf0.01/{query}.csv"));
        let answer = Answer::read(&answer).expect("an answer");
        check(&sql, &answer, &results[stage])
            .unwrap_or_else(|difference| panic!("{query}: {difference}"));
    }

    let (_, on_cpu) = run("none", None).await;
    for (got, expected) in results.iter().zip(&on_cpu) {
        let text = |rows| pretty_format_batches(rows).expect("rows").to_string();
        assert_eq!(text(got), text(expected));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_small_batch_stays_on_the_cpu_when_the_choice_is_ours() {
    let device = device();
    let (report, _) = run("auto", Some(&device)).await;
    let placement = report.placement.expect("there was a choice");
    assert_eq!(placement.on, Place::Cpu);
    let stages: Vec<&str> = placement.stages.iter().map(|s| s.stage.as_str()).collect();
    let ran: Vec<&str> = report.stages.iter().map(|s| s.name.as_str()).collect();
    assert_eq!(stages, ran);
    // Lineitem at scale 0.01, of whose columns Q1 reads seven.
    let first = placement.stages[0].estimate;
    assert_eq!((first.rows, first.values), (60_175, 7 * 60_175));
    assert!(report.stages.iter().all(|stage| stage.pipelines.is_empty()));
    // It is no fallback: nobody asked for the GPU by name.
    assert!(report.fallbacks.is_empty(), "{:?}", report.fallbacks);
}
