//! Retention: deletes what has expired in the application's own file.

use rusqlite::{Connection, params};

use crate::store::encoding;
use crate::tx::driver::{DriverError, explain_rusqlite as explain};

/// Records deleted in one transaction: the application's writers wait no longer than that takes.
const CHUNK: usize = 500;

const LOCK: &str = "DELETE FROM semel_intent WHERE false";
const NOW: &str = "SELECT CAST(unixepoch('subsec') * 1000 AS INTEGER)";
const PHASES: &str = include_str!("../sql/sweep_phases_sqlite.sql");
const INTENTS: &str = include_str!("../sql/sweep_sqlite.sql");

/// Deletes up to `limit` intents whose retention is over, the longest expired first, with what their phases left
/// behind, and returns how many there were. Intents in flight are never touched.
///
/// Outside of a transaction it opens its own, of 500 records each, and waits for another writer as long as the
/// connection's busy timeout says; what was deleted before an error stays deleted. Inside of one it becomes part of
/// it.
///
/// Call it regularly, or let a [`Sweeper`](crate::recover::Sweeper) do so on a [`SqliteReader`](super::SqliteReader).
///
/// ```
/// use semel::tx::sqlite;
///
/// let db = rusqlite::Connection::open_in_memory()?;
/// sqlite::migrate(&db)?;
/// assert_eq!(sqlite::sweep(&db, 10_000)?, 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn sweep(connection: &Connection, limit: usize) -> Result<usize, DriverError> {
    if !connection.is_autocommit() {
        return forget(connection, limit);
    }
    let mut done = 0;
    while done < limit {
        let chunk = (limit - done).min(CHUNK);
        match forget_and_commit(connection, chunk) {
            Ok(forgotten) => {
                done += forgotten;
                if forgotten < chunk {
                    break;
                }
            }
            Err(_) if done > 0 => break,
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}

fn forget_and_commit(connection: &Connection, limit: usize) -> Result<usize, DriverError> {
    connection.execute_batch("BEGIN IMMEDIATE").map_err(explain)?;
    let forgotten = forget(connection, limit)
        .and_then(|forgotten| connection.execute_batch("COMMIT").map(|()| forgotten).map_err(explain));
    // Some errors have ended the transaction already.
    if forgotten.is_err() && !connection.is_autocommit() {
        let _ = connection.execute_batch("ROLLBACK");
    }
    forgotten
}

fn forget(connection: &Connection, limit: usize) -> Result<usize, DriverError> {
    let run = |sql: &str, now: i64| {
        connection.prepare_cached(sql)?.execute(params![now, encoding::number(limit as u64)])
    };
    // The lock first, and one time for both: they have to match the same records.
    connection.prepare_cached(LOCK).and_then(|mut lock| lock.execute([])).map_err(explain)?;
    let now = connection.prepare_cached(NOW).and_then(|mut now| now.query_row([], |row| row.get(0)));
    let now: i64 = now.map_err(explain)?;
    run(PHASES, now).map_err(explain)?;
    run(INTENTS, now).map_err(explain)
}
