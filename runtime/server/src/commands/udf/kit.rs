//! The kit for authors, as sources that travel in this program: a new project needs no
//! network and no registry.

macro_rules! files {
    ($($path:literal),* $(,)?) => {
        &[$(($path, include_str!(concat!("../../../../../udf-sdk/", $path)))),*]
    };
}

/// Each file of `udf-sdk`, by its path there.
pub const FILES: &[(&str, &str)] = files!(
    "Cargo.toml",
    "README.md",
    "macros/Cargo.toml",
    "macros/src/aggregate.rs",
    "macros/src/lib.rs",
    "macros/src/options.rs",
    "macros/src/parse.rs",
    "macros/src/scalar.rs",
    "src/heap.rs",
    "src/lib.rs",
    "src/prelude.rs",
    "src/rt/aggregate.rs",
    "src/rt/args.rs",
    "src/rt/frame.rs",
    "src/rt/mod.rs",
    "src/rt/name.rs",
    "src/rt/out.rs",
    "src/rt/panic.rs",
    "src/rt/rows.rs",
    "src/state.rs",
    "src/text.rs",
    "src/values.rs",
    "src/whole.rs",
);

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn walk(folder: &Path, found: &mut Vec<String>, root: &Path) {
        for entry in std::fs::read_dir(folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                walk(&path, found, root);
            } else {
                let below = path.strip_prefix(root).expect("below");
                found.push(below.to_str().expect("UTF-8").to_string());
            }
        }
    }

    #[test]
    fn every_source_of_the_kit_travels() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../udf-sdk");
        let mut found = vec![
            "Cargo.toml".into(),
            "README.md".into(),
            "macros/Cargo.toml".into(),
        ];
        walk(&root.join("src"), &mut found, &root);
        walk(&root.join("macros/src"), &mut found, &root);
        found.sort();
        let listed: Vec<&str> = FILES.iter().map(|(path, _)| *path).collect();
        assert_eq!(found, listed);
    }
}
