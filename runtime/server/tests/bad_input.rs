//! What does a user read when the input, the query or the output's place is wrong?
//!
//! Every `bad_input/NAME.yaml` is run over the files that [`write_data`] makes. It ends as
//! `NAME.expected` says, word for word, and leaves the folder as it was: no output, whole
//! or in part. `UPDATE_GOLDEN=1` rewrites the expected texts; read the difference.

mod support;

use std::fs::{self, File};
use std::path::Path;
use std::sync::Arc;

use arrow::array::{ArrayRef, Decimal128Array, Int32Array, Int64Array, RecordBatch, StringArray};
use parquet::arrow::ArrowWriter;
use parquet::basic::{Compression, ZstdLevel};
use parquet::file::properties::WriterProperties;
use support::{Case, foreign_word};

#[test]
fn every_bad_input_is_told_in_our_words_and_leaves_nothing() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/bad_input");
    let mut specs: Vec<_> = fs::read_dir(&folder)
        .expect("the cases")
        .map(|entry| entry.expect("a case").path())
        .filter(|path| path.extension().is_some_and(|end| end == "yaml"))
        .collect();
    specs.sort();
    assert!(specs.len() > 10, "{specs:?}");

    let mut wrong = Vec::new();
    for spec in specs {
        let case = Case::new(&fs::read_to_string(&spec).expect("a spec"));
        write_data(&case);
        let before = case.files();
        let output = case.warpline(&["run", "spec.yaml"]);
        let stderr = String::from_utf8(output.stderr).expect("text");
        assert_eq!(before, case.files(), "{} left something", spec.display());
        if let Some(word) = foreign_word(&stderr) {
            wrong.push(format!("{}: `{word}` in:\n{stderr}", spec.display()));
        }

        let code = output
            .status
            .code()
            .map_or("a signal".to_string(), |code| code.to_string());
        let found = format!("exit code {code}\n{}", redacted(&stderr, case.folder()));
        let golden = spec.with_extension("expected");
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            fs::write(&golden, &found).expect("the golden text is written");
        } else if fs::read_to_string(&golden).ok().as_ref() != Some(&found) {
            wrong.push(format!("{}:\n{found}", golden.display()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Without what differs from run to run: the folder and times.
fn redacted(stderr: &str, folder: &Path) -> String {
    let text = stderr.replace(&folder.display().to_string(), "FOLDER");
    text.lines()
        .filter(|line| !line.starts_with("stage  "))
        .filter(|line| !line.contains("  failed  ") && !line.contains("  succeeded  "))
        .map(|line| match line.split_once(" failed in ") {
            Some((name, _)) => format!("{name} failed\n"),
            None => format!("{line}\n"),
        })
        .collect()
}

/// The files that the cases read.
fn write_data(case: &Case) {
    let path = |name: &str| case.path(name);
    for folder in ["empty", "differ", "taken", "mixed"] {
        fs::create_dir(path(folder)).expect("a folder");
    }
    let whole = || Arc::new(Int64Array::from(vec![1, i64::MAX])) as ArrayRef;
    let narrow = Arc::new(Int32Array::from(vec![1])) as ArrayRef;
    let text = Arc::new(StringArray::from(vec!["1", "one"])) as ArrayRef;
    let large = Decimal128Array::from(vec![10_i128.pow(38) - 1, 10_i128.pow(37)])
        .with_precision_and_scale(38, 0)
        .expect("a valid type");
    let orders = [
        ("id", whole()),
        ("note", text),
        ("amount", Arc::new(large) as ArrayRef),
    ];
    write_parquet(&path("orders.parquet"), orders);
    write_parquet(&path("differ/a.parquet"), [("id", whole())]);
    write_parquet(&path("differ/b.parquet"), [("id", narrow)]);
    write_parquet(&path("taken/part.parquet"), [("id", whole())]);
    write_parquet(&path("mixed/a.parquet"), [("id", whole())]);
    fs::write(path("taken.txt"), "a file").expect("a file");
    fs::write(path("notes.parquet"), "these are words, not columns").expect("a file");
    fs::write(path("mixed/b.parquet"), "these are words, not columns").expect("a file");
    fs::write(path("words.csv"), "id\n1\ntwo\n").expect("a file");
    fs::write(path("words-2.csv"), "id\n1\n2\n").expect("a file");

    let bytes = fs::read(path("orders.parquet")).expect("a file");
    fs::write(path("truncated.parquet"), &bytes[..bytes.len() / 2]).expect("a file");
    // The pages are not whole; the footer behind them is. Pages as large as these are
    // compressed, so damage cannot pass for values.
    let many: Vec<i64> = (0..100_000).map(|n| n * n).collect();
    let many = Arc::new(Int64Array::from(many)) as ArrayRef;
    write_parquet(&path("damaged.parquet"), [("id", many)]);
    let mut damaged = fs::read(path("damaged.parquet")).expect("a file");
    let middle = damaged.len() / 2;
    damaged[100..middle].fill(0xA5);
    fs::write(path("damaged.parquet"), &damaged).expect("a file");
}

fn write_parquet<const N: usize>(path: &Path, columns: [(&str, ArrayRef); N]) {
    let batch = RecordBatch::try_from_iter(columns).expect("columns of one length");
    let file = File::create(path).expect("a file");
    let properties = WriterProperties::builder()
        .set_compression(Compression::ZSTD(ZstdLevel::default()))
        .build();
    let mut writer =
        ArrowWriter::try_new(file, batch.schema(), Some(properties)).expect("a writer");
    writer.write(&batch).expect("rows");
    writer.close().expect("a footer");
}
