//! A batch from submitted to done.
//!
//! ```text
//! submit --> Batches --> store        records, versions: nothing is decided there
//!               |
//!               +--> queue            who runs next, who waits and why
//!               +--> moves, retry     what happens to a record, as plain functions
//!
//! one attempt: run() --> engine       under the batch's time, a Cancel and a PublishGate
//! ```
//!
//! [`run()`] takes a spec that `batch_specs` has accepted, wires the engine to it, runs the
//! stages in order, and accounts for everything in a [`RunReport`]. [`plan()`] does the same
//! up to, and without, executing. [`batches::Batches`] is the life around attempts: what
//! is kept, who runs what under which lease, what is tried again.
//!
//! This crate knows nothing of HTTP, of processes, of the command line, or of a terminal:
//! whoever starts an attempt hands in an [`Observer`]. It makes no decision about SQL or
//! devices either; that is the engine's.

pub mod batch;
pub mod batches;
mod bounds;
mod error;
pub mod filter;
mod machine;
pub mod moves;
mod objects;
mod placement;
pub mod queue;
mod report;
pub mod retry;
mod run;
#[cfg(test)]
mod simulation;
pub mod state;
pub mod store;
pub mod trigger;
mod wiring;

pub use engine::Cancel;
pub use engine::exec::Device;
pub use engine::session::PublishGate;
pub use engine::udf::Compiler;
pub use error::{Failure, Kind};
pub use machine::Machine;
pub use objects::{list_objects, write_object_table};
pub use placement::{GpuSource, OpensOnce, Place, Placement, StageEstimate};
pub use report::{RunReport, StageFallback, StageRun, State};
pub use run::{Observer, OneOfSeveral, Plan, Request, StagePlan, plan, run};
pub use wiring::{cache_dir, device_limits, effective_json};
