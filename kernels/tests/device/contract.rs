//! The tests themselves; each takes a device.

use std::sync::Arc;

use kernels::error::Error;
use kernels::gpu::{
    DeviceBuffer, Event, Gpu, Kernel, LaunchShape, PinnedBuffer, PinnedPool, Stream, Target,
};
use kernels::jit::{Source, headers};

/// Every parameter struct here: `Params` of the text below.
#[repr(C)]
#[derive(Clone, Copy)]
struct Params {
    a: u64,
    b: u64,
    out: u64,
    n: u64,
}

pub const TEXT: &str = r#"
struct Params { const i64* a; const i64* b; i64* out; u64 n; };

WL_KERNEL(add, Params, p) {
  for (u64 i = global_thread_index(); i < p.n; i += grid_threads()) p.out[i] = p.a[i] + p.b[i];
}

struct Counters { u32 n32; i32 min32; u64 n64; u64 max64; f64 sum; u64 any; u64 cas; i64 min; f32 sum32; u32 n_won; };
struct Count { u64 a; u64 b; Counters* out; u64 n; };
WL_KERNEL(count, Count, p) {
  Counters& c = *p.out;
  for (u64 i = global_thread_index(); i < p.n; i += grid_threads()) {
    atomic_add_u32(&c.n32, 1);
    atomic_add_u64(&c.n64, 2);
    atomic_max_u64(&c.max64, i);
    atomic_min_i64(&c.min, -i64(i));
    atomic_min_i32(&c.min32, -i32(i));
    atomic_add_f64(&c.sum, 0.5);
    atomic_add_f32(&c.sum32, 0.5f);
    atomic_or_u64(&c.any, u64(1) << (i % 64));
    if (atomic_cas_u64(&c.cas, 0, i + 1) == 0) atomic_add_u32(&c.n_won, 1);
  }
}

// One sum a block, over a tile in dynamic shared memory. Thread 0 has the result.
WL_KERNEL(block_sums, Params, p) {
  i64* tile = shared_memory<i64>();
  i64 mine = 0;
  for (u64 i = global_thread_index(); i < p.n; i += grid_threads()) mine += p.a[i];
  tile[thread_index()] = mine;
  wl_barrier();
  for (u32 half = block_threads() / 2; half > 0; half /= 2) {
    if (thread_index() < half) tile[thread_index()] += tile[thread_index() + half];
    wl_barrier();
  }
  if (thread_index() == 0) p.out[block_index()] = tile[0];
}

// Writes the last word of `n` bytes of dynamic shared memory and reads it back.
WL_KERNEL(reach, Params, p) {
  u32* memory = shared_memory<u32>();
  if (thread_index() == 0) memory[p.n / 4 - 1] = block_index() + 7;
  wl_barrier();
  if (thread_index() == block_threads() - 1) p.out[block_index()] = memory[p.n / 4 - 1];
}

WL_KERNEL(reversed, Params, p) {
  WL_SHARED i64 tile[WL_BLOCK_THREADS];
  const u64 base = u64(block_index()) * block_threads();
  tile[thread_index()] = p.a[base + thread_index()];
  wl_barrier();
  p.out[base + thread_index()] = tile[block_threads() - 1 - thread_index()];
}

struct Wide { i64 low; i64 high; };
WL_KERNEL(warps, Params, p) {
  const u32 lane = lane_index();
  bool good = true;
  const u32 odd = ballot(lane % 2 == 1);
  for (u32 i = 0; i < WARP_LANES; ++i) good = good && ((odd >> i & 1) == i % 2);
  good = good && any_lane(lane == WARP_LANES - 1) && all_lanes(true) && (all_lanes(lane != 0) == false);
  good = good && shuffle(i64(lane) - 5, 0) == -5;
  good = good && shuffle(u8(lane), WARP_LANES - 1) == WARP_LANES - 1;
  good = good && shuffle(i16(-3), 0) == -3;
  const Wide wide = shuffle_down(Wide{i64(lane), -i64(lane)}, 1);
  const i64 above = lane + 1 < WARP_LANES ? lane + 1 : lane;
  good = good && wide.low == above && wide.high == -above;
  const i128 big = shuffle_up((i128(1) << 100) + lane, 1);
  good = good && big == (i128(1) << 100) + (lane > 0 ? lane - 1 : 0);
  const f64 other = shuffle_xor(f64(lane), WARP_LANES / 2);
  good = good && other == f64(lane ^ (WARP_LANES / 2));
  good = good && popc(match_any(u64(lane / 2))) == (WARP_LANES > 1 ? 2 : 1);
  good = good && popc(u32(0xF0)) == 4 && popc(~u64(0)) == 64 && clz(u32(0)) == 32 && clz(u32(1)) == 31;
  good = good && clz(u64(1)) == 63 && clz(u64(0)) == 64 && ffs(u32(0)) == 0 && ffs(u64(8)) == 4;
  good = good && umul_hi(~u64(0), u64(2)) == 1 && umul_hi(~u32(0), u32(2)) == 1;
  good = good && barrier_any(thread_index() == 0) && barrier_count(true) == block_threads();
  good = good && floor_of(-1.5) == -2 && round_of(-1.5f) == -2 && trunc_of(1.7) == 1 && sqrt_of(9.0) == 3;
  p.out[global_thread_index()] = good;
}

// Waits, so that what comes after it in the stream comes late.
WL_KERNEL(slow, Params, p) {
  u64 x = p.n;
  for (u64 i = 0; i < p.n; ++i) x = x * 6364136223846793005ull + 1442695040888963407ull;
  p.out[0] = i64(x);
}
"#;

fn module(gpu: &Arc<dyn Gpu>) -> impl Fn(&str) -> Kernel {
    let image = gpu
        .compile(&Source::new("contract", TEXT), headers())
        .unwrap();
    let module = gpu.load(&image).unwrap();
    move |name| Kernel::find(&module, name).unwrap()
}

fn block(gpu: &Arc<dyn Gpu>) -> u32 {
    match gpu.info().target {
        Target::Cuda => 256,
        Target::Host => 1,
    }
}

fn numbers(n: usize, factor: i64) -> Vec<i64> {
    (0..n as i64).map(|i| i * factor - 17).collect()
}

/// Runs a kernel over `a` and `b` into `n_out` values.
fn check_run(
    gpu: &Arc<dyn Gpu>,
    kernel: &Kernel,
    shape: LaunchShape,
    a: &[i64],
    b: &[i64],
    n: u64,
    n_out: usize,
) -> Vec<i64> {
    let stream = Stream::new(gpu).unwrap();
    let a = DeviceBuffer::from_slice(gpu, &stream, a).unwrap();
    let b = DeviceBuffer::from_slice(gpu, &stream, b).unwrap();
    let out = DeviceBuffer::filled(gpu, &stream, n_out * 8, 0xCD).unwrap();
    let params = Params {
        a: a.ptr().0,
        b: b.ptr().0,
        out: out.ptr().0,
        n,
    };
    // SAFETY: Params is the struct that the kernel takes; the buffers hold what it
    // reads and writes.
    unsafe { stream.launch(kernel, shape, &params) }.unwrap();
    out.to_vec(&stream).unwrap()
}

pub fn bytes_survive_the_way_there_and_back(gpu: &Arc<dyn Gpu>) {
    let stream = Stream::new(gpu).unwrap();
    for n in [0, 1, 31, 32, 33, 100_003] {
        let values = numbers(n, 3);
        let buffer = DeviceBuffer::from_slice(gpu, &stream, &values).unwrap();
        assert_eq!(buffer.to_vec::<i64>(&stream).unwrap(), values);
        assert_eq!(buffer.ptr().0 % 256, 0);
    }
    let buffer = DeviceBuffer::zeroed(gpu, &stream, 64).unwrap();
    buffer.write(&stream, 16, &[u128::MAX]).unwrap();
    buffer.fill_range(&stream, 20..22, 7).unwrap();
    let copy = DeviceBuffer::filled(gpu, &stream, 32, 1).unwrap();
    copy.copy_from(&stream, 8, &buffer, 16..32).unwrap();
    let expected = [
        0x0101_0101_0101_0101,
        0xFFFF_0707_FFFF_FFFF,
        u64::MAX,
        0x0101_0101_0101_0101,
    ];
    assert_eq!(copy.to_vec::<u64>(&stream).unwrap(), expected);
}

pub fn pinned_copies_keep_their_order(gpu: &Arc<dyn Gpu>) {
    const N: usize = 1 << 20;
    let pool = PinnedPool::new(gpu, 64 << 20);
    let stream = Stream::new(gpu).unwrap();
    let buffer = DeviceBuffer::allocate(gpu, N * 8).unwrap();
    let mut back = PinnedBuffer::allocate(gpu, N * 8).unwrap();
    for round in 0..5 {
        let mut sent = pool.take(N * 8).unwrap();
        sent.as_mut_values::<i64>()
            .copy_from_slice(&numbers(N, round));
        buffer.upload(&stream, 0, &sent, 0..N * 8).unwrap();
        buffer.download(&stream, 0, &mut back, 0..N * 8).unwrap();
        drop(sent); // the next round takes the same memory
        assert_eq!(back.as_values::<i64>(), numbers(N, round));
    }
    assert_eq!(pool.stats().n_allocated, 1);
}

pub fn memory_dropped_in_use_is_not_handed_out(gpu: &Arc<dyn Gpu>) {
    let find = module(gpu);
    let (slow, add) = (find("slow"), find("add"));
    let (busy, other) = (Stream::new(gpu).unwrap(), Stream::new(gpu).unwrap());
    const N: usize = 100_000;
    let steps = if gpu.info().target == Target::Cuda {
        3_000_000
    } else {
        10
    };
    let out = DeviceBuffer::allocate(gpu, N * 8).unwrap();
    let a = DeviceBuffer::from_slice(gpu, &busy, &numbers(N, 2)).unwrap();
    let scratch = DeviceBuffer::allocate(gpu, 8).unwrap();
    let wait = Params {
        a: 0,
        b: 0,
        out: scratch.ptr().0,
        n: steps,
    };
    let sum = Params {
        a: a.ptr().0,
        b: a.ptr().0,
        out: out.ptr().0,
        n: N as u64,
    };
    // SAFETY: the buffers hold what the kernels read and write, and memory that is
    // dropped is kept until the stream has passed: that is what is tested.
    unsafe {
        busy.launch(&slow, LaunchShape::new(1, 1), &wait).unwrap();
        busy.launch(&add, LaunchShape::new(64, block(gpu)), &sum)
            .unwrap();
    }
    drop(a);
    let thief = DeviceBuffer::filled(gpu, &other, N * 8, 0xEE).unwrap();
    other.synchronize().unwrap();
    let expected: Vec<i64> = numbers(N, 2).iter().map(|v| v * 2).collect();
    assert_eq!(out.to_vec::<i64>(&busy).unwrap(), expected);
    drop(thief);
}

pub fn a_kernel_adds_vectors(gpu: &Arc<dyn Gpu>) {
    let add = module(gpu)("add");
    for n in [0, 1, 31, 32, 33, 255, 256, 257, 100_003] {
        let (a, b) = (numbers(n, 3), numbers(n, -5));
        let expected: Vec<i64> = a.iter().zip(&b).map(|(a, b)| a + b).collect();
        let shape = LaunchShape::new(7, block(gpu));
        assert_eq!(check_run(gpu, &add, shape, &a, &b, n as u64, n), expected);
    }
}

pub fn atomics_count_every_thread(gpu: &Arc<dyn Gpu>) {
    let count = module(gpu)("count");
    let stream = Stream::new(gpu).unwrap();
    let out = DeviceBuffer::zeroed(gpu, &stream, 72).unwrap();
    let n = 10_000;
    let params = Params {
        a: 0,
        b: 0,
        out: out.ptr().0,
        n,
    };
    // SAFETY: the kernel writes one struct of 72 bytes.
    unsafe { stream.launch(&count, LaunchShape::new(9, block(gpu)), &params) }.unwrap();
    let words = out.to_vec::<u64>(&stream).unwrap();
    assert_eq!((words[0] as u32, (words[0] >> 32) as i32), (10_000, -9_999));
    assert_eq!(
        (words[1], words[2], f64::from_bits(words[3])),
        (20_000, 9_999, 5_000.0)
    );
    assert_eq!((words[4], words[6] as i64), (u64::MAX, -9_999));
    assert!((1..=n).contains(&words[5]));
    let tail = out.read::<u32>(&stream, 56, 2).unwrap();
    assert_eq!((f32::from_bits(tail[0]), tail[1]), (5_000.0, 1));
}

pub fn a_block_reduces_through_shared_memory(gpu: &Arc<dyn Gpu>) {
    let sums = module(gpu)("block_sums");
    let a = numbers(10_007, 3);
    let shape = LaunchShape {
        grid: 5,
        block: block(gpu),
        shared_bytes: block(gpu) * 8,
    };
    let out = check_run(gpu, &sums, shape, &a, &[], a.len() as u64, 5);
    assert_eq!(out.iter().sum::<i64>(), a.iter().sum::<i64>());
}

pub fn a_block_may_use_most_of_the_shared_memory(gpu: &Arc<dyn Gpu>) {
    let reach = module(gpu)("reach");
    for shared_bytes in [
        1024,
        48 << 10,
        (48 << 10) + 1024,
        reach.resources().max_dynamic_shared_bytes,
    ] {
        let shape = LaunchShape {
            grid: 3,
            block: block(gpu),
            shared_bytes,
        };
        assert_eq!(
            check_run(gpu, &reach, shape, &[], &[], shared_bytes.into(), 3),
            [7, 8, 9]
        );
    }
    assert!(
        gpu.blocks_per_multiprocessor(&reach, block(gpu), 1024)
            .unwrap()
            >= 1
    );
}

pub fn static_shared_memory_is_shared_by_the_block(gpu: &Arc<dyn Gpu>) {
    let reversed = module(gpu)("reversed");
    let threads = block(gpu) as usize;
    let a = numbers(4 * threads, 1);
    let expected: Vec<i64> = a
        .chunks(threads)
        .flat_map(|tile| tile.iter().rev().copied())
        .collect();
    let shape = LaunchShape::new(4, block(gpu));
    assert_eq!(
        check_run(gpu, &reversed, shape, &a, &[], 0, a.len()),
        expected
    );
}

pub fn warp_functions_agree_with_their_definition(gpu: &Arc<dyn Gpu>) {
    let warps = module(gpu)("warps");
    let n = 2 * block(gpu) as usize;
    let out = check_run(gpu, &warps, LaunchShape::new(2, block(gpu)), &[], &[], 0, n);
    assert_eq!(out, vec![1; n]);
}

pub fn a_launch_that_does_not_fit_is_refused(gpu: &Arc<dyn Gpu>) {
    let add = module(gpu)("add");
    let stream = Stream::new(gpu).unwrap();
    let limit = add.resources().max_dynamic_shared_bytes;
    let good = LaunchShape::new(1, block(gpu));
    let params = [0_u8; 32];
    let refused = |shape: LaunchShape, params: &[u8]| {
        // SAFETY: the launch is refused, or has no rows.
        let error = unsafe { stream.launch_bytes(&add, shape, params) }.unwrap_err();
        assert!(matches!(error, Error::InvalidLaunch { .. }), "{error:?}");
    };
    refused(good, &params[..31]);
    refused(
        LaunchShape {
            shared_bytes: limit + 1,
            ..good
        },
        &params,
    );
    refused(
        LaunchShape {
            block: 1025,
            ..good
        },
        &params,
    );
    refused(LaunchShape { block: 0, ..good }, &params);
    // SAFETY: there are no rows, so nothing is read or written.
    unsafe { stream.launch_bytes(&add, good, &params) }.unwrap();
    // SAFETY: as above, and no blocks run.
    unsafe { stream.launch_bytes(&add, LaunchShape { grid: 0, ..good }, &params) }.unwrap();
    stream.synchronize().unwrap();
}

pub fn an_unknown_kernel_is_an_error(gpu: &Arc<dyn Gpu>) {
    let image = gpu
        .compile(&Source::new("contract", TEXT), headers())
        .unwrap();
    let module = gpu.load(&image).unwrap();
    assert!(matches!(
        module.kernel("nothing"),
        Err(Error::NoSuchKernel { .. })
    ));
}

pub fn events_order_and_time_work(gpu: &Arc<dyn Gpu>) {
    let find = module(gpu);
    let (first, second) = (Stream::new(gpu).unwrap(), Stream::new(gpu).unwrap());
    let source = DeviceBuffer::filled(gpu, &first, 1 << 20, 1).unwrap();
    let start = Event::record_timing(&first).unwrap();
    let scratch = DeviceBuffer::allocate(gpu, 8).unwrap();
    let wait = Params {
        a: 0,
        b: 0,
        out: scratch.ptr().0,
        n: 100_000,
    };
    // SAFETY: the kernel writes one value.
    unsafe { first.launch(&find("slow"), LaunchShape::new(1, 1), &wait) }.unwrap();
    source.fill(&first, 2).unwrap();
    let end = Event::record_timing(&first).unwrap();
    second.wait_for(&end).unwrap();
    let copy = DeviceBuffer::allocate(gpu, 1 << 20).unwrap();
    copy.copy_from(&second, 0, &source, 0..1 << 20).unwrap();
    assert_eq!(copy.to_vec::<u8>(&second).unwrap(), vec![2; 1 << 20]);
    assert!(end.has_passed().unwrap());
    assert!(end.ms_since(&start).unwrap() >= 0.0);
    assert!(first.is_idle().unwrap());
    assert!(gpu.is_healthy());
}

pub fn several_threads_share_a_device(gpu: &Arc<dyn Gpu>) {
    let find = module(gpu);
    let add = find("add");
    std::thread::scope(|scope| {
        for factor in 1..=4 {
            let add = &add;
            scope.spawn(move || {
                for n in [1_000, 50_000, 7] {
                    let a = numbers(n, factor);
                    let expected: Vec<i64> = a.iter().map(|v| v * 2).collect();
                    let shape = LaunchShape::new(11, block(gpu));
                    assert_eq!(check_run(gpu, add, shape, &a, &a, n as u64, n), expected);
                }
            });
        }
    });
}

pub fn too_much_memory_is_refused_and_the_device_goes_on(gpu: &Arc<dyn Gpu>) {
    let limit = gpu.info().memory_bytes;
    for bytes in [limit + 1, usize::MAX, gpu.free_bytes().unwrap() + 1] {
        let error = DeviceBuffer::allocate(gpu, bytes).unwrap_err();
        let refused = error.out_of_memory().expect("an out-of-memory error");
        assert_eq!((refused.requested, refused.limit), (bytes, limit));
    }
    gpu.trim().unwrap();
    DeviceBuffer::allocate(gpu, 1 << 20).unwrap();
    assert!(gpu.is_healthy());
}
