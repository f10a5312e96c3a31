//! How batches end that do not just succeed.

use reqwest::StatusCode;

use crate::server::{Server, data_files, long, one_row};
use crate::support::wait_until;

#[tokio::test]
async fn a_running_batch_is_cancelled_and_its_process_is_gone() {
    let server = Server::start();
    server.accept("running", &long(&server.lake(), "out")).await;
    server.running("running").await;
    wait_until("worker", || !server.workers().is_empty());
    let told = Server::expect(server.post("/v1/batches/running:cancel").await, 200);
    assert!(
        ["CANCELLING", "CANCELLED"].contains(&told["state"].as_str().unwrap()),
        "{told}"
    );
    let batch = server.end_of("running").await;
    assert_eq!(batch["state"], "CANCELLED", "{batch:#}");
    assert_eq!(batch["failure"]["kind"], "cancelled");
    wait_until("end of the worker", || server.workers().is_empty());
    let left: Vec<_> = std::fs::read_dir(server.lake())
        .unwrap()
        .flatten()
        .map(|e| e.file_name())
        .collect();
    assert!(left.is_empty(), "nothing of it stays: {left:?}");
    // Again changes nothing.
    let again = Server::expect(server.post("/v1/batches/running:cancel").await, 200);
    assert_eq!(again["etag"], batch["etag"]);
    let refused = Server::expect(server.post("/v1/batches/running:stop").await, 400);
    assert!(
        refused["error"]["message"]
            .as_str()
            .unwrap()
            .contains(":cancel")
    );
}

#[tokio::test]
async fn what_waits_says_why_and_can_be_cancelled_or_expire() {
    let server = Server::start_with(&["--cpu-slots", "1"]);
    server.accept("first", &long(&server.lake(), "out")).await;
    server.running("first").await;
    let spec = one_row(&server.lake(), "two", "error");
    server.accept("second", &spec).await;
    let third = spec.replace("stages:", "limits: {queue_ttl: 1s}\nstages:");
    server.accept("third", &third).await;
    let second = Server::expect(server.get("/v1/batches/second").await, 200);
    assert_eq!(
        second["queue"]["reason"],
        "waiting for 1 of 1 cores in use, position 1"
    );
    // A batch that has not ended cannot be forgotten or retried.
    for (method, path) in [
        ("DELETE", "/v1/batches/second"),
        ("POST", "/v1/batches/second:retry"),
    ] {
        let refused = server.send(method.parse().unwrap(), path, None).await;
        assert_eq!(
            refused.1["error"]["status"], "FAILED_PRECONDITION",
            "{}",
            refused.1
        );
    }
    Server::expect(server.post("/v1/batches/second:cancel").await, 200);
    let second = server.end_of("second").await;
    assert_eq!(second["attempts"], serde_json::json!([]));
    let third = server.end_of("third").await;
    assert_eq!(third["state"], "FAILED");
    assert_eq!(third["failure"]["kind"], "queue_expired");
    // It can be tried again; then it runs once there is room.
    Server::expect(server.post("/v1/batches/first:cancel").await, 200);
    server.end_of("first").await;
    Server::expect(server.post("/v1/batches/second:retry").await, 200);
    let second = server.end_of("second").await;
    assert_eq!(second["state"], "SUCCEEDED", "{second:#}");
    assert_eq!(data_files(&server.lake(), "two").len(), 1);
}

#[tokio::test]
async fn time_to_live_is_a_state_of_its_own() {
    let server = Server::start();
    let spec = long(&server.lake(), "out").replace("stages:", "limits: {ttl: 1s}\nstages:");
    server.accept("slow", &spec).await;
    let batch = server.end_of("slow").await;
    assert_eq!(batch["state"], "TIMED_OUT", "{batch:#}");
    assert_eq!(batch["failure"]["kind"], "timed_out");
    assert_eq!(batch["attempts"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn a_wrong_query_fails_once_and_says_where() {
    let server = Server::start();
    let spec =
        one_row(&server.lake(), "out", "error").replace("42 AS answer", "answer FROM nowhere");
    server.accept("wrong", &spec).await;
    let batch = server.end_of("wrong").await;
    assert_eq!(batch["state"], "FAILED");
    assert_eq!(batch["failure"]["kind"], "invalid_query");
    assert_eq!(batch["failure"]["stage"], "answer");
    assert_eq!(batch["attempts"].as_array().unwrap().len(), 1);
    let log = Server::expect(server.get("/v1/batches/wrong/logs").await, 200);
    assert!(log.to_string().contains("nowhere"), "{log}");
}

#[tokio::test]
async fn a_server_that_is_told_to_stop_lets_batches_end() {
    let mut server = Server::start();
    let spec = one_row(&server.lake(), "out", "error");
    server.accept("last", &spec).await;
    server.running("last").await;
    server.terminate();
    assert_eq!(server.wait(), Some(0));
    server.launch();
    let batch = server.end_of("last").await;
    assert_eq!(batch["state"], "SUCCEEDED", "{batch:#}");
    assert_eq!(batch["attempts"].as_array().unwrap().len(), 1, "{batch:#}");
    let (status, _) = server.get("/v1/batches/last/report").await;
    assert_eq!(status, StatusCode::OK);
}

#[tokio::test]
async fn what_does_not_end_in_time_is_given_back() {
    let mut server = Server::prepare(&["--cpu-slots", "1"]);
    let settings = server.folder().join("server.yaml");
    std::fs::write(&settings, "drain: 1s\n").unwrap();
    server.add_argument("--config");
    server.add_argument(&settings.display().to_string());
    server.launch();
    server.accept("long", &long(&server.lake(), "out")).await;
    server.running("long").await;
    server.terminate();
    assert_eq!(server.wait(), Some(0));
    wait_until("end of the worker", || server.workers().is_empty());
    assert!(data_files(&server.lake(), "out").is_empty());
    server.launch();
    let batch = server
        .wait_for("long", "at its second attempt", |batch| {
            batch["attempts"]
                .as_array()
                .is_some_and(|attempts| attempts.len() == 2)
        })
        .await;
    assert_eq!(batch["attempts"][0]["end"], "lost");
    Server::expect(server.post("/v1/batches/long:cancel").await, 200);
    assert_eq!(server.end_of("long").await["state"], "CANCELLED");
}

#[tokio::test]
async fn an_attempt_that_takes_too_much_memory_is_killed_and_tried_once_more_in_small() {
    let mut server = Server::prepare(&["--cpu-slots", "1"]);
    let settings = server.folder().join("server.yaml");
    std::fs::write(&settings, "worker_memory: 10m\n").unwrap();
    server.add_argument("--config");
    server.add_argument(&settings.display().to_string());
    server.launch();
    server.accept("large", &long(&server.lake(), "out")).await;
    let batch = server.end_of("large").await;
    assert_eq!(batch["state"], "FAILED", "{batch:#}");
    assert_eq!(batch["failure"]["kind"], "out_of_resources");
    assert!(
        batch["state_message"]
            .as_str()
            .unwrap()
            .contains("may hold 10 MiB"),
        "{batch:#}"
    );
    let attempts = batch["attempts"].as_array().unwrap();
    let reduced: Vec<_> = attempts
        .iter()
        .map(|attempt| attempt["is_reduced"].clone())
        .collect();
    assert_eq!(reduced, [false, true]);
    wait_until("end of the worker", || server.workers().is_empty());
    assert!(data_files(&server.lake(), "out").is_empty());
}
