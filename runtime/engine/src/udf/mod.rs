//! User functions in DataFusion: modules of `sandbox` as scalar and aggregate functions.
//!
//! ```text
//! settings::UdfModule --session/guests.rs--> sandbox::Module --register--> SessionContext
//!                                                 ^
//!                 scalar.rs, aggregate.rs: record batches through it, on the CPU
//! ```
//!
//! A plan node with such an expression runs on the CPU; what is below and above it can run
//! on a GPU.

mod aggregate;
mod arguments;
mod scalar;

use std::sync::Arc;

use datafusion::execution::SessionState;
use datafusion::execution::memory_pool::MemoryReservation;
use datafusion::logical_expr::{AggregateUDF, ScalarUDF};
use datafusion::prelude::SessionContext;
use sandbox::{Budget, Fault, Kind, Module, OnError};

pub use aggregate::GuestAggregate;
pub use sandbox::{Compiler, Stop};
pub use scalar::GuestFunction;

use crate::error::{Error, Result};
use crate::report::{UdfFunctionReport, UdfModuleReport};

/// A module whose functions SQL can call.
#[derive(Debug)]
pub(crate) struct Loaded {
    pub(crate) location: String,
    pub(crate) module: Arc<Module>,
    /// The functions that may be called, by their places in the module.
    pub(crate) functions: Vec<usize>,
}

impl Loaded {
    /// Makes the functions known to SQL.
    pub(crate) fn register(
        &self,
        context: &SessionContext,
        on_error: OnError,
        query_time: i64,
    ) -> Result<()> {
        for at in &self.functions {
            let function = self.module.function(*at);
            if is_taken(&context.state(), &function.name) {
                return Err(self.refused(format!(
                    "SQL has a function `{}` already; give the module's another name",
                    function.name
                )));
            }
            let guest = scalar::Guest {
                module: Arc::clone(&self.module),
                at: *at,
                on_error,
                query_time,
            };
            match function.kind {
                Kind::Scalar => context.register_udf(ScalarUDF::from(GuestFunction::new(guest))),
                Kind::Aggregate => {
                    context.register_udaf(AggregateUDF::from(GuestAggregate::new(guest)));
                }
                Kind::Table => {
                    return Err(self.refused(format!(
                        "`{}` is a table function, and these cannot be called in this build",
                        function.name
                    )));
                }
            }
        }
        Ok(())
    }

    fn refused(&self, problem: String) -> Error {
        Error::UdfModule {
            location: self.location.clone(),
            problem,
        }
    }

    /// What its functions did so far.
    pub(crate) fn report(&self) -> UdfModuleReport {
        let functions = self.functions.iter().map(|at| {
            let metered = self.module.meter(*at).read();
            UdfFunctionReport {
                name: self.module.function(*at).name.clone(),
                calls: metered.calls,
                rows: metered.rows,
                ms: metered.nanoseconds as f64 / 1e6,
                bytes_in: metered.bytes_in,
                bytes_out: metered.bytes_out,
                traps: metered.traps,
                nulled_rows: metered.nulled_rows,
                instances: metered.instances,
                memory_bytes_max: metered.memory_bytes_max,
            }
        });
        UdfModuleReport {
            module: self.location.clone(),
            sha256: self.module.facts().sha256_hex(),
            functions: functions.collect(),
        }
    }
}

fn is_taken(state: &SessionState, name: &str) -> bool {
    state.scalar_functions().contains_key(name)
        || state.aggregate_functions().contains_key(name)
        || state.window_functions().contains_key(name)
}

/// The guests' part of the batch's memory.
pub(crate) struct Charged(pub(crate) MemoryReservation);

impl Budget for Charged {
    fn grow(&self, bytes: usize) -> bool {
        self.0.try_grow(bytes).is_ok()
    }

    fn shrink(&self, bytes: usize) {
        self.0.shrink(bytes);
    }
}

/// A sandbox's error while a query runs.
fn failed(error: sandbox::Error) -> Error {
    match &error {
        sandbox::Error::Stopped => Error::Cancelled,
        sandbox::Error::Call(call) => match call.fault {
            Fault::OutOfMemory { .. } => Error::OutOfMemory {
                limit_bytes: 0,
                detail: error.to_string(),
            },
            _ => Error::UdfFailed {
                message: error.to_string(),
            },
        },
        _ => Error::UdfFailed {
            message: error.to_string(),
        },
    }
}
