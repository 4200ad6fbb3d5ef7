//! The inbox's statements: mark messages, end a batch, store and recall a result.

use std::collections::HashSet;
use std::fmt::Write;
use std::sync::LazyLock;

use bytes::Bytes;

use super::identity::{Identity, Mark};
use crate::tx::driver::{Dialect, DriverError, DriverErrorKind, OpenTx, Rows, Sql, Tx, Value};

const MARK: Sql = Sql {
    postgres: "SELECT * FROM semel_inbox_mark($1, $2, $3)",
    // MySQL needs more than one statement.
    mysql: "",
    sqlite: "WITH RECURSIVE place(g) AS (SELECT 0 UNION ALL SELECT g + 1 FROM place WHERE g + 1 < length(?2) / 16) \
             INSERT INTO semel_inbox (id, batch) SELECT substr(?2, g * 16 + 1, 16), ?1 FROM place WHERE true \
             ON CONFLICT (id) DO NOTHING RETURNING id",
};

const BEGIN: Sql = Sql {
    postgres: "",
    mysql: "INSERT INTO semel_inbox_batch (began_at, messages, consumer, source) \
            VALUES (FLOOR(UNIX_TIMESTAMP(SYSDATE(3)) * 1000), ?1, ?2, ?3); SELECT LAST_INSERT_ID()",
    sqlite: "INSERT INTO semel_inbox_batch (messages, consumer, source) VALUES (?1, ?2, ?3) RETURNING batch",
};

const FRESH_MYSQL: Sql = Sql::same("SELECT id FROM semel_inbox WHERE batch = ?");

const END: Sql = Sql {
    postgres: "UPDATE semel_inbox_batch SET ended_at = floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint \
               WHERE batch = $1",
    mysql: "UPDATE semel_inbox_batch SET ended_at = FLOOR(UNIX_TIMESTAMP(SYSDATE(3)) * 1000) WHERE batch = ?",
    sqlite: "UPDATE semel_inbox_batch SET ended_at = CAST(unixepoch('subsec') * 1000 AS INTEGER) WHERE batch = ?1",
};

const KEEP: Sql = Sql {
    postgres: "INSERT INTO semel_inbox_result (id, outcome) VALUES ($1, $2)",
    mysql: "INSERT INTO semel_inbox_result (id, outcome) VALUES (?, ?)",
    sqlite: "INSERT INTO semel_inbox_result (id, outcome) VALUES (?1, ?2)",
};

const RECALL: Sql = Sql {
    postgres: "SELECT outcome FROM semel_inbox_result WHERE id = $1",
    // A plain read may use a snapshot from before the transaction we waited for has committed.
    mysql: "SELECT outcome FROM semel_inbox_result WHERE id = ? LOCK IN SHARE MODE",
    sqlite: "SELECT outcome FROM semel_inbox_result WHERE id = ?1",
};

/// Rows per MySQL statement. Few sizes, so that prepared statements are reused.
const SIZES: [usize; 4] = [256, 32, 4, 1];

/// The marked batch, and which of its marks are new.
#[derive(Debug)]
pub(super) struct Put {
    pub(super) batch: i64,
    pub(super) fresh: HashSet<Mark>,
}

/// Marks all of these. They must be sorted and distinct: two transactions that mark the same messages then lock them in
/// the same order and do not deadlock.
pub(super) async fn put(
    tx: &mut OpenTx<'_, impl Tx>,
    consumer: &str,
    source: &str,
    marks: Vec<Mark>,
) -> Result<Put, DriverError> {
    debug_assert!(marks.is_sorted_by(|one, next| one < next));
    let ids = || Bytes::from(marks.concat());
    match tx.dialect() {
        Dialect::Postgres => {
            let rows = tx.run(&MARK, vec![consumer.into(), source.into(), ids().into()]).await?;
            let row = rows.first().ok_or_else(no_row)?;
            let fresh = row.bytes_or_null(1)?.unwrap_or_default();
            Ok(Put { batch: row.int(0)?, fresh: fresh.chunks(size_of::<Mark>()).filter_map(mark).collect() })
        }
        Dialect::Sqlite => {
            let batch = begin(tx, marks.len(), consumer, source).await?;
            let rows = tx.run(&MARK, vec![batch.into(), ids().into()]).await?;
            Ok(Put { batch, fresh: fresh(&rows)? })
        }
        Dialect::Mysql => {
            let batch = begin(tx, marks.len(), consumer, source).await?;
            let mut rest = &marks[..];
            while !rest.is_empty() {
                let size = SIZES.into_iter().find(|size| *size <= rest.len()).unwrap_or(1);
                let (chunk, after) = rest.split_at(size);
                let values = chunk.iter().flat_map(|mark| [Value::from(&mark[..]), batch.into()]);
                tx.run(&inserts_mysql(size), values.collect()).await?;
                rest = after;
            }
            let rows = tx.run(&FRESH_MYSQL, vec![batch.into()]).await?;
            Ok(Put { batch, fresh: fresh(&rows)? })
        }
    }
}

async fn begin(
    tx: &mut OpenTx<'_, impl Tx>,
    messages: usize,
    consumer: &str,
    source: &str,
) -> Result<i64, DriverError> {
    let messages = i64::try_from(messages).unwrap_or(i64::MAX);
    let rows = tx.run(&BEGIN, vec![messages.into(), consumer.into(), source.into()]).await?;
    rows.first().ok_or_else(no_row)?.int(0)
}

/// Records when a batch was done. Its row must exist: after a deadlock that the work ignored, MySQL has rolled back
/// marks and effects, and runs each later statement by itself.
pub(super) async fn end(tx: &mut OpenTx<'_, impl Tx>, batch: i64) -> Result<(), DriverError> {
    if tx.run(&END, vec![batch.into()]).await?.changed == 1 {
        return Ok(());
    }
    let message =
        "the database rolled back the transaction that marked the messages; roll back and run it all again";
    Err(DriverError::new(DriverErrorKind::Serialization, message))
}

pub(super) async fn keep(
    tx: &mut OpenTx<'_, impl Tx>,
    mark: Mark,
    outcome: Bytes,
) -> Result<(), DriverError> {
    tx.run(&KEEP, vec![mark[..].into(), outcome.into()]).await.map(drop)
}

pub(super) async fn recall(tx: &mut OpenTx<'_, impl Tx>, mark: Mark) -> Result<Option<Bytes>, DriverError> {
    let rows = tx.run(&RECALL, vec![mark[..].into()]).await?;
    rows.first().map(|row| row.bytes(0)).transpose()
}

/// The sources of a batch: the first, and how many more.
pub(super) fn sources<'i>(identities: impl Iterator<Item = &'i Identity>) -> String {
    let mut names: Vec<&str> = identities.map(Identity::source).collect();
    names.sort_unstable();
    names.dedup();
    let (mut text, more) =
        (names.first().copied().unwrap_or_default().to_owned(), names.len().saturating_sub(1));
    if more > 0 {
        // Writing to a string cannot fail.
        let _ = write!(text, " and {more} more");
    }
    text
}

fn fresh(rows: &Rows) -> Result<HashSet<Mark>, DriverError> {
    let ids = rows.rows.iter().map(|row| row.bytes(0)).collect::<Result<Vec<_>, _>>()?;
    Ok(ids.iter().filter_map(mark).collect())
}

fn mark(bytes: impl AsRef<[u8]>) -> Option<Mark> {
    bytes.as_ref().try_into().ok()
}

fn no_row() -> DriverError {
    DriverError::of(DriverErrorKind::Unreadable, "the database returned no row where one was expected")
}

fn inserts_mysql(rows: usize) -> Sql {
    static TEXTS: LazyLock<[String; SIZES.len()]> = LazyLock::new(|| {
        SIZES.map(|rows| {
            let values = vec!["(?, ?)"; rows].join(", ");
            format!(
                "INSERT INTO semel_inbox (id, batch) VALUES {values} ON DUPLICATE KEY UPDATE batch = batch"
            )
        })
    });
    let at = SIZES.iter().position(|size| *size == rows).unwrap_or(SIZES.len() - 1);
    Sql { postgres: "", mysql: &TEXTS[at], sqlite: "" }
}
