//! SQL on CPU and GPU for one batch. Home of DataFusion.
//!
//! A [`session::Session`] gets [`settings::Settings`] and tables, runs stages in
//! order and returns an account of each ([`report`]). It does not know batch specs,
//! states of a batch, or HTTP.

pub mod cancel;
pub mod cpu;
pub mod error;
pub mod estimate;
pub mod exec;
pub mod explain;
pub mod guard;
pub mod logical;
pub mod lower;
pub mod memory;
pub mod report;
pub mod rewrite;
pub mod session;
pub mod settings;
pub mod sinks;
pub mod sources;
mod spill_folder;
mod statistics;
pub mod tpch;
pub mod udf;
pub mod words;

pub use cancel::Cancel;
pub use error::{Error, Kind, Result};
