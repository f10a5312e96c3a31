//! `warpline run`: one batch, in this process.

use std::fs;
use std::io::{self, Write};
use std::path::Path;
use std::sync::Mutex;
use std::time::Duration;

use arrow::record_batch::RecordBatch;
use arrow::util::pretty::pretty_format_batches;
use engine::report::PipelineReport;
use engine::words::io_problem;
use indicatif::ProgressBar;
use lifecycle::{Cancel, GpuSource, Machine, Observer, RunReport, StageRun, State};

use super::print_text;
use crate::arguments::{Output, Run};
use crate::exit::Exit;
use crate::gpus::Gpus;
use crate::spec_file::SpecFile;
use crate::{interrupt, print, progress};

/// How long what still runs when a batch has ended may take to notice it.
const SHUTDOWN_WAIT: Duration = Duration::from_secs(3);

/// Rows of a result that are printed; more of them are no longer read by people.
const PREVIEW_ROWS_TABLE: usize = 40;

/// Rows of a result in the JSON answer. A larger result belongs in an `output`.
const PREVIEW_ROWS_JSON: usize = 10_000;

/// Runs the command.
pub fn run(arguments: &Run) -> Exit {
    let (machine, gpus) = (Machine::detect(), Gpus::detect());
    let spec = match SpecFile::load(&arguments.spec, Some((&machine, &gpus))) {
        Ok(spec) => spec,
        Err(error) => {
            eprintln!("error: {error}");
            return Exit::Usage;
        }
    };
    spec.print_problems();
    if spec.is_refused() {
        eprintln!("{}", spec.summary());
        return Exit::Usage;
    }
    let gpu = gpus.source_for(&spec.loaded);
    let gpu = gpu.as_ref().map(|gpu| gpu as &dyn GpuSource);
    match attempt(arguments, &spec, machine, gpu) {
        Ok(report) => exit_of(report.state),
        Err(error) => {
            eprintln!("error: {}", io_problem(&error));
            Exit::Failed
        }
    }
}

fn exit_of(state: State) -> Exit {
    match state {
        State::Succeeded => Exit::Done,
        State::Failed => Exit::Failed,
        State::Cancelled => Exit::Cancelled,
        State::TimedOut => Exit::TimedOut,
    }
}

/// Runs the batch and prints its account. An error here is about the terminal or the
/// report file; what happens to the batch is in the report.
fn attempt(
    arguments: &Run,
    spec: &SpecFile,
    machine: Machine,
    gpu: Option<&dyn GpuSource>,
) -> io::Result<RunReport> {
    let watcher = Watcher {
        output: arguments.output,
        bar: progress::bar("run", spec.n_stages() as u64),
        results: Mutex::new(Vec::new()),
        unshown: Mutex::new(None),
    };
    let preview_rows = match arguments.output {
        Output::Table => PREVIEW_ROWS_TABLE,
        Output::Json => PREVIEW_ROWS_JSON,
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(machine.cores)
        .enable_all()
        .build()?;
    let report = runtime.block_on(async {
        let cancel = Cancel::new();
        interrupt::cancel_on_signals(cancel.clone())?;
        let request = spec.request(machine, gpu, preview_rows);
        io::Result::Ok(lifecycle::run(request, cancel, &watcher).await)
    })?;
    // What ignores a request to stop must not keep the process; what is about to end should,
    // since the device's driver goes with it.
    runtime.shutdown_timeout(SHUTDOWN_WAIT);
    watcher.bar.finish_and_clear();

    if let Some(path) = &arguments.report {
        write_report(path, &report)?;
    }
    print_account(&report, &mut io::stderr().lock())?;
    if let Some(error) = watcher.unshown.into_inner().expect("no holder panics") {
        return Err(error);
    }
    if arguments.output == Output::Json {
        let results = watcher.results.into_inner().expect("no holder panics");
        print_text(&json_answer(&results, &report)?)?;
    }
    Ok(report)
}

/// Shows progress and results while the attempt goes on.
struct Watcher {
    output: Output,
    bar: ProgressBar,
    /// Stages and their rows as JSON text.
    results: Mutex<Vec<(String, String)>>,
    /// Why rows could not be shown: they are the answer, so the command has failed.
    unshown: Mutex<Option<io::Error>>,
}

impl Observer for Watcher {
    fn table_generated(&self, table: &str, n_parts_done: usize, n_parts: usize) {
        if n_parts_done == 0 {
            let line = format!("generating TPC-H {table}; it is kept for the next run");
            self.bar.suspend(|| eprintln!("{line}"));
        }
        self.bar
            .set_message(format!("{table}, part {n_parts_done} of {n_parts}"));
    }

    fn stage_started(&self, name: &str) {
        self.bar.set_message(name.to_string());
    }

    fn stage_ended(&self, stage: &StageRun, rows: &[RecordBatch]) {
        self.bar.inc(1);
        let shown = self.bar.suspend(|| match self.output {
            Output::Table => print_rows(stage, rows),
            Output::Json => json_rows(rows).map(|rows| {
                self.results
                    .lock()
                    .expect("no holder panics")
                    .push((stage.name.clone(), rows));
            }),
        });
        if let Err(error) = shown {
            tracing::error!(%error, stage = stage.name, "cannot show the rows");
            self.unshown
                .lock()
                .expect("no holder panics")
                .get_or_insert(error);
        }
    }
}

fn print_rows(stage: &StageRun, rows: &[RecordBatch]) -> io::Result<()> {
    if rows.is_empty() {
        return Ok(());
    }
    eprintln!("{}:", stage.name);
    let table = pretty_format_batches(rows).map_err(io::Error::other)?;
    print_text(&format!("{table}\n"))?;
    let n_shown: u64 = rows.iter().map(|rows| rows.num_rows() as u64).sum();
    let n_rows = stage.report.as_ref().map_or(n_shown, |report| report.rows);
    if n_rows > n_shown {
        eprintln!(
            "{} more rows; give the stage an `output` to keep them all",
            print::grouped(n_rows - n_shown)
        );
    }
    Ok(())
}

fn json_rows(rows: &[RecordBatch]) -> io::Result<String> {
    let mut writer = arrow::json::WriterBuilder::new()
        .with_explicit_nulls(true)
        .build::<_, arrow::json::writer::JsonArray>(Vec::new());
    let rows: Vec<&RecordBatch> = rows.iter().collect();
    writer.write_batches(&rows).map_err(io::Error::other)?;
    writer.finish().map_err(io::Error::other)?;
    let text = String::from_utf8(writer.into_inner()).map_err(io::Error::other)?;
    Ok(if text.is_empty() { "[]".into() } else { text })
}

/// The one object of `--output json`. The rows stay the text that Arrow wrote: read as
/// JSON values, decimals would become floats and lose digits.
fn json_answer(results: &[(String, String)], report: &RunReport) -> io::Result<String> {
    let mut text = String::from("{\n  \"results\": [");
    for (number, (stage, rows)) in results.iter().enumerate() {
        let stage = serde_json::to_string(stage)?;
        let comma = if number == 0 { "" } else { "," };
        text.push_str(&format!(
            "{comma}\n    {{\"stage\": {stage}, \"rows\": {rows}}}"
        ));
    }
    let report = serde_json::to_string_pretty(report)?;
    text.push_str(&format!("\n  ],\n  \"report\": {report}\n}}\n"));
    Ok(text)
}

/// Writes the report beside its place and moves it there, so that a reader never sees half.
fn write_report(path: &Path, report: &RunReport) -> io::Result<()> {
    let explain = |error: io::Error| {
        io::Error::new(
            error.kind(),
            format!(
                "cannot write the report `{}`: {}",
                path.display(),
                io_problem(&error)
            ),
        )
    };
    let mut text = serde_json::to_string_pretty(report)?;
    text.push('\n');
    let mut partial = path.as_os_str().to_owned();
    partial.push(".partial");
    fs::write(&partial, text).map_err(explain)?;
    fs::rename(&partial, path).map_err(explain)
}

/// The report as a table for people.
fn print_account(report: &RunReport, out: &mut dyn Write) -> io::Result<()> {
    let mut rows = vec![
        ["stage", "state", "time", "rows", "where"]
            .map(String::from)
            .to_vec(),
    ];
    for stage in &report.stages {
        let n_rows = stage
            .report
            .as_ref()
            .map(|report| print::grouped(report.rows));
        rows.push(vec![
            stage.name.clone(),
            stage.state.name().to_string(),
            print::duration(stage.elapsed_ms),
            n_rows.unwrap_or_else(|| "-".to_string()),
            place(stage).to_string(),
        ]);
    }
    if !report.stages.is_empty() {
        print::columns(out, &rows, &[2, 3])?;
    }
    if let Some(placement) = &report.placement {
        let name = print::place_name(placement.on);
        writeln!(out, "placed on the {name}: {}", placement.why)?;
    }
    for stage in &report.stages {
        if let Some(told) = shortage(stage) {
            writeln!(out, "note: stage {}: {told}", stage.name)?;
        }
    }
    for fallback in &report.fallbacks {
        let whole = fallback.stage.as_deref().unwrap_or("the whole batch");
        let reason = &fallback.fallback.reason;
        writeln!(
            out,
            "fallback[{}]: {whole}: {}",
            reason.code, reason.message
        )?;
        if !reason.fix.is_empty() {
            writeln!(out, "  hint: {}", reason.fix)?;
        }
    }
    if let Some(error) = &report.error {
        match &error.stage {
            Some(stage) => writeln!(out, "error: stage {stage}: {}", error.message)?,
            None => writeln!(out, "error: {}", error.message)?,
        }
    }
    writeln!(
        out,
        "{} {} in {}",
        report.name,
        report.state.name().replace('_', " "),
        print::duration(report.elapsed_ms)
    )
}

/// What a stage did because the device's memory was short, if it was.
fn shortage(stage: &StageRun) -> Option<String> {
    let sum = |of: fn(&PipelineReport) -> u64| stage.pipelines.iter().map(of).sum::<u64>();
    let (passes, moved) = (sum(|one| one.passes), sum(|one| one.spilled_bytes));
    if passes == 0 && moved == 0 {
        return None;
    }
    let mib = |bytes: u64| print::grouped(bytes.div_ceil(1 << 20));
    let (moved, on_disk) = (mib(moved), mib(sum(|one| one.disk_bytes)));
    Some(format!(
        "device memory was short: {passes} passes over parts of the input, {moved} MiB kept on \
         the host and {on_disk} MiB of them on disk"
    ))
}

fn place(stage: &StageRun) -> &'static str {
    match &stage.report {
        Some(_) if !stage.pipelines.is_empty() => "gpu",
        Some(_) => "cpu",
        None => "-",
    }
}
