//! The device library, embedded: every header that a kernel's text may include.

use super::Header;

macro_rules! embed {
    ($($name:literal),* $(,)?) => {
        &[$(Header { name: $name, text: include_str!(concat!("../../cuda/", $name)) }),*]
    };
}

/// All headers, by the names they are included under.
pub fn headers() -> &'static [Header] {
    embed![
        "prelude.h",
        "host_warps.h",
        "thread/value.h",
        "thread/arithmetic.h",
        "thread/compare.h",
        "thread/dates.h",
        "thread/memory.h",
        "thread/text.h",
        "thread/text_parts.h",
        "table/accumulators.h",
        "table/moments.h",
        "table/groups.h",
        "table/hash.h",
        "table/group_table.h",
        "table/group_values.h",
        "table/join_table.h",
        "rows/queue.h",
        "rows/tiles.h",
        "rows/collect.h",
        "rows/expand.h",
        "rows/sort_keys.h",
        "rows/radix.h",
        "rows/window_groups.h",
        "rows/window.h",
        "rows/window_totals.h",
        "parquet/page.h",
        "parquet/runs.h",
        "parquet/levels.h",
        "parquet/delta.h",
        "parquet/kinds.h",
        "parquet/elements.h",
        "parquet/values.h",
        "parquet/texts.h",
        "parquet/text_column.h",
        "unpack/page.h",
        "unpack/tile.h",
        "unpack/tags.h",
        "unpack/snappy.h",
        "unpack/lz4.h",
        "unpack/backward_bits.h",
        "unpack/fse.h",
        "unpack/checksum.h",
        "unpack/zstd.h",
        "unpack/zstd_literals.h",
        "unpack/zstd_sequences.h",
        "unpack/zstd_pages.h",
    ]
}
