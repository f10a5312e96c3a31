//! Everything that can go wrong between a module's bytes and a column of results.

use std::fmt;

/// A result of the sandbox.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a module was refused or a call has no result.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The bytes are not a core WebAssembly module.
    #[error("it is not a WebAssembly module: {problem}")]
    NotAModule {
        /// What is wrong with it.
        problem: String,
    },
    /// A part of the module is larger than the sandbox allows.
    #[error("{what}: {found}, and at most {limit} are allowed")]
    TooLarge {
        /// Which part, in words.
        what: String,
        /// How large it is.
        found: u64,
        /// How large it may be.
        limit: u64,
    },
    /// The module wants something from its host, which gives nothing.
    #[error("it imports {list}; a user function gets no imports{hint}")]
    Imports {
        /// `module::name` of each, up to a number.
        list: String,
        /// How to build it without, where that is known.
        hint: &'static str,
    },
    /// The module runs code when it is instantiated.
    #[error(
        "it has a start function, which would run before any limit is set; do the work in \
         `udf1_init`"
    )]
    StartFunction,
    /// The module's memory or one of its exports is not as ABI 1 wants it.
    #[error("{problem}")]
    Abi {
        /// Which one, and what is wanted.
        problem: String,
    },
    /// The metadata is absent, unreadable or contradicts itself.
    #[error("{problem}")]
    Metadata {
        /// What is wrong, and where.
        problem: String,
    },
    /// The module has no function of that name.
    #[error("it has no function `{name}`; it has {known}")]
    UnknownFunction {
        /// The name that was asked for.
        name: String,
        /// The names that there are.
        known: String,
    },
    /// The module could not be turned into machine code.
    #[error("it cannot be compiled: {problem}")]
    Compile {
        /// What the compiler said, or which limit it ran into.
        problem: String,
    },
    /// The sandbox itself could not get what it needs of the system.
    #[error("the sandbox cannot {what}: {problem}")]
    System {
        /// What it tried.
        what: &'static str,
        /// What the system said.
        problem: String,
    },
    /// A call failed.
    #[error("{0}")]
    Call(Box<CallError>),
    /// The batch was told to stop while a function ran.
    #[error("the user function was stopped")]
    Stopped,
}

/// A failed call: which function of which module, where in the data, and why.
#[derive(Debug)]
pub struct CallError {
    /// The function's name.
    pub function: String,
    /// The module's SHA-256, shortened.
    pub module: String,
    /// Which record batch of this function it was, from 0.
    pub record_batch: u64,
    /// The row in it, where it is known.
    pub row: Option<usize>,
    /// How many rows it has.
    pub n_rows: usize,
    /// Why.
    pub fault: Fault,
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "user function `{}` (sha256:{}), record batch {}",
            self.function, self.module, self.record_batch
        )?;
        match self.row {
            Some(row) => write!(f, ", row {row} of {}: ", self.n_rows)?,
            None => write!(f, " of {} rows: ", self.n_rows)?,
        }
        self.fault.fmt(f)
    }
}

impl std::error::Error for CallError {}

/// What happened in a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// The function returned an error.
    Failed(String),
    /// The function panicked.
    Panicked(String),
    /// The machine code trapped: division by zero, an access out of bounds.
    Trapped(String),
    /// The time limit ended it.
    TimeLimit {
        /// The limit, milliseconds.
        limit_ms: u64,
    },
    /// It asked for more memory than it may have.
    MemoryLimit {
        /// What it would have had, bytes.
        asked: u64,
        /// What it may have, bytes.
        limit: u64,
    },
    /// The batch has no memory left for it.
    OutOfMemory {
        /// What was asked of the batch, bytes.
        asked: u64,
    },
    /// It calls itself too deeply.
    StackOverflow,
    /// What it gave back is not a column of the declared type.
    BadOutput(String),
    /// Its arguments do not fit.
    BadInput(String),
    /// The batch was told to stop.
    Stopped,
}

impl Fault {
    /// Whether the fault is of single rows, so that another policy than failing makes sense.
    pub fn is_of_rows(&self) -> bool {
        matches!(
            self,
            Fault::Failed(_) | Fault::Panicked(_) | Fault::Trapped(_) | Fault::StackOverflow
        )
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Failed(message) => f.write_str(message),
            Fault::Panicked(message) => write!(f, "it panicked: {message}"),
            Fault::Trapped(what) => write!(f, "it trapped: {what}"),
            Fault::TimeLimit { limit_ms } => write!(
                f,
                "it ran longer than its time limit of {limit_ms} ms for a record batch"
            ),
            Fault::MemoryLimit { asked, limit } => write!(
                f,
                "it asked for {} MiB of memory and may have {} MiB",
                mib(*asked),
                mib(*limit)
            ),
            Fault::OutOfMemory { asked } => write!(
                f,
                "the batch has no memory left for the {} MiB that it asked for",
                mib(*asked)
            ),
            Fault::StackOverflow => f.write_str("it calls itself too deeply (stack overflow)"),
            Fault::BadOutput(problem) => write!(f, "it gave back a bad result: {problem}"),
            Fault::BadInput(problem) => f.write_str(problem),
            Fault::Stopped => f.write_str("it was stopped"),
        }
    }
}

/// Mebibytes, rounded up.
fn mib(bytes: u64) -> u64 {
    bytes.div_ceil(1 << 20)
}
