//! Many small batches while the server and its workers are killed at random: each ends as it
//! should, nothing is lost, nothing is there twice.

use std::collections::BTreeMap;
use std::time::Instant;

use reqwest::Method;
use serde_json::{Value, json};

use crate::recovery::kill;
use crate::server::{PATIENCE, Server, is_terminal, one_row};
use crate::support::{Case, check, json as parse};

const N_BATCHES: usize = 200;
const N_KILLS: usize = 30;
/// Outputs that the batches append to.
const N_OUTPUTS: usize = 5;

/// The same kills every time, as far as the machine's own timing allows.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }
}

async fn submit(server: &mut Server, i: usize) {
    let spec = one_row(&server.lake(), &format!("out-{}", i % N_OUTPUTS), "append")
        .replace("SELECT 42", &format!("SELECT {i}"))
        .replace("stages:", "limits: {max_attempts: 10}\nstages:");
    let path = format!("/v1/batches?batch_id=soak-{i}&request_id=soak-{i}");
    let body = json!({ "spec": spec });
    let answer = server.send(Method::POST, &path, Some(body)).await;
    assert!(matches!(answer.0.as_u16(), 200 | 201), "{}", answer.1);
}

async fn states(server: &Server) -> BTreeMap<String, Value> {
    let list = Server::expect(server.get("/v1/batches?page_size=1000").await, 200);
    let batches = list["batches"].as_array().expect("a list").clone();
    batches
        .into_iter()
        .map(|batch| (batch["batch_id"].as_str().expect("an id").to_owned(), batch))
        .collect()
}

#[tokio::test]
async fn nothing_is_lost_and_nothing_is_there_twice() {
    let mut server = Server::start_with(&["--cpu-slots", "3"]);
    let mut random = Random(0x5EED_CAFE_F00D_1234);
    let (mut n_submitted, mut n_kills, mut n_server_kills) = (0, 0, 0);
    let mut since = Instant::now();
    loop {
        // A few more batches, then a kill at a random moment of what runs.
        for _ in 0..1 + random.below(9) {
            if n_submitted < N_BATCHES {
                submit(&mut server, n_submitted).await;
                n_submitted += 1;
            }
        }
        let batches = states(&server).await;
        let n_done = batches.values().filter(|batch| is_terminal(batch)).count();
        if n_done == N_BATCHES {
            break;
        }
        assert!(
            since.elapsed() < PATIENCE,
            "nothing moves: {n_done} done\n{}",
            server.log()
        );
        if n_kills < N_KILLS && n_done * N_KILLS >= n_kills * N_BATCHES {
            n_kills += 1;
            since = Instant::now();
            let workers = server.workers();
            if workers.is_empty() || random.below(3) == 0 {
                n_server_kills += 1;
                server.kill();
                server.launch();
            } else {
                kill(workers[random.below(workers.len() as u64) as usize]);
            }
        } else {
            // The next change of any running batch, or a second.
            let running = batches.values().find(|batch| batch["state"] == "RUNNING");
            if let Some(batch) = running {
                let id = batch["batch_id"].as_str().expect("an id");
                let etag = batch["etag"].as_str().expect("an etag");
                server
                    .get(&format!("/v1/batches/{id}?wait=1s&etag={etag}"))
                    .await;
            }
        }
    }
    assert_eq!(n_kills, N_KILLS);
    assert!(n_server_kills > 0 && n_server_kills < N_KILLS);

    let batches = states(&server).await;
    assert_eq!(batches.len(), N_BATCHES, "none is lost");
    let mut n_attempts = 0;
    for batch in batches.values() {
        assert_eq!(batch["state"], "SUCCEEDED", "{batch:#}");
        n_attempts += batch["attempts"].as_array().expect("a list").len();
    }
    assert!(n_attempts > N_BATCHES, "the kills did not hit anything");
    eprintln!(
        "{N_BATCHES} batches, {n_attempts} attempts, {n_server_kills} kills of the server, {} of workers",
        N_KILLS - n_server_kills
    );

    // Each row is there once.
    let case = Case::new("");
    let tables: String = (0..N_OUTPUTS)
        .map(|i| {
            format!(
                "  - {{name: t{i}, location: \"{}/out-{i}/\"}}\n",
                server.lake().display()
            )
        })
        .collect();
    let union: Vec<String> = (0..N_OUTPUTS)
        .map(|i| format!("SELECT answer FROM t{i}"))
        .collect();
    case.write_spec(&format!(
        "version: 1\nname: count-all\naccelerator: {{type: none}}\ntables:\n{tables}stages:\n  - name: n\n    sql: SELECT count(*) AS n, count(DISTINCT answer) AS n_distinct FROM ({})\n",
        union.join(" UNION ALL ")
    ));
    let (stdout, _) = check(case.warpline(&["run", "spec.yaml", "--output", "json"]), 0);
    let rows = parse(&stdout)["results"][0]["rows"][0].clone();
    assert_eq!(rows, json!({ "n": N_BATCHES, "n_distinct": N_BATCHES }));
}
