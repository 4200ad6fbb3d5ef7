//! Readers, on connections and threads of their own, so that a read never waits for a commit.

use std::sync::LazyLock;

use rusqlite::{Connection, OptionalExtension, params};
use tokio::sync::mpsc;

use super::clock::Clock;

use super::error::SqliteError;
use super::open;
use super::options::File;
use super::row;
use crate::intent::identity::IntentId;
use crate::store::command::Reply;
use crate::store::encoding;
use crate::store::pager::{Pager, expiring_by, state_bits};
use crate::store::{Fate, Filter, Lineage, Page, Record};

/// Rows scanned in one read at most.
const WINDOW_ROWS_MAX: i64 = 20_000;

/// A request to a reader.
pub(super) enum ReadRequest {
    Get(IntentId, Reply<Option<Record>>),
    /// The page after a sequence number.
    List(Box<Filter>, Option<i64>, Reply<Page>),
    Lineage(Reply<Lineage>),
    /// Accept nothing more, and end.
    Close,
}

/// A reader's thread, until the store is closed or dropped.
pub(super) fn run(
    file: &File,
    clock: &Clock,
    mut queue: mpsc::Receiver<ReadRequest>,
    connection: Connection,
) {
    let mut connection = Some(connection);
    while let Some(request) = queue.blocking_recv() {
        let opened = match connection.take() {
            Some(connection) => Ok(connection),
            None => open::reconnect_reader(file),
        };
        connection = match (request, opened) {
            (ReadRequest::Close, opened) => {
                queue.close();
                opened.ok()
            }
            (ReadRequest::Get(id, reply), Ok(opened)) => {
                let found = get(&opened, clock, &id);
                answer(file, opened, found, reply)
            }
            (ReadRequest::List(filter, after, reply), Ok(opened)) => {
                let found = list(&opened, clock, &filter, after, || reply.is_closed());
                answer(file, opened, found, reply)
            }
            (ReadRequest::Lineage(reply), Ok(opened)) => {
                let found = lineage(&opened);
                answer(file, opened, found, reply)
            }
            (ReadRequest::Lineage(reply), Err(error)) => {
                let _ = reply.send(Err(error));
                None
            }
            (ReadRequest::Get(_, reply), Err(error)) => {
                let _ = reply.send(Err(error));
                None
            }
            (ReadRequest::List(_, _, reply), Err(error)) => {
                let _ = reply.send(Err(error));
                None
            }
        };
    }
}

/// Answers, and keeps the connection if it can still be trusted.
fn answer<A>(
    file: &File,
    connection: Connection,
    found: Result<A, SqliteError>,
    reply: Reply<A>,
) -> Option<Connection> {
    let broken = found.as_ref().is_err_and(SqliteError::needs_new_connection);
    let _ = reply.send(found.map_err(|error| error.explain(&file.path, Fate::NotApplied)));
    (!broken).then_some(connection)
}

fn get(connection: &Connection, clock: &Clock, id: &IntentId) -> Result<Option<Record>, SqliteError> {
    let mut find = connection.prepare_cached(include_str!("sql/record.sql"))?;
    let found = find.query_row([id.as_bytes()], row::full_record).optional()?;
    Ok(found.filter(|record| record.state_at(clock.now()).is_some()))
}

fn lineage(connection: &Connection) -> Result<Lineage, SqliteError> {
    let mut find = connection.prepare_cached("SELECT id FROM lineage WHERE only_row = 1")?;
    Ok(find.query_row([], |row| row.get(0).map(Lineage::from_bytes))?)
}

static LIST: LazyLock<String> =
    LazyLock::new(|| include_str!("sql/list.sql").replace("{index}", "").replace("{open}", ""));
static LIST_OPEN: LazyLock<String> = LazyLock::new(|| {
    include_str!("sql/list.sql")
        .replace("{index}", "INDEXED BY intent_open")
        .replace("{open}", "AND state < 2")
});

/// A page of the records after that sequence number. Each window is a read of its own: a long one keeps the log from
/// starting over.
fn list(
    connection: &Connection,
    clock: &Clock,
    filter: &Filter,
    after: Option<i64>,
    cancelled: impl Fn() -> bool,
) -> Result<Page, SqliteError> {
    let now = clock.now();
    let operation: Option<i64> = match &filter.operation {
        None => None,
        Some(name) => {
            let mut find = connection.prepare_cached("SELECT n FROM operation WHERE name = ?1")?;
            match find.query_row([name], |row| row.get(0)).optional()? {
                Some(n) => Some(n),
                // It was never claimed.
                None => return Ok(Page { records: Vec::new(), next: None, now }),
            }
        }
    };
    let sql = if filter.only_open() { &LIST_OPEN } else { &LIST };
    let older_than_ms = encoding::number(filter.older_than_ms.unwrap_or(0));
    let mut pager = Pager::new(filter, after, WINDOW_ROWS_MAX);
    loop {
        let below = pager.below().unwrap_or(i64::MAX);
        // Open records are few, and read in one window.
        let floor = if filter.only_open() { None } else { floor(connection, below, pager.window())? };
        let mut find = connection.prepare_cached(sql)?;
        let mut rows = find.query(params![
            encoding::number(now.0),
            below,
            floor.unwrap_or(0),
            state_bits(filter),
            operation,
            filter.tenant,
            older_than_ms,
            pager.room(),
            expiring_by(filter, now),
        ])?;
        while let Some(row) = rows.next()? {
            if pager.ends_here() {
                break;
            }
            pager.push(row::seq(row)?, row::outcome_len(row)? as u64, row::full_record(row)?);
        }
        if !pager.next_window(floor) || cancelled() {
            break;
        }
    }
    let (records, next) = pager.finish();
    Ok(Page { records, next: next.map(|seq| seq.to_string()), now })
}

/// Where the window ends; `None` at the end of the list.
fn floor(connection: &Connection, below: i64, window: i64) -> rusqlite::Result<Option<i64>> {
    let mut find = connection
        .prepare_cached("SELECT seq FROM intent WHERE seq < ?1 ORDER BY seq DESC LIMIT 1 OFFSET ?2")?;
    find.query_row([below, window], |row| row.get(0)).optional()
}
