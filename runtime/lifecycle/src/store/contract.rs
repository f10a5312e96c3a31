//! What any store promises, tried on each.

use std::sync::Arc;

use serde_json::json;

use super::ledger::{EventState, LedgerEntry};
use super::memory::MemoryStore;
use super::postgres_server::PostgresServer;
use super::sql::SqlStore;
use super::{Created, Query, Store, StoreError};
use crate::batch::{Batch, BatchLimits, NewBatch, Submission, Wants};
use crate::filter::Filter;
use crate::state::BatchState;
use crate::trigger::Trigger;
use crate::trigger::event::{EventKind, ObjectEvent};

const LEASE: i64 = 1_000;

fn new(id: &str, owner: &str) -> NewBatch {
    NewBatch {
        id: id.into(),
        owner: owner.into(),
        name: "orders".into(),
        labels: [("env".to_owned(), "prod".to_owned())]
            .into_iter()
            .collect(),
        group: owner.into(),
        wants: Wants {
            gpu: Some("l4".into()),
            gpu_milli: 500,
            may_fall_back: true,
            cores: 2,
            memory_mib: Some(4096),
        },
        limits: BatchLimits {
            max_attempts: 3,
            queue_ttl_ms: Some(5_000),
            retention_ms: Some(10_000),
            ..BatchLimits::default()
        },
        ..NewBatch::default()
    }
}

fn batch(id: &str, owner: &str, created_ms: i64) -> Batch {
    Batch::accepted(new(id, owner), format!("uid-{id}"), "f".into(), created_ms)
}

fn submission() -> Submission {
    Submission {
        spec: "name: \"it's\" # \u{0} ü".into(),
        canonical: json!({"a": [1, "'; DROP TABLE batches; --"]}),
        ..Submission::default()
    }
}

async fn ids(store: &dyn Store, filter: &str, owner: Option<&str>) -> Vec<String> {
    let query = Query {
        filter: Filter::parse(filter).unwrap(),
        owner: owner.map(str::to_owned),
        after: None,
        limit: 100,
    };
    let found = store.list(&query).await.unwrap();
    found.into_iter().map(|batch| batch.id).collect()
}

async fn contract(store: &dyn Store) {
    creating_is_atomic_and_names_are_taken_once(store).await;
    a_record_is_replaced_only_as_it_was_read(store).await;
    lists_are_filtered_and_paged(store).await;
    open_batches_and_overdue_ones_are_found(store).await;
    logs_have_offsets_and_reports_replace_each_other(store).await;
    a_deleted_batch_leaves_nothing(store).await;
    triggers_are_replaced_only_as_they_were_read(store).await;
    an_event_is_kept_once_and_moves_once(store).await;
}

async fn creating_is_atomic_and_names_are_taken_once(store: &dyn Store) {
    let mut first = batch("first", "ada", 1);
    first.request_id = Some("r".into());
    assert_eq!(
        store.create(&first, &submission()).await.unwrap(),
        Created::New
    );
    assert_eq!(store.get("first").await.unwrap(), Some(first.clone()));
    assert_eq!(
        store.submission("uid-first").await.unwrap(),
        Some(submission())
    );
    assert_eq!(store.get("absent").await.unwrap(), None);

    let mut other = batch("second", "ada", 2);
    other.request_id = Some("r".into());
    let taken = store.create(&other, &submission()).await.unwrap();
    assert_eq!(taken, Created::SameRequest(Box::new(first.clone())));
    assert_eq!(store.submission("uid-second").await.unwrap(), None);
    other.owner = "bob".into();
    assert_eq!(
        store.create(&other, &submission()).await.unwrap(),
        Created::New
    );
    let mut same_id = batch("first", "ada", 3);
    same_id.uid = "uid-third".into();
    let taken = store.create(&same_id, &submission()).await.unwrap();
    assert_eq!(taken, Created::SameId(Box::new(first)));
}

async fn a_record_is_replaced_only_as_it_was_read(store: &dyn Store) {
    let mut one = store.get("first").await.unwrap().unwrap();
    let mut two = one.clone();
    one.claim("one", 10, LEASE).unwrap();
    two.claim("two", 10, LEASE).unwrap();
    assert!(store.replace(&mut one).await.unwrap());
    assert!(!store.replace(&mut two).await.unwrap());
    assert_eq!(store.get("first").await.unwrap(), Some(one.clone()));
    assert!(!store.delete(&two).await.unwrap());
    // A later batch of the same id is another one.
    let mut impostor = one.clone();
    impostor.uid = "uid-impostor".into();
    assert!(!store.replace(&mut impostor).await.unwrap());
}

async fn lists_are_filtered_and_paged(store: &dyn Store) {
    for i in 0..5 {
        let mut batch = batch(&format!("page-{i}"), "cyd", 1_000);
        batch.labels.insert("n".into(), format!("{}", i % 2));
        batch.uid = format!("uid-{}", ["Z", "a", "B", "_", "0"][i]);
        store.create(&batch, &submission()).await.unwrap();
    }
    let by_code_point = ["page-1", "page-3", "page-0", "page-2", "page-4"];
    assert_eq!(ids(store, "owner = cyd", None).await, by_code_point);
    assert_eq!(ids(store, "", Some("cyd")).await, by_code_point);
    let mut after = None;
    let mut paged = Vec::new();
    loop {
        let query = Query {
            filter: Filter::everything(),
            owner: Some("cyd".into()),
            after,
            limit: 2,
        };
        let page = store.list(&query).await.unwrap();
        let Some(last) = page.last() else { break };
        after = Some((last.created_ms, last.uid.clone()));
        paged.extend(page.into_iter().map(|batch| batch.id));
    }
    assert_eq!(paged, by_code_point);

    let second = ["second"];
    for (filter, expected) in [
        ("state = RUNNING", &["first"][..]),
        ("state = QUEUED AND owner = bob", &second),
        (
            "owner = bob OR owner = nobody AND labels.env = prod",
            &second,
        ),
        (
            "labels.env = prod AND NOT owner = ada AND create_time < \"1970-01-01T00:00:00.5Z\"",
            &second,
        ),
        (
            "labels.env:* AND labels.n != 0 AND labels.n != 1",
            &["second", "first"],
        ),
        ("batch_id = \"'; DROP TABLE batches; --\"", &[]),
        ("trigger = x", &[]),
        ("trigger != x AND owner = bob", &second),
        ("name = orders AND owner = bob", &second),
    ] {
        assert_eq!(ids(store, filter, None).await, expected, "{filter}");
    }
}

async fn open_batches_and_overdue_ones_are_found(store: &dyn Store) {
    let open = store.open().await.unwrap();
    let first = open.iter().find(|open| open.id == "first").unwrap();
    assert_eq!(first.lease, Some(("one".into(), 10 + LEASE)));
    assert_eq!(first.wants, new("", "").wants);
    let second = open.iter().find(|open| open.id == "second").unwrap();
    assert_eq!(second.queue_deadline_ms, Some(5_002));
    assert_eq!(second.state, BatchState::Queued);

    let mut second = store.get("second").await.unwrap().unwrap();
    second.cancel("bob", 20);
    assert!(store.replace(&mut second).await.unwrap());
    let open = store.open().await.unwrap();
    assert!(open.iter().all(|open| open.id != "second"));
    assert!(store.overdue(10_019).await.unwrap().is_empty());
    assert_eq!(store.overdue(10_020).await.unwrap(), ["second"]);
    let counts = store.counts().await.unwrap();
    let of = |state| counts.iter().find(|(of, _)| *of == state).map(|(_, n)| *n);
    assert_eq!(of(BatchState::Queued), Some(5));
    assert_eq!(of(BatchState::Running), Some(1));
    assert_eq!(of(BatchState::Cancelled), Some(1));
    assert_eq!(of(BatchState::Failed), Some(0));
}

async fn logs_have_offsets_and_reports_replace_each_other(store: &dyn Store) {
    let read = async |from, max| store.read_log("uid-first", 1, from, max).await.unwrap();
    assert_eq!(read(0, 10).await.next, 0);
    store.append_log("uid-first", 1, 0, b"abc\n").await.unwrap();
    store
        .append_log("uid-first", 1, 4, b"de\xff\n")
        .await
        .unwrap();
    // Written again by a server that did not hear the answer.
    store
        .append_log("uid-first", 1, 4, b"de\xff\n")
        .await
        .unwrap();
    assert_eq!(read(0, 100).await.bytes, b"abc\nde\xff\n");
    assert_eq!(read(0, 100).await.next, 8);
    assert_eq!(read(2, 3).await.bytes, b"c\nd");
    assert_eq!(read(5, 100).await.bytes, b"e\xff\n");
    assert_eq!(read(8, 100).await.bytes, b"");
    assert!(
        store
            .read_log("uid-first", 2, 0, 9)
            .await
            .unwrap()
            .bytes
            .is_empty()
    );

    assert_eq!(store.report("uid-first", 1).await.unwrap(), None);
    for report in ["{}", "{\"a\":1}"] {
        store.put_report("uid-first", 1, report).await.unwrap();
        let kept = store.report("uid-first", 1).await.unwrap();
        assert_eq!(kept.as_deref(), Some(report));
    }
}

async fn a_deleted_batch_leaves_nothing(store: &dyn Store) {
    let first = store.get("first").await.unwrap().unwrap();
    assert!(store.delete(&first).await.unwrap());
    assert!(!store.delete(&first).await.unwrap());
    assert_eq!(store.get("first").await.unwrap(), None);
    assert_eq!(store.submission("uid-first").await.unwrap(), None);
    assert_eq!(store.report("uid-first", 1).await.unwrap(), None);
    assert!(
        store
            .read_log("uid-first", 1, 0, 9)
            .await
            .unwrap()
            .bytes
            .is_empty()
    );
    let mut again = batch("first", "ada", 30);
    again.request_id = Some("r".into());
    assert_eq!(
        store.create(&again, &submission()).await.unwrap(),
        Created::New
    );
    assert_eq!(ids(store, "batch_id = first", None).await, ["first"]);
}

fn trigger(name: &str) -> Trigger {
    let spec = json!({"name": name, "source": {"webhook": {}}, "batch": "it's \u{0} ü"});
    Trigger {
        name: name.into(),
        version: 0,
        owner: "ada".into(),
        spec: serde_json::from_value(spec).unwrap(),
        created_ms: 1,
        paused: None,
        resumed_ms: 1,
        webhook_sha256: Some("x".into()),
        polled_ms: None,
    }
}

async fn triggers_are_replaced_only_as_they_were_read(store: &dyn Store) {
    let mut one = trigger("one-trigger");
    assert!(store.put_trigger(&mut one).await.unwrap());
    assert!(
        !store
            .put_trigger(&mut trigger("one-trigger"))
            .await
            .unwrap(),
        "the name is taken"
    );
    let mut two = one.clone();
    one.paused = Some("why".into());
    two.paused = Some("why not".into());
    assert!(store.put_trigger(&mut one).await.unwrap());
    assert!(!store.put_trigger(&mut two).await.unwrap());
    assert!(store.put_trigger(&mut trigger("a-trigger")).await.unwrap());
    let all = store.triggers().await.unwrap();
    assert_eq!(
        all.iter().map(|t| t.name.as_str()).collect::<Vec<_>>(),
        ["a-trigger", "one-trigger"]
    );
    assert_eq!(all[1], one);
}

fn entry(
    trigger: &str,
    identity: &str,
    received_ms: i64,
    event: Option<ObjectEvent>,
) -> LedgerEntry {
    LedgerEntry {
        trigger: trigger.into(),
        identity: identity.into(),
        received_ms,
        times: 1,
        state: match event {
            Some(_) => EventState::Pending,
            None => EventState::Dead,
        },
        group: None,
        detail: event.is_none().then(|| "it's \\u0000 broken".to_owned()),
        event,
    }
}

async fn an_event_is_kept_once_and_moves_once(store: &dyn Store) {
    let event = ObjectEvent {
        kind: EventKind::Created,
        scheme: "s3".into(),
        bucket: "lake".into(),
        key: "a'b\";\u{0}ü".into(),
        size: Some(5),
        etag: Some("x".into()),
        version: None,
        sequencer: None,
    };
    let name = "one-trigger";
    let first = entry(name, &event.identity(), 7, Some(event.clone()));
    let second = entry(name, "second", 5, Some(event.clone()));
    let poison = entry(name, "poison", 6, None);
    let other = entry("a-trigger", &event.identity(), 5, Some(event));
    let all = [first.clone(), second.clone(), poison.clone(), other];
    assert_eq!(store.record_events(&all, true).await.unwrap(), 4);
    assert_eq!(store.record_events(&all[..2], true).await.unwrap(), 0);
    assert_eq!(store.record_events(&all[..2], false).await.unwrap(), 0);
    let of = async |state| store.events(name, state, 10).await.unwrap();
    let again = |entry: &LedgerEntry, times| LedgerEntry {
        times,
        ..entry.clone()
    };
    assert_eq!(
        of(EventState::Pending).await,
        [again(&second, 2), again(&first, 2)]
    );
    assert_eq!(of(EventState::Dead).await, [poison]);
    assert_eq!(
        store
            .events(name, EventState::Pending, 1)
            .await
            .unwrap()
            .len(),
        1
    );

    let ids = [
        first.identity.clone(),
        "second".to_owned(),
        "absent".to_owned(),
    ];
    let (pending, grouped) = (EventState::Pending, EventState::Grouped);
    let moved = store
        .move_events(name, &ids, pending, grouped, Some("g"), None)
        .await
        .unwrap();
    assert_eq!(moved, 2);
    let moved = store
        .move_events(name, &ids, pending, grouped, Some("h"), None)
        .await
        .unwrap();
    assert_eq!(moved, 0, "nobody takes them a second time");
    assert!(
        of(grouped)
            .await
            .iter()
            .all(|entry| entry.group.as_deref() == Some("g"))
    );
    // Of another trigger the same object is another event.
    assert_eq!(
        store.events("a-trigger", pending, 10).await.unwrap().len(),
        1
    );
    let counts = store.event_counts(name).await.unwrap();
    assert!(counts.contains(&(grouped, 2, 2)) && counts.contains(&(EventState::Dead, 1, 0)));
    assert!(counts.contains(&(pending, 0, 0)));

    assert!(store.delete_trigger(name).await.unwrap());
    assert!(!store.delete_trigger(name).await.unwrap());
    assert!(of(grouped).await.is_empty());
    assert_eq!(
        store.events("a-trigger", pending, 10).await.unwrap().len(),
        1
    );
}

#[tokio::test]
async fn the_store_in_memory_keeps_its_promises() {
    contract(&MemoryStore::default()).await;
}

#[tokio::test]
async fn sqlite_keeps_its_promises_and_its_content() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("with % and ?.db");
    let store = SqlStore::sqlite(&file).await.unwrap();
    contract(&store).await;
    drop(store);
    let store = SqlStore::sqlite(&file).await.unwrap();
    assert!(store.get("first").await.unwrap().is_some());
}

#[tokio::test]
async fn a_store_of_a_newer_version_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("store.db");
    drop(SqlStore::sqlite(&file).await.unwrap());
    let newer = sqlx::AnyPool::connect(&format!("sqlite://{}", file.display()))
        .await
        .unwrap();
    sqlx::query("INSERT INTO warpline_schema (version) VALUES (99)")
        .execute(&newer)
        .await
        .unwrap();
    newer.close().await;
    let refused = SqlStore::sqlite(&file).await.expect_err("it is newer");
    assert!(matches!(&refused, StoreError::Version(text) if text.contains("version 99")));
}

#[tokio::test]
async fn postgres_keeps_its_promises_also_to_many_at_once() {
    let Some(server) = PostgresServer::start() else {
        return;
    };
    let url = server.url();
    let (one, two) = tokio::join!(SqlStore::postgres(&url), SqlStore::postgres(&url));
    let (one, two) = (one.unwrap(), two.unwrap());
    contract(&one).await;
    assert!(two.get("first").await.unwrap().is_some());
    let apart = (one.now().await.unwrap() - two.now().await.unwrap()).abs();
    assert!(apart < 60_000, "one clock: {apart} ms apart");

    // Of many who want the same id, one gets it; of many who claim, one does.
    let stores: [Arc<dyn Store>; 2] = [Arc::new(one), Arc::new(two)];
    let mut tasks = tokio::task::JoinSet::new();
    for i in 0..16 {
        let store = Arc::clone(&stores[i % 2]);
        tasks.spawn(async move {
            let mut mine = batch("contested", "eve", 50);
            mine.uid = format!("uid-contested-{i}");
            let created = store.create(&mine, &submission()).await.unwrap();
            let mut found = store.get("contested").await.unwrap().unwrap();
            let is_claimed = found.claim(&format!("server-{i}"), 60, LEASE).is_ok()
                && store.replace(&mut found).await.unwrap();
            (created == Created::New, is_claimed)
        });
    }
    let (mut n_created, mut n_claimed) = (0, 0);
    while let Some(done) = tasks.join_next().await {
        let (created, claimed) = done.unwrap();
        n_created += u32::from(created);
        n_claimed += u32::from(claimed);
    }
    assert_eq!((n_created, n_claimed), (1, 1));
}
