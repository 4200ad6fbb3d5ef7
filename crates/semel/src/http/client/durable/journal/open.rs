//! Opens the journal's file: checks that it is one, and makes it durable.

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use super::clock::{self, Clocks, JournalClock};
use rusqlite::{Connection, MAIN_DB, OpenFlags, TransactionBehavior};

use crate::store::sqlite::error::{SqliteError, refused};

/// The tables of a new journal.
const SQL: &str = include_str!("schema.sql");
/// The table that stores how far the clock was set back. It was added later than the others.
const CLOCK_SQL: &str = include_str!("clock.sql");
/// The version this build reads and writes.
const VERSION: u32 = 1;
/// Marks a file as a client's journal (`SEMC`); a store's file has another id.
const APPLICATION_ID: u32 = 0x5345_4D43;
/// How long to wait for another process that writes to the same file.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

pub(super) fn open(path: &Path) -> Result<Connection, SqliteError> {
    private(path)?;
    let flags =
        OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut connection = Connection::open_with_flags(path, flags).map_err(|error| {
        let error = SqliteError::from(error);
        if !error.is_cannot_open() {
            return error;
        }
        refused("cannot be opened or created; check that its directory exists and is writable".into())
    })?;
    connection.busy_timeout(BUSY_TIMEOUT)?;
    if connection.is_readonly(MAIN_DB)? {
        return Err(refused("cannot be written; make it and its directory writable for this user".into()));
    }
    // Before anything is changed: another program's file must stay unchanged.
    is_ours(&connection)?;
    write_ahead(&connection)?;
    connection.pragma_update(None, "synchronous", "FULL")?;
    connection.pragma_update(None, "fullfsync", true)?;
    let synchronous: i64 = connection.pragma_query_value(None, "synchronous", |row| row.get(0))?;
    if synchronous < 2 {
        return Err(refused("cannot be written durably; put it on a local disk".into()));
    }
    if !is_ours(&connection)? {
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        // Checked again under the lock: another process may have been faster.
        if !is_ours(&transaction)? {
            transaction.execute_batch(SQL)?;
        }
        transaction.commit()?;
    }
    let has_clock = "SELECT count(*) FROM sqlite_schema WHERE type = 'table' AND name = 'clock'";
    if connection.query_row(has_clock, [], |row| row.get::<_, i64>(0))? == 0 {
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        transaction.execute_batch(CLOCK_SQL)?;
        transaction.commit()?;
    }
    Ok(connection)
}

/// A new journal in memory, lost with its last user.
#[cfg(feature = "fault-injection")]
pub(super) fn in_memory() -> Result<Connection, SqliteError> {
    let connection = Connection::open_in_memory()?;
    connection.execute_batch(SQL)?;
    connection.execute_batch(CLOCK_SQL)?;
    Ok(connection)
}

/// The clock of a journal that is opened. If the file is too far ahead of the machine's clock, intents without an
/// answer count as too old from now on.
pub(super) fn clock(
    connection: &mut Connection,
    clocks: Clocks,
    tolerance: Duration,
) -> Result<JournalClock, SqliteError> {
    let (clock, too_far_ahead) = JournalClock::open(clocks, clock::seen(connection)?, tolerance);
    if too_far_ahead {
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let moment = clock.now();
        let intents = transaction.execute(include_str!("too_old.sql"), [moment.now_ms])?;
        clock::keep(&transaction, moment.set_back_ms())?;
        transaction.commit()?;
        tracing::error!(
            intents,
            set_back_ms = moment.set_back_ms(),
            "the journal is ahead of this machine's clock, so its intents without an answer are not sent again; find \
             out whether they took effect"
        );
    }
    Ok(clock)
}

/// Whether it has our tables; an error if it is another program's file.
fn is_ours(connection: &Connection) -> Result<bool, SqliteError> {
    let (application, version, things): (u32, u32, u32) = connection.query_row(
        "SELECT application_id, user_version, (SELECT count(*) FROM sqlite_schema)
         FROM pragma_application_id, pragma_user_version",
        [],
        |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)),
    )?;
    match (application, version, things) {
        (0, 0, 0) => Ok(false),
        (APPLICATION_ID, VERSION, 1..) => Ok(true),
        (APPLICATION_ID, newer, _) if newer > VERSION => {
            Err(refused("was written by a newer semel; upgrade semel, or use another file".into()))
        }
        _ => Err(refused(
            "is not a client's journal; the journal needs a file of its own, use another path".into(),
        )),
    }
}

/// Switches to write-ahead logging (WAL). The switch takes a lock that ignores the busy timeout, so this waits for
/// another process that opens a new file at the same moment.
fn write_ahead(connection: &Connection) -> Result<(), SqliteError> {
    let deadline = Instant::now() + BUSY_TIMEOUT;
    loop {
        let set: Result<String, SqliteError> = connection
            .pragma_update_and_check(None, "journal_mode", "wal", |row| row.get(0))
            .map_err(SqliteError::from);
        match set {
            Ok(mode) if mode == "wal" => return Ok(()),
            Ok(_) => return Err(refused("cannot have a write-ahead log; put it on a local disk".into())),
            Err(error) if error.is_busy() && Instant::now() < deadline => {
                thread::sleep(Duration::from_millis(5));
            }
            Err(error) => return Err(error),
        }
    }
}

/// Creates a new file for its owner only, because it contains the requests. SQLite gives the files beside it the same
/// mode.
#[cfg(unix)]
fn private(path: &Path) -> Result<(), SqliteError> {
    use std::os::unix::fs::OpenOptionsExt;
    let made = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    match made {
        Err(error) if !path.exists() => {
            Err(refused(format!("cannot be created ({error}); check its directory")))
        }
        _ => Ok(()),
    }
}

#[cfg(not(unix))]
fn private(_: &Path) -> Result<(), SqliteError> {
    Ok(())
}
