//! The two things that end an attempt from outside: a request to stop, and time.

use std::pin::pin;
use std::time::Duration;

use engine::Cancel;
use tokio::time::Instant;

use crate::{Failure, Kind};

/// How long the engine may tidy up after it was told to stop, before it is dropped.
const GRACE: Duration = Duration::from_secs(10);

/// What every await of an attempt is bounded by.
#[derive(Debug)]
pub(crate) struct Bounds {
    requested: Cancel,
    ttl: Option<Duration>,
    started: Instant,
    work: Cancel,
}

impl Bounds {
    /// Starts the clock.
    pub(crate) fn start(requested: Cancel, ttl: Option<Duration>) -> Self {
        Bounds {
            requested,
            ttl,
            started: Instant::now(),
            work: Cancel::new(),
        }
    }

    /// What the work listens to. It is cancelled for either reason, so that the engine
    /// can remove what it half wrote.
    pub(crate) fn work(&self) -> Cancel {
        self.work.clone()
    }

    /// Awaits `work`, or stops it. A stop that is already due wins over work that is
    /// ready; work that finishes well although it was told to stop counts as finished.
    pub(crate) async fn hold<T, E>(
        &self,
        work: impl Future<Output = Result<T, E>>,
    ) -> Result<Result<T, E>, Failure> {
        let mut work = pin!(work);
        let stop = tokio::select! {
            biased;
            () = self.requested.cancelled() => {
                Failure::new(Kind::Cancelled, "the batch was cancelled")
            }
            () = self.expiry() => self.expired(),
            done = &mut work => return Ok(done),
        };
        if self.work.is_cancelled() {
            return Err(stop);
        }
        self.work.cancel();
        match tokio::time::timeout(GRACE, work).await {
            Ok(Ok(done)) => Ok(Ok(done)),
            Ok(Err(_)) => Err(stop),
            Err(_) => {
                tracing::warn!("the engine did not stop within {GRACE:?} and was dropped");
                Err(stop)
            }
        }
    }

    /// Calls `stop` when a request or the time ends the attempt, also while its own task
    /// is busy; not after the value that it returns was dropped.
    pub(crate) fn watch(&self, stop: impl FnOnce() + Send + 'static) -> Watch {
        let bounds = Bounds {
            requested: self.requested.clone(),
            work: self.work.clone(),
            ..*self
        };
        Watch(tokio::spawn(async move {
            tokio::select! {
                () = bounds.requested.cancelled() => {}
                () = bounds.expiry() => {}
            }
            stop();
        }))
    }

    async fn expiry(&self) {
        // A deadline beyond what the clock can say is no deadline.
        match self.ttl.and_then(|ttl| self.started.checked_add(ttl)) {
            Some(deadline) => tokio::time::sleep_until(deadline).await,
            None => std::future::pending().await,
        }
    }

    fn expired(&self) -> Failure {
        let seconds = self.ttl.unwrap_or_default().as_secs_f64();
        Failure::new(
            Kind::TimedOut,
            format!("the batch ran out of its time to live, {seconds} s; raise `limits.ttl`"),
        )
    }
}

/// Watches an attempt's bounds until it is dropped.
#[derive(Debug)]
pub(crate) struct Watch(tokio::task::JoinHandle<()>);

impl Drop for Watch {
    fn drop(&mut self) {
        self.0.abort();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(result: Result<Result<u8, ()>, Failure>, expected: Result<u8, Kind>) {
        let result = result.map(|done| done.expect("this work does not fail"));
        assert_eq!(result.map_err(|failure| failure.kind), expected);
    }

    /// Work that ends only when it is told to.
    async fn endless(cancel: Cancel) -> Result<u8, ()> {
        cancel.cancelled().await;
        Err(())
    }

    #[tokio::test]
    async fn work_inside_its_bounds_finishes() {
        for ttl in [None, Some(Duration::from_secs(60)), Some(Duration::MAX)] {
            let bounds = Bounds::start(Cancel::new(), ttl);
            check(bounds.hold(async { Ok(7) }).await, Ok(7));
        }
    }

    #[tokio::test]
    async fn time_ends_work_that_does_not() {
        let bounds = Bounds::start(Cancel::new(), Some(Duration::from_millis(5)));
        check(
            bounds.hold(endless(bounds.work())).await,
            Err(Kind::TimedOut),
        );
    }

    #[tokio::test]
    async fn a_request_ends_work_that_does_not() {
        let requested = Cancel::new();
        let bounds = Bounds::start(requested.clone(), None);
        requested.cancel();
        check(
            bounds.hold(endless(bounds.work())).await,
            Err(Kind::Cancelled),
        );
    }

    #[tokio::test]
    async fn work_that_finishes_while_stopping_counts() {
        let requested = Cancel::new();
        requested.cancel();
        let bounds = Bounds::start(requested, None);
        check(bounds.hold(async { Ok(7) }).await, Ok(7));
        check(bounds.hold(async { Ok(7) }).await, Err(Kind::Cancelled));
    }
}
