// Zstandard, as RFC 8878 says. The host walked the headers of frames, blocks and sections;
// three kernels do the rest:
//
//   literals    a warp takes a block: Huffman table, then a lane for each stream
//   sequences   a warp takes a block: three tables, then one lane reads sequences
//   pages       a block of threads takes a page: literals and copies to output, in order
//
// The first two need nothing of the blocks before, apart from descriptions of tables, so
// blocks of one page run side by side.
#pragma once

static constexpr u32 ZSTD_RAW = 0;
static constexpr u32 ZSTD_RLE = 1;
static constexpr u32 ZSTD_COMPRESSED = 2;

static constexpr u32 ZSTD_LITERALS_STORED = 0;  // raw, where `literals` says
static constexpr u32 ZSTD_LITERALS_RLE = 1;
static constexpr u32 ZSTD_LITERALS_PACKED = 2;

static constexpr u32 ZSTD_FRAME_FIRST = 1;
static constexpr u32 ZSTD_FRAME_LAST = 2;
static constexpr u32 ZSTD_HAS_CONTENT_SIZE = 4;
static constexpr u32 ZSTD_HAS_CHECKSUM = 8;

// How a table is described: 3.1.1.3.2.1.1 of the RFC. Repeated ones are the block's that
// described them.
static constexpr u32 ZSTD_PREDEFINED = 0;
static constexpr u32 ZSTD_ONE_SYMBOL = 1;
static constexpr u32 ZSTD_DESCRIBED = 2;

// A block. Places are counted from `source`. Keep in step with kernels::parquet::unpack.
struct ZstdBlock {
  const u8* source;
  u8* literals;   // where they are, or are written
  u64* elements;  // at most two of a sequence, and one
  u32 number;     // of the page, for faults
  u32 kind;
  u32 n_out;      // of raw and RLE blocks
  u32 body_at;    // of raw and RLE blocks
  u32 literals_kind;
  u32 n_literals;
  u32 literals_at;  // of RLE literals
  u32 tree_at;      // the Huffman table's description
  u32 tree_end;
  u32 n_streams;
  u32 stream_at[5];  // where each stream starts, and where the last one ends
  u32 n_sequences;
  u32 sequences_at;  // behind the modes
  u32 sequences_end;
  u32 modes;         // of literal lengths, offsets and match lengths, two bits each from the lowest on
  u32 table_at[3];   // behind the modes of the block that describes the table
  u32 table_end[3];
  u32 table_modes[3];
  u32 block_max;     // bytes of output at most
  u32 window;        // how far back copies may reach
  u32 frame;         // ZSTD_FRAME_..
  u32 content_size;
  u32 checksum_at;
};

// What a block's sequences told.
struct ZstdState {
  u32 n_elements;
  u32 n_out;
  u32 repeats[3];  // the distances that may be repeated by the next block
  u32 is_good;
};
