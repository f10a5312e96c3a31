// What every kernel's text starts from: one vocabulary for two targets.
//
// WL_CUDA  NVRTC for an NVIDIA GPU: WARP_LANES lanes a warp, WL_BLOCK_THREADS
//          threads a block.
// WL_HOST  the system's C++ compiler, for tests: one lane, one thread a block. The
//          blocks of a launch run one after another; barriers and shuffles are
//          trivial.
// WL_WARPS the host target with whole warps: what WL_CUDA says, on functions of
//          `host_warps.h`, for tests of what lanes do together.
//
// Code above this file assumes no number of lanes or threads: it says WARP_LANES,
// block_threads() and WL_BLOCK_THREADS. Nothing here includes a header
// of the system's, but for the last one.
#pragma once

#if defined(__CUDACC__)
#define WL_CUDA 1
#elif defined(WL_WARPS)
#define WL_CUDA 1
#include "host_warps.h"
#else
#define WL_HOST 1
#endif

using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;
using u128 = unsigned __int128;
using i8 = signed char;
using i16 = short;
using i32 = int;
using i64 = long long;
using i128 = __int128;
using f32 = float;
using f64 = double;

static_assert(sizeof(u64) == 8 && sizeof(void*) == 8, "64-bit machines only");

// Threads a block. A text may define its own number before it includes this file;
// the host target runs one thread a block whatever the text says.
#if defined(WL_HOST)
#undef WL_BLOCK_THREADS
#define WL_BLOCK_THREADS 1
#elif !defined(WL_BLOCK_THREADS)
#define WL_BLOCK_THREADS 256
#endif

// WL_KERNEL(name, Params, p) { body } defines an entry point. Its one parameter
// struct is read-only and is seen by the body as `p`.
//
// On the host the entry is name(params, grid, block, shared_bytes), and
// name_parameter_bytes tells the size of the struct.
#if defined(WL_CUDA)
#define WARP_LANES 32u
#define WL_DEVICE __device__ __forceinline__
#define WL_MEMBER __device__ __forceinline__
#define WL_DEVICE_CALL __device__ __noinline__
#define WL_CONSTANT __device__ constexpr
#define WL_SHARED __shared__
#define WL_UNROLL _Pragma("unroll")
#if defined(WL_WARPS)
#define WL_EXPORT extern "C" __attribute__((visibility("default")))
#define WL_KERNEL(name, Params, p)                                                  \
  static void name##_body(const Params& p);                                         \
  WL_EXPORT const u32 name##_parameter_bytes;                                       \
  const u32 name##_parameter_bytes = sizeof(Params);                                \
  WL_EXPORT void name(const void* params, u32 grid, u32 block, u32 shared_bytes) {  \
    wl_warps::run(params, grid, block, shared_bytes, [](const void* own) {          \
      name##_body(*static_cast<const Params*>(own));                                \
    });                                                                             \
  }                                                                                 \
  static void name##_body(const Params& p)
#else
// How many blocks a multiprocessor should hold at least, if a text says so: it decides how
// many registers a thread may have.
#if defined(WL_BLOCKS_MIN)
#define WL_LAUNCH_BOUNDS __launch_bounds__(WL_BLOCK_THREADS, WL_BLOCKS_MIN)
#else
#define WL_LAUNCH_BOUNDS __launch_bounds__(WL_BLOCK_THREADS)
#endif
#define WL_KERNEL(name, Params, p) \
  extern "C" __global__ void WL_LAUNCH_BOUNDS name(const __grid_constant__ Params p)
#endif
#else
#define WARP_LANES 1u
#define WL_DEVICE static inline
#define WL_MEMBER inline  // of a struct: `static` there means something else
#define WL_DEVICE_CALL static __attribute__((noinline))
#define WL_CONSTANT static constexpr
#define WL_SHARED static thread_local
#define WL_UNROLL
#define WL_EXPORT extern "C" __attribute__((visibility("default")))
#define WL_KERNEL(name, Params, p)                                                            \
  static void name##_body(const Params& p);                                                   \
  WL_EXPORT const u32 name##_parameter_bytes;                                                 \
  const u32 name##_parameter_bytes = sizeof(Params);                                          \
  WL_EXPORT void name(const void* params, u32 grid, u32 /*block*/, u32 shared_bytes) {        \
    wl_host_run(*static_cast<const Params*>(params), grid, shared_bytes, name##_body);        \
  }                                                                                           \
  static void name##_body(const Params& p)
#endif
#define WL_RESTRICT __restrict__

// ---- where this thread is ----

#if defined(WL_CUDA)
WL_DEVICE u32 block_index() { return blockIdx.x; }
WL_DEVICE u32 grid_blocks() { return gridDim.x; }
WL_DEVICE u32 thread_index() { return threadIdx.x; }
WL_DEVICE u32 block_threads() { return blockDim.x; }
#else
struct WlHostBlock {
  u32 index;
  u32 n_blocks;
  u8* shared;
};
static thread_local WlHostBlock wl_host_block;

WL_DEVICE u32 block_index() { return wl_host_block.index; }
WL_DEVICE u32 grid_blocks() { return wl_host_block.n_blocks; }
WL_DEVICE u32 thread_index() { return 0; }
WL_DEVICE u32 block_threads() { return 1; }

// Runs a launch: each block starts with poisoned dynamic shared memory, so that a
// kernel which expects zeros, or what the block before it left, shows.
template <class Params>
static void wl_host_run(const Params& params, u32 grid, u32 shared_bytes, void (*body)(const Params&)) {
  const u64 align = 64;
  u8* memory = shared_bytes ? static_cast<u8*>(__builtin_malloc(shared_bytes + align)) : nullptr;
  u8* shared = reinterpret_cast<u8*>((reinterpret_cast<u64>(memory) + align - 1) / align * align);
  for (u32 block = 0; block < grid; ++block) {
    if (shared_bytes) __builtin_memset(shared, 0xCD, shared_bytes);
    wl_host_block = WlHostBlock{block, grid, shared};
    body(params);
  }
  __builtin_free(memory);
}
#endif

WL_DEVICE u32 lane_index() { return thread_index() % WARP_LANES; }
WL_DEVICE u32 warp_index() { return thread_index() / WARP_LANES; }
WL_DEVICE u32 block_warps() { return (block_threads() + WARP_LANES - 1) / WARP_LANES; }

// The thread's number in the grid, and how many threads the grid has.
WL_DEVICE u64 global_thread_index() { return u64(block_index()) * block_threads() + thread_index(); }
WL_DEVICE u64 grid_threads() { return u64(grid_blocks()) * block_threads(); }

// ---- bits ----

// The same bits as another type of the same size.
template <class To, class From>
WL_DEVICE To bit_cast(const From& from) {
  static_assert(sizeof(To) == sizeof(From), "bit_cast between sizes");
  return __builtin_bit_cast(To, from);
}

// Bits set; leading zeros (the width for 0); lowest bit set, counted from 1 (0 for
// 0); high half of the product.
#if defined(WL_CUDA)
WL_DEVICE u32 popc(u32 v) { return __popc(v); }
WL_DEVICE u32 popc(u64 v) { return __popcll(v); }
WL_DEVICE u32 clz(u32 v) { return __clz(int(v)); }
WL_DEVICE u32 clz(u64 v) { return __clzll(i64(v)); }
WL_DEVICE u32 ffs(u32 v) { return __ffs(int(v)); }
WL_DEVICE u32 ffs(u64 v) { return __ffsll(i64(v)); }
WL_DEVICE u32 umul_hi(u32 a, u32 b) { return __umulhi(a, b); }
WL_DEVICE u64 umul_hi(u64 a, u64 b) { return __umul64hi(a, b); }
#else
WL_DEVICE u32 popc(u32 v) { return u32(__builtin_popcount(v)); }
WL_DEVICE u32 popc(u64 v) { return u32(__builtin_popcountll(v)); }
WL_DEVICE u32 clz(u32 v) { return v ? u32(__builtin_clz(v)) : 32; }
WL_DEVICE u32 clz(u64 v) { return v ? u32(__builtin_clzll(v)) : 64; }
WL_DEVICE u32 ffs(u32 v) { return u32(__builtin_ffs(int(v))); }
WL_DEVICE u32 ffs(u64 v) { return u32(__builtin_ffsll(i64(v))); }
WL_DEVICE u32 umul_hi(u32 a, u32 b) { return u32(u64(a) * b >> 32); }
WL_DEVICE u64 umul_hi(u64 a, u64 b) { return u64(u128(a) * b >> 64); }
#endif

template <class T>
WL_DEVICE T min_of(T a, T b) {
  return b < a ? b : a;
}
template <class T>
WL_DEVICE T max_of(T a, T b) {
  return a < b ? b : a;
}

// ---- a block together ----

// Waits for all threads of the block; what they wrote before is seen after. Every
// thread of the block must get here.
#if defined(WL_CUDA)
WL_DEVICE void wl_barrier() { __syncthreads(); }
// A barrier that also tells whether any thread, or how many threads, said true.
WL_DEVICE bool barrier_any(bool v) { return __syncthreads_or(v) != 0; }
WL_DEVICE u32 barrier_count(bool v) { return u32(__syncthreads_count(v)); }

// The block's dynamic shared memory, aligned to 16 bytes.
template <class T>
WL_DEVICE T* shared_memory() {
#if defined(WL_WARPS)
  return reinterpret_cast<T*>(wl_warps::dynamic_shared);
#else
  extern __shared__ __align__(16) u8 wl_dynamic_shared[];
  return reinterpret_cast<T*>(wl_dynamic_shared);
#endif
}
#else
WL_DEVICE void wl_barrier() {}
WL_DEVICE bool barrier_any(bool v) { return v; }
WL_DEVICE u32 barrier_count(bool v) { return v; }

template <class T>
WL_DEVICE T* shared_memory() {
  return reinterpret_cast<T*>(wl_host_block.shared);
}
#endif

// ---- a warp together: every lane of the warp must get here ----

#if defined(WL_CUDA)
WL_DEVICE void warp_sync() { __syncwarp(); }
WL_DEVICE f64 round_half_away(f64 v) { return round(v); }
WL_DEVICE u32 ballot(bool v) { return __ballot_sync(0xffffffffu, v); }
WL_DEVICE bool any_lane(bool v) { return __any_sync(0xffffffffu, v) != 0; }
WL_DEVICE bool all_lanes(bool v) { return __all_sync(0xffffffffu, v) != 0; }
// The lanes that hold the same value.
WL_DEVICE u32 match_any(u32 v) { return __match_any_sync(0xffffffffu, v); }
WL_DEVICE u32 match_any(u64 v) { return __match_any_sync(0xffffffffu, v); }
// The lanes that are here. Not all of them need be.
WL_DEVICE u32 active_lanes() { return __activemask(); }
// The lanes before this one.
WL_DEVICE u32 lanes_before() { return (1u << lane_index()) - 1; }

template <class T, class Move>
WL_DEVICE T wl_move_words(const T& v, Move move) {
  if constexpr (sizeof(T) == 1) {
    return bit_cast<T>(u8(move(bit_cast<u8>(v))));
  } else if constexpr (sizeof(T) == 2) {
    return bit_cast<T>(u16(move(bit_cast<u16>(v))));
  } else {
    static_assert(sizeof(T) % 4 == 0, "shuffles move whole words");
    struct Words {
      u32 word[sizeof(T) / 4];
    };
    Words words = bit_cast<Words>(v);
    WL_UNROLL
    for (u32 i = 0; i < sizeof(T) / 4; ++i) words.word[i] = move(words.word[i]);
    return bit_cast<T>(words);
  }
}

// The value that lane `lane` holds; that of the lane `delta` above or below, or
// one's own where there is none; that of the lane whose number differs by `mask`.
template <class T>
WL_DEVICE T shuffle(const T& v, u32 lane) {
  return wl_move_words(v, [=](u32 w) { return __shfl_sync(0xffffffffu, w, int(lane)); });
}
template <class T>
WL_DEVICE T shuffle_down(const T& v, u32 delta) {
  return wl_move_words(v, [=](u32 w) { return __shfl_down_sync(0xffffffffu, w, delta); });
}
template <class T>
WL_DEVICE T shuffle_up(const T& v, u32 delta) {
  return wl_move_words(v, [=](u32 w) { return __shfl_up_sync(0xffffffffu, w, delta); });
}
template <class T>
WL_DEVICE T shuffle_xor(const T& v, u32 mask) {
  return wl_move_words(v, [=](u32 w) { return __shfl_xor_sync(0xffffffffu, w, int(mask)); });
}
#else
WL_DEVICE void warp_sync() {}
WL_DEVICE f64 round_half_away(f64 v) { return __builtin_round(v); }
WL_DEVICE u32 ballot(bool v) { return v; }
WL_DEVICE bool any_lane(bool v) { return v; }
WL_DEVICE bool all_lanes(bool v) { return v; }
WL_DEVICE u32 match_any(u32) { return 1; }
WL_DEVICE u32 match_any(u64) { return 1; }
WL_DEVICE u32 active_lanes() { return 1; }
WL_DEVICE u32 lanes_before() { return 0; }

template <class T>
WL_DEVICE T shuffle(const T& v, u32) {
  return v;
}
template <class T>
WL_DEVICE T shuffle_down(const T& v, u32) {
  return v;
}
template <class T>
WL_DEVICE T shuffle_up(const T& v, u32) {
  return v;
}
template <class T>
WL_DEVICE T shuffle_xor(const T& v, u32) {
  return v;
}
#endif

// ---- atomics: relaxed, over the whole device; each gives the value before ----

#if defined(WL_CUDA)
WL_DEVICE u32 atomic_add_u32(u32* p, u32 v) { return atomicAdd(p, v); }
WL_DEVICE u64 atomic_add_u64(u64* p, u64 v) { return atomicAdd(p, v); }
WL_DEVICE f32 atomic_add_f32(f32* p, f32 v) { return atomicAdd(p, v); }
WL_DEVICE f64 atomic_add_f64(f64* p, f64 v) { return atomicAdd(p, v); }
WL_DEVICE u32 atomic_min_u32(u32* p, u32 v) { return atomicMin(p, v); }
WL_DEVICE u64 atomic_min_u64(u64* p, u64 v) { return atomicMin(p, v); }
WL_DEVICE i32 atomic_min_i32(i32* p, i32 v) { return atomicMin(p, v); }
WL_DEVICE i64 atomic_min_i64(i64* p, i64 v) { return atomicMin(p, v); }
WL_DEVICE u32 atomic_max_u32(u32* p, u32 v) { return atomicMax(p, v); }
WL_DEVICE u64 atomic_max_u64(u64* p, u64 v) { return atomicMax(p, v); }
WL_DEVICE i32 atomic_max_i32(i32* p, i32 v) { return atomicMax(p, v); }
WL_DEVICE i64 atomic_max_i64(i64* p, i64 v) { return atomicMax(p, v); }
WL_DEVICE u32 atomic_or_u32(u32* p, u32 v) { return atomicOr(p, v); }
WL_DEVICE u64 atomic_or_u64(u64* p, u64 v) { return atomicOr(p, v); }
WL_DEVICE u32 atomic_and_u32(u32* p, u32 v) { return atomicAnd(p, v); }
WL_DEVICE u64 atomic_and_u64(u64* p, u64 v) { return atomicAnd(p, v); }
WL_DEVICE u32 atomic_cas_u32(u32* p, u32 old, u32 v) { return atomicCAS(p, old, v); }
WL_DEVICE u64 atomic_cas_u64(u64* p, u64 old, u64 v) { return atomicCAS(p, old, v); }
WL_DEVICE u32 atomic_exch_u32(u32* p, u32 v) { return atomicExch(p, v); }
WL_DEVICE u64 atomic_exch_u64(u64* p, u64 v) { return atomicExch(p, v); }

#if defined(WL_WARPS)
WL_DEVICE u32 load_acquire(const u32* p) { return wl_read_of_others(p); }
WL_DEVICE u64 load_acquire(const u64* p) { return wl_read_of_others(p); }
WL_DEVICE void store_release(u32* p, u32 v) { *p = v; }
WL_DEVICE void store_release(u64* p, u64 v) { *p = v; }
WL_DEVICE u32 load_relaxed(const u32* p) { return wl_read_of_others(p); }
WL_DEVICE u64 load_relaxed(const u64* p) { return wl_read_of_others(p); }
WL_DEVICE u8 load_relaxed(const u8* p) { return wl_read_of_others(p); }
WL_DEVICE void store_relaxed(u8* p, u8 v) { *p = v; }
#else
// What was written before a release is seen after the acquire that reads it.
WL_DEVICE u32 load_acquire(const u32* p) {
  u32 v;
  asm volatile("ld.acquire.gpu.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  return v;
}
WL_DEVICE u64 load_acquire(const u64* p) {
  u64 v;
  asm volatile("ld.acquire.gpu.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
  return v;
}
WL_DEVICE void store_release(u32* p, u32 v) {
  asm volatile("st.release.gpu.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}
WL_DEVICE void store_release(u64* p, u64 v) {
  asm volatile("st.release.gpu.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}
// A read that other threads' atomics may overtake, but that is not cached.
WL_DEVICE u32 load_relaxed(const u32* p) {
  u32 v;
  asm volatile("ld.relaxed.gpu.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  return v;
}
WL_DEVICE u64 load_relaxed(const u64* p) {
  u64 v;
  asm volatile("ld.relaxed.gpu.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
  return v;
}
WL_DEVICE u8 load_relaxed(const u8* p) {
  u32 v;
  asm volatile("ld.relaxed.gpu.u8 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  return static_cast<u8>(v);
}
WL_DEVICE void store_relaxed(u8* p, u8 v) {
  asm volatile("st.relaxed.gpu.u8 [%0], %1;" ::"l"(p), "r"(static_cast<u32>(v)) : "memory");
}
#endif
WL_DEVICE void thread_fence() { __threadfence(); }

// A read of memory that nothing writes during the launch.
template <class T>
WL_DEVICE T load_readonly(const T* p) {
  return __ldg(p);
}
// Accesses of memory that is not used again soon.
template <class T>
WL_DEVICE T load_streaming(const T* p) {
  return __ldcs(p);
}
template <class T>
WL_DEVICE void store_streaming(T* p, T v) {
  __stcs(p, v);
}

// Ends the launch with an error that breaks the device's context: for what cannot
// happen.
WL_DEVICE void wl_trap() { __trap(); }
#else
template <class T>
WL_DEVICE T wl_fetch_add(T* p, T v) {
  return __atomic_fetch_add(p, v, __ATOMIC_RELAXED);
}
// Replaces *p by f(*p) as one step.
template <class T, class F>
WL_DEVICE T wl_fetch_with(T* p, F f) {
  T old;
  __atomic_load(p, &old, __ATOMIC_RELAXED);
  for (;;) {
    T next = f(old);
    if (__atomic_compare_exchange(p, &old, &next, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) return old;
  }
}
template <class T>
WL_DEVICE T wl_cas(T* p, T old, T v) {
  __atomic_compare_exchange_n(p, &old, v, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
  return old;
}

WL_DEVICE u32 atomic_add_u32(u32* p, u32 v) { return wl_fetch_add(p, v); }
WL_DEVICE u64 atomic_add_u64(u64* p, u64 v) { return wl_fetch_add(p, v); }
WL_DEVICE f32 atomic_add_f32(f32* p, f32 v) {
  return wl_fetch_with(p, [=](f32 old) { return old + v; });
}
WL_DEVICE f64 atomic_add_f64(f64* p, f64 v) {
  return wl_fetch_with(p, [=](f64 old) { return old + v; });
}
WL_DEVICE u32 atomic_min_u32(u32* p, u32 v) {
  return wl_fetch_with(p, [=](u32 old) { return min_of(old, v); });
}
WL_DEVICE u64 atomic_min_u64(u64* p, u64 v) {
  return wl_fetch_with(p, [=](u64 old) { return min_of(old, v); });
}
WL_DEVICE i32 atomic_min_i32(i32* p, i32 v) {
  return wl_fetch_with(p, [=](i32 old) { return min_of(old, v); });
}
WL_DEVICE i64 atomic_min_i64(i64* p, i64 v) {
  return wl_fetch_with(p, [=](i64 old) { return min_of(old, v); });
}
WL_DEVICE u32 atomic_max_u32(u32* p, u32 v) {
  return wl_fetch_with(p, [=](u32 old) { return max_of(old, v); });
}
WL_DEVICE u64 atomic_max_u64(u64* p, u64 v) {
  return wl_fetch_with(p, [=](u64 old) { return max_of(old, v); });
}
WL_DEVICE i32 atomic_max_i32(i32* p, i32 v) {
  return wl_fetch_with(p, [=](i32 old) { return max_of(old, v); });
}
WL_DEVICE i64 atomic_max_i64(i64* p, i64 v) {
  return wl_fetch_with(p, [=](i64 old) { return max_of(old, v); });
}
WL_DEVICE u32 atomic_or_u32(u32* p, u32 v) { return __atomic_fetch_or(p, v, __ATOMIC_RELAXED); }
WL_DEVICE u64 atomic_or_u64(u64* p, u64 v) { return __atomic_fetch_or(p, v, __ATOMIC_RELAXED); }
WL_DEVICE u32 atomic_and_u32(u32* p, u32 v) { return __atomic_fetch_and(p, v, __ATOMIC_RELAXED); }
WL_DEVICE u64 atomic_and_u64(u64* p, u64 v) { return __atomic_fetch_and(p, v, __ATOMIC_RELAXED); }
WL_DEVICE u32 atomic_cas_u32(u32* p, u32 old, u32 v) { return wl_cas(p, old, v); }
WL_DEVICE u64 atomic_cas_u64(u64* p, u64 old, u64 v) { return wl_cas(p, old, v); }
WL_DEVICE u32 atomic_exch_u32(u32* p, u32 v) { return __atomic_exchange_n(p, v, __ATOMIC_RELAXED); }
WL_DEVICE u64 atomic_exch_u64(u64* p, u64 v) { return __atomic_exchange_n(p, v, __ATOMIC_RELAXED); }

WL_DEVICE u32 load_acquire(const u32* p) { return __atomic_load_n(p, __ATOMIC_ACQUIRE); }
WL_DEVICE u64 load_acquire(const u64* p) { return __atomic_load_n(p, __ATOMIC_ACQUIRE); }
WL_DEVICE void store_release(u32* p, u32 v) { __atomic_store_n(p, v, __ATOMIC_RELEASE); }
WL_DEVICE void store_release(u64* p, u64 v) { __atomic_store_n(p, v, __ATOMIC_RELEASE); }
WL_DEVICE u32 load_relaxed(const u32* p) { return __atomic_load_n(p, __ATOMIC_RELAXED); }
WL_DEVICE u64 load_relaxed(const u64* p) { return __atomic_load_n(p, __ATOMIC_RELAXED); }
WL_DEVICE u8 load_relaxed(const u8* p) { return __atomic_load_n(p, __ATOMIC_RELAXED); }
WL_DEVICE void store_relaxed(u8* p, u8 v) { __atomic_store_n(p, v, __ATOMIC_RELAXED); }
WL_DEVICE void thread_fence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }

template <class T>
WL_DEVICE T load_readonly(const T* p) {
  return *p;
}
template <class T>
WL_DEVICE T load_streaming(const T* p) {
  return *p;
}
template <class T>
WL_DEVICE void store_streaming(T* p, T v) {
  *p = v;
}

WL_DEVICE void wl_trap() { __builtin_trap(); }
#endif

WL_DEVICE i64 atomic_add_i64(i64* p, i64 v) {
  return i64(atomic_add_u64(reinterpret_cast<u64*>(p), u64(v)));
}

// ---- some lanes together: each says who they are, which `active_lanes` told ----

#if defined(WL_CUDA)
WL_DEVICE u32 match_among(u32 lanes, u64 v) { return __match_any_sync(lanes, v); }
WL_DEVICE u32 shuffle_among(u32 lanes, u32 v, u32 lane) { return __shfl_sync(lanes, v, int(lane)); }
#else
WL_DEVICE u32 match_among(u32, u64) { return 1; }
WL_DEVICE u32 shuffle_among(u32, u32 v, u32) { return v; }
#endif

// A number that no other thread gets from this counter. The lanes that are here together
// take theirs with one atomic: all on one address would wait for each other.
WL_DEVICE u32 next_number(u32* counter) {
  const u32 lanes = active_lanes();
  const u32 leader = ffs(lanes) - 1;
  u32 first = 0;
  if (lane_index() == leader) first = atomic_add_u32(counter, popc(lanes));
  return shuffle_among(lanes, first, leader) + popc(lanes & lanes_before());
}

// ---- floats ----

#if defined(WL_CUDA)
#define WL_MATH(name) name
#else
#define WL_MATH(name) __builtin_##name
#endif
WL_DEVICE bool is_nan(f32 v) { return v != v; }
WL_DEVICE bool is_nan(f64 v) { return v != v; }
WL_DEVICE f32 floor_of(f32 v) { return WL_MATH(floorf)(v); }
WL_DEVICE f64 floor_of(f64 v) { return WL_MATH(floor)(v); }
WL_DEVICE f32 ceil_of(f32 v) { return WL_MATH(ceilf)(v); }
WL_DEVICE f64 ceil_of(f64 v) { return WL_MATH(ceil)(v); }
WL_DEVICE f32 trunc_of(f32 v) { return WL_MATH(truncf)(v); }
WL_DEVICE f64 trunc_of(f64 v) { return WL_MATH(trunc)(v); }
// Halves away from zero.
WL_DEVICE f32 round_of(f32 v) { return WL_MATH(roundf)(v); }
WL_DEVICE f64 round_of(f64 v) { return WL_MATH(round)(v); }
WL_DEVICE f32 abs_of(f32 v) { return WL_MATH(fabsf)(v); }
WL_DEVICE f64 abs_of(f64 v) { return WL_MATH(fabs)(v); }
WL_DEVICE f32 sqrt_of(f32 v) { return WL_MATH(sqrtf)(v); }
WL_DEVICE f64 sqrt_of(f64 v) { return WL_MATH(sqrt)(v); }
WL_DEVICE f32 fmod_of(f32 a, f32 b) { return WL_MATH(fmodf)(a, b); }
WL_DEVICE f64 fmod_of(f64 a, f64 b) { return WL_MATH(fmod)(a, b); }
