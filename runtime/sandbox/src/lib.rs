//! User functions as WebAssembly modules, run in a sandbox over whole columns.
//!
//! ```text
//! bytes --loader--> checked --compile, cache--> machine code --guest--> instance
//!                      |                                                   |
//!                   metadata                      columns --write--> arena in its memory
//!                                                 column  <--read--- results, all checked
//! ```
//!
//! A guest has no imports, so it can compute and nothing else. It is bounded in memory and
//! time, and what it returns is checked before it is believed. This crate knows Arrow and
//! WebAssembly; it does not know SQL, DataFusion or batch specs, and it opens no file but
//! its cache of machine code.

pub mod abi;
mod aggregate;
mod cache;
pub mod compile;
mod engine;
mod error;
mod frame;
mod guest;
pub mod loader;
pub mod metadata;
mod module;
mod pack;
pub mod properties;
mod read;
pub mod sample;
mod scalar;
mod slots;
mod types;
mod write;

pub use aggregate::Groups;
pub use compile::Compiler;
pub use error::{CallError, Error, Fault, Result};
pub use guest::{Budget, Limits, Stop, Unbounded};
pub use loader::Checked;
pub use metadata::{Function, Kind, Nulls, Volatility};
pub use module::{Meter, Metered, Module, Runtime, Setup};
pub use pack::pack;
pub use scalar::{Argument, OnError};
pub use types::Type;
