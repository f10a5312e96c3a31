//! The command line as its users meet it: exit codes, where output goes, and messages.

mod support;

use std::fs;

use support::{Case, ONE_ROW, check, json};

#[test]
fn a_good_spec_is_valid() {
    let case = Case::new(ONE_ROW);
    let (stdout, _) = check(case.warpline(&["validate", "spec.yaml"]), 0);
    assert_eq!(stdout, "");
}

#[test]
fn every_error_of_a_bad_spec_has_its_place() {
    let case = Case::new(
        &ONE_ROW
            .replace("accelerator", "acelerator")
            .replace("sql", "sqll"),
    );
    let (stdout, stderr) = check(case.warpline(&["validate", "spec.yaml"]), 2);
    assert_eq!(stdout, "");
    assert!(stderr.contains("spec.yaml:3:1: error["), "{stderr}");
    assert!(stderr.contains("spec.yaml:6:5: error["), "{stderr}");
    assert!(stderr.contains("accelerator"), "{stderr}");

    let (stdout, _) = check(
        case.warpline(&["validate", "spec.yaml", "--output", "json"]),
        2,
    );
    let problems = json(&stdout)["problems"].as_array().map_or(0, Vec::len);
    assert!(problems >= 2, "{stdout}");
}

#[test]
fn a_bad_spec_does_not_run() {
    let case = Case::new(&ONE_ROW.replace("version: 1", "version: 99"));
    check(case.warpline(&["run", "spec.yaml"]), 2);
    check(case.warpline(&["plan", "spec.yaml"]), 2);
}

#[test]
fn a_spec_that_cannot_be_read_is_named() {
    let case = Case::new(ONE_ROW);
    fs::write(case.path("data"), [0xff, 0xfe, 0x00]).expect("a file");
    for (spec, problem) in [
        ("absent.yaml", "there is no such file or directory"),
        (
            "spec.yaml/x",
            "a part of the path is a file, not a directory",
        ),
        (".", "it is a directory, not a file"),
        ("data", "it is not UTF-8 text"),
        ("/dev/zero", "it has more than 16 MiB, so it is no spec"),
    ] {
        for command in ["validate", "plan", "run"] {
            let (_, stderr) = check(case.warpline(&[command, spec]), 2);
            assert_eq!(stderr, format!("error: cannot read {spec}: {problem}\n"));
        }
    }
}

#[test]
fn an_unknown_option_is_a_usage_error() {
    let case = Case::new(ONE_ROW);
    check(case.warpline(&["run", "spec.yaml", "--no-such-option"]), 2);
    check(case.warpline(&[]), 2);
}

#[test]
fn a_one_row_query_runs() {
    let case = Case::new(ONE_ROW);
    let (stdout, stderr) = check(
        case.warpline(&["run", "spec.yaml", "--report", "report.json"]),
        0,
    );
    assert!(
        stdout.contains("answer") && stdout.contains("42"),
        "{stdout}"
    );
    assert!(stderr.contains("succeeded"), "{stderr}");

    let report = json(&fs::read_to_string(case.path("report.json")).expect("a report"));
    assert_eq!(report["name"], "one-row");
    assert_eq!(report["state"], "succeeded");
    assert_eq!(report["stages"][0]["name"], "answer");
    assert_eq!(report["fallbacks"], serde_json::json!([]));
    assert!(report["effective"].is_object(), "{report}");
}

#[test]
fn rows_and_report_are_one_json_object() {
    let case = Case::new(ONE_ROW);
    let (stdout, _) = check(case.warpline(&["run", "spec.yaml", "--output", "json"]), 0);
    let output = json(&stdout);
    assert_eq!(output["results"][0]["stage"], "answer");
    assert_eq!(
        output["results"][0]["rows"],
        serde_json::json!([{"answer": 42}])
    );
    assert_eq!(output["report"]["state"], "succeeded");
}

#[test]
fn rows_in_json_keep_every_digit() {
    let exact = "12345678901234567890.123456789012345678";
    let case = Case::new(&ONE_ROW.replace("42", &format!("CAST('{exact}' AS decimal(38, 18))")));
    let (stdout, _) = check(case.warpline(&["run", "spec.yaml", "--output", "json"]), 0);
    json(&stdout);
    assert!(
        stdout.contains(&format!("{{\"answer\":{exact}}}")),
        "{stdout}"
    );
}

#[test]
fn a_wrong_query_fails_the_job_and_says_where() {
    let case = Case::new(&ONE_ROW.replace("42 AS answer", "answer FROM nowhere"));
    let (_, stderr) = check(
        case.warpline(&["run", "spec.yaml", "--report", "report.json"]),
        1,
    );
    assert!(stderr.contains("stage answer"), "{stderr}");
    assert!(stderr.contains("nowhere"), "{stderr}");
    let report = json(&fs::read_to_string(case.path("report.json")).expect("a report"));
    assert_eq!(report["state"], "failed");
    assert_eq!(report["error"]["kind"], "invalid_query");
    assert_eq!(report["error"]["stage"], "answer");
}

#[test]
fn a_plan_tells_where_each_value_comes_from() {
    let case = Case::new(ONE_ROW);
    let (stdout, _) = check(
        case.warpline(&[
            "plan",
            "spec.yaml",
            "--output",
            "json",
            "--set",
            "executors.cores=4",
        ]),
        0,
    );
    let plan = json(&stdout);
    let effective = plan["effective"].as_object().expect("an object");
    assert!(!effective.is_empty());
    for (name, entry) in effective {
        for field in ["value", "from", "rule"] {
            assert!(entry.get(field).is_some(), "{name} has no {field}: {entry}");
        }
    }
    assert!(plan["problems"].is_array(), "{stdout}");
    assert_eq!(plan["stages"][0]["name"], "answer");
}

#[test]
fn a_refused_fallback_runs_nothing() {
    let case = Case::new(&ONE_ROW.replace("{type: none}", "{type: l4, fallback: fail}"));
    let output = case.warpline(&["run", "spec.yaml"]);
    assert!(matches!(output.status.code(), Some(1 | 2)), "{output:?}");
    assert!(output.stdout.is_empty(), "{output:?}");
    // A machine without a GPU refuses the spec; one with a GPU refuses to fall back.
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(
        stderr.contains("gpu-absent") || stderr.contains("no-gpu"),
        "{stderr}"
    );
}

#[test]
fn an_allowed_fallback_is_told() {
    let case =
        Case::new(&ONE_ROW.replace("{type: none}", "{type: l4, tier: premium, fallback: cpu}"));
    let (_, stderr) = check(
        case.warpline(&["run", "spec.yaml", "--report", "report.json"]),
        0,
    );
    assert!(stderr.contains("no-gpu"), "{stderr}");
    let report = json(&fs::read_to_string(case.path("report.json")).expect("a report"));
    assert_eq!(report["fallbacks"][0]["reason"]["code"], "no-gpu");
}

#[test]
fn generated_tables_are_whole_files() {
    let case = Case::new(ONE_ROW);
    let arguments = [
        "tpch",
        "generate",
        "--scale",
        "0.001",
        "--output",
        "data",
        "--parallel",
        "2",
    ];
    check(case.warpline(&arguments), 0);
    let names = |table: &str| {
        let mut names: Vec<_> = fs::read_dir(case.path("data").join(table))
            .expect("the table has a folder")
            .map(|entry| entry.expect("a readable folder").file_name())
            .collect();
        names.sort();
        names
    };
    assert_eq!(
        names("lineitem"),
        ["lineitem-00001.parquet", "lineitem-00002.parquet"]
    );
    assert_eq!(names("region"), ["region-00001.parquet"]);
}
