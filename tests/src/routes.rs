//! Sessions on the CPU and on the GPU path.

use std::path::Path;
use std::sync::{Arc, OnceLock};

use engine::exec::{Device, DeviceLimits};
use engine::session::{Session, StageRun};
use engine::settings::{FallbackPolicy, Settings, Stage};
use engine::{Cancel, Result};
use kernels::gpu::{HostOptions, open_cuda, open_host};
use kernels::jit::Jit;

/// Where a session runs its queries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Route {
    /// DataFusion with the guards.
    Cpu,
    /// The GPU, and the CPU for what the GPU path refuses.
    Gpu,
    /// The GPU; what the GPU path refuses is an error.
    GpuOnly,
    /// As [`Route::Gpu`], everything in slices, though it would fit at once.
    SlicedGpu,
    /// As [`Route::Gpu`], with so little device memory that much does not fit.
    TightGpu,
}

impl Route {
    /// A session without tables. `cache` keeps compiled kernels.
    pub fn session(self, cache: &Path) -> Session {
        let settings = Settings {
            compute_threads: 3,
            batch_size: 1000,
            cache_dir: cache.to_path_buf(),
            preview_rows: usize::MAX,
            fallback: match self {
                Route::GpuOnly => FallbackPolicy::Fail,
                Route::Cpu | Route::Gpu | Route::SlicedGpu | Route::TightGpu => FallbackPolicy::Cpu,
            },
            ..Settings::default()
        };
        match self {
            Route::Cpu => Session::new(settings),
            Route::Gpu | Route::GpuOnly => Session::with_device(settings, device(cache)),
            Route::SlicedGpu => Session::with_device(settings, sliced(cache)),
            Route::TightGpu => Session::with_device(settings, tight(cache)),
        }
        .expect("a session")
    }
}

/// One device for all sessions of a process, so that they share loaded kernels.
fn device(cache: &Path) -> Device {
    static DEVICE: OnceLock<Device> = OnceLock::new();
    DEVICE
        .get_or_init(|| open(cache, DeviceLimits::default()))
        .clone()
}

/// A device of which little memory may be used. It is another one: a limit is a device's.
fn tight(cache: &Path) -> Device {
    static DEVICE: OnceLock<Device> = OnceLock::new();
    let limits = DeviceLimits {
        memory_bytes: TIGHT_BYTES,
        ..DeviceLimits::default()
    };
    DEVICE.get_or_init(|| open(cache, limits)).clone()
}

/// A device on which everything runs in slices.
fn sliced(cache: &Path) -> Device {
    static DEVICE: OnceLock<Device> = OnceLock::new();
    let limits = DeviceLimits {
        least_slices: 2,
        ..DeviceLimits::default()
    };
    DEVICE.get_or_init(|| open(cache, limits)).clone()
}

/// Device memory of [`Route::TightGpu`].
const TIGHT_BYTES: usize = 40 << 10;

/// The host target, or with `WARPLINE_TEST_GPU=N` the GPU of that number.
fn open(cache: &Path, limits: DeviceLimits) -> Device {
    let gpu = match std::env::var("WARPLINE_TEST_GPU") {
        Ok(ordinal) => open_cuda(ordinal.parse().expect("a number")).expect("a GPU"),
        Err(_) => open_host(HostOptions::default()),
    };
    let jit = Arc::new(Jit::new(Some(cache.join("kernels"))));
    Device::new(gpu, jit, limits)
}

/// Joins spread both sides by their keys, as they do for tables that are large, instead
/// of gathering the smaller one.
pub fn spread_joins(session: &Session) {
    let state = session.context().state_ref();
    let mut state = state.write();
    let options = &mut state.config_mut().options_mut().optimizer;
    options.hash_join_single_partition_threshold = 0;
    options.hash_join_single_partition_threshold_rows = 0;
}

/// Runs one query.
pub async fn run(session: &Session, sql: &str) -> Result<StageRun> {
    let stage = Stage::new("answer", sql);
    session.run_stage(&stage, &|_| {}, &Cancel::new()).await
}
