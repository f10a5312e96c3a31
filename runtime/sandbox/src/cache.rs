//! Machine code on disk, so that a module is compiled once and not once a batch.
//!
//! Loading machine code is running it: a file that somebody else wrote there would be code
//! of theirs in this process. So the folder is the user's alone, and each file starts with
//! a keyed hash that only this folder's key makes. Its name is a hash of the module, of the
//! engine's version and of its configuration.

use std::fs;
use std::hash::{Hash, Hasher};
use std::io::{Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use crate::loader::hex;

const MAC_BYTES: usize = 32;
const KEY_BYTES: usize = 32;

/// A folder of machine code.
#[derive(Debug)]
pub(crate) struct Cache {
    folder: PathBuf,
    key: [u8; KEY_BYTES],
}

impl Cache {
    /// Opens or makes the folder. None, with a line in the log, where it is not safe or
    /// cannot be had: modules are then compiled each time.
    pub(crate) fn open(folder: &Path) -> Option<Cache> {
        match Self::try_open(folder) {
            Ok(cache) => Some(cache),
            Err(problem) => {
                tracing::warn!(
                    folder = %folder.display(),
                    problem,
                    "compiled user functions are not kept"
                );
                None
            }
        }
    }

    fn try_open(folder: &Path) -> Result<Cache, String> {
        let words = |error: std::io::Error| error.to_string();
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(folder)
            .map_err(words)?;
        let facts = fs::metadata(folder).map_err(words)?;
        // SAFETY: the call has no arguments and cannot fail.
        let me = unsafe { libc::geteuid() };
        if facts.uid() != me || facts.mode() & 0o077 != 0 {
            return Err(
                "the folder has to belong to this user and to nobody else (mode 700)".into(),
            );
        }
        let path = folder.join("key");
        let key = match fs::read(&path) {
            Ok(key) => key,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                let mut key = [0; KEY_BYTES];
                fs::File::open("/dev/urandom")
                    .and_then(|mut random| random.read_exact(&mut key))
                    .map_err(words)?;
                write_whole(&path, &[&key]).map_err(words)?;
                // Another process may have been first: what lies there counts.
                fs::read(&path).map_err(words)?
            }
            Err(error) => return Err(words(error)),
        };
        Ok(Cache {
            folder: folder.to_path_buf(),
            key: key
                .try_into()
                .map_err(|_| "the key is damaged; remove the folder")?,
        })
    }

    /// The machine code kept under a name, if it is there and whole.
    pub(crate) fn get(&self, name: &str) -> Option<Vec<u8>> {
        let mut kept = fs::read(self.folder.join(name)).ok()?;
        let code = kept.split_off(MAC_BYTES.min(kept.len()));
        if kept != self.mac(name, &code) {
            tracing::warn!(
                name,
                "compiled code of a user function was damaged; compiling it again"
            );
            return None;
        }
        Some(code)
    }

    /// Keeps machine code.
    pub(crate) fn put(&self, name: &str, code: &[u8]) {
        let mac = self.mac(name, code);
        if let Err(error) = write_whole(&self.folder.join(name), &[&mac, code]) {
            tracing::warn!(%error, "compiled code of a user function is not kept");
        }
    }

    fn mac(&self, name: &str, code: &[u8]) -> [u8; MAC_BYTES] {
        hmac(&self.key, &[name.as_bytes(), &[0], code])
    }
}

/// The name of a module's machine code.
pub(crate) fn name(engine: &wasmtime::Engine, module: &[u8; 32]) -> String {
    let mut hasher = Hashed(Sha256::new());
    hasher.write(module);
    engine.precompile_compatibility_hash().hash(&mut hasher);
    hex(&hasher.0.finalize())
}

/// SHA-256 as a hasher: the standard one's 64 bits are not enough for a name.
struct Hashed(Sha256);

impl Hasher for Hashed {
    fn write(&mut self, bytes: &[u8]) {
        self.0.update((bytes.len() as u64).to_le_bytes());
        self.0.update(bytes);
    }

    fn finish(&self) -> u64 {
        let hash = self.0.clone().finalize();
        hash.iter()
            .take(8)
            .fold(0, |sum, byte| sum << 8 | u64::from(*byte))
    }
}

/// HMAC-SHA256 (RFC 2104) of the parts, one after another.
fn hmac(key: &[u8; KEY_BYTES], parts: &[&[u8]]) -> [u8; MAC_BYTES] {
    const BLOCK: usize = 64;
    let padded = |with: u8| {
        let mut block = [with; BLOCK];
        for (byte, key) in block.iter_mut().zip(key) {
            *byte ^= key;
        }
        block
    };
    let mut inner = Sha256::new();
    inner.update(padded(0x36));
    for part in parts {
        inner.update(part);
    }
    let mut outer = Sha256::new();
    outer.update(padded(0x5c));
    outer.update(inner.finalize());
    outer.finalize().into()
}

/// Writes a file that others see whole or not at all. The first writer stays.
fn write_whole(path: &Path, parts: &[&[u8]]) -> std::io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("."));
    let mut file = tempfile::Builder::new()
        .permissions(std::os::unix::fs::PermissionsExt::from_mode(0o600))
        .tempfile_in(folder)?;
    for part in parts {
        file.write_all(part)?;
    }
    // A damaged file is replaced; a key that is already there stays.
    if path.file_name().is_some_and(|name| name == "key") {
        match file.persist_noclobber(path) {
            Err(error) if error.error.kind() == std::io::ErrorKind::AlreadyExists => Ok(()),
            other => other.map(drop).map_err(|error| error.error),
        }
    } else {
        file.persist(path).map(drop).map_err(|error| error.error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_keyed_hash_is_that_of_rfc_4231() {
        // Test case 1's key of 20 bytes is the same key with zeros after it.
        let mut key = [0; KEY_BYTES];
        key[..20].fill(0x0b);
        assert_eq!(
            hex(&hmac(&key, &[b"Hi ", b"There"])),
            "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7"
        );
    }

    #[test]
    fn what_was_changed_on_disk_is_not_loaded() {
        let folder = tempfile::tempdir().expect("a folder");
        let folder = folder.path().join("kept");
        let cache = Cache::open(&folder).expect("a cache");
        cache.put("a", b"machine code");
        assert_eq!(cache.get("a").as_deref(), Some(&b"machine code"[..]));
        assert_eq!(cache.get("b"), None);
        // Another name, another hash: files cannot be swapped.
        fs::copy(folder.join("a"), folder.join("b")).expect("a copy");
        assert_eq!(cache.get("b"), None);
        let mut bytes = fs::read(folder.join("a")).expect("the file");
        let last = bytes.len() - 1;
        bytes[last] ^= 1;
        fs::write(folder.join("a"), &bytes).expect("a change");
        assert_eq!(cache.get("a"), None);
        fs::write(folder.join("a"), b"short").expect("a change");
        assert_eq!(cache.get("a"), None);
        // The same folder opens with the same key.
        cache.put("a", b"again");
        let again = Cache::open(&folder).expect("the cache");
        assert_eq!(again.get("a").as_deref(), Some(&b"again"[..]));
    }

    #[test]
    fn a_folder_that_others_can_write_is_not_used() {
        let folder = tempfile::tempdir().expect("a folder");
        let shared: fs::Permissions = std::os::unix::fs::PermissionsExt::from_mode(0o777);
        fs::set_permissions(folder.path(), shared).expect("a mode");
        assert!(Cache::open(folder.path()).is_none());
    }
}
