//! Where operators spill: a folder of this process, that goes with it.
//!
//! ```text
//! warpline-spill-1234-0.lock     held by that process while it lives
//! warpline-spill-1234-0/         what its operators spilled
//! ```
//!
//! A process that was killed leaves both; the next one that spills to the same place finds
//! that nobody holds the lock and removes them.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::{Error, Result};

const PREFIX: &str = "warpline-spill-";
const LOCK: &str = ".lock";

/// The folder; removed when this is dropped.
#[derive(Debug)]
pub struct SpillFolder {
    path: PathBuf,
    lock_path: PathBuf,
    _lock: File,
}

impl SpillFolder {
    /// A new folder in `base`, which is made if it is missing. Folders there that belonged to
    /// processes that are gone are removed.
    pub fn new(base: &Path) -> Result<SpillFolder> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        fs::create_dir_all(base).map_err(|error| Error::io("create", base, error))?;
        remove_left(base);
        loop {
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let name = format!("{PREFIX}{}-{number}", std::process::id());
            let (path, lock_path) = (base.join(&name), base.join(format!("{name}{LOCK}")));
            let lock = File::create(&lock_path)
                .map_err(|error| Error::io("create a file in", base, error))?;
            // Another process may be looking whether it is held; then it will be removed.
            if lock.try_lock().is_err() {
                continue;
            }
            match fs::create_dir(&path) {
                Ok(()) => {
                    return Ok(SpillFolder {
                        path,
                        lock_path,
                        _lock: lock,
                    });
                }
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(Error::io("create", &path, error)),
            }
        }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for SpillFolder {
    fn drop(&mut self) {
        // What cannot be removed now is removed by the next process.
        if fs::remove_dir_all(&self.path).is_ok() {
            let _ = fs::remove_file(&self.lock_path);
        }
    }
}

/// Removes what processes left that are gone.
fn remove_left(base: &Path) {
    let Ok(entries) = fs::read_dir(base) else {
        return;
    };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let folder = name
            .to_str()
            .filter(|name| name.starts_with(PREFIX))
            .and_then(|name| name.strip_suffix(LOCK));
        let Some(folder) = folder else { continue };
        let lock_path = entry.path();
        let is_left = File::open(&lock_path).is_ok_and(|lock| lock.try_lock().is_ok());
        if !is_left {
            continue;
        }
        let folder = base.join(folder);
        match fs::remove_dir_all(&folder) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                tracing::debug!(%error, folder = %folder.display(), "spilled files stay");
            }
            _ => {
                let _ = fs::remove_file(&lock_path);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_killed_process_s_folder_goes_and_a_living_one_s_stays() {
        let base = tempfile::tempdir().unwrap();
        let living = SpillFolder::new(base.path()).unwrap();
        fs::write(living.path().join("rows"), "1").unwrap();
        // As a killed process leaves it: nobody holds the lock.
        let left = base.path().join("warpline-spill-1-0");
        fs::create_dir(&left).unwrap();
        fs::write(left.join("rows"), "2").unwrap();
        File::create(base.path().join("warpline-spill-1-0.lock")).unwrap();
        fs::write(base.path().join("a file of somebody else"), "3").unwrap();

        let next = SpillFolder::new(base.path()).unwrap();
        assert!(!left.exists() && living.path().join("rows").exists());
        drop((living, next));
        let rest = fs::read_dir(base.path()).unwrap().flatten();
        let rest: Vec<_> = rest.map(|entry| entry.file_name()).collect();
        assert_eq!(rest, ["a file of somebody else"]);
    }
}
