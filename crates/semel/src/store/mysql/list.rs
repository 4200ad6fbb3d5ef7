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
/// Bytes of outcomes asked for in one statement.
const FETCH_OUTCOME_BYTES: u64 = 4 << 20;
/// Rows looked at in one statement, at first and at most: a walk past millions that do not match is many
/// short reads, not a long one that keeps the server from cleaning up.
const WINDOW_ROWS_MIN: u64 = 1_000;
const WINDOW_ROWS_MAX: u64 = 20_000;

/// Where a record stands in the list.
type Place = (u64, IntentId);

/// Reads where a page ended.
fn parse(cursor: &str) -> Result<Place, StoreError> {
    let place =
        cursor.split_once('-').and_then(|(created, id)| Some((created.parse().ok()?, id.parse().ok()?)));
    place.filter(|(created, _)| *created <= crate::store::encoding::MS_MAX).ok_or_else(|| {
        let message = format!("{cursor:?} is not where a page of this store ended");
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
        after: Option<Place>,
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
        let mut places: Vec<(Place, u64)> = Vec::new();
        let (mut above, mut window) = (after, WINDOW_ROWS_MIN);
        loop {
            let floor = if wanted.only_open { None } else { self.floor(session, above, window).await? };
            let room = limit + 1 - places.len();
            places.extend(self.places(session, &wanted, above, floor, room).await?);
            if places.len() > limit || floor.is_none() {
                break;
            }
            above = floor;
            window = (window * 2).min(WINDOW_ROWS_MAX);
        }
        let mut more = places.len() > limit;
        places.truncate(limit);
        let mut bytes = 0;
        let fits = places.iter().take_while(|(_, len)| {
            let fits = bytes <= PAGE_OUTCOME_BYTES;
            bytes += len;
            fits
        });
        let fits = fits.count();
        more |= fits < places.len();
        places.truncate(fits);
        page.next = places.last().filter(|_| more).map(|((created, id), _)| format!("{created}-{id}"));
        page.records = self.fetch(session, &places).await?;
        Ok(page)
    }

    /// The places of records that match, between two places.
    async fn places(
        &self,
        session: &mut Session,
        wanted: &Wanted,
        above: Option<Place>,
        floor: Option<Place>,
        room: usize,
    ) -> Result<Vec<(Place, u64)>, Failed> {
        let place = match (above, floor) {
            (None, None) => "TRUE".to_owned(),
            (above, floor) => {
                let parts = [above.map(below), floor.map(not_below)];
                parts.into_iter().flatten().collect::<Vec<_>>().join(" AND ")
            }
        };
        let brought = session
            .run(LIST.fill(&[
                ("index", if wanted.only_open { "semel_intent_expiry" } else { "semel_intent_created" }),
                ("place", &place),
                ("now", &wanted.now),
                ("states", &wanted.states),
                ("older_than_ms", &wanted.older_than_ms),
                ("filters", &wanted.filters),
                ("limit", &room.to_string()),
            ]))
            .await?;
        let rows = brought.iter().flat_map(|brought| &brought.rows);
        let places = rows.map(|row| Ok(((row::unsigned(row, 0)?, row::id(row, 1)?), row::unsigned(row, 2)?)));
        Ok(places.collect::<Result<_, MysqlError>>()?)
    }

    /// Where the window below `above` ends; `None` when that is the end of the list.
    async fn floor(
        &self,
        session: &mut Session,
        above: Option<Place>,
        rows: u64,
    ) -> Result<Option<Place>, Failed> {
        let place = above.map_or_else(|| "TRUE".to_owned(), below);
        let sql = format!(
            "SELECT created_at, id FROM semel_intent FORCE INDEX (semel_intent_created) WHERE {place} \
             ORDER BY created_at DESC, id DESC LIMIT 1 OFFSET {rows}"
        );
        let brought = session.run(sql).await?;
        let row = brought.first().and_then(|brought| brought.rows.first());
        Ok(row
            .map(|row| Ok((row::unsigned(row, 0)?, row::id(row, 1)?)))
            .transpose()
            .map_err(|e: MysqlError| e)?)
    }

    /// The records at those places, in their order; those that vanished meanwhile are left out.
    async fn fetch(&self, session: &mut Session, places: &[(Place, u64)]) -> Result<Vec<Record>, Failed> {
        let mut found: HashMap<IntentId, Record> = HashMap::with_capacity(places.len());
        let mut rest = places;
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
        Ok(places.iter().filter_map(|((_, id), _)| found.remove(id)).collect())
    }
}

fn below((created, id): Place) -> String {
    let id = literal::bytes(id.as_bytes());
    format!("created_at <= {created} AND (created_at < {created} OR id < {id})")
}

fn not_below((created, id): Place) -> String {
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
            // Byte by byte: comparing text would ignore spaces at the end. The tenant is the scope up to its
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
