//! Does a spec give the values, or the problems, that the rules promise? One row of
//! `vectors.yaml` is one question.

use std::collections::BTreeMap;

use batch_specs::{GpuInfo, LoadOptions, Loaded, Machine, Severity, load};
use serde::Deserialize;
use serde_json::Value as Json;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Vector {
    /// Number of the rule; several rows may share one.
    id: String,
    /// What surrounds `spec`: `sql`, `jvm` or `python` in Google's profile, `native`, or `bare`.
    #[serde(default)]
    base: Option<String>,
    /// Lines of the spec.
    #[serde(default)]
    spec: String,
    #[serde(default)]
    sets: Vec<String>,
    #[serde(default)]
    vars: Vec<String>,
    #[serde(default)]
    strict: bool,
    /// `cores, memory in MiB, then one "name:memory in MiB" for each GPU`.
    #[serde(default)]
    machine: Option<(u64, u64, Vec<String>)>,
    /// Values of the effective configuration; null stands for "absent or null".
    #[serde(default)]
    expect: BTreeMap<String, Json>,
    /// Where values came from.
    #[serde(default)]
    from: BTreeMap<String, String>,
    /// Codes of all errors, in the order of the file.
    #[serde(default)]
    errors: Vec<String>,
    /// Codes of all warnings.
    #[serde(default)]
    warnings: Vec<String>,
    /// Codes of notices that must be among those given.
    #[serde(default)]
    notices: Vec<String>,
    /// Texts that must occur in messages and hints.
    #[serde(default)]
    says: Vec<String>,
    /// SQL of the first stage's first statement, once bound.
    #[serde(default)]
    sql: Option<String>,
}

const HEAD: &str = "version: 1\nname: vector\n";
const STAGE: &str = "stages: [{name: q, sql: SELECT 1}]\n";

fn text_of(vector: &Vector) -> String {
    let base = vector.base.as_deref().unwrap_or("sql");
    let around = match base {
        "sql" => format!("profile: dataproc\n{STAGE}"),
        "jvm" => "profile: dataproc\ndataproc: {spark_batch: {main_class: A}}\n".to_owned(),
        "python" => {
            "profile: dataproc\ndataproc: {pyspark_batch: {main_python_file_uri: \"gs://b/a.py\"}}\n".to_owned()
        }
        "google" => "profile: dataproc\n".to_owned(),
        "native" => STAGE.to_owned(),
        "bare" => String::new(),
        other => panic!("no base is called {other}"),
    };
    format!("{HEAD}{around}{}", vector.spec)
}

fn codes(loaded: &Loaded, severity: Severity) -> Vec<String> {
    let of = loaded.problems.iter().filter(|p| p.severity == severity);
    of.map(|p| p.code.clone()).collect()
}

fn equal(a: &Json, b: &Json) -> bool {
    match (a.as_f64(), b.as_f64()) {
        (Some(a), Some(b)) => (a - b).abs() < 1e-9,
        _ => a == b,
    }
}

/// Everything that differs from what the row promises.
fn check(vector: &Vector) -> Vec<String> {
    let machine = vector
        .machine
        .as_ref()
        .map(|(cores, memory_mib, gpus)| Machine {
            cores: *cores,
            memory_mib: *memory_mib,
            gpus: gpus
                .iter()
                .map(|text| {
                    let (name, mib) = text.split_once(':').expect("name:memory");
                    GpuInfo {
                        name: name.to_owned(),
                        memory_mib: mib.parse().expect("MiB"),
                    }
                })
                .collect(),
        });
    let options = LoadOptions {
        sets: vector.sets.clone(),
        variables: vector.vars.clone(),
        strict: vector.strict,
        machine,
        ..LoadOptions::default()
    };
    let loaded = load(&text_of(vector), &options);
    let mut wrong = Vec::new();
    for (severity, expected) in [
        (Severity::Error, &vector.errors),
        (Severity::Warning, &vector.warnings),
    ] {
        let found = codes(&loaded, severity);
        if found != *expected {
            wrong.push(format!(
                "{}s: {found:?}, expected {expected:?}",
                severity.word()
            ));
        }
    }
    let notices = codes(&loaded, Severity::Notice);
    for notice in vector.notices.iter().filter(|n| !notices.contains(n)) {
        wrong.push(format!("notice {notice} is missing among {notices:?}"));
    }
    for (name, expected) in &vector.expect {
        let found = loaded
            .effective
            .get(name)
            .map_or(Json::Null, |s| s.value.clone());
        if !equal(&found, expected) {
            wrong.push(format!("{name} = {found}, expected {expected}"));
        }
    }
    for (name, expected) in &vector.from {
        let from = loaded
            .effective
            .get(name)
            .map(|s| serde_json::to_value(s.from).expect("serialises"));
        if from != Some(Json::from(expected.as_str())) {
            wrong.push(format!("{name} comes from {from:?}, expected {expected}"));
        }
    }
    let said: String = loaded
        .problems
        .iter()
        .map(|p| p.render("f") + "\n")
        .collect();
    for text in vector.says.iter().filter(|t| !said.contains(*t)) {
        wrong.push(format!("nothing says {text:?}"));
    }
    if let Some(sql) = &vector.sql {
        let found = loaded
            .scripts
            .first()
            .and_then(|s| s.statements.first())
            .map(|s| s.sql.clone());
        if found.as_ref() != Some(sql) {
            wrong.push(format!("sql {found:?}, expected {sql:?}"));
        }
    }
    if !wrong.is_empty() {
        wrong.push(format!("problems:\n{said}"));
    }
    wrong
}

/// The numbers of the rules that the table has; the missing ones do not exist.
const RULES: [u32; 60] = [
    1, 2, 3, 4, 5, 6, 8, 9, 10, 11, 13, 14, 15, 17, 18, 20, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31,
    32, 33, 34, 36, 37, 38, 39, 40, 41, 42, 43, 44, 45, 46, 48, 49, 50, 51, 53, 54, 55, 56, 58, 59,
    60, 61, 62, 64, 65, 66, 67, 68, 69, 70,
];

#[test]
fn every_rule_has_a_vector() {
    let vectors: Vec<Vector> =
        serde_saphyr::from_str(include_str!("vectors.yaml")).expect("vectors.yaml reads");
    for rule in RULES {
        let id = format!("D{rule}");
        assert!(vectors.iter().any(|v| v.id == id), "{id} has no vector");
    }
}

#[test]
fn every_vector_holds() {
    let vectors: Vec<Vector> =
        serde_saphyr::from_str(include_str!("vectors.yaml")).expect("vectors.yaml reads");
    let mut report = String::new();
    for (i, vector) in vectors.iter().enumerate() {
        let wrong = check(vector);
        if !wrong.is_empty() {
            report.push_str(&format!(
                "\n{} (row {}):\n  {}\n  {}",
                vector.id,
                i + 1,
                vector.spec.replace('\n', "\n  "),
                wrong.join("\n  ")
            ));
        }
    }
    assert!(report.is_empty(), "{report}");
}
