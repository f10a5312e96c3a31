//! What is killed at any moment ends as it should, once.

use crate::server::{Server, data_files, long, one_row};
use crate::support::wait_until;

/// Kills a process of ours.
pub fn kill(pid: u32) {
    // It may be gone already.
    let _ = std::process::Command::new("sh")
        .args(["-c", &format!("kill -9 {pid} 2>/dev/null")])
        .status();
}

#[tokio::test]
async fn a_killed_worker_is_followed_by_another_attempt() {
    let server = Server::start();
    server.accept("unlucky", &long(&server.lake(), "out")).await;
    server.running("unlucky").await;
    wait_until("worker", || !server.workers().is_empty());
    kill(server.workers()[0]);
    let batch = server
        .wait_for("unlucky", "at its second attempt", |batch| {
            batch["attempts"]
                .as_array()
                .is_some_and(|attempts| attempts.len() == 2)
        })
        .await;
    assert_eq!(batch["attempts"][0]["end"], "crashed", "{batch:#}");
    assert_eq!(batch["attempts"][0]["failure"]["kind"], "worker_lost");
    Server::expect(server.post("/v1/batches/unlucky:cancel").await, 200);
    assert_eq!(server.end_of("unlucky").await["state"], "CANCELLED");
    assert!(data_files(&server.lake(), "out").is_empty());
}

#[tokio::test]
async fn a_killed_server_takes_its_workers_along_and_goes_on_after_its_return() {
    let mut server = Server::start_with(&["--cpu-slots", "1"]);
    server.accept("running", &long(&server.lake(), "out")).await;
    server.running("running").await;
    wait_until("worker", || !server.workers().is_empty());
    let spec = one_row(&server.lake(), "two", "append");
    server.accept("waiting", &spec).await;
    server.kill();
    wait_until("end of the worker", || server.workers().is_empty());
    server.launch();
    let batch = server
        .wait_for("running", "at its second attempt", |batch| {
            batch["attempts"]
                .as_array()
                .is_some_and(|attempts| attempts.len() == 2)
        })
        .await;
    assert_eq!(batch["attempts"][0]["end"], "lost", "{batch:#}");
    Server::expect(server.post("/v1/batches/running:cancel").await, 200);
    assert_eq!(server.end_of("running").await["state"], "CANCELLED");
    let batch = server.end_of("waiting").await;
    assert_eq!(batch["state"], "SUCCEEDED", "{batch:#}");
    assert_eq!(data_files(&server.lake(), "two").len(), 1);
    assert!(data_files(&server.lake(), "out").is_empty());
}

#[tokio::test]
async fn a_worker_that_stands_still_is_gone_before_its_batch_is_given_away() {
    let mut server = Server::prepare(&["--cpu-slots", "1"]);
    let settings = server.folder().join("server.yaml");
    std::fs::write(&settings, "lease: 3s\n").unwrap();
    server.add_argument("--config");
    server.add_argument(&settings.display().to_string());
    server.launch();
    server.accept("frozen", &long(&server.lake(), "out")).await;
    server.running("frozen").await;
    wait_until("worker", || !server.workers().is_empty());
    let worker = server.workers()[0];
    let signal = |name: &str| {
        let sent = std::process::Command::new("sh")
            .args(["-c", &format!("kill -{name} {worker}")])
            .status();
        assert!(sent.expect("a shell").success() || name == "CONT");
    };
    signal("STOP");
    // Its server dies. The system may end it for that; if not, the next server does, before
    // it gives the batch to another.
    server.kill();
    server.launch();
    assert!(
        !server.workers().contains(&worker),
        "it is gone before the server serves"
    );
    let batch = server
        .wait_for("frozen", "at its second attempt", |batch| {
            batch["attempts"]
                .as_array()
                .is_some_and(|attempts| attempts.len() == 2)
        })
        .await;
    assert_eq!(batch["attempts"][0]["end"], "lost", "{batch:#}");
    Server::expect(server.post("/v1/batches/frozen:cancel").await, 200);
    server.end_of("frozen").await;
    assert!(data_files(&server.lake(), "out").is_empty());
}

/// A stage that was published is not made again by the next attempt.
#[tokio::test]
async fn a_retry_makes_only_what_is_missing() {
    let server = Server::start();
    let lake = server.lake();
    let spec = one_row(&lake, "first", "append")
        + &format!(
            "  - name: second\n    sql: SELECT count(*) AS n FROM missing\n    output: {{location: \"{}/second\"}}\n",
            lake.display()
        )
        + "";
    let spec = spec.replace(
        "stages:",
        &format!(
            "tables:\n  - {{name: missing, location: \"{}/input/*.csv\", format: csv}}\nstages:",
            lake.display()
        ),
    );
    std::fs::create_dir(lake.join("input")).unwrap();
    std::fs::write(lake.join("input/a.csv"), "a\n1\n").unwrap();
    let broken = spec.replace("count(*)", "1 / (count(*) - 1)");
    server.accept("partial", &broken).await;
    let batch = server.end_of("partial").await;
    assert_eq!(batch["failure"]["kind"], "data_error", "{batch:#}");
    let made = data_files(&lake, "first");
    assert_eq!(made.len(), 1);
    // The author mends the data and asks for another attempt.
    std::fs::write(lake.join("input/b.csv"), "a\n1\n").unwrap();
    Server::expect(server.post("/v1/batches/partial:retry").await, 200);
    let batch = server.end_of("partial").await;
    assert_eq!(batch["state"], "SUCCEEDED", "{batch:#}");
    assert_eq!(data_files(&lake, "first"), made);
    assert_eq!(data_files(&lake, "second").len(), 1);
    let report = Server::expect(server.get("/v1/batches/partial/report").await, 200);
    assert_eq!(
        report["stages"][0]["report"]["output"]["recovered"], true,
        "{report:#}"
    );
}
