//! Triggers on this server: how their batches are accepted, and the loop that submits them.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use batch_specs::Spec;
use lifecycle::batch::{NewBatch, Submission};
use lifecycle::batches::Batches;
use lifecycle::trigger::event::{EventKind, ObjectEvent};
use lifecycle::trigger::{Source, Submitter, Trigger, TriggerSpec, Triggers, loop_through};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use url::Url;

use super::locations::LocationPolicy;
use super::sqs::{self, Queue};
use super::submit::{self, FieldViolation, Names, is_batch_id};

/// How often triggers are looked at while there are any.
const LOOK: Duration = Duration::from_secs(1);
/// How often it is looked whether there are any, where others may make some.
const IDLE_LOOK: Duration = Duration::from_secs(10);

/// Accepts batches of triggers as it does those of people.
#[derive(Debug)]
pub struct Acceptor {
    /// The machine that specs are derived for.
    pub machine: batch_specs::Machine,
    /// What specs may touch.
    pub policy: LocationPolicy,
    /// The label by which batches take turns.
    pub fair_label: String,
    /// How long an ended batch is kept, milliseconds.
    pub retention_ms: i64,
}

/// A submission of a trigger's spec for some objects.
fn submission(spec: &TriggerSpec, objects: &[ObjectEvent]) -> Submission {
    let mut submission = Submission {
        spec: spec.batch.clone(),
        objects: objects.to_vec(),
        ..Submission::default()
    };
    // What several objects have in common is their table alone.
    if let (false, [object]) = (spec.coalesce, objects) {
        for (name, value) in [
            ("event.bucket", object.bucket.clone()),
            ("event.key", object.key.clone()),
            ("event.stem", object.stem().to_owned()),
            ("event.version", object.version.clone().unwrap_or_default()),
            ("event.location", object.location()),
        ] {
            submission.event.insert(name.to_owned(), value);
        }
    }
    submission
}

#[async_trait]
impl Submitter for Acceptor {
    async fn prepare(
        &self,
        trigger: &Trigger,
        objects: &[ObjectEvent],
    ) -> Result<(NewBatch, Submission), String> {
        let submission = submission(&trigger.spec, objects);
        let checked = submit::check(submission, self.machine.clone(), &self.policy);
        if let Some(violation) = checked.violations.first() {
            return Err(format!("`{}`: {}", violation.field, violation.description));
        }
        let names = Names {
            owner: trigger.owner.clone(),
            ..Names::default()
        };
        let new = submit::new_batch(&checked.loaded, names, &self.fair_label, self.retention_ms)
            .map_err(|violation| violation.description)?;
        Ok((new, checked.submission))
    }

    async fn list(&self, trigger: &Trigger, location: &str) -> Result<Vec<ObjectEvent>, String> {
        if let Some(problem) = self.policy.refusal(location) {
            return Err(problem);
        }
        let loaded = submit::load(&submission(&trigger.spec, &[sample()]), None, &[]);
        let spec = loaded.spec.ok_or("the trigger's spec is refused")?;
        let listed = lifecycle::list_objects(location, &spec).await;
        listed.map_err(|failure| failure.message)
    }
}

/// An object as any other, to see whether a spec is right.
fn sample() -> ObjectEvent {
    ObjectEvent {
        kind: EventKind::Created,
        scheme: "s3".into(),
        bucket: "bucket".into(),
        key: "folder/name.parquet".into(),
        size: Some(1),
        etag: Some("tag".into()),
        version: None,
        sequencer: None,
    }
}

impl Acceptor {
    /// The queue of a source that is one; an error names the field that is wrong. Amazon's own
    /// address is open to all, another has to be listed, and so have credentials.
    pub fn queue(&self, source: &Source) -> Result<Option<Queue>, (&'static str, String)> {
        let Source::Sqs {
            queue_url,
            region,
            credentials,
        } = source
        else {
            return Ok(None);
        };
        let told = |problem: &str| ("source.sqs.queue_url", problem.to_owned());
        let url = Url::parse(queue_url).map_err(|_| told("it is not the address of a queue"))?;
        let is_plain =
            url.query().is_none() && url.username().is_empty() && url.password().is_none();
        if !is_plain || url.path().len() < 2 {
            return Err(told("it is not the address of a queue"));
        }
        let is_region = region
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || c == '-');
        if region.is_empty() || !is_region {
            return Err((
                "source.sqs.region",
                "it is not a region such as eu-west-1".into(),
            ));
        }
        let own = format!("https://sqs.{region}.amazonaws.com");
        let origin = url.origin().ascii_serialization();
        if origin != own && !self.policy.allows_endpoint(&origin) {
            return Err(told(
                "this server reaches no queue there; the operator lists addresses in `endpoints`",
            ));
        }
        if !self.policy.lends(credentials) {
            let problem = format!(
                "this server lends no credentials called `{credentials}`; the operator lists their names in `credentials`"
            );
            return Err(("source.sqs.credentials", problem));
        }
        Ok(Some(Queue {
            url,
            region: region.clone(),
            credentials: credentials.clone(),
        }))
    }

    /// Everything that is wrong with a new trigger.
    pub fn check(&self, spec: &TriggerSpec, others: &[TriggerSpec]) -> Vec<FieldViolation> {
        let mut found = Vec::new();
        let mut wrong = |field: &str, code: &str, told: String| {
            found.push(FieldViolation::parameter(field, code, told));
        };
        if !is_batch_id(&spec.name) {
            wrong(
                "name",
                "name",
                "use 4 to 63 lower-case letters, digits and inner hyphens".into(),
            );
        }
        if let Err(problem) = spec.matching.pattern() {
            wrong("match.glob", "glob", problem);
        }
        if !spec.coalesce && (spec.readiness.marker.is_some() || spec.readiness.count.is_some()) {
            wrong(
                "coalesce",
                "coalesce",
                "a marker and a count are about many objects; set `coalesce: true`".into(),
            );
        }
        if let Source::Poll { location, interval } = &spec.source {
            if let Some(problem) = self.policy.refusal(location) {
                wrong("source.poll.location", "location-forbidden", problem);
            }
            if interval.seconds() == 0 {
                wrong(
                    "source.poll.interval",
                    "interval",
                    "it is 0, so it would list without a pause".into(),
                );
            }
        }
        if let Err((field, problem)) = self.queue(&spec.source) {
            wrong(field, "queue", problem);
        }
        for (field, n) in [
            ("limits.in_flight", spec.limits.in_flight),
            ("limits.per_day", spec.limits.per_day),
            ("limits.objects", spec.limits.objects),
        ] {
            if n == 0 {
                wrong(
                    field,
                    "limit",
                    "it is 0, so nothing would ever be submitted".into(),
                );
            }
        }
        if let Some(names) = loop_through(spec, others, outputs) {
            wrong(
                "batch",
                "loop",
                format!(
                    "what it writes would start it again: {} and so on",
                    names.join(", then ")
                ),
            );
        }
        // Where objects lie decides where the spec reads, which is checked with each event.
        let checked = submit::load(
            &submission(spec, &[sample()]),
            Some(self.machine.clone()),
            &[],
        );
        let errors = checked
            .problems
            .iter()
            .filter(|p| p.severity == batch_specs::Severity::Error);
        found.extend(errors.map(|problem| FieldViolation {
            field: format!("batch.{}", problem.path),
            ..FieldViolation::from(problem)
        }));
        found
    }
}

/// The output locations of a spec, as they are written.
fn outputs(text: &str) -> Vec<String> {
    let loaded = batch_specs::load(
        text,
        &batch_specs::LoadOptions {
            event: [
                "event.bucket",
                "event.key",
                "event.stem",
                "event.version",
                "event.location",
            ]
            .map(|name| (name.to_owned(), "x".to_owned()))
            .into_iter()
            .collect(),
            ..batch_specs::LoadOptions::default()
        },
    );
    let stages = loaded.spec.map_or_else(Vec::new, |spec: Spec| spec.stages);
    let outputs = stages.into_iter().filter_map(|stage| stage.output);
    outputs.map(|output| output.location).collect()
}

/// Submits what triggers ask for, and reads their queues, until told to stop. With no trigger
/// it sleeps until a change.
pub async fn run(
    triggers: Arc<Triggers>,
    acceptor: Arc<Acceptor>,
    batches: Batches,
    mut stop: watch::Receiver<bool>,
) {
    let mut changes = batches.changes();
    let mut readers = Readers::default();
    while !*stop.borrow() {
        changes.mark_unchanged();
        let any = match batches.store().triggers().await {
            Ok(all) => {
                readers.fit(&all, &acceptor, &triggers, &stop);
                !all.is_empty()
            }
            Err(_) => true,
        };
        if any && let Err(error) = triggers.advance().await {
            tracing::warn!(%error, "triggers are tried again");
        }
        tokio::select! {
            _ = stop.changed() => {}
            () = tokio::time::sleep(LOOK), if any => {}
            () = tokio::time::sleep(IDLE_LOOK), if !any && batches.store().is_shared() => {}
            _ = changes.changed(), if !any => {}
        }
    }
    readers.end().await;
}

/// A task for each queue that is read.
#[derive(Default)]
struct Readers {
    /// By trigger; with what it reads, since a trigger may be made anew under its name.
    running: HashMap<String, (i64, JoinHandle<()>)>,
}

impl Readers {
    /// Starts what is missing and ends what is no longer wanted.
    fn fit(
        &mut self,
        all: &[Trigger],
        acceptor: &Acceptor,
        triggers: &Arc<Triggers>,
        stop: &watch::Receiver<bool>,
    ) {
        self.running.retain(|name, (made, task)| {
            let is_wanted = all
                .iter()
                .any(|trigger| trigger.name == *name && trigger.created_ms == *made);
            if !is_wanted {
                task.abort();
            }
            is_wanted && !task.is_finished()
        });
        for trigger in all {
            // What was allowed when it was made may be allowed no more.
            let Ok(Some(queue)) = acceptor.queue(&trigger.spec.source) else {
                continue;
            };
            self.running.entry(trigger.name.clone()).or_insert_with(|| {
                let read = sqs::run(queue, trigger.clone(), Arc::clone(triggers), stop.clone());
                (trigger.created_ms, tokio::spawn(read))
            });
        }
    }

    async fn end(self) {
        for (_, (_, task)) in self.running {
            let _ = task.await;
        }
    }
}
