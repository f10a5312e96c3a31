//! Objects that start batches: from a notification to the rows of the output.

use reqwest::Method;
use serde_json::{Value, json};

use crate::server::{Server, data_files};
use crate::support::{Case, check, json as parse};

/// A trigger whose batches copy the arrived CSV file to a folder of the same name.
fn copying(server: &Server, source: &str, more: &str) -> String {
    let lake = server.lake().display().to_string();
    format!(
        "name: arrivals\nsource: {source}\n{more}\nbatch: |\n  version: 1\n  name: copy\n  \
         accelerator: {{type: none}}\n  executors: {{instances: 1, cores: 1}}\n  tables:\n    \
         - {{name: t, location: \"{lake}/${{event.key}}\", format: csv}}\n  stages:\n    - name: copy\n      \
         sql: SELECT a, ${{event.key}} AS key, ${{event.bucket}} AS bucket FROM t\n      \
         output: {{location: \"{lake}/out/${{event.stem}}\", mode: error}}\n"
    )
}

async fn make(server: &Server, text: &str) -> (u16, Value) {
    let request = reqwest::Client::new()
        .post(format!("{}/v1/triggers", server.url()))
        .header("content-type", "application/yaml")
        .body(text.to_owned());
    let response = request.send().await.expect("an answer");
    let status = response.status().as_u16();
    (status, response.json().await.expect("JSON"))
}

/// Posts a notification; the status and the answer.
async fn post(server: &Server, token: &str, body: &str) -> (u16, Value) {
    let request = reqwest::Client::new()
        .post(format!("{}/v1/triggers/arrivals/events", server.url()))
        .header("authorization", format!("Bearer {token}"))
        .body(body.to_owned());
    let response = request.send().await.expect("an answer");
    let status = response.status().as_u16();
    (status, response.json().await.expect("JSON"))
}

fn record(key: &str, etag: &str) -> Value {
    let key = percent_encoding::utf8_percent_encode(key, percent_encoding::NON_ALPHANUMERIC);
    json!({"eventVersion": "2.1", "eventName": "ObjectCreated:Put", "s3": {
        "bucket": {"name": "lake"}, "object": {"key": key.to_string(), "size": 5, "eTag": etag}}})
}

async fn wait_for(server: &Server, what: &str, is_so: impl Fn(&Value) -> bool) -> Value {
    let since = std::time::Instant::now();
    loop {
        let trigger = Server::expect(server.get("/v1/triggers/arrivals").await, 200);
        if is_so(&trigger) {
            return trigger;
        }
        assert!(
            since.elapsed() < crate::server::PATIENCE,
            "no {what}: {trigger:#}"
        );
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
}

fn count(trigger: &Value, state: &str) -> u64 {
    let counts = trigger["events"].as_array().expect("a list").iter();
    counts
        .filter(|c| c["state"] == state)
        .filter_map(|c| c["count"].as_u64())
        .sum()
}

#[tokio::test]
async fn an_object_leads_to_one_batch_whatever_its_name() {
    let server = Server::start();
    let (status, trigger) = make(
        &server,
        &copying(
            &server,
            "{webhook: {}}",
            "match: {bucket: lake, prefix: in/}",
        ),
    )
    .await;
    assert_eq!(status, 201, "{trigger:#}");
    let token = trigger["webhook_token"].as_str().expect("a token");
    let names = [
        "plain",
        "with space",
        "a+b",
        "a%3Ab",
        "a&b=c",
        "it's",
        "semi;colon",
        "grüße",
        "${event.stem}",
    ];
    std::fs::create_dir_all(server.lake().join("in")).unwrap();
    let mut records = Vec::new();
    for name in names {
        let key = format!("in/{name}.csv");
        std::fs::write(server.lake().join(&key), "a\n7\n").unwrap();
        // Delivered at least once.
        records.extend([record(&key, "x"), record(&key, "x")]);
    }
    records.push(json!({"broken": true}));
    records.push(record("elsewhere/x.csv", "x"));
    let (status, intake) = post(&server, token, &json!({ "Records": records }).to_string()).await;
    assert_eq!(status, 200, "{intake}");
    assert_eq!(
        intake,
        json!({"accepted": 9, "known": 9, "passed_over": 1, "poison": 1})
    );
    // What was answered survives; the next server submits it.
    let mut server = server;
    server.kill();
    server.launch();
    let trigger = wait_for(&server, "submitted events", |trigger| {
        count(trigger, "SUBMITTED") == 9
    })
    .await;
    assert_eq!(count(&trigger, "DEAD"), 1);
    let list = "/v1/batches?filter=trigger%20=%20arrivals";
    all_arrived(&server, list, 9, &names).await;
    // The values were bound, not pasted.
    let case = Case::new(&format!(
        "version: 1\nname: look\naccelerator: {{type: none}}\ntables:\n  - {{name: t, location: \"{}/out/it's/\"}}\nstages:\n  - {{name: n, sql: SELECT * FROM t}}\n",
        server.lake().display()
    ));
    let (stdout, _) = check(case.warpline(&["run", "spec.yaml", "--output", "json"]), 0);
    assert_eq!(
        parse(&stdout)["results"][0]["rows"],
        json!([{"a": 7, "key": "in/it's.csv", "bucket": "lake"}])
    );

    let again = json!({"Records": [record("in/plain.csv", "x")]}).to_string();
    assert_eq!(post(&server, token, &again).await.1["known"], 1);
    // New content under the old name is a new event; its batch finds the output taken.
    let newer = json!({"Records": [record("in/plain.csv", "y")]}).to_string();
    assert_eq!(post(&server, token, &newer).await.1["accepted"], 1);
}

#[tokio::test]
async fn a_webhook_asks_for_its_own_token() {
    let server = Server::start();
    let (_, trigger) = make(&server, &copying(&server, "{webhook: {}}", "")).await;
    let token = trigger["webhook_token"]
        .as_str()
        .expect("a token")
        .to_owned();
    let shown = Server::expect(server.get("/v1/triggers/arrivals").await, 200);
    assert_eq!(shown["webhook_token"], Value::Null);
    assert!(!shown.to_string().contains(&token));
    let good = json!({"Records": []}).to_string();
    for wrong in ["", "wl_0000", &token[1..], &format!("{token}0")] {
        let (status, answer) = post(&server, wrong, &good).await;
        assert_eq!(status, 401, "{answer}");
    }
    let absent = server
        .send(Method::POST, "/v1/triggers/absent/events", Some(json!({})))
        .await;
    assert_eq!(absent.0.as_u16(), 401);
    assert_eq!(post(&server, &token, &good).await.0, 200);
    assert_eq!(post(&server, &token, "{").await.0, 400);
    let path = format!("/v1/triggers/arrivals/events?token={token}");
    Server::expect(
        server
            .send(Method::POST, &path, Some(json!({"Records": []})))
            .await,
        200,
    );
    assert!(!server.log().contains(&token), "the token is not logged");
}

#[tokio::test]
async fn a_folder_is_polled_and_what_still_grows_is_left() {
    let server = Server::start();
    let lake = server.lake();
    std::fs::create_dir_all(lake.join("in")).unwrap();
    // Keys of local files are paths.
    let text = copying(
        &server,
        &format!(
            "{{poll: {{location: \"{}/in/\", interval: 1s}}}}",
            lake.display()
        ),
        "match: {suffix: .csv}",
    )
    .replace(
        &format!("{}/${{event.key}}", lake.display()),
        "${event.location}",
    );
    std::fs::write(lake.join("in/first.csv"), "a\n1\n").unwrap();
    std::fs::write(lake.join("in/passed.over"), "a\n1\n").unwrap();
    let (status, trigger) = make(&server, &text).await;
    assert_eq!(status, 201, "{trigger:#}");
    wait_for(&server, "first object", |trigger| {
        count(trigger, "SUBMITTED") == 1
    })
    .await;
    std::fs::write(lake.join("in/second.csv"), "a\n2\n").unwrap();
    let trigger = wait_for(&server, "second object", |trigger| {
        count(trigger, "SUBMITTED") == 2
    })
    .await;
    assert_eq!(count(&trigger, "DEAD"), 0, "{trigger:#}");
    let list = Server::expect(server.get("/v1/batches").await, 200);
    for batch in list["batches"].as_array().unwrap() {
        let end = server.end_of(batch["batch_id"].as_str().unwrap()).await;
        assert_eq!(end["state"], "SUCCEEDED", "{end:#}");
    }
    assert_eq!(data_files(&lake, "out/first").len(), 1);
    assert_eq!(data_files(&lake, "out/second").len(), 1);
    let gone = server
        .send(Method::DELETE, "/v1/triggers/arrivals", None)
        .await;
    assert_eq!(gone.0.as_u16(), 204);
    Server::expect(server.get("/v1/triggers/arrivals").await, 404);
}

#[tokio::test]
async fn many_objects_are_one_batch_with_a_table_of_them() {
    let server = Server::start();
    let lake = server.lake().display().to_string();
    let text = format!(
        "name: arrivals\nsource: {{webhook: {{}}}}\nmatch: {{prefix: in/}}\ncoalesce: true\nreadiness: {{marker: _SUCCESS}}\n\
         batch: |\n  version: 1\n  name: many\n  accelerator: {{type: none}}\n  executors: {{instances: 1, cores: 1}}\n  stages:\n    \
         - name: many\n      sql: SELECT key, size, location FROM event_objects\n      output: {{location: \"{lake}/out\"}}\n"
    );
    let (status, trigger) = make(&server, &text).await;
    assert_eq!(status, 201, "{trigger:#}");
    let token = trigger["webhook_token"]
        .as_str()
        .expect("a token")
        .to_owned();
    let records = json!({"Records": [record("in/b'c.csv", "x"), record("in/a.csv", "x")]});
    post(&server, &token, &records.to_string()).await;
    let pause = Server::expect(server.post("/v1/triggers/arrivals:pause").await, 200);
    assert_eq!(pause["paused"], "local paused it");
    post(
        &server,
        &token,
        &json!({"Records": [record("in/_SUCCESS", "x")]}).to_string(),
    )
    .await;
    let resumed = Server::expect(server.post("/v1/triggers/arrivals:resume").await, 200);
    assert_eq!(resumed["paused"], Value::Null);
    wait_for(&server, "submitted events", |trigger| {
        count(trigger, "SUBMITTED") == 3
    })
    .await;
    let list = Server::expect(server.get("/v1/batches").await, 200);
    assert_eq!(list["batches"].as_array().unwrap().len(), 1, "{list:#}");
    let end = server
        .end_of(list["batches"][0]["batch_id"].as_str().unwrap())
        .await;
    assert_eq!(end["state"], "SUCCEEDED", "{end:#}");
    let case = Case::new(&format!(
        "version: 1\nname: look\naccelerator: {{type: none}}\ntables:\n  - {{name: t, location: \"{lake}/out/\"}}\nstages:\n  - {{name: n, sql: SELECT * FROM t ORDER BY key}}\n"
    ));
    let (stdout, _) = check(case.warpline(&["run", "spec.yaml", "--output", "json"]), 0);
    assert_eq!(
        parse(&stdout)["results"][0]["rows"],
        json!([
            {"key": "in/a.csv", "size": 5, "location": "s3://lake/in/a.csv"},
            {"key": "in/b'c.csv", "size": 5, "location": "s3://lake/in/b'c.csv"},
        ])
    );
}

#[tokio::test]
async fn a_wrong_trigger_is_told_and_a_dead_event_says_why() {
    let server = Server::start();
    let good = copying(
        &server,
        "{webhook: {}}",
        "match: {bucket: lake, prefix: in/}",
    );
    for (text, field) in [
        (good.replace("name: arrivals", "name: A"), "name"),
        (good.replace("prefix: in/", "glob: \"[\""), "match.glob"),
        (
            good.replace("batch: |", "readiness: {count: 2}\nbatch: |"),
            "coalesce",
        ),
        (
            good.replace("batch: |", "limits: {in_flight: 0}\nbatch: |"),
            "limits.in_flight",
        ),
        (
            good.replace("{webhook: {}}", "{poll: {location: /etc/}}"),
            "source.poll.location",
        ),
        (
            good.replace("accelerator:", "acelerator:"),
            "batch.acelerator",
        ),
        (good.replace("source:", "sauce:"), ""),
        (
            good.replace(
                &format!("{}/out/", server.lake().display()),
                "s3://lake/in/out/",
            ),
            "batch",
        ),
    ] {
        let (status, refused) = make(&server, &text).await;
        assert_eq!(status, 400, "{refused:#}");
        assert_eq!(
            refused["error"]["field_violations"][0]["field"], field,
            "{refused:#}"
        );
    }
    let (_, trigger) = make(&server, &good).await;
    let token = trigger["webhook_token"]
        .as_str()
        .expect("a token")
        .to_owned();
    assert_eq!(make(&server, &good).await.0, 409);
    for key in ["in/../../../etc/passwd", "in/star*.csv"] {
        post(
            &server,
            &token,
            &json!({"Records": [record(key, "x")]}).to_string(),
        )
        .await;
    }
    let trigger = wait_for(&server, "dead events", |trigger| {
        count(trigger, "DEAD") == 2
    })
    .await;
    let reasons = trigger["dead"].to_string();
    assert!(
        reasons.contains("does not reach") && reasons.contains("takes for a pattern"),
        "{reasons}"
    );
    let list = Server::expect(server.get("/v1/batches").await, 200);
    assert_eq!(list["batches"], json!([]));
    Server::expect(server.post("/v1/triggers/arrivals:replay").await, 200);
    wait_for(&server, "dead events again", |trigger| {
        count(trigger, "DEAD") == 2
    })
    .await;
}

/// The trigger that the README shows is one.
#[tokio::test]
async fn the_sample_of_the_readme_is_accepted() {
    let readme = include_str!("../../README.md");
    let sample = readme
        .split("```yaml\n")
        .nth(1)
        .and_then(|rest| rest.split("```").next());
    let server = Server::start();
    let (status, answer) = make(&server, sample.expect("a sample")).await;
    assert_eq!(status, 201, "{answer:#}");
}

/// Waits for the batches of a list, of which there are so many, to succeed; each name then has
/// one file.
async fn all_arrived(server: &Server, list: &str, n: usize, names: &[&str]) {
    let list = Server::expect(server.get(list).await, 200);
    let batches = list["batches"].as_array().unwrap();
    assert_eq!(batches.len(), n);
    for batch in batches {
        let end = server.end_of(batch["batch_id"].as_str().unwrap()).await;
        assert_eq!(end["state"], "SUCCEEDED", "{end:#}");
    }
    for name in names {
        let files = data_files(&server.lake(), &format!("out/{name}"));
        assert_eq!(files.len(), 1, "{name}");
    }
}

/// moto's server, which has S3 and SQS and sends the one's notifications to the other.
struct Moto {
    process: std::process::Child,
    url: String,
    _folder: tempfile::TempDir,
}

impl Drop for Moto {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Moto {
    /// None when the package is not installed and need not be.
    async fn start() -> Option<Moto> {
        let cache = std::env::var_os("XDG_CACHE_HOME").map(std::path::PathBuf::from);
        let home = std::env::var_os("HOME").map(|home| std::path::Path::new(&home).join(".cache"));
        let tool = cache.or(home)?.join("warpline/tools/moto-5.2.5");
        if !tool.join("moto").exists() {
            let told = "moto is not installed; infra/install-test-tools installs it";
            assert!(
                std::env::var_os("WARPLINE_REQUIRE_MOTO").is_none(),
                "{told}"
            );
            eprintln!("skipped: {told}");
            return None;
        }
        let port = crate::server::free_port();
        let folder = tempfile::tempdir().expect("a temporary folder");
        let process = std::process::Command::new("python3")
            .args([
                "-c",
                "from moto.server import main; main()",
                "-H",
                "127.0.0.1",
                "-p",
                &port.to_string(),
            ])
            .env("PYTHONPATH", &tool)
            .current_dir(folder.path())
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null())
            .spawn()
            .expect("python3 starts");
        let moto = Moto {
            process,
            url: format!("http://127.0.0.1:{port}"),
            _folder: folder,
        };
        crate::support::wait_until("answer of moto", || {
            std::net::TcpStream::connect(("127.0.0.1", port)).is_ok()
        });
        Some(moto)
    }

    async fn sqs(&self, action: &str, body: Value) -> Value {
        let answer = reqwest::Client::new()
            .post(format!("{}/", self.url))
            .header("x-amz-target", format!("AmazonSQS.{action}"))
            .header("content-type", "application/x-amz-json-1.0")
            .header("authorization", "AWS4-HMAC-SHA256 Credential=t/20260101/us-east-1/sqs/aws4_request, SignedHeaders=host, Signature=0")
            .body(body.to_string())
            .send()
            .await
            .expect("an answer");
        assert!(
            answer.status().is_success(),
            "{action}: {}",
            answer.status()
        );
        answer.json().await.unwrap_or(Value::Null)
    }

    async fn s3(&self, path: &str, body: &str) {
        let url = format!("{}/{path}", self.url);
        let put = reqwest::Client::new()
            .put(url)
            .body(body.to_owned())
            .send()
            .await
            .expect("an answer");
        assert!(put.status().is_success(), "{path}: {}", put.status());
    }

    async fn messages(&self, queue: &str) -> u64 {
        let names = json!([
            "ApproximateNumberOfMessages",
            "ApproximateNumberOfMessagesNotVisible"
        ]);
        let asked = json!({"QueueUrl": queue, "AttributeNames": names});
        let answer = self.sqs("GetQueueAttributes", asked).await;
        let n = |name: &str| {
            answer["Attributes"][name]
                .as_str()
                .and_then(|n| n.parse::<u64>().ok())
        };
        n("ApproximateNumberOfMessages").unwrap_or(0)
            + n("ApproximateNumberOfMessagesNotVisible").unwrap_or(0)
    }
}

#[tokio::test]
async fn an_object_put_into_a_bucket_starts_a_batch_through_a_queue() {
    let Some(moto) = Moto::start().await else {
        return;
    };
    let made = moto
        .sqs("CreateQueue", json!({"QueueName": "arrivals"}))
        .await;
    let queue = made["QueueUrl"].as_str().expect("a queue").to_owned();
    moto.s3("lake", "").await;
    moto.s3(
        "lake?notification",
        "<NotificationConfiguration><QueueConfiguration><Queue>arn:aws:sqs:us-east-1:123456789012:arrivals</Queue>\
         <Event>s3:ObjectCreated:*</Event></QueueConfiguration></NotificationConfiguration>",
    )
    .await;

    let mut server = Server::prepare(&["--cpu-slots", "2", "--location", "s3://lake/"]);
    let settings = server.folder().join("server.yaml");
    std::fs::write(
        &settings,
        format!("endpoints: [\"{}\"]\ncredentials: [MOTO]\n", moto.url),
    )
    .unwrap();
    server.add_argument("--config");
    server.add_argument(&settings.display().to_string());
    server.set_env("MOTO_ACCESS_KEY_ID", "test");
    server.set_env("MOTO_SECRET_ACCESS_KEY", "test");
    server.launch();
    let text = |queue: &str, credentials: &str| {
        let source = format!(
            "{{sqs: {{queue_url: \"{queue}\", region: us-east-1, credentials: {credentials}}}}}"
        );
        copying(&server, &source, "match: {bucket: lake, prefix: in/, suffix: .csv}")
            .replace(&format!("{}/${{event.key}}", server.lake().display()), "${event.location}")
            .replace(
                "  tables:",
                &format!("  storage:\n    - {{prefix: \"s3://lake/\", endpoint: \"{}\", region: us-east-1, credentials: {{env: MOTO}}}}\n  tables:", moto.url),
            )
    };
    for (queue, credentials, field) in [
        ("http://127.0.0.1:1/1/q", "MOTO", "source.sqs.queue_url"),
        ("nonsense", "MOTO", "source.sqs.queue_url"),
        (queue.as_str(), "AWS", "source.sqs.credentials"),
    ] {
        let (status, refused) = make(&server, &text(queue, credentials)).await;
        assert_eq!(status, 400, "{refused:#}");
        assert_eq!(
            refused["error"]["field_violations"][0]["field"], field,
            "{refused:#}"
        );
    }
    let (status, trigger) = make(&server, &text(&queue, "MOTO")).await;
    assert_eq!(status, 201, "{trigger:#}");

    let names = ["plain", "with space", "a+b", "a%3Ab", "it's;&", "grüße"];
    for name in names {
        let name = percent_encoding::utf8_percent_encode(name, percent_encoding::NON_ALPHANUMERIC);
        moto.s3(&format!("lake/in/{name}.csv"), "a\n7\n").await;
    }
    moto.s3("lake/elsewhere/x.csv", "a\n7\n").await;
    let body = json!({"QueueUrl": queue, "MessageBody": "not json"});
    moto.sqs("SendMessage", body).await;
    let trigger = wait_for(&server, "submitted events", |trigger| {
        count(trigger, "SUBMITTED") == names.len() as u64 && count(trigger, "DEAD") == 1
    })
    .await;
    assert!(
        trigger["dead"].to_string().contains("none that is known"),
        "{trigger:#}"
    );
    all_arrived(&server, "/v1/batches", names.len(), &names).await;
    // What is in the ledger is no longer in the queue.
    let since = std::time::Instant::now();
    while moto.messages(&queue).await > 0 {
        assert!(
            since.elapsed() < crate::server::PATIENCE,
            "messages stay in the queue"
        );
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
}
