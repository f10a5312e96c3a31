//! What a user may ask for: the batch spec, how it is read and checked, and the one effective
//! configuration it leads to.
//!
//! ```text
//! text --yaml--> tree with places --overrides--> tree --read (by schema)--> Spec
//!                     |                                                     |
//!                     +-- fields, properties, SET headers --> settings --> derive --> Effective
//!                                                                |
//!                                 problems, each with its line <-+-- check
//! ```
//!
//! [`load`] is the way in. It finds every problem and not only the first, and never panics on
//! what a user wrote. This crate does no I/O: it opens no file, asks no machine what it has, and
//! knows neither SQL's grammar nor the engine.

mod catalogue;
mod check;
mod derive;
mod duration;
mod load;
mod machine;
mod memory_size;
mod overrides;
mod problem;
mod properties;
mod provenance;
mod read;
mod schema;
mod set_header;
mod settings;
pub mod spec;
mod sql_text;
mod task_share;
mod variables;
mod yaml;

pub use catalogue::{Catalogue, Cpu, Gpu, MachineShape};
pub use duration::{Duration, DurationError};
pub use load::{BoundStatement, LoadOptions, Loaded, StageScript, load, load_bytes, sql_files};
pub use machine::{GpuInfo, Machine};
pub use memory_size::{MemorySize, MemorySizeError};
pub use problem::{Problem, Severity};
pub use provenance::{Effective, Loser, Origin, Settled};
pub use schema::json_schema;
pub use set_header::{AddJar, HeaderProblem, Script, Setting, Statement, split as split_script};
pub use spec::Spec;
pub use task_share::{TaskShare, TaskShareError};
pub use variables::{
    BindProblem, Binding, Bound, BoundValue, ValueError, bind, parse as parse_value,
};
