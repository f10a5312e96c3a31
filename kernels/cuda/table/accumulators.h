// Aggregate states as 64-bit words, and the three places they live in.
//
//   PrivateWords   one thread's own copy (registers or shared memory), no atomics
//   GlobalWords    one copy a device, updated with atomics
//
// An accumulator says how many words it has, what they start as, how a value goes
// in, how two copies combine, and how one is merged into a shared one. Integer sums are exact:
// they are held in as many words as their range needs and checked when finished,
// never wrapped.
#pragma once

struct PrivateWords {
  u64* base;
  u32 stride;
  WL_MEMBER u64 get(u32 i) const { return base[static_cast<u64>(i) * stride]; }
  WL_MEMBER void set(u32 i, u64 v) const { base[static_cast<u64>(i) * stride] = v; }
};

struct GlobalWords {
  u64* base;
  WL_MEMBER void add(u32 i, u64 v) const { atomic_add_u64(base + i, v); }
  // Adds and returns the carry out of the word.
  WL_MEMBER u64 add_carry(u32 i, u64 v) const {
    const u64 before = atomic_add_u64(base + i, v);
    return before + v < before ? 1 : 0;
  }
  WL_MEMBER void min(u32 i, u64 v) const { atomic_min_u64(base + i, v); }
  WL_MEMBER void max(u32 i, u64 v) const { atomic_max_u64(base + i, v); }
  WL_MEMBER void add_float(u32 i, f64 v) const { atomic_add_f64(reinterpret_cast<f64*>(base + i), v); }
};

// Number of rows.
struct Count {
  static constexpr u32 words = 1;
  WL_MEMBER static u64 initial(u32) { return 0; }
  WL_MEMBER static void update(const PrivateWords& w, u32 at) { w.set(at, w.get(at) + 1); }
  WL_MEMBER static void update(const GlobalWords& w, u32 at) { w.add(at, 1); }
  WL_MEMBER static void combine(u64* into, const u64* other) { into[0] += other[0]; }
  WL_MEMBER static void merge(const GlobalWords& to, u32 at, const u64* words) {
    if (words[0] != 0) to.add(at, words[0]);
  }
};

// Sum of integers whose total is proved to fit 64 bits.
struct SumI64 {
  static constexpr u32 words = 1;
  WL_MEMBER static u64 initial(u32) { return 0; }
  WL_MEMBER static void update(const PrivateWords& w, u32 at, i64 v) {
    w.set(at, w.get(at) + static_cast<u64>(v));
  }
  WL_MEMBER static void update(const GlobalWords& w, u32 at, i64 v) { w.add(at, static_cast<u64>(v)); }
  WL_MEMBER static void combine(u64* into, const u64* other) { into[0] += other[0]; }
  WL_MEMBER static void merge(const GlobalWords& to, u32 at, const u64* words) {
    if (words[0] != 0) to.add(at, words[0]);
  }
};

// Sum held in 128 bits: enough for 2^40 values of decimals up to 26 digits.
struct SumI128 {
  static constexpr u32 words = 2;
  WL_MEMBER static u64 initial(u32) { return 0; }
  WL_MEMBER static void update(const PrivateWords& w, u32 at, i128 v) {
    const u128 sum = ((static_cast<u128>(w.get(at + 1)) << 64) | w.get(at)) + static_cast<u128>(v);
    w.set(at, static_cast<u64>(sum));
    w.set(at + 1, static_cast<u64>(sum >> 64));
  }
  WL_MEMBER static void add_words(const GlobalWords& w, u32 at, u64 low, u64 high) {
    const u64 top = high + (low != 0 ? w.add_carry(at, low) : 0);
    if (top != 0) w.add(at + 1, top);
  }
  WL_MEMBER static void update(const GlobalWords& w, u32 at, i128 v) {
    add_words(w, at, static_cast<u64>(v), static_cast<u64>(v >> 64));
  }
  WL_MEMBER static void combine(u64* into, const u64* other) {
    const u128 sum = ((static_cast<u128>(into[1]) << 64) | into[0]) +
                     ((static_cast<u128>(other[1]) << 64) | other[0]);
    into[0] = static_cast<u64>(sum);
    into[1] = static_cast<u64>(sum >> 64);
  }
  WL_MEMBER static void merge(const GlobalWords& to, u32 at, const u64* words) {
    add_words(to, at, words[0], words[1]);
  }
};

// Sum held in 192 bits: no sum of 2^64 values of 128 bits leaves it.
struct SumI192 {
  static constexpr u32 words = 3;
  WL_MEMBER static u64 initial(u32) { return 0; }
  WL_MEMBER static void update(const PrivateWords& w, u32 at, i128 v) {
    const u128 low = (static_cast<u128>(w.get(at + 1)) << 64) | w.get(at);
    const u128 sum = low + static_cast<u128>(v);
    const u64 carry = sum < low ? 1 : 0;
    w.set(at, static_cast<u64>(sum));
    w.set(at + 1, static_cast<u64>(sum >> 64));
    w.set(at + 2, w.get(at + 2) + static_cast<u64>(v >> 127) + carry);
  }
  WL_MEMBER static void add_words(const GlobalWords& w, u32 at, u64 low, u64 middle, u64 high) {
    const u64 carry = low != 0 ? w.add_carry(at, low) : 0;
    // middle + carry may itself wrap to zero, which is a carry of its own.
    const u64 with_carry = middle + carry;
    const u64 carried = with_carry < middle ? 1 : 0;
    const u64 out = with_carry != 0 ? w.add_carry(at + 1, with_carry) : 0;
    const u64 top = high + carried + out;
    if (top != 0) w.add(at + 2, top);
  }
  WL_MEMBER static void update(const GlobalWords& w, u32 at, i128 v) {
    add_words(w, at, static_cast<u64>(v), static_cast<u64>(v >> 64), static_cast<u64>(v >> 127));
  }
  WL_MEMBER static void combine(u64* into, const u64* other) {
    const u128 a = (static_cast<u128>(into[1]) << 64) | into[0];
    const u128 sum = a + ((static_cast<u128>(other[1]) << 64) | other[0]);
    into[0] = static_cast<u64>(sum);
    into[1] = static_cast<u64>(sum >> 64);
    into[2] += other[2] + (sum < a ? 1 : 0);
  }
  WL_MEMBER static void merge(const GlobalWords& to, u32 at, const u64* words) {
    add_words(to, at, words[0], words[1], words[2]);
  }
};

// Sum of floats, in the order the rows happen to be added.
struct SumF64 {
  static constexpr u32 words = 1;
  WL_MEMBER static u64 initial(u32) { return 0; }
  WL_MEMBER static f64 read(u64 bits) {
    f64 v;
    copy_bits(v, bits);
    return v;
  }
  WL_MEMBER static void update(const PrivateWords& w, u32 at, f64 v) {
    u64 bits;
    copy_bits(bits, read(w.get(at)) + v);
    w.set(at, bits);
  }
  WL_MEMBER static void update(const GlobalWords& w, u32 at, f64 v) { w.add_float(at, v); }
  WL_MEMBER static void combine(u64* into, const u64* other) {
    copy_bits(into[0], read(into[0]) + read(other[0]));
  }
  WL_MEMBER static void merge(const GlobalWords& to, u32 at, const u64* words) {
    to.add_float(at, read(words[0]));
  }
};

// Values to words whose unsigned order is SQL's order: NaN largest, -0.0 as 0.0.
WL_DEVICE u64 ordered(i64 v) { return static_cast<u64>(v) ^ (1ULL << 63); }
WL_DEVICE u64 ordered(i32 v) { return ordered(static_cast<i64>(v)); }
WL_DEVICE u64 ordered(bool v) { return v ? 1 : 0; }
WL_DEVICE u64 ordered(f64 v) {
  if (v != v) return ~0ULL;
  if (v == 0) v = 0;
  u64 bits;
  copy_bits(bits, v);
  return (bits >> 63) != 0 ? ~bits : bits | (1ULL << 63);
}
WL_DEVICE u64 ordered(f32 v) { return ordered(static_cast<f64>(v)); }

struct Min {
  static constexpr u32 words = 1;
  WL_MEMBER static u64 initial(u32) { return ~0ULL; }
  template <class T>
  WL_MEMBER static void update(const PrivateWords& w, u32 at, T v) {
    const u64 key = ordered(v);
    if (key < w.get(at)) w.set(at, key);
  }
  template <class T>
  WL_MEMBER static void update(const GlobalWords& w, u32 at, T v) {
    w.min(at, ordered(v));
  }
  WL_MEMBER static void combine(u64* into, const u64* other) {
    if (other[0] < into[0]) into[0] = other[0];
  }
  WL_MEMBER static void merge(const GlobalWords& to, u32 at, const u64* words) { to.min(at, words[0]); }
};

struct Max {
  static constexpr u32 words = 1;
  WL_MEMBER static u64 initial(u32) { return 0; }
  template <class T>
  WL_MEMBER static void update(const PrivateWords& w, u32 at, T v) {
    const u64 key = ordered(v);
    if (key > w.get(at)) w.set(at, key);
  }
  template <class T>
  WL_MEMBER static void update(const GlobalWords& w, u32 at, T v) {
    w.max(at, ordered(v));
  }
  WL_MEMBER static void combine(u64* into, const u64* other) {
    if (other[0] > into[0]) into[0] = other[0];
  }
  WL_MEMBER static void merge(const GlobalWords& to, u32 at, const u64* words) { to.max(at, words[0]); }
};

// Extremes of values that need 128 bits: low and high word of the ordered value, and a
// lock that shared copies are changed under. A lock that is free has the initial value.
WL_DEVICE u128 ordered_wide(i128 v) { return static_cast<u128>(v) ^ (static_cast<u128>(1) << 127); }

// What a lock protects is read and written by atomics: tools that look for races in shared
// memory know no locks, and under one it costs next to nothing.
WL_DEVICE u64 locked_read(u64* p) { return atomic_or_u64(p, 0); }
WL_DEVICE void locked_write(u64* p, u64 v) { atomic_exch_u64(p, v); }

template <class Better>
WL_DEVICE void replace_locked(const GlobalWords& w, u32 at, u128 v, u64 free, u64 taken, Better better) {
  bool done = false;
  while (!done) {
    if (atomic_cas_u64(w.base + at + 2, free, taken) == free) {
      thread_fence();
      const u128 old = static_cast<u128>(locked_read(w.base + at + 1)) << 64 | locked_read(w.base + at);
      if (better(v, old)) {
        locked_write(w.base + at, static_cast<u64>(v));
        locked_write(w.base + at + 1, static_cast<u64>(v >> 64));
      }
      thread_fence();
      atomic_exch_u64(w.base + at + 2, free);
      done = true;
    }
  }
}

template <bool IsMax>
struct WideExtreme {
  static constexpr u32 words = 3;
  static constexpr u64 start = IsMax ? 0 : ~0ULL;
  WL_MEMBER static bool better(u128 a, u128 b) { return IsMax ? a > b : a < b; }
  WL_MEMBER static u128 of(const u64* words) { return static_cast<u128>(words[1]) << 64 | words[0]; }
  WL_MEMBER static u64 initial(u32) { return start; }
  template <class T>
  WL_MEMBER static void update(const PrivateWords& w, u32 at, T v) {
    const u128 mine = ordered_wide(v);
    if (better(mine, static_cast<u128>(w.get(at + 1)) << 64 | w.get(at))) {
      w.set(at, static_cast<u64>(mine));
      w.set(at + 1, static_cast<u64>(mine >> 64));
    }
  }
  WL_MEMBER static void put(const GlobalWords& w, u32 at, u128 v) {
    replace_locked(w, at, v, start, ~start, [](u128 a, u128 b) { return better(a, b); });
  }
  template <class T>
  WL_MEMBER static void update(const GlobalWords& w, u32 at, T v) {
    put(w, at, ordered_wide(v));
  }
  WL_MEMBER static void combine(u64* into, const u64* other) {
    if (better(of(other), of(into))) {
      into[0] = other[0];
      into[1] = other[1];
    }
  }
  WL_MEMBER static void merge(const GlobalWords& to, u32 at, const u64* words) { put(to, at, of(words)); }
};
using MinI128 = WideExtreme<false>;
using MaxI128 = WideExtreme<true>;

#include "table/moments.h"

// Adds up the lanes' copies without memory traffic, then one lane merges the sum: a
// warp of lanes that all hit one word with atomics would take turns instead.
template <class A>
WL_DEVICE void merge_warp(const GlobalWords& to, const PrivateWords& mine, u32 at) {
  u64 words[A::words];
  WL_UNROLL
  for (u32 w = 0; w < A::words; ++w) words[w] = mine.get(at + w);
  WL_UNROLL
  for (u32 delta = WARP_LANES / 2; delta > 0; delta /= 2) {
    u64 other[A::words];
    WL_UNROLL
    for (u32 w = 0; w < A::words; ++w) other[w] = shuffle_down(words[w], delta);
    A::combine(words, other);
  }
  if (lane_index() == 0) A::merge(to, at, words);
}
