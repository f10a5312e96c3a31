// Groups that are numbered by their keys, and a thread's own copy of their states.
#pragma once

// A thread's states of all groups: `stride` is 1 in registers, and the number of
// threads of the block in shared memory, so that neighbours use different banks.
struct OwnWords {
  u64* base;
  u32 stride;
  u32 words;
  WL_MEMBER void set(u32 i, u64 v) const { base[static_cast<u64>(i) * stride] = v; }
  WL_MEMBER PrivateWords group(u32 g) const {
    return PrivateWords{base + static_cast<u64>(g) * words * stride, stride};
  }
};

// A key's number among its values; null comes last.
template <class T>
WL_DEVICE u32 group_code(const T& key, i64 min, u32 n_values) {
  return is_valid(key) ? static_cast<u32>(static_cast<i64>(value_of(key)) - min) : n_values;
}

static constexpr u64 NO_FAULT = ~0ULL;

// A key's place among dense groups; null comes last.
template <class T>
WL_DEVICE u64 dense_group(const T& key, i64 min, u64 n_values) {
  return is_valid(key) ? static_cast<u64>(static_cast<i64>(value_of(key)) - min) : n_values;
}

// Rows are dealt to threads one by one, so that neighbours read neighbours.
WL_DEVICE u64 first_row() {
  return static_cast<u64>(block_index()) * block_threads() + thread_index();
}
WL_DEVICE u64 row_step() { return static_cast<u64>(grid_blocks()) * block_threads(); }

// A row that may be read although it is past the end: the last one, whose value is
// then not used.
WL_DEVICE u64 clamp_row(u64 row, u64 n_rows) { return row < n_rows ? row : n_rows - 1; }

WL_DEVICE void report_fault(const Thread& thread, u64* first_fault) {
  if (thread.first_fault != NO_FAULT) atomic_min_u64(first_fault, thread.first_fault);
}
