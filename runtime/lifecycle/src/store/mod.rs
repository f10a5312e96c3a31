//! What must survive a crash, and who keeps it.
//!
//! A store keeps records and compares versions; it decides nothing. Every change of a batch
//! is a function on its record ([`crate::moves`]) whose result is kept only if the record is
//! still the one that was read, so two servers cannot both make a move.

#[cfg(test)]
mod contract;
pub mod ledger;
pub mod memory;
#[cfg(test)]
mod postgres_server;
mod schema;
pub mod sql;

use std::fmt::Debug;

use async_trait::async_trait;

use crate::batch::{Batch, Millis, Submission};
use crate::filter::Filter;
use crate::queue::OpenBatch;
use crate::state::BatchState;

/// Why a store did not do what it was asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// It does not answer; trying again may help.
    #[error("the store does not answer: {0}")]
    Unavailable(String),
    /// What it holds cannot be read.
    #[error("the store holds something that cannot be read: {0}")]
    Corrupt(String),
    /// It was made by another version of Warpline.
    #[error("{0}")]
    Version(String),
}

/// What came of creating a batch.
#[derive(Debug, Clone, PartialEq)]
pub enum Created {
    /// It is new.
    New,
    /// The same owner has used the request id before, for this batch.
    SameRequest(Box<Batch>),
    /// The id is taken, by this batch.
    SameId(Box<Batch>),
}

/// What to list.
#[derive(Debug, Clone, PartialEq)]
pub struct Query {
    /// What the batches are like.
    pub filter: Filter,
    /// Only those of this owner.
    pub owner: Option<String>,
    /// Only those that come after this one: its time of creation and its uid.
    pub after: Option<(Millis, String)>,
    /// How many.
    pub limit: usize,
}

/// A part of an attempt's log.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LogPart {
    /// Its bytes: whole lines, unless the reader began within one.
    pub bytes: Vec<u8>,
    /// Where the next part begins.
    pub next: i64,
}

/// The result of asking a store.
pub type Result<T> = std::result::Result<T, StoreError>;

/// Keeps batches. Each call is atomic, and what it has answered survives a crash.
#[async_trait]
pub trait Store: ledger::Ledger + Send + Sync + Debug {
    /// The time, by the one clock that all servers on this store go by.
    async fn now(&self) -> Result<Millis>;

    /// Whether other processes may change what it holds.
    fn is_shared(&self) -> bool;

    /// Keeps a new batch, unless its id or its owner's request id is taken.
    async fn create(&self, batch: &Batch, submission: &Submission) -> Result<Created>;

    /// The batch of an id.
    async fn get(&self, id: &str) -> Result<Option<Batch>>;

    /// What was submitted.
    async fn submission(&self, uid: &str) -> Result<Option<Submission>>;

    /// Keeps a changed batch and raises its version, if the kept one still has the version
    /// of this one. False when it has not, or is gone.
    async fn replace(&self, batch: &mut Batch) -> Result<bool>;

    /// Forgets a batch with its submission, logs and reports, if it still has this version.
    async fn delete(&self, batch: &Batch) -> Result<bool>;

    /// Batches, the newest first.
    async fn list(&self, query: &Query) -> Result<Vec<Batch>>;

    /// Every batch that has not ended.
    async fn open(&self) -> Result<Vec<OpenBatch>>;

    /// Ids of batches whose retention is over, some of them.
    async fn overdue(&self, now: Millis) -> Result<Vec<String>>;

    /// How many batches are in each state.
    async fn counts(&self) -> Result<Vec<(BatchState, u64)>>;

    /// Keeps the report of an attempt; a second one replaces the first.
    async fn put_report(&self, uid: &str, attempt: u32, report: &str) -> Result<()>;

    /// The report of an attempt.
    async fn report(&self, uid: &str, attempt: u32) -> Result<Option<String>>;

    /// Adds bytes to the log of an attempt. `offset` is what was written before; bytes that
    /// are there already are not added again.
    async fn append_log(&self, uid: &str, attempt: u32, offset: i64, bytes: &[u8]) -> Result<()>;

    /// Bytes of the log of an attempt from an offset on, about as many as asked for at most.
    async fn read_log(&self, uid: &str, attempt: u32, from: i64, max: usize) -> Result<LogPart>;
}
