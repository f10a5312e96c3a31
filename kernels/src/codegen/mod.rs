//! Pipeline IR to CUDA C++ text.
//!
//! The text is a short list of calls into the device library under `cuda/`: what
//! null does in a sum stands in a header, not here.

mod aggregate;
mod emit;
mod error;

pub use aggregate::{
    AccumulatorKind, AggregateKernel, BLOCK_THREADS, CallState, KeyCode, Slot, columns_of, generate,
};
pub use emit::{ColumnShape, Emitter, Parameter, Value, ValueRegister};
pub use error::Unsupported;
