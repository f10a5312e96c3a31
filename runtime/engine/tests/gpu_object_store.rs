//! Scans on the GPU from a real S3 server, directly and through a network that fails.
//!
//! `s3s-fs` keeps buckets as directories. `infra/install-test-tools` installs it; without
//! it these tests say so and pass, unless `WARPLINE_REQUIRE_S3` asks for it.

mod support;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use arrow::array::{ArrayRef, Float64Array, Int64Array, RecordBatch, StringArray};
use engine::exec::{Device, DeviceLimits};
use engine::session::Session;
use engine::settings::{FallbackPolicy, Format, Settings, Stage, StorageOptions, Table};
use kernels::gpu::{HostOptions, open_host};
use kernels::jit::Jit;
use parquet::arrow::ArrowWriter;
use parquet::file::properties::WriterProperties;
use support::{rows, run};

const KEY: &str = "id";
const SECRET: &str = "secret";

/// A server that ends with the test.
struct Server {
    process: Child,
    port: u16,
    buckets: tempfile::TempDir,
}

impl Server {
    fn start() -> Option<Server> {
        let program = program();
        if !program.is_file() {
            let required = std::env::var_os("WARPLINE_REQUIRE_S3").is_some();
            assert!(
                !required,
                "s3s-fs is not installed; infra/install-test-tools installs it"
            );
            eprintln!("s3s-fs is not installed; this test did not run");
            return None;
        }
        let buckets = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(buckets.path().join("lake/t")).unwrap();
        let port = TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap()
            .port();
        let process = Command::new(program)
            .args(["--host", "127.0.0.1", "--port", &port.to_string()])
            .args(["--access-key", KEY, "--secret-key", SECRET])
            .arg(buckets.path())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let server = Server {
            process,
            port,
            buckets,
        };
        let started = Instant::now();
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(
                started.elapsed() < Duration::from_secs(60),
                "s3s-fs does not answer"
            );
            std::thread::sleep(Duration::from_millis(20));
        }
        Some(server)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn program() -> PathBuf {
    let of = |name: &str| std::env::var_os(name).map(PathBuf::from);
    let cache = of("XDG_CACHE_HOME").or_else(|| Some(of("HOME")?.join(".cache")));
    let tools = cache.unwrap_or_default().join("warpline/tools");
    tools.join("s3s-fs-0.14.1/bin/s3s-fs")
}

/// What happens to a request.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Fault {
    None,
    /// It takes its time.
    Slow,
    /// 503 with an empty body.
    Refused,
    /// The connection ends before the answer.
    Reset,
    /// The connection ends within the body, if that is a large one.
    Truncated,
}

/// A proxy before the server: each request has a connection of its own, and what happens
/// to it goes round through `faults`.
fn proxy(server: u16, faults: &'static [Fault]) -> (u16, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let hit = Arc::new(AtomicUsize::new(0));
    let n_hit = Arc::clone(&hit);
    std::thread::spawn(move || {
        for (number, client) in listener.incoming().enumerate() {
            let (Ok(client), n_hit) = (client, Arc::clone(&n_hit)) else {
                return;
            };
            let fault = faults[number % faults.len()];
            std::thread::spawn(move || {
                if forward(client, server, fault).unwrap_or(false) {
                    n_hit.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    (port, hit)
}

/// Whether something was done to the request.
fn forward(mut client: TcpStream, server: u16, fault: Fault) -> std::io::Result<bool> {
    let mut request = Vec::new();
    let mut byte = [0];
    while !request.ends_with(b"\r\n\r\n") {
        if client.read(&mut byte)? == 0 {
            return Ok(false);
        }
        request.push(byte[0]);
    }
    request.truncate(request.len() - 2);
    request.extend(b"connection: close\r\n\r\n");
    match fault {
        Fault::Refused => {
            let answer = "HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
            client.write_all(answer.as_bytes())?;
            return Ok(true);
        }
        Fault::Reset => return Ok(true),
        Fault::Slow => std::thread::sleep(Duration::from_millis(100)),
        Fault::None | Fault::Truncated => {}
    }
    let mut upstream = TcpStream::connect(("127.0.0.1", server))?;
    upstream.write_all(&request)?;
    let mut answer = Vec::new();
    upstream.read_to_end(&mut answer)?;
    let is_cut = fault == Fault::Truncated && answer.len() > 20_000;
    let n = if is_cut {
        answer.len() / 2
    } else {
        answer.len()
    };
    client.write_all(&answer[..n])?;
    Ok(is_cut || fault == Fault::Slow)
}

fn write_files(folder: &Path) {
    for file in 0..3i64 {
        let rows = file * 20_000..(file + 1) * 20_000;
        let wide = rows.clone().map(|r| (r * r * 31) % 1_000_000_007);
        let columns: [(&str, ArrayRef); 4] = [
            ("id", Arc::new(Int64Array::from_iter_values(rows.clone()))),
            ("wide", Arc::new(Int64Array::from_iter_values(wide))),
            (
                "x",
                Arc::new(Float64Array::from_iter_values(
                    rows.clone().map(|r| (r % 8) as f64),
                )),
            ),
            (
                "s",
                Arc::new(StringArray::from_iter_values(
                    rows.map(|r| format!("text {}", r % 7)),
                )),
            ),
        ];
        let rows = RecordBatch::try_from_iter(columns).unwrap();
        let properties = WriterProperties::builder()
            .set_max_row_group_row_count(Some(7000))
            .set_column_dictionary_enabled("wide".into(), false)
            .build();
        let out = std::fs::File::create(folder.join(format!("{file}.parquet"))).unwrap();
        let mut writer = ArrowWriter::try_new(out, rows.schema(), Some(properties)).unwrap();
        writer.write(&rows).unwrap();
        writer.close().unwrap();
    }
}

async fn session_at(port: u16) -> Session {
    let options = [
        ("aws_access_key_id", KEY.to_owned()),
        ("aws_secret_access_key", SECRET.to_owned()),
        ("aws_region", "us-east-1".to_owned()),
        ("aws_endpoint", format!("http://127.0.0.1:{port}")),
    ];
    let options = options
        .into_iter()
        .map(|(key, value)| (key.to_owned(), value));
    let storage = StorageOptions {
        name: "lake".into(),
        options: options.collect(),
    };
    let gpu = open_host(HostOptions::default());
    let device = Device::new(gpu, Arc::new(Jit::new(None)), DeviceLimits::default());
    let settings = Settings {
        compute_threads: 2,
        storage: vec![storage],
        fallback: FallbackPolicy::Fail,
        ..Settings::default()
    };
    let session = Session::with_device(settings, device).unwrap();
    let table = Table {
        storage: Some("lake".into()),
        ..Table::new("t", "s3://lake/t/", Format::Parquet)
    };
    session.register_table(&table).await.unwrap();
    session
}

const SQL: &str =
    "select s, count(*), sum(wide), sum(x), max(id) from t where id >= 100 group by s order by s";

#[tokio::test(flavor = "multi_thread")]
async fn a_network_that_fails_changes_no_answer() {
    let Some(server) = Server::start() else {
        return;
    };
    write_files(&server.buckets.path().join("lake/t"));
    let ask = async |port: u16| {
        let session = session_at(port).await;
        let ran = run(&session, &Stage::new("r", SQL)).await.unwrap();
        let scan = ran.report.scans[0].clone();
        assert!(scan.on_device, "{scan:?}");
        (rows(&ran.report.preview), scan)
    };
    let (expected, direct) = ask(server.port).await;
    assert_eq!(expected.len(), 7);
    let needed = direct.bytes_of_pages;
    assert!(
        direct.bytes_fetched as f64 <= needed as f64 * 1.1,
        "{direct:?}"
    );
    let all: &[&[Fault]] = &[
        &[Fault::Slow],
        &[Fault::None, Fault::Refused],
        &[Fault::None, Fault::Reset, Fault::None],
        &[Fault::None, Fault::Truncated, Fault::None],
        &[
            Fault::None,
            Fault::Refused,
            Fault::Truncated,
            Fault::Slow,
            Fault::Reset,
        ],
    ];
    for faults in all {
        let (port, n_hit) = proxy(server.port, faults);
        let (got, _) = ask(port).await;
        assert_eq!(got, expected, "{faults:?}");
        assert!(
            n_hit.load(Ordering::Relaxed) > 0,
            "{faults:?}: nothing failed"
        );
    }
}
