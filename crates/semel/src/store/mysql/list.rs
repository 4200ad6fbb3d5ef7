//! Pages of records, newest first: by the time of the first claim, and by id within a millisecond.

use std::collections::HashMap;

use super::error::MysqlError;
use super::literal::{self, Template, template};
use super::read::Readers;
use super::row;
use super::server::Server;
use super::session::{Failed, Session};
use crate::intent::identity::IntentId;
use crate::intent::policy::StoreTime;
use crate::intent::state::State;
use crate::store::encoding::{number, state_code};
use crate::store::{ErrorKind, Fate, Filter, Page, Record, StoreError};

static LIST: Template = template!("sql/list.sql");

/// Bytes of outcomes after which a page ends, however few records it has.
const PAGE_OUTCOME_BYTES: u64 = 16 << 20;
/// Bytes of outcomes read in one statement.
const FETCH_OUTCOME_BYTES: u64 = 4 << 20;
/// Rows scanned in one statement, at first and at most: a scan over millions that do not match is many short reads,
/// not a long one that keeps the server from purging old row versions.
const WINDOW_ROWS_MIN: u64 = 1_000;
const WINDOW_ROWS_MAX: u64 = 20_000;

/// The sort key of the list: creation time, then id.
type Cursor = (u64, IntentId);

fn parse(cursor: &str) -> Result<Cursor, StoreError> {
    let parsed =
        cursor.split_once('-').and_then(|(created, id)| Some((created.parse().ok()?, id.parse().ok()?)));
    parsed.filter(|(created, _)| *created <= crate::store::encoding::MS_MAX).ok_or_else(|| {
        let message =
            format!("{cursor:?} is not a cursor of this store; use the one the previous page ended with");
        StoreError::new(ErrorKind::Misconfigured, Fate::NotApplied, message)
    })
}

impl Readers {
    pub(super) async fn list(&self, filter: &Filter) -> Result<Page, StoreError> {
        let after = filter.after.as_deref().map(parse).transpose()?;
        let server = &self.server;
        self.read(|mut session| async move {
            let page = server.page(&mut session, filter, after).await;
            (session, page)
        })
        .await
    }
}

impl Server {
    async fn page(
        &self,
        session: &mut Session,
        filter: &Filter,
        after: Option<Cursor>,
    ) -> Result<Page, Failed> {
        let now = self.now(session).await?;
        let mut page = Page { records: Vec::new(), next: None, now };
        let operations = match &filter.operation {
            None => None,
            Some(name) => match self.find_operation(session, name).await? {
                none if none.is_empty() => return Ok(page),
                numbers => Some(numbers),
            },
        };
        let wanted = Wanted::new(filter, operations, now);
        let limit = filter.page_records();
        let mut cursors: Vec<(Cursor, u64)> = Vec::new();
        let (mut above, mut window) = (after, WINDOW_ROWS_MIN);
        loop {
            let floor = if wanted.only_open { None } else { self.floor(session, above, window).await? };
            let room = limit + 1 - cursors.len();
            cursors.extend(self.cursors(session, &wanted, above, floor, room).await?);
            if cursors.len() > limit || floor.is_none() {
                break;
            }
            above = floor;
            window = (window * 2).min(WINDOW_ROWS_MAX);
        }
        let mut more = cursors.len() > limit;
        cursors.truncate(limit);
        let mut bytes = 0;
        let fits = cursors.iter().take_while(|(_, len)| {
            let fits = bytes <= PAGE_OUTCOME_BYTES;
            bytes += len;
            fits
        });
        let fits = fits.count();
        more |= fits < cursors.len();
        cursors.truncate(fits);
        page.next = cursors.last().filter(|_| more).map(|((created, id), _)| format!("{created}-{id}"));
        page.records = self.fetch(session, &cursors).await?;
        Ok(page)
    }

    /// The cursors of records that match, between two cursors, each with the size of its outcome.
    async fn cursors(
        &self,
        session: &mut Session,
        wanted: &Wanted,
        above: Option<Cursor>,
        floor: Option<Cursor>,
        room: usize,
    ) -> Result<Vec<(Cursor, u64)>, Failed> {
        let range = match (above, floor) {
            (None, None) => "TRUE".to_owned(),
            (above, floor) => {
                let parts = [above.map(below), floor.map(not_below)];
                parts.into_iter().flatten().collect::<Vec<_>>().join(" AND ")
            }
        };
        let brought = session
            .run(LIST.fill(&[
                ("index", if wanted.only_open { "semel_intent_expiry" } else { "semel_intent_created" }),
                ("range", &range),
                ("now", &wanted.now),
                ("states", &wanted.states),
                ("older_than_ms", &wanted.older_than_ms),
                ("filters", &wanted.filters),
                ("limit", &room.to_string()),
            ]))
            .await?;
        let rows = brought.iter().flat_map(|brought| &brought.rows);
        let cursors =
            rows.map(|row| Ok(((row::unsigned(row, 0)?, row::id(row, 1)?), row::unsigned(row, 2)?)));
        Ok(cursors.collect::<Result<_, MysqlError>>()?)
    }

    /// Where the window below `above` ends; `None` at the end of the list.
    async fn floor(
        &self,
        session: &mut Session,
        above: Option<Cursor>,
        rows: u64,
    ) -> Result<Option<Cursor>, Failed> {
        let range = above.map_or_else(|| "TRUE".to_owned(), below);
        let sql = format!(
            "SELECT created_at, id FROM semel_intent FORCE INDEX (semel_intent_created) WHERE {range} \
             ORDER BY created_at DESC, id DESC LIMIT 1 OFFSET {rows}"
        );
        let brought = session.run(sql).await?;
        let row = brought.first().and_then(|brought| brought.rows.first());
        Ok(row
            .map(|row| Ok((row::unsigned(row, 0)?, row::id(row, 1)?)))
            .transpose()
            .map_err(|e: MysqlError| e)?)
    }

    /// The records at those cursors, in their order; records deleted meanwhile are left out.
    async fn fetch(&self, session: &mut Session, cursors: &[(Cursor, u64)]) -> Result<Vec<Record>, Failed> {
        let mut found: HashMap<IntentId, Record> = HashMap::with_capacity(cursors.len());
        let mut rest = cursors;
        while !rest.is_empty() {
            let mut bytes = 0;
            let count = rest.iter().take_while(|(_, len)| {
                let fits = bytes <= FETCH_OUTCOME_BYTES;
                bytes += len;
                fits
            });
            let (now, later) = rest.split_at(count.count());
            rest = later;
            let wanted: Vec<IntentId> = now.iter().map(|((_, id), _)| *id).collect();
            let records = self.records(session, &wanted).await?;
            found.extend(records.into_iter().map(|(record, _)| (record.intent.id(), record)));
        }
        Ok(cursors.iter().filter_map(|((_, id), _)| found.remove(id)).collect())
    }
}

fn below((created, id): Cursor) -> String {
    let id = literal::bytes(id.as_bytes());
    format!("created_at <= {created} AND (created_at < {created} OR id < {id})")
}

fn not_below((created, id): Cursor) -> String {
    let id = literal::bytes(id.as_bytes());
    format!("created_at >= {created} AND (created_at > {created} OR id >= {id})")
}

/// A filter in the server's terms.
struct Wanted {
    only_open: bool,
    states: String,
    older_than_ms: String,
    now: String,
    filters: String,
}

impl Wanted {
    fn new(filter: &Filter, operations: Option<Vec<i64>>, now: StoreTime) -> Self {
        let all = if filter.states.is_empty() { &State::ALL[..] } else { &filter.states };
        let only_open = all.iter().all(|state| !state.is_finished());
        let states: Vec<String> = all.iter().map(|state| state_code(*state).to_string()).collect();
        let mut filters = String::new();
        if only_open {
            filters.push_str("AND state IN (0, 1) ");
        }
        if let Some(numbers) = operations {
            let numbers: Vec<String> = numbers.iter().map(i64::to_string).collect();
            filters.push_str(&format!("AND operation IN ({}) ", numbers.join(", ")));
        }
        if let Some(tenant) = &filter.tenant {
            // Compared as bytes: a comparison of text would ignore trailing spaces. The tenant is the scope up to its
            // first '/'.
            let tenant = literal::bytes(tenant.as_bytes());
            filters.push_str(&format!("AND CAST(SUBSTRING_INDEX(scope, '/', 1) AS BINARY) = {tenant} "));
        }
        // At least 0 is everything; differences may be negative where a clock was set back.
        let older_than_ms = match filter.older_than_ms {
            None | Some(0) => i64::MIN / 2,
            Some(ms) => number(ms),
        };
        Self {
            only_open,
            states: states.join(", "),
            older_than_ms: older_than_ms.to_string(),
            now: number(now.0).to_string(),
            filters,
        }
    }
}
