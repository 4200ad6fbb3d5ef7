//! Appends events in the caller's transaction, many with one statement.

use std::collections::HashSet;
use std::fmt::Write;
use std::sync::LazyLock;

use bytes::Bytes;

use super::event::Event;
use crate::tx::driver::{Dialect, DriverError, OpenTx, Row, Sql, Tx, Value};

/// Most events of one call.
pub const APPEND_EVENTS_MAX: usize = 10_000;

/// Rows per statement. Few sizes, so that drivers and servers can reuse prepared statements.
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

/// The outcome of appending an event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Appended {
    /// It will be published when the transaction commits.
    Added,
    /// The outbox already has an event with its idempotency key; this one was left out.
    Already,
}

/// What to do about an event whose idempotency key was used before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Duplicates {
    /// [`AppendError::Duplicate`].
    Refuse,
    /// Leave it out, and return [`Appended::Already`].
    Ignore,
}

/// Why events were not appended. Roll back: the transaction may contain some of them.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AppendError {
    /// An event with this idempotency key was appended before, or the call has it twice. The error does not contain the
    /// key: it may be a secret.
    #[error(
        "event {at} of the call has an idempotency key that another event already has; roll back, or let duplicates be \
         ignored"
    )]
    Duplicate {
        /// Its index among the events of the call, from 0.
        at: usize,
    },
    /// See [`APPEND_EVENTS_MAX`].
    #[error(
        "{events} events in one call, but at most {APPEND_EVENTS_MAX} are allowed: append them in several calls"
    )]
    TooMany {
        /// How many there were.
        events: usize,
    },
    /// The database.
    #[error(transparent)]
    Driver(#[from] DriverError),
}

/// Appends an event in the caller's transaction. An idempotency key that was used before is refused.
///
/// **Append after you locked the row that the event is about, last before the commit.** Events of a key are published
/// in the order in which they were appended. If a transaction appends first and locks the row later, another can lock
/// the row in between: the event published last then contradicts the row. A relay that polls PostgreSQL cannot notice
/// it; [`strict_order`](super::strict_order) makes it a deadlock. On MySQL and MariaDB it is a deadlock anyway, SQLite
/// has one writer, and a relay that reads PostgreSQL's log follows the order of commits.
///
/// ```no_run
/// # #[cfg(feature = "sqlx-postgres")] {
/// use semel::outbox::{Event, append_tx};
///
/// async fn complete(pool: &sqlx::PgPool, payment: i64) -> Result<(), Box<dyn std::error::Error>> {
///     let mut tx = pool.begin().await?;
///     sqlx::query("UPDATE payment SET done = true WHERE id = $1").bind(payment).execute(&mut *tx).await?;
///     let event = Event::new("payments", "payment.completed", format!(r#"{{"payment":{payment}}}"#))?;
///     append_tx(&mut tx, &event.key(&payment.to_string())?).await?;
///     tx.commit().await?;
///     Ok(())
/// }
/// # }
/// ```
pub async fn append_tx<X: Tx>(tx: &mut X, event: &Event) -> Result<(), AppendError> {
    append_all_tx(tx, std::slice::from_ref(event), Duplicates::Refuse).await.map(drop)
}

/// Appends events in their order, and returns the outcome of each. See [`append_tx`] for when to append.
///
/// On MySQL an append locks the partitions of its keys (of sixteen) against other appends until the commit. One call
/// locks them in a fixed order, so calls with several keys do not deadlock each other. Several calls in one transaction
/// may deadlock if their keys come in different orders: append all events of a transaction in one call, or run it
/// again.
pub async fn append_all_tx<X: Tx>(
    tx: &mut X,
    events: &[Event],
    duplicates: Duplicates,
) -> Result<Vec<Appended>, AppendError> {
    if events.len() > APPEND_EVENTS_MAX {
        return Err(AppendError::TooMany { events: events.len() });
    }
    let tx = &mut OpenTx::new(tx)?;
    let mut done = vec![Appended::Added; events.len()];
    let order = match tx.dialect() {
        Dialect::Mysql => {
            let twice = repeated(events);
            if let (Some(at), Duplicates::Refuse) = (twice.first(), duplicates) {
                return Err(AppendError::Duplicate { at: *at });
            }
            twice.iter().for_each(|at| done[*at] = Appended::Already);
            by_partition(events, &twice)
        }
        Dialect::Postgres | Dialect::Sqlite => (0..events.len()).collect(),
    };
    let mut rest = &order[..];
    while !rest.is_empty() {
        let size = SIZES.into_iter().find(|size| *size <= rest.len()).unwrap_or(1);
        let (indexes, after) = rest.split_at(size);
        let chunk: Vec<&Event> = indexes.iter().map(|at| &events[*at]).collect();
        let values = chunk.iter().copied().flat_map(values).collect();
        let rows = tx.run(&inserts(size), values).await?;
        let there = if tx.dialect() == Dialect::Mysql {
            there_already(tx, &chunk).await?
        } else {
            left_out(&chunk, &rows.rows)?
        };
        for (at, _) in indexes.iter().zip(there).filter(|(_, already)| *already) {
            if duplicates == Duplicates::Refuse {
                return Err(AppendError::Duplicate { at: *at });
            }
            debug_assert!(events[*at].idempotency_key.is_some());
            done[*at] = Appended::Already;
        }
        rest = after;
    }
    Ok(done)
}

/// Partitions of MySQL's outbox, as in `sql/mysql.sql`.
const PARTITIONS: u32 = 16;

/// Orders events for MySQL by partition. A transaction locks the counter of each partition until its commit; all must
/// take these locks in the same order, or two would deadlock. Within a partition the order stays.
fn by_partition(events: &[Event], left_out: &[usize]) -> Vec<usize> {
    let partition = |event: &Event| {
        let about = || event.aggregate.as_ref().map(|(_, about)| about.clone());
        let key = event.key.clone().or_else(about).unwrap_or_else(|| event.id.to_string());
        crc32(key.as_bytes()) % PARTITIONS
    };
    let mut order: Vec<usize> = (0..events.len()).filter(|at| left_out.binary_search(at).is_err()).collect();
    order.sort_by_cached_key(|at| partition(&events[*at]));
    order
}

/// Indexes of events whose idempotency key an earlier one has: the first counts, in whatever order they are sent.
fn repeated(events: &[Event]) -> Vec<usize> {
    let mut known = HashSet::new();
    let is_known = |(at, event): (usize, &Event)| {
        let key = event.idempotency_key.as_ref()?;
        (!known.insert(key.as_str().to_owned())).then_some(at)
    };
    events.iter().enumerate().filter_map(is_known).collect()
}

/// MySQL's function of that name.
fn crc32(bytes: &[u8]) -> u32 {
    let bit = |crc: u32| if crc & 1 == 1 { crc >> 1 ^ 0xEDB8_8320 } else { crc >> 1 };
    !bytes.iter().fold(u32::MAX, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), |crc, _| bit(crc)))
}

/// Which events were left out. PostgreSQL and SQLite return the ids of the inserted rows.
fn left_out(chunk: &[&Event], rows: &[Row]) -> Result<Vec<bool>, DriverError> {
    let came = rows.iter().map(|row| row.text(0)).collect::<Result<HashSet<_>, _>>()?;
    Ok(chunk.iter().map(|event| !came.contains(event.id.to_string().as_str())).collect())
}

/// Which events were left out. MySQL returns nothing, so each key is looked up, with a locking read: a plain one may
/// see a snapshot as old as the transaction.
async fn there_already(tx: &mut OpenTx<'_, impl Tx>, chunk: &[&Event]) -> Result<Vec<bool>, DriverError> {
    const BY_KEY: Sql = Sql::same(
        "SELECT CONVERT(id USING utf8mb4) FROM semel_outbox WHERE idempotency_key = ? LOCK IN SHARE MODE",
    );
    let mut there = Vec::with_capacity(chunk.len());
    for event in chunk {
        let Some(key) = &event.idempotency_key else {
            there.push(false);
            continue;
        };
        let rows = tx.run(&BY_KEY, vec![key.as_str().into()]).await?;
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

/// The statement for this many rows, in each dialect.
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
        // The trigger leaves out duplicates.
        Dialect::Postgres => " RETURNING id::text",
        Dialect::Mysql => " ON DUPLICATE KEY UPDATE id = id",
        Dialect::Sqlite => {
            " ON CONFLICT (idempotency_key) WHERE idempotency_key IS NOT NULL DO NOTHING RETURNING id"
        }
    });
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::intent::key::Key;

    #[test]
    fn the_checksum_is_that_of_the_server() {
        // The check value of CRC-32, and what `SELECT CRC32('MySQL')` gives in MySQL's manual.
        assert_eq!((crc32(b"123456789"), crc32(b"MySQL"), crc32(b"")), (0xCBF4_3926, 3_259_397_556, 0));
    }

    #[test]
    fn mysql_gets_events_part_by_part_and_those_of_a_key_in_their_order() {
        let event = |n: usize| {
            let event = Event::new("t", "made", n.to_string()).unwrap();
            event.key(&format!("k{}", n % 7)).unwrap()
        };
        let events: Vec<Event> = (0..70).map(event).collect();
        let order = by_partition(&events, &[3]);
        assert_eq!(order.len(), 69);
        let partitions: Vec<u32> =
            order.iter().map(|at| crc32(format!("k{}", at % 7).as_bytes()) % PARTITIONS).collect();
        assert!(partitions.is_sorted(), "{partitions:?}");
        for key in 0..7 {
            let of_key: Vec<usize> = order.iter().copied().filter(|at| at % 7 == key).collect();
            assert!(of_key.is_sorted(), "{of_key:?}");
        }
    }

    #[test]
    fn of_events_with_one_idempotency_key_the_first_counts() {
        let event = |key: &str| Event::new("t", "made", "1").unwrap().once(Key::new(key).unwrap());
        let plain = Event::new("t", "made", "1").unwrap();
        let events = [event("a"), plain.clone(), event("b"), event("a"), plain, event("a")];
        assert_eq!(repeated(&events), [3, 5]);
    }
}
