//! The kernel cache, on the host target.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use kernels::error::Error;
use kernels::gpu::{Gpu, HostOptions, open_host};
use kernels::jit::{Jit, Origin, Source};

fn host() -> Arc<dyn Gpu> {
    open_host(HostOptions::default())
}

fn source(name: &str) -> Source {
    Source::new(
        name,
        "struct P { u64 n; };\nWL_KERNEL(k, P, p) { (void)p; }\n",
    )
}

/// The one file of that ending.
fn file_in(dir: &Path, ending: &str) -> PathBuf {
    let mut files = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let found = files.find(|file| file.extension().is_some_and(|e| e == ending));
    found.unwrap_or_else(|| panic!("no .{ending} in {}", dir.display()))
}

#[test]
fn memory_then_disk_then_the_compiler_is_asked() {
    let dir = tempfile::tempdir().unwrap();
    let gpu = host();
    let jit = Jit::new(Some(dir.path().join("made/on/demand")));
    let first = jit.get(&gpu, &source("k")).unwrap();
    assert_eq!(first.origin(), Origin::Compiled);
    first.kernel("k").unwrap();
    let again = jit.get(&gpu, &source("k")).unwrap();
    assert!(Arc::ptr_eq(&first, &again));
    let stats = jit.stats();
    assert_eq!(
        (stats.n_compiled, stats.n_memory_hits, stats.n_disk_hits),
        (1, 1, 0)
    );
    assert!(stats.compile_ms > 0.0);

    let later = Jit::new(Some(dir.path().join("made/on/demand")));
    let loaded = later.get(&gpu, &source("k")).unwrap();
    assert_eq!(loaded.origin(), Origin::Disk);
    loaded.kernel("k").unwrap();
    assert_eq!(
        (later.stats().n_compiled, later.stats().n_disk_hits),
        (0, 1)
    );
    assert_eq!(loaded.key(), first.key());
}

#[test]
fn a_second_device_loads_what_the_first_compiled() {
    let jit = Jit::new(None);
    let first = jit.get(&host(), &source("k")).unwrap();
    let second = jit.get(&host(), &source("k")).unwrap();
    assert!(!Arc::ptr_eq(&first, &second));
    assert_eq!(second.origin(), Origin::Memory);
    assert_eq!(jit.stats().n_compiled, 1);
}

#[test]
fn a_damaged_file_is_compiled_again_and_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let gpu = host();
    Jit::new(Some(dir.path().into()))
        .get(&gpu, &source("k"))
        .unwrap();
    let file = file_in(dir.path(), "image");
    let whole = fs::read(&file).unwrap();
    let mut flipped = whole.clone();
    flipped[whole.len() / 2] ^= 1;
    let (half, tail) = (whole[..whole.len() / 2].to_vec(), whole[1..].to_vec());
    for damaged in [flipped, half, tail, Vec::new(), b"x".to_vec()] {
        fs::write(&file, &damaged).unwrap();
        let jit = Jit::new(Some(dir.path().into()));
        let loaded = jit.get(&gpu, &source("k")).unwrap();
        assert_eq!(
            loaded.origin(),
            Origin::Compiled,
            "{} damaged bytes",
            damaged.len()
        );
        let next = Jit::new(Some(dir.path().into()));
        assert_eq!(
            next.get(&gpu, &source("k")).unwrap().origin(),
            Origin::Disk,
            "the file is whole again"
        );
    }
}

#[test]
fn a_file_under_another_key_is_a_miss() {
    let dir = tempfile::tempdir().unwrap();
    let gpu = host();
    let jit = Jit::new(Some(dir.path().into()));
    jit.get(&gpu, &source("k")).unwrap();
    let other = source("other");
    let name = format!("{}.image", jit.key(&gpu, &other).unwrap());
    fs::copy(file_in(dir.path(), "image"), dir.path().join(name)).unwrap();
    assert_eq!(jit.get(&gpu, &other).unwrap().origin(), Origin::Compiled);
}

#[test]
fn threads_that_ask_for_one_text_compile_it_once() {
    let gpu = host();
    let jit = Jit::new(None);
    std::thread::scope(|scope| {
        for i in 0..6 {
            let (gpu, jit) = (&gpu, &jit);
            scope.spawn(move || jit.get(gpu, &source(["a", "b"][i % 2])).unwrap());
        }
    });
    let stats = jit.stats();
    assert_eq!((stats.n_compiled, stats.n_memory_hits), (2, 4));
}

#[test]
fn other_macros_are_another_key() {
    let gpu = host();
    let jit = Jit::new(None);
    let plain = jit.key(&gpu, &source("k")).unwrap();
    let defined = jit.key(&gpu, &source("k").define("N", 1)).unwrap();
    let otherwise = jit.key(&gpu, &source("k").define("N", 2)).unwrap();
    assert!(plain != defined && defined != otherwise);
}

#[test]
fn a_refused_text_leaves_its_evidence() {
    let dir = tempfile::tempdir().unwrap();
    let jit = Jit::new(Some(dir.path().into()));
    let text = "WL_KERNEL(k, Nothing, p) { return undefined_name; }";
    let error = jit
        .get(&host(), &Source::new("broken_sum", text))
        .unwrap_err();
    let Error::Compile(error) = error else {
        panic!("{error:?}")
    };
    assert_eq!(error.kernel, "broken_sum");
    assert!(
        error
            .to_string()
            .starts_with("kernel broken_sum did not compile with "),
        "{error}"
    );
    let source = fs::read_to_string(error.source_file.unwrap()).unwrap();
    assert!(source.contains("undefined_name"));
    let log = fs::read_to_string(error.log_file.unwrap()).unwrap();
    assert!(
        log.contains("broken_sum:1"),
        "positions are those of the text:\n{log}"
    );
    // Refused again, not stuck and not remembered.
    assert!(jit.get(&host(), &Source::new("broken_sum", text)).is_err());
}

#[test]
fn a_folder_that_cannot_be_used_costs_only_the_disk_cache() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, "not a folder").unwrap();
    let jit = Jit::new(Some(file));
    let gpu = host();
    jit.get(&gpu, &source("k")).unwrap();
    jit.get(&gpu, &source("k")).unwrap();
    assert_eq!(jit.stats().n_memory_hits, 1);
}

#[test]
fn a_dump_has_the_text_and_the_key() {
    let dir = tempfile::tempdir().unwrap();
    let gpu = host();
    let jit = Jit::new(Some(dir.path().into()));
    let key = jit.get(&gpu, &source("k").define("N", 3)).unwrap().key();
    let from_memory = jit.dump(key).unwrap();
    assert!(from_memory.contains(&key.to_string()) && from_memory.contains("WL_KERNEL(k, P, p)"));
    assert_eq!(
        Jit::new(Some(dir.path().into())).dump(key).unwrap(),
        from_memory
    );
    assert_eq!(jit.loaded().len(), 1);
}
