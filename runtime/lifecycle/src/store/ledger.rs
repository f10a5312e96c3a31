//! What is kept of triggers: themselves, and every event that they took in.
//!
//! An event is in the ledger once, under its identity, before its sender is answered. It
//! leaves PENDING once, into one group; a group becomes one batch, whose request id is the
//! group's name. So whatever dies in between, an event leads to one batch.

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use sqlx::Row;
use sqlx::any::AnyRow;

use super::Result;
use super::memory::MemoryStore;
use super::sql::{SqlStore, failed, json, unreadable};
use crate::batch::Millis;
use crate::trigger::Trigger;
use crate::trigger::event::ObjectEvent;

/// How far an event has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum EventState {
    /// It waits until its trigger is ready.
    Pending,
    /// It is part of a batch that is about to be submitted.
    Grouped,
    /// Its batch is submitted.
    Submitted,
    /// It leads to nothing; `detail` says why. It can be replayed.
    Dead,
}

impl EventState {
    /// Every one.
    const ALL: [EventState; 4] = [
        EventState::Pending,
        EventState::Grouped,
        EventState::Submitted,
        EventState::Dead,
    ];

    /// The word for it.
    pub fn name(self) -> &'static str {
        match self {
            EventState::Pending => "PENDING",
            EventState::Grouped => "GROUPED",
            EventState::Submitted => "SUBMITTED",
            EventState::Dead => "DEAD",
        }
    }

    fn from_name(name: &str) -> EventState {
        EventState::ALL
            .into_iter()
            .find(|state| state.name() == name)
            .unwrap_or(EventState::Dead)
    }
}

/// An event in the ledger.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LedgerEntry {
    /// The trigger that took it in.
    pub trigger: String,
    /// What tells it from other events of that trigger.
    pub identity: String,
    /// When it came first.
    pub received_ms: Millis,
    /// How often it has come.
    pub times: i64,
    /// How far it has come.
    pub state: EventState,
    /// The batch it is part of, once it is: its request id.
    pub group: Option<String>,
    /// That batch's id, or why it is dead.
    pub detail: Option<String>,
    /// The event; absent for a record that cannot be read.
    pub event: Option<ObjectEvent>,
}

/// Keeps triggers and their events. Each call is atomic.
#[async_trait]
pub trait Ledger {
    /// Keeps a trigger: a new one when its version is 0, else if the kept one has this
    /// version. False when the name is taken, or it was changed meanwhile.
    async fn put_trigger(&self, trigger: &mut Trigger) -> Result<bool>;

    /// All triggers, by name.
    async fn triggers(&self) -> Result<Vec<Trigger>>;

    /// Forgets a trigger and its events.
    async fn delete_trigger(&self, name: &str) -> Result<bool>;

    /// Keeps events that are new; with `count`, counts those that are not. How many were new.
    async fn record_events(&self, entries: &[LedgerEntry], count: bool) -> Result<usize>;

    /// Events of a trigger in a state, the oldest first.
    async fn events(
        &self,
        trigger: &str,
        state: EventState,
        limit: usize,
    ) -> Result<Vec<LedgerEntry>>;

    /// How many events of a trigger are in each state, and how many came again.
    async fn event_counts(&self, trigger: &str) -> Result<Vec<(EventState, u64, u64)>>;

    /// Moves those of the events that are in `from`. How many were.
    async fn move_events(
        &self,
        trigger: &str,
        identities: &[String],
        from: EventState,
        to: EventState,
        group: Option<&str>,
        detail: Option<&str>,
    ) -> Result<usize>;
}

#[async_trait]
impl Ledger for MemoryStore {
    async fn put_trigger(&self, trigger: &mut Trigger) -> Result<bool> {
        let mut inner = self.inner();
        let kept = inner
            .triggers
            .get(&trigger.name)
            .map_or(0, |kept| kept.version);
        if kept != trigger.version {
            return Ok(false);
        }
        trigger.version += 1;
        inner.triggers.insert(trigger.name.clone(), trigger.clone());
        Ok(true)
    }

    async fn triggers(&self) -> Result<Vec<Trigger>> {
        Ok(self.inner().triggers.values().cloned().collect())
    }

    async fn delete_trigger(&self, name: &str) -> Result<bool> {
        let mut inner = self.inner();
        inner.events.retain(|entry| entry.trigger != name);
        Ok(inner.triggers.remove(name).is_some())
    }

    async fn record_events(&self, entries: &[LedgerEntry], count: bool) -> Result<usize> {
        let mut inner = self.inner();
        let mut n_new = 0;
        for entry in entries {
            let known = inner
                .events
                .iter_mut()
                .find(|known| known.trigger == entry.trigger && known.identity == entry.identity);
            match known {
                Some(known) => known.times += i64::from(count),
                None => {
                    inner.events.push(entry.clone());
                    n_new += 1;
                }
            }
        }
        Ok(n_new)
    }

    async fn events(
        &self,
        trigger: &str,
        state: EventState,
        limit: usize,
    ) -> Result<Vec<LedgerEntry>> {
        let inner = self.inner();
        let of = |entry: &&LedgerEntry| entry.trigger == trigger && entry.state == state;
        let mut found: Vec<LedgerEntry> = inner.events.iter().filter(of).cloned().collect();
        found.sort_by(|a, b| (a.received_ms, &a.identity).cmp(&(b.received_ms, &b.identity)));
        found.truncate(limit);
        Ok(found)
    }

    async fn event_counts(&self, trigger: &str) -> Result<Vec<(EventState, u64, u64)>> {
        let inner = self.inner();
        Ok(EventState::ALL
            .map(|state| {
                let of = inner
                    .events
                    .iter()
                    .filter(|e| e.trigger == trigger && e.state == state);
                let again: i64 = of.clone().map(|entry| entry.times - 1).sum();
                (state, of.count() as u64, again.unsigned_abs())
            })
            .to_vec())
    }

    async fn move_events(
        &self,
        trigger: &str,
        identities: &[String],
        from: EventState,
        to: EventState,
        group: Option<&str>,
        detail: Option<&str>,
    ) -> Result<usize> {
        let mut n = 0;
        for entry in &mut self.inner().events {
            let is = entry.trigger == trigger && entry.state == from;
            if is && identities.contains(&entry.identity) {
                entry.state = to;
                entry.group = group.map(str::to_owned);
                entry.detail = detail.map(str::to_owned);
                n += 1;
            }
        }
        Ok(n)
    }
}

#[async_trait]
impl Ledger for SqlStore {
    async fn put_trigger(&self, trigger: &mut Trigger) -> Result<bool> {
        let before = trigger.version;
        trigger.version += 1;
        let document = json(trigger);
        let sql = if before == 0 {
            "INSERT INTO triggers (name, version, document) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING"
        } else {
            "UPDATE triggers SET version = $2, document = $3 WHERE name = $1 AND version = $4"
        };
        let mut put = sqlx::query(sql)
            .bind(&trigger.name)
            .bind(trigger.version)
            .bind(document);
        if before != 0 {
            put = put.bind(before);
        }
        let done = put
            .execute(&self.pool)
            .await
            .map_err(|error| failed(&error))?;
        if done.rows_affected() == 0 {
            trigger.version = before;
        }
        Ok(done.rows_affected() == 1)
    }

    async fn triggers(&self) -> Result<Vec<Trigger>> {
        let documents: Vec<String> =
            sqlx::query_scalar("SELECT document FROM triggers ORDER BY name")
                .fetch_all(&self.pool)
                .await
                .map_err(|error| failed(&error))?;
        let parse = |text: &String| serde_json::from_str(text).map_err(|error| unreadable(&error));
        documents.iter().map(parse).collect()
    }

    async fn delete_trigger(&self, name: &str) -> Result<bool> {
        let deleted = async {
            let mut transaction = self.pool.begin().await?;
            sqlx::query("DELETE FROM trigger_events WHERE trigger_name = $1")
                .bind(name)
                .execute(&mut *transaction)
                .await?;
            let done = sqlx::query("DELETE FROM triggers WHERE name = $1")
                .bind(name)
                .execute(&mut *transaction)
                .await?;
            transaction.commit().await?;
            sqlx::Result::Ok(done.rows_affected() == 1)
        };
        deleted.await.map_err(|error| failed(&error))
    }

    async fn record_events(&self, entries: &[LedgerEntry], count: bool) -> Result<usize> {
        let recorded = async {
            let mut transaction = self.pool.begin().await?;
            let mut n_new = 0;
            // In one order everywhere, so that two servers never wait for each other.
            let mut entries: Vec<&LedgerEntry> = entries.iter().collect();
            entries.sort_by(|a, b| a.identity.cmp(&b.identity));
            for entry in entries {
                let sql = "INSERT INTO trigger_events (trigger_name, identity, received_ms, times, \
                     state, group_name, detail, event) VALUES ($1, $2, $3, 1, $4, NULL, $5, $6) \
                     ON CONFLICT DO NOTHING";
                let done = sqlx::query(sql)
                    .bind(&entry.trigger)
                    .bind(&entry.identity)
                    .bind(entry.received_ms)
                    .bind(entry.state.name())
                    .bind(&entry.detail)
                    .bind(json(&entry.event))
                    .execute(&mut *transaction)
                    .await?;
                if done.rows_affected() == 1 {
                    n_new += 1;
                    continue;
                }
                if !count {
                    continue;
                }
                let again = "UPDATE trigger_events SET times = times + 1 \
                             WHERE trigger_name = $1 AND identity = $2";
                let again = sqlx::query(again)
                    .bind(&entry.trigger)
                    .bind(&entry.identity);
                again.execute(&mut *transaction).await?;
            }
            transaction.commit().await?;
            sqlx::Result::Ok(n_new)
        };
        recorded.await.map_err(|error| failed(&error))
    }

    async fn events(
        &self,
        trigger: &str,
        state: EventState,
        limit: usize,
    ) -> Result<Vec<LedgerEntry>> {
        let sql = "SELECT trigger_name, identity, received_ms, times, state, group_name, detail, event \
                   FROM trigger_events WHERE trigger_name = $1 AND state = $2 \
                   ORDER BY received_ms, identity LIMIT $3";
        let rows = sqlx::query(sql)
            .bind(trigger)
            .bind(state.name())
            .bind(i64::try_from(limit).unwrap_or(i64::MAX))
            .fetch_all(&self.pool)
            .await
            .map_err(|error| failed(&error))?;
        rows.iter().map(entry).collect()
    }

    async fn event_counts(&self, trigger: &str) -> Result<Vec<(EventState, u64, u64)>> {
        let sql = "SELECT state, COUNT(*) AS n, CAST(SUM(times - 1) AS BIGINT) AS again \
                   FROM trigger_events WHERE trigger_name = $1 GROUP BY state";
        let rows = sqlx::query(sql).bind(trigger).fetch_all(&self.pool).await;
        let rows = rows.map_err(|error| failed(&error))?;
        let mut counts = EventState::ALL.map(|state| (state, 0, 0));
        for row in rows {
            let name: String = row.try_get("state").map_err(|error| failed(&error))?;
            let n: i64 = row.try_get("n").map_err(|error| failed(&error))?;
            let again: i64 = row.try_get("again").map_err(|error| failed(&error))?;
            if let Some(count) = counts.iter_mut().find(|(state, ..)| state.name() == name) {
                (count.1, count.2) = (n.unsigned_abs(), again.unsigned_abs());
            }
        }
        Ok(counts.to_vec())
    }

    async fn move_events(
        &self,
        trigger: &str,
        identities: &[String],
        from: EventState,
        to: EventState,
        group: Option<&str>,
        detail: Option<&str>,
    ) -> Result<usize> {
        let moved = async {
            let mut transaction = self.pool.begin().await?;
            let mut n = 0;
            let mut identities: Vec<&String> = identities.iter().collect();
            identities.sort();
            for identity in identities {
                let sql = "UPDATE trigger_events SET state = $1, group_name = $2, detail = $3 \
                           WHERE trigger_name = $4 AND identity = $5 AND state = $6";
                let done = sqlx::query(sql)
                    .bind(to.name())
                    .bind(group)
                    .bind(detail)
                    .bind(trigger)
                    .bind(identity)
                    .bind(from.name())
                    .execute(&mut *transaction)
                    .await?;
                n += usize::try_from(done.rows_affected()).unwrap_or(0);
            }
            transaction.commit().await?;
            sqlx::Result::Ok(n)
        };
        moved.await.map_err(|error| failed(&error))
    }
}

fn entry(row: &AnyRow) -> Result<LedgerEntry> {
    let read = || {
        let state: String = row.try_get("state")?;
        let event: String = row.try_get("event")?;
        let entry = LedgerEntry {
            trigger: row.try_get("trigger_name")?,
            identity: row.try_get("identity")?,
            received_ms: row.try_get("received_ms")?,
            times: row.try_get("times")?,
            state: EventState::from_name(&state),
            group: row.try_get("group_name")?,
            detail: row.try_get("detail")?,
            event: None,
        };
        sqlx::Result::Ok((entry, event))
    };
    let (mut entry, event) = read().map_err(|error| failed(&error))?;
    entry.event = serde_json::from_str(&event).map_err(|error| unreadable(&error))?;
    Ok(entry)
}
