//! Google's own fields, and that a batch has exactly one workload.

use super::Check;
use crate::problem::Severity;
use crate::read::cut;
use crate::spec::Profile;

pub(super) fn check(check: &mut Check<'_>) {
    workloads(check);
    let Some(dataproc) = &check.spec.dataproc else {
        return;
    };
    if check.spec.profile != Profile::Dataproc {
        check.report(
            Severity::Warning,
            "dataproc-fields",
            "dataproc",
            "these fields have no effect in the native profile",
            "add `profile: dataproc`, or remove them",
        );
    }
    if let Some(id) = &dataproc.batch_id {
        let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        let fine = (4..=63).contains(&id.len())
            && id.chars().all(inner)
            && !id.starts_with('-')
            && !id.ends_with('-');
        if !fine {
            let message = format!("`{}` is not a batch id", cut(id));
            check.refuse(
                "batch-id",
                "dataproc.batch_id",
                message,
                "use 4 to 63 lower-case letters, digits and inner hyphens",
            );
        }
    }
    if let Some(id) = &dataproc.request_id {
        let fine = (1..=40).contains(&id.len())
            && id
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-');
        if !fine {
            let message = format!("`{}` is not a request id", cut(id));
            check.refuse(
                "request-id",
                "dataproc.request_id",
                message,
                "use up to 40 letters, digits, `_` and `-`",
            );
        }
    }
    if let Some(bucket) = &dataproc.staging_bucket
        && (bucket.contains("://") || bucket.contains('/'))
    {
        let bare = bucket
            .rsplit("://")
            .next()
            .unwrap_or("")
            .split('/')
            .next()
            .unwrap_or("");
        let message = format!("`{}` is not the bare name of a bucket", cut(bucket));
        check.refuse(
            "staging-bucket",
            "dataproc.staging_bucket",
            message,
            format!("write `{}`", cut(bare)),
        );
    }
    if dataproc.network.is_some() && dataproc.subnetwork.is_some() {
        check.refuse(
            "network-and-subnetwork",
            "dataproc.subnetwork",
            "`network` and `subnetwork` exclude each other",
            "keep one of them",
        );
    }
    if dataproc.idle_ttl.is_some() {
        check.refuse(
            "idle-ttl",
            "dataproc.idle_ttl",
            "`idle_ttl` is for sessions; a batch has none",
            "use `limits.ttl`",
        );
    }
    files(check);
}

fn workloads(check: &mut Check<'_>) {
    let spec = check.spec;
    let mut found = Vec::new();
    if !spec.stages.is_empty() {
        found.push("stages");
    }
    if let Some(d) = &spec.dataproc {
        let foreign = [
            (d.spark_sql_batch.is_some(), "dataproc.spark_sql_batch"),
            (d.pyspark_batch.is_some(), "dataproc.pyspark_batch"),
            (d.spark_batch.is_some(), "dataproc.spark_batch"),
            (d.spark_r_batch.is_some(), "dataproc.spark_r_batch"),
        ];
        found.extend(
            foreign
                .iter()
                .filter(|(is_there, _)| *is_there)
                .map(|(_, name)| *name),
        );
    }
    match found.as_slice() {
        [] => {
            let path = if check.root.find("stages").is_some() {
                "stages"
            } else {
                ""
            };
            check.refuse(
                "no-workload",
                path,
                "the batch has nothing to run",
                "add a stage",
            );
        }
        [_] => {}
        [.., last] => {
            let message = format!(
                "a batch has one workload, and this has {}",
                crate::read::list(&found)
            );
            check.refuse("several-workloads", last, message, "keep one of them");
        }
    }
}

fn files(check: &mut Check<'_>) {
    let Some(dataproc) = &check.spec.dataproc else {
        return;
    };
    let mut args: Vec<(&str, &[String])> = Vec::new();
    if let Some(sql) = &dataproc.spark_sql_batch
        && sql.query_file_uri.is_empty()
    {
        check.report(
            Severity::Notice,
            "workload",
            "dataproc.spark_sql_batch",
            "the script's location is empty",
            "",
        );
    }
    if let Some(python) = &dataproc.pyspark_batch {
        if !python.main_python_file_uri.is_empty() && !python.main_python_file_uri.ends_with(".py")
        {
            check.refuse(
                "workload",
                "dataproc.pyspark_batch.main_python_file_uri",
                "the main file must end in `.py`",
                "",
            );
        }
        args.push(("dataproc.pyspark_batch.args", &python.args));
    }
    if let Some(jvm) = &dataproc.spark_batch {
        if jvm.main_jar_file_uri.is_some() == jvm.main_class.is_some() {
            check.refuse(
                "workload",
                "dataproc.spark_batch",
                "exactly one of `main_jar_file_uri` and `main_class` is needed",
                "",
            );
        }
        args.push(("dataproc.spark_batch.args", &jvm.args));
    }
    if let Some(r) = &dataproc.spark_r_batch {
        if !r.main_r_file_uri.is_empty() && !r.main_r_file_uri.to_ascii_lowercase().ends_with(".r")
        {
            check.refuse(
                "workload",
                "dataproc.spark_r_batch.main_r_file_uri",
                "the main file must end in `.R`",
                "",
            );
        }
        args.push(("dataproc.spark_r_batch.args", &r.args));
    }
    for (path, args) in args {
        if args
            .iter()
            .any(|a| a == "--conf" || a.starts_with("--conf=") || a == "--properties")
        {
            check.report(
                Severity::Warning,
                "conf-in-args",
                path,
                "arguments carry settings, which the program ignores",
                "move them to `properties`",
            );
        }
    }
}
