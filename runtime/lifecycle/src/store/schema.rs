//! The tables, and how an older store becomes a current one.

use sqlx::AnyConnection;

use super::{Result, StoreError};
use crate::store::sql::{Dialect, failed};

/// Each version's statements; a store of version N lacks those from index N on. What stands
/// here is never changed, only added to.
const MIGRATIONS: &[&[&str]] = &[BATCHES, TRIGGERS];

const BATCHES: &[&str] = &[
    "CREATE TABLE batches (
        id TEXT NOT NULL PRIMARY KEY,
        uid TEXT {c} NOT NULL UNIQUE,
        version BIGINT NOT NULL,
        owner TEXT NOT NULL,
        name TEXT NOT NULL,
        request_id TEXT,
        trigger_name TEXT,
        state TEXT NOT NULL,
        priority BIGINT NOT NULL,
        fair_group TEXT NOT NULL,
        wants TEXT NOT NULL,
        created_ms BIGINT NOT NULL,
        state_ms BIGINT NOT NULL,
        queued_ms BIGINT NOT NULL,
        not_before_ms BIGINT,
        queue_deadline_ms BIGINT,
        purge_ms BIGINT,
        lease_server TEXT,
        lease_until_ms BIGINT,
        document TEXT NOT NULL
    )",
    "CREATE UNIQUE INDEX batches_by_request ON batches (owner, request_id) \
     WHERE request_id IS NOT NULL",
    "CREATE INDEX batches_by_time ON batches (created_ms DESC, uid DESC)",
    "CREATE INDEX batches_by_state ON batches (state)",
    "CREATE INDEX batches_by_purge ON batches (purge_ms) WHERE purge_ms IS NOT NULL",
    "CREATE TABLE batch_labels (
        uid TEXT NOT NULL,
        label_key TEXT NOT NULL,
        label_value TEXT NOT NULL,
        PRIMARY KEY (uid, label_key)
    )",
    "CREATE TABLE submissions (uid TEXT NOT NULL PRIMARY KEY, document TEXT NOT NULL)",
    "CREATE TABLE reports (
        uid TEXT NOT NULL,
        attempt BIGINT NOT NULL,
        document TEXT NOT NULL,
        PRIMARY KEY (uid, attempt)
    )",
    "CREATE TABLE log_parts (
        uid TEXT NOT NULL,
        attempt BIGINT NOT NULL,
        first_byte BIGINT NOT NULL,
        next_byte BIGINT NOT NULL,
        bytes {blob} NOT NULL,
        PRIMARY KEY (uid, attempt, first_byte)
    )",
];

const TRIGGERS: &[&str] = &[
    "CREATE TABLE triggers (
        name TEXT NOT NULL PRIMARY KEY,
        version BIGINT NOT NULL,
        document TEXT NOT NULL
    )",
    "CREATE TABLE trigger_events (
        trigger_name TEXT NOT NULL,
        identity TEXT {c} NOT NULL,
        received_ms BIGINT NOT NULL,
        times BIGINT NOT NULL,
        state TEXT NOT NULL,
        group_name TEXT,
        detail TEXT,
        event TEXT NOT NULL,
        PRIMARY KEY (trigger_name, identity)
    )",
    "CREATE INDEX trigger_events_by_state ON trigger_events (trigger_name, state, received_ms)",
    "CREATE INDEX batches_by_trigger ON batches (trigger_name, created_ms) \
     WHERE trigger_name IS NOT NULL",
];

/// Brings a store up to date. Servers that start together wait for each other.
pub(super) async fn migrate(connection: &mut AnyConnection, dialect: Dialect) -> Result<()> {
    let run = async |connection: &mut AnyConnection, text: &str| {
        sqlx::query(text)
            .persistent(false)
            .execute(connection)
            .await
            .map_err(|error| failed(&error))
    };
    if dialect == Dialect::Postgres {
        // Held until the connection is closed or unlocks; "warpline" in numbers.
        run(connection, "SELECT pg_advisory_lock(7809918)").await?;
    }
    let migrated = async {
        run(
            connection,
            "CREATE TABLE IF NOT EXISTS warpline_schema (version BIGINT NOT NULL)",
        )
        .await?;
        let found: Option<i64> = sqlx::query_scalar("SELECT MAX(version) FROM warpline_schema")
            .fetch_one(&mut *connection)
            .await
            .map_err(|error| failed(&error))?;
        let found = usize::try_from(found.unwrap_or(0)).unwrap_or(usize::MAX);
        if found > MIGRATIONS.len() {
            return Err(StoreError::Version(format!(
                "the store is of version {found} and this program knows up to version {}; \
                 start the newer program that it was last used with",
                MIGRATIONS.len()
            )));
        }
        for (number, statements) in MIGRATIONS.iter().enumerate().skip(found) {
            run(connection, "BEGIN").await?;
            for statement in *statements {
                run(connection, &dialect.spell(statement)).await?;
            }
            let record = format!(
                "INSERT INTO warpline_schema (version) VALUES ({})",
                number + 1
            );
            run(connection, &record).await?;
            run(connection, "COMMIT").await?;
        }
        Ok(())
    }
    .await;
    if dialect == Dialect::Postgres {
        run(connection, "SELECT pg_advisory_unlock(7809918)").await?;
    }
    migrated
}
