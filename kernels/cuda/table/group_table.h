// Many groups: an open-addressing table of group numbers over an array of groups.
//
//   slots   [ 0 | 7+2 | 0 | 1 | 4+2 | ... ]      0 empty, 1 being made, else number + 2
//                   |
//   rows    number 7: [ key words | state words ]
//
// Key and state stand together, so a row that hits its group touches one or two
// sectors. The host makes the table at least twice as large as the groups that can
// be there after the launch, so a probe always ends.
#pragma once

struct GroupTableRef {
  u32* slots;
  u64* rows;
  u32* n_groups;
  u64 mask;  // number of slots - 1, a power of two - 1
};

// How far the threads of a launch came before the table was nearly full. The host makes
// a larger one then and launches again.
struct GroupProgressRef {
  u64* done;     // a thread's: how far its next row is from its first
  u32* stopped;  // set when some thread has rows left
  u64 limit;     // groups from which on no thread begins another tile
};

// Whether this thread must not begin another tile: what threads have under way still fits
// above the limit.
WL_DEVICE bool must_stop(const GroupTableRef& table, const GroupProgressRef& progress) {
  if (load_relaxed(table.n_groups) <= progress.limit) return false;
  *progress.stopped = 1;
  return true;
}

// The group of this key, made with the initial states if it is new: the address of
// its key words, which the state words follow.
template <u32 KeyWords, u32 StateWords, class Initial>
WL_DEVICE u64* find_or_insert(const GroupTableRef& table, const u64 (&key)[KeyWords], Initial initial) {
  for (u64 at = hash_key(key, KeyWords) & table.mask;; at = (at + 1) & table.mask) {
    u32 slot = load_acquire(table.slots + at);
    if (slot == 0) {
      slot = atomic_cas_u32(table.slots + at, 0, 1);
      if (slot == 0) {
        const u32 group = next_number(table.n_groups);
        u64* const row = table.rows + static_cast<u64>(group) * (KeyWords + StateWords);
        WL_UNROLL
        for (u32 w = 0; w < KeyWords; ++w) row[w] = key[w];
        WL_UNROLL
        for (u32 w = 0; w < StateWords; ++w) row[KeyWords + w] = initial(w);
        store_release(table.slots + at, group + 2);
        return row;
      }
    }
    while (slot == 1) slot = load_acquire(table.slots + at);
    u64* const row = table.rows + static_cast<u64>(slot - 2) * (KeyWords + StateWords);
    bool same = true;
    WL_UNROLL
    for (u32 w = 0; w < KeyWords; ++w) same = same && row[w] == key[w];
    if (same) return row;
  }
}

// Whether no thread had this key before; it is in the set afterwards. A set is a table of
// groups without states.
template <u32 KeyWords>
WL_DEVICE bool insert_new(const GroupTableRef& set, const u64 (&key)[KeyWords]) {
  for (u64 at = hash_key(key, KeyWords) & set.mask;; at = (at + 1) & set.mask) {
    u32 slot = load_acquire(set.slots + at);
    if (slot == 0) {
      slot = atomic_cas_u32(set.slots + at, 0, 1);
      if (slot == 0) {
        const u32 number = atomic_add_u32(set.n_groups, 1);
        u64* const row = set.rows + static_cast<u64>(number) * KeyWords;
        WL_UNROLL
        for (u32 w = 0; w < KeyWords; ++w) row[w] = key[w];
        store_release(set.slots + at, number + 2);
        return true;
      }
    }
    while (slot == 1) slot = load_acquire(set.slots + at);
    const u64* const row = set.rows + static_cast<u64>(slot - 2) * KeyWords;
    bool same = true;
    WL_UNROLL
    for (u32 w = 0; w < KeyWords; ++w) same = same && row[w] == key[w];
    if (same) return false;
  }
}
