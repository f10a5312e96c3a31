// Columns in device memory and how one row of them is read.
#pragma once

// A column: `values` holds one element a row (`stored` type of the generator),
// `validity` one bit a row, least significant first, or null when no row is null.
// Keep in step with kernels::columns.
struct ColumnRef {
  const void* values;
  const u8* validity;
};

// T is the register, S what is stored: columns are stored as narrow as their
// values allow and widened when they are read.
template <class T, class S>
WL_DEVICE T load(const ColumnRef& column, u64 row) {
  return static_cast<T>(static_cast<const S*>(column.values)[row]);
}

template <class T, class S>
WL_DEVICE Opt<T> load_optional(const ColumnRef& column, u64 row) {
  if (column.validity != nullptr && ((column.validity[row >> 3] >> (row & 7)) & 1) == 0) {
    return null<T>();
  }
  return some(load<T, S>(column, row));
}

// A column that a kernel writes: elements, and one byte a row that says whether the
// value is there (null when none can be missing).
struct OutputRef {
  void* values;
  u8* validity;
};

// S is what is stored.
template <class S, class V>
WL_DEVICE void store(const OutputRef& output, u64 at, const V& v) {
  static_cast<S*>(output.values)[at] = static_cast<S>(value_of(v));
  if constexpr (OptTraits<V>::optional) output.validity[at] = is_valid(v) ? 1 : 0;
}
