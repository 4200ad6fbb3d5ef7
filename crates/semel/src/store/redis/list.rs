//! Pages of records, for people.
//!
//! There is no index over all records: it would take as much memory again. Open records (in progress, uncertain) are in
//! a set per bucket, and found at once. Everything else is found by a `SCAN` over all keys of the server, for each page
//! anew: seconds for a million records, and meant for people, not for programs.

use std::collections::BTreeSet;

use futures_util::{StreamExt, TryStreamExt, stream};
use redis::{Cmd, Value};

use super::connection::{Connections, Node};
use super::error::{self, Failed};
use super::layout::{self, BUCKETS, ID_BYTES};
use crate::intent::policy::StoreTime;
use crate::store::cursor::{self, Cursor};
use crate::store::memory::matches;
use crate::store::{Filter, PAGE_OUTCOME_BYTES, Page, Record, StoreError};

/// Keys per step of a scan.
const STEP_KEYS: usize = 1_000;
/// Records read concurrently.
const TOGETHER: usize = 128;
/// Whole records, with their outcomes, read concurrently.
const WHOLE_TOGETHER: usize = 16;
/// First bytes of a record: enough for nearly all identities, and enough for every one.
const BEGINNING_BYTES: usize = 384;
const BEGINNING_BYTES_MAX: usize = 8 * 1024;

/// The newest records found: a page and one more, which shows that there is another page.
struct Newest<'a> {
    filter: &'a Filter,
    now: StoreTime,
    after: Option<Cursor>,
    room: usize,
    found: BTreeSet<Cursor>,
}

impl Newest<'_> {
    fn offer(&mut self, record: &Record) {
        let cursor = (record.created_at, record.intent.id());
        if self.after.is_some_and(|after| cursor >= after) || !matches(self.filter, record, self.now) {
            return;
        }
        // A scan may return a key twice; the set removes duplicates.
        self.found.insert(cursor);
        if self.found.len() > self.room {
            self.found.pop_first();
        }
    }
}

pub(super) async fn page(
    connections: &Connections,
    prefix: &str,
    filter: &Filter,
    now: StoreTime,
) -> Result<Page, StoreError> {
    let after = filter.after.as_deref().map(cursor::parse).transpose()?;
    let limit = filter.page_records();
    let mut newest = Newest { filter, now, after, room: limit + 1, found: BTreeSet::new() };
    if filter.only_open() {
        scan_open(connections, prefix, &mut newest).await?;
    } else {
        for node in connections.nodes().await? {
            scan_all(connections, &node, prefix, &mut newest).await?;
        }
    }
    let mut cursors: Vec<Cursor> = newest.found.into_iter().rev().collect();
    let more = cursors.len() > limit;
    cursors.truncate(limit);
    let mut page = Page { records: Vec::with_capacity(cursors.len()), next: None, now };
    let mut outcome_bytes = 0;
    let wanted = stream::iter(cursors.clone())
        .map(|cursor| async move { Ok((cursor, whole(connections, prefix, cursor).await?)) });
    let mut wanted = wanted.buffered(WHOLE_TOGETHER);
    while let Some((at, record)) = wanted.try_next().await? {
        if outcome_bytes > PAGE_OUTCOME_BYTES {
            page.next =
                page.records.last().map(|last: &Record| cursor::text((last.created_at, last.intent.id())));
            return Ok(page);
        }
        // It may have been deleted or changed meanwhile; then it is left out.
        if let Some(record) = record.filter(|it| it.created_at == at.0 && matches(filter, it, now)) {
            outcome_bytes += record.outcome.as_ref().map_or(0, |outcome| outcome.encoded_len() as u64);
            page.records.push(record);
        }
    }
    page.next = cursors.last().filter(|_| more).copied().map(cursor::text);
    Ok(page)
}

async fn scan_open(
    connections: &Connections,
    prefix: &str,
    newest: &mut Newest<'_>,
) -> Result<(), StoreError> {
    let sets = stream::iter(0..BUCKETS).map(|bucket| async move {
        let (mut keys, mut cursor) = (Vec::new(), Vec::from(b"0"));
        loop {
            let mut ask = Cmd::new();
            ask.arg("SSCAN").arg(layout::open_key(prefix, bucket)).arg(cursor).arg("COUNT").arg(STEP_KEYS);
            let (next, members) = step(connections.call(ask, 0).await)?;
            keys.extend(members.iter().map(|member| layout::record_key(prefix, bucket, member)));
            if next == b"0" {
                return Ok::<_, StoreError>(keys);
            }
            cursor = next;
        }
    });
    // First all keys, then their records: a future that is not polled for a while must not block the others.
    let keys: Vec<Vec<Vec<u8>>> = sets.buffer_unordered(TOGETHER).try_collect().await?;
    offer_all(connections, keys.into_iter().flatten().collect(), newest).await
}

async fn scan_all(
    connections: &Connections,
    node: &Node,
    prefix: &str,
    newest: &mut Newest<'_>,
) -> Result<(), StoreError> {
    let pattern = format!("{prefix}{{??}}{}", "?".repeat(ID_BYTES));
    let mut cursor = Vec::from(b"0");
    loop {
        let mut ask = Cmd::new();
        ask.arg("SCAN").arg(cursor).arg("MATCH").arg(&pattern).arg("COUNT").arg(STEP_KEYS);
        let (next, keys) = step(connections.call_on(node, ask).await)?;
        offer_all(connections, keys, newest).await?;
        if next == b"0" {
            return Ok(());
        }
        cursor = next;
    }
}

/// The cursor of the next step of a scan, and the keys found.
fn step(answer: Result<Value, Failed>) -> Result<(Vec<u8>, Vec<Vec<u8>>), StoreError> {
    let answer = answer.map_err(Failed::explain)?;
    let shown = format!("{answer:?}");
    redis::from_redis_value(answer).map_err(|_| error::unexpected(&Value::SimpleString(shown)))
}

async fn offer_all(
    connections: &Connections,
    keys: Vec<Vec<u8>>,
    newest: &mut Newest<'_>,
) -> Result<(), StoreError> {
    let records = stream::iter(keys).map(|key| async move { beginning(connections, &key).await });
    let mut records = records.buffer_unordered(TOGETHER);
    while let Some(record) = records.try_next().await? {
        if let Some(record) = record {
            newest.offer(&record);
        }
    }
    Ok(())
}

async fn beginning(connections: &Connections, key: &[u8]) -> Result<Option<Record>, StoreError> {
    for bytes in [BEGINNING_BYTES, BEGINNING_BYTES_MAX] {
        let mut ask = Cmd::new();
        ask.arg("GETRANGE").arg(key).arg(0).arg(bytes - 1);
        let raw = bytes_of(connections.call(ask, 0).await)?;
        match layout::beginning(&raw) {
            _ if raw.is_empty() => return Ok(None),
            Some(record) => return record.map(Some),
            None => {}
        }
    }
    layout::record(&[]).map(Some)
}

async fn whole(
    connections: &Connections,
    prefix: &str,
    cursor: Cursor,
) -> Result<Option<Record>, StoreError> {
    let mut ask = Cmd::new();
    ask.arg("GET").arg(layout::Keys::of(prefix, &cursor.1).record);
    let raw = bytes_of(connections.call(ask, 0).await)?;
    if raw.is_empty() { Ok(None) } else { layout::record(&raw).map(Some) }
}

fn bytes_of(answer: Result<Value, Failed>) -> Result<Vec<u8>, StoreError> {
    match answer.map_err(Failed::explain)? {
        Value::BulkString(bytes) => Ok(bytes),
        Value::Nil => Ok(Vec::new()),
        other => Err(error::unexpected(&other)),
    }
}
