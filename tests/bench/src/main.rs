//! TPC-H Q1, Q6 and a sum by order, hot from device columns, beside the time that reading takes at best.
//!
//! ```text
//! cargo run --release -p bench -- [--scale 10] [--runs 5] [--gpu N | --host]
//! cargo run --release -p bench -- --codecs [--pages 512] [--runs 5] [--gpu N | --host]
//! ```
//!
//! The second tells how fast pages are decompressed on the device and on all cores
//! (`unpack.rs`).
//!
//! Data is generated as TPC-H specifies, copied to the device once, and each query then
//! runs `--runs` times after one run that compiles. Every run's result is compared with
//! a plain loop over the same Arrow arrays; a wrong one ends the program. Device time
//! is by events around the kernels. Two bounds stand beside it: reading the columns as
//! they are stored, and reading them at plain widths (28 bytes a row for Q6, 38 for
//! Q1, 20 for the sums by order), both at a bandwidth measured in the same run by copying within the device.

mod check;
mod data;
mod queries;
mod unpack;

use std::process::ExitCode;
use std::sync::Arc;

use kernels::gpu::{
    DeviceBuffer, Event, Gpu, HostOptions, PinnedPool, Stream, open_cuda, open_host,
};
use kernels::jit::Jit;
use kernels::launch::{AggregateRun, Loader};
use queries::Query;

/// Rows of one chunk: the engine's own chunks are smaller, these show the kernel.
const CHUNK_ROWS: usize = 1 << 24;

struct Options {
    scale: f64,
    runs: usize,
    gpu: Option<usize>,
    /// Pages of each kind to decompress instead of queries.
    codecs: bool,
    pages: usize,
}

fn main() -> ExitCode {
    let options = match options() {
        Ok(options) => options,
        Err(message) => {
            eprintln!("error: {message}");
            return ExitCode::from(2);
        }
    };
    match run(&options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("error: {message}");
            ExitCode::FAILURE
        }
    }
}

fn options() -> Result<Options, String> {
    let mut options = Options {
        scale: 10.0,
        runs: 5,
        gpu: Some(0),
        codecs: false,
        pages: 512,
    };
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().ok_or(format!("{argument} needs a value"));
        match argument.as_str() {
            "--scale" => options.scale = value()?.parse().map_err(|_| "--scale takes a number")?,
            "--runs" => options.runs = value()?.parse().map_err(|_| "--runs takes a number")?,
            "--gpu" => options.gpu = Some(value()?.parse().map_err(|_| "--gpu takes a number")?),
            "--host" => options.gpu = None,
            "--codecs" => options.codecs = true,
            "--pages" => options.pages = value()?.parse().map_err(|_| "--pages takes a number")?,
            other => return Err(format!("unknown argument {other}")),
        }
    }
    if options.runs == 0 || options.pages == 0 {
        return Err("--runs and --pages must be at least 1".into());
    }
    Ok(options)
}

fn run(options: &Options) -> Result<(), String> {
    let text = |error: kernels::error::Error| error.to_string();
    let gpu = match options.gpu {
        Some(ordinal) => open_cuda(ordinal).map_err(text)?,
        None => open_host(HostOptions::default()),
    };
    if options.codecs {
        return unpack::run(&gpu, options.pages, options.runs);
    }
    let info = gpu.info().clone();
    let stream = Stream::new(&gpu).map_err(text)?;
    let bandwidth = copy_bandwidth(&gpu, &stream).map_err(text)?;

    eprintln!("generating lineitem at scale {}", options.scale);
    let chunks = data::lineitem(options.scale, CHUNK_ROWS);
    let n_rows: usize = chunks.iter().map(|chunk| chunk.num_rows()).sum();

    println!(
        "device      {} ({}), driver CUDA {:?}",
        info.name, info.arch, info.driver_version
    );
    println!(
        "bandwidth   {:.2} TB/s, copy within the device, read plus write",
        bandwidth / 1e12
    );
    println!(
        "data        TPC-H lineitem at scale {}, {n_rows} rows as generated, {} chunks",
        options.scale,
        chunks.len()
    );
    println!(
        "runs        {} after one that compiles; median (least to most)",
        options.runs
    );
    println!();
    println!("query  device ms             rows/s     B/row  of stored  of plain widths");
    let jit = Arc::new(Jit::new(None));
    for query in [queries::q6(), queries::q1(), queries::orders()] {
        measure(&query, &gpu, &jit, &chunks, n_rows, bandwidth, options.runs)?;
    }
    Ok(())
}

#[allow(clippy::too_many_arguments)] // what one line of the table is about
fn measure(
    query: &Query,
    gpu: &Arc<dyn Gpu>,
    jit: &Arc<Jit>,
    chunks: &[arrow::array::RecordBatch],
    n_rows: usize,
    bandwidth: f64,
    runs: usize,
) -> Result<(), String> {
    let text = |error: kernels::error::Error| error.to_string();
    let mut resident = Vec::new();
    let pool = PinnedPool::new(gpu, 1 << 30);
    let loader = Loader::new(gpu, &pool, query.columns.clone(), Arc::default()).map_err(text)?;
    for chunk in chunks {
        let staged = loader.stage(chunk).map_err(text)?;
        resident.push(loader.upload(&staged).map_err(text)?);
    }
    let expected = check::totals(query, chunks);
    let mut times = Vec::new();
    let mut bytes = 0;
    for run in 0..=runs {
        let mut aggregate = AggregateRun::new(
            Arc::clone(gpu),
            Arc::clone(jit),
            &pool,
            query.aggregate.clone(),
            Arc::default(),
        )
        .map_err(text)?;
        for chunk in &resident {
            aggregate.add_resident(chunk).map_err(text)?;
        }
        let (groups, counts) = aggregate.finish().map_err(text)?;
        check::compare(query, &expected, &groups)?;
        bytes = counts.bytes_read;
        if run > 0 {
            times.push(counts.device_ms);
        }
    }
    times.sort_by(f64::total_cmp);
    let median = times[times.len() / 2];
    let ideal = |bytes: f64| bytes / bandwidth * 1e3;
    println!(
        "{:<5} {:>8.3} ({:.3} to {:.3})  {:>8.1} G  {:>6.1}  {:>8.2}x  {:>8.2}x ({} B/row)",
        query.name,
        median,
        times[0],
        times[times.len() - 1],
        n_rows as f64 / median / 1e6,
        bytes as f64 / n_rows as f64,
        median / ideal(bytes as f64),
        median / ideal((n_rows * query.plain_bytes) as f64),
        query.plain_bytes,
    );
    Ok(())
}

/// Bytes read plus written a second by a copy within the device, best of five.
fn copy_bandwidth(gpu: &Arc<dyn Gpu>, stream: &Stream) -> kernels::error::Result<f64> {
    let bytes = match gpu.info().target {
        kernels::gpu::Target::Cuda => 4usize << 30,
        kernels::gpu::Target::Host => 64 << 20,
    };
    let from = DeviceBuffer::filled(gpu, stream, bytes, 0x5a)?;
    let to = DeviceBuffer::filled(gpu, stream, bytes, 0)?;
    let mut best = f64::INFINITY;
    for _ in 0..5 {
        let before = Event::record_timing(stream)?;
        to.copy_from(stream, 0, &from, 0..bytes)?;
        let after = Event::record_timing(stream)?;
        best = best.min(f64::from(after.ms_since(&before)?));
    }
    Ok(2.0 * bytes as f64 / (best / 1e3))
}
