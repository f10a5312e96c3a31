//! Every example's batch, run as its README says, against the rows beside it.
//! `UPDATE_GOLDEN=1` writes these.

use std::path::{Path, PathBuf};
use std::process::Command;

fn root() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    root.canonicalize().expect("the repository")
}

#[test]
fn every_example_gives_the_rows_beside_it() {
    let root = root();
    let mut n_examples = 0;
    for entry in std::fs::read_dir(root.join("examples")).expect("the examples") {
        let folder = entry.expect("an entry").path();
        if !folder.join("batch.yaml").exists() {
            continue;
        }
        n_examples += 1;
        let batch = folder
            .strip_prefix(&root)
            .expect("below")
            .join("batch.yaml");
        let ran = Command::new(env!("CARGO_BIN_EXE_warpline"))
            .current_dir(&root)
            .arg("run")
            .arg(&batch)
            .output()
            .expect("the program");
        let told = String::from_utf8_lossy(&ran.stderr);
        assert!(ran.status.success(), "{}: {told}", batch.display());
        let rows = String::from_utf8(ran.stdout).expect("UTF-8");
        let beside = folder.join("expected.txt");
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            std::fs::write(&beside, &rows).expect("written");
        }
        let expected = std::fs::read_to_string(&beside).expect("expected.txt");
        assert_eq!(rows, expected, "{}", batch.display());
    }
    assert!(n_examples >= 2, "{n_examples} examples");
}
