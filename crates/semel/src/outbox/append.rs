//! Appending: one statement for many events, in the caller's transaction.

use std::collections::HashSet;
use std::fmt::Write;
use std::sync::LazyLock;

use bytes::Bytes;

use super::event::Event;
use crate::tx::driver::{Dialect, DriverError, Row, Sql, Tx, Value};
use crate::tx::script::{Port, play};

/// Most events of one call.
pub const APPEND_EVENTS_MAX: usize = 10_000;

/// How many rows the statements have. Few sizes, so that what a driver or a server prepares is used again.
const SIZES: [usize; 3] = [64, 8, 1];

const COLUMNS: [&str; 12] = [
    "id",
    "topic",
    "type",
    "key",
    "aggregate_type",
    "aggregate_id",
    "content_type",
    "headers",
    "idempotency_key",
    "trace_parent",
    "intent",
    "payload",
];

/// What became of an event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Appended {
    /// It will be published when the transaction commits.
    Added,
    /// An event with its idempotency key is there already; this one was left out.
    Already,
}

/// What to do about an event whose idempotency key was used before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Duplicates {
    /// [`AppendError::Duplicate`].
    Refuse,
    /// Leave it out, and say so.
    Ignore,
}

/// Why events were not appended. Roll back: some of them may be in the transaction.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AppendError {
    /// An event with this idempotency key was appended before, or the call has it twice. Which key is not said: it may
    /// be a secret.
    #[error(
        "event {at} of the call has an idempotency key that an event in the outbox has already; roll back, or let \
         duplicates be ignored"
    )]
    Duplicate {
        /// Its place among the events of the call, from 0.
        at: usize,
    },
    /// See [`APPEND_EVENTS_MAX`].
    #[error(
        "{events} events in one call; at most {APPEND_EVENTS_MAX} are taken: append them in several calls"
    )]
    TooMany {
        /// How many there were.
        events: usize,
    },
    /// The database.
    #[error(transparent)]
    Driver(#[from] DriverError),
}

/// Appends an event in the caller's transaction. One whose idempotency key was used before is refused.
///
/// **Append after you hold the row that the event is about, last before the commit.** Events of a key are published in the
/// order in which they were appended. A transaction that appends first and locks the row later may be overtaken by one that
/// has the row meanwhile: the last event that is published then contradicts the row. Polling PostgreSQL cannot notice it;
/// [`strict_order`](super::strict_order) makes it a deadlock. On MySQL and MariaDB it is a deadlock anyway, SQLite has one
/// writer, and a relay that reads PostgreSQL's log goes by the order of commits.
///
/// ```no_run
/// # #[cfg(feature = "sqlx-postgres")] {
/// use semel::outbox::{Event, append_tx};
///
/// async fn complete(pool: &sqlx::PgPool, payment: i64) -> Result<(), Box<dyn std::error::Error>> {
///     let mut tx = pool.begin().await?;
///     sqlx::query("UPDATE payment SET done = true WHERE id = $1").bind(payment).execute(&mut *tx).await?;
///     let told = Event::new("payments", "payment.completed", format!(r#"{{"payment":{payment}}}"#))?;
///     append_tx(&mut tx, &told.key(&payment.to_string())?).await?;
///     tx.commit().await?;
///     Ok(())
/// }
/// # }
/// ```
pub async fn append_tx<X: Tx>(tx: &mut X, event: &Event) -> Result<(), AppendError> {
    append_all_tx(tx, std::slice::from_ref(event), Duplicates::Refuse).await.map(drop)
}

/// Appends events in their order, and says for each what became of it. When to append is said at [`append_tx`].
pub async fn append_all_tx<X: Tx>(
    tx: &mut X,
    events: &[Event],
    duplicates: Duplicates,
) -> Result<Vec<Appended>, AppendError> {
    bounded(events)?;
    play(tx, |port| appended(port, events, duplicates)).await?
}

/// As [`append_tx`], in the transaction that is open on a rusqlite connection.
#[cfg(feature = "sqlite")]
pub fn append_now(connection: &rusqlite::Connection, event: &Event) -> Result<(), AppendError> {
    append_all_now(connection, std::slice::from_ref(event), Duplicates::Refuse).map(drop)
}

/// As [`append_all_tx`], in the transaction that is open on a rusqlite connection.
#[cfg(feature = "sqlite")]
pub fn append_all_now(
    connection: &rusqlite::Connection,
    events: &[Event],
    duplicates: Duplicates,
) -> Result<Vec<Appended>, AppendError> {
    bounded(events)?;
    crate::tx::driver::play_now(connection, |port| appended(port, events, duplicates))?
}

fn bounded(events: &[Event]) -> Result<(), AppendError> {
    match events.len() {
        events if events > APPEND_EVENTS_MAX => Err(AppendError::TooMany { events }),
        _ => Ok(()),
    }
}

async fn appended(
    port: Port,
    events: &[Event],
    duplicates: Duplicates,
) -> Result<Vec<Appended>, AppendError> {
    let mut done = Vec::with_capacity(events.len());
    let mut rest = events;
    while !rest.is_empty() {
        let size = SIZES.into_iter().find(|size| *size <= rest.len()).unwrap_or(1);
        let (chunk, after) = rest.split_at(size);
        let values = chunk.iter().flat_map(values).collect();
        let rows = port.run(&inserts(size), values).await?;
        let there = if port.dialect() == Dialect::Mysql {
            there_already(&port, chunk).await?
        } else {
            left_out(chunk, &rows.rows)?
        };
        for (event, already) in chunk.iter().zip(there) {
            if already && duplicates == Duplicates::Refuse {
                return Err(AppendError::Duplicate { at: done.len() });
            }
            debug_assert!(!already || event.idempotency_key.is_some());
            done.push(if already { Appended::Already } else { Appended::Added });
        }
        rest = after;
    }
    Ok(done)
}

/// PostgreSQL and SQLite give the ids of the rows that came in.
fn left_out(chunk: &[Event], rows: &[Row]) -> Result<Vec<bool>, DriverError> {
    let came = rows.iter().map(|row| row.text(0)).collect::<Result<HashSet<_>, _>>()?;
    Ok(chunk.iter().map(|event| !came.contains(event.id.to_string().as_str())).collect())
}

/// MySQL gives nothing: whoever has a key is asked for. The look locks, because a plain one may be as old as the
/// transaction.
async fn there_already(port: &Port, chunk: &[Event]) -> Result<Vec<bool>, DriverError> {
    const BY_KEY: Sql = Sql::same(
        "SELECT CONVERT(id USING utf8mb4) FROM semel_outbox WHERE idempotency_key = ? LOCK IN SHARE MODE",
    );
    let mut there = Vec::with_capacity(chunk.len());
    for event in chunk {
        let Some(key) = &event.idempotency_key else {
            there.push(false);
            continue;
        };
        let rows = port.run(&BY_KEY, vec![key.as_str().into()]).await?;
        there.push(
            rows.first().map(|row| row.text(0)).transpose()?.is_some_and(|id| id != event.id.to_string()),
        );
    }
    Ok(there)
}

fn values(event: &Event) -> [Value; COLUMNS.len()] {
    let (kind, about) = event.aggregate.clone().unzip();
    [
        event.id.to_string().into(),
        event.topic.as_str().into(),
        event.kind.as_str().into(),
        event.key.clone().into(),
        kind.into(),
        about.into(),
        event.content_type.as_str().into(),
        headers(event).into(),
        event.idempotency_key.as_ref().map(|key| key.as_str().to_owned()).into(),
        event.trace_parent.clone().into(),
        event.intent.map(|intent| Bytes::copy_from_slice(intent.as_bytes())).into(),
        event.payload.clone().into(),
    ]
}

fn headers(event: &Event) -> Option<String> {
    if event.headers.is_empty() {
        return None;
    }
    let named = event.headers.iter().map(|(name, text)| (name.clone(), text.as_str().into()));
    Some(serde_json::Value::Object(named.collect()).to_string())
}

/// The statement for that many rows, in each dialect.
fn inserts(rows: usize) -> Sql {
    type Texts = [[String; 3]; SIZES.len()];
    static TEXTS: LazyLock<Texts> =
        LazyLock::new(|| SIZES.map(|rows| DIALECTS.map(|dialect| insert(dialect, rows))));
    const DIALECTS: [Dialect; 3] = [Dialect::Postgres, Dialect::Mysql, Dialect::Sqlite];
    let at = SIZES.iter().position(|size| *size == rows).unwrap_or(SIZES.len() - 1);
    let [postgres, mysql, sqlite] = &TEXTS[at];
    Sql { postgres, mysql, sqlite }
}

fn insert(dialect: Dialect, rows: usize) -> String {
    let quoted =
        |column: &&str| if dialect == Dialect::Mysql { format!("`{column}`") } else { (*column).to_owned() };
    let columns: Vec<String> = COLUMNS.iter().map(quoted).collect();
    let mut text = format!("INSERT INTO semel_outbox ({}) VALUES ", columns.join(", "));
    for row in 0..rows {
        text.push_str(if row == 0 { "(" } else { ", (" });
        for (at, column) in COLUMNS.iter().enumerate() {
            let n = row * COLUMNS.len() + at + 1;
            let comma = if at == 0 { "" } else { ", " };
            // Writing to a string cannot fail.
            let _ = match (dialect, *column) {
                (Dialect::Postgres, "id") => write!(text, "{comma}${n}::uuid"),
                (Dialect::Postgres, "headers") => write!(text, "{comma}${n}::jsonb"),
                (Dialect::Postgres, _) => write!(text, "{comma}${n}"),
                (Dialect::Mysql, _) => write!(text, "{comma}?"),
                (Dialect::Sqlite, _) => write!(text, "{comma}?{n}"),
            };
        }
        text.push(')');
    }
    text.push_str(match dialect {
        // The trigger leaves out what is there already.
        Dialect::Postgres => " RETURNING id::text",
        Dialect::Mysql => " ON DUPLICATE KEY UPDATE id = id",
        Dialect::Sqlite => {
            " ON CONFLICT (idempotency_key) WHERE idempotency_key IS NOT NULL DO NOTHING RETURNING id"
        }
    });
    text
}
