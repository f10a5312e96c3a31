// How many values, their mean, and the sum of their squared distances from it: what
// variances are made of. Values are added one by one (Welford) and copies are combined
// (Chan), so nothing cancels: the mean may be far larger than the spread.
#pragma once

struct MomentsState {
  u64 n;
  f64 mean;
  f64 m2;
};

WL_DEVICE MomentsState combine_moments(const MomentsState& a, const MomentsState& b) {
  if (a.n == 0) return b;
  if (b.n == 0) return a;
  const f64 n = static_cast<f64>(a.n + b.n), share = static_cast<f64>(b.n) / n;
  const f64 delta = b.mean - a.mean;
  return MomentsState{a.n + b.n, a.mean + delta * share,
                      a.m2 + b.m2 + delta * delta * share * static_cast<f64>(a.n)};
}

// Words: count, mean, sum of squares, and a lock that shared copies are changed under.
struct Moments {
  static constexpr u32 words = 4;
  WL_MEMBER static u64 initial(u32) { return 0; }
  WL_MEMBER static MomentsState of(u64 n, u64 mean, u64 m2) {
    MomentsState state{n, 0, 0};
    copy_bits(state.mean, mean);
    copy_bits(state.m2, m2);
    return state;
  }
  WL_MEMBER static void update(const PrivateWords& w, u32 at, f64 v) {
    const MomentsState old = of(w.get(at), w.get(at + 1), w.get(at + 2));
    const f64 before = v - old.mean;
    const f64 mean = old.mean + before / static_cast<f64>(old.n + 1);
    u64 bits;
    w.set(at, old.n + 1);
    copy_bits(bits, mean);
    w.set(at + 1, bits);
    copy_bits(bits, old.m2 + before * (v - mean));
    w.set(at + 2, bits);
  }
  WL_MEMBER static void put(const GlobalWords& w, u32 at, const MomentsState& more) {
    bool done = false;
    while (!done) {
      if (atomic_cas_u64(w.base + at + 3, 0, 1) == 0) {
        thread_fence();
        const MomentsState old = of(locked_read(w.base + at), locked_read(w.base + at + 1),
                                    locked_read(w.base + at + 2));
        const MomentsState both = combine_moments(old, more);
        u64 bits;
        locked_write(w.base + at, both.n);
        copy_bits(bits, both.mean);
        locked_write(w.base + at + 1, bits);
        copy_bits(bits, both.m2);
        locked_write(w.base + at + 2, bits);
        thread_fence();
        atomic_exch_u64(w.base + at + 3, 0);
        done = true;
      }
    }
  }
  WL_MEMBER static void update(const GlobalWords& w, u32 at, f64 v) {
    // A value that is no number has no distance from itself.
    put(w, at, MomentsState{1, v, v - v});
  }
  WL_MEMBER static void combine(u64* into, const u64* other) {
    const MomentsState both = combine_moments(of(into[0], into[1], into[2]), of(other[0], other[1], other[2]));
    into[0] = both.n;
    copy_bits(into[1], both.mean);
    copy_bits(into[2], both.m2);
  }
  WL_MEMBER static void merge(const GlobalWords& to, u32 at, const u64* words) {
    if (words[0] != 0) put(to, at, of(words[0], words[1], words[2]));
  }
};
