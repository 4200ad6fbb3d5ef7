//! Records for people.
//!
//! There is no index over all records: one would take as much memory again. What is open (in progress, uncertain) is
//! in a set per bucket, and found at once. Everything else is found by walking through all keys of the server, for
//! each page anew: seconds for a million records, and meant for people, not for programs.

use std::collections::BTreeSet;

use futures_util::{StreamExt, TryStreamExt, stream};
use redis::{Cmd, Value};

use super::connection::{Link, Node};
use super::error::{self, Failed};
use super::layout::{self, BUCKETS, ID_BYTES};
use crate::intent::identity::IntentId;
use crate::intent::policy::StoreTime;
use crate::store::memory::{matches, parse_cursor};
use crate::store::{Filter, Page, Record, StoreError};

/// Keys asked for in one step of a walk.
const STEP_KEYS: usize = 1_000;
/// Records read at the same time.
const TOGETHER: usize = 128;
/// Whole records, with their outcomes, read at the same time.
const WHOLE_TOGETHER: usize = 16;
/// Bytes of outcomes after which a page ends, however few records it has.
const PAGE_OUTCOME_BYTES: usize = 16 << 20;
/// Enough of a record for nearly all identities, and for every one.
const BEGINNING_BYTES: usize = 384;
const BEGINNING_BYTES_MAX: usize = 8 * 1024;

type Place = (StoreTime, IntentId);

/// The newest of what was found, as many as a page has and one more: that one tells that there is another page.
struct Newest<'a> {
    filter: &'a Filter,
    now: StoreTime,
    after: Option<Place>,
    room: usize,
    places: BTreeSet<Place>,
}

impl Newest<'_> {
    fn offer(&mut self, record: &Record) {
        let place = (record.created_at, record.intent.id());
        if self.after.is_some_and(|after| place >= after) || !matches(self.filter, record, self.now) {
            return;
        }
        // A walk may show a key twice; a set does not mind.
        self.places.insert(place);
        if self.places.len() > self.room {
            self.places.pop_first();
        }
    }
}

pub(super) async fn page(
    link: &Link,
    prefix: &str,
    filter: &Filter,
    now: StoreTime,
) -> Result<Page, StoreError> {
    let after = filter.after.as_deref().map(parse_cursor).transpose()?;
    let limit = filter.page_records();
    let mut newest = Newest { filter, now, after, room: limit + 1, places: BTreeSet::new() };
    let only_open = !filter.states.is_empty() && filter.states.iter().all(|state| !state.is_finished());
    if only_open {
        walk_open(link, prefix, &mut newest).await?;
    } else {
        for node in link.nodes().await? {
            walk_all(link, &node, prefix, &mut newest).await?;
        }
    }
    let mut places: Vec<Place> = newest.places.into_iter().rev().collect();
    let more = places.len() > limit;
    places.truncate(limit);
    let mut page = Page { records: Vec::with_capacity(places.len()), next: None, now };
    let cursor = |(created, id): &Place| format!("{}-{id}", created.0);
    let mut outcome_bytes = 0;
    let wanted = stream::iter(places.clone())
        .map(|place| async move { Ok((place, whole(link, prefix, place).await?)) });
    let mut wanted = wanted.buffered(WHOLE_TOGETHER);
    while let Some((place, record)) = wanted.try_next().await? {
        if outcome_bytes > PAGE_OUTCOME_BYTES {
            page.next = page.records.last().map(|last: &Record| cursor(&(last.created_at, last.intent.id())));
            return Ok(page);
        }
        // It may have gone or changed since; then it was not there all along.
        if let Some(record) = record.filter(|it| it.created_at == place.0 && matches(filter, it, now)) {
            outcome_bytes += record.outcome.as_ref().map_or(0, |outcome| outcome.encoded_len());
            page.records.push(record);
        }
    }
    page.next = places.last().filter(|_| more).map(cursor);
    Ok(page)
}

async fn walk_open(link: &Link, prefix: &str, newest: &mut Newest<'_>) -> Result<(), StoreError> {
    let sets = stream::iter(0..BUCKETS).map(|bucket| async move {
        let (mut keys, mut cursor) = (Vec::new(), Vec::from(b"0"));
        loop {
            let mut ask = Cmd::new();
            ask.arg("SSCAN").arg(layout::open_key(prefix, bucket)).arg(cursor).arg("COUNT").arg(STEP_KEYS);
            let (next, members) = step(link.call(ask, 0).await)?;
            keys.extend(members.iter().map(|member| layout::record_key(prefix, bucket, member)));
            if next == b"0" {
                return Ok::<_, StoreError>(keys);
            }
            cursor = next;
        }
    });
    // First all keys, then their records: a future that is not looked at for a while must not hold anything up.
    let keys: Vec<Vec<Vec<u8>>> = sets.buffer_unordered(TOGETHER).try_collect().await?;
    offer_all(link, keys.into_iter().flatten().collect(), newest).await
}

async fn walk_all(link: &Link, node: &Node, prefix: &str, newest: &mut Newest<'_>) -> Result<(), StoreError> {
    let pattern = format!("{prefix}{{??}}{}", "?".repeat(ID_BYTES));
    let mut cursor = Vec::from(b"0");
    loop {
        let mut ask = Cmd::new();
        ask.arg("SCAN").arg(cursor).arg("MATCH").arg(&pattern).arg("COUNT").arg(STEP_KEYS);
        let (next, keys) = step(link.call_on(node, ask).await)?;
        offer_all(link, keys, newest).await?;
        if next == b"0" {
            return Ok(());
        }
        cursor = next;
    }
}

/// Where a walk goes on, and what it met.
fn step(answer: Result<Value, Failed>) -> Result<(Vec<u8>, Vec<Vec<u8>>), StoreError> {
    let answer = answer.map_err(Failed::explain)?;
    let shown = format!("{answer:?}");
    redis::from_redis_value(answer).map_err(|_| error::unexpected(&Value::SimpleString(shown)))
}

async fn offer_all(link: &Link, keys: Vec<Vec<u8>>, newest: &mut Newest<'_>) -> Result<(), StoreError> {
    let records = stream::iter(keys).map(|key| async move { beginning(link, &key).await });
    let mut records = records.buffer_unordered(TOGETHER);
    while let Some(record) = records.try_next().await? {
        if let Some(record) = record {
            newest.offer(&record);
        }
    }
    Ok(())
}

async fn beginning(link: &Link, key: &[u8]) -> Result<Option<Record>, StoreError> {
    for bytes in [BEGINNING_BYTES, BEGINNING_BYTES_MAX] {
        let mut ask = Cmd::new();
        ask.arg("GETRANGE").arg(key).arg(0).arg(bytes - 1);
        let raw = bytes_of(link.call(ask, 0).await)?;
        match layout::beginning(&raw) {
            _ if raw.is_empty() => return Ok(None),
            Some(record) => return record.map(Some),
            None => {}
        }
    }
    layout::record(&[]).map(Some)
}

async fn whole(link: &Link, prefix: &str, place: Place) -> Result<Option<Record>, StoreError> {
    let mut ask = Cmd::new();
    ask.arg("GET").arg(layout::Keys::of(prefix, &place.1).record);
    let raw = bytes_of(link.call(ask, 0).await)?;
    if raw.is_empty() { Ok(None) } else { layout::record(&raw).map(Some) }
}

fn bytes_of(answer: Result<Value, Failed>) -> Result<Vec<u8>, StoreError> {
    match answer.map_err(Failed::explain)? {
        Value::BulkString(bytes) => Ok(bytes),
        Value::Nil => Ok(Vec::new()),
        other => Err(error::unexpected(&other)),
    }
}
