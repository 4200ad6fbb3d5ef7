//! Pruning: deletes marks older than the dedup window, one bounded chunk at a time.

use std::time::Duration;

use crate::tx::driver::{Dialect, DriverError, OpenTx, Sql, Tx};

/// Most batches per chunk: one short transaction, so that others do not wait for it.
const BATCHES_MAX: i64 = 100;
/// Most messages per chunk, unless the first batch alone has more.
const MESSAGES_MAX: i64 = 5_000;

/// A consumer's old batches for one chunk, oldest first.
const OLD: Sql = Sql {
    postgres: "SELECT batch, messages FROM semel_inbox_batch WHERE consumer = $1 \
               AND began_at < floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint - $2 \
               ORDER BY began_at LIMIT $3 FOR UPDATE SKIP LOCKED",
    mysql: "SELECT batch, messages FROM semel_inbox_batch WHERE consumer = ?1 \
            AND began_at < FLOOR(UNIX_TIMESTAMP(SYSDATE(3)) * 1000) - ?2 ORDER BY began_at LIMIT ?3",
    sqlite: "SELECT batch, messages FROM semel_inbox_batch WHERE consumer = ?1 \
             AND began_at < CAST(unixepoch('subsec') * 1000 AS INTEGER) - ?2 ORDER BY began_at LIMIT ?3",
};

/// The marks of a batch, on PostgreSQL. There is no index by batch; the batch row lists the ids instead. Some of those
/// may have been marked by an earlier batch.
macro_rules! of_batch {
    () => {
        "batch = $1 AND id = ANY (ARRAY(SELECT substring(b.ids FROM g * 16 + 1 FOR 16) FROM semel_inbox_batch b, \
         generate_series(0, octet_length(b.ids) / 16 - 1) g WHERE b.batch = $1))"
    };
}

const RESULTS: Sql = Sql {
    postgres: concat!(
        "DELETE FROM semel_inbox_result WHERE id = ANY (ARRAY(SELECT id FROM semel_inbox WHERE ",
        of_batch!(),
        "))"
    ),
    mysql: "DELETE r FROM semel_inbox_result r JOIN semel_inbox m ON m.id = r.id WHERE m.batch = ?",
    sqlite: "DELETE FROM semel_inbox_result WHERE id IN (SELECT id FROM semel_inbox WHERE batch = ?1)",
};

/// A marked message was handled, even if it has a dead letter. Without the mark that dead letter could be handled
/// again.
const DEAD_LETTERS: Sql = Sql {
    postgres: concat!(
        "DELETE FROM semel_inbox_dead WHERE id = ANY (ARRAY(SELECT id FROM semel_inbox WHERE ",
        of_batch!(),
        "))"
    ),
    mysql: "DELETE d FROM semel_inbox_dead d JOIN semel_inbox m ON m.id = d.id WHERE m.batch = ?",
    sqlite: "DELETE FROM semel_inbox_dead WHERE id IN (SELECT id FROM semel_inbox WHERE batch = ?1)",
};

const MARKS: Sql = Sql {
    postgres: concat!("DELETE FROM semel_inbox WHERE ", of_batch!()),
    mysql: "DELETE FROM semel_inbox WHERE batch = ?",
    sqlite: "DELETE FROM semel_inbox WHERE batch = ?1",
};

const BATCH: Sql = Sql {
    postgres: "DELETE FROM semel_inbox_batch WHERE batch = $1",
    mysql: "DELETE FROM semel_inbox_batch WHERE batch = ?",
    sqlite: "DELETE FROM semel_inbox_batch WHERE batch = ?1",
};

/// Deletes one chunk of `consumer`'s marks older than `window`, and returns how many messages it had. Zero: nothing is
/// left to prune.
pub(super) async fn chunk(
    tx: &mut OpenTx<'_, impl Tx>,
    consumer: &str,
    window: Duration,
) -> Result<u64, DriverError> {
    let window = i64::try_from(window.as_millis()).unwrap_or(i64::MAX / 2).min(i64::MAX / 2);
    if tx.dialect() == Dialect::Sqlite {
        // Become the writer first: what is read after that cannot change.
        tx.run(&Sql::same("DELETE FROM semel_inbox_batch WHERE false"), Vec::new()).await?;
    }
    let old = tx.run(&OLD, vec![consumer.into(), window.into(), BATCHES_MAX.into()]).await?;
    let (mut messages, mut gone) = (0, 0);
    for row in &old.rows {
        let (batch, of_batch) = (row.int(0)?, row.int(1)?);
        if messages > 0 && messages + of_batch > MESSAGES_MAX {
            break;
        }
        messages += of_batch;
        tx.run(&RESULTS, vec![batch.into()]).await?;
        tx.run(&DEAD_LETTERS, vec![batch.into()]).await?;
        gone += tx.run(&MARKS, vec![batch.into()]).await?.changed;
        tx.run(&BATCH, vec![batch.into()]).await?;
    }
    // A batch of only duplicates has no marks of its own, but more batches may follow it.
    Ok(if gone == 0 && messages > 0 { 1 } else { gone })
}
