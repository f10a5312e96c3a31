//! Whether a failed attempt is followed by another, and when.

use crate::batch::{AttemptEnd, Batch, Millis};
use crate::{Failure, Kind};

/// How failures are retried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetryPolicy {
    /// The wait before the second attempt; it doubles with each further one.
    pub backoff_ms: i64,
    /// The longest wait.
    pub backoff_max_ms: i64,
    /// Attempts that may be lost with their server before the batch itself is suspected.
    pub losses_max: u32,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        RetryPolicy {
            backoff_ms: 1_000,
            backoff_max_ms: 60_000,
            losses_max: 20,
        }
    }
}

/// What follows an attempt that did not succeed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing: the failure is the batch's.
    GiveUp,
    /// Another attempt, not before this time.
    Again {
        /// The earliest time.
        not_before_ms: Millis,
    },
}

/// How a kind of failure is retried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Class {
    /// Trying again gives the same failure.
    Never,
    /// Once, in smaller pieces.
    OnceReduced,
    /// As often as `limits.max_attempts` allows.
    Attempts,
}

fn class(kind: Kind) -> Class {
    match kind {
        Kind::InvalidSpec
        | Kind::InvalidQuery
        | Kind::InputMissing
        | Kind::DataError
        | Kind::UdfFailed
        | Kind::OutputExists
        | Kind::FallbackRefused
        | Kind::QueueExpired
        | Kind::Cancelled
        | Kind::TimedOut
        | Kind::Internal => Class::Never,
        Kind::OutOfResources => Class::OnceReduced,
        Kind::Unavailable | Kind::WorkerLost => Class::Attempts,
    }
}

impl RetryPolicy {
    /// What follows the last attempt of a batch, which ended with this failure.
    pub fn verdict(&self, batch: &Batch, failure: &Failure, now: Millis) -> Verdict {
        let counted = || {
            let forgiven = batch.attempts_forgiven;
            batch.attempts.iter().filter(move |a| a.number > forgiven)
        };
        let of = |end: AttemptEnd| counted().filter(|a| a.end == Some(end)).count() as u32;
        let losses = of(AttemptEnd::Lost);
        let n_failed = counted().count() as u32 - losses;
        let last_is_loss = batch
            .last_attempt()
            .is_some_and(|attempt| attempt.end == Some(AttemptEnd::Lost));
        let again = if last_is_loss {
            losses <= self.losses_max
        } else {
            match class(failure.kind) {
                Class::Never => false,
                Class::OnceReduced => {
                    n_failed < batch.limits.max_attempts && !counted().any(|a| a.is_reduced)
                }
                Class::Attempts => n_failed < batch.limits.max_attempts,
            }
        };
        if !again {
            return Verdict::GiveUp;
        }
        // What was lost with its server did nothing wrong and waits for nobody.
        let wait = if last_is_loss {
            0
        } else {
            self.backoff(&batch.uid, n_failed)
        };
        Verdict::Again {
            not_before_ms: now.saturating_add(wait),
        }
    }

    /// The wait after so many failures, spread by a fifth so that what failed together does
    /// not come back together.
    fn backoff(&self, uid: &str, n_failed: u32) -> i64 {
        let doubled = self
            .backoff_ms
            .saturating_mul(1 << n_failed.saturating_sub(1).min(30));
        let wait = doubled.clamp(0, self.backoff_max_ms);
        let spread = uid.bytes().fold(u64::from(n_failed), |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        }) % 401;
        wait / 1000 * (800 + spread as i64) + wait % 1000
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::{Attempt, NewBatch, Progress};

    /// A batch whose attempts ended so; `r` in front means in smaller pieces.
    fn batch(ends: &[(AttemptEnd, bool)], max_attempts: u32) -> Batch {
        let mut batch = Batch::accepted(NewBatch::default(), "u".into(), String::new(), 0);
        batch.limits.max_attempts = max_attempts;
        for (i, (end, is_reduced)) in ends.iter().enumerate() {
            batch.attempts.push(Attempt {
                number: i as u32 + 1,
                server: "s".into(),
                started_ms: 0,
                finished_ms: Some(0),
                end: Some(*end),
                failure: None,
                is_reduced: *is_reduced,
                progress: Progress::default(),
                figures: None,
            });
        }
        batch
    }

    #[track_caller]
    fn check(ends: &[(AttemptEnd, bool)], max_attempts: u32, kind: Kind, again: bool) {
        let batch = batch(ends, max_attempts);
        let verdict = RetryPolicy::default().verdict(&batch, &Failure::new(kind, ""), 0);
        assert_eq!(verdict != Verdict::GiveUp, again, "{ends:?} {kind:?}");
    }

    #[test]
    fn what_the_author_has_to_mend_is_never_tried_again() {
        for kind in [
            Kind::InvalidSpec,
            Kind::InvalidQuery,
            Kind::InputMissing,
            Kind::DataError,
            Kind::UdfFailed,
            Kind::OutputExists,
            Kind::FallbackRefused,
            Kind::Internal,
        ] {
            check(&[(AttemptEnd::Failed, false)], 10, kind, false);
        }
    }

    #[test]
    fn what_may_pass_is_tried_as_often_as_allowed() {
        use AttemptEnd::{Crashed, Failed, Lost};
        check(&[(Failed, false)], 1, Kind::Unavailable, false);
        check(&[(Failed, false)], 2, Kind::Unavailable, true);
        check(&[(Failed, false); 2], 2, Kind::Unavailable, false);
        check(&[(Crashed, false)], 2, Kind::WorkerLost, true);
        check(&[(Crashed, false); 3], 3, Kind::WorkerLost, false);
        // Losing servers is not the batch's doing, up to a point.
        check(&[(Lost, false); 20], 1, Kind::WorkerLost, true);
        check(&[(Lost, false); 21], 1, Kind::WorkerLost, false);
        check(
            &[(Lost, false), (Failed, false)],
            2,
            Kind::Unavailable,
            true,
        );
    }

    #[test]
    fn running_out_of_memory_is_tried_once_in_smaller_pieces() {
        use AttemptEnd::Failed;
        check(&[(Failed, false)], 3, Kind::OutOfResources, true);
        check(
            &[(Failed, false), (Failed, true)],
            3,
            Kind::OutOfResources,
            false,
        );
        check(&[(Failed, false)], 1, Kind::OutOfResources, false);
    }

    #[test]
    fn waits_double_up_to_their_bound() {
        let policy = RetryPolicy::default();
        for (n_failed, base) in [
            (1, 1_000),
            (2, 2_000),
            (3, 4_000),
            (7, 60_000),
            (40, 60_000),
        ] {
            let wait = policy.backoff("abc", n_failed);
            assert!(
                (base * 8 / 10..=base * 12 / 10).contains(&wait),
                "{n_failed}: {wait}"
            );
        }
    }
}
