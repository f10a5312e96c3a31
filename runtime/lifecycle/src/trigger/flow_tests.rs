//! Events become exactly the right batches, whatever breaks and however often they come.

use std::collections::{BTreeMap, BTreeSet};

use futures::executor::block_on;
use serde_json::json;

use super::*;
use crate::batches::Policy;
use crate::simulation::{Breaking, Random};
use crate::store::Store;
use crate::store::ledger::Ledger;
use crate::trigger::{Matching, Readiness, TriggerLimits, TriggerSpec};

/// Makes a batch of any objects, named by them.
#[derive(Debug)]
struct Plain;

#[async_trait]
impl Submitter for Plain {
    async fn prepare(
        &self,
        _: &Trigger,
        objects: &[ObjectEvent],
    ) -> Result<(NewBatch, Submission), String> {
        if objects.iter().any(|object| object.key.contains("refused")) {
            return Err("it is refused".into());
        }
        let identities: Vec<String> = objects.iter().map(ObjectEvent::identity).collect();
        let new = NewBatch {
            id: format!("batch-{}", &hash(&identities.join("\n"))[..12]),
            ..NewBatch::default()
        };
        let submission = Submission {
            objects: objects.to_vec(),
            canonical: json!(identities),
            ..Submission::default()
        };
        Ok((new, submission))
    }

    async fn list(&self, _: &Trigger, _: &str) -> Result<Vec<ObjectEvent>, String> {
        Ok(Vec::new())
    }
}

fn trigger(coalesce: bool, readiness: Readiness) -> Trigger {
    Trigger {
        name: "arrivals".into(),
        version: 0,
        owner: "ada".into(),
        spec: TriggerSpec {
            name: "arrivals".into(),
            source: Source::Webhook {},
            matching: Matching {
                bucket: Some("lake".into()),
                prefix: "in/".into(),
                ..Matching::default()
            },
            key_encoding: Default::default(),
            readiness,
            coalesce,
            limits: TriggerLimits {
                in_flight: 100_000,
                per_day: 100_000,
                failures: 3,
                objects: 7,
            },
            batch: String::new(),
        },
        created_ms: 0,
        paused: None,
        resumed_ms: 0,
        webhook_sha256: None,
        polled_ms: None,
    }
}

fn record(key: &str, etag: &str) -> Value {
    let encoded = percent_encoding::utf8_percent_encode(key, percent_encoding::NON_ALPHANUMERIC);
    json!({"eventVersion": "2.1", "eventName": "ObjectCreated:Put", "s3": {
        "bucket": {"name": "lake"}, "object": {"key": encoded.to_string(), "size": 5, "eTag": etag}}})
}

/// The locations of each batch that was made.
fn made(store: &Breaking) -> BTreeMap<String, BTreeSet<String>> {
    let query = Query {
        filter: Filter::everything(),
        owner: None,
        after: None,
        limit: usize::MAX,
    };
    let mut found = BTreeMap::new();
    for batch in block_on(store.inner.list(&query)).unwrap() {
        assert_eq!(
            (batch.owner.as_str(), batch.trigger.as_deref()),
            ("ada", Some("arrivals"))
        );
        let submission = block_on(store.inner.submission(&batch.uid))
            .unwrap()
            .unwrap();
        let locations = submission
            .objects
            .iter()
            .map(|o| format!("{} {:?}", o.location(), o.etag));
        found.insert(batch.id, locations.collect());
    }
    found
}

#[test]
fn a_thousand_events_lead_to_exactly_the_right_batches() {
    let hard = [
        " ", "+", "%3A", "&", "'", "\"", ";", "ü", "/", "=", "../", "\\", "*",
    ];
    for (seed, one_in, coalesce) in [(1, 0, false), (2, 25, false), (3, 8, false), (4, 8, true)] {
        let random = Random::of_seed(seed);
        let store = Breaking::new(Arc::clone(&random), one_in);
        let batches = Batches::new(
            Arc::<Breaking>::clone(&store) as Arc<dyn Store>,
            Policy::default(),
        );
        let mut kept = trigger(coalesce, Readiness::default());
        assert!(block_on(store.inner.put_trigger(&mut kept)).unwrap());
        // Two servers share the ledger.
        let servers = [
            Triggers::new(batches.clone(), Arc::new(Plain)),
            Triggers::new(batches, Arc::new(Plain)),
        ];
        let mut expected = BTreeSet::new();
        let (mut messages, mut n_poison) = (Vec::new(), 0);
        for i in 0..300 {
            let key = format!("in/{i}{}x.csv", hard[i % hard.len()]);
            // Some keys get a second content later.
            for etag in ["a", "b"].iter().take(1 + usize::from(i % 5 == 0)) {
                expected.insert(format!("s3://lake/{key} {:?}", Some(etag)));
                for _ in 0..=random.below(3) {
                    messages.push(vec![record(&key, etag)]);
                }
            }
        }
        for i in 0..40 {
            messages.push(vec![
                record(&format!("out/{i}"), "a"),
                record("in/_SUCCESS", "a"),
            ]);
            messages.push(vec![json!({"broken": i}), record("in/0 x.csv", "a")]);
            n_poison += 1;
        }
        assert!(messages.len() > 500);
        while !messages.is_empty() {
            // Several records a message, in any order, and a test event now and then.
            let mut records = Vec::new();
            for _ in 0..1 + random.below(3) {
                if !messages.is_empty() {
                    let at = random.below(messages.len() as u64) as usize;
                    records.extend(messages.swap_remove(at));
                }
            }
            let server = &servers[random.below(2) as usize];
            let test = json!({"Event": "s3:TestEvent"});
            let _ = block_on(server.intake(&kept, &test));
            // The sender sends again until it is answered.
            let message = json!({ "Records": records });
            while block_on(server.intake(&kept, &message)).is_err() {}
            if random.one_in(3) {
                let _ = block_on(servers[random.below(2) as usize].advance());
            }
        }
        let is_open = || {
            let counts = block_on(store.inner.event_counts("arrivals")).unwrap();
            let open = [EventState::Pending, EventState::Grouped];
            counts
                .iter()
                .any(|(state, n, _)| open.contains(state) && *n > 0)
        };
        let mut n_looks = 0;
        while is_open() {
            let _ = block_on(servers[random.below(2) as usize].advance());
            n_looks += 1;
            assert!(n_looks < 100_000, "seed {seed} does not come to rest");
        }
        let made = made(&store);
        let mut all: Vec<String> = made.values().flatten().cloned().collect();
        all.sort();
        assert_eq!(
            all,
            expected.iter().cloned().collect::<Vec<_>>(),
            "seed {seed}"
        );
        if coalesce {
            assert!(made.len() < expected.len() && made.values().all(|set| set.len() <= 7));
        } else {
            assert_eq!(made.len(), expected.len());
        }
        let counts = block_on(store.inner.event_counts("arrivals")).unwrap();
        let of = |state| {
            counts
                .iter()
                .find(|(of, ..)| *of == state)
                .map(|(_, n, _)| *n)
        };
        assert_eq!(of(EventState::Dead), Some(n_poison));
        assert_eq!(of(EventState::Pending), Some(0));
    }
}

/// A trigger alone with a sound store, and a clock.
struct Bench {
    store: Arc<Breaking>,
    triggers: Triggers,
    trigger: Trigger,
}

fn bench(mut trigger: Trigger) -> Bench {
    let store = Breaking::new(Random::of_seed(0), 0);
    let batches = Batches::new(
        Arc::<Breaking>::clone(&store) as Arc<dyn Store>,
        Policy::default(),
    );
    block_on(store.inner.put_trigger(&mut trigger)).unwrap();
    Bench {
        triggers: Triggers::new(batches, Arc::new(Plain)),
        store,
        trigger,
    }
}

impl Bench {
    fn comes(&self, keys: &[&str]) {
        let records: Vec<Value> = keys.iter().map(|key| record(key, "a")).collect();
        block_on(
            self.triggers
                .intake(&self.trigger, &json!({ "Records": records })),
        )
        .unwrap();
    }

    /// Objects of the batches made by this time.
    #[track_caller]
    fn check(&self, now: Millis, expected: &[usize]) {
        self.store.inner.set_now(now);
        block_on(self.triggers.advance()).unwrap();
        let mut sizes: Vec<usize> = made(&self.store).values().map(BTreeSet::len).collect();
        sizes.sort_unstable();
        assert_eq!(sizes, expected);
    }

    fn kept(&self) -> Trigger {
        block_on(self.store.inner.triggers()).unwrap().remove(0)
    }
}

#[test]
fn a_dataset_is_one_batch_once_its_marker_has_come() {
    let marker = Readiness {
        marker: Some("_SUCCESS".into()),
        ..Readiness::default()
    };
    let bench = bench(trigger(true, marker));
    bench.comes(&["in/day=1/a", "in/day=1/b/c", "in/day=2/a"]);
    bench.check(1, &[]);
    bench.comes(&["in/day=1/_SUCCESS"]);
    bench.check(2, &[2]);
    bench.comes(&["in/day=2/_SUCCESS", "in/day=3/_SUCCESS"]);
    bench.check(3, &[1, 2]);
    // A marker without objects is told.
    let dead = block_on(bench.store.inner.events("arrivals", EventState::Dead, 9)).unwrap();
    assert!(
        dead[0]
            .detail
            .as_deref()
            .is_some_and(|why| why.contains("no object"))
    );
}

#[test]
fn quiet_and_count_hold_objects_back() {
    let readiness = Readiness {
        quiet: Some(batch_specs::Duration::from_seconds(10)),
        ..Readiness::default()
    };
    let quiet = bench(trigger(true, readiness));
    quiet.comes(&["in/a"]);
    quiet.check(9_999, &[]);
    quiet.comes(&["in/b"]);
    quiet.check(19_998, &[]);
    quiet.check(19_999, &[2]);

    let readiness = Readiness {
        count: Some(3),
        ..Readiness::default()
    };
    let count = bench(trigger(true, readiness));
    count.comes(&["in/a", "in/b", "in/a"]);
    count.check(1, &[]);
    count.comes(&["in/c"]);
    count.check(2, &[3]);
}

#[test]
fn limits_hold_and_failures_pause_until_a_person_resumes() {
    let mut limited = trigger(false, Readiness::default());
    limited.spec.limits.in_flight = 2;
    limited.spec.limits.per_day = 4;
    let bench = bench(limited);
    bench.comes(&["in/a", "in/b", "in/c", "in/d", "in/e"]);
    bench.check(1, &[1, 1]);
    bench.check(2, &[1, 1]);
    let fail_all = || {
        for open in block_on(bench.store.inner.open()).unwrap() {
            let mut batch = block_on(bench.store.inner.get(&open.id)).unwrap().unwrap();
            batch.record(BatchState::Failed, "for the test".into(), 5);
            assert!(block_on(bench.store.inner.replace(&mut batch)).unwrap());
        }
    };
    fail_all();
    // Two failures are not three.
    bench.check(10, &[1; 4]);
    fail_all();
    bench.check(11, &[1; 4]);
    let mut paused = bench.kept();
    assert!(
        paused
            .paused
            .as_deref()
            .is_some_and(|why| why.contains("3 batches have failed"))
    );
    paused.paused = None;
    paused.resumed_ms = 12;
    assert!(block_on(bench.store.inner.put_trigger(&mut paused)).unwrap());
    // The day's budget is spent; the next day it goes on.
    bench.check(13, &[1; 4]);
    bench.check(DAY_MS + 20, &[1; 5]);
}

#[test]
fn dead_events_are_replayed_and_known_ones_do_nothing() {
    let bench = bench(trigger(false, Readiness::default()));
    bench.comes(&["in/refused", "in/good"]);
    bench.check(1, &[1]);
    let dead = |n: usize| {
        let dead = block_on(bench.store.inner.events("arrivals", EventState::Dead, 9)).unwrap();
        assert_eq!(dead.len(), n, "{dead:?}");
    };
    dead(1);
    assert_eq!(block_on(bench.triggers.replay(&bench.trigger)).unwrap(), 1);
    dead(0);
    bench.check(2, &[1]);
    dead(1);
    let again = json!({"Records": [record("in/good", "a"), record("in/new", "a"), record("out/x", "a"), 7]});
    let intake = block_on(bench.triggers.intake(&bench.trigger, &again)).unwrap();
    let expected = Intake {
        accepted: 1,
        known: 1,
        passed_over: 1,
        poison: 1,
    };
    assert_eq!(intake, expected);
}
