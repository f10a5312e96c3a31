// Totals over the frames of rows in window order.
//
// Running totals serve frames that start with their partition, and those of functions that
// can be taken back: the rows [first, end) of a partition have the total of all up to
// `end` less that of all up to `first`.
//
//   place      | tile 0        | tile 1        |
//   partition  [a      ][b                     ]
//   running    a a+a .. b b+b  | b b+b ..            restarts in every tile
//   before_tile  none          | the b's of tile 0    restarts in every partition
//
// Trees serve all other frames: a node is the total of TREE_FAN nodes below it, so a
// frame of n rows is made of about 2 (TREE_FAN - 1) log n nodes, wherever it lies.
#pragma once

static constexpr u32 TOTALS_ROUNDS = 8;
static constexpr u64 TOTALS_TILE_ROWS = u64(TOTALS_ROUNDS) * WL_BLOCK_THREADS;
static constexpr u64 TREE_FAN = 4;

// ---- what is added up ----
//
// T holds a total, none() is that of no row, of(value) that of one, add(a, b) that of the
// rows of `a` and then those of `b`; less(a, b) takes the rows of `b` back.

// Rows whose value is there.
struct CountRows {
  using T = u32;
  WL_MEMBER static T none() { return 0; }
  template <class V>
  WL_MEMBER static T of(const V& v) {
    return is_valid(v) ? 1 : 0;
  }
  WL_MEMBER static T add(T a, T b) { return a + b; }
  WL_MEMBER static T less(T a, T b) { return a - b; }
};

// Sum of values whose total R is proved to hold, or of floats, which are never taken back.
template <class R>
struct SumAs {
  using T = R;
  WL_MEMBER static T none() { return R{}; }
  template <class V>
  WL_MEMBER static T of(const V& v) {
    return is_valid(v) ? static_cast<R>(value_of(v)) : R{};
  }
  WL_MEMBER static T add(T a, T b) { return a + b; }
  WL_MEMBER static T less(T a, T b) { return a - b; }
};

// Sum in 192 bits, which no total of 2^31 values of 128 bits leaves.
struct SumWide {
  struct T {
    u64 low, middle, high;
  };
  WL_MEMBER static T none() { return T{0, 0, 0}; }
  template <class V>
  WL_MEMBER static T of(const V& v) {
    const i128 value = is_valid(v) ? static_cast<i128>(value_of(v)) : 0;
    return T{static_cast<u64>(value), static_cast<u64>(value >> 64), static_cast<u64>(value >> 127)};
  }
  WL_MEMBER static u128 lower(const T& t) { return static_cast<u128>(t.middle) << 64 | t.low; }
  WL_MEMBER static T add(const T& a, const T& b) {
    const u128 sum = lower(a) + lower(b);
    return T{static_cast<u64>(sum), static_cast<u64>(sum >> 64), a.high + b.high + (sum < lower(a) ? 1 : 0)};
  }
  WL_MEMBER static T less(const T& a, const T& b) {
    const u128 rest = lower(a) - lower(b);
    return T{static_cast<u64>(rest), static_cast<u64>(rest >> 64), a.high - b.high - (lower(a) < lower(b) ? 1 : 0)};
  }
};

// The smallest or largest value, if there is one.
template <class R, bool IsMax>
struct ExtremeOf {
  struct T {
    R value;
    u32 is_there;
  };
  WL_MEMBER static T none() { return T{R{}, 0}; }
  template <class V>
  WL_MEMBER static T of(const V& v) {
    return T{static_cast<R>(value_of(v)), is_valid(v) ? 1u : 0u};
  }
  WL_MEMBER static T add(const T& a, const T& b) {
    if (b.is_there == 0) return a;
    if (a.is_there == 0) return b;
    return (IsMax ? less_values(a.value, b.value) : less_values(b.value, a.value)) ? b : a;
  }
};

// A total as an integer of 128 bits; a fault where it has more.
template <class R>
WL_DEVICE i128 whole_total(Thread&, R total, u32) {
  return static_cast<i128>(total);
}
WL_DEVICE i128 whole_total(Thread& thread, const SumWide::T& total, u32 code) {
  const i128 lower = static_cast<i128>(SumWide::lower(total));
  if (total.high != static_cast<u64>(lower >> 127)) raise(thread, code);
  return lower;
}

template <class R, class T>
WL_DEVICE Opt<R> extreme_value(const T& total) {
  return Opt<R>{total.value, total.is_there != 0};
}

// ---- running totals ----

// The total of some neighbouring rows, of those since the last partition started when one
// did.
template <class T>
struct Run {
  T total;
  u32 starts;
};

template <class F>
WL_DEVICE Run<typename F::T> joined(const Run<typename F::T>& a, const Run<typename F::T>& b) {
  if (b.starts != 0) return b;
  return Run<typename F::T>{F::add(a.total, b.total), a.starts};
}

template <class F>
WL_DEVICE Run<typename F::T> joined_lanes(Run<typename F::T> own) {
  WL_UNROLL
  for (u32 delta = 1; delta < WARP_LANES; delta *= 2) {
    const Run<typename F::T> before = shuffle_up(own, delta);
    if (lane_index() >= delta) own = joined<F>(before, own);
  }
  return own;
}

template <class T>
struct RunningRef {
  T* running;
  Run<T>* before_tile;
};

// Every tile by itself: running totals of its rows, and its total where `before_tile`
// will be. `value(place)` gives what is added up.
template <class F, class Value>
WL_DEVICE void add_up_tiles(u64 n_rows, const WindowGroups& groups, const RunningRef<typename F::T>& ref, Value value) {
  using Own = Run<typename F::T>;
  WL_SHARED Own of_warp[WL_BLOCK_THREADS / WARP_LANES];
  for (u64 tile = block_index(); tile * TOTALS_TILE_ROWS < n_rows; tile += grid_blocks()) {
    const u64 first = tile * TOTALS_TILE_ROWS + u64(warp_index()) * (TOTALS_ROUNDS * WARP_LANES) + lane_index();
    Own upto[TOTALS_ROUNDS];
    Own sum{F::none(), 0};
    WL_UNROLL
    for (u32 r = 0; r < TOTALS_ROUNDS; ++r) {
      const u64 at = first + r * WARP_LANES;
      Own own{F::none(), 0};
      if (at < n_rows) {
        own = Own{F::of(value(at)), groups.partition_first[groups.partition_of[at]] == at ? 1u : 0u};
      }
      upto[r] = joined<F>(sum, joined_lanes<F>(own));
      sum = shuffle(upto[r], WARP_LANES - 1);
    }
    if (lane_index() == 0) of_warp[warp_index()] = sum;
    wl_barrier();
    Own before{F::none(), 0};
    Own all{F::none(), 0};
    WL_UNROLL
    for (u32 w = 0; w < WL_BLOCK_THREADS / WARP_LANES; ++w) {
      if (w < warp_index()) before = joined<F>(before, of_warp[w]);
      all = joined<F>(all, of_warp[w]);
    }
    WL_UNROLL
    for (u32 r = 0; r < TOTALS_ROUNDS; ++r) {
      const u64 at = first + r * WARP_LANES;
      if (at < n_rows) ref.running[at] = joined<F>(before, upto[r]).total;
    }
    if (thread_index() == 0) ref.before_tile[tile] = all;
    wl_barrier();
  }
}

// Totals of tiles to totals of what is before each tile. One block does it, a block of
// tiles at a time.
template <class F>
WL_DEVICE void carry_over_tiles(u64 n_rows, const RunningRef<typename F::T>& ref) {
  using Own = Run<typename F::T>;
  WL_SHARED Own of_warp[WL_BLOCK_THREADS / WARP_LANES];
  const u64 n_tiles = (n_rows + TOTALS_TILE_ROWS - 1) / TOTALS_TILE_ROWS;
  Own before{F::none(), 0};
  for (u64 base = 0; base < n_tiles; base += block_threads()) {
    const u64 tile = base + thread_index();
    const Own upto = joined_lanes<F>(tile < n_tiles ? ref.before_tile[tile] : Own{F::none(), 0});
    if (lane_index() == WARP_LANES - 1) of_warp[warp_index()] = upto;
    wl_barrier();
    Own start = before;
    WL_UNROLL
    for (u32 w = 0; w < WL_BLOCK_THREADS / WARP_LANES; ++w) {
      if (w < warp_index()) start = joined<F>(start, of_warp[w]);
      before = joined<F>(before, of_warp[w]);
    }
    const Own earlier = shuffle_up(upto, 1);
    if (lane_index() > 0) start = joined<F>(start, earlier);
    if (tile < n_tiles) ref.before_tile[tile] = start;
    wl_barrier();
  }
}

// The total of a partition's rows up to this place.
template <class F>
WL_DEVICE typename F::T running_total(const RunningRef<typename F::T>& ref, u64 partition_first, u64 at) {
  const u64 tile = at / TOTALS_TILE_ROWS;
  const auto own = ref.running[at];
  return partition_first < tile * TOTALS_TILE_ROWS ? F::add(ref.before_tile[tile].total, own) : own;
}

// The total of a frame that starts with the partition.
template <class F>
WL_DEVICE typename F::T total_from_start(const RunningRef<typename F::T>& ref, const Place& place, const Span& frame) {
  return rows_in(frame) == 0 ? F::none() : running_total<F>(ref, place.first, frame.end - 1);
}

// The total of any frame, of a function that can be taken back.
template <class F>
WL_DEVICE typename F::T total_between(const RunningRef<typename F::T>& ref, const Place& place, const Span& frame) {
  const auto upto = total_from_start<F>(ref, place, frame);
  if (rows_in(frame) == 0 || frame.first == place.first) return upto;
  return F::less(upto, running_total<F>(ref, place.first, frame.first - 1));
}

// ---- values that are there ----
//
// A running count of them, which only grows, also finds the place of each: the first up to
// which the partition has so many.

WL_DEVICE u64 values_upto(const RunningRef<u32>& ref, const Place& place, u64 at) {
  return running_total<CountRows>(ref, place.first, at);
}
WL_DEVICE u64 values_before(const RunningRef<u32>& ref, const Place& place, u64 at) {
  return at > place.first ? values_upto(ref, place, at - 1) : 0;
}
WL_DEVICE u64 place_of_value(const RunningRef<u32>& ref, const Place& place, u64 first, u64 end, u64 n) {
  return first_place(first, end, [&](u64 at) { return values_upto(ref, place, at) >= n; });
}

// As value_at_distance and value_in_frame, but rows without a value do not count. The
// distance is not 0.
template <class R, class Value, class D>
WL_DEVICE Opt<R> value_at_distance_of_values(const RunningRef<u32>& ref, const Place& place, i64 distance,
                                             Value value, const D& otherwise) {
  u64 to = place.end;
  if (distance < 0) {
    const u64 before = values_before(ref, place, place.at), n = 0 - static_cast<u64>(distance);
    if (n <= before) to = place_of_value(ref, place, place.first, place.at, before - n + 1);
  } else {
    const u64 n = values_upto(ref, place, place.at) + static_cast<u64>(distance);
    to = place_of_value(ref, place, place.at + 1, place.end, n);
  }
  return to < place.end ? as_opt(convert<R>(value(to))) : as_opt(convert<R>(otherwise));
}
template <class R, class Value>
WL_DEVICE Opt<R> value_in_frame_of_values(const RunningRef<u32>& ref, const Place& place, const Span& frame, i64 n,
                                          Value value) {
  if (rows_in(frame) == 0) return null<R>();
  const u64 before = values_before(ref, place, frame.first), upto = values_upto(ref, place, frame.end - 1);
  const u64 distance = n < 0 ? 0 - static_cast<u64>(n) : static_cast<u64>(n);
  if (distance == 0 || distance > upto - before) return null<R>();
  const u64 wanted = n < 0 ? upto + 1 - distance : before + distance;
  return as_opt(convert<R>(value(place_of_value(ref, place, frame.first, frame.end, wanted))));
}

// ---- trees ----
//
// All levels stand one after another: n leaves, then n / TREE_FAN nodes, and so on; a node
// that would be over fewer than TREE_FAN is not there and not needed.

template <class F, class Value>
WL_DEVICE void plant_leaves(u64 n_rows, typename F::T* tree, Value value) {
  for (u64 at = first_row(); at < n_rows; at += row_step()) tree[at] = F::of(value(at));
}

// One level above another.
struct TreeLevel {
  alignas(16) u64 n_above;
  alignas(16) const void* below;
  alignas(16) void* above;
};

template <class F>
WL_DEVICE void grow_level(const TreeLevel& p) {
  using T = typename F::T;
  for (u64 at = first_row(); at < p.n_above; at += row_step()) {
    const T* const below = static_cast<const T*>(p.below) + at * TREE_FAN;
    T total = below[0];
    WL_UNROLL
    for (u64 i = 1; i < TREE_FAN; ++i) total = F::add(total, below[i]);
    static_cast<T*>(p.above)[at] = total;
  }
}

template <class F>
WL_DEVICE typename F::T total_of_tree(const typename F::T* tree, u64 n_rows, const Span& frame) {
  auto left = F::none(), right = F::none();
  u64 first = frame.first, end = frame.end, n = n_rows;
  const auto* level = tree;
  while (first < end) {
    for (; first < end && first % TREE_FAN != 0; ++first) left = F::add(left, level[first]);
    for (; first < end && end % TREE_FAN != 0; --end) right = F::add(level[end - 1], right);
    level += n;
    n /= TREE_FAN;
    first /= TREE_FAN;
    end /= TREE_FAN;
  }
  return F::add(left, right);
}
