//! Pipeline IR to CUDA C++ text.
//!
//! The text is a short list of calls into the device library under `cuda/`: what
//! null does in a sum stands in a header, not here.

mod accumulate;
mod aggregate;
mod emit;
mod error;
mod many_groups;
mod tile;

pub use accumulate::{AccumulatorKind, CallState, Slot};
pub use aggregate::{AggregateKernel, BLOCK_THREADS, KeyCode, TOO_MANY_GROUPS, generate};
pub use emit::{ColumnShape, Emitter, Parameter, Value, ValueRegister};
pub use error::Unsupported;
pub use many_groups::{KeyWords, ManyGroupsKernel, generate_many, rehash_kernel};
pub use tile::columns_of;
