//! From what a client sends to a batch that lifecycle takes.

use batch_specs::{LoadOptions, Loaded, Problem, Severity, Spec};
use indexmap::IndexMap;
use lifecycle::batch::{BatchLimits, NewBatch, Submission, Wants};
use serde_json::json;

use super::locations::LocationPolicy;

/// Who submits, and under which names.
#[derive(Debug, Clone, Default)]
pub struct Names {
    /// The owner.
    pub owner: String,
    /// The id; one is made of the spec's name unless given.
    pub batch_id: Option<String>,
    /// Makes a repeated submit harmless.
    pub request_id: Option<String>,
}

/// One thing that is wrong with a request.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, utoipa::ToSchema)]
pub struct FieldViolation {
    /// The field: a path in the spec, or a parameter.
    pub field: String,
    /// A stable name of the problem.
    pub code: String,
    /// Line in the spec, from 1; 0 when it is not about the text.
    pub line: usize,
    /// Column in the spec, from 1; 0 when it is not about the text.
    pub column: usize,
    /// What is wrong.
    pub description: String,
    /// What to change.
    pub hint: String,
}

impl From<&Problem> for FieldViolation {
    fn from(problem: &Problem) -> Self {
        FieldViolation {
            field: problem.path.clone(),
            code: problem.code.clone(),
            line: problem.line,
            column: problem.column,
            description: problem.message.clone(),
            hint: problem.hint.clone(),
        }
    }
}

impl FieldViolation {
    /// A problem of a parameter.
    pub fn parameter(field: &str, code: &str, description: impl Into<String>) -> Self {
        FieldViolation {
            field: field.to_owned(),
            code: code.to_owned(),
            line: 0,
            column: 0,
            description: description.into(),
            hint: String::new(),
        }
    }
}

/// A submission that was looked at.
pub struct Checked {
    /// What was submitted, with its canonical form.
    pub submission: Submission,
    /// What `batch_specs` made of it.
    pub loaded: Loaded,
    /// Everything that refuses it.
    pub violations: Vec<FieldViolation>,
}

/// Reads a submission as an attempt will. `sets` on top of the author's make an attempt
/// smaller.
pub fn load(
    submission: &Submission,
    machine: Option<batch_specs::Machine>,
    sets: &[String],
) -> Loaded {
    let options = LoadOptions {
        sets: submission.sets.iter().chain(sets).cloned().collect(),
        variables: submission.variables.clone(),
        event: submission.event.clone(),
        machine,
        sql_files: submission.sql_files.clone(),
        ..LoadOptions::default()
    };
    let mut loaded = batch_specs::load(&submission.spec, &options);
    if let Some(spec) = &mut loaded.spec
        && let Some(problem) = bind_locations(spec, &submission.event)
    {
        loaded.problems.push(problem);
        loaded.spec = None;
    }
    loaded
}

/// Puts the values of an event in the places of locations that name them. A location is a
/// value as a whole, so nothing in it is read as anything else; but for what it takes for a
/// pattern, which is a problem.
fn bind_locations(spec: &mut Spec, event: &IndexMap<String, String>) -> Option<Problem> {
    let tables = spec.tables.iter_mut().enumerate();
    let tables = tables.map(|(i, table)| (format!("tables[{i}].location"), &mut table.location));
    let outputs = spec.stages.iter_mut().enumerate().filter_map(|(i, stage)| {
        let output = stage.output.as_mut()?;
        Some((format!("stages[{i}].output.location"), &mut output.location))
    });
    for (path, location) in tables.chain(outputs) {
        let (bound, has_pattern) = bind_event(location, event);
        if has_pattern {
            return Some(Problem {
                severity: Severity::Error,
                code: "event-pattern".into(),
                path,
                line: 0,
                column: 0,
                message: "the event's object has `*` or `?` in its name, which a location takes for a pattern".into(),
                hint: "read it through a table of its folder".into(),
            });
        }
        *location = bound;
    }
    None
}

/// Replaces `${event.*}` once from left to right; what a value holds is not looked at again.
/// Also whether a value holds what a location takes for a pattern.
fn bind_event(text: &str, event: &IndexMap<String, String>) -> (String, bool) {
    let (mut bound, mut has_pattern) = (String::new(), false);
    let mut rest = text;
    while let Some(start) = rest.find("${") {
        let Some(length) = rest[start..].find('}') else {
            break;
        };
        let name = &rest[start + 2..start + length];
        bound.push_str(&rest[..start]);
        match event.get(name) {
            Some(value) => {
                has_pattern |= value.contains(['*', '?']);
                bound.push_str(value);
            }
            None => bound.push_str(&rest[start..=start + length]),
        }
        rest = &rest[start + length + 1..];
    }
    bound.push_str(rest);
    (bound, has_pattern)
}

/// Checks everything about a submission that can be checked without touching its data.
pub fn check(
    mut submission: Submission,
    machine: batch_specs::Machine,
    policy: &LocationPolicy,
) -> Checked {
    let loaded = load(&submission, Some(machine), &[]);
    let errors = loaded
        .problems
        .iter()
        .filter(|p| p.severity == Severity::Error);
    let mut violations: Vec<FieldViolation> = errors.map(FieldViolation::from).collect();
    if let Some(spec) = &loaded.spec {
        violations.extend(
            policy
                .check(spec)
                .into_iter()
                .map(|forbidden| FieldViolation {
                    field: forbidden.path,
                    code: "location-forbidden".into(),
                    line: 0,
                    column: 0,
                    description: forbidden.message,
                    hint: forbidden.hint,
                }),
        );
        submission.canonical = json!({
            "spec": spec,
            "sql_files": submission.sql_files,
            "sets": submission.sets,
            "variables": submission.variables,
            "event": submission.event,
            "objects": submission.objects,
        });
    }
    Checked {
        submission,
        loaded,
        violations,
    }
}

/// The batch that a checked submission asks for. `fair_label` is the label whose value is
/// the batch's group; its owner is unless it has that label.
pub fn new_batch(
    loaded: &Loaded,
    names: Names,
    fair_label: &str,
    retention_ms: i64,
) -> Result<NewBatch, FieldViolation> {
    let Some(spec) = &loaded.spec else {
        return Err(FieldViolation::parameter(
            "spec",
            "refused",
            "the spec has errors",
        ));
    };
    let id = match names.batch_id {
        Some(id) if is_batch_id(&id) => id,
        Some(_) => {
            return Err(FieldViolation {
                hint: "use 4 to 63 lower-case letters, digits and inner hyphens".into(),
                ..FieldViolation::parameter("batch_id", "batch-id", "it is not an id for a batch")
            });
        }
        None => made_up_id(&spec.name),
    };
    if let Some(request_id) = &names.request_id {
        let fits = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
        if !(1..=40).contains(&request_id.len()) || !request_id.chars().all(fits) {
            return Err(FieldViolation {
                hint: "use up to 40 letters, digits, `_` and `-`".into(),
                ..FieldViolation::parameter("request_id", "request-id", "it is not a request id")
            });
        }
    }
    let effective = &loaded.effective;
    let seconds = |name: &str| {
        let seconds = i64::try_from(effective.count(name)?).ok()?;
        seconds.checked_mul(1_000)
    };
    let group = spec.labels.get(fair_label).unwrap_or(&names.owner).clone();
    Ok(NewBatch {
        id,
        name: spec.name.clone(),
        labels: spec.labels.clone(),
        group,
        priority: match effective.text("executors.tier") {
            Some("premium") => 1,
            _ => 0,
        },
        owner: names.owner,
        request_id: names.request_id,
        wants: wants(loaded),
        limits: BatchLimits {
            ttl_ms: seconds("limits.ttl_s"),
            queue_ttl_ms: seconds("limits.queue_ttl_s"),
            max_attempts: effective
                .count("limits.max_attempts")
                .and_then(|n| u32::try_from(n).ok())
                .unwrap_or(1),
            retention_ms: Some(retention_ms),
        },
        trigger: None,
        depth: 0,
    })
}

fn wants(loaded: &Loaded) -> Wants {
    let effective = &loaded.effective;
    let small = |n: u64| u32::try_from(n).unwrap_or(u32::MAX);
    let n_executors = effective.count("executors.instances").unwrap_or(1).max(1);
    let cores = effective.count("compute.threads").unwrap_or(1);
    let gpu = effective.text("gpu.type").filter(|name| *name != "none");
    let share = effective
        .number("gpu.task_share")
        .filter(|share| *share > 0.0);
    Wants {
        gpu: gpu.map(str::to_owned),
        // One process runs the whole batch, so it takes as much of the device as its
        // concurrent chunks would: all of it unless the spec shares it.
        gpu_milli: share.map_or(1_000, |share| (share * 1_000.0).clamp(1.0, 1_000.0) as u32),
        may_fall_back: effective.text("accelerator.fallback") != Some("fail"),
        cores: small(cores.saturating_mul(n_executors)),
        memory_mib: effective
            .count("executors.memory_total_mib")
            .map(|mib| mib.saturating_mul(n_executors)),
    }
}

/// Whether it is an id for a batch.
pub fn is_batch_id(id: &str) -> bool {
    let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    (4..=63).contains(&id.len())
        && id.chars().all(inner)
        && !id.starts_with('-')
        && !id.ends_with('-')
}

/// An id that people recognise and nothing else has.
fn made_up_id(name: &str) -> String {
    let mut bytes = [0; 4];
    if getrandom::fill(&mut bytes).is_err() {
        // Only names the batch; an id that is taken is refused by the store.
        bytes = crate::worker_protocol::boot_time_ns().to_ne_bytes()[..4]
            .try_into()
            .expect("four bytes of eight");
    }
    let stem: String = name.chars().take(50).collect();
    format!(
        "{}-{:08x}",
        stem.trim_end_matches('-'),
        u32::from_ne_bytes(bytes)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_follow_one_rule() {
        for (id, fits) in [
            ("abcd", true),
            ("1-2-3", true),
            ("abc", false),
            ("-abc", false),
            ("abc-", false),
            ("Abcd", false),
            ("../../etc", false),
            ("ab\ncd", false),
            ("ab%2fcd", false),
        ] {
            assert_eq!(is_batch_id(id), fits, "{id}");
        }
        assert!(is_batch_id(&"a".repeat(63)) && !is_batch_id(&"a".repeat(64)));
        assert!(is_batch_id(&made_up_id("a")));
        assert!(is_batch_id(&made_up_id(&"long-name".repeat(7))));
    }

    #[test]
    fn values_of_an_event_are_put_in_once() {
        let event: IndexMap<String, String> =
            [("event.key", "a/${event.stem} b"), ("event.stem", "s?")]
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .into_iter()
                .collect();
        for (text, expected, has_pattern) in [
            ("s3://l/${event.key}", "s3://l/a/${event.stem} b", false),
            ("${event.stem}${event.key}", "s?a/${event.stem} b", true),
            ("${other} ${event.key", "${other} ${event.key", false),
            ("plain", "plain", false),
        ] {
            assert_eq!(
                bind_event(text, &event),
                (expected.to_owned(), has_pattern),
                "{text}"
            );
        }
    }

    #[test]
    fn a_spec_says_what_its_batch_needs() {
        let submission = Submission {
            spec: "version: 1\nname: n\nlabels: {team: growth}\naccelerator: {type: none}\n\
                   executors: {instances: 2, cores: 4}\nlimits: {ttl: 5m, queue_ttl: 1m, max_attempts: 2}\n\
                   stages:\n  - {name: a, sql: SELECT 1}\n"
                .into(),
            ..Submission::default()
        };
        let checked = check(
            submission,
            batch_specs::Machine::default(),
            &LocationPolicy::default(),
        );
        assert_eq!(checked.violations, []);
        let names = Names {
            owner: "ada".into(),
            ..Names::default()
        };
        let new = new_batch(&checked.loaded, names, "team", 1).expect("it is accepted");
        assert_eq!(new.group, "growth");
        assert_eq!(new.wants.gpu, None);
        assert_eq!(new.limits.ttl_ms, Some(300_000));
        assert_eq!(new.limits.queue_ttl_ms, Some(60_000));
        assert_eq!(new.limits.max_attempts, 2);
        assert!(new.wants.cores >= 2, "{:?}", new.wants);
    }
}
