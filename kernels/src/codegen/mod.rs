//! Pipeline IR to CUDA C++ text.
//!
//! The text is a short list of calls into the device library under `cuda/`: what
//! null does in a sum stands in a header, not here.

mod accumulate;
mod aggregate;
mod casts;
mod dates;
mod dense_groups;
mod distinct;
mod emit;
mod error;
mod group_values;
mod join_build;
mod loops;
mod many_groups;
mod phases;
mod rows;
mod steps;
mod text;
mod tile;
mod widest;
mod window;
mod window_calls;
mod window_totals;

pub use accumulate::{AccumulatorKind, CallState, Slot};
pub use aggregate::{AggregateKernel, BLOCK_THREADS, KeyCode, TOO_MANY_GROUPS, generate};
pub use dense_groups::{DenseGroupsKernel, generate_dense};
pub use emit::{ColumnShape, Emitter, Parameter, Value, ValueRegister};
pub use error::Unsupported;
pub use group_values::{
    GroupKeys, GroupLayout, GroupOutput, GroupValuesKernel, generate_group_values,
};
pub use join_build::{BuildKernel, generate_build, generate_duplicates};
pub use many_groups::{KeyWords, ManyGroupsKernel, generate_many, rehash_kernel};
pub(crate) use phases::ROWS_UNDER_WAY;
pub use rows::{
    CollectKernel, CollectMode, CountKernel, OutputShape, PACK_TEXT, RADIX_TEXT,
    ROWS_BLOCK_THREADS, SortKeyKernel, check_sort, collect_tile_rows, generate_collect,
    generate_collect_as, generate_count, generate_sort_keys, radix_tile_rows,
};
pub use steps::TableShape;
pub use widest::check_collect;
pub use window::{
    TREE_FAN, WINDOW_GROUPS_TEXT, WindowKernel, check_window, generate_window, heads_tile_rows,
    totals_tile_rows,
};
pub use window_totals::{TotalKind, WINDOW_ROWS_MAX};
