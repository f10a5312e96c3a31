//! Outputs on this machine's file system.
//!
//! ```text
//! out/                              what readers see
//! .out.warpline-4f1c/               being written by a run
//! .out.warpline-4f1c.lock           held by that run while it lives
//! .out.warpline-4f1c.commit/        an append that is moving its files in
//! ```
//!
//! A new output and an overwrite become visible by one rename. An append moves its
//! files in one by one; a run that is killed in between is completed by the next
//! writer, never undone.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use super::is_of_write;
use crate::error::{Error, Result};
use crate::report::OutputFile;
use crate::settings::WriteMode;

const MARK: &str = ".warpline-";

/// A directory that no reader sees, and where its files go.
#[derive(Debug)]
pub struct Staging {
    written: String,
    target: PathBuf,
    staging: PathBuf,
    lock_path: PathBuf,
    /// Locked while this run lives; the system lets go of it when the run dies.
    _lock: File,
    is_published: bool,
}

/// Fails if the output is there and must not be.
pub fn check_absent(written: &str, target: &Path) -> Result<()> {
    match fs::read_dir(target) {
        Ok(mut entries) => match entries.next() {
            None => Ok(()),
            Some(_) => Err(Error::OutputExists {
                location: written.to_owned(),
            }),
        },
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Err(error) if error.kind() == std::io::ErrorKind::NotADirectory => {
            Err(below_a_file(written, target))
        }
        Err(error) => Err(Error::io("read", target, error)),
    }
}

/// The output, or a directory above it, is a file.
fn below_a_file(written: &str, target: &Path) -> Error {
    let file = target.ancestors().find(|path| path.is_file());
    let file = file.unwrap_or(target).display();
    Error::Output {
        location: written.to_owned(),
        problem: format!("`{file}` is a file, not a directory; name another location"),
    }
}

impl Staging {
    /// Makes the hidden directory, after clearing away what killed runs have left.
    pub fn create(written: &str, target: &Path, run_id: &str) -> Result<Self> {
        let (Some(parent), Some(name)) = (target.parent(), target.file_name()) else {
            return Err(Error::Output {
                location: written.to_owned(),
                problem: "it is not a directory's name".into(),
            });
        };
        if target.ancestors().any(Path::is_file) {
            return Err(below_a_file(written, target));
        }
        let name = name.to_string_lossy();
        fs::create_dir_all(parent).map_err(|error| match error.kind() {
            // The system has directories that nothing can be made in, such as `/proc`.
            std::io::ErrorKind::NotFound => Error::Output {
                location: written.to_owned(),
                problem: format!(
                    "`{}` cannot be created there; name another location",
                    parent.display()
                ),
            },
            _ => Error::io("create", parent, error),
        })?;
        sweep(parent, &name, target);
        let staging = parent.join(format!(".{name}{MARK}{run_id}"));
        let lock_path = parent.join(format!(".{name}{MARK}{run_id}.lock"));
        let lock = File::create(&lock_path)
            .map_err(|error| Error::io("create files in", parent, error))?;
        lock.lock()
            .map_err(|error| Error::io("lock a file in", parent, error))?;
        fs::create_dir(&staging)
            .map_err(|error| Error::io("create a directory in", parent, error))?;
        Ok(Self {
            written: written.to_owned(),
            target: target.to_owned(),
            staging,
            lock_path,
            _lock: lock,
            is_published: false,
        })
    }

    /// Starts a file at a path relative to the output.
    pub fn create_file(&self, relative: &str) -> Result<LocalFile> {
        let path = self.staging.join(relative);
        let failed = |error| Error::io("write to", &self.target, error);
        if let Some(directory) = path.parent() {
            fs::create_dir_all(directory).map_err(failed)?;
        }
        Ok(LocalFile {
            output: self.target.clone(),
            file: File::create_new(&path).map_err(failed)?,
        })
    }

    /// Makes everything visible.
    pub fn publish(mut self, mode: WriteMode) -> Result<()> {
        sync_directories(&self.staging)?;
        let target_exists = self.target.is_dir();
        match mode {
            WriteMode::Append if target_exists => {
                let committed = self.staging.with_extension(format!(
                    "{}.commit",
                    self.staging
                        .extension()
                        .unwrap_or_default()
                        .to_string_lossy()
                ));
                fs::rename(&self.staging, &committed)
                    .map_err(|error| Error::io("publish", &self.target, error))?;
                // From here on the append happens, if need be by the next writer.
                self.is_published = true;
                move_in(&committed, &self.target)?;
            }
            WriteMode::Overwrite if target_exists => {
                exchange(&self.staging, &self.target)
                    .map_err(|error| Error::io("publish", &self.target, error))?;
                self.is_published = true;
                // The old files are now in the hidden directory.
                let _ = fs::remove_dir_all(&self.staging);
            }
            WriteMode::Error | WriteMode::Append | WriteMode::Overwrite => {
                fs::rename(&self.staging, &self.target).map_err(|error| match error.kind() {
                    std::io::ErrorKind::DirectoryNotEmpty
                    | std::io::ErrorKind::AlreadyExists
                    | std::io::ErrorKind::NotADirectory => Error::OutputConflict {
                        location: self.written.clone(),
                    },
                    _ => Error::io("publish", &self.target, error),
                })?;
                self.is_published = true;
            }
        }
        if let Some(parent) = self.target.parent() {
            sync_directory(parent)?;
        }
        Ok(())
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        if !self.is_published {
            let _ = fs::remove_dir_all(&self.staging);
        }
        let _ = fs::remove_file(&self.lock_path);
    }
}

/// One file in the hidden directory.
#[derive(Debug)]
pub struct LocalFile {
    /// The output it is for, which is what its author knows.
    output: PathBuf,
    file: File,
}

impl LocalFile {
    /// Adds bytes.
    pub fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.file
            .write_all(bytes)
            .map_err(|error| Error::io("write to", &self.output, error))
    }

    /// Puts the file on disk.
    pub fn finish(self) -> Result<()> {
        self.file
            .sync_all()
            .map_err(|error| Error::io("write to", &self.output, error))
    }
}

/// The files of a write that an earlier attempt has published, after completing what it
/// had committed. None when it has published nothing.
pub fn published(written: &str, target: &Path, id: &str) -> Result<Option<Vec<OutputFile>>> {
    let (Some(parent), Some(name)) = (target.parent(), target.file_name()) else {
        return Ok(None);
    };
    let name = name.to_string_lossy();
    sweep(parent, &name, target);
    // A lock that is left is held: that attempt is not over.
    let prefix = format!(".{name}{MARK}{id}");
    let entries = fs::read_dir(parent).into_iter().flatten().flatten();
    for entry in entries {
        let left = entry.file_name().to_string_lossy().into_owned();
        if left.starts_with(&prefix) && (left.ends_with(".lock") || left.ends_with(".commit")) {
            return Err(Error::OutputBusy {
                location: written.to_owned(),
            });
        }
    }
    let mut files = Vec::new();
    find(target, "", id, &mut files).map_err(|error| Error::io("read", target, error))?;
    files.sort_by(|a: &OutputFile, b| a.path.cmp(&b.path));
    Ok((!files.is_empty()).then_some(files))
}

/// Collects the files of a write below a directory.
fn find(
    directory: &Path,
    below: &str,
    id: &str,
    files: &mut Vec<OutputFile>,
) -> std::io::Result<()> {
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    for entry in entries {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let path = format!("{below}{name}");
        if entry.file_type()?.is_dir() {
            find(&entry.path(), &format!("{path}/"), id, files)?;
        } else if is_of_write(&path, id) {
            files.push(OutputFile {
                path,
                rows: 0,
                bytes: entry.metadata()?.len(),
            });
        }
    }
    Ok(())
}

/// Clears away, or completes, what runs that no longer live have left.
fn sweep(parent: &Path, name: &str, target: &Path) {
    let prefix = format!(".{name}{MARK}");
    let Ok(entries) = fs::read_dir(parent) else {
        return;
    };
    for entry in entries.flatten() {
        let file_name = entry.file_name().to_string_lossy().into_owned();
        let Some(run) = file_name
            .strip_prefix(&prefix)
            .and_then(|rest| rest.strip_suffix(".lock"))
        else {
            continue;
        };
        let lock_path = entry.path();
        let is_dead = File::open(&lock_path).is_ok_and(|lock| lock.try_lock().is_ok());
        if !is_dead {
            continue;
        }
        let committed = parent.join(format!("{prefix}{run}.commit"));
        if committed.is_dir() && move_in(&committed, target).is_err() {
            continue;
        }
        let _ = fs::remove_dir_all(parent.join(format!("{prefix}{run}")));
        let _ = fs::remove_file(&lock_path);
    }
}

/// Moves every file of a committed append to its place. May be repeated.
fn move_in(committed: &Path, target: &Path) -> Result<()> {
    fn walk(from: &Path, to: &Path) -> std::io::Result<()> {
        fs::create_dir_all(to)?;
        for entry in fs::read_dir(from)? {
            let entry = entry?;
            let place = to.join(entry.file_name());
            if entry.file_type()?.is_dir() {
                walk(&entry.path(), &place)?;
            } else {
                fs::rename(entry.path(), place)?;
            }
        }
        File::open(to)?.sync_all()?;
        fs::remove_dir(from)
    }
    walk(committed, target).map_err(|error| Error::io("publish", target, error))
}

/// Swaps two directories in one step, so that a reader sees the old or the new.
fn exchange(new: &Path, old: &Path) -> std::io::Result<()> {
    #[cfg(target_os = "linux")]
    {
        use std::ffi::CString;
        use std::os::unix::ffi::OsStrExt;
        let new_name = CString::new(new.as_os_str().as_bytes())?;
        let old_name = CString::new(old.as_os_str().as_bytes())?;
        // SAFETY: both are valid C strings that outlive the call, and the call keeps neither.
        let rc = unsafe {
            libc::renameat2(
                libc::AT_FDCWD,
                new_name.as_ptr(),
                libc::AT_FDCWD,
                old_name.as_ptr(),
                libc::RENAME_EXCHANGE,
            )
        };
        if rc == 0 {
            return Ok(());
        }
        let error = std::io::Error::last_os_error();
        if !matches!(error.raw_os_error(), Some(libc::EINVAL | libc::ENOSYS)) {
            return Err(error);
        }
    }
    // Without the system's help there is a moment with neither.
    let aside = new.with_extension("old");
    fs::rename(old, &aside)?;
    if let Err(error) = fs::rename(new, old) {
        fs::rename(&aside, old)?;
        return Err(error);
    }
    fs::remove_dir_all(&aside)
}

fn sync_directory(directory: &Path) -> Result<()> {
    File::open(directory)
        .and_then(|directory| directory.sync_all())
        .map_err(|error| Error::io("write", directory, error))
}

fn sync_directories(directory: &Path) -> Result<()> {
    let entries = fs::read_dir(directory).map_err(|error| Error::io("read", directory, error))?;
    for entry in entries.flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            sync_directories(&entry.path())?;
        }
    }
    sync_directory(directory)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(staging: &Staging, name: &str, text: &str) {
        let mut file = staging.create_file(name).unwrap();
        file.write(text.as_bytes()).unwrap();
        file.finish().unwrap();
    }

    fn names(directory: &Path) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(directory)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn what_a_killed_run_left_is_cleared_and_what_a_live_one_writes_stays() {
        let home = tempfile::tempdir().unwrap();
        let target = home.path().join("out");
        let live = Staging::create("out", &target, "live").unwrap();
        // A killed run leaves its directory and a lock that nobody holds.
        fs::create_dir(home.path().join(".out.warpline-dead")).unwrap();
        File::create(home.path().join(".out.warpline-dead.lock")).unwrap();
        drop(Staging::create("out", &target, "next").unwrap());
        assert_eq!(
            names(home.path()),
            [".out.warpline-live", ".out.warpline-live.lock"]
        );
        drop(live);
        assert!(names(home.path()).is_empty());
    }

    #[test]
    fn an_append_that_was_killed_while_moving_is_completed_by_the_next_writer() {
        let home = tempfile::tempdir().unwrap();
        let target = home.path().join("out");
        fs::create_dir_all(target.join("day=1")).unwrap();
        fs::create_dir_all(home.path().join(".out.warpline-dead.commit/day=1")).unwrap();
        fs::write(home.path().join(".out.warpline-dead.commit/day=1/b"), "b").unwrap();
        File::create(home.path().join(".out.warpline-dead.lock")).unwrap();
        drop(Staging::create("out", &target, "next").unwrap());
        assert_eq!(names(&target.join("day=1")), ["b"]);
        assert_eq!(names(home.path()), ["out"]);
    }

    #[test]
    fn a_repeated_write_finds_what_its_earlier_attempt_left() {
        const ID: &str = "00112233445566aa";
        let home = tempfile::tempdir().unwrap();
        let target = home.path().join("out");
        let found = || published("out", &target, ID);
        assert_eq!(found().unwrap(), None);

        // The earlier attempt still lives.
        let earlier = Staging::create("out", &target, &format!("{ID}1")).unwrap();
        assert!(matches!(found(), Err(Error::OutputBusy { .. })));
        write(&earlier, &format!("part-00000-{ID}.parquet"), "x");
        earlier.publish(WriteMode::Append).unwrap();
        let files = found().unwrap().expect("it is published");
        assert_eq!(files[0].path, format!("part-00000-{ID}.parquet"));

        // It was killed while moving the second of two files in.
        let commit = home
            .path()
            .join(format!(".out.warpline-{ID}2.commit/day=1"));
        fs::create_dir_all(&commit).unwrap();
        fs::write(commit.join(format!("part-00001-{ID}.parquet")), "y").unwrap();
        File::create(home.path().join(format!(".out.warpline-{ID}2.lock"))).unwrap();
        assert_eq!(found().unwrap().map(|files| files.len()), Some(2));
        assert_eq!(names(home.path()), ["out"]);
        assert_eq!(published("out", &target, "ffffffffffffffff").unwrap(), None);
    }

    #[test]
    fn an_overwrite_replaces_and_a_new_output_does_not() {
        let home = tempfile::tempdir().unwrap();
        let target = home.path().join("out");
        fs::create_dir(&target).unwrap();
        fs::write(target.join("old"), "old").unwrap();
        assert!(check_absent("out", &target).is_err());

        let staging = Staging::create("out", &target, "a").unwrap();
        write(&staging, "new", "new");
        assert!(matches!(
            staging.publish(WriteMode::Error),
            Err(Error::OutputConflict { .. })
        ));
        assert_eq!(names(&target), ["old"]);

        let staging = Staging::create("out", &target, "b").unwrap();
        write(&staging, "new", "new");
        staging.publish(WriteMode::Overwrite).unwrap();
        assert_eq!(names(&target), ["new"]);
        assert_eq!(names(home.path()), ["out"]);
    }
}
