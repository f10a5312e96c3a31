//! Do outputs and tables work in an object store?
//!
//! Against `moto_server` where it is installed; without it these tests say so and
//! pass.

mod support;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use engine::Kind;
use engine::session::Session;
use engine::settings::{Format, Output, Settings, Stage, StorageOptions, Table, WriteMode};
use support::*;

/// A server that ends with the test.
struct Server {
    process: Child,
    port: u16,
}

impl Server {
    fn start() -> Option<Server> {
        let port = TcpListener::bind("127.0.0.1:0")
            .ok()?
            .local_addr()
            .ok()?
            .port();
        let process = Command::new("moto_server")
            .args(["-H", "127.0.0.1", "-p", &port.to_string()])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        let Ok(process) = process else {
            eprintln!("moto_server is not installed; this test did not run");
            return None;
        };
        let server = Server { process, port };
        let started = Instant::now();
        while server.put_bucket("lake").is_err() {
            assert!(
                started.elapsed() < Duration::from_secs(60),
                "moto_server does not answer"
            );
            std::thread::sleep(Duration::from_millis(100));
        }
        Some(server)
    }

    fn put_bucket(&self, name: &str) -> std::io::Result<()> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port))?;
        stream.set_read_timeout(Some(Duration::from_secs(10)))?;
        let request = format!(
            "PUT /{name} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        );
        stream.write_all(request.as_bytes())?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        if answer.starts_with("HTTP/1.1 200") {
            Ok(())
        } else {
            Err(std::io::Error::other(answer))
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn session_at(port: u16) -> Session {
    let options = [
        ("aws_access_key_id", "id".to_owned()),
        ("aws_secret_access_key", "secret".to_owned()),
        ("aws_region", "us-east-1".to_owned()),
        ("aws_endpoint", format!("http://127.0.0.1:{port}")),
    ];
    let storage = StorageOptions {
        name: "lake".into(),
        options: options
            .into_iter()
            .map(|(key, value)| (key.to_owned(), value))
            .collect(),
    };
    Session::new(Settings {
        compute_threads: 2,
        storage: vec![storage],
        ..Settings::default()
    })
    .unwrap()
}

fn to(location: &str, mode: WriteMode) -> Output {
    Output {
        mode,
        storage: Some("lake".into()),
        ..Output::new(location)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn results_go_to_a_bucket_and_come_back() {
    let Some(server) = Server::start() else {
        return;
    };
    let session = session_at(server.port);
    let out = "s3://lake/out/";
    run(
        &session,
        &stage_to("SELECT 1 AS x", to(out, WriteMode::Error)),
    )
    .await
    .unwrap();
    let error = run(
        &session,
        &stage_to("SELECT 1 / 0 AS x", to(out, WriteMode::Error)),
    )
    .await
    .unwrap_err();
    assert_eq!(error.kind(), Kind::OutputExists, "{error}");
    run(
        &session,
        &stage_to("SELECT 2 AS x", to(out, WriteMode::Append)),
    )
    .await
    .unwrap();
    assert_eq!(
        ours_in(&session, "SELECT x FROM made ORDER BY x")
            .await
            .unwrap(),
        ["1", "2"]
    );
    run(
        &session,
        &stage_to(
            "SELECT x + 10 AS x FROM made",
            to(out, WriteMode::Overwrite),
        ),
    )
    .await
    .unwrap();

    let again = session_at(server.port);
    let table = |name: &str, location: &str| Table {
        storage: Some("lake".into()),
        ..Table::new(name, location, Format::Parquet)
    };
    again
        .register_tables(&[
            table("d", "s3://lake/out"),
            table("g", "s3a://lake/o*/part-*.parquet"),
        ])
        .await
        .unwrap();
    assert_eq!(
        ours_in(&again, "SELECT sum(d.x), count(*) FROM d JOIN g USING (x)")
            .await
            .unwrap(),
        ["23|2"]
    );
    let error = again
        .register_table(&table("n", "s3://lake/nothing/"))
        .await
        .unwrap_err();
    assert_eq!(error.kind(), Kind::InputMissing);
    assert!(error.to_string().contains("s3://lake/nothing/"), "{error}");

    let partitioned = Output {
        partition_by: vec!["day".into()],
        ..to("s3://lake/days", WriteMode::Error)
    };
    let stage = Stage {
        name: "days".into(),
        ..stage_to(
            "SELECT 1 AS x, 'a b' AS day UNION ALL SELECT 2, 'c'",
            partitioned,
        )
    };
    run(&again, &stage).await.unwrap();
    assert_eq!(
        ours_in(&again, "SELECT day, x FROM days ORDER BY x")
            .await
            .unwrap(),
        ["a b|1", "c|2"]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn storage_options_that_do_not_exist_are_named() {
    let session = session_at(1);
    let table = Table {
        storage: Some("pond".into()),
        ..Table::new("t", "s3://lake/x", Format::Parquet)
    };
    let error = session.register_table(&table).await.unwrap_err();
    assert!(
        error
            .to_string()
            .contains("no storage options called `pond`"),
        "{error}"
    );
}
