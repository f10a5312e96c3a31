//! How does a run end when something stops it: a signal, its time, a disk, a permission?
//!
//! Every run is caught while it does what the test is about: the test waits for a state
//! that can be seen from outside, such as a first file in the hidden directory.

mod support;

use std::fs;
use std::os::unix::process::CommandExt;
use std::process::{Command, Output};

use support::{Case, ONE_ROW, assert_own_words, check, json, signal, wait_until};

/// Writes files of a few MB for a minute or more, in constant memory.
const LONG: &str = "\
version: 1
name: long
accelerator: {type: none}
stages:
  - name: rows
    sql: SELECT value, value % 10 AS digit, md5(CAST(value AS varchar)) AS hash FROM generate_series(1, 100000000) AS numbers(value)
    output: {location: out, target_file_size: 1MiB}
";

/// The same in a second; it is what comes after a run that was stopped.
fn short() -> String {
    LONG.replace("100000000", "1000")
}

/// Files that a reader of the output sees; none when it is not there.
fn visible(case: &Case) -> Vec<String> {
    let below_out = |(name, _): (String, u64)| name.starts_with("out/").then_some(name);
    case.files().into_iter().filter_map(below_out).collect()
}

/// Files of a run that no reader sees.
fn hidden(case: &Case) -> Vec<String> {
    let is_hidden = |(name, _): (String, u64)| name.starts_with(".out.").then_some(name);
    case.files().into_iter().filter_map(is_hidden).collect()
}

/// A run that has written something, which nobody sees.
fn caught_writing(case: &Case) -> std::process::Child {
    let mut child = case.start();
    wait_until("file of the run", || {
        if let Some(ended) = child.try_wait().expect("a child") {
            let output = std::io::read_to_string(child.stderr.take().expect("a pipe"));
            panic!("it ended before it wrote: {ended}\n{output:?}");
        }
        hidden(case).iter().any(|name| name.contains("part-"))
    });
    assert_eq!(visible(case), Vec::<String>::new());
    child
}

#[test]
fn a_signal_cancels_and_leaves_nothing() {
    for name in ["INT", "TERM"] {
        let case = Case::new(LONG);
        let child = caught_writing(&case);
        signal(&child, name);
        let (stdout, stderr) = check(child.wait_with_output().expect("it ends"), 3);
        assert_eq!(stdout, "");
        assert!(stderr.contains("cancelling"), "{stderr}");
        assert!(
            stderr.contains("stage rows: the batch was cancelled"),
            "{stderr}"
        );
        assert!(stderr.contains("long cancelled in "), "{stderr}");
        assert_eq!(case.report()["state"], "cancelled");
        assert_eq!(case.report()["stages"][0]["state"], "cancelled");
        let left: Vec<_> = case.files().into_iter().map(|(name, _)| name).collect();
        assert_eq!(left, ["report.json", "spec.yaml"], "after SIG{name}");
    }
}

#[test]
fn a_killed_run_shows_nothing_and_the_next_clears_up() {
    for mode in ["error", "overwrite", "append"] {
        let case = Case::new(&LONG.replace("1MiB", &format!("1MiB, mode: {mode}")));
        let mut child = caught_writing(&case);
        child.kill().expect("it is killed");
        child.wait().expect("it ends");
        assert!(!hidden(&case).is_empty());
        assert_eq!(visible(&case), Vec::<String>::new());

        case.write_spec(&short().replace("1MiB", &format!("1MiB, mode: {mode}")));
        check(case.warpline(&["run", "spec.yaml"]), 0);
        assert_eq!(hidden(&case), Vec::<String>::new());
        assert_eq!(visible(&case).len(), 1, "{:?}", visible(&case));
    }
}

#[test]
fn a_killed_overwrite_leaves_the_old_output() {
    let case = Case::new(&short());
    check(case.warpline(&["run", "spec.yaml"]), 0);
    let old = visible(&case);

    case.write_spec(&LONG.replace("1MiB", "1MiB, mode: overwrite"));
    let mut child = case.start();
    wait_until("file of the run", || {
        hidden(&case).iter().any(|name| name.contains("part-"))
    });
    child.kill().expect("it is killed");
    child.wait().expect("it ends");
    assert_eq!(visible(&case), old);
}

#[test]
fn a_batch_ends_with_its_time() {
    let case = Case::new(&LONG.replace("stages:", "limits: {ttl: 1s}\nstages:"));
    let child = case.start();
    let (_, stderr) = check(child.wait_with_output().expect("it ends"), 4);
    assert!(
        stderr.contains("ran out of its time to live, 1 s; raise `limits.ttl`"),
        "{stderr}"
    );
    assert!(stderr.contains("long timed out in "), "{stderr}");
    assert_eq!(case.report()["state"], "timed_out");
    assert_eq!(case.report()["error"]["kind"], "timed_out");
    let left: Vec<_> = case.files().into_iter().map(|(name, _)| name).collect();
    assert_eq!(left, ["report.json", "spec.yaml"]);
}

#[test]
fn a_signal_while_tables_are_generated_leaves_no_half_table() {
    let case = Case::new(
        &ONE_ROW
            .replace(
                "stages:",
                "tables:\n  - {name: t, location: \"tpch://5/lineitem\"}\nstages:",
            )
            .replace("42 AS answer", "count(*) AS answer FROM t"),
    );
    let mut child = case
        .command(env!("CARGO_BIN_EXE_warpline"))
        .args(["run", "spec.yaml"])
        .env("XDG_CACHE_HOME", case.path("cache"))
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .expect("warpline starts");
    let n_parts = || {
        let files = case.files().into_iter();
        files.filter(|(name, _)| name.contains("part-")).count()
    };
    wait_until("part of the table", || {
        assert!(child.try_wait().expect("a child").is_none(), "it ended");
        n_parts() > 0
    });
    signal(&child, "INT");
    let (_, stderr) = check(child.wait_with_output().expect("it ends"), 3);
    assert!(stderr.contains("generating TPC-H lineitem"), "{stderr}");
    assert!(stderr.contains("one-row cancelled in "), "{stderr}");
    assert_eq!(n_parts(), 0, "{:?}", case.files());
}

/// Runs the spec as a user who owns nothing, also where the tests run as root.
fn as_nobody(case: &Case) -> Output {
    const NOBODY: u32 = 65534;
    // The binary may lie where nobody can read, as below a root user's home.
    let binary = case.path("warpline");
    fs::hard_link(env!("CARGO_BIN_EXE_warpline"), &binary)
        .or_else(|_| fs::copy(env!("CARGO_BIN_EXE_warpline"), &binary).map(drop))
        .expect("the binary is copied");
    let mut command = case.command(&binary);
    command.args(["run", "spec.yaml"]);
    command.env("HOME", case.folder());
    if is_root() {
        command.uid(NOBODY).gid(NOBODY);
    }
    command.output().expect("warpline starts")
}

fn is_root() -> bool {
    let output = Command::new("id").arg("-u").output().expect("id");
    output.stdout == b"0\n"
}

fn set_mode(path: &std::path::Path, mode: u32) {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("a mode is set");
}

#[test]
fn an_output_below_a_folder_of_others_is_refused() {
    let case = Case::new(&short().replace("out,", "closed/out,"));
    fs::create_dir(case.path("closed")).expect("a folder");
    set_mode(&case.path("closed"), 0o555);
    set_mode(case.folder(), 0o755);
    let before = case.files().len();
    let (_, stderr) = check(as_nobody(&case), 1);
    set_mode(&case.path("closed"), 0o755);
    let closed = case.path("closed").display().to_string();
    assert!(
        stderr.contains(&format!(
            "stage rows: cannot create files in `{closed}`: permission denied; check the owner and mode"
        )),
        "{stderr}"
    );
    assert_eq!(case.files().len(), before + 1, "only the binary is new");
}

#[test]
fn a_table_that_may_not_be_read_is_refused() {
    for (location, closed) in [("data/", "data"), ("data/a.csv", "data/a.csv")] {
        let table = format!("tables:\n  - {{name: t, location: {location}, format: csv}}\nstages:");
        let case = Case::new(
            &ONE_ROW
                .replace("stages:", &table)
                .replace("42 AS answer", "count(*) AS answer FROM t"),
        );
        fs::create_dir(case.path("data")).expect("a folder");
        fs::write(case.path("data/a.csv"), "a\n1\n").expect("a file");
        set_mode(&case.path(closed), 0o000);
        set_mode(case.folder(), 0o755);
        let (_, stderr) = check(as_nobody(&case), 1);
        set_mode(&case.path(closed), 0o755);
        let closed = case.path(closed).display().to_string();
        assert!(
            stderr.contains(&format!(
                "table `t`: `{closed}` cannot be read: permission denied; check the owner and mode"
            )),
            "{stderr}"
        );
    }
}

/// A limit on the size of a file, as batch systems set it, works everywhere.
#[test]
fn a_file_beyond_its_limit_fails_the_batch_and_leaves_nothing() {
    let case = Case::new(LONG);
    let output = case
        .command("sh")
        .args(["-c", "ulimit -f 100 && exec \"$0\" run spec.yaml"])
        .arg(env!("CARGO_BIN_EXE_warpline"))
        .output()
        .expect("a shell");
    let (_, stderr) = check(output, 1);
    assert!(
        stderr.contains("stage rows: cannot write to") && stderr.contains("ulimit -f"),
        "{stderr}"
    );
    assert_eq!(case.files().len(), 1, "{:?}", case.files());
}

/// A disk of 2 MB, where this user may have one.
#[test]
fn a_full_disk_fails_the_batch_and_leaves_nothing() {
    let case = Case::new(&LONG.replace("location: out", "location: disk/out"));
    fs::create_dir(case.path("disk")).expect("a folder");
    let script = "\
mount -t tmpfs -o size=2m none disk || exit 77
\"$0\" run spec.yaml --report report.json
code=$?
ls -A disk > left
exit $code";
    let output = case
        .command("unshare")
        .args(["--mount", "--map-root-user", "sh", "-c", script])
        .arg(env!("CARGO_BIN_EXE_warpline"))
        .output();
    let output = match output {
        Ok(output) if case.path("left").exists() => output,
        other => {
            // The limit on file sizes above goes the same way through the program.
            eprintln!("no file system can be mounted; this test did not run: {other:?}");
            return;
        }
    };
    let (_, stderr) = check(output, 1);
    assert!(
        stderr.contains("stage rows: out of disk space: cannot write to")
            && stderr.contains("the disk is full"),
        "{stderr}"
    );
    assert_eq!(case.report()["error"]["kind"], "out_of_resources");
    assert_eq!(fs::read_to_string(case.path("left")).expect("a list"), "");
}

#[test]
fn an_answer_that_cannot_be_written_is_a_failure() {
    let full = || {
        fs::File::options()
            .write(true)
            .open("/dev/full")
            .expect("a device")
    };
    for arguments in [&["run", "spec.yaml"][..], &["plan", "spec.yaml"]] {
        let case = Case::new(ONE_ROW);
        let output = case
            .command(env!("CARGO_BIN_EXE_warpline"))
            .args(arguments)
            .stdout(full())
            .output()
            .expect("warpline starts");
        let stderr = String::from_utf8(output.stderr).expect("text");
        assert_eq!(output.status.code(), Some(1), "{stderr}");
        assert_own_words(&stderr);
        assert!(
            stderr.contains("cannot write to standard output: the disk is full"),
            "{stderr}"
        );
    }
}

#[test]
fn a_report_that_cannot_be_written_is_a_failure() {
    let case = Case::new(ONE_ROW);
    let output = case.warpline(&["run", "spec.yaml", "--report", "absent/report.json"]);
    let (_, stderr) = check(output, 1);
    assert!(
        stderr.contains(
            "cannot write the report `absent/report.json`: there is no such file or directory"
        ),
        "{stderr}"
    );
}

#[test]
fn json_on_standard_output_is_whole_when_the_batch_fails() {
    let case = Case::new(&ONE_ROW.replace("42", "1 / 0"));
    let (stdout, _) = check(case.warpline(&["run", "spec.yaml", "--output", "json"]), 1);
    assert_eq!(json(&stdout)["report"]["state"], "failed");
}
