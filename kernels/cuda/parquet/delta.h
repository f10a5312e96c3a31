// DELTA_BINARY_PACKED: the first value, then blocks of differences.
//
//   header   block size, miniblocks a block, number of values, first value
//   block    smallest difference, a bit width for each miniblock, the miniblocks packed
#pragma once

struct Delta {
  Cursor cursor;
  u64 n_values;
  u64 first;
  u64 mini_values;  // of a miniblock
  u64 n_minis;      // of a block
};

WL_DEVICE bool read_delta_header(Delta& delta) {
  u64 block;
  Cursor& cursor = delta.cursor;
  if (!cursor.varint(block) || !cursor.varint(delta.n_minis) || !cursor.varint(delta.n_values) ||
      !cursor.zigzag(delta.first)) {
    return false;
  }
  if (block == 0 || block > 0xffffffffu || delta.n_minis == 0 || delta.n_minis > block) return false;
  // 32 bits: a division of 64 is a call, around which registers are parked.
  const u32 n_values = static_cast<u32>(block), n_minis = static_cast<u32>(delta.n_minis);
  delta.mini_values = n_values / n_minis;
  // A miniblock starts at a byte.
  return n_values % n_minis == 0 && delta.mini_values % 8 == 0;
}

// Walks the miniblocks that hold values 1 and on: `take(done, n, bits at byte, width,
// smallest difference)`. The cursor is behind the last one then. False when the page ends
// before, or a width is more than `width_max`.
template <class Take>
WL_DEVICE bool each_miniblock(Delta& delta, u32 width_max, Take take) {
  Cursor& cursor = delta.cursor;
  for (u64 done = 1; done < delta.n_values;) {
    u64 smallest;
    if (!cursor.zigzag(smallest) || cursor.end - cursor.at < delta.n_minis) return false;
    const u64 widths = cursor.at;
    cursor.at += delta.n_minis;
    for (u64 mini = 0; mini < delta.n_minis && done < delta.n_values; ++mini) {
      const u32 width = cursor.bytes[widths + mini];
      if (width > width_max) return false;
      const u64 n = min_of(delta.mini_values, delta.n_values - done);
      const u64 left = cursor.end - cursor.at;
      if ((n * width + 7) / 8 > left) return false;
      take(done, n, cursor.at, width, smallest);
      // The last miniblock may be cut off behind its last value.
      cursor.at += min_of(delta.mini_values / 8 * width, left);
      done += n;
    }
  }
  return true;
}

// Gives values 0 to `n` - 1 to `take(index, value)`, spread over the lanes. Differences
// wrap as the format says. The cursor is behind the whole encoding then, also behind
// values from `n` on. False when it does not have `n` values or is not well-formed.
template <class Take>
WL_DEVICE bool each_in_delta(Cursor& cursor, u32 width_max, u64 n, Take take) {
  if (n == 0 && cursor.at == cursor.end) return true;
  Delta delta{cursor, 0, 0, 0, 0};
  if (!read_delta_header(delta) || delta.n_values < n) return false;
  if (n > 0 && lane_index() == 0) take(u64(0), delta.first);
  u64 last = delta.first;
  const bool is_whole = each_miniblock(delta, width_max, [&](u64 done, u64 n_here, u64 at, u32 width, u64 smallest) {
    for (u64 base = 0; base < n_here && done + base < n; base += WARP_LANES) {
      const u64 i = base + lane_index();
      const u64 step = i < n_here ? read_wide_bits(delta.cursor.bytes + at, i * width, width) + smallest : 0;
      const u64 value = last + warp_scan(step);
      if (i < n_here && done + i < n) take(done + i, value);
      last = shuffle(value, WARP_LANES - 1);
    }
  });
  cursor = delta.cursor;
  return is_whole;
}
