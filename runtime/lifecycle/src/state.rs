//! The states of a batch and the only legal moves between them, as data.
//!
//! ```text
//!            +------------- retry, lost worker ------------+
//!            v                                             |
//! submit -> QUEUED -- claim --> RUNNING -------------------+--> SUCCEEDED
//!            |  ^                  |                       |--> FAILED
//!            |  |                  | cancel                +--> TIMED_OUT
//!            |  |                  v
//!            |  |              CANCELLING --+--> CANCELLED
//!            |  |                           +--> SUCCEEDED (it was done already)
//!            |  +---- retry by a person ---- FAILED, TIMED_OUT, CANCELLED
//!            +--> CANCELLED, FAILED (its time in the queue ran out)
//! ```

use serde::{Deserialize, Serialize};

/// Where a batch stands. The names are the same in the API, the store and the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum BatchState {
    /// It waits for a slot, or for the time of its next attempt.
    Queued,
    /// An attempt runs under a lease.
    Running,
    /// An attempt was told to stop and has not ended yet.
    Cancelling,
    /// Every stage finished and every output is visible.
    Succeeded,
    /// It failed and is not tried again.
    Failed,
    /// Somebody stopped it.
    Cancelled,
    /// Its time to live ran out.
    TimedOut,
}

use BatchState::{Cancelled, Cancelling, Failed, Queued, Running, Succeeded, TimedOut};

/// Every legal move.
pub const MOVES: [(BatchState, BatchState); 14] = [
    (Queued, Running),
    (Queued, Cancelled),
    (Queued, Failed),
    (Running, Queued),
    (Running, Succeeded),
    (Running, Failed),
    (Running, TimedOut),
    (Running, Cancelling),
    // The worker itself was told to stop, as by an operator's signal.
    (Running, Cancelled),
    (Cancelling, Cancelled),
    (Cancelling, Succeeded),
    (Failed, Queued),
    (TimedOut, Queued),
    (Cancelled, Queued),
];

impl BatchState {
    /// All of them, in the order of a batch's life.
    pub const ALL: [BatchState; 7] = [
        Queued, Running, Cancelling, Succeeded, Failed, Cancelled, TimedOut,
    ];

    /// Whether the move is legal.
    pub fn may_become(self, next: BatchState) -> bool {
        MOVES.contains(&(self, next))
    }

    /// Whether nothing happens any more unless a person asks for it.
    pub fn is_terminal(self) -> bool {
        matches!(self, Succeeded | Failed | Cancelled | TimedOut)
    }

    /// The word for it.
    pub fn name(self) -> &'static str {
        match self {
            Queued => "QUEUED",
            Running => "RUNNING",
            Cancelling => "CANCELLING",
            Succeeded => "SUCCEEDED",
            Failed => "FAILED",
            Cancelled => "CANCELLED",
            TimedOut => "TIMED_OUT",
        }
    }

    /// The state of a word; words are written in capitals.
    pub fn from_name(name: &str) -> Option<BatchState> {
        Self::ALL.into_iter().find(|state| state.name() == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_stored_form() {
        for state in BatchState::ALL {
            assert_eq!(
                serde_json::to_value(state).unwrap(),
                serde_json::json!(state.name())
            );
            assert_eq!(BatchState::from_name(state.name()), Some(state));
        }
        assert_eq!(BatchState::from_name("running"), None);
    }

    #[test]
    fn success_is_for_good_and_the_other_ends_can_be_retried() {
        for state in BatchState::ALL
            .into_iter()
            .filter(|state| state.is_terminal())
        {
            for next in BatchState::ALL {
                let may = next == Queued && state != Succeeded;
                assert_eq!(state.may_become(next), may, "{state:?} to {next:?}");
            }
        }
    }

    #[test]
    fn every_state_but_the_first_is_reached_and_every_unfinished_one_is_left() {
        for state in BatchState::ALL {
            let is_reached = MOVES.iter().any(|(_, next)| *next == state);
            assert!(is_reached, "{state:?}");
            let is_left = MOVES.iter().any(|(from, _)| *from == state);
            assert_eq!(is_left, state != Succeeded, "{state:?}");
        }
    }
}
