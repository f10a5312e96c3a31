//! Modules that are too large, too strange or damaged to be loaded.

use std::sync::Arc;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use sandbox::{Compiler, Limits, Runtime, Setup, Stop, Unbounded, loader};

const META: &str =
    r#"{"abi":1,"name":"f","kind":"scalar","args":[{"name":"x","type":"i64"}],"returns":"i64"}"#;

/// A module with this inside, and with one function in its metadata.
fn module(inside: &str) -> Vec<u8> {
    let text = format!(
        "(module (memory (export \"memory\") 1) {inside}
           (func (export \"udf1_call_f\") (param i32) (result i32) i32.const 0))"
    );
    let meta = serde_json::from_str(META).expect("JSON");
    sandbox::pack(&wat::parse_str(text).expect("a module"), &[meta]).expect("a module")
}

fn refusal(wasm: &[u8]) -> String {
    loader::check(wasm).expect_err("a refusal").to_string()
}

fn runtime(compiler: Compiler) -> Arc<Runtime> {
    Runtime::new(Setup {
        compiler,
        cache: None,
        deterministic: false,
    })
    .expect("a sandbox")
}

fn child() -> Compiler {
    Compiler::Child {
        program: env!("CARGO_BIN_EXE_compile-guest").into(),
        args: Vec::new(),
    }
}

#[test]
fn what_is_too_large_is_refused_before_it_costs_time() {
    let started = Instant::now();
    assert_eq!(
        refusal(&vec![0; 100 << 20]),
        "bytes of the module: 104857600, and at most 8388608 are allowed"
    );
    assert_eq!(
        refusal(&module(&"(func)".repeat(20_000))),
        "number of functions with a body: 20001, and at most 10000 are allowed"
    );
    let body = "i32.const 1 drop ".repeat(200_000);
    assert_eq!(
        refusal(&module(&format!("(func {body})"))),
        "bytes of one function: 600002, and at most 262144 are allowed"
    );
    let locals = "(local i64) ".repeat(2_000);
    assert_eq!(
        refusal(&module(&format!("(func {locals})"))),
        "locals of one function: 2000, and at most 1000 are allowed"
    );
    let took = started.elapsed();
    assert!(took < Duration::from_secs(10), "{took:?}");
}

#[test]
fn metadata_is_bounded_in_size_number_and_depth() {
    let wasm = module("");
    let packed =
        |records: &[serde_json::Value]| refusal(&sandbox::pack(&wasm, records).expect("packed"));
    let mut large: serde_json::Value = serde_json::from_str(META).expect("JSON");
    large["doc"] = "x".repeat(10 << 20).into();
    assert_eq!(
        packed(&[large]),
        "bytes of the module: 10485934, and at most 8388608 are allowed"
    );
    let mut large: serde_json::Value = serde_json::from_str(META).expect("JSON");
    large["doc"] = "x".repeat(2 << 20).into();
    assert!(packed(&[large]).starts_with("bytes of metadata: "));
    let many: Vec<_> = (0..300)
        .map(|n| {
            let mut record: serde_json::Value = serde_json::from_str(META).expect("JSON");
            record["name"] = format!("f{n}").into();
            record
        })
        .collect();
    assert_eq!(
        packed(&many),
        "number of functions: 257, and at most 256 are allowed"
    );
    let deep = "[".repeat(10_000);
    // Written by hand: no such `Value` could be dropped without a deep stack.
    let mut raw = wasm.clone();
    let record = format!(r#"{{"abi":1,"name":"f","examples":{deep}"#);
    let mut section = b"\x09udf1.meta".to_vec();
    section.extend((record.len() as u32).to_le_bytes());
    section.extend(record.bytes());
    raw.push(0);
    raw.extend([section.len() as u8 | 0x80, (section.len() >> 7) as u8]);
    raw.extend(section);
    let refusal = refusal(&raw);
    assert!(
        refusal.starts_with("metadata record 2 cannot be read: "),
        "{refusal}"
    );
}

#[test]
fn a_module_is_cut_off_anywhere_and_refused() {
    let wasm = module("(data (i32.const 0) \"some data\")");
    for n in 0..wasm.len() {
        assert!(loader::check(&wasm[..n]).is_err(), "the first {n} bytes");
    }
}

#[test]
fn a_component_is_told_from_a_module() {
    let component = wat::parse_str("(component)").expect("a component");
    assert!(refusal(&component).contains("build a core module"));
}

#[test]
fn a_module_is_compiled_in_a_child_or_refused_with_what_it_said() {
    let wasm = module("");
    let load = |runtime: &Arc<Runtime>| {
        runtime.load(
            &wasm,
            Limits::default(),
            Arc::new(Unbounded),
            Stop::default(),
        )
    };
    let good = runtime(child());
    load(&good).expect("a module");
    load(&good).expect("a module");
    assert_eq!(good.n_compiled(), 1, "the same module is compiled once");
    let bad = runtime(Compiler::Child {
        program: "/bin/false".into(),
        args: Vec::new(),
    });
    let refusal = load(&bad).expect_err("no compiler").to_string();
    assert!(
        refusal.starts_with("it cannot be compiled: the compiler ended with exit status: 1"),
        "{refusal}"
    );
    let absent = runtime(Compiler::Child {
        program: "/nowhere/compiler".into(),
        args: Vec::new(),
    });
    let refusal = load(&absent).expect_err("no compiler").to_string();
    assert!(refusal.contains("cannot start the compiler"), "{refusal}");
}

#[test]
fn machine_code_is_kept_and_what_was_changed_on_disk_is_made_again() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path().join("code");
    let wasm = module("");
    let load = || {
        let runtime = Runtime::new(Setup {
            compiler: Compiler::InProcess,
            cache: Some(&folder),
            deterministic: false,
        })
        .expect("a sandbox");
        runtime
            .load(
                &wasm,
                Limits::default(),
                Arc::new(Unbounded),
                Stop::default(),
            )
            .expect("a module");
        runtime.n_compiled()
    };
    assert_eq!((load(), load()), (1, 0));
    for file in std::fs::read_dir(&folder).expect("the folder") {
        let path = file.expect("a file").path();
        if path.file_name().is_some_and(|name| name != "key") {
            let mut code = std::fs::read(&path).expect("code");
            let middle = code.len() / 2;
            code[middle..middle + 64].fill(0x90);
            std::fs::write(&path, code).expect("damage");
        }
    }
    assert_eq!((load(), load()), (1, 0));
}

proptest! {
    #[test]
    fn a_damaged_module_never_hurts_the_loader(
        flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8)
    ) {
        let mut wasm = module("(data (i32.const 0) \"some data\") (table 3 funcref)");
        for (at, byte) in flips {
            let at = at.index(wasm.len());
            wasm[at] = byte;
        }
        let _ = loader::check(&wasm);
    }

    #[test]
    fn random_bytes_never_hurt_the_loader(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let mut wasm = b"\0asm\x01\0\0\0".to_vec();
        wasm.extend(bytes);
        let _ = loader::check(&wasm);
    }
}
