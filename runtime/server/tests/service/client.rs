//! `warpline batches` as its users meet it: exit codes, where output goes, what is said.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use serde_json::Value;

use crate::server::{Server, free_port, long, one_row};
use crate::support::{Case, assert_own_words, check, json, signal, wait_until};

fn write(server: &Server, name: &str, spec: &str) {
    std::fs::write(server.folder().join(name), spec).expect("a spec");
}

/// Runs the client; standard output and standard error.
#[track_caller]
fn run(server: &Server, arguments: &[&str], exit_code: i32) -> (String, String) {
    check(server.run_client(arguments), exit_code)
}

#[tokio::test]
async fn a_batch_is_submitted_followed_and_looked_at() {
    let server = Server::start();
    write(
        &server,
        "spec.yaml",
        &one_row(&server.lake(), "out", "error"),
    );
    let (stdout, stderr) = run(&server, &["submit", "spec.yaml", "--batch-id", "mine"], 0);
    assert_eq!(stdout, "");
    assert!(
        stderr.contains("submitted mine to http://127.0.0.1:"),
        "{stderr}"
    );
    assert!(stderr.contains("[answer] the stage starts"), "{stderr}");
    assert!(
        stderr.contains("mine succeeded in ") && stderr.contains(", 1 rows"),
        "{stderr}"
    );

    let (stdout, _) = run(&server, &["list"], 0);
    assert!(
        stdout.starts_with("id ") && stdout.contains("mine  SUCCEEDED  local"),
        "{stdout}"
    );
    let (stdout, _) = run(&server, &["list", "--output", "json", "-l", "team=none"], 0);
    assert_eq!(json(&stdout)["batches"], serde_json::json!([]));
    let (stdout, _) = run(&server, &["describe", "mine"], 0);
    assert!(stdout.contains("state        SUCCEEDED"), "{stdout}");
    assert!(stdout.contains("attempt 1: succeeded after "), "{stdout}");
    let (stdout, _) = run(&server, &["describe", "mine", "--output", "json"], 0);
    assert_eq!(json(&stdout)["batch_id"], "mine");
    let (stdout, _) = run(&server, &["logs", "mine"], 0);
    assert!(stdout.contains("[answer] 1 rows in "), "{stdout}");
    let (stdout, _) = run(&server, &["logs", "mine", "-f", "--output", "json"], 0);
    assert!(
        stdout.lines().all(|line| json(line)["batch"] == "mine"),
        "{stdout}"
    );
    let (stdout, _) = run(&server, &["report", "mine"], 0);
    assert_eq!(json(&stdout)["state"], "succeeded");
    let (_, stderr) = run(&server, &["wait", "mine"], 0);
    assert!(stderr.contains("mine succeeded"), "{stderr}");
    let (_, stderr) = run(&server, &["retry", "mine"], 2);
    assert!(
        stderr.contains("has succeeded; submit it again"),
        "{stderr}"
    );
    run(&server, &["delete", "mine"], 0);
    let (_, stderr) = run(&server, &["describe", "mine"], 1);
    assert!(stderr.contains("there is no batch `mine`"), "{stderr}");
}

#[tokio::test]
async fn each_end_has_its_exit_code() {
    let server = Server::start_with(&["--cpu-slots", "1"]);
    let spec = one_row(&server.lake(), "out", "error");
    write(&server, "good.yaml", &spec);
    write(
        &server,
        "wrong.yaml",
        &one_row(&server.lake(), "wrong", "error").replace("SELECT 42", "SELECT nothing"),
    );
    write(
        &server,
        "bad.yaml",
        &spec.replace("accelerator", "acelerator"),
    );
    write(
        &server,
        "slow.yaml",
        &long(&server.lake(), "slow").replace("stages:", "limits: {ttl: 1s}\nstages:"),
    );
    write(&server, "long.yaml", &long(&server.lake(), "long"));
    write(
        &server,
        "queue.yaml",
        &one_row(&server.lake(), "q", "error")
            .replace("stages:", "limits: {queue_ttl: 1s}\nstages:"),
    );

    run(
        &server,
        &["submit", "good.yaml", "--batch-id", "good", "--wait"],
        0,
    );
    let (_, stderr) = run(&server, &["submit", "wrong.yaml", "--wait"], 1);
    assert!(
        stderr.contains("error[invalid_query]: stage answer: "),
        "{stderr}"
    );
    let (_, stderr) = run(&server, &["submit", "bad.yaml"], 2);
    assert!(
        stderr.contains("spec:3:1: error[") && stderr.contains("accelerator"),
        "{stderr}"
    );
    run(&server, &["submit", "absent.yaml"], 2);
    run(&server, &["submit", "bad.yaml", "--validate-only"], 2);
    run(&server, &["submit", "good.yaml", "--validate-only"], 0);
    let (stdout, _) = run(
        &server,
        &["submit", "slow.yaml", "--wait", "--output", "json"],
        4,
    );
    assert_eq!(json(&stdout)["state"], "TIMED_OUT");
    write(
        &server,
        "other.yaml",
        &spec.replace("SELECT 42", "SELECT 43"),
    );
    let (_, stderr) = run(&server, &["submit", "other.yaml", "--batch-id", "good"], 9);
    assert!(stderr.contains("differs: spec.stages[0].sql"), "{stderr}");

    let (stdout, stderr) = run(
        &server,
        &["submit", "long.yaml", "--batch-id", "long", "--async"],
        0,
    );
    assert_eq!(stdout, "long\n");
    assert!(stderr.contains("warpline batches logs -f long"), "{stderr}");
    server.running("long").await;
    let (_, stderr) = run(&server, &["wait", "long", "--timeout", "1s"], 5);
    assert!(stderr.contains("long goes on"), "{stderr}");
    let (_, stderr) = run(&server, &["submit", "queue.yaml", "--wait"], 7);
    assert!(stderr.contains("error[queue_expired]"), "{stderr}");
    let (stdout, _) = run(
        &server,
        &["cancel", "long", "--wait", "--output", "json"],
        0,
    );
    assert_eq!(json(&stdout)["batches"][0]["state"], "CANCELLED");
    run(&server, &["wait", "long"], 3);

    let nowhere = format!("http://127.0.0.1:{}", free_port());
    let case = Case::new(&spec);
    let output = case.warpline(&["batches", "submit", "spec.yaml", "--server", &nowhere]);
    let (_, stderr) = check(output, 8);
    assert!(
        stderr.contains("does not answer; is it running there?"),
        "{stderr}"
    );
    for server in ["nonsense", "ftp://x", "http://"] {
        let output = case.warpline(&["batches", "list", "--server", server]);
        check(output, 2);
    }
}

#[tokio::test]
async fn batches_are_cancelled_by_label() {
    let server = Server::start_with(&["--cpu-slots", "1"]);
    for (i, team) in ["red", "red", "blue"].iter().enumerate() {
        let spec = long(&server.lake(), &format!("out-{i}")).replace(
            "accelerator:",
            &format!("labels: {{team: {team}}}\naccelerator:"),
        );
        server.accept(&format!("batch-{i}"), &spec).await;
    }
    let (_, stderr) = run(&server, &["cancel", "-l", "team=red", "--wait"], 0);
    assert!(
        stderr.contains("batch-0: CANCELLED") && stderr.contains("batch-1: CANCELLED"),
        "{stderr}"
    );
    assert!(!stderr.contains("batch-2"), "{stderr}");
    run(&server, &["cancel", "-l", "team=red"], 0);
    run(&server, &["cancel"], 2);
    run(&server, &["cancel", "batch-2", "--wait"], 0);
}

#[tokio::test]
async fn ctrl_c_leaves_the_batch_and_a_second_one_cancels_it() {
    let server = Server::start();
    write(&server, "spec.yaml", &long(&server.lake(), "out"));
    for (n_signals, exit_code, state) in [(1, 5, "RUNNING"), (2, 3, "CANCELLED")] {
        let id = format!("left-{n_signals}");
        let mut child = server
            .client(&["submit", "spec.yaml", "--batch-id", &id])
            .stderr(Stdio::piped())
            .spawn()
            .expect("warpline starts");
        let mut lines = BufReader::new(child.stderr.take().expect("a pipe")).lines();
        let mut until = |word: &str| {
            let found = lines
                .by_ref()
                .map(|line| line.expect("text"))
                .find(|line| line.contains(word));
            assert!(found.is_some(), "no `{word}`");
        };
        until("the stage starts");
        signal(&child, "INT");
        until("goes on; come back with: warpline batches wait");
        until("press Ctrl-C again");
        if n_signals == 2 {
            signal(&child, "INT");
            until("was told to stop");
        }
        wait_until("end of the client", || {
            child.try_wait().expect("a child").is_some()
        });
        assert_eq!(child.wait().expect("it ended").code(), Some(exit_code));
        if state == "RUNNING" {
            assert_eq!(server.running(&id).await["state"], "RUNNING");
            Server::expect(server.post(&format!("/v1/batches/{id}:cancel")).await, 200);
        }
        assert_eq!(server.end_of(&id).await["state"], "CANCELLED");
    }
}

#[tokio::test]
async fn a_client_goes_on_while_its_server_comes_back() {
    let mut server = Server::start();
    server.accept("tough", &long(&server.lake(), "out")).await;
    server.running("tough").await;
    let mut follower = server
        .client(&["logs", "-f", "tough"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("warpline starts");
    let lines = BufReader::new(follower.stdout.take().expect("a pipe")).lines();
    let mut lines = lines.map(|line| line.expect("text"));
    let starts = |line: &String| line.contains("the stage starts");
    assert!(lines.any(|line| starts(&line)));
    server.kill();
    server.launch();
    // The same client sees the next attempt begin.
    assert!(lines.any(|line| starts(&line)));
    Server::expect(server.post("/v1/batches/tough:cancel").await, 200);
    assert!(lines.any(|line| line.contains("cancelled")));
    let output = follower.wait_with_output().expect("it ends");
    check(output, 0);
}

/// The commands of the README work as they stand.
#[tokio::test]
async fn the_samples_of_the_readme_run() {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    let readme = std::fs::read_to_string(format!("{root}/README.md")).expect("a README");
    let line = |start: &str| {
        let line = readme.lines().find(|line| line.starts_with(start));
        let line = line.unwrap_or_else(|| panic!("no line `{start}`"));
        let code = line
            .split('#')
            .next()
            .expect("a part")
            .trim_end_matches([' ', '&']);
        code.split_whitespace()
            .map(|word| word.replace("\"$PWD\"", root))
            .collect::<Vec<_>>()
    };
    let serve = line("warpline serve ");
    let options: Vec<&str> = serve[2..].iter().map(String::as_str).collect();
    let server = Server::start_with(&options);
    for start in ["warpline batches submit ", "warpline batches list"] {
        let words = line(start);
        let arguments: Vec<&str> = words[2..].iter().map(String::as_str).collect();
        let output = server.client(&arguments).current_dir(root).output();
        check(output.expect("warpline starts"), 0);
    }
}

#[tokio::test]
async fn a_context_names_the_service_and_options_win_over_it() {
    let server = Server::start();
    let config = server.folder().join("config/warpline");
    std::fs::create_dir_all(&config).unwrap();
    let text = format!(
        "current: here\ncontexts:\n  here: {{server: \"{}\"}}\n  gone: {{server: \"http://127.0.0.1:{}\", token_file: /nowhere}}\n",
        server.url(),
        free_port()
    );
    std::fs::write(config.join("contexts.yaml"), text).unwrap();
    let run = |arguments: &[&str]| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_warpline"));
        command
            .arg("batches")
            .args(arguments)
            .env("XDG_CONFIG_HOME", server.folder().join("config"))
            .env_remove("WARPLINE_SERVER")
            .env_remove("WARPLINE_TOKEN")
            .output()
            .expect("warpline starts")
    };
    check(run(&["list"]), 0);
    let (_, stderr) = check(run(&["list", "--context", "gone"]), 2);
    assert!(stderr.contains("the token in `/nowhere`"), "{stderr}");
    let (_, stderr) = check(run(&["list", "--context", "other"]), 2);
    assert!(stderr.contains("there are: gone, here"), "{stderr}");
    // A named server is not told the token of a context.
    check(run(&["list", "--server", &server.url()]), 0);
    let output = run(&["describe", "absent", "--output", "json"]);
    assert_own_words(&String::from_utf8_lossy(&output.stderr));
    let body: Value = serde_json::from_slice(&output.stdout).expect("the service's words");
    assert_eq!(body["error"]["status"], "NOT_FOUND");
}
