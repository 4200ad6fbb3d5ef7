//! Pages of records, newest first: by the time of the first claim, and by id within a millisecond.

use std::collections::HashMap;

use sqlx::mysql::MySqlRow;

use super::error::MysqlError;
use super::literal::{self, Template, template};
use super::read::Readers;
use super::row;
use super::server::Server;
use super::session::{Failed, Session};
use crate::intent::identity::IntentId;
use crate::intent::policy::StoreTime;
use crate::store::cursor::{self, Cursor};
use crate::store::encoding::{MS_MAX, number, state_code};
use crate::store::pager::Pager;
use crate::store::{Filter, Page, Record, StoreError};

static LIST: Template = template!("sql/list.sql");

/// Bytes of outcomes read in one statement.
const FETCH_OUTCOME_BYTES: u64 = 4 << 20;
/// Rows scanned in one statement at most. A long one keeps the server from purging old row versions.
const WINDOW_ROWS_MAX: i64 = 20_000;

fn parse(after: &str) -> Result<Cursor, StoreError> {
    let parsed = cursor::parse(after)?;
    if parsed.0.0 <= MS_MAX { Ok(parsed) } else { Err(cursor::unknown(after)) }
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
        let mut pager = Pager::new(filter, after, WINDOW_ROWS_MAX);
        loop {
            let (below, window) = (pager.below(), pager.window());
            // Open records are few, and read in one window.
            let floor = if filter.only_open() { None } else { self.floor(session, below, window).await? };
            for (at, bytes) in self.cursors(session, &wanted, below, floor, pager.room()).await? {
                if pager.ends_here() {
                    break;
                }
                pager.push(at, bytes, (at, bytes));
            }
            if !pager.next_window(floor) {
                break;
            }
        }
        let (cursors, next) = pager.finish();
        page.next = next.map(cursor::text);
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
        room: i64,
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
        let cursors = rows.map(|row| Ok((at(row)?, row::unsigned(row, 2)?)));
        Ok(cursors.collect::<Result<_, MysqlError>>()?)
    }

    /// Where the window below `above` ends; `None` at the end of the list.
    async fn floor(
        &self,
        session: &mut Session,
        above: Option<Cursor>,
        rows: i64,
    ) -> Result<Option<Cursor>, Failed> {
        let range = above.map_or_else(|| "TRUE".to_owned(), below);
        let sql = format!(
            "SELECT created_at, id FROM semel_intent FORCE INDEX (semel_intent_created) WHERE {range} \
             ORDER BY created_at DESC, id DESC LIMIT 1 OFFSET {rows}"
        );
        let brought = session.run(sql).await?;
        let row = brought.first().and_then(|brought| brought.rows.first());
        Ok(row.map(at).transpose()?)
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

/// The cursor in the first two columns.
fn at(row: &MySqlRow) -> Result<Cursor, MysqlError> {
    Ok((StoreTime(row::unsigned(row, 0)?), row::id(row, 1)?))
}

fn below((StoreTime(created), id): Cursor) -> String {
    let id = literal::bytes(id.as_bytes());
    format!("created_at <= {created} AND (created_at < {created} OR id < {id})")
}

fn not_below((StoreTime(created), id): Cursor) -> String {
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
        let only_open = filter.only_open();
        let states: Vec<String> =
            filter.wanted_states().iter().map(|state| state_code(*state).to_string()).collect();
        let mut filters = String::new();
        if only_open {
            filters.push_str("AND state IN (0, 1) ");
        }
        if let Some(ms) = filter.expiring_within_ms {
            filters.push_str(&format!("AND expires_at <= {} ", number(now.plus_ms(ms).0)));
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
