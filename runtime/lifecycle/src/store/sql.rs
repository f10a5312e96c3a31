//! The durable store: SQLite in one file, or PostgreSQL for several servers.
//!
//! Both speak through one set of statements. SQLite has a single connection, so its writers
//! never wait for each other's locks; the file belongs to one server.

use std::path::Path;
use std::time::Duration;

use async_trait::async_trait;
use sqlx::any::{AnyPoolOptions, AnyRow};
use sqlx::{AnyConnection, AnyPool, Executor, Row};

use super::{Created, LogPart, Query, Result, Store, StoreError, schema};
use crate::batch::{Batch, Millis, Submission};
use crate::filter::{Field, Filter, Value};
use crate::queue::OpenBatch;
use crate::state::BatchState;

/// Log parts read in one go.
const LOG_PARTS_MAX: i64 = 64;
/// Batches whose retention is over that are told at a time.
const OVERDUE_MAX: i64 = 200;
/// How long a busy database is waited for.
const PATIENCE: Duration = Duration::from_secs(10);
/// Connections to PostgreSQL that one server keeps.
const CONNECTIONS_MAX: u32 = 8;

/// Which database it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Dialect {
    Sqlite,
    Postgres,
}

impl Dialect {
    /// A statement of the schema in this database's words.
    pub(super) fn spell(self, statement: &str) -> String {
        let (blob, collation) = match self {
            Dialect::Sqlite => ("BLOB", "COLLATE BINARY"),
            Dialect::Postgres => ("BYTEA", "COLLATE \"C\""),
        };
        statement.replace("{blob}", blob).replace("{c}", collation)
    }
}

/// A store in a database.
#[derive(Debug)]
pub struct SqlStore {
    pub(super) pool: AnyPool,
    dialect: Dialect,
}

/// A database's complaint as the store's.
pub(super) fn failed(error: &sqlx::Error) -> StoreError {
    match error {
        sqlx::Error::ColumnDecode { .. } | sqlx::Error::Decode(_) => {
            StoreError::Corrupt(error.to_string())
        }
        other => StoreError::Unavailable(other.to_string()),
    }
}

pub(super) fn unreadable(error: &serde_json::Error) -> StoreError {
    StoreError::Corrupt(error.to_string())
}

impl SqlStore {
    /// Opens the SQLite file, making it when it is absent.
    pub async fn sqlite(file: &Path) -> Result<SqlStore> {
        let path: String = file
            .to_string_lossy()
            .chars()
            .map(|c| match c {
                '%' => "%25".to_owned(),
                '?' => "%3F".to_owned(),
                '#' => "%23".to_owned(),
                other => other.to_string(),
            })
            .collect();
        Self::connect(&format!("sqlite://{path}?mode=rwc"), Dialect::Sqlite).await
    }

    /// Opens a PostgreSQL database by its URL.
    pub async fn postgres(url: &str) -> Result<SqlStore> {
        Self::connect(url, Dialect::Postgres).await
    }

    async fn connect(url: &str, dialect: Dialect) -> Result<SqlStore> {
        sqlx::any::install_default_drivers();
        let n_connections = match dialect {
            Dialect::Sqlite => 1,
            Dialect::Postgres => CONNECTIONS_MAX,
        };
        let pool = AnyPoolOptions::new()
            .max_connections(n_connections)
            .acquire_timeout(PATIENCE)
            .idle_timeout(None)
            .max_lifetime(None)
            .after_connect(move |connection, _| {
                Box::pin(async move {
                    if dialect == Dialect::Sqlite {
                        // FULL: what was answered survives a loss of power too.
                        for pragma in [
                            "PRAGMA journal_mode = WAL",
                            "PRAGMA synchronous = FULL",
                            "PRAGMA busy_timeout = 10000",
                            "PRAGMA cache_size = -8192",
                        ] {
                            connection.execute(pragma).await?;
                        }
                    }
                    Ok(())
                })
            })
            .connect(url)
            .await
            .map_err(|error| failed(&error))?;
        let mut connection = pool.acquire().await.map_err(|error| failed(&error))?;
        schema::migrate(&mut connection, dialect).await?;
        drop(connection);
        Ok(SqlStore { pool, dialect })
    }

    async fn insert(connection: &mut AnyConnection, batch: &Batch) -> sqlx::Result<u64> {
        let open = OpenBatch::of(batch);
        let sql = "INSERT INTO batches (id, uid, version, owner, name, request_id, trigger_name, \
             state, priority, fair_group, wants, created_ms, state_ms, queued_ms, not_before_ms, \
             queue_deadline_ms, purge_ms, document) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, \
             $10, $11, $12, $13, $14, $15, $16, $17, $18) ON CONFLICT DO NOTHING";
        let done = sqlx::query(sql)
            .bind(&batch.id)
            .bind(&batch.uid)
            .bind(batch.version)
            .bind(&batch.owner)
            .bind(&batch.name)
            .bind(&batch.request_id)
            .bind(&batch.trigger)
            .bind(batch.state.name())
            .bind(i64::from(batch.priority))
            .bind(&batch.group)
            .bind(json(&open.wants))
            .bind(batch.created_ms)
            .bind(batch.state_ms)
            .bind(batch.queued_ms)
            .bind(batch.not_before_ms)
            .bind(open.queue_deadline_ms)
            .bind(batch.purge_ms())
            .bind(json(batch))
            .execute(connection)
            .await?;
        Ok(done.rows_affected())
    }

    /// Adds a batch; false when its id or request id is taken.
    async fn add(&self, batch: &Batch, submission: &Submission) -> sqlx::Result<bool> {
        let mut transaction = self.pool.begin().await?;
        if Self::insert(&mut transaction, batch).await? == 0 {
            transaction.rollback().await?;
            return Ok(false);
        }
        for (key, value) in &batch.labels {
            let sql = "INSERT INTO batch_labels (uid, label_key, label_value) VALUES ($1, $2, $3)";
            let insert = sqlx::query(sql).bind(&batch.uid).bind(key).bind(value);
            insert.execute(&mut *transaction).await?;
        }
        sqlx::query("INSERT INTO submissions (uid, document) VALUES ($1, $2)")
            .bind(&batch.uid)
            .bind(json(submission))
            .execute(&mut *transaction)
            .await?;
        transaction.commit().await?;
        Ok(true)
    }

    /// The batch that keeps a new one out.
    async fn taken_by(&self, batch: &Batch) -> Result<Option<Created>> {
        if let Some(request_id) = &batch.request_id {
            let sql = "SELECT document FROM batches WHERE owner = $1 AND request_id = $2";
            let row = sqlx::query(sql)
                .bind(&batch.owner)
                .bind(request_id)
                .fetch_optional(&self.pool)
                .await
                .map_err(|error| failed(&error))?;
            if let Some(row) = row {
                return Ok(Some(Created::SameRequest(Box::new(document(&row)?))));
            }
        }
        let taken = self.get(&batch.id).await?;
        Ok(taken.map(|batch| Created::SameId(Box::new(batch))))
    }
}

pub(super) fn json(value: &impl serde::Serialize) -> String {
    serde_json::to_string(value).unwrap_or_else(|_| {
        // Records hold text, numbers and maps keyed by text, all of which JSON has.
        unreachable!("a record is always JSON")
    })
}

fn document(row: &AnyRow) -> Result<Batch> {
    let text: String = row.try_get("document").map_err(|error| failed(&error))?;
    serde_json::from_str(&text).map_err(|error| unreadable(&error))
}

/// What a placeholder of a generated condition stands for.
enum Bound {
    Text(String),
    Number(i64),
}

/// A filter as a condition. Values never become part of its text.
fn condition(filter: &Filter, bound: &mut Vec<Bound>) -> String {
    let join = |parts: &[Filter], word: &str, empty: &str, bound: &mut Vec<Bound>| {
        if parts.is_empty() {
            return empty.to_owned();
        }
        let parts: Vec<String> = parts.iter().map(|part| condition(part, bound)).collect();
        format!("({})", parts.join(word))
    };
    let mut place = |value: Bound| {
        bound.push(value);
        format!("${}", bound.len())
    };
    match filter {
        Filter::All(parts) => join(parts, " AND ", "1 = 1", bound),
        Filter::Any(parts) => join(parts, " OR ", "1 = 0", bound),
        Filter::Not(part) => format!("NOT {}", condition(part, bound)),
        Filter::HasLabel(key) => {
            let key = place(Bound::Text(key.clone()));
            format!(
                "EXISTS (SELECT 1 FROM batch_labels l WHERE l.uid = batches.uid \
                 AND l.label_key = {key})"
            )
        }
        Filter::Compare(field, how, value) => {
            let value = match value {
                Value::Text(text) => place(Bound::Text(text.clone())),
                Value::Millis(time) => place(Bound::Number(*time)),
            };
            let symbol = how.symbol();
            let column = match field {
                Field::Id => "id",
                Field::Name => "name",
                Field::Owner => "owner",
                Field::State => "state",
                Field::Trigger => "COALESCE(trigger_name, '')",
                Field::CreateTime => "created_ms",
                Field::StateTime => "state_ms",
                Field::Label(key) => {
                    let key = place(Bound::Text(key.clone()));
                    let not = if symbol == "!=" { "NOT " } else { "" };
                    return format!(
                        "{not}EXISTS (SELECT 1 FROM batch_labels l WHERE l.uid = batches.uid \
                         AND l.label_key = {key} AND l.label_value = {value})"
                    );
                }
            };
            format!("{column} {symbol} {value}")
        }
    }
}

#[async_trait]
impl Store for SqlStore {
    async fn now(&self) -> Result<Millis> {
        match self.dialect {
            Dialect::Sqlite => Ok(chrono::Utc::now().timestamp_millis()),
            Dialect::Postgres => {
                let sql = "SELECT CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000 AS BIGINT)";
                sqlx::query_scalar(sql)
                    .fetch_one(&self.pool)
                    .await
                    .map_err(|error| failed(&error))
            }
        }
    }

    fn is_shared(&self) -> bool {
        self.dialect == Dialect::Postgres
    }

    async fn create(&self, batch: &Batch, submission: &Submission) -> Result<Created> {
        // What kept it out may be deleted before it is looked at; then there is room.
        for _ in 0..3 {
            let added = self.add(batch, submission).await;
            if added.map_err(|error| failed(&error))? {
                return Ok(Created::New);
            }
            if let Some(taken) = self.taken_by(batch).await? {
                return Ok(taken);
            }
        }
        Err(StoreError::Unavailable(format!(
            "`{}` is created and deleted by others at the same time",
            batch.id
        )))
    }

    async fn get(&self, id: &str) -> Result<Option<Batch>> {
        let row = sqlx::query("SELECT document FROM batches WHERE id = $1")
            .bind(id)
            .fetch_optional(&self.pool)
            .await
            .map_err(|error| failed(&error))?;
        row.map(|row| document(&row)).transpose()
    }

    async fn submission(&self, uid: &str) -> Result<Option<Submission>> {
        let text: Option<String> =
            sqlx::query_scalar("SELECT document FROM submissions WHERE uid = $1")
                .bind(uid)
                .fetch_optional(&self.pool)
                .await
                .map_err(|error| failed(&error))?;
        let parse = |text: String| serde_json::from_str(&text).map_err(|error| unreadable(&error));
        text.map(parse).transpose()
    }

    async fn replace(&self, batch: &mut Batch) -> Result<bool> {
        let before = batch.version;
        batch.version += 1;
        let open = OpenBatch::of(batch);
        let (server, until) = open.lease.map_or((None, None), |(s, u)| (Some(s), Some(u)));
        let sql = "UPDATE batches SET version = $1, state = $2, priority = $3, state_ms = $4, \
             queued_ms = $5, not_before_ms = $6, queue_deadline_ms = $7, purge_ms = $8, \
             lease_server = $9, lease_until_ms = $10, document = $11 \
             WHERE uid = $12 AND version = $13";
        let done = sqlx::query(sql)
            .bind(batch.version)
            .bind(batch.state.name())
            .bind(i64::from(batch.priority))
            .bind(batch.state_ms)
            .bind(batch.queued_ms)
            .bind(batch.not_before_ms)
            .bind(open.queue_deadline_ms)
            .bind(batch.purge_ms())
            .bind(server)
            .bind(until)
            .bind(json(batch))
            .bind(&batch.uid)
            .bind(before)
            .execute(&self.pool)
            .await
            .map_err(|error| failed(&error))?;
        if done.rows_affected() == 0 {
            batch.version = before;
        }
        Ok(done.rows_affected() == 1)
    }

    async fn delete(&self, batch: &Batch) -> Result<bool> {
        let deleted = async {
            let mut transaction = self.pool.begin().await?;
            let done = sqlx::query("DELETE FROM batches WHERE uid = $1 AND version = $2")
                .bind(&batch.uid)
                .bind(batch.version)
                .execute(&mut *transaction)
                .await?;
            if done.rows_affected() == 0 {
                transaction.rollback().await?;
                return Ok(false);
            }
            for table in ["batch_labels", "submissions", "reports", "log_parts"] {
                sqlx::query(&format!("DELETE FROM {table} WHERE uid = $1"))
                    .bind(&batch.uid)
                    .execute(&mut *transaction)
                    .await?;
            }
            transaction.commit().await?;
            sqlx::Result::Ok(true)
        };
        deleted.await.map_err(|error| failed(&error))
    }

    async fn list(&self, query: &Query) -> Result<Vec<Batch>> {
        let mut bound = Vec::new();
        let mut sql = format!(
            "SELECT document FROM batches WHERE {}",
            condition(&query.filter, &mut bound)
        );
        if let Some(owner) = &query.owner {
            bound.push(Bound::Text(owner.clone()));
            sql.push_str(&format!(" AND owner = ${}", bound.len()));
        }
        if let Some((created_ms, uid)) = &query.after {
            bound.push(Bound::Number(*created_ms));
            bound.push(Bound::Text(uid.clone()));
            let n = bound.len();
            sql.push_str(&format!(" AND (created_ms, uid) < (${}, ${n})", n - 1));
        }
        let limit = i64::try_from(query.limit).unwrap_or(i64::MAX);
        sql.push_str(&format!(
            " ORDER BY created_ms DESC, uid DESC LIMIT {limit}"
        ));
        let mut select = sqlx::query(&sql).persistent(false);
        for value in &bound {
            select = match value {
                Bound::Text(text) => select.bind(text),
                Bound::Number(number) => select.bind(*number),
            };
        }
        let rows = select.fetch_all(&self.pool).await;
        let rows = rows.map_err(|error| failed(&error))?;
        rows.iter().map(document).collect()
    }

    async fn open(&self) -> Result<Vec<OpenBatch>> {
        let sql = "SELECT id, state, priority, fair_group, wants, queued_ms, not_before_ms, \
             queue_deadline_ms, lease_server, lease_until_ms FROM batches \
             WHERE state IN ('QUEUED', 'RUNNING', 'CANCELLING')";
        let rows = sqlx::query(sql).fetch_all(&self.pool).await;
        let rows = rows.map_err(|error| failed(&error))?;
        rows.iter().map(open_batch).collect()
    }

    async fn overdue(&self, now: Millis) -> Result<Vec<String>> {
        sqlx::query_scalar("SELECT id FROM batches WHERE purge_ms <= $1 LIMIT $2")
            .bind(now)
            .bind(OVERDUE_MAX)
            .fetch_all(&self.pool)
            .await
            .map_err(|error| failed(&error))
    }

    async fn counts(&self) -> Result<Vec<(BatchState, u64)>> {
        let rows = sqlx::query("SELECT state, COUNT(*) AS n FROM batches GROUP BY state")
            .fetch_all(&self.pool)
            .await
            .map_err(|error| failed(&error))?;
        let mut counts = BatchState::ALL.map(|state| (state, 0));
        for row in rows {
            let name: String = row.try_get("state").map_err(|error| failed(&error))?;
            let n: i64 = row.try_get("n").map_err(|error| failed(&error))?;
            if let Some(count) = counts.iter_mut().find(|(state, _)| state.name() == name) {
                count.1 = n.unsigned_abs();
            }
        }
        Ok(counts.to_vec())
    }

    async fn put_report(&self, uid: &str, attempt: u32, report: &str) -> Result<()> {
        let sql = "INSERT INTO reports (uid, attempt, document) VALUES ($1, $2, $3) \
                   ON CONFLICT (uid, attempt) DO UPDATE SET document = excluded.document";
        let put = sqlx::query(sql)
            .bind(uid)
            .bind(i64::from(attempt))
            .bind(report);
        put.execute(&self.pool)
            .await
            .map_err(|error| failed(&error))?;
        Ok(())
    }

    async fn report(&self, uid: &str, attempt: u32) -> Result<Option<String>> {
        sqlx::query_scalar("SELECT document FROM reports WHERE uid = $1 AND attempt = $2")
            .bind(uid)
            .bind(i64::from(attempt))
            .fetch_optional(&self.pool)
            .await
            .map_err(|error| failed(&error))
    }

    async fn append_log(&self, uid: &str, attempt: u32, offset: i64, bytes: &[u8]) -> Result<()> {
        let sql = "INSERT INTO log_parts (uid, attempt, first_byte, next_byte, bytes) \
                   VALUES ($1, $2, $3, $4, $5) ON CONFLICT DO NOTHING";
        sqlx::query(sql)
            .bind(uid)
            .bind(i64::from(attempt))
            .bind(offset)
            .bind(offset.saturating_add(bytes.len() as i64))
            .bind(bytes.to_vec())
            .execute(&self.pool)
            .await
            .map_err(|error| failed(&error))?;
        Ok(())
    }

    async fn read_log(&self, uid: &str, attempt: u32, from: i64, max: usize) -> Result<LogPart> {
        let sql = "SELECT first_byte, bytes FROM log_parts WHERE uid = $1 AND attempt = $2 \
                   AND next_byte > $3 ORDER BY first_byte LIMIT $4";
        let rows = sqlx::query(sql)
            .bind(uid)
            .bind(i64::from(attempt))
            .bind(from)
            .bind(LOG_PARTS_MAX)
            .fetch_all(&self.pool)
            .await
            .map_err(|error| failed(&error))?;
        let mut part = LogPart {
            bytes: Vec::new(),
            next: from,
        };
        for row in rows {
            let first: i64 = row.try_get("first_byte").map_err(|error| failed(&error))?;
            let bytes: Vec<u8> = row.try_get("bytes").map_err(|error| failed(&error))?;
            let seen = usize::try_from(part.next - first)
                .unwrap_or(0)
                .min(bytes.len());
            let room = max.saturating_sub(part.bytes.len()).min(bytes.len() - seen);
            part.bytes.extend_from_slice(&bytes[seen..seen + room]);
            part.next = first + (seen + room) as i64;
            if part.bytes.len() >= max {
                break;
            }
        }
        Ok(part)
    }
}

fn open_batch(row: &AnyRow) -> Result<OpenBatch> {
    let read = || {
        let state: String = row.try_get("state")?;
        let server: Option<String> = row.try_get("lease_server")?;
        let until: Option<i64> = row.try_get("lease_until_ms")?;
        let wants: String = row.try_get("wants")?;
        let priority: i64 = row.try_get("priority")?;
        let open = OpenBatch {
            id: row.try_get("id")?,
            state: BatchState::from_name(&state).unwrap_or(BatchState::Queued),
            priority: i32::try_from(priority).unwrap_or(0),
            group: row.try_get("fair_group")?,
            wants: Default::default(),
            queued_ms: row.try_get("queued_ms")?,
            not_before_ms: row.try_get("not_before_ms")?,
            queue_deadline_ms: row.try_get("queue_deadline_ms")?,
            lease: server.zip(until),
        };
        sqlx::Result::Ok((open, wants))
    };
    let (mut open, wants) = read().map_err(|error| failed(&error))?;
    open.wants = serde_json::from_str(&wants).map_err(|error| unreadable(&error))?;
    Ok(open)
}
