//! Opening the file: checks on it, and how each connection is set up.

use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use rusqlite::{Connection, MAIN_DB, OpenFlags};
use tokio::sync::oneshot;

use super::error::{SqliteError, refused};
use super::options::File;
use super::schema;
use crate::migration::{Goal, MigrationPlan};
use crate::store::queue::answer_lost;
use crate::store::{ErrorKind, Fate, StoreError};

/// Page cache of each connection. More is not faster: after a page split SQLite goes through all cached pages at the
/// next commit, and pages it does not cache are in the system's cache.
const CACHE_KIB: i64 = 4 * 1024;

/// The path as SQLite gets it. Absolute, because the process may change its directory, and because names such as
/// `:memory:` and `file:x` mean something to SQLite.
pub(crate) fn full_path(path: &Path) -> Result<PathBuf, StoreError> {
    std::path::absolute(path).map_err(|error| {
        let message = format!("{:?} is not the path of a file; name one, such as semel.db", path.display());
        StoreError::new(ErrorKind::Misconfigured, Fate::NotApplied, message).with_source(error)
    })
}

/// Runs blocking work on a thread of its own.
pub(crate) async fn in_thread<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, StoreError> + Send + 'static,
) -> Result<T, StoreError> {
    let (reply, answer) = oneshot::channel();
    spawn("open", move || {
        let _ = reply.send(work());
    })?;
    answer.await.unwrap_or_else(|_| Err(answer_lost()))
}

pub(crate) fn spawn(
    name: &str,
    work: impl FnOnce() + Send + 'static,
) -> Result<thread::JoinHandle<()>, StoreError> {
    thread::Builder::new().name(format!("semel-sqlite-{name}")).spawn(work).map_err(|error| {
        let message = "could not start a thread for the SQLite store; raise the limit of threads";
        StoreError::new(ErrorKind::Unavailable, Fate::NotApplied, message).with_source(error)
    })
}

/// The first connection: checks the file, and creates or upgrades its tables.
pub(super) fn connect(file: &File) -> Result<Connection, StoreError> {
    connect_for(file, Goal::Start).map(|(connection, _)| connection)
}

/// Creates or upgrades the tables of a file, or only plans to.
pub(super) fn migrate(file: &File, goal: Goal) -> Result<MigrationPlan, StoreError> {
    connect_for(file, goal).map(|(_, plan)| plan)
}

fn connect_for(file: &File, goal: Goal) -> Result<(Connection, MigrationPlan), StoreError> {
    check_path(file)?;
    let connect = || {
        let mut connection = bare(file, file.create)?;
        // Before anything is changed: a file of another application must stay as it is.
        if goal.only_plans() {
            let plan = schema::create_or_upgrade(&mut connection, goal)?;
            return Ok((connection, plan));
        }
        if let (schema::SchemaStatus::New, false) = (schema::status(&connection)?, file.create) {
            return Err(refused(
                "is empty; check the path, or create its tables with `semel migrate`".into(),
            ));
        }
        write_ahead(&connection, file.busy_timeout)?;
        set_up(&connection, file)?;
        let plan = schema::create_or_upgrade(&mut connection, goal)?;
        Ok((connection, plan))
    };
    connect().map_err(|error: SqliteError| {
        let error = if error.is_cannot_open() {
            refused("cannot be opened or created; check that its directory is writable for this user".into())
        } else {
            error
        };
        error.explain(&file.path, Fate::NotApplied)
    })
}

/// Another connection to a file that [`connect`] has opened. Never creates the file: a file that has vanished is an
/// error, not an empty store.
pub(super) fn reconnect(file: &File) -> Result<Connection, StoreError> {
    let reconnect = || {
        let connection = bare(file, false)?;
        set_up(&connection, file)?;
        match schema::status(&connection)? {
            schema::SchemaStatus::Ours(_) => Ok(connection),
            schema::SchemaStatus::New => {
                Err(refused("is empty now and was probably replaced; put the original file back".into()))
            }
        }
    };
    reconnect().map_err(|error: SqliteError| error.explain(&file.path, Fate::NotApplied))
}

/// A read-only connection.
pub(super) fn reconnect_reader(file: &File) -> Result<Connection, StoreError> {
    let connection = reconnect(file)?;
    connection
        .pragma_update(None, "query_only", true)
        .map_err(|error| SqliteError::from(error).explain(&file.path, Fate::NotApplied))?;
    Ok(connection)
}

/// Checks for clear errors: SQLite says "unable to open database file" for all of these.
fn check_path(file: &File) -> Result<(), StoreError> {
    let path = &file.path;
    let wrong = |why: String| Err(refused(why).explain(path, Fate::NotApplied));
    let directory = path.parent().unwrap_or(path);
    if path.is_dir() {
        return wrong("is a directory; name a file in it, such as semel.db".into());
    }
    match std::fs::metadata(directory) {
        Ok(found) if !found.is_dir() => {
            return wrong(format!("cannot be created: {} is not a directory", directory.display()));
        }
        Err(error) => {
            return wrong(format!(
                "cannot be created: {} cannot be used ({error}); create that directory first",
                directory.display()
            ));
        }
        Ok(_) => {}
    }
    if !file.create && !path.exists() {
        return wrong("does not exist; check the path, or create it with `semel migrate`".into());
    }
    Ok(())
}

fn bare(file: &File, create: bool) -> Result<Connection, SqliteError> {
    let mut flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    flags.set(OpenFlags::SQLITE_OPEN_CREATE, create);
    let connection = Connection::open_with_flags(&file.path, flags)?;
    connection.busy_timeout(file.busy_timeout)?;
    // Without permission to write, SQLite opens read-only and reports no error.
    if connection.is_readonly(MAIN_DB)? {
        return Err(refused("cannot be written; make it and its directory writable for this user".into()));
    }
    Ok(connection)
}

/// Switches to write-ahead logging and checks that it worked. The switch takes a lock that ignores the busy timeout, so
/// this waits for another process that opens a new file at the same moment.
fn write_ahead(connection: &Connection, timeout: Duration) -> Result<(), SqliteError> {
    let deadline = Instant::now() + timeout;
    loop {
        let set: Result<String, SqliteError> = connection
            .pragma_update_and_check(None, "journal_mode", "wal", |row| row.get(0))
            .map_err(SqliteError::from);
        match set {
            Ok(mode) if mode == "wal" => return Ok(()),
            Ok(mode) => {
                return Err(refused(format!(
                    "cannot have a write-ahead log (its journal stays {mode:?}); put it on a local disk"
                )));
            }
            Err(error) if error.is_busy() && Instant::now() < deadline => {
                thread::sleep(Duration::from_millis(5));
            }
            Err(error) => return Err(error),
        }
    }
}

fn set_up(connection: &Connection, file: &File) -> Result<(), SqliteError> {
    connection.pragma_update(None, "synchronous", "FULL")?;
    // macOS: without it a flush ends in the drive's cache. Elsewhere it has no effect.
    connection.pragma_update(None, "fullfsync", true)?;
    // checkpoint.rs does the checkpoints, not the commits.
    connection.pragma_update_and_check(None, "wal_autocheckpoint", 0, |_| Ok(()))?;
    // A log that once grew large is truncated when it starts over.
    let log_bytes_max = i64::from(file.checkpoint_pages) * 4 * 4096;
    connection.pragma_update_and_check(None, "journal_size_limit", log_bytes_max, |_| Ok(()))?;
    connection.pragma_update(None, "cache_size", -CACHE_KIB)?;
    connection.set_prepared_statement_cache_capacity(32);
    if let Some(pages) = file.pages_max.get() {
        connection.pragma_update_and_check(None, "max_page_count", pages, |_| Ok(()))?;
    }
    // Durable before acknowledged is a promise: verified, not assumed.
    let journal: String = connection.pragma_query_value(None, "journal_mode", |row| row.get(0))?;
    let synchronous: i64 = connection.pragma_query_value(None, "synchronous", |row| row.get(0))?;
    if journal != "wal" || synchronous < 2 {
        return Err(refused(format!(
            "cannot be written durably (journal_mode {journal:?}, synchronous {synchronous}); \
             put it on a local disk"
        )));
    }
    Ok(())
}

/// Which file is at the path. If the file of a running store is moved or replaced, the next process starts with another
/// file, and both would grant the same claims.
#[cfg(unix)]
pub(crate) fn file_id(path: &Path) -> Option<(u64, u64)> {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata(path).ok().map(|found| (found.dev(), found.ino()))
}

/// On other systems an open file cannot be replaced.
#[cfg(not(unix))]
pub(crate) fn file_id(_path: &Path) -> Option<(u64, u64)> {
    None
}
