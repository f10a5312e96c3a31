//! Whether batches of triggers would start each other for ever.

use super::TriggerSpec;

/// What a trigger listens to and what its batches write, as far as both are the same for all
/// its events.
struct Reach {
    name: String,
    bucket: Option<String>,
    prefix: String,
    outputs: Vec<String>,
}

/// The names of triggers that would start each other round and round, when `new` is added;
/// none when there is no such loop. `outputs` finds the output locations in a spec.
pub fn loop_through(
    new: &TriggerSpec,
    others: &[TriggerSpec],
    outputs: impl Fn(&str) -> Vec<String>,
) -> Option<Vec<String>> {
    let reach = |spec: &TriggerSpec| Reach {
        name: spec.name.clone(),
        bucket: spec.matching.bucket.clone(),
        prefix: spec.matching.prefix.clone(),
        outputs: outputs(&spec.batch),
    };
    let others = others
        .iter()
        .filter(|spec| spec.name != new.name)
        .map(reach);
    let all: Vec<Reach> = std::iter::once(reach(new)).chain(others).collect();
    let mut path = vec![0];
    walk(&all, &mut path).then(|| path.iter().map(|i| all[*i].name.clone()).collect())
}

/// Extends the path until it comes back to its start.
fn walk(all: &[Reach], path: &mut Vec<usize>) -> bool {
    let from = path[path.len() - 1];
    for (to, reach) in all.iter().enumerate() {
        if !all[from].outputs.iter().any(|output| starts(output, reach)) {
            continue;
        }
        if to == 0 {
            return true;
        }
        if path.contains(&to) {
            continue;
        }
        path.push(to);
        if walk(all, path) {
            return true;
        }
        path.pop();
    }
    false
}

/// Whether files below an output may start a trigger.
fn starts(output: &str, reach: &Reach) -> bool {
    let Some((_, rest)) = output.split_once("://") else {
        return false;
    };
    // What an event fills in may be anything.
    let rest = rest.split("${").next().unwrap_or_default();
    let (bucket, key) = rest.split_once('/').unwrap_or((rest, ""));
    let bucket_fits = match &reach.bucket {
        Some(wanted) => wanted == bucket || (!rest.contains('/') && wanted.starts_with(bucket)),
        None => true,
    };
    bucket_fits && (key.starts_with(&reach.prefix) || reach.prefix.starts_with(key))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trigger::{Matching, Source};

    /// A trigger that listens to `bucket/prefix` and writes to the locations.
    fn trigger(name: &str, bucket: &str, prefix: &str, outputs: &str) -> TriggerSpec {
        TriggerSpec {
            name: name.into(),
            source: Source::Webhook {},
            matching: Matching {
                bucket: (!bucket.is_empty()).then(|| bucket.to_owned()),
                prefix: prefix.into(),
                ..Matching::default()
            },
            key_encoding: Default::default(),
            readiness: Default::default(),
            coalesce: false,
            limits: Default::default(),
            batch: outputs.into(),
        }
    }

    fn outputs(batch: &str) -> Vec<String> {
        batch.split_whitespace().map(str::to_owned).collect()
    }

    #[track_caller]
    fn check(new: &TriggerSpec, others: &[TriggerSpec], expected: Option<&[&str]>) {
        let found = loop_through(new, others, outputs);
        let expected = expected.map(|names| names.iter().map(|n| (*n).to_owned()).collect());
        assert_eq!(found, expected);
    }

    #[test]
    fn loops_are_found_also_through_others() {
        check(&trigger("a", "lake", "in/", "s3://lake/out/"), &[], None);
        check(&trigger("a", "lake", "in/", "s3://sea/in/"), &[], None);
        check(
            &trigger("a", "lake", "in/", "s3://lake/in/out"),
            &[],
            Some(&["a"]),
        );
        check(
            &trigger("a", "lake", "in/deep/", "s3://lake/in/"),
            &[],
            Some(&["a"]),
        );
        check(&trigger("a", "", "", "s3://any/where"), &[], Some(&["a"]));
        check(
            &trigger("a", "lake", "in/", "s3://lake/${event.stem}"),
            &[],
            Some(&["a"]),
        );
        check(
            &trigger("a", "lake", "in/", "s3://lake/out/${event.stem}"),
            &[],
            None,
        );
        check(&trigger("a", "lake", "in/", "/local/folder"), &[], None);
        let b = trigger("b", "lake", "mid/", "s3://lake/late/");
        let c = trigger("c", "lake", "late/", "s3://lake/in/");
        check(
            &trigger("a", "lake", "in/", "s3://lake/mid/"),
            std::slice::from_ref(&b),
            None,
        );
        check(
            &trigger("a", "lake", "in/", "s3://lake/mid/"),
            &[b, c],
            Some(&["a", "b", "c"]),
        );
    }
}
