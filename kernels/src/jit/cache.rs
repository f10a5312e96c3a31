//! Compiled and loaded kernels, kept in memory and on disk.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use sha2::{Digest, Sha256};

use super::key::header_lines;
use super::{CompiledImage, Key, Source, headers};
use crate::error::{CompileError, Error, Result};
use crate::gpu::{Gpu, Kernel, Module};

/// The most modules kept in memory when nobody uses them.
const MAX_KEPT: usize = 1024;

/// Compiles kernels once. Shared by all threads that plan or run.
///
/// Several threads compile different texts at once; those that ask for the same
/// text wait for the first.
pub struct Jit {
    dir: Option<PathBuf>,
    dir_failed: AtomicBool,
    state: Mutex<State>,
    finished: Condvar,
}

#[derive(Default)]
struct State {
    /// By device and key: a module belongs to one device.
    loaded: HashMap<(u64, Key), Entry>,
    building: HashSet<Key>,
    clock: u64,
    stats: JitStats,
    /// Device time by kernel since it was last asked for.
    times: HashMap<String, KernelTime>,
}

/// How long the launches of one kernel took on the device.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct KernelTime {
    /// Its C name.
    pub kernel: String,
    /// How often it was launched.
    pub n_launches: u64,
    /// By device events, milliseconds.
    pub device_ms: f64,
}

struct Entry {
    loaded: Arc<Loaded>,
    last_used: u64,
}

/// Where a loaded kernel's image came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// It was compiled now.
    Compiled,
    /// The disk cache had it.
    Disk,
    /// It was already loaded into another device of the same kind.
    Memory,
}

/// A text compiled and loaded into one device.
#[derive(Debug)]
pub struct Loaded {
    key: Key,
    source: Source,
    module: Arc<dyn Module>,
    /// Kernels that were looked up: a driver takes several calls to describe one.
    kernels: Mutex<Vec<Kernel>>,
    image: Arc<CompiledImage>,
    origin: Origin,
    ms: f64,
}

impl Loaded {
    /// Looks a kernel up by its C name.
    pub fn kernel(&self, name: &str) -> Result<Kernel> {
        let mut kernels = self.kernels.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = kernels.iter().find(|kernel| kernel.name() == name) {
            return Ok(known.clone());
        }
        let kernel = Kernel::find(&self.module, name)?;
        kernels.push(kernel.clone());
        Ok(kernel)
    }

    /// Its cache key.
    pub fn key(&self) -> Key {
        self.key
    }

    /// Its text.
    pub fn source(&self) -> &Source {
        &self.source
    }

    /// The compiled image, with the compiler's log.
    pub fn image(&self) -> &CompiledImage {
        &self.image
    }

    /// Where the image came from when it was loaded.
    pub fn origin(&self) -> Origin {
        self.origin
    }

    /// Milliseconds to get the image (compile it, or read it) and load it.
    pub fn ms(&self) -> f64 {
        self.ms
    }
}

/// What the cache has done since it was made.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct JitStats {
    /// Texts compiled.
    pub n_compiled: u64,
    /// Requests answered by what was loaded.
    pub n_memory_hits: u64,
    /// Requests answered by the disk cache.
    pub n_disk_hits: u64,
    /// Milliseconds in the compiler, over all threads.
    pub compile_ms: f64,
    /// Milliseconds loading images into devices, over all threads.
    pub load_ms: f64,
}

impl Jit {
    /// A cache, on disk too if a folder is given. A folder that can't be used costs
    /// a warning, not an error.
    pub fn new(cache_dir: Option<PathBuf>) -> Jit {
        Jit {
            dir: cache_dir,
            dir_failed: AtomicBool::new(false),
            state: Mutex::default(),
            finished: Condvar::new(),
        }
    }

    /// The text, compiled for and loaded into `gpu`.
    pub fn get(&self, gpu: &Arc<dyn Gpu>, source: &Source) -> Result<Arc<Loaded>> {
        let info = gpu.info();
        let key = self.key(gpu, source)?;
        let image = match self.claim(info.instance, key) {
            Claim::Loaded(loaded) => return Ok(loaded),
            Claim::Image(image) => Some(image),
            Claim::Build => None,
        };
        let _building = Building { jit: self, key };
        let start = Instant::now();
        let (image, origin) = match image {
            Some(image) => (image, Origin::Memory),
            None => self.image(gpu, source, key)?,
        };
        let load_start = Instant::now();
        let module = gpu.load(&image)?;
        let load_ms = ms_since(load_start);
        let loaded = Arc::new(Loaded {
            key,
            source: source.clone(),
            module,
            kernels: Mutex::default(),
            image,
            origin,
            ms: ms_since(start),
        });
        let mut state = self.lock();
        state.stats.load_ms += load_ms;
        state.keep(info.instance, loaded.clone());
        Ok(loaded)
    }

    /// Notes a launch and its time on the device.
    pub fn note_launch(&self, kernel: &str, device_ms: f64) {
        let mut state = self.lock();
        if !state.times.contains_key(kernel) {
            let new = KernelTime {
                kernel: kernel.to_owned(),
                ..KernelTime::default()
            };
            state.times.insert(kernel.to_owned(), new);
        }
        if let Some(time) = state.times.get_mut(kernel) {
            time.n_launches += 1;
            time.device_ms += device_ms;
        }
    }

    /// What was noted since the last call, the longest first. Runs that share the cache
    /// share this too.
    pub fn take_kernel_times(&self) -> Vec<KernelTime> {
        let times = std::mem::take(&mut self.lock().times);
        let mut times: Vec<KernelTime> = times.into_values().collect();
        times.sort_by(|a, b| b.device_ms.total_cmp(&a.device_ms));
        times
    }

    /// The key that `get` uses.
    pub fn key(&self, gpu: &Arc<dyn Gpu>, source: &Source) -> Result<Key> {
        static HEADER_LINES: LazyLock<String> = LazyLock::new(|| header_lines(headers()));
        Ok(Key::with_headers(
            source,
            &HEADER_LINES,
            &gpu.info().arch,
            &gpu.compiler()?,
        ))
    }

    /// What the cache has done.
    pub fn stats(&self) -> JitStats {
        self.lock().stats
    }

    /// The inputs of the key and the text behind it, readable, from memory or from
    /// the disk cache.
    pub fn dump(&self, key: Key) -> Option<String> {
        let loaded = {
            let state = self.lock();
            state
                .loaded
                .values()
                .find(|entry| entry.loaded.key == key)
                .map(|entry| entry.loaded.clone())
        };
        if let Some(loaded) = loaded {
            return Some(describe(key, &loaded.source));
        }
        std::fs::read_to_string(self.dir.as_ref()?.join(format!("{key}.cu"))).ok()
    }

    /// Everything loaded now, most recently used first.
    pub fn loaded(&self) -> Vec<Arc<Loaded>> {
        let state = self.lock();
        let mut entries: Vec<&Entry> = state.loaded.values().collect();
        entries.sort_by_key(|entry| std::cmp::Reverse(entry.last_used));
        entries.iter().map(|entry| entry.loaded.clone()).collect()
    }

    /// Finds the key loaded, or an image of it, or makes the caller its builder.
    fn claim(&self, instance: u64, key: Key) -> Claim {
        let mut state = self.lock();
        loop {
            if let Some(loaded) = state.touch(instance, key) {
                state.stats.n_memory_hits += 1;
                return Claim::Loaded(loaded);
            }
            if state.building.insert(key) {
                let image = state
                    .loaded
                    .values()
                    .find(|e| e.loaded.key == key)
                    .map(|e| e.loaded.image.clone());
                return image.map_or(Claim::Build, Claim::Image);
            }
            state = self.finished.wait(state).unwrap_or_else(|e| e.into_inner());
        }
    }

    fn image(
        &self,
        gpu: &Arc<dyn Gpu>,
        source: &Source,
        key: Key,
    ) -> Result<(Arc<CompiledImage>, Origin)> {
        if let Some(image) = self.read(key) {
            self.lock().stats.n_disk_hits += 1;
            return Ok((Arc::new(image), Origin::Disk));
        }
        let start = Instant::now();
        let compiled = gpu.compile(source, headers());
        let compile_ms = ms_since(start);
        let mut state = self.lock();
        state.stats.compile_ms += compile_ms;
        state.stats.n_compiled += u64::from(compiled.is_ok());
        drop(state);
        match compiled {
            Ok(image) => {
                tracing::debug!(kernel = source.name, %key, compile_ms, "compiled a kernel");
                self.write(key, source, &image);
                Ok((Arc::new(image), Origin::Compiled))
            }
            Err(Error::Compile(error)) => Err(self.keep_evidence(key, source, *error).into()),
            Err(error) => Err(error),
        }
    }

    /// The image of a file that is whole; anything else is a miss.
    fn read(&self, key: Key) -> Option<CompiledImage> {
        let file = self.dir.as_ref()?.join(format!("{key}.image"));
        let bytes = std::fs::read(&file).ok()?;
        let image = decode(&bytes, key);
        if image.is_none() {
            tracing::warn!(file = %file.display(), "a cached kernel is damaged; it is compiled again");
        }
        image
    }

    fn write(&self, key: Key, source: &Source, image: &CompiledImage) {
        let Some(dir) = &self.dir else { return };
        let written = std::fs::create_dir_all(dir)
            .and_then(|()| {
                write_atomically(dir, &format!("{key}.cu"), describe(key, source).as_bytes())
            })
            .and_then(|()| write_atomically(dir, &format!("{key}.image"), &encode(image, key)));
        if let Err(error) = written
            && !self.dir_failed.swap(true, Ordering::Relaxed)
        {
            tracing::warn!(dir = %dir.display(), %error, "kernels are not cached on disk");
        }
    }

    /// Puts a refused text and the compiler's messages where they can be read.
    fn keep_evidence(&self, key: Key, source: &Source, mut error: CompileError) -> CompileError {
        let in_cache = self.dir.as_ref().map(|dir| dir.join("failed"));
        let dir = in_cache
            .filter(|dir| std::fs::create_dir_all(dir).is_ok())
            .or_else(|| {
                tempfile::Builder::new()
                    .prefix("warpline-failed-")
                    .tempdir()
                    .ok()
                    .map(|dir| dir.keep())
            });
        let Some(dir) = dir else { return error };
        let name = format!("{}_{}", source.name, &key.to_string()[..8]);
        let put = |ending: &str, text: &str| {
            let file = format!("{name}.{ending}");
            write_atomically(&dir, &file, text.as_bytes())
                .ok()
                .map(|()| dir.join(file))
        };
        error.source_file = put("cu", &describe(key, source));
        error.log_file = put("log", &error.log);
        error
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|e| e.into_inner())
    }
}

impl fmt::Debug for Jit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Jit")
            .field("dir", &self.dir)
            .field("stats", &self.stats())
            .finish()
    }
}

enum Claim {
    Loaded(Arc<Loaded>),
    Image(Arc<CompiledImage>),
    Build,
}

/// Marks a key as being built until it is dropped, also by a panic.
struct Building<'a> {
    jit: &'a Jit,
    key: Key,
}

impl Drop for Building<'_> {
    fn drop(&mut self) {
        self.jit.lock().building.remove(&self.key);
        self.jit.finished.notify_all();
    }
}

impl State {
    fn touch(&mut self, instance: u64, key: Key) -> Option<Arc<Loaded>> {
        self.clock += 1;
        let entry = self.loaded.get_mut(&(instance, key))?;
        entry.last_used = self.clock;
        Some(entry.loaded.clone())
    }

    /// Adds a module, and lets go of the one used longest ago if there are many.
    fn keep(&mut self, instance: u64, loaded: Arc<Loaded>) {
        self.clock += 1;
        let last_used = self.clock;
        self.loaded
            .insert((instance, loaded.key), Entry { loaded, last_used });
        if self.loaded.len() > MAX_KEPT
            && let Some(oldest) = self
                .loaded
                .iter()
                .min_by_key(|(_, entry)| entry.last_used)
                .map(|(at, _)| *at)
        {
            self.loaded.remove(&oldest);
        }
    }
}

fn describe(key: Key, source: &Source) -> String {
    let mut out = format!("// {} key {key}\n", source.name);
    for (name, value) in &source.defines {
        out += &format!("// -D{name}={value}\n");
    }
    out + &source.full_text()
}

const MAGIC: &[u8; 8] = b"WLKERN01";
const DIGEST_BYTES: usize = 32;

/// Magic, key, length of the log, log, code, and the SHA-256 of all that.
fn encode(image: &CompiledImage, key: Key) -> Vec<u8> {
    let mut out = Vec::with_capacity(image.bytes.len() + image.log.len() + 160);
    out.extend_from_slice(MAGIC);
    out.extend_from_slice(key.to_string().as_bytes());
    out.extend_from_slice(&(image.log.len() as u64).to_le_bytes());
    out.extend_from_slice(image.log.as_bytes());
    out.extend_from_slice(&image.bytes);
    let digest = Sha256::digest(&out);
    out.extend_from_slice(&digest);
    out
}

fn decode(bytes: &[u8], key: Key) -> Option<CompiledImage> {
    let (body, digest) = bytes.split_at_checked(bytes.len().checked_sub(DIGEST_BYTES)?)?;
    if Sha256::digest(body).as_slice() != digest {
        return None;
    }
    let rest = body
        .strip_prefix(MAGIC)?
        .strip_prefix(key.to_string().as_bytes())?;
    let (log_bytes, rest) = rest.split_first_chunk()?;
    let (log, code) = rest.split_at_checked(u64::from_le_bytes(*log_bytes) as usize)?;
    Some(CompiledImage {
        bytes: code.to_vec(),
        log: String::from_utf8(log.to_vec()).ok()?,
    })
}

/// A reader sees the old file, none, or the whole new one.
fn write_atomically(dir: &Path, name: &str, bytes: &[u8]) -> std::io::Result<()> {
    let mut file = tempfile::NamedTempFile::new_in(dir)?;
    file.write_all(bytes)?;
    file.persist(dir.join(name))?;
    Ok(())
}

fn ms_since(start: Instant) -> f64 {
    start.elapsed().as_secs_f64() * 1e3
}
