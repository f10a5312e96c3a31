// Compressed bodies of pages, and what can be wrong with them. Every read is checked against
// the page, every write against the size that its header declares.
#pragma once

// A body that is decompressed. Keep in step with kernels::parquet::unpack.
struct PackedPage {
  const u8* source;
  u8* out;
  u32 n_source;
  u32 n_out;
  u32 first_block;  // of zstd: its blocks
  u32 n_blocks;
  u32 number;  // for faults
  u32 unused;
};

// Bytes of a body at most: places in it, and distances, take 27 bits.
static constexpr u32 PACKED_BYTES_MAX = 1u << 27;

struct UnpackPass {
  u64 n;  // pages, or blocks
  const PackedPage* pages;
  const struct ZstdBlock* blocks;
  struct ZstdState* states;
  u64* first_fault;
};

// Bodies, or parts of them, that are stored as they are.
struct StoredPiece {
  const u8* from;
  u8* to;
  u64 n;
};

struct StoredPass {
  u64 n_pieces;
  const StoredPiece* pieces;
};

// A warp takes a piece.
WL_DEVICE void copy_stored(const StoredPass& p) {
  for (u64 number = first_page(); number < p.n_pieces; number += page_step()) {
    const StoredPiece piece = p.pieces[number];
    // Whole words where the target has them; the bytes before and after one by one.
    const u64 before = min_of((8 - (reinterpret_cast<u64>(piece.to) & 7)) & 7, piece.n);
    const u64 n_words = (piece.n - before) / 8;
    for (u64 i = lane_index(); i < before; i += WARP_LANES) piece.to[i] = piece.from[i];
    u64* const words = reinterpret_cast<u64*>(piece.to + before);
    for (u64 i = lane_index(); i < n_words; i += WARP_LANES) words[i] = read_u64(piece.from + before + i * 8);
    for (u64 i = before + n_words * 8 + lane_index(); i < piece.n; i += WARP_LANES) piece.to[i] = piece.from[i];
  }
}
