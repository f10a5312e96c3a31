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
    /// The wait was over before the job; it goes on.
    StillRunning,
    /// The service does not know the token, or the token does not allow it.
    Refused,
    /// No slot came free in time.
    QueueExpired,
    /// The service does not answer.
    Unreachable,
    /// The name stands for something else.
    Conflict,
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
            Exit::StillRunning => 5,
            Exit::Refused => 6,
            Exit::QueueExpired => 7,
            Exit::Unreachable => 8,
            Exit::Conflict => 9,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        ExitCode::from(exit.code())
    }
}
