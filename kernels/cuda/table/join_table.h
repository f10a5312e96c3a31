// A relation that rows of a pipeline are matched with.
//
//   heads   [ - | 7 | - | 2 | ... ]     a row of the bucket, or NO_ROW
//                 |
//   next    row 7 -> row 4 -> NO_ROW    the bucket's other rows
//
// Rows are numbers of the relation's rows; keys and payload are read from its columns.
// Several rows of a bucket have one key or, in a hashed table, different ones.
// A bucket is a key's distance from the smallest key (dense: nothing else is in it), or
// the low bits of a hash (then the keys are compared).
#pragma once

static constexpr u32 NO_ROW = ~0u;

struct JoinTableRef {
  u32* heads;
  u32* next;
  u64 n_buckets;  // of a hashed table a power of two; without keys the relation's rows
  i64 min;        // of a dense table the key of bucket 0
  u8* matched;    // a byte a row that a full join sets, or null
};

// What is told to the host when the table is complete.
struct JoinTableFacts {
  u32 has_duplicates;
  u32 has_null_keys;
  u32 n_rows;
};

template <class T>
WL_DEVICE u64 join_hash(u64 h, const T& v) {
  return mix(h ^ key_word(v));
}
// Equal to the hash of the same number in a narrower register.
WL_DEVICE u64 join_hash(u64 h, i128 v) { return mix(h ^ static_cast<u64>(v)); }
WL_DEVICE u64 join_hash(u64 h, const Text& text) {
  u64 word = text.length;
  for (u32 i = 0; i < text.length; ++i) {
    word = word << 8 | byte_at(text, i);
    if ((i & 7) == 7) h = mix(h ^ word);
  }
  return mix(h ^ word);
}
template <class T>
WL_DEVICE u64 join_hash(u64 h, const Opt<T>& v) {
  return v.valid ? join_hash(h, v.value) : mix(~h);
}

WL_DEVICE u64 hashed_bucket(const JoinTableRef& table, u64 h) { return h & (table.n_buckets - 1); }

// The bucket of a key of a dense table, or n_buckets when it has none.
template <class T>
WL_DEVICE u64 dense_bucket(const JoinTableRef& table, T key) {
  const i128 distance = static_cast<i128>(key) - table.min;
  return distance >= 0 && distance < static_cast<i128>(table.n_buckets) ? static_cast<u64>(distance)
                                                                        : table.n_buckets;
}
WL_DEVICE u64 dense_bucket(const JoinTableRef& table, i64 key) {
  // As unsigned numbers a key below min is far beyond the last bucket.
  const u64 distance = static_cast<u64>(key) - static_cast<u64>(table.min);
  return distance < table.n_buckets ? distance : table.n_buckets;
}
WL_DEVICE u64 dense_bucket(const JoinTableRef& table, i32 key) {
  return dense_bucket(table, static_cast<i64>(key));
}

WL_DEVICE u32 first_row_of(const JoinTableRef& table, u64 bucket) {
  return bucket < table.n_buckets ? table.heads[bucket] : NO_ROW;
}

// What a thread tells of the rows that it inserted. It does so once: millions of stores to
// one address would wait for each other.
struct InsertedRows {
  u32 n_rows;
  bool has_duplicates;
  bool has_null_keys;

  // All lanes of the warp must get here.
  WL_MEMBER void tell(JoinTableFacts* facts) {
    WL_UNROLL
    for (u32 delta = WARP_LANES / 2; delta > 0; delta /= 2) n_rows += shuffle_down(n_rows, delta);
    const bool duplicates = any_lane(has_duplicates);
    const bool null_keys = any_lane(has_null_keys);
    if (lane_index() != 0) return;
    if (n_rows != 0) atomic_add_u32(&facts->n_rows, n_rows);
    if (duplicates) facts->has_duplicates = 1;
    if (null_keys) facts->has_null_keys = 1;
  }
};

// A table that only tells whether there is a row has one byte a bucket for `heads`.
WL_DEVICE void set_flag(const JoinTableRef& table, InsertedRows& inserted, u64 bucket) {
  ++inserted.n_rows;
  // All that get here write the same.
  if (bucket < table.n_buckets) store_relaxed(reinterpret_cast<u8*>(table.heads) + bucket, u8{1});
}
WL_DEVICE bool has_row(const JoinTableRef& table, u64 bucket) {
  return bucket < table.n_buckets && reinterpret_cast<const u8*>(table.heads)[bucket] != 0;
}

WL_DEVICE void insert_row(const JoinTableRef& table, InsertedRows& inserted, u64 bucket, u32 row) {
  // Rows that follow each other often have one key. Those of the lanes that are here are
  // linked by the lanes alone, and only the first goes to the bucket.
  const u32 lanes = active_lanes();
  const u32 peers = match_among(lanes, bucket);
  const u32 first = ffs(peers) - 1;
  const u32 after = peers & ~lanes_before() & ~(1u << lane_index());
  u32 other = NO_ROW;
  if (lane_index() == first) other = atomic_exch_u32(table.heads + bucket, row);
  other = shuffle_among(lanes, other, first);
  const u32 following = shuffle_among(lanes, row, after != 0 ? ffs(after) - 1 : lane_index());
  table.next[row] = after != 0 ? following : other;
  ++inserted.n_rows;
  inserted.has_duplicates |= after != 0 || other != NO_ROW;
}

// Keeps that a row was matched. Whoever reads it does so in a later launch; the check
// keeps rows that many others match from being written by all of those.
WL_DEVICE void mark_matched(const JoinTableRef& table, u32 row) {
  if (load_relaxed(table.matched + row) == 0) store_relaxed(table.matched + row, u8{1});
}

// The rows of a bucket that match, one after another; with OrNull, NO_ROW once when
// none does. Unique says that a bucket has one row at most.
template <bool Unique, bool OrNull>
struct Matches {
  u32 row;
  u32 candidate;
  bool any;

  template <class IsMatch>
  WL_MEMBER bool next(const JoinTableRef& table, IsMatch is_match) {
    while (candidate != NO_ROW) {
      const u32 at = candidate;
      candidate = Unique ? NO_ROW : table.next[at];
      if (is_match(at)) {
        row = at;
        any = true;
        return true;
      }
    }
    if (!OrNull || any) return false;
    row = NO_ROW;
    any = true;
    return true;
  }
};

template <bool Unique, class IsMatch>
WL_DEVICE bool any_match(const JoinTableRef& table, u32 first, IsMatch is_match) {
  for (u32 row = first; row != NO_ROW; row = Unique ? NO_ROW : table.next[row]) {
    if (is_match(row)) return true;
  }
  return false;
}

// A row of the bucket that matches, or NO_ROW.
template <bool Unique, class IsMatch>
WL_DEVICE u32 any_match_of(const JoinTableRef& table, u32 first, IsMatch is_match) {
  for (u32 row = first; row != NO_ROW; row = Unique ? NO_ROW : table.next[row]) {
    if (is_match(row)) return row;
  }
  return NO_ROW;
}

// Without keys: all rows of the relation that match, one after another; with OrNull, NO_ROW
// once when none does.
template <bool OrNull>
struct AllMatches {
  u32 row;
  u32 candidate;
  bool any;

  template <class IsMatch>
  WL_MEMBER bool next(const JoinTableRef& table, IsMatch is_match) {
    while (candidate < table.n_buckets) {
      const u32 at = candidate++;
      if (is_match(at)) {
        row = at;
        any = true;
        return true;
      }
    }
    if (!OrNull || any) return false;
    row = NO_ROW;
    any = true;
    return true;
  }
};

// Without keys: a row that matches, or NO_ROW.
template <class IsMatch>
WL_DEVICE u32 any_match_of_all(const JoinTableRef& table, IsMatch is_match) {
  for (u32 row = 0; row < table.n_buckets; ++row) {
    if (is_match(row)) return row;
  }
  return NO_ROW;
}
