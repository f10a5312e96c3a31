//! `/v1/batches` from submit to delete.

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::server::{Server, data_files, one_row};

#[tokio::test]
async fn a_batch_from_submit_to_delete() {
    let server = Server::start();
    let spec = one_row(&server.lake(), "out", "error");
    assert_eq!(server.get("/healthz").await.0, StatusCode::OK);
    assert_eq!(server.get("/readyz").await.0, StatusCode::OK);

    let checked = json!({ "spec": spec });
    let path = "/v1/batches?batch_id=first&validate_only=true";
    let checked = Server::expect(server.send(Method::POST, path, Some(checked)).await, 200);
    assert_eq!(checked["valid"], true);
    assert!(
        checked["effective"]["executors.cores"].is_object(),
        "{checked}"
    );
    assert_eq!(
        server.get("/v1/batches/first").await.0,
        StatusCode::NOT_FOUND
    );

    let batch = Server::expect(server.submit("first", &spec).await, 201);
    let uid = batch["uid"].clone();
    let batch = server.end_of("first").await;
    assert_eq!(batch["state"], "SUCCEEDED", "{batch:#}");
    assert_eq!(batch["uid"], uid);
    let states: Vec<_> = batch["history"]
        .as_array()
        .unwrap()
        .iter()
        .map(|c| c["state"].clone())
        .collect();
    assert_eq!(states, ["QUEUED", "RUNNING", "SUCCEEDED"]);
    let attempt = &batch["attempts"][0];
    assert_eq!(
        (
            &attempt["number"],
            &attempt["end"],
            &attempt["rows"],
            &attempt["stages_done"]
        ),
        (&json!(1), &json!("succeeded"), &json!(1), &json!(1))
    );
    assert_eq!(data_files(&server.lake(), "out").len(), 1);

    // Submitting again is harmless; submitting something else under the name is not.
    let again = Server::expect(server.submit("first", &spec).await, 200);
    assert_eq!(again["uid"], uid);
    let commented = format!("# another spelling\n{spec}");
    Server::expect(server.submit("first", &commented).await, 200);
    let other = spec.replace("SELECT 42", "SELECT 43");
    let refused = Server::expect(server.submit("first", &other).await, 409);
    assert_eq!(refused["error"]["status"], "ALREADY_EXISTS");
    assert_eq!(
        refused["error"]["differences"],
        json!(["spec.stages[0].sql"])
    );

    let report = Server::expect(server.get("/v1/batches/first/report").await, 200);
    assert_eq!(report["state"], "succeeded");
    assert_eq!(report["stages"][0]["report"]["output"]["rows"], 1);
    Server::expect(server.get("/v1/batches/first/report?attempt=2").await, 404);
    let kept = Server::expect(server.get("/v1/batches/first/spec").await, 200);
    assert_eq!(kept["spec"], spec);
    let plan = Server::expect(server.get("/v1/batches/first/plan").await, 200);
    assert_eq!(plan["plan"]["stages"][0]["name"], "answer", "{plan}");

    let log = Server::expect(server.get("/v1/batches/first/logs").await, 200);
    let lines = log["lines"].as_array().unwrap();
    assert!(
        lines
            .iter()
            .any(|line| line["stage"] == "answer" && line["attempt"] == 1),
        "{log}"
    );
    let next = log["next_offset"].as_i64().unwrap();
    let rest = Server::expect(
        server
            .get(&format!("/v1/batches/first/logs?offset={next}"))
            .await,
        200,
    );
    assert_eq!(
        (&rest["lines"], &rest["is_complete"]),
        (&json!([]), &json!(true))
    );

    let metrics = server.get("/metrics").await.1;
    let metrics = metrics.as_str().expect("text");
    assert!(
        metrics.contains("warpline_batches{state=\"SUCCEEDED\"} 1"),
        "{metrics}"
    );
    assert!(
        metrics.contains("warpline_attempts_total{end=\"succeeded\"} 1"),
        "{metrics}"
    );
    let described = server.get("/openapi.json").await.1;
    assert!(described["paths"]["/v1/batches"]["post"].is_object());

    let forgotten = server.send(Method::DELETE, "/v1/batches/first", None).await;
    assert_eq!(forgotten.0, StatusCode::NO_CONTENT);
    Server::expect(server.get("/v1/batches/first").await, 404);
    // The name is free again, and the output is still there.
    Server::expect(server.submit("first", &spec).await, 201);
    let batch = server.end_of("first").await;
    assert_eq!(batch["failure"]["kind"], "output_exists");
    assert_eq!(
        batch["attempts"].as_array().unwrap().len(),
        1,
        "the author's errors are not retried"
    );
}

#[tokio::test]
async fn every_problem_of_a_spec_is_told_with_its_place() {
    let server = Server::start();
    let spec = one_row(&server.lake(), "out", "error")
        .replace("accelerator", "acelerator")
        .replace("sql:", "sqll:");
    let refused = Server::expect(server.submit("bad-spec", &spec).await, 400);
    let error = &refused["error"];
    assert_eq!(error["status"], "INVALID_ARGUMENT");
    let violations = error["field_violations"].as_array().unwrap();
    let places: Vec<_> = violations
        .iter()
        .map(|v| (v["line"].clone(), v["column"].clone()))
        .collect();
    assert!(
        places.contains(&(json!(3), json!(1))) && places.contains(&(json!(7), json!(5))),
        "{refused:#}"
    );

    for (path, body, field) in [
        (
            "/v1/batches?batch_id=X",
            json!({ "spec": one_row(&server.lake(), "o", "error") }),
            "batch_id",
        ),
        (
            "/v1/batches?request_id=a%20b",
            json!({ "spec": one_row(&server.lake(), "o", "error") }),
            "request_id",
        ),
        ("/v1/batches", json!({ "spec": 1 }), ""),
        ("/v1/batches", json!({ "spec": "", "more": 1 }), ""),
    ] {
        let refused = Server::expect(server.send(Method::POST, path, Some(body)).await, 400);
        assert_eq!(
            refused["error"]["field_violations"][0]["field"], field,
            "{refused}"
        );
    }
    Server::expect(
        server
            .send(Method::POST, "/v1/batches?bach_id=a", Some(json!({})))
            .await,
        400,
    );
    Server::expect(
        server.get("/v1/batches?filter=state%20=%20running").await,
        400,
    );
    Server::expect(server.get("/v1/batches?page_token=x").await, 400);
    Server::expect(server.get("/v1/nothing").await, 404);
    let wrong = server.send(Method::PUT, "/v1/batches", None).await;
    assert_eq!(wrong.1["error"]["status"], "INVALID_ARGUMENT");
    Server::expect(server.post("/v1/batches").await, 415);
}

async fn ids(server: &Server, query: &str) -> (Vec<String>, Option<String>) {
    let page = Server::expect(server.get(&format!("/v1/batches?{query}")).await, 200);
    let ids = page["batches"].as_array().unwrap().iter();
    let ids = ids
        .map(|batch| batch["batch_id"].as_str().unwrap().to_owned())
        .collect();
    (ids, page["next_page_token"].as_str().map(str::to_owned))
}

#[tokio::test]
async fn lists_are_filtered_and_paged() {
    let server = Server::start_with(&["--cpu-slots", "1"]);
    for i in 0..5 {
        let spec = one_row(&server.lake(), &format!("out-{i}"), "error").replace(
            "accelerator:",
            &format!("labels: {{n: \"{}\"}}\naccelerator:", i % 2),
        );
        server.accept(&format!("batch-{i}"), &spec).await;
    }
    let all = ids(&server, "").await;
    assert_eq!(all.0.len(), 5);
    assert_eq!(all.1, None);
    let mut paged = Vec::new();
    let mut token = String::new();
    loop {
        let (page, next) = ids(&server, &format!("page_size=2&page_token={token}")).await;
        assert!(page.len() <= 2);
        paged.extend(page);
        match next {
            Some(next) => token = next,
            None => break,
        }
    }
    assert_eq!(paged, all.0);
    let (odd, _) = ids(&server, "filter=labels.n%20=%20%221%22").await;
    let mut odd = odd;
    odd.sort();
    assert_eq!(odd, ["batch-1", "batch-3"]);
    for i in 0..5 {
        server.end_of(&format!("batch-{i}")).await;
    }
    let (done, _) = ids(&server, "filter=state%20=%20SUCCEEDED").await;
    assert_eq!(done.len(), 5);
}

#[tokio::test]
async fn a_log_is_followed_to_the_end_and_gone_on_with() {
    let server = Server::start();
    let spec = one_row(&server.lake(), "out", "error");
    server.accept("followed", &spec).await;
    let follow = async |last: Option<&str>| {
        let mut request = reqwest::Client::new()
            .get(format!("{}/v1/batches/followed/logs", server.url()))
            .header("accept", "text/event-stream");
        if let Some(last) = last {
            request = request.header("last-event-id", last);
        }
        let text = request
            .send()
            .await
            .expect("an answer")
            .text()
            .await
            .expect("its end");
        let events: Vec<String> = text.split("\n\n").map(str::to_owned).collect();
        events
    };
    let events = follow(None).await;
    let end = events
        .iter()
        .find(|event| event.contains("event: end"))
        .expect("an end");
    assert!(end.contains("SUCCEEDED"), "{end}");
    let ids: Vec<String> = events
        .iter()
        .filter_map(|event| event.lines().find_map(|line| line.strip_prefix("id: ")))
        .map(str::to_owned)
        .collect();
    assert!(ids.len() >= 2, "{events:?}");
    for event in &events {
        if let Some(data) = event.lines().find_map(|line| line.strip_prefix("data: ")) {
            serde_json::from_str::<Value>(data).expect("each line is JSON");
        }
    }
    let rest = follow(Some(&ids[0])).await;
    let rest_ids = rest.iter().filter(|event| event.contains("id: ")).count();
    assert_eq!(rest_ids, ids.len() - 1);
}
