//! Operator commands: list, retry and skip parked events; rebase after the lineage has changed.

use std::time::{Duration, SystemTime};

use tokio_postgres::types::{ToSql, Type};
use uuid::Uuid;

use super::leased_session::{any_bytes, get, system};
use super::read::{bound, columns, readable};
use super::{PostgresOutbox, unreadable};
use crate::relay::outbox_reader::{OutboxLineage, OutboxReaderError, Parked, Rebase};
use crate::relay::poll::to_skip;
use crate::store::StoreError;
use crate::store::postgres::connect::Session;
use crate::store::postgres::error::PostgresError;
use crate::store::postgres::statement::Sql;

/// Timeout of a query an operator makes.
const QUERY_TIMEOUT: Duration = Duration::from_secs(30);

static LIST: Sql = Sql { text: include_str!("../sql/postgres_parked.sql"), types: &[Type::TEXT, Type::INT8] };

static RETRY: Sql = Sql {
    text: "UPDATE semel_outbox_parked_key SET due_at = clock_timestamp()
           WHERE $1::text IS NULL OR key = $1::text RETURNING 1",
    types: &[Type::TEXT],
};

/// Makes the key due: the relay that owns its partition (column `lane`) continues with it or unparks it. Only the owner
/// may unpark a key: only it knows what else of that key is in flight.
static SKIP: Sql = Sql {
    text: "WITH gone AS (DELETE FROM semel_outbox_parked WHERE n = ANY ($1::bigint[]) RETURNING parked_key)
           UPDATE semel_outbox_parked_key k SET due_at = clock_timestamp(), tries = 0
           FROM gone WHERE k.key = gone.parked_key RETURNING 1",
    types: &[Type::INT8_ARRAY],
};

static OF_ID: Sql = Sql {
    text: "SELECT n, topic FROM semel_outbox_parked WHERE id = $1::text::uuid ORDER BY n LIMIT 1000",
    types: &[Type::TEXT],
};

impl PostgresOutbox {
    async fn session(&self) -> Result<Session, StoreError> {
        let (session, _) = self.outbox.connections.session().await.map_err(|error| error.not_applied())?;
        any_bytes(&session).await?;
        Ok(session)
    }

    pub(super) async fn ask(
        &self,
        sql: &Sql,
        values: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<tokio_postgres::Row>, StoreError> {
        let session = self.session().await?;
        let rows = session.query(sql, values).await.map_err(|error| error.explain());
        session.close().await;
        rows
    }

    /// Like [`ask`](Self::ask), for a statement built for one call.
    pub(super) async fn ask_text(
        &self,
        text: &str,
        types: &[Type],
        values: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<tokio_postgres::Row>, StoreError> {
        let session = self.session().await?;
        let typed: Vec<(&(dyn ToSql + Sync), Type)> =
            values.iter().copied().zip(types.iter().cloned()).collect();
        let asked = tokio::time::timeout(QUERY_TIMEOUT, session.client.query_typed(text, &typed)).await;
        let late = |_| {
            PostgresError::TimedOut(format!(
                "PostgreSQL did not answer within {QUERY_TIMEOUT:?}; check its load"
            ))
        };
        let rows = asked.map_err(late).and_then(|rows| Ok(rows?));
        session.close().await;
        rows.map_err(|error| error.not_applied())
    }

    /// Parked and held events, of one key or of all, in the order in which they would be published.
    pub async fn parked(
        &self,
        key: Option<&str>,
        events_max: usize,
    ) -> Result<Vec<Parked>, OutboxReaderError> {
        let rows = self.ask(&LIST, &[&key, &bound(events_max)]).await?;
        let parked = rows.iter().map(|row| {
            let ms: i64 = get(row, 15)?;
            Ok(Parked {
                key: get(row, 13)?,
                event: columns(row)?.event(),
                error: get(row, 14)?,
                since: SystemTime::UNIX_EPOCH + Duration::from_millis(ms.max(0).unsigned_abs()),
            })
        });
        Ok(parked.collect::<Result<_, StoreError>>()?)
    }

    /// Retries a parked key now, or all of them with `None`. Returns the number of keys.
    pub async fn retry(&self, key: Option<&str>) -> Result<u64, OutboxReaderError> {
        Ok(self.ask(&RETRY, &[&key]).await?.len() as u64)
    }

    /// Skips a parked event for good, so that the events behind it in its key continue. `false`: it is not parked.
    ///
    /// # Errors
    /// Also if events with this id are parked on several topics: see [`skip_on`](Self::skip_on).
    pub async fn skip(&self, id: Uuid) -> Result<bool, OutboxReaderError> {
        self.give_up(id, None).await
    }

    /// Like [`skip`](Self::skip), for the event with this id on this topic.
    pub async fn skip_on(&self, id: Uuid, topic: &str) -> Result<bool, OutboxReaderError> {
        self.give_up(id, Some(topic)).await
    }

    async fn give_up(&self, id: Uuid, topic: Option<&str>) -> Result<bool, OutboxReaderError> {
        let rows = self.ask(&OF_ID, &[&id.to_string()]).await?;
        let parked = rows.iter().map(|row| Ok((get(row, 0)?, readable(row, 1)?)));
        let ns = to_skip(id, parked.collect::<Result<_, StoreError>>()?, topic)?;
        Ok(!ns.is_empty() && !self.ask(&SKIP, &[&ns]).await?.is_empty())
    }

    /// Accepts these tables as the right ones from now on: after a restore from a dump, an upgrade, or a move to
    /// another cluster. Running relays are fenced.
    pub async fn rebase(url: &str, rebase: Rebase) -> Result<(), OutboxReaderError> {
        let options = Self::options(url)?;
        let connections = crate::store::postgres::connect::Connections::new(options.postgres)
            .map_err(|error| error.not_applied())?;
        let statements = super::statement::Statements::new(None);
        let (session, _) = connections.session().await.map_err(|error| error.not_applied())?;
        static STORE: Sql = Sql { text: "SELECT lineage::text FROM semel_outbox_meta", types: &[] };
        let rows = session.query(&STORE, &[]).await.map_err(|error| error.not_applied())?;
        let row = rows.first().ok_or_else(|| unreadable("semel_outbox_meta is empty"))?;
        let lineage = OutboxLineage::new(get(row, 0)?, system(&session).await).to_string();
        let values: [&(dyn ToSql + Sync); 2] = [&lineage, &(rebase == Rebase::FromNow)];
        session.query(&statements.rebase, &values).await.map_err(|error| error.explain())?;
        session.close().await;
        Ok(())
    }
}
