// Definition levels of flat columns to validity bits, and where each value's row is.
//
//   levels    1 1 0 1 0 0 1
//   validity  1 1 0 1 0 0 1      one bit a row of the column
//   row_of    0 1 3 6            for each value its row within the page
#pragma once

struct LevelsPass {
  u64 n_pages;
  u64 optional;  // whether the column has levels
  const PageRef* pages;
  PageState* states;
  u32* validity;  // zero before the launch
  u32* row_of;    // of value i of a page at place first + i
  u64* first_fault;
};

// Sets the bits of rows `from` to `to`. Words that are not whole are other pages' too.
WL_DEVICE void set_bits(u32* words, u64 from, u64 to) {
  for (u64 word = (from >> 5) + lane_index(); word << 5 < to; word += WARP_LANES) {
    const u64 base = word << 5;
    u32 mask = 0xffffffffu;
    if (base < from) mask &= 0xffffffffu << (from - base);
    if (to - base < 32) mask &= (1u << (to - base)) - 1;
    if (mask == 0xffffffffu) {
      words[word] = mask;
    } else {
      atomic_or_u32(words + word, mask);
    }
  }
}

WL_DEVICE void read_levels(const LevelsPass& p, u64 number) {
  const PageRef page = p.pages[number];
  PageState state{page.n_rows, 0};
  u32 fault = 0;
  Cursor cursor{page.bytes, 0, page.level_bytes};
  if (page.level_bytes == LEVELS_WITH_LENGTH) {
    cursor.end = 0;
    if (p.optional != 0) {
      if (page.n_bytes < 4) {
        fault = PAGE_FAULT_LEVELS_END;
      } else {
        cursor.at = 4;
        cursor.end = 4 + u64(read_u32(page.bytes));
      }
    }
  }
  if (cursor.end > page.n_bytes) fault = PAGE_FAULT_LEVELS_END;
  state.values_at = static_cast<u32>(cursor.end);
  if (p.optional != 0) {
    u32 n_values = 0;
    for (u64 done = 0; fault == 0 && done < page.n_rows;) {
      HybridRun run;
      if (!next_run(cursor, 1, run)) {
        fault = PAGE_FAULT_LEVELS_END;
        break;
      }
      if (run.repeated && run.value > 1) fault = PAGE_FAULT_LEVEL;
      const u64 n_here = min_of(run.n, page.n_rows - done);
      const u64 from = page.first + done, to = from + n_here;
      if (run.repeated) {
        if (run.value != 0) {
          set_bits(p.validity, from, to);
          // A run that is all of the page needs no row numbers.
          for (u64 i = lane_index(); n_here < page.n_rows && i < n_here; i += WARP_LANES) {
            p.row_of[page.first + n_values + i] = static_cast<u32>(done + i);
          }
          n_values += static_cast<u32>(n_here);
        }
      } else {
        for (u64 base = from & ~u64(WARP_LANES - 1); base < to; base += WARP_LANES) {
          const u64 row = base + lane_index();
          const bool valid = row >= from && row < to && value_in_run(cursor, run, 1, row - from) != 0;
          const u32 mask = ballot(valid);
          if (lane_index() == 0 && mask != 0) atomic_or_u32(p.validity + (base >> 5), mask << (base & 31));
          if (valid) {
            p.row_of[page.first + n_values + popc(mask & lanes_before())] = static_cast<u32>(row - page.first);
          }
          n_values += popc(mask);
        }
      }
      done += n_here;
    }
    state.n_values = n_values;
  }
  if (lane_index() == 0) {
    if (fault != 0) {
      page_fault(p.first_fault, number, fault);
      state = PageState{0, 0};
    }
    p.states[number] = state;
  }
}

WL_DEVICE void read_all_levels(const LevelsPass& p) {
  for (u64 number = first_page(); number < p.n_pages; number += page_step()) read_levels(p, number);
}

// The place in the column of value `index` of a page.
WL_DEVICE u64 place_of(const PageRef& page, const PageState& state, const u32* row_of, u64 index) {
  return page.first + (state.n_values == page.n_rows ? index : row_of[page.first + index]);
}
