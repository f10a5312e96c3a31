//! Is this spec accepted, or refused with a helpful message? Good specs lie in `samples/`, bad
//! ones in `samples/rejected/` beside what they are told. `UPDATE_GOLDEN=1` rewrites the latter.

use std::path::{Path, PathBuf};

use batch_specs::{GpuInfo, LoadOptions, Machine, json_schema, load, load_bytes};

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

fn yaml_files(name: &str) -> Vec<(String, PathBuf)> {
    let mut files: Vec<(String, PathBuf)> = std::fs::read_dir(folder(name))
        .expect("the folder is there")
        .map(|entry| entry.expect("the entry can be read").path())
        .filter(|path| path.extension().is_some_and(|e| e == "yaml"))
        .map(|path| {
            (
                path.file_name()
                    .expect("a file")
                    .to_string_lossy()
                    .into_owned(),
                path,
            )
        })
        .collect();
    files.sort();
    files
}

/// Compares with a checked-in text, or rewrites it.
fn golden(path: &Path, text: &str) -> Result<(), String> {
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(path, text).expect("the golden file can be written");
        return Ok(());
    }
    let expected = std::fs::read_to_string(path).unwrap_or_default();
    if expected == text {
        return Ok(());
    }
    Err(format!(
        "{} differs (UPDATE_GOLDEN=1 rewrites it)\n--- expected\n{expected}\n--- found\n{text}",
        path.display()
    ))
}

#[test]
fn good_samples_are_accepted() {
    let options = LoadOptions {
        machine: Some(Machine {
            cores: 16,
            memory_mib: 131_072,
            gpus: vec![GpuInfo {
                name: "NVIDIA H200".into(),
                memory_mib: 143_771,
            }],
        }),
        ..LoadOptions::default()
    };
    let quickstart = ("quickstart.yaml".to_owned(), folder("quickstart.yaml"));
    for (name, path) in yaml_files("samples").into_iter().chain([quickstart]) {
        let text = std::fs::read_to_string(&path).expect("the sample can be read");
        for options in [&options, &LoadOptions::default()] {
            let loaded = load(&text, options);
            let said: Vec<String> = loaded.problems.iter().map(|p| p.render(&name)).collect();
            let spec = loaded.spec.unwrap_or_else(|| panic!("{}", said.join("\n")));
            assert_eq!(loaded.scripts.len(), spec.stages.len(), "{name}");
            // What was read survives being stored.
            let stored = serde_json::to_string(&spec).expect("serialises");
            assert_eq!(
                serde_json::from_str::<batch_specs::Spec>(&stored).ok(),
                Some(spec),
                "{name}"
            );
        }
    }
}

#[test]
fn bad_samples_are_refused_as_written() {
    let mut differences = Vec::new();
    for (name, path) in yaml_files("samples/rejected") {
        let bytes = std::fs::read(&path).expect("the sample can be read");
        let loaded = load_bytes(&bytes, &LoadOptions::default());
        assert!(loaded.spec.is_none(), "{name} is accepted");
        assert!(loaded.has_errors(), "{name} is refused without a reason");
        let text: String = loaded
            .problems
            .iter()
            .map(|p| p.render(&name) + "\n")
            .collect();
        differences.extend(golden(&path.with_extension("expected"), &text).err());
    }
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}

#[test]
fn effective_values_of_the_large_sample_are_as_written() {
    let text = std::fs::read_to_string(folder("samples/orders-daily.yaml"))
        .expect("the sample can be read");
    let loaded = load(&text, &LoadOptions::default());
    let json = serde_json::to_string_pretty(&loaded.effective).expect("serialises") + "\n";
    golden(&folder("samples/orders-daily.effective.json"), &json).unwrap();
}

#[test]
fn the_schema_is_current() {
    let text = serde_json::to_string_pretty(&json_schema()).expect("serialises") + "\n";
    golden(&folder("schema/batch.schema.json"), &text).unwrap();
}
