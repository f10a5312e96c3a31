//! Where a Rust compiler for WebAssembly is.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::Outcome;

/// The target that modules are built for.
pub const TARGET: &str = "wasm32-unknown-unknown";

/// A compiler that has the target.
#[derive(Debug)]
pub struct Toolchain {
    /// The compiler to use instead of cargo's own, if any.
    pub rustc: Option<PathBuf>,
    /// The linker that goes with it.
    pub linker: Option<PathBuf>,
}

/// Finds one, or says what to install.
pub fn find(folder: &Path) -> Outcome<Toolchain> {
    let sysroot = Command::new("rustc")
        .args(["--print", "sysroot"])
        .current_dir(folder)
        .output();
    let sysroot = match sysroot {
        Ok(ran) if ran.status.success() => String::from_utf8_lossy(&ran.stdout).trim().to_string(),
        _ => {
            return Err(
                "there is no Rust compiler (`rustc` does not run); install one from your \
                 system's packages or with rustup"
                    .into(),
            );
        }
    };
    let has_target = |root: &Path| root.join("lib/rustlib").join(TARGET).join("lib").is_dir();
    if has_target(Path::new(&sysroot)) {
        return Ok(Toolchain {
            rustc: None,
            linker: None,
        });
    }
    // What `infra/wasm-toolchain` of Warpline's sources makes.
    let tools = lifecycle::cache_dir().join("tools");
    let made = std::fs::read_dir(tools)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            name.starts_with("wasm-toolchain-") && path.join("done").exists()
        })
        .max();
    match made {
        Some(home) => Ok(Toolchain {
            rustc: Some(home.join("bin/rustc")),
            linker: Some(home.join("bin/wasm-ld")),
        }),
        None => Err(format!(
            "the Rust compiler of {sysroot} cannot make WebAssembly; run `rustup target add \
             {TARGET}`. Where rustup cannot, on Debian, `infra/wasm-toolchain` of Warpline's \
             sources makes a compiler of packages, which is found then"
        )),
    }
}
