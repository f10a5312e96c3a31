//! Nothing that a user can write makes the crate panic or take long.

use std::time::{Duration, Instant};

use batch_specs::{LoadOptions, load, load_bytes, split_script, sql_files};

fn samples() -> Vec<Vec<u8>> {
    let mut out = Vec::new();
    for folder in ["samples", "samples/rejected"] {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
        for entry in std::fs::read_dir(path).expect("the folder is there") {
            let path = entry.expect("the entry can be read").path();
            if path.extension().is_some_and(|e| e == "yaml") {
                out.push(std::fs::read(path).expect("the sample can be read"));
            }
        }
    }
    out
}

/// A small generator of the usual kind; the tests need variety, not quality.
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) as usize) % n.max(1)
    }
}

fn survive(bytes: &[u8], options: &LoadOptions) {
    let loaded = load_bytes(bytes, options);
    assert_eq!(loaded.spec.is_none(), loaded.has_errors());
    for problem in &loaded.problems {
        assert_eq!(problem.line == 0, problem.column == 0, "{problem:?}");
        assert!(
            !problem
                .code
                .contains(|c: char| c.is_ascii_uppercase() || c == '_'),
            "{problem:?}"
        );
    }
}

#[test]
fn truncated_specs_never_panic() {
    for sample in samples() {
        for end in 0..sample.len() {
            survive(&sample[..end], &LoadOptions::default());
        }
    }
}

#[test]
fn mutated_specs_never_panic() {
    let pieces: [&[u8]; 20] = [
        b"\t",
        b"\n",
        b": ",
        b"- ",
        b"{",
        b"}",
        b"[",
        b"]",
        b"'",
        b"\"",
        b"&a ",
        b"*a",
        b"${",
        b"|",
        b"\xff",
        b"\0",
        "é".as_bytes(),
        b"-1",
        b"99999999999999999999",
        b"0",
    ];
    let mut dice = Dice(7);
    let options = LoadOptions {
        sets: vec![
            "executors.cores=0".into(),
            "stages[0].sql=SELECT ${x}".into(),
        ],
        ..LoadOptions::default()
    };
    for sample in samples() {
        for _ in 0..150 {
            let mut bytes = sample.clone();
            for _ in 0..=dice.below(3) {
                let at = dice.below(bytes.len());
                match dice.below(3) {
                    0 if !bytes.is_empty() => {
                        bytes.remove(at);
                    }
                    1 => {
                        let end = (at + dice.below(20)).min(bytes.len());
                        let copy = bytes[at..end].to_vec();
                        bytes.splice(at..at, copy);
                    }
                    _ => {
                        let piece = pieces[dice.below(pieces.len())];
                        bytes.splice(at..at, piece.iter().copied());
                    }
                }
            }
            survive(&bytes, &options);
        }
    }
}

#[test]
fn odd_overrides_never_panic() {
    let text = "version: 1\nname: a\nlabels: {}\nstages: [{name: q, sql: SELECT 1}]\n";
    let paths = [
        "",
        "=",
        "a",
        ".",
        "..",
        "stages",
        "stages=1",
        "stages[=1",
        "stages[9].sql=1",
        "stages[0]=1",
        "stages[q].sql=SELECT 2",
        "stages.q.sql=SELECT 2",
        "stages[x].sql=1",
        "stages[0]x=1",
        "properties.=1",
        "properties.a.b.c=1",
        "labels.a.b=c",
        "name.x=1",
        "executors={cores: [",
        "executors={cores: 4}",
        "executors.cores=[1]",
        "é=é",
        "a[0]=1",
        "executors[0]=1",
    ];
    for path in paths {
        let options = LoadOptions {
            sets: vec![path.to_owned()],
            variables: vec![path.to_owned()],
            ..LoadOptions::default()
        };
        survive(text.as_bytes(), &options);
    }
    let set = |path: &str| LoadOptions {
        sets: vec![path.to_owned()],
        ..LoadOptions::default()
    };
    let cores = load(text, &set("executors={cores: 7}"));
    assert_eq!(cores.effective.count("executors.cores"), Some(7));
    for path in [
        "stages[0].sql=SELECT 2",
        "stages[q].sql=SELECT 2",
        "stages.q.sql=SELECT 2",
    ] {
        let loaded = load(text, &set(path));
        assert_eq!(loaded.scripts[0].statements[0].sql, "SELECT 2", "{path}");
    }
    let wrong = load(text, &set("executors.coers=7"));
    assert_eq!(
        (wrong.problems[0].code.as_str(), wrong.problems[0].line),
        ("unknown-key", 0)
    );
}

#[test]
fn scripts_of_any_shape_are_taken_apart() {
    let alphabet = [
        "SET ", "a=b", ";", "'", "\"", "`", "--", "\n", "/*", "*/", "$$", "${v}", "add jar ", "x",
        " ", "é", "E'", "\\",
    ];
    let mut dice = Dice(11);
    for _ in 0..20_000 {
        let sql: String = (0..dice.below(12))
            .map(|_| alphabet[dice.below(alphabet.len())])
            .collect();
        let script = split_script(&sql);
        for statement in &script.statements {
            batch_specs::bind(&statement.sql, &Default::default());
        }
    }
}

#[test]
fn a_large_spec_is_read_quickly() {
    let mut text = String::from("version: 1\nname: large\nstages:\n");
    let mut i = 0;
    while text.len() < 1 << 20 {
        text.push_str(&format!(
            "  - name: s{i}\n    sql: |\n      SELECT {i}\n      FROM t WHERE x = 'y';\n"
        ));
        i += 1;
    }
    let start = Instant::now();
    let loaded = load(&text, &LoadOptions::default());
    assert!(loaded.spec.is_some(), "{:?}", loaded.problems.first());
    assert!(
        start.elapsed() < Duration::from_secs(5),
        "{:?}",
        start.elapsed()
    );

    let wide = format!(
        "version: 1\nname: wide\nstages: [{{name: q, sql: SELECT 1}}]\nlabels: {{{}}}\n",
        (0..40_000)
            .map(|i| format!("k{i}: v"))
            .collect::<Vec<_>>()
            .join(", ")
    );
    let start = Instant::now();
    assert!(load(&wide, &LoadOptions::default()).has_errors());
    assert!(
        start.elapsed() < Duration::from_secs(5),
        "{:?}",
        start.elapsed()
    );

    let sql = format!(
        "version: 1\nname: long\nstages:\n  - name: q\n    sql: \"{}\"\n",
        "SELECT ${v}; -- x ".repeat(20_000)
    );
    let start = Instant::now();
    assert!(load(&sql, &LoadOptions::default()).has_errors());
    assert!(
        start.elapsed() < Duration::from_secs(5),
        "{:?}",
        start.elapsed()
    );
}

/// Inputs that make careless code look at everything once per item.
#[test]
fn many_problems_are_found_quickly() {
    let many = |item: &dyn Fn(usize) -> String| (0..20_000).map(item).collect::<String>();
    let head = "version: 1\nname: many\nstages: [{name: q, sql: SELECT 1}]\n";
    let script = "version: 1\nname: many\nstages:\n  - name: q\n    sql: ";
    let texts = [
        format!(
            "{head}properties:\n{}",
            many(&|i| format!("  spark.rapids.sql.concurentTasks{i}: 1\n"))
        ),
        format!("{head}labels:\n{}", many(&|i| format!("  K{i}: a b\n"))),
        format!(
            "{head}variables:\n{}",
            many(&|i| format!("  v{i}: {{type: date, value: x}}\n"))
        ),
        format!("{head}{}", many(&|i| format!("key{i}: 1\n"))),
        format!(
            "{script}|\n{}",
            many(&|i| format!("      -- c\n      SELECT ${{v{i}}};\n"))
        ),
        format!(
            "{script}|\n{}",
            many(&|_| "      SET a=b; -- c\n".to_owned())
        ),
        format!(
            "{script}\"SELECT {}\"\n",
            many(&|i| format!("${{v{i}}} /* c */ ; "))
        ),
    ];
    for text in texts {
        let start = Instant::now();
        load(&text, &LoadOptions::default());
        assert!(
            start.elapsed() < Duration::from_secs(5),
            "{:?}: {}",
            start.elapsed(),
            &text[..120]
        );
    }
}

#[test]
fn files_of_stages_are_listed_and_read() {
    let text = "version: 1\nname: files\nstages: [{name: q, sql_file: q.sql}]\nvariables: {n: {type: integer, value: 1}}\n";
    assert_eq!(sql_files(text), ["q.sql"]);
    assert!(sql_files("[").is_empty());
    assert_eq!(
        load(text, &LoadOptions::default()).problems[0].code,
        "sql-file-missing"
    );
    let mut options = LoadOptions::default();
    options
        .sql_files
        .insert("q.sql".into(), "SELECT ${n};\nSELECT ${m}".into());
    let loaded = load(text, &options);
    assert_eq!(loaded.problems[0].code, "unknown-variable");
    assert!(
        loaded.problems[0]
            .message
            .contains("line 2, column 8 of the file")
    );
    options
        .sql_files
        .insert("q.sql".into(), "SELECT ${n};".into());
    let loaded = load(text, &options);
    assert_eq!(loaded.scripts[0].statements[0].sql, "SELECT $n");
}

#[test]
fn event_values_are_bound_as_text() {
    let text = "version: 1\nname: e\nstages:\n  - name: q\n    sql: SELECT ${event.key}, 's3://${event.bucket}/'\n";
    let mut options = LoadOptions::default();
    options
        .event
        .insert("event.key".into(), "a'; DROP TABLE t --".into());
    options.event.insert("event.bucket".into(), "b'c".into());
    let loaded = load(text, &options);
    assert_eq!(
        loaded.scripts[0].statements[0].sql,
        "SELECT $event_key, 's3://b''c/'"
    );
}
