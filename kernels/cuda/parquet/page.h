// Pages of Parquet files as kernels read them: unaligned little-endian reads within a
// page, and the first fault of a launch.
//
// A warp takes a page. What has to be read in sequence (headers of runs and blocks) all
// lanes read together; the values behind them are spread over the lanes.
#pragma once

// Encodings, as kernels::parquet numbers them.
static constexpr u32 PAGE_PLAIN = 0;
static constexpr u32 PAGE_DICTIONARY = 1;
static constexpr u32 PAGE_RLE = 2;
static constexpr u32 PAGE_DELTA_BINARY_PACKED = 3;
static constexpr u32 PAGE_DELTA_LENGTH_BYTE_ARRAY = 4;
static constexpr u32 PAGE_DELTA_BYTE_ARRAY = 5;
static constexpr u32 PAGE_BYTE_STREAM_SPLIT = 6;

// What can be wrong with a page, as kernels::parquet names it.
static constexpr u32 PAGE_FAULT_LEVELS_END = 1;
static constexpr u32 PAGE_FAULT_LEVEL = 2;
static constexpr u32 PAGE_FAULT_VALUES_END = 3;
static constexpr u32 PAGE_FAULT_INDEX = 4;
static constexpr u32 PAGE_FAULT_BIT_WIDTH = 5;
static constexpr u32 PAGE_FAULT_DELTA_HEADER = 6;
static constexpr u32 PAGE_FAULT_LENGTH = 7;
static constexpr u32 PAGE_FAULT_PREFIX = 8;
static constexpr u32 PAGE_FAULT_UTF8 = 9;
static constexpr u32 PAGE_FAULT_DECIMAL = 10;
static constexpr u32 PAGE_FAULT_TIME = 11;
static constexpr u32 PAGE_FAULT_ENCODING = 12;
static constexpr u32 PAGE_FAULT_TYPE = 13;
static constexpr u32 PAGE_FAULT_SNAPPY = 14;
static constexpr u32 PAGE_FAULT_LZ4 = 15;
static constexpr u32 PAGE_FAULT_ZSTD_LITERALS = 16;
static constexpr u32 PAGE_FAULT_ZSTD_SEQUENCES = 17;
static constexpr u32 PAGE_FAULT_DISTANCE = 18;
static constexpr u32 PAGE_FAULT_SIZE = 19;
static constexpr u32 PAGE_FAULT_CHECKSUM = 20;

// `level_bytes` of a page whose levels say their length themselves.
static constexpr u32 LEVELS_WITH_LENGTH = 0xffffffffu;

// A page without its header, decompressed. Keep in step with kernels::parquet::PageRef.
struct PageRef {
  const u8* bytes;
  u64 n_bytes;
  u64 first;             // the column's row, or the dictionary's entry, of its first value
  u64 dictionary_first;  // its column chunk's dictionary among those of the column
  u32 dictionary_n;
  u32 n_rows;  // values, nulls too
  u32 encoding;
  u32 level_bytes;
};

// Values `from` to `to` of a page: what one warp reads where several share a page. Each
// walks the headers of all runs. Encodings whose values follow from those before them are
// read by the first warp alone.
struct Share {
  u64 from;
  u64 to;
  bool is_first;
};

WL_DEVICE Share share_of(u32 n, u32 number, u32 n_shares) {
  const u64 each = n / n_shares + (n % n_shares != 0);
  return Share{min_of(each * number, u64(n)), min_of(each * (number + 1), u64(n)), number == 0};
}

// What reading a page's levels found out.
struct PageState {
  u32 n_values;   // rows that are not null
  u32 values_at;  // where the values start in the page
};

// Of faults the first page's counts, then the lowest code: the message is the same on
// every run.
WL_DEVICE void page_fault(u64* first_fault, u64 page, u32 code) {
  atomic_min_u64(first_fault, page << 8 | code);
}

// The page that this warp starts with, and how many warps there are.
WL_DEVICE u64 first_page() { return u64(block_index()) * block_warps() + warp_index(); }
WL_DEVICE u64 page_step() { return u64(grid_blocks()) * block_warps(); }

// Reads of whole aligned words that hold the bytes: they may touch up to seven bytes
// before or after them, which are in the same allocation.
WL_DEVICE u32 read_u32(const u8* at) {
  const u64 address = reinterpret_cast<u64>(at);
  const u32* words = reinterpret_cast<const u32*>(address & ~u64(3));
  const u32 shift = static_cast<u32>(address & 3) * 8;
  if (shift == 0) return words[0];
  return static_cast<u32>((u64(words[1]) << 32 | words[0]) >> shift);
}

WL_DEVICE u64 read_u64(const u8* at) { return u64(read_u32(at + 4)) << 32 | read_u32(at); }

// `width` bits, at most 32, from bit `bit` on, least significant first.
WL_DEVICE u32 read_bits(const u8* bytes, u64 bit, u32 width) {
  if (width == 0) return 0;
  const u64 address = reinterpret_cast<u64>(bytes) + (bit >> 3);
  const u32* words = reinterpret_cast<const u32*>(address & ~u64(3));
  const u32 shift = static_cast<u32>(address & 3) * 8 + static_cast<u32>(bit & 7);
  u64 window = words[0];
  if (shift + width > 32) window |= u64(words[1]) << 32;
  return static_cast<u32>((window >> shift) & ((u64(1) << width) - 1));
}

// As many as 64.
WL_DEVICE u64 read_wide_bits(const u8* bytes, u64 bit, u32 width) {
  if (width <= 32) return read_bits(bytes, bit, width);
  return u64(read_bits(bytes, bit + 32, width - 32)) << 32 | read_bits(bytes, bit, 32);
}

// A place in a page, and where it ends: nothing is read past `end`.
struct Cursor {
  const u8* bytes;
  u64 at;
  u64 end;

  // A number of seven bits a byte; false when the page ends in it or it is too long.
  WL_MEMBER bool varint(u64& value) {
    value = 0;
    for (u32 shift = 0; shift < 64; shift += 7) {
      if (at >= end) return false;
      const u8 byte = bytes[at++];
      value |= u64(byte & 0x7f) << shift;
      if ((byte & 0x80) == 0) return true;
    }
    return false;
  }

  WL_MEMBER bool zigzag(u64& value) {
    if (!varint(value)) return false;
    value = (value >> 1) ^ (~(value & 1) + 1);
    return true;
  }
};
