//! Outputs in an object store.
//!
//! Objects cannot be renamed, so nothing is completed before everything is written:
//!
//! 1. Data goes up as multipart uploads, which no reader sees. Small files wait in
//!    memory.
//! 2. Commit: the uploads are completed one after the other, under names that no
//!    other run uses.
//! 3. `_SUCCESS` is written, a JSON list of this run's files.
//! 4. Overwrite only: the objects that were there before are deleted.
//!
//! A run that fails before 2 has made nothing visible; its uploads are aborted. One
//! that fails in 2 deletes what it had completed. One that is killed leaves uploads
//! that the bucket's lifecycle rule for incomplete uploads removes. During 2 to 4 a
//! reader that lists the prefix sees a mixture; one that waits for `_SUCCESS` and
//! reads the files it names does not.

use std::sync::{Arc, Mutex, PoisonError};

use datafusion::object_store::path::Path;
use datafusion::object_store::{MultipartUpload, ObjectStore, ObjectStoreExt, PutPayload};
use futures::{StreamExt, TryStreamExt};

use super::is_of_write;
use crate::error::{Error, Result};
use crate::report::OutputFile;
use crate::settings::WriteMode;
use crate::sources::Location;

/// Bytes of one part. Stores want at least 5 MiB, and at most 10,000 parts.
const PART_BYTES: usize = 16 << 20;
/// The marker that says that an output is complete.
pub const MARKER: &str = "_SUCCESS";

/// Uploads that no reader sees yet.
pub struct Staging {
    store: Arc<dyn ObjectStore>,
    location: Location,
    finished: Mutex<Vec<Finished>>,
}

enum Finished {
    Small(Path, Vec<u8>),
    Multipart(Path, Box<dyn MultipartUpload>),
}

impl Finished {
    fn path(&self) -> &Path {
        match self {
            Finished::Small(path, _) | Finished::Multipart(path, _) => path,
        }
    }
}

/// Fails if the output is there and must not be.
pub async fn check_absent(store: &dyn ObjectStore, location: &Location) -> Result<()> {
    match store.list(Some(&location.prefix)).next().await {
        None => Ok(()),
        Some(Ok(_)) => Err(Error::OutputExists {
            location: location.written.clone(),
        }),
        Some(Err(error)) => Err(Error::from_store(&location.written, &error)),
    }
}

/// What the marker says.
#[derive(serde::Deserialize)]
struct Marker {
    files: Vec<String>,
}

/// The files of a write that an earlier attempt has published, by the marker that it wrote
/// last. Objects of an attempt that ended before its marker are removed. None when nothing
/// is published.
pub async fn published(
    store: &dyn ObjectStore,
    location: &Location,
    mode: WriteMode,
    id: &str,
) -> Result<Option<Vec<OutputFile>>> {
    let failed =
        |error: &datafusion::object_store::Error| Error::from_store(&location.written, error);
    let marker = location.prefix.clone().join(MARKER);
    let listed: Vec<_> = store
        .list(Some(&location.prefix))
        .try_collect()
        .await
        .map_err(|error| failed(&error))?;
    let named = match store.get(&marker).await {
        Ok(found) => {
            let text = found.bytes().await.map_err(|error| failed(&error))?;
            serde_json::from_slice::<Marker>(&text)
                .map_or_else(|_| Vec::new(), |marker| marker.files)
        }
        Err(datafusion::object_store::Error::NotFound { .. }) => Vec::new(),
        Err(error) => return Err(failed(&error)),
    };
    let is_complete = named.iter().any(|name| is_of_write(name, id));
    let mut files = Vec::new();
    for object in listed {
        let path = &object.location;
        let is_ours = is_of_write(path.as_ref(), id);
        if is_complete && is_ours {
            let below = path.as_ref().strip_prefix(location.prefix.as_ref());
            files.push(OutputFile {
                path: below
                    .unwrap_or(path.as_ref())
                    .trim_start_matches('/')
                    .to_owned(),
                rows: 0,
                bytes: object.size,
            });
        }
        let is_half = !is_complete && is_ours;
        let is_obsolete = is_complete
            && mode == WriteMode::Overwrite
            && *path != marker
            && !named.iter().any(|name| name == path.as_ref());
        if is_half || is_obsolete {
            store.delete(path).await.map_err(|error| failed(&error))?;
        }
    }
    Ok(is_complete.then_some(files))
}

impl Staging {
    /// Prepares to write. Nothing is sent yet.
    pub fn new(store: Arc<dyn ObjectStore>, location: Location) -> Self {
        Self {
            store,
            location,
            finished: Mutex::new(Vec::new()),
        }
    }

    fn failed(&self, error: &datafusion::object_store::Error) -> Error {
        Error::from_store(&self.location.written, error)
    }

    /// Starts a file at a path relative to the output.
    pub fn create_file(&self, relative: &str) -> Result<RemoteFile> {
        let mut path = self.location.prefix.clone();
        for part in relative.split('/') {
            path =
                Path::parse(format!("{path}/{part}").trim_start_matches('/')).map_err(|error| {
                    Error::Output {
                        location: self.location.written.clone(),
                        problem: error.to_string(),
                    }
                })?;
        }
        Ok(RemoteFile {
            path,
            buffer: Vec::new(),
            upload: None,
        })
    }

    fn take_finished(&self) -> Vec<Finished> {
        std::mem::take(&mut self.finished.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Makes everything visible, in the order described above.
    pub async fn publish(&self, mode: WriteMode) -> Result<()> {
        let before: Vec<Path> = if mode == WriteMode::Overwrite {
            let listed: Vec<_> = self
                .store
                .list(Some(&self.location.prefix))
                .try_collect()
                .await
                .map_err(|error| self.failed(&error))?;
            listed.into_iter().map(|object| object.location).collect()
        } else {
            Vec::new()
        };
        if mode == WriteMode::Error {
            check_absent(self.store.as_ref(), &self.location)
                .await
                .map_err(|_| Error::OutputConflict {
                    location: self.location.written.clone(),
                })?;
        }
        let mut completed = Vec::new();
        let mut waiting = self.take_finished().into_iter();
        while let Some(file) = waiting.next() {
            let path = file.path().clone();
            let outcome = match file {
                Finished::Small(path, bytes) => {
                    self.store.put(&path, PutPayload::from(bytes)).await
                }
                Finished::Multipart(_, mut upload) => upload.complete().await,
            };
            completed.push(path);
            if let Err(error) = outcome {
                self.remove(&completed).await;
                abort(waiting).await;
                return Err(self.failed(&error));
            }
        }
        let names: Vec<&str> = completed.iter().map(Path::as_ref).collect();
        let marker = self.location.prefix.clone().join(MARKER);
        let text = serde_json::json!({ "files": names }).to_string();
        if let Err(error) = self
            .store
            .put(&marker, PutPayload::from(text.into_bytes()))
            .await
        {
            self.remove(&completed).await;
            return Err(self.failed(&error));
        }
        let obsolete: Vec<Path> = before
            .into_iter()
            .filter(|path| *path != marker && !completed.contains(path))
            .collect();
        self.remove(&obsolete).await;
        Ok(())
    }

    /// Gives up every upload.
    pub async fn abort(&self) {
        abort(self.take_finished().into_iter()).await;
    }

    async fn remove(&self, paths: &[Path]) {
        for path in paths {
            if let Err(error) = self.store.delete(path).await {
                tracing::warn!(path = path.as_ref(), %error, "an object could not be deleted");
            }
        }
    }
}

async fn abort(files: impl Iterator<Item = Finished>) {
    for file in files {
        if let Finished::Multipart(path, mut upload) = file
            && let Err(error) = upload.abort().await
        {
            tracing::warn!(path = path.as_ref(), %error, "an upload could not be aborted");
        }
    }
}

/// One file on its way up.
pub struct RemoteFile {
    path: Path,
    buffer: Vec<u8>,
    upload: Option<Box<dyn MultipartUpload>>,
}

impl RemoteFile {
    /// Adds bytes; sends them once there is a part.
    pub async fn write(&mut self, staging: &Staging, bytes: &[u8]) -> Result<()> {
        self.buffer.extend_from_slice(bytes);
        while self.buffer.len() >= PART_BYTES {
            let rest = self.buffer.split_off(PART_BYTES);
            let part = std::mem::replace(&mut self.buffer, rest);
            self.send(staging, part).await?;
        }
        Ok(())
    }

    async fn send(&mut self, staging: &Staging, part: Vec<u8>) -> Result<()> {
        if self.upload.is_none() {
            let upload = staging
                .store
                .put_multipart(&self.path)
                .await
                .map_err(|error| staging.failed(&error))?;
            self.upload = Some(upload);
        }
        if let Some(upload) = &mut self.upload {
            upload
                .put_part(PutPayload::from(part))
                .await
                .map_err(|error| staging.failed(&error))?;
        }
        Ok(())
    }

    /// Sends the rest; the file stays invisible.
    pub async fn finish(mut self, staging: &Staging) -> Result<()> {
        let rest = std::mem::take(&mut self.buffer);
        let finished = if self.upload.is_none() {
            Finished::Small(self.path.clone(), rest)
        } else {
            if !rest.is_empty() {
                self.send(staging, rest).await?;
            }
            match self.upload.take() {
                Some(upload) => Finished::Multipart(self.path.clone(), upload),
                None => {
                    return Err(Error::Internal {
                        message: "an upload vanished".into(),
                    });
                }
            }
        };
        staging
            .finished
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(finished);
        Ok(())
    }
}

impl Drop for RemoteFile {
    fn drop(&mut self) {
        // A file that was not finished: its writer failed or was cancelled.
        if let Some(mut upload) = self.upload.take()
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            runtime.spawn(async move { upload.abort().await });
        }
    }
}

#[cfg(test)]
mod tests {
    use datafusion::object_store::memory::InMemory;

    use super::*;

    async fn write(staging: &Staging, name: &str, n_bytes: usize) {
        let mut file = staging.create_file(name).unwrap();
        for chunk in vec![7_u8; n_bytes].chunks(1 << 20) {
            file.write(staging, chunk).await.unwrap();
        }
        file.finish(staging).await.unwrap();
    }

    async fn names(store: &dyn ObjectStore) -> Vec<String> {
        let objects: Vec<_> = store.list(None).try_collect().await.unwrap();
        let mut names: Vec<String> = objects
            .into_iter()
            .map(|object| object.location.to_string())
            .collect();
        names.sort();
        names
    }

    fn staging(store: &Arc<InMemory>) -> Staging {
        Staging::new(
            Arc::<InMemory>::clone(store),
            Location::parse("s3://lake/out/").unwrap(),
        )
    }

    #[tokio::test]
    async fn nothing_is_visible_before_the_commit_or_after_an_abort() {
        let store = Arc::new(InMemory::new());
        let first = staging(&store);
        write(&first, "small", 10).await;
        write(&first, "day=1/large", 2 * PART_BYTES + 5).await;
        assert!(names(store.as_ref()).await.is_empty());
        first.abort().await;
        assert!(names(store.as_ref()).await.is_empty());

        let second = staging(&store);
        write(&second, "small", 10).await;
        write(&second, "day=1/large", 2 * PART_BYTES + 5).await;
        second.publish(WriteMode::Error).await.unwrap();
        assert_eq!(
            names(store.as_ref()).await,
            ["out/_SUCCESS", "out/day=1/large", "out/small"]
        );
        let large = store.head(&Path::from("out/day=1/large")).await.unwrap();
        assert_eq!(large.size, 2 * PART_BYTES as u64 + 5);
    }

    const ID: &str = "00112233445566aa";

    /// What a repeated attempt finds after objects of these names, and a marker that names
    /// some of them.
    async fn check_repeat(
        mode: WriteMode,
        objects: &[&str],
        marked: Option<&[&str]>,
        is_published: bool,
        left: &[&str],
    ) {
        let store = Arc::new(InMemory::new());
        for name in objects {
            store
                .put(&Path::from(*name), PutPayload::from_static(b"x"))
                .await
                .unwrap();
        }
        if let Some(files) = marked {
            let text = serde_json::json!({ "files": files }).to_string();
            let marker = Path::from("out/_SUCCESS");
            store
                .put(&marker, PutPayload::from(text.into_bytes()))
                .await
                .unwrap();
        }
        let location = Location::parse("s3://lake/out/").unwrap();
        let found = published(store.as_ref(), &location, mode, ID)
            .await
            .unwrap();
        assert_eq!(found.is_some(), is_published, "{objects:?} {marked:?}");
        assert_eq!(names(store.as_ref()).await, left);
    }

    #[tokio::test]
    async fn a_repeated_write_finds_what_its_earlier_attempt_left() {
        let ours = "out/part-00000-00112233445566aa.parquet";
        let other = "out/part-00000-ffffffffffffffff.parquet";
        for mode in [WriteMode::Error, WriteMode::Append] {
            check_repeat(mode, &[], None, false, &[]).await;
            check_repeat(mode, &[ours], None, false, &[]).await;
            check_repeat(mode, &[ours], Some(&[ours]), true, &["out/_SUCCESS", ours]).await;
        }
        let marked = Some(&[other][..]);
        check_repeat(
            WriteMode::Append,
            &[ours, other],
            marked,
            false,
            &["out/_SUCCESS", other],
        )
        .await;
        // Killed between its marker and the removal of what was there before.
        let marked = Some(&[ours][..]);
        check_repeat(
            WriteMode::Overwrite,
            &[ours, other],
            marked,
            true,
            &["out/_SUCCESS", ours],
        )
        .await;
    }

    #[tokio::test]
    async fn an_overwrite_removes_what_was_there_and_an_append_does_not() {
        let store = Arc::new(InMemory::new());
        for (name, mode) in [
            ("a", WriteMode::Error),
            ("b", WriteMode::Append),
            ("c", WriteMode::Overwrite),
        ] {
            let staging = staging(&store);
            write(&staging, name, 1).await;
            if name == "c" {
                assert_eq!(
                    names(store.as_ref()).await,
                    ["out/_SUCCESS", "out/a", "out/b"]
                );
            }
            staging.publish(mode).await.unwrap();
        }
        assert_eq!(names(store.as_ref()).await, ["out/_SUCCESS", "out/c"]);

        let late = staging(&store);
        write(&late, "d", 1).await;
        let conflict = late.publish(WriteMode::Error).await;
        assert!(matches!(conflict, Err(Error::OutputConflict { .. })));
        assert_eq!(names(store.as_ref()).await, ["out/_SUCCESS", "out/c"]);
    }
}
