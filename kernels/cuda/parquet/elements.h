// Columns of elements: their interval, and the same values in narrower elements.
#pragma once

// Notes the interval of what the lanes met as number `number`; an empty one has its least
// value above its largest.
template <class T>
WL_DEVICE void write_range(i128* ranges, u64 number, bool any, T least, T most) {
  WL_UNROLL
  for (u32 mask = WARP_LANES / 2; mask > 0; mask /= 2) {
    const T other_least = shuffle_xor(least, mask), other_most = shuffle_xor(most, mask);
    const bool other_any = shuffle_xor(u32(any), mask) != 0;
    if (other_any) {
      least = any ? min_of(least, other_least) : other_least;
      most = any ? max_of(most, other_most) : other_most;
      any = true;
    }
  }
  if (lane_index() == 0) {
    ranges[2 * number] = any ? i128(least) : 1;
    ranges[2 * number + 1] = any ? i128(most) : 0;
  }
}

struct NarrowPass {
  u64 n;
  const void* from;
  void* to;
};

// What stands under a null is cut off like any value; nobody reads it.
template <class To, class From>
WL_DEVICE void narrow(const NarrowPass& p) {
  const From* const from = static_cast<const From*>(p.from);
  To* const to = static_cast<To*>(p.to);
  for (u64 i = global_thread_index(); i < p.n; i += grid_threads()) to[i] = static_cast<To>(from[i]);
}
