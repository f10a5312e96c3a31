//! The host target: kernels run in this process, compiled by the system's C++
//! compiler. For tests.
//!
//! A stream is nothing but a number, and every call is done when it returns. New
//! memory is filled with 0xCD, so that outputs that nothing wrote show.

use std::alloc::Layout;
use std::cell::UnsafeCell;
use std::collections::HashMap;
use std::ffi::OsString;
use std::fmt;
use std::mem::MaybeUninit;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::Instant;

use super::{
    ALIGNMENT, DeviceInfo, DevicePtr, EventId, Gpu, Kernel, KernelHandle, KernelResources,
    LaunchShape, Meter, Module, PADDING, STREAM_PAGE_BYTES, StreamId, Target,
};
use crate::error::{CompileError, Error, Missing, OutOfMemory, Result};
use crate::jit::{CompiledImage, Header, Source};

/// What new memory is filled with.
const POISON: u8 = 0xCD;

/// As much as a Hopper GPU gives a block.
const MAX_SHARED_BYTES: u32 = 227 << 10;

/// How the host target behaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HostOptions {
    /// How much device memory it pretends to have.
    pub memory_bytes: usize,
    /// How much page-locked memory it pretends to allow.
    pub pinned_bytes: usize,
    /// Whether blocks have as many threads as they are asked for, in warps of 32 lanes, as a
    /// GPU's: for tests of what lanes do together. Otherwise a block is one thread, which is
    /// many times as fast.
    pub warps: bool,
}

impl Default for HostOptions {
    /// 4 GiB of each, one thread a block.
    fn default() -> HostOptions {
        HostOptions {
            memory_bytes: 4 << 30,
            pinned_bytes: 4 << 30,
            warps: false,
        }
    }
}

/// Opens a host target. It compiles nothing yet, so it works without a compiler.
pub fn open_host(options: HostOptions) -> Arc<dyn Gpu> {
    let info = DeviceInfo {
        target: Target::Host,
        instance: super::next_instance(),
        ordinal: 0,
        name: "host".into(),
        arch: "host".into(),
        memory_bytes: options.memory_bytes,
        multiprocessors: 1,
        warp_lanes: if options.warps { 32 } else { 1 },
        max_block_threads: if options.warps { 1024 } else { 1 },
        max_shared_bytes_per_block: MAX_SHARED_BYTES as usize,
        l2_bytes: 1 << 20,
        bandwidth_bytes_per_s: None,
        driver_version: None,
        uuid: None,
        pci_bus_id: None,
    };
    Arc::new(Host {
        info,
        meter: Meter::new(options.memory_bytes),
        memory: Arena::new("device memory", options.memory_bytes),
        pinned: Arena::new("pinned memory", options.pinned_bytes),
        events: Mutex::default(),
        pages: Mutex::default(),
        next_id: AtomicU64::new(1),
        compiler: OnceLock::new(),
    })
}

struct Host {
    info: DeviceInfo,
    meter: Meter,
    memory: Arena,
    pinned: Arena,
    /// When each live event was recorded.
    events: Mutex<HashMap<u64, Option<Instant>>>,
    /// The page of each live stream.
    pages: Mutex<HashMap<u64, Box<Page>>>,
    next_id: AtomicU64,
    compiler: OnceLock<Compiler>,
}

/// As many words as a stream's page has, so that it is aligned for them.
type Page = UnsafeCell<[u64; STREAM_PAGE_BYTES / 8]>;

impl fmt::Debug for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Host({} of {} bytes used)",
            self.memory.used.load(Ordering::Relaxed),
            self.memory.limit
        )
    }
}

/// Memory with a limit.
struct Arena {
    what: &'static str,
    limit: usize,
    used: AtomicUsize,
}

impl Arena {
    fn new(what: &'static str, limit: usize) -> Arena {
        Arena {
            what,
            limit,
            used: AtomicUsize::new(0),
        }
    }

    fn layout(bytes: usize, align: usize) -> Option<Layout> {
        Layout::from_size_align(bytes.checked_add(PADDING)?, align).ok()
    }

    fn allocate(&self, bytes: usize, align: usize) -> Result<*mut u8> {
        let refuse = |used: usize| {
            let free = self.limit.saturating_sub(used);
            Err(OutOfMemory {
                what: self.what,
                requested: bytes,
                free,
                limit: self.limit,
            }
            .into())
        };
        let within_limit = |used: usize| used.checked_add(bytes).filter(|all| *all <= self.limit);
        if let Err(used) =
            self.used
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, within_limit)
        {
            return refuse(used);
        }
        let ptr = match Arena::layout(bytes, align) {
            // SAFETY: PADDING makes the size more than zero.
            Some(layout) => unsafe { std::alloc::alloc(layout) },
            None => std::ptr::null_mut(),
        };
        if ptr.is_null() {
            return refuse(self.used.fetch_sub(bytes, Ordering::Relaxed) - bytes);
        }
        // SAFETY: just allocated with that size.
        unsafe { ptr.write_bytes(POISON, bytes + PADDING) };
        Ok(ptr)
    }

    /// # Safety
    /// `ptr` is from `allocate` with the same `bytes` and `align`.
    unsafe fn free(&self, ptr: *mut u8, bytes: usize, align: usize) {
        let layout = Arena::layout(bytes, align).expect("it was allocated with this layout");
        // SAFETY: the allocation has so many bytes, all written when it was made.
        let padding = unsafe { std::slice::from_raw_parts(ptr.add(bytes), PADDING) };
        let is_untouched = padding.iter().all(|byte| *byte == POISON);
        // A kernel may read behind the end, but nothing may write there.
        assert!(
            is_untouched || std::thread::panicking(),
            "a write past the end of {bytes} bytes of {} memory",
            self.what
        );
        // SAFETY: passed on to the caller.
        unsafe { std::alloc::dealloc(ptr, layout) };
        self.used.fetch_sub(bytes, Ordering::Relaxed);
    }
}

const PINNED_ALIGNMENT: usize = 4096;

fn host_ptr(ptr: DevicePtr) -> *mut u8 {
    std::ptr::with_exposed_provenance_mut(ptr.0 as usize)
}

impl Host {
    fn lock_pages(&self) -> MutexGuard<'_, HashMap<u64, Box<Page>>> {
        self.pages.lock().unwrap_or_else(|e| e.into_inner())
    }
}

impl Gpu for Host {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn is_healthy(&self) -> bool {
        true
    }

    fn meter(&self) -> &Meter {
        &self.meter
    }

    fn free_bytes(&self) -> Result<usize> {
        Ok(self
            .memory
            .limit
            .saturating_sub(self.memory.used.load(Ordering::Relaxed)))
    }

    fn allocate(&self, bytes: usize) -> Result<DevicePtr> {
        Ok(DevicePtr(
            self.memory.allocate(bytes, ALIGNMENT)?.expose_provenance() as u64,
        ))
    }

    unsafe fn free(&self, ptr: DevicePtr, bytes: usize) {
        // SAFETY: passed on to the caller; nothing is ever under way here.
        unsafe { self.memory.free(host_ptr(ptr), bytes, ALIGNMENT) }
    }

    fn trim(&self) -> Result<()> {
        Ok(())
    }

    fn allocate_pinned(&self, bytes: usize) -> Result<*mut u8> {
        self.pinned.allocate(bytes, PINNED_ALIGNMENT)
    }

    unsafe fn free_pinned(&self, ptr: *mut u8, bytes: usize) {
        // SAFETY: passed on to the caller.
        unsafe { self.pinned.free(ptr, bytes, PINNED_ALIGNMENT) }
    }

    fn create_stream(&self) -> Result<StreamId> {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let page = Box::new(UnsafeCell::new([0; STREAM_PAGE_BYTES / 8]));
        self.lock_pages().insert(id, page);
        Ok(StreamId(id))
    }

    unsafe fn destroy_stream(&self, stream: StreamId) {
        self.lock_pages().remove(&stream.0);
    }

    fn stream_page(&self, stream: StreamId) -> Result<*mut u8> {
        let pages = self.lock_pages();
        let page = pages.get(&stream.0).map(|page| page.get().cast());
        page.ok_or_else(|| Error::Internal("a stream that this device does not have".into()))
    }

    fn synchronize(&self, _stream: StreamId) -> Result<()> {
        Ok(())
    }

    fn is_idle(&self, _stream: StreamId) -> Result<bool> {
        Ok(true)
    }

    unsafe fn memset(
        &self,
        _stream: StreamId,
        dst: DevicePtr,
        value: u8,
        bytes: usize,
    ) -> Result<()> {
        // SAFETY: passed on to the caller.
        unsafe { host_ptr(dst).write_bytes(value, bytes) };
        Ok(())
    }

    unsafe fn copy_to_device(
        &self,
        _stream: StreamId,
        dst: DevicePtr,
        src: *const u8,
        bytes: usize,
    ) -> Result<()> {
        // SAFETY: passed on to the caller; device and host allocations are distinct.
        unsafe { host_ptr(dst).copy_from_nonoverlapping(src, bytes) };
        Ok(())
    }

    unsafe fn copy_to_host(
        &self,
        _stream: StreamId,
        dst: *mut u8,
        src: DevicePtr,
        bytes: usize,
    ) -> Result<()> {
        // SAFETY: as above.
        unsafe { dst.copy_from_nonoverlapping(host_ptr(src), bytes) };
        Ok(())
    }

    unsafe fn copy_on_device(
        &self,
        _stream: StreamId,
        dst: DevicePtr,
        src: DevicePtr,
        bytes: usize,
    ) -> Result<()> {
        // SAFETY: as above; the caller sees to it that the ranges do not overlap.
        unsafe { host_ptr(dst).copy_from_nonoverlapping(host_ptr(src), bytes) };
        Ok(())
    }

    fn create_event(&self, _timing: bool) -> Result<EventId> {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        self.lock_events().insert(id, None);
        Ok(EventId(id))
    }

    unsafe fn destroy_event(&self, event: EventId) {
        self.lock_events().remove(&event.0);
    }

    fn record(&self, event: EventId, _stream: StreamId) -> Result<()> {
        self.lock_events().insert(event.0, Some(Instant::now()));
        Ok(())
    }

    fn wait_for(&self, _event: EventId) -> Result<()> {
        Ok(())
    }

    fn has_passed(&self, _event: EventId) -> Result<bool> {
        Ok(true)
    }

    fn stream_waits(&self, _stream: StreamId, _event: EventId) -> Result<()> {
        Ok(())
    }

    fn elapsed_ms(&self, from: EventId, to: EventId) -> Result<f32> {
        let events = self.lock_events();
        let at = |event: EventId| {
            let recorded = events.get(&event.0).copied().flatten();
            recorded.ok_or_else(|| {
                Error::Internal("elapsed time of an event that was not recorded".into())
            })
        };
        Ok(at(to)?.saturating_duration_since(at(from)?).as_secs_f32() * 1e3)
    }

    fn compiler(&self) -> Result<String> {
        let identity = self.find_compiler()?.identity();
        Ok(match self.has_warps() {
            true => format!("{identity} {WARPS_OPTION}"),
            false => identity,
        })
    }

    fn compile(&self, source: &Source, headers: &[Header]) -> Result<CompiledImage> {
        let option = self.has_warps().then_some(WARPS_OPTION);
        self.find_compiler()?.compile(source, headers, option)
    }

    fn load(&self, image: &CompiledImage) -> Result<Arc<dyn Module>> {
        let dir = tempfile::tempdir().map_err(Error::io("make a folder for a kernel library"))?;
        let file = dir.path().join("kernel.so");
        std::fs::write(&file, &image.bytes).map_err(Error::io("write a kernel library"))?;
        // SAFETY: the library is one that this target compiled: it has no
        // initialisers beyond zeroed statics. Once open, its file may go.
        let library = unsafe { libloading::Library::new(&file) }.map_err(|e| Error::Io {
            what: "load a kernel library".into(),
            source: std::io::Error::other(e),
        })?;
        Ok(Arc::new(HostModule { library }))
    }

    fn blocks_per_multiprocessor(
        &self,
        _kernel: &Kernel,
        _block: u32,
        _shared_bytes: u32,
    ) -> Result<u32> {
        Ok(1)
    }

    unsafe fn launch(
        &self,
        _stream: StreamId,
        kernel: &Kernel,
        shape: LaunchShape,
        params: &[MaybeUninit<u8>],
    ) -> Result<()> {
        // The struct may need more alignment than the caller's bytes have.
        let mut aligned = Parameters([MaybeUninit::uninit(); super::MAX_PARAMETER_BYTES]);
        aligned.0[..params.len()].copy_from_slice(params);
        // SAFETY: `raw` is a function that WL_KERNEL defined, of this type; its
        // module is alive while `kernel` is. The rest is the caller's promise.
        unsafe {
            let entry: Entry = std::mem::transmute::<usize, Entry>(kernel.handle().raw as usize);
            let threads = if self.has_warps() { shape.block } else { 1 };
            entry(
                aligned.0.as_ptr().cast(),
                shape.grid,
                threads,
                shape.shared_bytes,
            );
        }
        Ok(())
    }
}

/// What WL_KERNEL defines on the host.
type Entry = unsafe extern "C" fn(params: *const u8, grid: u32, block: u32, shared_bytes: u32);

#[repr(C, align(64))]
struct Parameters([MaybeUninit<u8>; super::MAX_PARAMETER_BYTES]);

#[derive(Debug)]
struct HostModule {
    library: libloading::Library,
}

impl Module for HostModule {
    fn kernel(&self, name: &str) -> Result<KernelHandle> {
        // SAFETY: only the address is taken here; `launch` gives it its type.
        let found = unsafe { self.library.get::<Entry>(name) };
        let entry = found.map_err(|_| Error::NoSuchKernel {
            name: name.to_owned(),
        })?;
        // SAFETY: WL_KERNEL defines it as a u32 beside the kernel.
        let bytes = unsafe {
            self.library
                .get::<*const u32>(format!("{name}_parameter_bytes"))
        };
        let bytes = bytes.map_err(|_| Error::NoSuchKernel {
            name: name.to_owned(),
        })?;
        let resources = KernelResources {
            max_dynamic_shared_bytes: MAX_SHARED_BYTES,
            // Ignored: one thread runs. Callers may ask for as many as on a GPU.
            max_block_threads: 1024,
            // SAFETY: as above.
            parameter_bytes: unsafe { **bytes },
            ..Default::default()
        };
        Ok(KernelHandle {
            raw: *entry as usize as u64,
            resources,
        })
    }
}

impl Host {
    fn lock_events(&self) -> std::sync::MutexGuard<'_, HashMap<u64, Option<Instant>>> {
        self.events.lock().unwrap_or_else(|e| e.into_inner())
    }

    fn has_warps(&self) -> bool {
        self.info.warp_lanes > 1
    }

    fn find_compiler(&self) -> Result<&Compiler> {
        if let Some(compiler) = self.compiler.get() {
            return Ok(compiler);
        }
        let compiler = Compiler::find()?;
        Ok(self.compiler.get_or_init(|| compiler))
    }
}

/// The system's C++ compiler.
struct Compiler {
    program: OsString,
    version: String,
}

const OPTIONS: &[&str] = &[
    "-std=c++17",
    "-O1",
    "-shared",
    "-fPIC",
    "-fno-exceptions",
    "-fno-strict-aliasing",
    "-fwrapv",
    // One rounding an operation, as NVRTC is told too.
    "-ffp-contract=off",
    "-fvisibility=hidden",
    "-x",
    "c++",
];

/// Makes the prelude take `host_warps.h`.
const WARPS_OPTION: &str = "-DWL_WARPS";

impl Compiler {
    fn find() -> Result<Compiler> {
        let candidates: Vec<OsString> = match std::env::var_os("CXX") {
            Some(program) if !program.is_empty() => vec![program],
            _ => ["c++", "g++", "clang++"].map(OsString::from).into(),
        };
        let mut looked_in = Vec::new();
        for program in candidates {
            match Command::new(&program).arg("--version").output() {
                Ok(output) if output.status.success() => {
                    let text = String::from_utf8_lossy(&output.stdout);
                    let version = text.lines().next().unwrap_or_default().to_owned();
                    return Ok(Compiler { program, version });
                }
                Ok(output) => {
                    looked_in.push(format!("{}: {}", program.to_string_lossy(), output.status))
                }
                Err(error) => looked_in.push(format!("{}: {error}", program.to_string_lossy())),
            }
        }
        let fix = "Install g++ or clang++, or name a C++17 compiler in CXX.".into();
        Err(Missing {
            what: "a C++ compiler, which the host target needs".into(),
            looked_in,
            fix,
        }
        .into())
    }

    fn identity(&self) -> String {
        format!(
            "{} ({}) {}",
            self.program.to_string_lossy(),
            self.version,
            OPTIONS.join(" ")
        )
    }

    fn compile(
        &self,
        source: &Source,
        headers: &[Header],
        option: Option<&str>,
    ) -> Result<CompiledImage> {
        let dir = tempfile::tempdir().map_err(Error::io("make a folder to compile a kernel in"))?;
        let write = |name: &str, text: &str| -> Result<PathBuf> {
            let file = dir.path().join(name);
            let parent = file.parent().expect("it is below the folder");
            std::fs::create_dir_all(parent)
                .map_err(Error::io(format!("make the folder of {name}")))?;
            std::fs::write(&file, text).map_err(Error::io(format!("write {name}")))?;
            Ok(file)
        };
        for header in headers {
            write(&format!("include/{}", header.name), header.text)?;
        }
        let text = write("kernel.cpp", &source.full_text())?;
        let image = dir.path().join("kernel.so");
        let output = Command::new(&self.program)
            .args(OPTIONS)
            .args(option)
            .args(source.define_options())
            .arg("-I")
            .arg(dir.path().join("include"))
            .arg(&text)
            .arg("-o")
            .arg(&image)
            .output()
            .map_err(Error::io(format!("run {}", self.program.to_string_lossy())))?;
        let folder = format!("{}/", dir.path().display());
        let log = String::from_utf8_lossy(&output.stderr).replace(&folder, "");
        if !output.status.success() {
            return Err(CompileError {
                kernel: source.name.clone(),
                compiler: self.version.clone(),
                log,
                source_file: None,
                log_file: None,
            }
            .into());
        }
        let bytes = std::fs::read(&image).map_err(Error::io("read a compiled kernel library"))?;
        Ok(CompiledImage { bytes, log })
    }
}
