//! Attacks, and how each is refused.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::server::{Server, data_files, one_row};

/// A token and its entry in a token file.
fn token(owner: &str, scopes: &[&str]) -> (String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_warpline"));
    command.args(["tokens", "new", "--owner", owner]);
    for scope in scopes {
        command.args(["--scope", scope]);
    }
    let output = command.output().expect("warpline starts");
    assert!(output.status.success(), "{output:?}");
    let told = String::from_utf8(output.stderr).expect("text");
    let entry = told
        .lines()
        .find(|line| line.contains("sha256"))
        .expect("an entry");
    let token = String::from_utf8(output.stdout).expect("text");
    (token.trim().to_owned(), format!("{entry}\n"))
}

struct Users {
    server: Server,
    ada: String,
    reader: String,
    bob: String,
    admin: String,
}

fn users() -> Users {
    let (ada, ada_entry) = token("ada", &[]);
    let (reader, reader_entry) = token("ada", &["read"]);
    let (bob, bob_entry) = token("bob", &["read", "write"]);
    let (admin, admin_entry) = token("root", &["admin"]);
    let mut server = Server::prepare(&["--cpu-slots", "2"]);
    let file = server.folder().join("tokens.yaml");
    let text = format!("tokens:\n{ada_entry}{reader_entry}{bob_entry}{admin_entry}");
    assert!(!text.contains(&ada), "only hashes are kept");
    std::fs::write(&file, text).expect("a file");
    server.add_argument("--token-file");
    server.add_argument(&file.display().to_string());
    server.launch();
    Users {
        server,
        ada,
        reader,
        bob,
        admin,
    }
}

#[tokio::test]
async fn tokens_say_who_may_do_what() {
    let Users {
        mut server,
        ada,
        reader,
        bob,
        admin,
    } = users();
    let spec = one_row(&server.lake(), "out", "error");
    for wrong in [None, Some("wl_wrong"), Some("")] {
        server.token = wrong.map(str::to_owned);
        for path in ["/v1/batches", "/v1/batches/some", "/metrics"] {
            let refused = Server::expect(server.get(path).await, 401);
            assert_eq!(refused["error"]["status"], "UNAUTHENTICATED");
        }
        Server::expect(server.submit("some", &spec).await, 401);
    }
    server.token = None;
    Server::expect(server.get("/healthz").await, 200);

    server.token = Some(reader.clone());
    let refused = Server::expect(server.submit("hers", &spec).await, 403);
    assert_eq!(refused["error"]["status"], "PERMISSION_DENIED");
    server.token = Some(ada.clone());
    let batch = Server::expect(server.submit("hers", &spec).await, 201);
    assert_eq!(batch["owner"], "ada");
    server.end_of("hers").await;

    server.token = Some(reader);
    Server::expect(server.get("/v1/batches/hers").await, 200);
    for verb in ["cancel", "retry"] {
        Server::expect(server.post(&format!("/v1/batches/hers:{verb}")).await, 403);
    }
    Server::expect(
        server.send(Method::DELETE, "/v1/batches/hers", None).await,
        403,
    );

    // Bob's answers do not tell that the batch exists.
    server.token = Some(bob);
    let absent = server.get("/v1/batches/absent").await;
    for part in ["", "/logs", "/report", "/spec", "/plan"] {
        let theirs = server.get(&format!("/v1/batches/hers{part}")).await;
        assert_eq!(theirs.0, StatusCode::NOT_FOUND);
        let text = theirs.1.to_string().replace("hers", "absent");
        assert_eq!(text, absent.1.to_string());
    }
    Server::expect(server.post("/v1/batches/hers:cancel").await, 404);
    Server::expect(
        server.send(Method::DELETE, "/v1/batches/hers", None).await,
        404,
    );
    let list = Server::expect(server.get("/v1/batches").await, 200);
    assert_eq!(list["batches"], json!([]));
    let list = Server::expect(server.get("/v1/batches?filter=owner%20=%20ada").await, 200);
    assert_eq!(list["batches"], json!([]));
    let taken = Server::expect(server.submit("hers", &spec).await, 409);
    assert!(!taken.to_string().contains("ada"), "{taken}");

    server.token = Some(admin);
    Server::expect(server.get("/v1/batches/hers").await, 200);
    let list = Server::expect(server.get("/v1/batches").await, 200);
    assert_eq!(list["batches"][0]["owner"], "ada");
}

#[tokio::test]
async fn specs_reach_nothing_that_is_not_listed() {
    let server = Server::start();
    let lake = server.lake();
    std::fs::write(server.folder().join("secret.csv"), "a\nsecret\n").unwrap();
    std::os::unix::fs::symlink(server.folder(), lake.join("way-out")).unwrap();
    let spec = one_row(&lake, "out", "error");
    let reads = |location: &str| {
        let table =
            format!("tables:\n  - {{name: t, location: \"{location}\", format: csv}}\nstages:");
        spec.replace("stages:", &table)
            .replace("42 AS answer", "* FROM t")
    };
    let secret = server.folder().join("secret.csv").display().to_string();
    let lake_text = lake.display().to_string();
    let mut n = 0;
    for (spec, field) in [
        (reads("/etc/passwd"), "tables[0].location"),
        (reads("file:///etc/passwd"), "tables[0].location"),
        (reads("relative.csv"), "tables[0].location"),
        (reads(&secret), "tables[0].location"),
        (
            reads(&format!("{lake_text}/../secret.csv")),
            "tables[0].location",
        ),
        (
            reads(&format!("{lake_text}/way-out/secret.csv")),
            "tables[0].location",
        ),
        (
            reads("http://169.254.169.254/latest/meta-data/"),
            "tables[0].location",
        ),
        (reads("s3://lake/x.csv"), "tables[0].location"),
        (reads("tpch://1/lineitem"), "tables[0].location"),
        (
            spec.replace(&lake_text, "/tmp"),
            "stages[0].output.location",
        ),
        (
            spec.replace(
                "stages:",
                "udfs:\n  - {module: /etc/passwd, functions: [f]}\nstages:",
            ),
            "udfs[0].module",
        ),
        (
            spec.replace(
                "stages:",
                "storage:\n  - {prefix: \"s3://x/\", endpoint: \"http://127.0.0.1:1\"}\nstages:",
            ),
            "storage[0].endpoint",
        ),
        (
            spec.replace(
                "stages:",
                "storage:\n  - {prefix: \"s3://x/\", credentials: {env: HOME}}\nstages:",
            ),
            "storage[0].credentials",
        ),
    ] {
        n += 1;
        let refused = server.submit(&format!("reach-{n}"), &spec).await;
        assert_eq!(refused.0, StatusCode::BAD_REQUEST, "{spec}\n{}", refused.1);
        let violation = &refused.1["error"]["field_violations"][0];
        assert_eq!(violation["field"], field, "{}", refused.1);
        assert_eq!(violation["code"], "location-forbidden", "{}", refused.1);
    }
    // SQL itself reaches no file either.
    for sql in [
        format!("SELECT * FROM '{secret}'"),
        format!("CREATE EXTERNAL TABLE t STORED AS CSV LOCATION '{secret}'; SELECT * FROM t"),
        format!("COPY (SELECT 1) TO '{lake_text}/copy.csv'; SELECT 1"),
    ] {
        n += 1;
        let id = format!("reach-{n}");
        let spec = spec.replace("SELECT 42 AS answer", &format!("\"{sql}\""));
        server.accept(&id, &spec).await;
        let batch = server.end_of(&id).await;
        assert_eq!(
            batch["failure"]["kind"], "invalid_query",
            "{sql}: {batch:#}"
        );
    }
    // A link that appears after the submit is looked at again by the attempt.
    assert!(data_files(&lake, "out").is_empty());
}

#[tokio::test]
async fn names_and_headers_inject_nothing() {
    let server = Server::start();
    let spec = one_row(&server.lake(), "out", "error");
    for id in [
        "..%2F..%2Fetc",
        "%2e%2e",
        "a%0d%0aset-cookie:x",
        "a%00bc",
        "%ff%fe%fd%fc",
        "a'--b",
    ] {
        let answer = server.get(&format!("/v1/batches/{id}")).await;
        assert_eq!(answer.0, StatusCode::NOT_FOUND, "{id}: {}", answer.1);
        let answer = server.submit(id, &spec).await;
        assert_eq!(answer.0, StatusCode::BAD_REQUEST, "{id}: {}", answer.1);
        let text = answer.1.to_string();
        assert!(!text.contains('\r') && !text.contains("\\r"), "{text}");
    }
    // What a query prints is data, not lines of the log and not a terminal's commands.
    let forged = "SELECT chr(10) || '{\"level\":\"error\",\"message\":\"forged\"}' || chr(27) || '[2J' AS answer";
    let spec = spec.replace("SELECT 42 AS answer", forged);
    let shown = spec.split("    output:").next().unwrap().to_owned();
    server.accept("forged", &shown).await;
    server.end_of("forged").await;
    let log = Server::expect(server.get("/v1/batches/forged/logs").await, 200);
    let lines = log["lines"].as_array().unwrap();
    assert!(
        lines.iter().any(|line| line.to_string().contains("forged")),
        "{log}"
    );
    assert!(
        lines
            .iter()
            .all(|line| line["message"] != "forged" && line["batch"] == "forged")
    );
    let printed = server.run_client(&["logs", "forged"]);
    assert!(!printed.stdout.contains(&0x1b), "{printed:?}");
    assert!(
        String::from_utf8_lossy(&printed.stdout).contains("\\u{1b}[2J"),
        "{printed:?}"
    );
}

#[tokio::test]
async fn bodies_that_blow_up_are_refused() {
    let server = Server::start();
    let mut bomb = String::from("a: &a [x, x, x, x, x, x, x, x, x]\n");
    for (of, by) in ["b", "c", "d", "e", "f", "g", "h", "i"]
        .iter()
        .zip(["a", "b", "c", "d", "e", "f", "g", "h"])
    {
        bomb.push_str(&format!(
            "{of}: &{of} [*{by}, *{by}, *{by}, *{by}, *{by}, *{by}, *{by}, *{by}, *{by}]\n"
        ));
    }
    for spec in [
        bomb,
        "[".repeat(100_000),
        "a: ".repeat(50_000),
        "\u{0}".into(),
        "--- a\n--- b\n".into(),
    ] {
        let refused = server.submit("bomb", &spec).await;
        assert_eq!(refused.0, StatusCode::BAD_REQUEST, "{}", &spec[..10]);
        assert!(
            !refused.1["error"]["field_violations"]
                .as_array()
                .unwrap()
                .is_empty()
        );
    }
    // The server answers before it has read 100 MB, or cuts the connection.
    let body = json!({ "spec": "x".repeat(100 << 20) });
    if let Ok((status, answer)) = server
        .try_send(Method::POST, "/v1/batches", Some(body))
        .await
    {
        assert_eq!(status, StatusCode::PAYLOAD_TOO_LARGE);
        assert_eq!(answer["error"]["status"], "PAYLOAD_TOO_LARGE");
    }
    let held = std::fs::read_to_string(format!("/proc/{}/status", server.pid())).unwrap();
    let peak = held
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))
        .unwrap();
    let peak_kib: u64 = peak.trim().trim_end_matches("kB").trim().parse().unwrap();
    assert!(
        peak_kib < 400 << 10,
        "the body was not kept: {peak_kib} KiB"
    );
    Server::expect(server.get("/readyz").await, 200);
}

/// A request as it stands.
fn raw(server: &Server, request: &str) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", server.port())).expect("it listens");
    stream
        .set_read_timeout(Some(crate::server::PATIENCE))
        .expect("a bound");
    stream.write_all(request.as_bytes()).expect("it takes it");
    let mut answer = String::new();
    let _ = stream.read_to_string(&mut answer);
    answer
}

#[tokio::test]
async fn web_pages_of_others_cannot_act_through_a_browser() {
    let server = Server::start();
    let port = server.port();
    for headers in [
        "Host: evil.example".to_owned(),
        format!("Host: 127.0.0.1.evil.example:{port}"),
        format!("Host: 127.0.0.1:{port}\r\nSec-Fetch-Site: cross-site"),
    ] {
        let request = format!("GET /v1/batches HTTP/1.1\r\n{headers}\r\nConnection: close\r\n\r\n");
        let answer = raw(&server, &request);
        assert!(answer.starts_with("HTTP/1.1 403"), "{headers}: {answer}");
    }
    // A form cannot send what is taken as a submit.
    let spec = one_row(&server.lake(), "out", "error");
    for kind in [
        "application/x-www-form-urlencoded",
        "text/plain",
        "multipart/form-data",
    ] {
        let request = format!(
            "POST /v1/batches HTTP/1.1\r\nHost: localhost:{port}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{spec}",
            spec.len()
        );
        let answer = raw(&server, &request);
        assert!(answer.starts_with("HTTP/1.1 415"), "{kind}: {answer}");
    }
    let request =
        format!("GET /healthz HTTP/1.1\r\nHost: localhost:{port}\r\nConnection: close\r\n\r\n");
    let answer = raw(&server, &request).to_lowercase();
    assert!(
        answer.contains("x-content-type-options: nosniff"),
        "{answer}"
    );
}

#[test]
fn without_tokens_it_listens_on_this_machine_only() {
    let folder = tempfile::tempdir().unwrap();
    for (arguments, told) in [
        (vec!["--listen", "0.0.0.0:0"], "there is no token file"),
        (vec!["--listen", "somewhere"], "not an address and port"),
        (
            vec!["--token-file", "/nowhere"],
            "the token file `/nowhere`",
        ),
        (vec!["--store", "mysql://x"], "URL of a PostgreSQL database"),
        (vec!["--location", "relative"], "write it from `/` on"),
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_warpline"))
            .arg("serve")
            .arg("--data-dir")
            .arg(folder.path().join("data"))
            .args(&arguments)
            .output()
            .expect("warpline starts");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(
            !output.status.success() && stderr.contains(told),
            "{arguments:?}: {stderr}"
        );
    }
}

#[tokio::test]
async fn two_servers_do_not_share_a_data_folder() {
    let server = Server::start();
    let mut second = Command::new(env!("CARGO_BIN_EXE_warpline"));
    let output = second
        .args(["serve", "--listen", "127.0.0.1:0", "--data-dir"])
        .arg(server.data_dir())
        .output()
        .expect("warpline starts");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(
        stderr.contains("another server uses the data folder"),
        "{stderr}"
    );
    Server::expect(server.get("/readyz").await, 200);
}

#[tokio::test]
async fn tls_is_spoken_and_checked() {
    let mut server = Server::prepare(&["--cpu-slots", "1"]);
    let made =
        rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).expect("a certificate");
    let (certificate, key) = (
        server.folder().join("cert.pem"),
        server.folder().join("key.pem"),
    );
    std::fs::write(&certificate, made.cert.pem()).unwrap();
    std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    let settings = server.folder().join("server.yaml");
    let text = format!(
        "tls: {{certificate: {}, key: {}}}\n",
        certificate.display(),
        key.display()
    );
    std::fs::write(&settings, text).unwrap();
    server.add_argument("--config");
    server.add_argument(&settings.display().to_string());
    server.launch();
    server.speaks_tls();
    let ca = certificate.display().to_string();
    let output = server.run_client(&["list", "--ca-certificate", &ca]);
    assert!(output.status.success(), "{output:?}");
    let output = server.run_client(&["list", "--output", "json", "--ca-certificate", &ca]);
    let list: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(list["batches"], json!([]));
    // A certificate that nobody vouches for is not believed.
    let output = server.run_client(&["list"]);
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(8), "{stderr}");
    assert!(
        stderr.contains("a certificate that is not trusted here"),
        "{stderr}"
    );
    let answer = raw(&server, "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert!(!answer.contains("200 OK"), "{answer}");
}
