// Output of a codec whose format is literals and copies of what came before: a block of
// threads makes a tile of it at a time, however the copies lean on one another.
//
//   elements   0 literal  5 copy, 3 back  11 literal        each goes on to the next one's start
//   cells      a b c d e  >2 >3 >4 >2 >3 >4  f              a byte, or the cell it is a copy of
//   rounds     each cell takes over the cell it points at: chains halve, until all are bytes
#pragma once

static constexpr u32 TILE_BYTES = 4096;
static constexpr u32 TILE_ELEMENTS = 512;
// What a thread makes at a time: one aligned store.
static constexpr u32 SLOT_BYTES = 16;
// Cells of a slot; the two that nobody uses spread slots over the banks of shared memory.
static constexpr u32 SLOT_CELLS = SLOT_BYTES + 2;

// A run of the output. `value` of a literal is its place among the literals, of a copy how
// far back its bytes are.
static constexpr u32 ELEMENT_LITERAL = 0;
static constexpr u32 ELEMENT_COPY = 1;
// A copy whose distance follows from the blocks before (`zstd_sequences.h`).
static constexpr u32 ELEMENT_REPEAT = 2;

WL_DEVICE u64 element_of(u32 start, u32 kind, u32 value) { return u64(start) << 36 | u64(kind) << 34 | value; }
WL_DEVICE u32 element_start(u64 element) { return static_cast<u32>(element >> 36); }
WL_DEVICE u32 element_kind(u64 element) { return static_cast<u32>(element >> 34) & 3; }
WL_DEVICE u32 element_value(u64 element) { return static_cast<u32>(element); }

struct Tile {
  u64 elements[TILE_ELEMENTS + 1];  // the one behind the last tells where that ends
  alignas(16) u16 cells[TILE_BYTES / SLOT_BYTES * SLOT_CELLS];
};

static constexpr u32 CELL_IS_BYTE = 0x8000;

// Bytes between the last aligned address and the output's start.
WL_DEVICE u32 skew_of(const u8* out) { return static_cast<u32>(reinterpret_cast<u64>(out)) & (SLOT_BYTES - 1); }

// Where a tile that starts at `from` ends at the latest.
WL_DEVICE u32 tile_limit(const u8* out, u32 from) {
  const u32 skew = skew_of(out);
  return ((from + skew) & ~(SLOT_BYTES - 1)) + TILE_BYTES - skew;
}

// The element that holds place `at`: the last one of `n` that does not start behind it.
WL_DEVICE u32 element_at(const Tile& tile, u32 n, u32 at) {
  u32 low = 0, high = n;
  while (high - low > 1) {
    const u32 middle = (low + high) / 2;
    if (element_start(tile.elements[middle]) <= at) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

// A place in an element, and where its byte comes from.
struct ElementWalk {
  const u8* from;  // of the byte, in the literals or in the output
  u32 back;        // of a copy: the same as a place in the output
  u32 start;
  u32 stop;
  u32 distance;  // of a literal 0

  // `at` lies in the element.
  WL_MEMBER void open(const Tile& tile, u32 number, u32 at, const u8* literals, const u8* out) {
    const u64 element = tile.elements[number];
    start = element_start(element);
    stop = element_start(tile.elements[number + 1]);
    u32 within = at - start;
    if (element_kind(element) == ELEMENT_LITERAL) {
      distance = 0;
      back = 0;
      from = literals + element_value(element) + within;
    } else {
      // A copy that reaches into itself repeats what is before it.
      distance = element_value(element);
      if (within >= distance) within %= distance;
      back = start - distance + within;
      from = out + back;
    }
  }

  WL_MEMBER void step() {
    ++from;
    ++back;
    if (distance != 0 && back == start) {
      back -= distance;
      from -= distance;
    }
  }
};

// Fills the cells of a slot: the bytes that are there already, and links to other cells.
WL_DEVICE void place_slot(Tile& tile, u32 slot, u32 n, u8* out, const u8* literals, u32 from, u32 to) {
  const u32 skew = skew_of(out);
  const u32 first = (from + skew) & ~(SLOT_BYTES - 1);
  const u32 begin = first + slot * SLOT_BYTES;
  const u32 at = max_of(begin, from + skew) - skew, end = min_of(begin + SLOT_BYTES, to + skew) - skew;
  u32* const cells = reinterpret_cast<u32*>(tile.cells + slot * SLOT_CELLS);
  u32 number = element_at(tile, n, at);
  ElementWalk walk;
  walk.open(tile, number, at, literals, out);
  const bool is_known = walk.distance == 0 || (walk.back + SLOT_BYTES <= from && walk.back + SLOT_BYTES <= walk.start);
  if (end - at == SLOT_BYTES && walk.stop >= end && is_known) {
    WL_UNROLL
    for (u32 quad = 0; quad < SLOT_BYTES / 4; ++quad) {
      const u32 word = read_u32(walk.from + 4 * quad);
      cells[2 * quad] = 0x80008000u | (word & 0xff) | (word & 0xff00) << 8;
      cells[2 * quad + 1] = 0x80008000u | (word >> 16 & 0xff) | (word >> 24) << 16;
    }
    return;
  }
  u32 place = begin - skew;  // of the first cell; it may lie before the output
  for (u32 quad = 0; quad < SLOT_BYTES / 4; ++quad) {
    // Four reads are under way at a time.
    const u8* source[4];
    u32 cell[4];
    WL_UNROLL
    for (u32 i = 0; i < 4; ++i, ++place) {
      source[i] = nullptr;
      cell[i] = CELL_IS_BYTE;
      // Places that are before the output wrap, and are behind its end then.
      if (place - at >= end - at) continue;
      if (place == walk.stop) walk.open(tile, ++number, place, literals, out);
      if (walk.distance != 0 && walk.back >= from) {
        const u32 linked = walk.back + skew - first;
        cell[i] = linked + linked / SLOT_BYTES * (SLOT_CELLS - SLOT_BYTES);
      } else {
        source[i] = walk.from;
      }
      walk.step();
    }
    WL_UNROLL
    for (u32 i = 0; i < 4; ++i) {
      if (source[i] != nullptr) cell[i] |= *source[i];
    }
    cells[2 * quad] = cell[0] | cell[1] << 16;
    cells[2 * quad + 1] = cell[2] | cell[3] << 16;
  }
}

// One step along every link of a slot. Whether one is left that is no byte.
//
// Threads read cells that others write meanwhile: what they find is the older link or a
// newer one, and both lead to the same byte. Links lead to earlier cells only, so they end.
WL_DEVICE bool follow_links(Tile& tile, u32 slot) {
  volatile u16* const all = tile.cells;
  volatile u16* const cells = all + slot * SLOT_CELLS;
  bool is_open = false;
  for (u32 i = 0; i < SLOT_BYTES; ++i) {
    u32 cell = cells[i];
    if ((cell & CELL_IS_BYTE) != 0) continue;
    cell = all[cell];
    cells[i] = static_cast<u16>(cell);
    is_open |= (cell & CELL_IS_BYTE) == 0;
  }
  return is_open;
}

WL_DEVICE void store_slot(const Tile& tile, u32 slot, u8* out, u32 from, u32 to) {
  const u32 skew = skew_of(out);
  const u32 begin = ((from + skew) & ~(SLOT_BYTES - 1)) + slot * SLOT_BYTES;
  const u32* const cells = reinterpret_cast<const u32*>(tile.cells + slot * SLOT_CELLS);
  u64 words[2];
  WL_UNROLL
  for (u32 half = 0; half < 2; ++half) {
    words[half] = 0;
    WL_UNROLL
    for (u32 i = 0; i < 4; ++i) {
      const u32 pair = cells[4 * half + i];
      words[half] |= u64((pair & 0xff) | (pair >> 8 & 0xff00)) << (16 * i);
    }
  }
  if (begin >= from + skew && begin + SLOT_BYTES <= to + skew) {
    u64* const aligned = reinterpret_cast<u64*>(out - skew + begin);
    aligned[0] = words[0];
    aligned[1] = words[1];
    return;
  }
  WL_UNROLL
  for (u32 i = 0; i < SLOT_BYTES; ++i) {
    const u32 place = begin + i;
    if (place >= from + skew && place < to + skew) out[place - skew] = static_cast<u8>(words[i / 8] >> (i % 8 * 8));
  }
}

// Makes the output from `from` to `to`, not behind `tile_limit`, of `n` elements that cover
// it. Distances are not 0 and do not reach before the output. All threads of the block come
// here, and the elements may be changed when they leave.
WL_DEVICE void make_tile(Tile& tile, u32 n, u8* out, const u8* literals, u32 from, u32 to) {
  const u32 skew = skew_of(out);
  const u32 first = (from + skew) & ~(SLOT_BYTES - 1);
  const u32 n_slots = (to + skew - first + SLOT_BYTES - 1) / SLOT_BYTES;
  for (u32 slot = thread_index(); slot < n_slots; slot += block_threads()) {
    place_slot(tile, slot, n, out, literals, from, to);
  }
  wl_barrier();
  for (;;) {
    bool is_open = false;
    for (u32 slot = thread_index(); slot < n_slots; slot += block_threads()) is_open |= follow_links(tile, slot);
    if (!barrier_any(is_open)) break;
  }
  for (u32 slot = thread_index(); slot < n_slots; slot += block_threads()) store_slot(tile, slot, out, from, to);
  wl_barrier();
}
