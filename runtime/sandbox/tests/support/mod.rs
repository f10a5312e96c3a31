//! The fixture module of `udf-sdk`, loaded.

use std::path::Path;
use std::sync::Arc;

use sandbox::{Compiler, Limits, Module, Runtime, Setup, Stop, Unbounded};

/// The fixture, whose record batches are cut to what fits so many bytes.
pub fn fixture(arena_bytes: usize) -> Arc<Module> {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../udf-sdk/fixture/fixture.wasm"
    );
    let wasm = std::fs::read(path).expect("the checked-in module");
    // Each test is a process of its own; only the first of all has to compile.
    let cache = Path::new(env!("CARGO_TARGET_TMPDIR")).join("machine-code");
    let runtime = Runtime::new(Setup {
        compiler: Compiler::InProcess,
        cache: Some(&cache),
        deterministic: false,
    })
    .expect("a sandbox");
    let limits = Limits {
        arena_bytes,
        ..Limits::default()
    };
    runtime
        .load(&wasm, limits, Arc::new(Unbounded), Stop::default())
        .expect("a module")
}
