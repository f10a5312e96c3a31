//! `warpline udf`: what an author meets, from an empty folder to a batch.

mod support;

use std::path::{Path, PathBuf};
use std::process::Output;

use support::{Case, ONE_ROW};

fn root() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    root.canonicalize().expect("the repository")
}

fn price_band() -> String {
    let path = root().join("examples/price_band/price_band.wasm");
    path.to_str().expect("UTF-8").to_string()
}

fn told(ran: &Output) -> String {
    String::from_utf8_lossy(&ran.stderr).into_owned()
}

#[test]
fn inspect_prints_what_the_module_says_about_itself() {
    let case = Case::new(ONE_ROW);
    let ran = case.warpline(&["udf", "inspect", &price_band()]);
    let text = String::from_utf8_lossy(&ran.stdout);
    for expected in [
        "sha256   ",
        "imports  none",
        "price_band(price decimal128(15,2)) -> utf8\n  scalar, NULL where an argument is, immutable\n  \
         The band of a price.\n  price_band(12.50) = 'low'\n",
    ] {
        assert!(text.contains(expected), "{text}");
    }
    let ran = case.warpline(&["udf", "inspect", &price_band(), "--output", "json"]);
    let facts: serde_json::Value = serde_json::from_slice(&ran.stdout).expect("JSON");
    assert_eq!(facts["functions"][0]["args"][0]["type"], "decimal128(15,2)");
}

#[test]
fn files_that_are_no_modules_say_what_to_do() {
    let case = Case::new(ONE_ROW);
    std::fs::write(case.path("empty.wasm"), b"\0asm\x01\0\0\0").expect("written");
    std::fs::write(case.path("wit.wasm"), b"\0asm\x0d\0\x01\0").expect("written");
    std::fs::write(case.path("x.json"), "{}").expect("written");
    for (arguments, expected) in [
        (
            vec!["inspect", "empty.wasm"],
            "it needs exactly one memory of its own",
        ),
        (vec!["inspect", "wit.wasm"], "build a core module"),
        (
            vec!["inspect", "spec.yaml"],
            "it is not a WebAssembly module",
        ),
        (vec!["inspect", "absent.wasm"], "cannot read absent.wasm: "),
        (
            vec!["test", "empty.wasm"],
            "it needs exactly one memory of its own",
        ),
        (vec!["bench", "absent.wasm"], "cannot read absent.wasm: "),
        (
            vec!["build", "."],
            "has no Cargo.toml; `warpline udf new NAME` makes a folder",
        ),
        (vec!["new", "Not A Name"], "cannot name a Rust crate"),
        (
            vec![
                "pack",
                "empty.wasm",
                "--meta",
                "x.json",
                "--output",
                "y.wasm",
            ],
            "x.json is not a JSON list of functions",
        ),
    ] {
        let ran = case.warpline(&[&["udf"], arguments.as_slice()].concat());
        assert_eq!(ran.status.code(), Some(1), "{arguments:?}");
        assert!(
            told(&ran).contains(expected),
            "{arguments:?}: {}",
            told(&ran)
        );
    }
    assert!(!case.path("y.wasm").exists());
}

#[test]
fn test_runs_the_examples_and_the_properties() {
    let case = Case::new(ONE_ROW);
    let ran = case.warpline(&["udf", "test", &price_band()]);
    assert!(ran.status.success(), "{}", told(&ran));
    assert!(
        told(&ran).contains("-> utf8: 4 examples, ok"),
        "{}",
        told(&ran)
    );
    // The same module with an example that is wrong.
    let meta = r#"[{"abi": 1, "name": "price_band", "kind": "scalar", "returns": "utf8",
        "args": [{"name": "price", "type": "decimal128(15,2)"}],
        "examples": [{"call": "price_band(1)", "result": "'cheap'"},
                     {"call": "price_band(x)", "result": "1"}]}]"#;
    std::fs::write(case.path("meta.json"), meta).expect("written");
    let packed = [
        "udf",
        "pack",
        &price_band(),
        "--meta",
        "meta.json",
        "--output",
        "b.wasm",
    ];
    let ran = case.warpline(&packed);
    assert!(ran.status.success(), "{}", told(&ran));
    assert!(
        told(&ran).contains("functions: [price_band]"),
        "{}",
        told(&ran)
    );
    let ran = case.warpline(&["udf", "test", "b.wasm"]);
    assert_eq!(ran.status.code(), Some(1));
    for expected in [
        "wrong: the example price_band(1) = 'cheap' gives low",
        "wrong: the example price_band(x) = 1: ",
        "error: 2 things are wrong",
    ] {
        assert!(told(&ran).contains(expected), "{}", told(&ran));
    }
}

#[test]
fn an_author_gets_from_an_empty_folder_to_a_batch() {
    let case = Case::new(ONE_ROW);
    let ran = case.warpline(&["udf", "new", "my-functions"]);
    assert!(ran.status.success(), "{}", told(&ran));
    let again = case.warpline(&["udf", "new", "my-functions"]);
    assert!(told(&again).contains("my-functions is there already"));
    // Plain Rust, without WebAssembly and without a registry.
    let mut cargo = case.command("cargo");
    cargo
        .args(["test", "--offline", "--quiet"])
        .current_dir(case.path("my-functions"))
        .env_remove("CARGO_TARGET_DIR");
    let ran = cargo.output().expect("cargo");
    assert!(ran.status.success(), "{}", told(&ran));

    let ran = case
        .command(env!("CARGO_BIN_EXE_warpline"))
        .args(["udf", "build", "my-functions"])
        .env_remove("CARGO_TARGET_DIR")
        .output()
        .expect("the program");
    if !ran.status.success() {
        // No compiler for WebAssembly on this machine: then that is what it says.
        assert!(
            told(&ran).contains("run `rustup target add wasm32-unknown-unknown`"),
            "{}",
            told(&ran)
        );
        return;
    }
    assert!(
        told(&ran).contains("greet(name utf8) -> utf8"),
        "{}",
        told(&ran)
    );
    let ran = case.warpline(&["udf", "test", "my-functions/my_functions.wasm"]);
    assert!(ran.status.success(), "{}", told(&ran));
    let ran = case.warpline(&["run", "my-functions/batch.yaml"]);
    assert!(ran.status.success(), "{}", told(&ran));
    let rows = String::from_utf8_lossy(&ran.stdout).into_owned();
    assert!(rows.contains("| you  | hello, you |"), "{rows}");
}
