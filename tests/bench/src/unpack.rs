//! How fast compressed pages become pages: on the device by events around the kernels, and
//! on all cores of the host by the crates that the `parquet` crate uses.
//!
//! Pages are of TPC-H lineitem as PLAIN encoding has them, about 1 MiB each: prices and order
//! keys of 8 bytes, days of 4, comments behind their lengths. Every run's bytes are compared
//! with what was compressed; a wrong one ends the program. GB/s are of decompressed bytes,
//! and copying to the device is not in them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use arrow::array::{AsArray, RecordBatch};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Date32Type, Decimal128Type, Int64Type};
use kernels::gpu::{DeviceBuffer, Gpu};
use kernels::jit::Jit;
use kernels::parquet::{
    Codec, ColumnChunk, Encoding, FRONT_BYTES, PackedBody, PackedChunk, Packing, Page, PageKind,
    Unpacker,
};
use tpchgen::generators::LineItemGenerator;
use tpchgen_arrow::LineItemArrow;

const PAGE_BYTES: usize = 1 << 20;

/// A codec with its setting.
#[derive(Clone, Copy)]
struct Setting {
    name: &'static str,
    codec: Codec,
    level: i32,
}

const SETTINGS: [Setting; 4] = [
    Setting {
        name: "zstd 1",
        codec: Codec::Zstd,
        level: 1,
    },
    Setting {
        name: "zstd 3",
        codec: Codec::Zstd,
        level: 3,
    },
    Setting {
        name: "snappy",
        codec: Codec::Snappy,
        level: 0,
    },
    Setting {
        name: "lz4",
        codec: Codec::Lz4,
        level: 0,
    },
];

impl Setting {
    fn pack(self, bytes: &[u8]) -> Result<Vec<u8>, String> {
        match self.codec {
            Codec::Zstd => zstd::bulk::compress(bytes, self.level).map_err(|e| e.to_string()),
            Codec::Snappy => {
                let packed = snap::raw::Encoder::new().compress_vec(bytes);
                packed.map_err(|e| e.to_string())
            }
            Codec::Lz4 => Ok(lz4_flex::block::compress(bytes)),
        }
    }

    fn unpack_into(self, packed: &[u8], out: &mut [u8]) -> Result<(), String> {
        let n = match self.codec {
            Codec::Zstd => {
                let n = zstd::bulk::decompress_to_buffer(packed, out);
                n.map_err(|e| e.to_string())?
            }
            Codec::Snappy => {
                let n = snap::raw::Decoder::new().decompress(packed, out);
                n.map_err(|e| e.to_string())?
            }
            Codec::Lz4 => {
                lz4_flex::block::decompress_into(packed, out).map_err(|e| e.to_string())?
            }
        };
        match n == out.len() {
            true => Ok(()),
            false => Err(format!("{n} bytes of {}", out.len())),
        }
    }
}

/// Bodies of pages, by what stands in them.
fn bodies(n_pages: usize) -> Result<BTreeMap<&'static str, Vec<Vec<u8>>>, String> {
    let mut all: BTreeMap<&'static str, Vec<Vec<u8>>> = BTreeMap::new();
    let is_full = |all: &BTreeMap<&'static str, Vec<Vec<u8>>>| {
        all.len() == 4 && all.values().all(|pages| pages.len() > n_pages)
    };
    // A million rows fill four pages of days.
    let scale = (n_pages as f64 / 16.0).max(1.0);
    for batch in LineItemArrow::new(LineItemGenerator::new(scale, 1, 1)).with_batch_size(1 << 16) {
        let batch = batch.map_err(|e| e.to_string())?;
        for (name, bytes) in plain(&batch)? {
            let pages = all.entry(name).or_default();
            let n = pages.len();
            // A page ends with a value that reaches its size; the last one may be short.
            match pages.last_mut() {
                Some(page) if page.len() < PAGE_BYTES => page.extend(bytes),
                _ if n <= n_pages => pages.push(bytes),
                _ => {}
            }
        }
        if is_full(&all) {
            break;
        }
    }
    for pages in all.values_mut() {
        pages.truncate(n_pages);
    }
    Ok(all)
}

/// Columns as PLAIN encoding has them.
fn plain(batch: &RecordBatch) -> Result<[(&'static str, Vec<u8>); 4], String> {
    let column = |name: &str| {
        let column = batch.column_by_name(name);
        column.ok_or_else(|| format!("lineitem has no {name}"))
    };
    let prices = column("l_extendedprice")?;
    let prices = prices.as_primitive::<Decimal128Type>().values().iter();
    let keys = column("l_orderkey")?.as_primitive::<Int64Type>().values();
    let days = column("l_shipdate")?.as_primitive::<Date32Type>().values();
    let comments = cast(column("l_comment")?, &DataType::Utf8).map_err(|e| e.to_string())?;
    let mut texts = Vec::new();
    for text in comments.as_string::<i32>().iter().flatten() {
        texts.extend((text.len() as u32).to_le_bytes());
        texts.extend(text.as_bytes());
    }
    Ok([
        (
            "prices",
            prices.flat_map(|v| (*v as i64).to_le_bytes()).collect(),
        ),
        ("keys", keys.iter().flat_map(|v| v.to_le_bytes()).collect()),
        ("days", days.iter().flat_map(|v| v.to_le_bytes()).collect()),
        ("comments", texts),
    ])
}

/// Prints the table.
pub fn run(gpu: &Arc<dyn Gpu>, n_pages: usize, runs: usize) -> Result<(), String> {
    eprintln!("generating {n_pages} pages of each kind");
    let bodies = bodies(n_pages)?;
    let jit = Arc::new(Jit::new(None));
    let info = gpu.info();
    let n_threads = std::thread::available_parallelism().map_or(1, usize::from);
    println!(
        "device   {} ({}), host {n_threads} threads",
        info.name, info.arch
    );
    println!("runs     {runs} after one that compiles; the median");
    println!();
    println!(
        "page      codec   pages    MB out  packed  device ms  device GB/s  host GB/s  kernels ms"
    );
    for (name, pages) in &bodies {
        for setting in SETTINGS {
            let packed = pages.iter().map(|page| setting.pack(page));
            let packed = packed.collect::<Result<Vec<_>, String>>()?;
            line(gpu, &jit, (name, setting), pages, &packed, runs)?;
        }
    }
    Ok(())
}

fn line(
    gpu: &Arc<dyn Gpu>,
    jit: &Arc<Jit>,
    (name, setting): (&str, Setting),
    pages: &[Vec<u8>],
    packed: &[Vec<u8>],
    runs: usize,
) -> Result<(), String> {
    let mut unpacker = Unpacker::new(gpu, jit).map_err(|e| e.to_string())?;
    let mut times = Vec::new();
    let mut of_kernels = Vec::new();
    for run in 0..=runs {
        let ms = on_device(gpu, &mut unpacker, setting, pages, packed)?;
        of_kernels = jit.take_kernel_times();
        if run > 0 {
            times.push(ms);
        }
    }
    times.sort_by(f64::total_cmp);
    let ms = times[times.len() / 2];
    let n_out: usize = pages.iter().map(Vec::len).sum();
    let n_packed: usize = packed.iter().map(Vec::len).sum();
    let seconds = on_host(setting, pages, packed)?;
    let kernels: Vec<String> = of_kernels
        .iter()
        .map(|time| {
            let name = time.kernel.trim_start_matches("unpack_");
            format!("{name} {:.3}", time.device_ms)
        })
        .collect();
    println!(
        "{name:<9} {:<7} {:>5} {:>9.1} {:>6.1}% {ms:>10.3} {:>12.2} {:>10.2}  {}",
        setting.name,
        pages.len(),
        n_out as f64 / 1e6,
        100.0 * n_packed as f64 / n_out as f64,
        n_out as f64 / ms / 1e6,
        n_out as f64 / seconds / 1e9,
        kernels.join(", ")
    );
    Ok(())
}

/// All pages in one launch; device milliseconds.
fn on_device(
    gpu: &Arc<dyn Gpu>,
    unpacker: &mut Unpacker,
    setting: Setting,
    pages: &[Vec<u8>],
    packed: &[Vec<u8>],
) -> Result<f64, String> {
    let text = |error: kernels::error::Error| error.to_string();
    let (mut source, mut target) = (vec![0u8; FRONT_BYTES], 0);
    let (mut places, mut bodies) = (Vec::new(), Vec::new());
    for (page, packed) in pages.iter().zip(packed) {
        let start = source.len();
        source.extend_from_slice(packed);
        let packing = Packing::of(setting.codec, packed, page.len());
        bodies.push(PackedBody {
            source: start..source.len(),
            n_levels: 0,
            packing: packing.map_err(|refused| format!("{refused:?}"))?,
        });
        places.push(Page {
            kind: PageKind::DataV1,
            encoding: Encoding::Plain,
            n_values: 1,
            bytes: target..target + page.len(),
        });
        target += page.len().next_multiple_of(16);
    }
    let chunk = PackedChunk {
        column: "c".into(),
        chunk: ColumnChunk {
            file: "memory".into(),
            row_group: 0,
            n_rows: pages.len(),
            pages: places,
            bytes: DeviceBuffer::from_slice(gpu, unpacker.stream(), &source).map_err(text)?,
        },
        bodies,
        n_bytes: target,
    };
    let unpacked = unpacker.unpack(vec![chunk]).map_err(text)?;
    for chunk in &unpacked.chunks {
        let bytes: Vec<u8> = chunk.bytes.to_vec(unpacker.stream()).map_err(text)?;
        for (page, wanted) in chunk.pages.iter().zip(pages) {
            if bytes[page.bytes.clone()] != wanted[..] {
                return Err(format!(
                    "{}: a page is not what was compressed",
                    setting.name
                ));
            }
        }
    }
    Ok(unpacked.device_ms)
}

/// All pages on all cores; seconds.
fn on_host(setting: Setting, pages: &[Vec<u8>], packed: &[Vec<u8>]) -> Result<f64, String> {
    let n_threads = std::thread::available_parallelism().map_or(1, usize::from);
    let next = AtomicUsize::new(0);
    let started = Instant::now();
    std::thread::scope(|scope| {
        let work = || {
            let mut out = Vec::new();
            loop {
                let at = next.fetch_add(1, Ordering::Relaxed);
                let (Some(page), Some(packed)) = (pages.get(at), packed.get(at)) else {
                    return Ok(());
                };
                out.resize(page.len(), 0);
                setting.unpack_into(packed, &mut out)?;
                if out != *page {
                    return Err(format!("{}: the host's page is not it", setting.name));
                }
            }
        };
        let running: Vec<_> = (0..n_threads).map(|_| scope.spawn(work)).collect();
        let mut done = running.into_iter().map(|thread| {
            let ended = thread.join();
            ended.map_err(|_| "a thread of the host ended".to_string())?
        });
        done.try_for_each(|one| one)
    })?;
    Ok(started.elapsed().as_secs_f64())
}
