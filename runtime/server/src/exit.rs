//! The exit codes of `warpline`, in one place. Scripts rely on them.

use std::process::ExitCode;

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// The command did what was asked.
    Done,
    /// The job ran and failed, or could not be started for a reason outside its spec.
    Failed,
    /// The command line or the spec is wrong; nothing ran.
    Usage,
    /// The job was cancelled.
    Cancelled,
    /// The job ran out of its time to live.
    TimedOut,
}

impl Exit {
    /// The number that the process exits with.
    pub fn code(self) -> u8 {
        match self {
            Exit::Done => 0,
            Exit::Failed => 1,
            Exit::Usage => 2,
            Exit::Cancelled => 3,
            Exit::TimedOut => 4,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        ExitCode::from(exit.code())
    }
}
