//! `warpline udf new`: a folder with a function that works, and the kit it is written with.

use std::path::Path;

use engine::words::io_problem;

use super::kit::FILES;
use super::{Outcome, write};

const LIB: &str = r#"//! User functions.

use udf_sdk::prelude::*;

/// A greeting.
///
/// greet('you') = 'hello, you'
#[udf]
fn greet(name: &str, out: &mut StrWriter) {
    out.push("hello, ");
    out.push(name);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_greets() {
        let mut out = StrWriter::new();
        greet("you", &mut out);
        assert_eq!(out.as_str(), "hello, you");
    }
}
"#;

/// Runs the command.
pub fn new(folder: &Path) -> Outcome<()> {
    let name = folder
        .file_name()
        .and_then(|name| name.to_str())
        .filter(|name| {
            name.starts_with(|c: char| c.is_ascii_lowercase())
                && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || "-_".contains(c))
        })
        .ok_or_else(|| {
            format!(
                "`{}` cannot name a Rust crate: use a to z, 0 to 9, - and _, starting with a letter",
                folder.display()
            )
        })?;
    if folder.exists() {
        return Err(format!("{} is there already", folder.display()));
    }
    let wasm = format!("{}.wasm", name.replace('-', "_"));
    let manifest = format!(
        "[package]\nname = \"{name}\"\nversion = \"0.1.0\"\nedition = \"2024\"\npublish = false\n\n\
         [lib]\n# `cdylib` makes the WebAssembly module, `rlib` lets `cargo test` run.\n\
         crate-type = [\"cdylib\", \"rlib\"]\n\n[dependencies]\nudf-sdk = {{ path = \"udf-sdk\" }}\n\n\
         [workspace]\n"
    );
    let batch = format!(
        "version: 1\nname: {name}\nudfs:\n  - {{module: {}, functions: [greet]}}\nstages:\n  \
         - name: greetings\n    sql: SELECT name, greet(name) AS greeting FROM (VALUES ('you'), (NULL)) AS t(name)\n",
        folder.join(&wasm).display()
    );
    let mut files = vec![
        ("Cargo.toml".to_string(), manifest),
        ("src/lib.rs".to_string(), LIB.to_string()),
        ("batch.yaml".to_string(), batch),
        (".gitignore".to_string(), "/target\n".to_string()),
    ];
    files.extend(
        FILES
            .iter()
            .map(|(path, text)| (format!("udf-sdk/{path}"), (*text).to_string())),
    );
    for (path, text) in files {
        let path = folder.join(path);
        let parent = path.parent().unwrap_or(folder);
        std::fs::create_dir_all(parent)
            .map_err(|error| format!("cannot make {}: {}", parent.display(), io_problem(&error)))?;
        write(&path, text)?;
    }
    let at = folder.display();
    eprintln!(
        "{at}: the function is in src/lib.rs. Next:\n\n  warpline udf build {at}\n  \
         warpline udf test {at}/{wasm}\n  warpline run {at}/batch.yaml"
    );
    Ok(())
}
