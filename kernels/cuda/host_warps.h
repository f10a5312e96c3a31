// The host target with whole warps: the GPU's own code paths, in this process.
//
// Every thread of a block is a context of its own, and one runs at a time: up to a barrier,
// a shuffle or a vote, then another whose turn is picked at random. So lanes overtake one
// another in ways that differ from block to block, and what a GPU forbids ends the process
// with a message: lanes of a warp that meet in different operations, a barrier that not all
// threads reach. Slow, and for tests.
#pragma once

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#define __device__
#define __forceinline__ inline
#undef __noinline__
#define __noinline__ __attribute__((noinline))
#define __shared__ static

namespace wl_warps {

constexpr unsigned LANES = 32;
constexpr unsigned THREADS_MAX = 1024;
constexpr unsigned STACK_BYTES = 256 << 10;

enum Operation { NOTHING, SYNC, BALLOT, ANY, ALL, MATCH, SHUFFLE, SHUFFLE_UP, SHUFFLE_DOWN, SHUFFLE_XOR };

struct Thread {
  ucontext_t context;
  char* stack;
  bool is_done;
  bool waits;
};

struct Warp {
  unsigned n_arrived;
  unsigned turn;  // what a lane brings stands until all have brought something to the next
  Operation operation;
  unsigned long long value[2][LANES];
};

struct Block {
  unsigned n_arrived;
  unsigned turn;
  unsigned n_true[2];
};

static pthread_mutex_t one_launch = PTHREAD_MUTEX_INITIALIZER;
static Thread thread[THREADS_MAX];
static Warp warp[THREADS_MAX / LANES];
static Block block;
static unsigned n_threads, n_done, current, block_number, n_blocks;
static ucontext_t scheduler;
static void (*body)(const void*);
static const void* parameters;
static unsigned char* dynamic_shared;
static unsigned long long random_state = 0x2545f4914f6cdd1dull;

static unsigned next_random() {
  random_state ^= random_state << 13;
  random_state ^= random_state >> 7;
  random_state ^= random_state << 17;
  return static_cast<unsigned>(random_state >> 16);
}

static void refuse(const char* what) {
  fprintf(stderr, "a kernel went wrong: %s (thread %u of %u in block %u)\n", what, current, n_threads, block_number);
  abort();
}

// Lets others go on.
static void give_way() { swapcontext(&thread[current].context, &scheduler); }

static void run_thread() {
  body(parameters);
  thread[current].is_done = true;
  ++n_done;
  give_way();
}

// Meets the other lanes of the warp; gives the place of what they brought.
static unsigned meet_warp(Operation operation, unsigned long long value) {
  Warp& own = warp[current / LANES];
  const unsigned first = current / LANES * LANES;
  const unsigned n_lanes = n_threads - first < LANES ? n_threads - first : LANES;
  if (own.n_arrived == 0) own.operation = operation;
  if (own.operation != operation) refuse("lanes of a warp meet in different operations");
  const unsigned place = own.turn & 1;
  own.value[place][current - first] = value;
  if (++own.n_arrived < n_lanes) {
    thread[current].waits = true;
  } else {
    own.n_arrived = 0;
    ++own.turn;
    for (unsigned lane = 0; lane < n_lanes; ++lane) thread[first + lane].waits = false;
  }
  give_way();
  return place;
}

// Meets all threads of the block; gives how many said true.
static unsigned meet_block(bool value) {
  const unsigned place = block.turn & 1;
  if (n_done > 0) refuse("a barrier that some threads never reach");
  if (block.n_arrived == 0) block.n_true[place] = 0;
  block.n_true[place] += value;
  if (++block.n_arrived < n_threads) {
    thread[current].waits = true;
  } else {
    block.n_arrived = 0;
    ++block.turn;
    for (unsigned i = 0; i < n_threads; ++i) thread[i].waits = false;
  }
  give_way();
  return block.n_true[place];
}

static void start(unsigned i) {
  Thread& own = thread[i];
  if (own.stack == nullptr) own.stack = static_cast<char*>(malloc(STACK_BYTES));
  if (own.stack == nullptr) refuse("no memory for its threads");
  getcontext(&own.context);
  own.context.uc_stack.ss_sp = own.stack;
  own.context.uc_stack.ss_size = STACK_BYTES;
  own.context.uc_link = nullptr;
  own.is_done = own.waits = false;
  makecontext(&own.context, run_thread, 0);
}

// Runs a launch, one block after the other.
static void run(const void* params, unsigned grid, unsigned threads, unsigned shared_bytes, void (*kernel)(const void*)) {
  pthread_mutex_lock(&one_launch);
  n_threads = threads < THREADS_MAX ? threads : THREADS_MAX;
  n_blocks = grid;
  body = kernel;
  parameters = params;
  void* memory = nullptr;
  if (posix_memalign(&memory, 64, shared_bytes + 64) != 0) refuse("no memory for what its threads share");
  dynamic_shared = static_cast<unsigned char*>(memory);
  for (block_number = 0; block_number < grid; ++block_number) {
    memset(dynamic_shared, 0xcd, shared_bytes);
    memset(&warp, 0, sizeof warp);
    memset(&block, 0, sizeof block);
    n_done = 0;
    for (unsigned i = 0; i < n_threads; ++i) start(i);
    while (n_done < n_threads) {
      unsigned next = next_random() % n_threads, n_tried = 0;
      while (n_tried < n_threads && (thread[next].is_done || thread[next].waits)) {
        next = (next + 1) % n_threads;
        ++n_tried;
      }
      if (n_tried == n_threads) refuse("all its threads wait for others");
      current = next;
      swapcontext(&scheduler, &thread[next].context);
    }
  }
  free(memory);
  pthread_mutex_unlock(&one_launch);
}

struct Index {
  unsigned x;
};

template <class Test>
static unsigned lanes_where(Operation operation, unsigned long long value, Test test) {
  const unsigned place = meet_warp(operation, value);
  const Warp& own = warp[current / LANES];
  unsigned mask = 0;
  for (unsigned lane = 0; lane < LANES; ++lane) mask |= unsigned(test(own.value[place][lane])) << lane;
  return mask;
}

static unsigned from_lane(Operation operation, unsigned value, unsigned lane) {
  const unsigned place = meet_warp(operation, value);
  return static_cast<unsigned>(warp[current / LANES].value[place][lane < LANES ? lane : current % LANES]);
}

}  // namespace wl_warps

#define threadIdx (wl_warps::Index{wl_warps::current})
#define blockIdx (wl_warps::Index{wl_warps::block_number})
#define blockDim (wl_warps::Index{wl_warps::n_threads})
#define gridDim (wl_warps::Index{wl_warps::n_blocks})

// ---- what the prelude calls, by the GPU compiler's names ----

static inline int __popc(unsigned v) { return __builtin_popcount(v); }
static inline int __popcll(unsigned long long v) { return __builtin_popcountll(v); }
static inline int __clz(int v) { return v != 0 ? __builtin_clz(static_cast<unsigned>(v)) : 32; }
static inline int __clzll(long long v) { return v != 0 ? __builtin_clzll(static_cast<unsigned long long>(v)) : 64; }
static inline int __ffs(int v) { return __builtin_ffs(v); }
static inline int __ffsll(long long v) { return __builtin_ffsll(v); }
static inline unsigned __umulhi(unsigned a, unsigned b) {
  return static_cast<unsigned>(static_cast<unsigned long long>(a) * b >> 32);
}
static inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  return static_cast<unsigned long long>(static_cast<unsigned __int128>(a) * b >> 64);
}

static inline void __syncthreads() { wl_warps::meet_block(false); }
static inline int __syncthreads_or(int v) { return wl_warps::meet_block(v != 0) > 0; }
static inline int __syncthreads_count(int v) { return static_cast<int>(wl_warps::meet_block(v != 0)); }
static inline void __syncwarp() { wl_warps::meet_warp(wl_warps::SYNC, 0); }

static inline unsigned __ballot_sync(unsigned, int v) {
  return wl_warps::lanes_where(wl_warps::BALLOT, v != 0, [](unsigned long long other) { return other != 0; });
}
static inline int __any_sync(unsigned, int v) {
  return wl_warps::lanes_where(wl_warps::ANY, v != 0, [](unsigned long long other) { return other != 0; }) != 0;
}
static inline int __all_sync(unsigned, int v) {
  return wl_warps::lanes_where(wl_warps::ALL, v != 0, [](unsigned long long other) { return other == 0; }) == 0;
}
static inline unsigned __match_any_sync(unsigned, unsigned long long v) {
  return wl_warps::lanes_where(wl_warps::MATCH, v, [=](unsigned long long other) { return other == v; });
}
// Threads are never in step here: a thread sees itself alone.
static inline unsigned __activemask() { return 1u << (wl_warps::current % wl_warps::LANES); }

static inline unsigned __shfl_sync(unsigned, unsigned v, int lane) {
  return wl_warps::from_lane(wl_warps::SHUFFLE, v, static_cast<unsigned>(lane) % wl_warps::LANES);
}
static inline unsigned __shfl_up_sync(unsigned, unsigned v, unsigned by) {
  return wl_warps::from_lane(wl_warps::SHUFFLE_UP, v, wl_warps::current % wl_warps::LANES - by);
}
static inline unsigned __shfl_down_sync(unsigned, unsigned v, unsigned by) {
  return wl_warps::from_lane(wl_warps::SHUFFLE_DOWN, v, wl_warps::current % wl_warps::LANES + by);
}
static inline unsigned __shfl_xor_sync(unsigned, unsigned v, int mask) {
  return wl_warps::from_lane(wl_warps::SHUFFLE_XOR, v, wl_warps::current % wl_warps::LANES ^ static_cast<unsigned>(mask));
}

// One thread runs at a time, so each of these is one step.
template <class T, class Change>
static inline T wl_replace(T* at, Change change) {
  const T old = *at;
  *at = change(old);
  return old;
}
template <class T, class V>
static inline T atomicAdd(T* at, V v) { return wl_replace(at, [=](T old) { return T(old + v); }); }
template <class T, class V>
static inline T atomicMin(T* at, V v) { return wl_replace(at, [=](T old) { return T(v) < old ? T(v) : old; }); }
template <class T, class V>
static inline T atomicMax(T* at, V v) { return wl_replace(at, [=](T old) { return old < T(v) ? T(v) : old; }); }
template <class T, class V>
static inline T atomicOr(T* at, V v) { return wl_replace(at, [=](T old) { return T(old | v); }); }
template <class T, class V>
static inline T atomicAnd(T* at, V v) { return wl_replace(at, [=](T old) { return T(old & v); }); }
template <class T, class V>
static inline T atomicExch(T* at, V v) { return wl_replace(at, [=](T) { return T(v); }); }
template <class T, class Old, class V>
static inline T atomicCAS(T* at, Old was, V v) { return wl_replace(at, [=](T old) { return old == T(was) ? T(v) : old; }); }

static inline void __threadfence() {}
template <class T>
static inline T __ldg(const T* at) { return *at; }
template <class T>
static inline T __ldcs(const T* at) { return *at; }
template <class T, class V>
static inline void __stcs(T* at, V v) { *at = v; }
static inline void __trap() { wl_warps::refuse("it trapped"); }

// Whoever waits for another thread reads in a loop: the other gets its turn.
template <class T>
static inline T wl_read_of_others(const T* at) {
  wl_warps::give_way();
  return *static_cast<const volatile T*>(at);
}
