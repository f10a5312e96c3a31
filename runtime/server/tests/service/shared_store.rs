//! Two servers on one PostgreSQL: they share the work and double nothing.

use serde_json::json;

use crate::postgres_server::PostgresServer;
use crate::recovery::kill;
use crate::server::{Server, data_files, long, one_row};
use crate::support::wait_until;

/// Two servers on one database; the second may reach the lake of the first.
fn pair(database: &PostgresServer) -> (Server, Server) {
    let start = |lake: Option<&std::path::Path>| {
        let mut server = Server::prepare(&["--cpu-slots", "2", "--store", &database.url()]);
        let settings = server.folder().join("server.yaml");
        std::fs::write(&settings, "lease: 4s\n").expect("settings");
        server.add_argument("--config");
        server.add_argument(&settings.display().to_string());
        if let Some(lake) = lake {
            server.add_location(lake);
        }
        server.launch();
        server
    };
    let one = start(None);
    let two = start(Some(&one.lake()));
    (one, two)
}

#[tokio::test]
async fn two_servers_share_the_work_and_double_nothing() {
    let Some(database) = PostgresServer::start() else {
        return;
    };
    let (one, two) = pair(&database);
    let lake = one.lake();
    const N: usize = 12;
    for i in 0..N {
        // Both are asked for the same batch at the same time.
        let spec = one_row(&lake, "shared", "append").replace("SELECT 42", &format!("SELECT {i}"));
        let body = json!({ "spec": spec });
        let path = format!("/v1/batches?batch_id=shared-{i}&request_id=request-{i}");
        let (a, b) = tokio::join!(
            one.send(reqwest::Method::POST, &path, Some(body.clone())),
            two.send(reqwest::Method::POST, &path, Some(body.clone())),
        );
        let mut codes = [a.0.as_u16(), b.0.as_u16()];
        codes.sort_unstable();
        assert_eq!(codes, [200, 201], "{} {}", a.1, b.1);
        assert_eq!(a.1["uid"], b.1["uid"]);
    }
    let mut servers = std::collections::HashSet::new();
    for i in 0..N {
        // Each batch is seen through either server.
        let through = if i % 2 == 0 { &one } else { &two };
        let batch = through.end_of(&format!("shared-{i}")).await;
        assert_eq!(batch["state"], "SUCCEEDED", "{batch:#}");
        assert_eq!(batch["attempts"].as_array().unwrap().len(), 1, "{batch:#}");
        servers.insert(batch["attempts"][0]["server"].to_string());
        let (status, _) = through.get(&format!("/v1/batches/shared-{i}/report")).await;
        assert_eq!(status.as_u16(), 200);
        let log = Server::expect(
            through.get(&format!("/v1/batches/shared-{i}/logs")).await,
            200,
        );
        assert!(!log["lines"].as_array().unwrap().is_empty());
    }
    assert_eq!(data_files(&lake, "shared").len(), N);
    assert_eq!(servers.len(), 2, "both have worked");
}

#[tokio::test]
async fn a_server_takes_over_what_another_was_running() {
    let Some(database) = PostgresServer::start() else {
        return;
    };
    let (mut one, two) = pair(&database);
    let lake = one.lake();
    // The second server has no room until the first is gone.
    for i in 0..2 {
        two.accept(&format!("filler-{i}"), &long(&lake, &format!("filler-{i}")))
            .await;
    }
    for i in 0..2 {
        two.accept(&format!("more-{i}"), &long(&lake, &format!("more-{i}")))
            .await;
    }
    wait_until("workers everywhere", || {
        one.workers().len() == 2 && two.workers().len() == 2
    });
    let list = Server::expect(two.get("/v1/batches").await, 200);
    let by_one: Vec<String> = list["batches"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|batch| batch["attempts"][0]["server"] != name(&two).as_str())
        .map(|batch| batch["batch_id"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(by_one.len(), 2, "{list:#}");
    for id in ["filler-0", "filler-1", "more-0", "more-1"] {
        if !by_one.iter().any(|other| other == id) {
            Server::expect(two.post(&format!("/v1/batches/{id}:cancel")).await, 200);
            two.end_of(id).await;
        }
    }
    one.kill();
    for id in &by_one {
        let batch = two
            .wait_for(id, "taken over", |batch| {
                batch["attempts"]
                    .as_array()
                    .is_some_and(|attempts| attempts.len() == 2)
            })
            .await;
        assert_eq!(batch["attempts"][0]["end"], "lost", "{batch:#}");
        assert_eq!(batch["attempts"][1]["server"], name(&two).as_str());
        Server::expect(two.post(&format!("/v1/batches/{id}:cancel")).await, 200);
        assert_eq!(two.end_of(id).await["state"], "CANCELLED");
    }
    for worker in two.workers() {
        kill(worker);
    }
}

fn name(server: &Server) -> String {
    std::fs::read_to_string(server.data_dir().join("server-name")).expect("a name")
}
