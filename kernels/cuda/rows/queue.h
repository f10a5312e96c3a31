// Rows that came through the first steps of a pipeline, gathered until all lanes of a
// warp go on together.
//
// After a test that few rows pass, most lanes of a warp would wait while the others
// follow one address after another. Each warp has a queue of its own; nothing here waits
// for another warp.
#pragma once

// `Fields` numbers of rows of other relations go with each row; a warp adds up to
// `Rounds` times WARP_LANES rows before it takes some out.
template <u32 Fields, u32 Rounds>
struct RowQueue {
  static constexpr u32 n_warps = (WL_BLOCK_THREADS + WARP_LANES - 1) / WARP_LANES;
  // What is left over is less than one row a lane.
  static constexpr u32 capacity = (Rounds + 1) * WARP_LANES;

  u64 rows[n_warps][capacity];
  u32 fields[n_warps][Fields == 0 ? 1 : Fields][capacity];

  // A place for this lane's row if it goes on; `waiting` counts the rows of the warp.
  WL_MEMBER u32 place(u32& waiting, bool goes_on) {
    const u32 lanes = ballot(goes_on);
    const u32 at = waiting + popc(lanes & lanes_before());
    waiting += popc(lanes);
    return at;
  }
  WL_MEMBER u64& row(u32 at) { return rows[warp_index()][at]; }
  WL_MEMBER u32& field(u32 number, u32 at) { return fields[warp_index()][number][at]; }
};
