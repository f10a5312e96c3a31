//! What can go wrong in this crate. Each variant is one situation with its data;
//! nothing decides on the text.

use std::fmt;
use std::path::PathBuf;

/// A result with this crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A call of the device driver failed. See [`DriverError::is_fatal`].
    #[error(transparent)]
    Driver(#[from] DriverError),
    /// Memory ran out: the device's, or the page-locked host memory.
    /// Freeing memory or asking for less helps.
    #[error(transparent)]
    OutOfMemory(#[from] OutOfMemory),
    /// Memory ran out after a part of the chunk was added: what was asked for is half done, so
    /// it can only be done again from the start.
    #[error("device memory ran short inside a chunk: {0}")]
    OutOfMemoryInside(OutOfMemory),
    /// A kernel's text did not compile.
    #[error(transparent)]
    Compile(Box<CompileError>),
    /// A library or program that is needed is not on this machine.
    #[error(transparent)]
    Missing(Box<Missing>),
    /// A kernel met a row it must not compute a value for.
    #[error(transparent)]
    DataFault(#[from] DataFault),
    /// A page of a file is not what the format allows.
    #[error(transparent)]
    MalformedPage(Box<MalformedPage>),
    /// There is no such device.
    #[error("there is no GPU number {ordinal}; this machine has {n_devices}")]
    NoSuchDevice {
        /// The device asked for.
        ordinal: usize,
        /// How many there are.
        n_devices: usize,
    },
    /// A compiled image has no kernel of that name.
    #[error("the compiled image has no kernel named {name}")]
    NoSuchKernel {
        /// The name asked for.
        name: String,
    },
    /// A launch that the device cannot run: too large a block, too much shared
    /// memory, too many parameter bytes.
    #[error("kernel {kernel} cannot be launched: {reason}")]
    InvalidLaunch {
        /// The kernel.
        kernel: String,
        /// What exceeds which limit.
        reason: String,
    },
    /// A file or a program could not be used.
    #[error("could not {what}")]
    Io {
        /// What was tried, to follow "could not".
        what: String,
        /// The cause.
        source: std::io::Error,
    },
    /// An Arrow kernel or conversion failed.
    #[error(transparent)]
    Arrow(#[from] arrow::error::ArrowError),
    /// A pipeline that this crate cannot run; the caller keeps it on the CPU.
    #[error("not supported on the device: {0}")]
    Unsupported(String),
    /// We were wrong: an invariant of this crate does not hold.
    #[error("internal error: {0}")]
    Internal(String),
}

impl Error {
    /// An I/O error with what was tried, to follow "could not".
    pub fn io(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> Error {
        let what = what.into();
        move |source| Error::Io { what, source }
    }

    /// Whether the device must not be used again in this process.
    pub fn is_fatal_for_device(&self) -> bool {
        matches!(self, Error::Driver(e) if e.is_fatal())
    }

    /// Whether memory ran out, before anything was done or in the middle of it: it can be
    /// done again from the start with less.
    pub fn ran_short(&self) -> bool {
        matches!(self, Error::OutOfMemory(_) | Error::OutOfMemoryInside(_))
    }

    /// The details, when memory ran out before anything was done.
    pub fn out_of_memory(&self) -> Option<&OutOfMemory> {
        match self {
            Error::OutOfMemory(e) => Some(e),
            _ => None,
        }
    }
}

impl From<CompileError> for Error {
    fn from(e: CompileError) -> Error {
        Error::Compile(Box::new(e))
    }
}

impl From<Missing> for Error {
    fn from(e: Missing) -> Error {
        Error::Missing(Box::new(e))
    }
}

impl From<MalformedPage> for Error {
    fn from(e: MalformedPage) -> Error {
        Error::MalformedPage(Box::new(e))
    }
}

/// A page of a Parquet file that is not what the format allows.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{file}: column {column}, row group {row_group}, {place}: {reason}")]
pub struct MalformedPage {
    /// The file.
    pub file: String,
    /// The column, by its path.
    pub column: String,
    /// The row group, counted from 0.
    pub row_group: usize,
    /// Which of its pages, as `page 3`.
    pub place: String,
    /// What is wrong with it.
    pub reason: String,
}

/// A failed call of the device driver.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{call} failed with {name} ({code}): {text}")]
pub struct DriverError {
    /// The driver function.
    pub call: &'static str,
    /// Its result code.
    pub code: u32,
    /// The code's name, as `CUDA_ERROR_ILLEGAL_ADDRESS`.
    pub name: String,
    /// The driver's description.
    pub text: String,
}

impl DriverError {
    /// Whether the context is broken, so that every later call fails too: an
    /// illegal address, a trap, an uncorrectable memory error, a lost device.
    pub fn is_fatal(&self) -> bool {
        matches!(
            self.code,
            4 | 46 | 214 | 220 | 226 | 700 | 702 | 709 | 710 | 714..=719 | 721 | 999
        )
    }
}

/// Memory ran out.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("out of {what}: {requested} bytes requested, {free} of {limit} free")]
pub struct OutOfMemory {
    /// Which memory: `device memory`, `pinned memory`.
    pub what: &'static str,
    /// Bytes asked for.
    pub requested: usize,
    /// Bytes that were free.
    pub free: usize,
    /// Bytes there are in all.
    pub limit: usize,
}

/// A kernel's text did not compile.
#[derive(Debug, Clone, thiserror::Error)]
pub struct CompileError {
    /// The kernel source's name.
    pub kernel: String,
    /// Which compiler refused it.
    pub compiler: String,
    /// The compiler's messages.
    pub log: String,
    /// Where the text was written, if it could be.
    pub source_file: Option<PathBuf>,
    /// Where the messages were written, if they could be.
    pub log_file: Option<PathBuf>,
}

impl fmt::Display for CompileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "kernel {} did not compile with {}",
            self.kernel, self.compiler
        )?;
        if let Some(line) = self.log.lines().find(|line| line.contains("error")) {
            write!(f, ": {}", line.trim())?;
        }
        if let Some(file) = &self.source_file {
            write!(f, "; source in {}", file.display())?;
        }
        if let Some(file) = &self.log_file {
            write!(f, ", compiler messages in {}", file.display())?;
        }
        Ok(())
    }
}

/// Something that must be installed is not there.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct Missing {
    /// What is missing, as `the NVIDIA driver library (libcuda)`.
    pub what: String,
    /// Where it was looked for, and what each place said.
    pub looked_in: Vec<String>,
    /// What to do about it.
    pub fix: String,
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} was not found", self.what)?;
        if !self.looked_in.is_empty() {
            write!(f, " (looked in {})", self.looked_in.join("; "))?;
        }
        write!(f, ". {}", self.fix)
    }
}

/// A row that a kernel must not compute a value for, as the kernel reported it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{fault} in expression {expression}, row {row} of the chunk")]
pub struct DataFault {
    /// What is wrong.
    pub fault: Fault,
    /// The row within the chunk.
    pub row: u64,
    /// The expression, numbered by the code generator.
    pub expression: u32,
}

/// Kinds of data fault. The numbers are those that kernels report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Fault {
    /// Integer arithmetic or an integer sum left its type.
    IntegerOverflow,
    /// A division or remainder by zero.
    DivisionByZero,
    /// A decimal needs more digits than its type has.
    DecimalOverflow,
    /// A converted value does not fit.
    CastOverflow,
    /// A date or timestamp that the calendar does not have, or out of range.
    InvalidDate,
    /// The kernel met a case it was not built for; the number says which.
    Unsupported(u32),
}

impl Fault {
    /// Codes from here on are [`Fault::Unsupported`]; the rest is its number.
    pub const UNSUPPORTED_FROM: u32 = 256;

    /// The number that kernels report; never 0, which means no fault.
    pub fn code(self) -> u32 {
        match self {
            Fault::IntegerOverflow => 1,
            Fault::DivisionByZero => 2,
            Fault::DecimalOverflow => 3,
            Fault::CastOverflow => 4,
            Fault::InvalidDate => 5,
            Fault::Unsupported(n) => Fault::UNSUPPORTED_FROM + n,
        }
    }

    /// The fault of a number that a kernel reported; none for 0 and for numbers
    /// that no fault has.
    pub fn from_code(code: u32) -> Option<Fault> {
        Some(match code {
            1 => Fault::IntegerOverflow,
            2 => Fault::DivisionByZero,
            3 => Fault::DecimalOverflow,
            4 => Fault::CastOverflow,
            5 => Fault::InvalidDate,
            Fault::UNSUPPORTED_FROM.. => Fault::Unsupported(code - Fault::UNSUPPORTED_FROM),
            _ => return None,
        })
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::IntegerOverflow => f.write_str("integer overflow"),
            Fault::DivisionByZero => f.write_str("division by zero"),
            Fault::DecimalOverflow => f.write_str("decimal overflow"),
            Fault::CastOverflow => f.write_str("value out of range in a cast"),
            Fault::InvalidDate => f.write_str("invalid date"),
            Fault::Unsupported(n) => write!(f, "unsupported case {n}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_survives_its_number() {
        use Fault::*;
        for fault in [
            IntegerOverflow,
            DivisionByZero,
            DecimalOverflow,
            CastOverflow,
            InvalidDate,
            Unsupported(0),
            Unsupported(7),
        ] {
            assert_eq!(Fault::from_code(fault.code()), Some(fault));
        }
        assert_eq!(Fault::from_code(0), None);
        assert_eq!(Fault::from_code(6), None);
    }

    #[test]
    fn a_compile_error_names_kernel_and_files() {
        let error = Error::from(CompileError {
            kernel: "filter_sum".into(),
            compiler: "nvrtc 13.0".into(),
            log: "filter_sum(3): error: identifier \"x\" is undefined\n1 error".into(),
            source_file: Some("/d/filter_sum.cu".into()),
            log_file: Some("/d/filter_sum.log".into()),
        });
        assert_eq!(
            error.to_string(),
            "kernel filter_sum did not compile with nvrtc 13.0: filter_sum(3): error: identifier \
             \"x\" is undefined; source in /d/filter_sum.cu, compiler messages in /d/filter_sum.log"
        );
    }
}
