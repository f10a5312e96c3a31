//! Do runs read and write a real S3 server, and do its refusals read well?
//!
//! `s3s-fs` keeps buckets as directories and checks signatures. `infra/install-test-tools`
//! installs it; without it these tests say so and pass, unless `WARPLINE_REQUIRE_S3` asks
//! for them.

mod support;

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use support::{Case, check, json, wait_until};

const KEY: &str = "TESTKEY";
const SECRET: &str = "test-secret";

/// A server over `buckets` in the folder of a case. It ends with the test.
struct Server {
    process: Child,
    port: u16,
    buckets: PathBuf,
}

impl Server {
    /// None when the program is not installed and need not be.
    fn start(case: &Case) -> Option<Server> {
        let Some(program) = program() else {
            assert!(
                std::env::var_os("WARPLINE_REQUIRE_S3").is_none(),
                "s3s-fs is not installed; infra/install-test-tools installs it"
            );
            eprintln!("s3s-fs is not installed; this test did not run");
            return None;
        };
        let buckets = case.path("buckets");
        fs::create_dir_all(buckets.join("lake")).expect("a bucket");
        let port = free_port();
        let process = Command::new(program)
            .args(["--host", "127.0.0.1", "--port", &port.to_string()])
            .args(["--access-key", KEY, "--secret-key", SECRET])
            .arg(&buckets)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("s3s-fs starts");
        let server = Server {
            process,
            port,
            buckets,
        };
        wait_until("answer of s3s-fs", || {
            TcpStream::connect(("127.0.0.1", port)).is_ok()
        });
        Some(server)
    }

    /// The keys of a bucket that a reader can see.
    fn keys(&self, bucket: &str) -> Vec<String> {
        let mut keys = Vec::new();
        below(&self.buckets.join(bucket), &mut |path| {
            let key = path.strip_prefix(self.buckets.join(bucket)).expect("below");
            keys.push(key.display().to_string());
        });
        keys.retain(|key| !key.starts_with('.'));
        keys.sort();
        keys
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn below(folder: &Path, each: &mut dyn FnMut(&Path)) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.path().is_dir() {
            below(&entry.path(), each);
        } else {
            each(&entry.path());
        }
    }
}

fn program() -> Option<PathBuf> {
    let cache = std::env::var_os("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .or_else(|| std::env::var_os("HOME").map(|home| Path::new(&home).join(".cache")))?;
    let program = cache.join("warpline/tools/s3s-fs-0.14.1/bin/s3s-fs");
    program.is_file().then_some(program)
}

fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("an address").port()
}

/// A spec of one stage that writes `sql` to `output`, with a table `t` where one is given.
fn spec(port: u16, table: Option<&str>, sql: &str, output: &str) -> String {
    let tables = table.map_or_else(String::new, |location| {
        format!("tables:\n  - {{name: t, location: \"{location}\"}}\n")
    });
    format!(
        "\
version: 1
name: lake
accelerator: {{type: none}}
storage:
  - prefix: s3://
    endpoint: http://127.0.0.1:{port}
    region: us-east-1
    credentials: {{env: LAKE}}
{tables}stages:
  - name: made
    sql: {sql}
{output}"
    )
}

fn output(fields: &str) -> String {
    format!("    output: {{{fields}}}\n")
}

fn run_with(case: &Case, key: &str, secret: &str) -> Output {
    case.command(env!("CARGO_BIN_EXE_warpline"))
        .args(["run", "spec.yaml", "--output", "json"])
        .env("LAKE_ACCESS_KEY_ID", key)
        .env("LAKE_SECRET_ACCESS_KEY", secret)
        .output()
        .expect("warpline starts")
}

/// Runs a spec and returns standard output and standard error.
#[track_caller]
fn run(case: &Case, spec: &str, exit_code: i32) -> (String, String) {
    case.write_spec(spec);
    check(run_with(case, KEY, SECRET), exit_code)
}

/// The rows of `sql` over the table at `location`.
#[track_caller]
fn rows(case: &Case, server: &Server, location: &str, sql: &str) -> serde_json::Value {
    let (stdout, _) = run(case, &spec(server.port, Some(location), sql, ""), 0);
    json(&stdout)["results"][0]["rows"].clone()
}

#[test]
fn what_a_run_writes_another_reads_in_every_mode() {
    let case = Case::new("");
    let Some(server) = Server::start(&case) else {
        return;
    };
    let write = |sql: &str, mode: &str, exit_code| {
        let output = output(&format!("location: s3://lake/out, mode: {mode}"));
        run(&case, &spec(server.port, None, sql, &output), exit_code)
    };
    let read = || {
        rows(
            &case,
            &server,
            "s3://lake/out/",
            "SELECT x FROM t ORDER BY x",
        )
    };

    write("SELECT 1 AS x", "error", 0);
    assert_eq!(read(), serde_json::json!([{"x": 1}]));
    let keys = server.keys("lake");
    assert!(keys.contains(&"out/_SUCCESS".to_string()), "{keys:?}");

    let (_, stderr) = write("SELECT 2 AS x", "error", 1);
    assert!(
        stderr.contains("stage made: the output `s3://lake/out` exists; use `mode: overwrite`"),
        "{stderr}"
    );
    assert_eq!(server.keys("lake"), keys);

    write("SELECT 3 AS x", "append", 0);
    assert_eq!(read(), serde_json::json!([{"x": 1}, {"x": 3}]));

    write("SELECT 4 AS x", "overwrite", 0);
    assert_eq!(read(), serde_json::json!([{"x": 4}]));
    assert_eq!(server.keys("lake").len(), 2, "{:?}", server.keys("lake"));
}

#[test]
fn partitions_are_directories_and_come_back_as_columns() {
    let case = Case::new("");
    let Some(server) = Server::start(&case) else {
        return;
    };
    let made = spec(
        server.port,
        None,
        "SELECT value AS x, CAST(value % 2 AS varchar) AS half FROM generate_series(1, 4) AS n(value)",
        &output("location: s3://lake/halves, partition_by: [half]"),
    );
    run(&case, &made, 0);
    let keys = server.keys("lake");
    for part in ["halves/half=0/part-", "halves/half=1/part-"] {
        assert!(keys.iter().any(|key| key.starts_with(part)), "{keys:?}");
    }
    let read = spec(
        server.port,
        Some("s3://lake/halves/"),
        "SELECT half, sum(x) AS total FROM t GROUP BY half ORDER BY half",
        "",
    )
    .replace(
        "halves/\"}",
        "halves/\", partition_columns: [{name: half, type: varchar}]}",
    );
    let (stdout, _) = run(&case, &read, 0);
    assert_eq!(
        json(&stdout)["results"][0]["rows"],
        serde_json::json!([{"half": "0", "total": 6}, {"half": "1", "total": 4}])
    );
}

#[test]
fn refusals_say_what_to_mend() {
    let case = Case::new("");
    let Some(server) = Server::start(&case) else {
        return;
    };
    let write = |location: &str| {
        let output = output(&format!("location: {location}"));
        spec(server.port, None, "SELECT 1 AS x", &output)
    };
    let read = |location: &str| spec(server.port, Some(location), "SELECT * FROM t", "");
    let told = |spec: &str, secret: &str, expected: &str| {
        case.write_spec(spec);
        let (_, stderr) = check(run_with(&case, KEY, secret), 1);
        assert!(
            stderr.contains(expected),
            "expected `{expected}` in:\n{stderr}"
        );
        assert_eq!(server.keys("lake"), Vec::<String>::new());
    };
    let refused = "no permission for `s3://lake/x`; check the credentials";
    told(&write("s3://lake/x"), "wrong", refused);
    told(&read("s3://lake/x"), "wrong", refused);
    told(
        &write("s3://pond/x"),
        SECRET,
        "there is no bucket `pond`; create it, or correct the location `s3://pond/x`",
    );
    told(
        &read("s3://pond/x"),
        SECRET,
        "there is no bucket `pond`; create it, or correct the location `s3://pond/x`",
    );
    told(
        &read("s3://lake/x.parquet"),
        SECRET,
        "table `t`: there is no file or directory at `s3://lake/x.parquet`",
    );
    told(
        &read("s3://lake/x/"),
        SECRET,
        "table `t`: there is no file or directory at `s3://lake/x/`",
    );
    told(
        &read("s3://lake/x").replace(&server.port.to_string(), "1"),
        SECRET,
        "storage does not answer for `s3://lake/x`: nothing answers at that address",
    );

    case.write_spec(&write("s3://lake/x"));
    let output = case.warpline(&["run", "spec.yaml"]);
    let (_, stderr) = check(output, 1);
    assert!(
        stderr.contains("the environment variable LAKE_ACCESS_KEY_ID is not set"),
        "{stderr}"
    );
}

#[test]
fn a_killed_run_shows_nothing() {
    let case = Case::new("");
    let Some(server) = Server::start(&case) else {
        return;
    };
    let sql = "SELECT value, md5(CAST(value AS varchar)) AS hash FROM generate_series(1, 100000000) AS n(value)";
    let output = output("location: s3://lake/out");
    case.write_spec(&spec(server.port, None, sql, &output));
    let mut child = case
        .command(env!("CARGO_BIN_EXE_warpline"))
        .args(["run", "spec.yaml"])
        .env("LAKE_ACCESS_KEY_ID", KEY)
        .env("LAKE_SECRET_ACCESS_KEY", SECRET)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("warpline starts");
    let is_uploading = || {
        let mut n_bytes = 0;
        below(&server.buckets, &mut |path| {
            n_bytes += path.metadata().map_or(0, |metadata| metadata.len());
        });
        n_bytes > 1 << 20
    };
    wait_until("part of an upload", || {
        assert!(child.try_wait().expect("a child").is_none(), "it ended");
        is_uploading()
    });
    child.kill().expect("it is killed");
    child.wait().expect("it ends");
    assert_eq!(server.keys("lake"), Vec::<String>::new());

    let sql = "SELECT 1 AS x";
    run(&case, &spec(server.port, None, sql, &output), 0);
    assert_eq!(
        rows(&case, &server, "s3://lake/out/", "SELECT x FROM t"),
        serde_json::json!([{"x": 1}])
    );
}
