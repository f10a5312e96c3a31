//! A batch from submitted to done.
//!
//! Today that is one attempt in this process: [`run()`] takes a spec that
//! `batch_specs` has accepted, wires the engine to it, runs the stages in order under the
//! batch's time to live and a [`Cancel`], and accounts for everything in a [`RunReport`].
//! [`plan()`] does the same up to, and without, executing.
//!
//! This crate knows nothing of HTTP, of the command line, or of a terminal: whoever
//! starts an attempt hands in an [`Observer`]. It makes no decision about SQL or devices
//! either; that is the engine's.

mod bounds;
mod error;
mod machine;
mod placement;
mod report;
mod run;
mod wiring;

pub use engine::Cancel;
pub use engine::exec::Device;
pub use engine::udf::Compiler;
pub use error::{Failure, Kind};
pub use machine::Machine;
pub use placement::{GpuSource, OpensOnce, Place, Placement, StageEstimate};
pub use report::{RunReport, StageFallback, StageRun, State};
pub use run::{Observer, Plan, Request, StagePlan, plan, run};
pub use wiring::{cache_dir, device_limits, effective_json};
