//! What happens to a batch, as plain functions on its record. A store keeps the result when
//! nobody else changed the record meanwhile.

use crate::batch::{
    Attempt, AttemptEnd, Batch, Figures, Lease, Millis, Progress, Token, WorkerProcess,
};
use crate::retry::{RetryPolicy, Verdict};
use crate::state::BatchState::{
    self, Cancelled, Cancelling, Failed, Queued, Running, Succeeded, TimedOut,
};
use crate::{Failure, Kind};

/// Why something cannot be done to a batch now.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Its state does not allow it.
    #[error("{0}")]
    State(String),
    /// The attempt is no longer the batch's current one, or its lease is over.
    #[error("attempt {} of server {} no longer holds the lease", .0.attempt, .0.server)]
    LeaseLost(Token),
}

/// How an attempt went, as whoever ran it tells.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// Its exit class.
    pub end: AttemptEnd,
    /// Why it did not succeed.
    pub failure: Option<Failure>,
    /// Figures of its report.
    pub figures: Option<Figures>,
    /// How far it came.
    pub progress: Progress,
}

impl Batch {
    /// An attempt begins, under a lease.
    pub fn claim(&mut self, server: &str, now: Millis, lease_ms: i64) -> Result<Token, Refusal> {
        if self.state != Queued || self.not_before_ms.is_some_and(|time| time > now) {
            return Err(Refusal::State(format!(
                "`{}` does not wait for a slot",
                self.id
            )));
        }
        let last = self.attempts.last();
        let number = last.map_or(0, |attempt| attempt.number) + 1;
        let ran_out = last.is_some_and(|attempt| {
            attempt.number > self.attempts_forgiven
                && attempt
                    .failure
                    .as_ref()
                    .is_some_and(|f| f.kind == Kind::OutOfResources)
        });
        let is_reduced =
            ran_out || last.is_some_and(|a| a.is_reduced && a.number > self.attempts_forgiven);
        let token = Token {
            server: server.to_owned(),
            attempt: number,
        };
        self.attempts.push(Attempt {
            number,
            server: server.to_owned(),
            started_ms: now,
            finished_ms: None,
            end: None,
            failure: None,
            is_reduced,
            progress: Progress::default(),
            figures: None,
        });
        self.lease = Some(Lease {
            token: token.clone(),
            until_ms: now.saturating_add(lease_ms),
            worker: None,
        });
        self.not_before_ms = None;
        self.go(
            Running,
            format!("attempt {number} started on {server}"),
            now,
        );
        Ok(token)
    }

    /// The lease goes on. A lease that is over cannot be revived: its batch may be claimed
    /// by another at any moment.
    pub fn renew(&mut self, token: &Token, now: Millis, lease_ms: i64) -> Result<(), Refusal> {
        let lease = self.held_by(token)?;
        if lease.until_ms <= now {
            return Err(Refusal::LeaseLost(token.clone()));
        }
        lease.until_ms = now.saturating_add(lease_ms);
        Ok(())
    }

    /// The process that runs the attempt has started.
    pub fn started(&mut self, token: &Token, worker: WorkerProcess) -> Result<(), Refusal> {
        self.held_by(token)?.worker = Some(worker);
        Ok(())
    }

    /// How far the attempt has come.
    pub fn progressed(&mut self, token: &Token, progress: Progress) -> Result<(), Refusal> {
        self.held_by(token)?;
        if let Some(attempt) = self.attempts.last_mut() {
            attempt.progress = progress;
        }
        Ok(())
    }

    /// The attempt has ended.
    pub fn finish(
        &mut self,
        token: &Token,
        outcome: Outcome,
        policy: &RetryPolicy,
        now: Millis,
    ) -> Result<(), Refusal> {
        self.held_by(token)?;
        self.end_attempt(outcome, policy, now);
        Ok(())
    }

    /// Whoever ran the attempt was not heard of for longer than its lease. With `forced`
    /// it is known to be dead.
    pub fn lapse(
        &mut self,
        forced: bool,
        policy: &RetryPolicy,
        now: Millis,
    ) -> Result<(), Refusal> {
        let Some(lease) = &self.lease else {
            return Err(Refusal::State(format!("`{}` is not running", self.id)));
        };
        if !forced && lease.until_ms > now {
            return Err(Refusal::State(format!("the lease of `{}` holds", self.id)));
        }
        let message = format!("server {} was not heard of any more", lease.token.server);
        let outcome = Outcome {
            end: AttemptEnd::Lost,
            failure: Some(Failure::new(Kind::WorkerLost, message)),
            figures: None,
            progress: self
                .last_attempt()
                .map_or_else(Progress::default, |attempt| attempt.progress.clone()),
        };
        self.end_attempt(outcome, policy, now);
        Ok(())
    }

    fn end_attempt(&mut self, outcome: Outcome, policy: &RetryPolicy, now: Millis) {
        self.lease = None;
        let number = self.attempts.last().map_or(0, |attempt| attempt.number);
        if let Some(attempt) = self.attempts.last_mut() {
            attempt.finished_ms = Some(now);
            attempt.end = Some(outcome.end);
            attempt.failure = outcome.failure.clone();
            attempt.figures = outcome.figures;
            attempt.progress = outcome.progress;
        }
        let failure = outcome.failure.unwrap_or_else(|| {
            Failure::new(Kind::Internal, "the attempt did not say why it ended")
        });
        if outcome.end == AttemptEnd::Succeeded {
            self.failure = None;
            return self.go(
                Succeeded,
                format!("attempt {number} finished every stage"),
                now,
            );
        }
        if self.state == Cancelling || outcome.end == AttemptEnd::Cancelled {
            let by = self
                .cancelled_by
                .as_deref()
                .unwrap_or("a signal to its worker");
            let reason = format!("cancelled by {by}");
            self.failure = Some(Failure::new(Kind::Cancelled, reason.clone()));
            return self.go(Cancelled, reason, now);
        }
        if outcome.end == AttemptEnd::TimedOut {
            let reason = failure.message.clone();
            self.failure = Some(failure);
            return self.go(TimedOut, reason, now);
        }
        match policy.verdict(self, &failure, now) {
            Verdict::GiveUp => {
                let reason = format!("attempt {number}: {}", failure.message);
                self.failure = Some(failure);
                self.go(Failed, reason, now);
            }
            Verdict::Again { not_before_ms } => {
                self.not_before_ms = (not_before_ms > now).then_some(not_before_ms);
                self.queued_ms = now;
                self.go(
                    Queued,
                    format!("attempt {number}: {}; it is tried again", failure.message),
                    now,
                );
            }
        }
    }

    /// Somebody asks for the batch to stop. Asking again, or too late, changes nothing.
    /// True when something changed.
    pub fn cancel(&mut self, by: &str, now: Millis) -> bool {
        match self.state {
            Queued => {
                let reason = format!("cancelled by {by} before it ran");
                self.cancelled_by = Some(by.to_owned());
                self.failure = Some(Failure::new(Kind::Cancelled, reason.clone()));
                self.go(Cancelled, reason, now);
                true
            }
            Running => {
                self.cancelled_by = Some(by.to_owned());
                self.go(Cancelling, format!("{by} asked for it to stop"), now);
                true
            }
            Cancelling | Succeeded | Failed | Cancelled | TimedOut => false,
        }
    }

    /// The batch has waited for too long, if it has.
    pub fn expire(&mut self, now: Millis) -> Result<(), Refusal> {
        match (self.queue_deadline_ms(), self.limits.queue_ttl_ms) {
            (Some(deadline), Some(ttl)) if deadline <= now => {
                let failure = Failure::queue_expired(ttl);
                let reason = failure.message.clone();
                self.failure = Some(failure);
                self.go(Failed, reason, now);
                Ok(())
            }
            _ => Err(Refusal::State(format!("`{}` has time to wait", self.id))),
        }
    }

    /// A person asks for another attempt. What was published stays and is not made again.
    pub fn retry(&mut self, by: &str, now: Millis) -> Result<(), Refusal> {
        if !self.state.may_become(Queued) || !self.state.is_terminal() {
            let what = match self.state {
                Succeeded => "has succeeded; submit it again to run it again",
                _ => "has not ended; cancel it first",
            };
            return Err(Refusal::State(format!("`{}` {what}", self.id)));
        }
        self.attempts_forgiven = self.attempts.last().map_or(0, |attempt| attempt.number);
        self.failure = None;
        self.cancelled_by = None;
        self.not_before_ms = None;
        self.queued_ms = now;
        self.go(Queued, format!("{by} asked for another attempt"), now);
        Ok(())
    }

    /// Whether the batch may be forgotten.
    pub fn check_deletable(&self) -> Result<(), Refusal> {
        if self.state.is_terminal() {
            return Ok(());
        }
        Err(Refusal::State(format!(
            "`{}` is {}; cancel it and wait for its end, then delete it",
            self.id,
            self.state.name()
        )))
    }

    fn held_by(&mut self, token: &Token) -> Result<&mut Lease, Refusal> {
        match &mut self.lease {
            Some(lease) if lease.token == *token => Ok(lease),
            _ => Err(Refusal::LeaseLost(token.clone())),
        }
    }

    fn go(&mut self, next: BatchState, reason: String, now: Millis) {
        debug_assert!(self.state.may_become(next), "{:?} to {next:?}", self.state);
        self.record(next, reason, now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::NewBatch;

    const LEASE: i64 = 100;

    fn batch() -> Batch {
        let mut batch = Batch::accepted(NewBatch::default(), "u".into(), String::new(), 0);
        batch.limits.max_attempts = 2;
        batch.limits.queue_ttl_ms = Some(1_000);
        batch
    }

    fn outcome(end: AttemptEnd, kind: Kind) -> Outcome {
        Outcome {
            end,
            failure: (end != AttemptEnd::Succeeded).then(|| Failure::new(kind, "why")),
            figures: None,
            progress: Progress::default(),
        }
    }

    fn finish(batch: &mut Batch, token: &Token, end: AttemptEnd, kind: Kind, now: Millis) {
        let policy = RetryPolicy::default();
        batch
            .finish(token, outcome(end, kind), &policy, now)
            .unwrap();
    }

    #[track_caller]
    fn check_history(batch: &Batch, states: &[BatchState]) {
        let had: Vec<_> = batch.history.iter().map(|change| change.state).collect();
        assert_eq!(had, states);
        assert!(batch.history.iter().all(|change| !change.reason.is_empty()));
    }

    #[test]
    fn a_late_attempt_can_do_nothing() {
        let mut batch = batch();
        let policy = RetryPolicy::default();
        let first = batch.claim("a", 0, LEASE).unwrap();
        batch.renew(&first, 50, LEASE).unwrap();
        assert!(batch.lapse(false, &policy, 149).is_err());
        assert_eq!(
            batch.renew(&first, 150, LEASE),
            Err(Refusal::LeaseLost(first.clone()))
        );
        batch.lapse(false, &policy, 150).unwrap();
        let second = batch.claim("b", 151, LEASE).unwrap();
        assert!(second.attempt > first.attempt);
        let done = outcome(AttemptEnd::Succeeded, Kind::Internal);
        assert!(batch.renew(&first, 152, LEASE).is_err());
        assert!(batch.finish(&first, done, &policy, 152).is_err());
        assert!(batch.progressed(&first, Progress::default()).is_err());
        finish(
            &mut batch,
            &second,
            AttemptEnd::Succeeded,
            Kind::Internal,
            153,
        );
        check_history(&batch, &[Queued, Running, Queued, Running, Succeeded]);
    }

    #[test]
    fn a_batch_waits_before_it_is_tried_again() {
        let mut batch = batch();
        let token = batch.claim("a", 0, LEASE).unwrap();
        finish(
            &mut batch,
            &token,
            AttemptEnd::Failed,
            Kind::Unavailable,
            10,
        );
        let time = batch.not_before_ms.expect("a wait");
        assert!(batch.claim("a", time - 1, LEASE).is_err());
        // The wait is not time in the queue.
        assert_eq!(batch.queue_deadline_ms(), Some(time + 1_000));
        let token = batch.claim("a", time, LEASE).unwrap();
        finish(
            &mut batch,
            &token,
            AttemptEnd::Failed,
            Kind::Unavailable,
            time + 1,
        );
        check_history(&batch, &[Queued, Running, Queued, Running, Failed]);
        batch.retry("ada", time + 2).unwrap();
        let token = batch.claim("a", time + 2, LEASE).unwrap();
        finish(
            &mut batch,
            &token,
            AttemptEnd::Failed,
            Kind::Unavailable,
            time + 3,
        );
        assert_eq!(batch.state, Queued, "a person's retry begins to count anew");
    }

    #[test]
    fn cancelling_is_idempotent_and_ends_where_it_should() {
        let mut waiting = batch();
        assert!(waiting.cancel("ada", 1));
        assert!(!waiting.cancel("ada", 2));
        check_history(&waiting, &[Queued, Cancelled]);

        for (end, last) in [
            (AttemptEnd::Cancelled, Cancelled),
            (AttemptEnd::Failed, Cancelled),
            (AttemptEnd::Crashed, Cancelled),
            (AttemptEnd::TimedOut, Cancelled),
            (AttemptEnd::Succeeded, Succeeded),
        ] {
            let mut batch = batch();
            let token = batch.claim("a", 0, LEASE).unwrap();
            assert!(batch.cancel("ada", 1));
            assert!(!batch.cancel("bob", 2));
            batch.renew(&token, 3, LEASE).unwrap();
            finish(&mut batch, &token, end, Kind::Unavailable, 4);
            check_history(&batch, &[Queued, Running, Cancelling, last]);
            assert_eq!(batch.failure.is_some(), last == Cancelled);
        }

        let mut lost = batch();
        lost.claim("a", 0, LEASE).unwrap();
        lost.cancel("ada", 1);
        lost.lapse(false, &RetryPolicy::default(), LEASE).unwrap();
        check_history(&lost, &[Queued, Running, Cancelling, Cancelled]);
    }

    #[test]
    fn running_out_of_memory_makes_the_next_attempt_a_smaller_one() {
        let mut batch = batch();
        batch.limits.max_attempts = 3;
        let token = batch.claim("a", 0, LEASE).unwrap();
        assert!(!batch.attempts[0].is_reduced);
        finish(
            &mut batch,
            &token,
            AttemptEnd::Failed,
            Kind::OutOfResources,
            1,
        );
        let time = batch.not_before_ms.unwrap();
        batch.claim("a", time, LEASE).unwrap();
        assert!(batch.attempts[1].is_reduced);
    }

    #[test]
    fn only_time_in_the_queue_expires_a_batch() {
        let mut batch = batch();
        assert!(batch.expire(999).is_err());
        batch.expire(1_000).unwrap();
        assert_eq!(
            batch.failure.as_ref().map(|f| f.kind),
            Some(Kind::QueueExpired)
        );
        assert!(batch.retry("ada", 1_001).is_ok());
        batch.claim("a", 1_002, LEASE).unwrap();
        assert!(batch.expire(9_999).is_err());
        assert!(batch.retry("ada", 9_999).is_err());
        assert!(batch.check_deletable().is_err());
    }

    #[test]
    fn its_time_to_live_is_an_end_of_its_own() {
        let mut batch = batch();
        let token = batch.claim("a", 0, LEASE).unwrap();
        finish(&mut batch, &token, AttemptEnd::TimedOut, Kind::TimedOut, 1);
        check_history(&batch, &[Queued, Running, TimedOut]);
        assert!(batch.check_deletable().is_ok());
    }
}
