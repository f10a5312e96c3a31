// The hybrid of runs and bit-packed groups: levels, dictionary indices, booleans.
//
//   header (varint)   even: header / 2 times the value that follows in whole bytes
//                     odd:  header / 2 groups of 8 values, packed
#pragma once

struct HybridRun {
  u64 n;          // values in it, as far as the bytes reach
  bool repeated;  // n times `value`; otherwise packed from byte `at` on
  u32 value;
  u64 at;
};

// The next run of values of `width` bits, at most 32; false when there is none, or when
// it is cut off.
WL_DEVICE bool next_run(Cursor& cursor, u32 width, HybridRun& run) {
  u64 header;
  if (!cursor.varint(header)) return false;
  const u64 left = cursor.end - cursor.at;
  if ((header & 1) == 0) {
    const u32 n_bytes = (width + 7) / 8;
    if (left < n_bytes) return false;
    run = HybridRun{header >> 1, true, 0, cursor.at};
    for (u32 i = 0; i < n_bytes; ++i) run.value |= u32(cursor.bytes[cursor.at + i]) << (8 * i);
    cursor.at += n_bytes;
    return true;
  }
  // The last group may be cut off behind its last value. Pages are shorter than 2^32 bytes,
  // and divisions of 32 bits are no calls.
  const u64 groups = header >> 1;
  if (width == 0) {
    run = HybridRun{groups * 8, true, 0, cursor.at};
    return true;
  }
  const u32 left_bytes = static_cast<u32>(left);
  const u32 whole = left_bytes / width, rest = left_bytes % width;
  if (groups <= whole) {
    run = HybridRun{groups * 8, false, 0, cursor.at};
    cursor.at += groups * width;
  } else {
    run = HybridRun{u64(whole) * 8 + rest * 8 / width, false, 0, cursor.at};
    cursor.at = cursor.end;
  }
  return true;
}

WL_DEVICE u32 value_in_run(const Cursor& cursor, const HybridRun& run, u32 width, u64 index) {
  return run.repeated ? run.value : read_bits(cursor.bytes + run.at, index * width, width);
}

// Gives a share of values of `width` bits to `take(index, value)`, spread over the lanes;
// false when the bytes end before that.
template <class Take>
WL_DEVICE bool each_in_runs(Cursor cursor, u32 width, const Share& share, Take take) {
  u64 done = 0;
  while (done < share.to) {
    HybridRun run;
    if (!next_run(cursor, width, run)) return false;
    const u64 n_here = min_of(run.n, share.to - done);
    const u64 first = share.from > done ? share.from - done : 0;
    for (u64 i = first + lane_index(); i < n_here; i += WARP_LANES) {
      take(done + i, value_in_run(cursor, run, width, i));
    }
    done += n_here;
  }
  return true;
}
