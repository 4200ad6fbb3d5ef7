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
use crate::intent::state::State;
use crate::store::command::Reply;
use crate::store::encoding;
use crate::store::{ErrorKind, Fate, Filter, Lineage, Page, Record, StoreError};

/// Bytes of outcomes after which a page ends, however few records it has.
const PAGE_OUTCOME_BYTES: usize = 16 << 20;
/// Rows scanned in one read, at first and at most. A long read keeps the log from starting over.
const WINDOW_ROWS_MIN: i64 = 1_000;
const WINDOW_ROWS_MAX: i64 = 20_000;

/// A request to a reader.
pub(super) enum ReadRequest {
    Get(IntentId, Reply<Option<Record>>),
    List(Box<Filter>, Reply<Page>),
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
            (ReadRequest::List(filter, reply), Ok(opened)) => {
                let found = list(&opened, clock, &filter, || reply.is_closed());
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
            (ReadRequest::List(_, reply), Err(error)) => {
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

/// A page. Rows are scanned a window at a time, each in a read of its own: scanning millions of rows that do not match
/// must not keep the log from starting over.
fn list(
    connection: &Connection,
    clock: &Clock,
    filter: &Filter,
    cancelled: impl Fn() -> bool,
) -> Result<Page, SqliteError> {
    let now = clock.now();
    let mut page = Page { records: Vec::new(), next: None, now };
    let Some(wanted) = Wanted::new(connection, filter)? else { return Ok(page) };
    let limit = filter.page_records();
    let mut below = filter.after.as_deref().and_then(|after| after.parse().ok()).unwrap_or(i64::MAX);
    let mut window = WINDOW_ROWS_MIN;
    let (mut last, mut outcome_bytes) = (0, 0);
    loop {
        let floor = wanted.floor(connection, below, window)?;
        let mut find = connection.prepare_cached(wanted.sql())?;
        let room = encoding::number((limit + 1 - page.records.len()) as u64);
        let mut rows = find.query(params![
            encoding::number(now.0),
            below,
            floor,
            wanted.states,
            wanted.operation,
            filter.tenant,
            wanted.older_than_ms,
            room,
        ])?;
        while let Some(row) = rows.next()? {
            // One more than the limit shows that there is another page.
            if page.records.len() == limit || outcome_bytes > PAGE_OUTCOME_BYTES {
                page.next = Some(last.to_string());
                return Ok(page);
            }
            last = row::seq(row)?;
            outcome_bytes += row::outcome_len(row)?;
            page.records.push(row::full_record(row)?);
        }
        if floor == 0 || cancelled() {
            return Ok(page);
        }
        below = floor;
        window = (window * 2).min(WINDOW_ROWS_MAX);
    }
}

/// A filter in SQLite's terms.
struct Wanted {
    states: i64,
    only_open: bool,
    operation: Option<i64>,
    older_than_ms: i64,
}

impl Wanted {
    /// `None` when nothing can match: an operation that was never claimed.
    fn new(connection: &Connection, filter: &Filter) -> Result<Option<Self>, SqliteError> {
        let all = if filter.states.is_empty() { &State::ALL[..] } else { &filter.states };
        let states = all.iter().fold(0, |bits, state| bits | 1 << encoding::state_code(*state));
        let only_open = all.iter().all(|state| !state.is_finished());
        let operation = match &filter.operation {
            None => None,
            Some(name) => {
                let mut find = connection.prepare_cached("SELECT n FROM operation WHERE name = ?1")?;
                match find.query_row([name], |row| row.get(0)).optional()? {
                    Some(n) => Some(n),
                    None => return Ok(None),
                }
            }
        };
        let older_than_ms = encoding::number(filter.older_than_ms.unwrap_or(0));
        Ok(Some(Self { states, only_open, operation, older_than_ms }))
    }

    fn sql(&self) -> &'static str {
        if self.only_open { &LIST_OPEN } else { &LIST }
    }

    /// Where the window below `below` ends; 0 is the end of the list. Open records are few, and read in one window.
    fn floor(&self, connection: &Connection, below: i64, window: i64) -> rusqlite::Result<i64> {
        if self.only_open {
            return Ok(0);
        }
        let mut find = connection
            .prepare_cached("SELECT seq FROM intent WHERE seq < ?1 ORDER BY seq DESC LIMIT 1 OFFSET ?2")?;
        Ok(find.query_row([below, window], |row| row.get(0)).optional()?.unwrap_or(0))
    }
}

/// Refuses a cursor that is not from a page of this store.
pub(super) fn check_cursor(filter: &Filter) -> Result<(), StoreError> {
    match &filter.after {
        Some(cursor) if !cursor.parse::<i64>().is_ok_and(|seq| seq > 0) => {
            let message =
                format!("{cursor:?} is not a cursor of this store; use the one the previous page ended with");
            Err(StoreError::new(ErrorKind::Misconfigured, Fate::NotApplied, message))
        }
        _ => Ok(()),
    }
}
