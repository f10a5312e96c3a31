//! What every device must do, run on the host target and, where there is one, on a
//! GPU. Without a GPU those tests say that they could not run, or fail if
//! `WARPLINE_REQUIRE_GPU` is set.

mod contract;

use std::sync::Arc;

use kernels::error::Error;
use kernels::gpu::{
    DeviceBuffer, Gpu, HostOptions, PinnedPool, Stream, devices, open_cuda, open_host,
};
use kernels::jit::{Nvrtc, Source, headers};

/// The GPU, if this machine has one that can run kernels.
fn gpu() -> Option<Arc<dyn Gpu>> {
    let report = devices();
    if report.can_run() {
        return Some(open_cuda(0).expect("the report says that device 0 can run"));
    }
    assert!(
        std::env::var_os("WARPLINE_REQUIRE_GPU").is_none(),
        "a GPU is required:\n{report}"
    );
    eprintln!("not run, no GPU here:\n{report}");
    None
}

macro_rules! on_both {
    ($($name:ident),* $(,)?) => {
        mod host {
            $(#[test]
            fn $name() {
                super::contract::$name(&super::open_host(super::HostOptions::default()));
            })*
        }
        mod cuda {
            $(#[test]
            fn $name() {
                if let Some(gpu) = super::gpu() {
                    super::contract::$name(&gpu);
                }
            })*
        }
    };
}

on_both![
    bytes_survive_the_way_there_and_back,
    pinned_copies_keep_their_order,
    memory_dropped_in_use_is_not_handed_out,
    a_kernel_adds_vectors,
    atomics_count_every_thread,
    a_block_reduces_through_shared_memory,
    a_block_may_use_most_of_the_shared_memory,
    static_shared_memory_is_shared_by_the_block,
    warp_functions_agree_with_their_definition,
    a_launch_that_does_not_fit_is_refused,
    an_unknown_kernel_is_an_error,
    events_order_and_time_work,
    several_threads_share_a_device,
    too_much_memory_is_refused_and_the_device_goes_on,
];

#[test]
fn the_text_and_every_header_compile_for_a_gpu() {
    let nvrtc = match Nvrtc::get() {
        Ok(nvrtc) => nvrtc,
        Err(error) => {
            assert!(
                std::env::var_os("WARPLINE_REQUIRE_NVRTC").is_none(),
                "NVRTC is required: {error}"
            );
            eprintln!("not run, no NVRTC here: {error}");
            return;
        }
    };
    let image = nvrtc
        .compile(&Source::new("contract", contract::TEXT), headers(), "sm_90")
        .unwrap();
    let usage = image.usage();
    assert_eq!(usage.len(), 7, "{}", image.log);
    for kernel in usage {
        assert!(
            kernel.registers > 0 && kernel.spill_store_bytes == 0,
            "{kernel:?}"
        );
    }
    // The one that stands for a GPU's intrinsics is not for its compiler.
    let all: String = headers()
        .iter()
        .filter(|h| h.name != "host_warps.h")
        .map(|h| format!("#include \"{}\"\n", h.name))
        .collect();
    nvrtc
        .compile(&Source::new("headers", all), headers(), "sm_90")
        .unwrap();
    let error = nvrtc
        .compile(&Source::new("wrong", "nonsense;"), headers(), "sm_90")
        .unwrap_err();
    assert!(
        matches!(&error, Error::Compile(e) if e.log.contains("nonsense")),
        "{error:?}"
    );
}

#[test]
fn the_host_target_keeps_its_memory_limit() {
    let gpu = open_host(HostOptions {
        memory_bytes: 1000,
        pinned_bytes: 200_000,
        ..HostOptions::default()
    });
    let held = DeviceBuffer::allocate(&gpu, 600).unwrap();
    let error = DeviceBuffer::allocate(&gpu, 500).unwrap_err();
    let refused = error.out_of_memory().expect("an out-of-memory error");
    assert_eq!(
        (refused.requested, refused.free, refused.limit),
        (500, 400, 1000)
    );
    assert_eq!(gpu.free_bytes().unwrap(), 400);
    drop(held);
    DeviceBuffer::allocate(&gpu, 1000).unwrap();

    let pool = PinnedPool::new(&gpu, 1 << 20);
    let _held = pool.take(150_000).unwrap();
    assert!(pool.take(150_000).unwrap_err().out_of_memory().is_some());
}

#[test]
fn unwritten_host_memory_shows() {
    let gpu = open_host(HostOptions::default());
    let stream = Stream::new(&gpu).unwrap();
    let buffer = DeviceBuffer::for_values::<u32>(&gpu, 3).unwrap();
    assert_eq!(buffer.to_vec::<u32>(&stream).unwrap(), [0xCDCD_CDCD; 3]);
}

#[test]
fn a_device_that_is_not_there_is_an_error() {
    match open_cuda(10_000) {
        Err(
            Error::NoSuchDevice {
                ordinal: 10_000, ..
            }
            | Error::Missing(_)
            | Error::Driver(_),
        ) => {}
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_pinned_pool_reuses_and_keeps_its_limit() {
    let gpu = open_host(HostOptions::default());
    let pool = PinnedPool::new(&gpu, 1 << 20);
    let first = pool.take(100_000).unwrap();
    let address = first.as_ptr();
    drop(first);
    let again = pool.take(99_000).unwrap();
    assert_eq!(again.as_ptr(), address);
    assert_eq!(again.bytes(), 99_000);
    assert!(pool.take(1 << 20).unwrap_err().out_of_memory().is_some());
    drop(again);
    let whole = pool.take(1 << 20).unwrap(); // what was kept makes room
    let stats = pool.stats();
    assert_eq!((stats.used_bytes, stats.kept_bytes), (1 << 20, 0));
    assert_eq!((stats.n_allocated, stats.n_reused), (2, 1));
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            pool.take_or_wait(5, std::time::Duration::from_secs(60))
                .map(drop)
        });
        drop(whole);
        waiter.join().unwrap().unwrap();
    });
}
