// The functions of one row in window order. What `WindowGroups` points at is explained in
// window_groups.h.
#pragma once

struct WindowGroups {
  const u32* order;
  const u32* partition_of;
  const u32* peers_of;
  const u32* partition_first;
  const u32* peers_first;
};

// A row's place, and the places of its partition and of its peers: from the first up to
// the end, which is the first place after it.
struct Place {
  u64 at;
  u64 first;
  u64 end;
  u64 peers_first;
  u64 peers_end;
};

WL_DEVICE Place place_of(const WindowGroups& groups, u64 at) {
  const u32 partition = groups.partition_of[at], peers = groups.peers_of[at];
  return Place{at, groups.partition_first[partition], groups.partition_first[partition + 1],
               groups.peers_first[peers], groups.peers_first[peers + 1]};
}

// ---- numbers of rows and groups ----

WL_DEVICE i32 row_number(const Place& place) { return static_cast<i32>(place.at - place.first + 1); }
WL_DEVICE i32 rank_of(const Place& place) { return static_cast<i32>(place.peers_first - place.first + 1); }
WL_DEVICE i32 dense_rank_of(const WindowGroups& groups, const Place& place) {
  return static_cast<i32>(groups.peers_of[place.at] - groups.peers_of[place.first] + 1);
}
// (rank - 1) / (rows of the partition - 1); 0 in a partition of one row.
WL_DEVICE f64 percent_rank_of(const Place& place) {
  const u64 others = place.end - place.first - 1;
  return others == 0 ? 0.0 : static_cast<f64>(place.peers_first - place.first) / static_cast<f64>(others);
}
// The part of the partition that is not after this row.
WL_DEVICE f64 cume_dist_of(const Place& place) {
  return static_cast<f64>(place.peers_end - place.first) / static_cast<f64>(place.end - place.first);
}
// The bucket of `n` as equal ones as there can be; the first ones are larger by a row.
WL_DEVICE i32 ntile_of(const Place& place, u64 n) {
  const u64 rows = place.end - place.first, row = place.at - place.first;
  const u64 small = rows / n, n_large = rows % n;
  const u64 in_large = n_large * (small + 1);
  return static_cast<i32>(row < in_large ? row / (small + 1) + 1 : n_large + (row - in_large) / small + 1);
}

// ---- values of other rows ----

// The value of the row that is `distance` places further on, or `otherwise` where the
// partition has none.
template <class R, class Value, class D>
WL_DEVICE Opt<R> value_at_distance(const Place& place, i64 distance, Value value, const D& otherwise) {
  const i64 to = static_cast<i64>(place.at) + distance;
  if (to >= static_cast<i64>(place.first) && to < static_cast<i64>(place.end)) {
    return as_opt(convert<R>(value(static_cast<u64>(to))));
  }
  return as_opt(convert<R>(otherwise));
}

// The places of a frame, from the first up to the end; none when the end is not after it.
struct Span {
  u64 first;
  u64 end;
};

WL_DEVICE u64 rows_in(const Span& frame) { return frame.end > frame.first ? frame.end - frame.first : 0; }

// The value of the frame's row number `n`, counted from 1, or from the end when `n` is
// negative. There is no row of number 0.
template <class R, class Value>
WL_DEVICE Opt<R> value_in_frame(const Span& frame, i64 n, Value value) {
  const u64 rows = rows_in(frame);
  const u64 distance = n < 0 ? 0 - static_cast<u64>(n) : static_cast<u64>(n);
  if (distance == 0 || distance > rows) return null<R>();
  return as_opt(convert<R>(value(n < 0 ? frame.end - distance : frame.first + distance - 1)));
}

// ---- frames ----

// `from` less `n`, but not before `first`; and more `n`, but not after `end`.
WL_DEVICE u64 places_back(u64 from, u64 first, u64 n) { return from - first > n ? from - n : first; }
WL_DEVICE u64 places_ahead(u64 from, u64 end, u64 n) { return end - from > n ? from + n : end; }

// Where a frame of ROWS starts or ends, `n` rows before or after this one.
WL_DEVICE u64 rows_start_before(const Place& p, u64 n) { return places_back(p.at, p.first, n); }
WL_DEVICE u64 rows_start_after(const Place& p, u64 n) { return places_ahead(p.at, p.end, n); }
WL_DEVICE u64 rows_end_before(const Place& p, u64 n) { return places_back(p.at + 1, p.first, n); }
WL_DEVICE u64 rows_end_after(const Place& p, u64 n) { return places_ahead(p.at + 1, p.end, n); }

// Where a frame of GROUPS starts or ends, `n` groups of peers before or after this one's.
WL_DEVICE u64 groups_before(const WindowGroups& g, const Place& p, u64 own, u64 n) {
  return g.peers_first[places_back(own, g.peers_of[p.first], n)];
}
WL_DEVICE u64 groups_after(const WindowGroups& g, const Place& p, u64 own, u64 n) {
  return g.peers_first[places_ahead(own, u64(g.peers_of[p.end - 1]) + 1, n)];
}
WL_DEVICE u64 groups_start_before(const WindowGroups& g, const Place& p, u64 n) {
  return groups_before(g, p, g.peers_of[p.at], n);
}
WL_DEVICE u64 groups_start_after(const WindowGroups& g, const Place& p, u64 n) {
  return groups_after(g, p, g.peers_of[p.at], n);
}
WL_DEVICE u64 groups_end_before(const WindowGroups& g, const Place& p, u64 n) {
  return groups_before(g, p, u64(g.peers_of[p.at]) + 1, n);
}
WL_DEVICE u64 groups_end_after(const WindowGroups& g, const Place& p, u64 n) {
  return groups_after(g, p, u64(g.peers_of[p.at]) + 1, n);
}

// The first place from `first` on, up to `end`, at which `holds` is true; it is true at
// every place after that too.
template <class Holds>
WL_DEVICE u64 first_place(u64 first, u64 end, Holds holds) {
  while (first < end) {
    const u64 middle = first + (end - first) / 2;
    if (holds(middle)) {
      end = middle;
    } else {
      first = middle + 1;
    }
  }
  return first;
}

// The sum or difference of a key and an offset: exact for integers.
WL_DEVICE f64 key_moved(f64 key, f64 offset, bool up) { return up ? key + offset : key - offset; }
WL_DEVICE f32 key_moved(f32 key, f32 offset, bool up) { return up ? key + offset : key - offset; }
template <class N>
WL_DEVICE i128 key_moved(i128 key, N offset, bool up) {
  // A key of 38 digits and such an offset do not leave 128 bits.
  return up ? key + static_cast<i128>(offset) : key - static_cast<i128>(offset);
}

// Where a frame of RANGE starts (or, with `IsEnd`, ends): R holds keys and what they are
// moved by, `key(place)` gives the key of a row, and `after` says whether the offset goes
// towards the end of the partition. Rows without a key are peers of one another only.
template <class R, bool Descending, bool NullsFirst, bool IsEnd, class Key, class N>
WL_DEVICE u64 range_bound(const Place& place, Key key, N offset, bool after) {
  const auto own = key(place.at);
  if (!is_valid(own)) return IsEnd ? place.peers_end : place.peers_first;
  u64 first = place.first, end = place.end;
  if constexpr (OptTraits<decltype(key(0))>::optional) {
    if (NullsFirst) {
      first = first_place(first, place.at, [&](u64 at) { return is_valid(key(at)); });
    } else {
      end = first_place(place.at, end, [&](u64 at) { return !is_valid(key(at)); });
    }
  }
  const R to = key_moved(static_cast<R>(value_of(own)), offset, after != Descending);
  const auto is_before = [](R a, R b) { return Descending ? less_values(b, a) : less_values(a, b); };
  return first_place(first, end, [&](u64 at) {
    const R here = static_cast<R>(value_of(key(at)));
    return IsEnd ? is_before(to, here) : !is_before(here, to);
  });
}
