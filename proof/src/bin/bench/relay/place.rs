//! An outbox of the benchmark's own, with a publication and slots so that its WAL can be read several times.

use std::time::{Duration, Instant};

use semel::relay::cdc::CdcOutbox;
use semel::relay::poll::postgres::PostgresOutbox;
use semel::relay::{OutboxReader, Rebase};
use semel::tx::driver::Dialect;
use tokio_postgres::{Client, NoTls};

use crate::Failed;

const SCHEMA: &str = "semel_bench_relay";
/// What slots and the publication begin with.
pub(super) const NAME: &str = "semel_bench";
/// Where all events go.
pub(super) const TOPIC: &str = "semel-bench";
pub(super) const PAYLOAD_BYTES: usize = 256;
/// Events of one transaction of the backlog.
const OF_ONE_COMMIT: u64 = 10;
/// Order is kept within each of so many keys.
pub(super) const KEYS: u64 = 10_000;

/// Who reads the WAL of the backlog, each once, from a slot of its own.
pub(super) const READERS: [&str; 2] = ["floor", "debezium"];

/// Who reads it to relay it.
const LOG: &str = "log";
const PATIENCE: Duration = Duration::from_secs(30);

const FILL: &str = "
    CREATE PROCEDURE fill(transactions bigint, events bigint, payload bytea) LANGUAGE plpgsql AS $$
    BEGIN
        FOR t IN 1..transactions LOOP
            INSERT INTO semel_outbox (topic, type, key, payload)
            SELECT '{topic}', 'payment.completed', 'account-' || ((t * events + n) % {keys}), payload
            FROM generate_series(1, events) n;
            COMMIT;
        END LOOP;
    END $$";
const SLOTS: &str = "SELECT slot_name::text FROM pg_replication_slots WHERE starts_with(slot_name, $1)";

pub(super) struct Place {
    server: String,
    client: Client,
}

impl Place {
    pub(super) async fn make(server: &str) -> Result<Self, Failed> {
        let (client, connection) = tokio_postgres::connect(server, NoTls).await?;
        tokio::spawn(connection);
        let place = Self { server: server.to_owned(), client };
        place.build().await?;
        Ok(place)
    }

    /// An empty outbox. What there was goes away, also what a run that was killed left behind.
    async fn build(&self) -> Result<(), Failed> {
        self.remove().await?;
        let schema = semel::outbox::schema(Dialect::Postgres);
        let fill = FILL.replace("{topic}", TOPIC).replace("{keys}", &KEYS.to_string());
        self.run(&format!("CREATE SCHEMA {SCHEMA}; SET search_path = {SCHEMA}; {schema}; {fill}")).await?;
        self.run(&format!(
            "CREATE PUBLICATION {NAME} FOR TABLE semel_outbox WITH (publish = 'insert', \
             publish_via_partition_root = true)"
        ))
        .await
    }

    /// The outbox as a relay finds it that reads the log.
    pub(super) async fn log(&self) -> Result<CdcOutbox, Failed> {
        let name = Self::slot(LOG);
        Ok(CdcOutbox::options(&self.url())?.slot(&name)?.publication(&name)?.open().await?)
    }

    /// A relay that reads the log has been there before the backlog: else it would begin with the table.
    async fn begin_log(&self) -> Result<(), Failed> {
        let mut source = self.log().await?.source();
        let begun = format!(
            "SELECT count(*) FROM pg_replication_slots WHERE slot_name = '{}' AND active",
            Self::slot(LOG)
        );
        let until = Instant::now() + PATIENCE;
        while self.value::<i64>(&begun).await? == 0 {
            source.next().await?;
            if Instant::now() > until {
                return Err("no relay begins to read the log".into());
            }
        }
        Ok(source.release().await?)
    }

    /// The same backlog again, in a new outbox.
    pub(super) async fn refill(&self, events: u64) -> Result<(), Failed> {
        self.build().await?;
        self.fill(events).await
    }

    pub(super) fn server(&self) -> &str {
        &self.server
    }

    pub(super) fn url(&self) -> String {
        let and = if self.server.contains('?') { '&' } else { '?' };
        format!("{}{and}schema={SCHEMA}", self.server)
    }

    /// The table, with its whole name.
    pub(super) fn table(&self) -> String {
        format!("{SCHEMA}.semel_outbox")
    }

    pub(super) fn schema(&self) -> &'static str {
        SCHEMA
    }

    /// The slot of a relay that reads the log.
    pub(super) fn log_slot(&self) -> String {
        Self::slot(LOG)
    }

    /// The slot of a reader.
    pub(super) fn slot(reader: &str) -> String {
        format!("{NAME}_{reader}")
    }

    pub(super) async fn run(&self, sql: &str) -> Result<(), Failed> {
        Ok(self.client.batch_execute(sql).await?)
    }

    /// The one value of a query.
    pub(super) async fn value<T>(&self, sql: &str) -> Result<T, Failed>
    where
        T: for<'a> tokio_postgres::types::FromSql<'a>,
    {
        Ok(self.client.query_one(sql, &[]).await?.try_get(0)?)
    }

    /// A backlog, in small transactions. The slots are there before it, so that all of it is in their WAL.
    pub(super) async fn fill(&self, events: u64) -> Result<(), Failed> {
        self.begin_log().await?;
        for reader in READERS {
            let slot = Self::slot(reader);
            self.run(&format!("SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput')")).await?;
        }
        let transactions = events / OF_ONE_COMMIT;
        self.run("SET synchronous_commit = off").await?;
        let call = format!(
            "CALL fill({transactions}, {OF_ONE_COMMIT}, convert_to(repeat('x', {PAYLOAD_BYTES}), 'UTF8'))"
        );
        self.run(&call).await?;
        // Hint bits and dirty pages of the filling are not what is to be measured.
        self.run("SET synchronous_commit = on").await?;
        self.run("VACUUM ANALYZE semel_outbox").await?;
        self.run("CHECKPOINT").await
    }

    /// The end of the WAL so far. Something small comes after it, so that a reader gets there.
    pub(super) async fn end_of_wal(&self) -> Result<String, Failed> {
        let end = self.value("SELECT pg_current_wal_insert_lsn()::text").await?;
        self.run("SELECT pg_logical_emit_message(true, 'semel-bench', 'the end')").await?;
        Ok(end)
    }

    /// Everything is to be published again.
    pub(super) async fn rewind(&self) -> Result<(), Failed> {
        Ok(PostgresOutbox::rebase(&self.url(), Rebase::Everything).await?)
    }

    /// Rows that wait for a vacuum: in the tables of events, and in the cursor's.
    pub(super) async fn dead_rows(&self) -> Result<(i64, i64), Failed> {
        self.run("CREATE EXTENSION IF NOT EXISTS pgstattuple SCHEMA public").await?;
        let events = "SELECT sum((public.pgstattuple(relid)).dead_tuple_count)::bigint
                      FROM pg_partition_tree('semel_outbox') WHERE isleaf";
        let cursor = "SELECT (public.pgstattuple('semel_outbox_cursor')).dead_tuple_count";
        Ok((self.value(events).await?, self.value(cursor).await?))
    }

    pub(super) async fn remove(&self) -> Result<(), Failed> {
        let until = Instant::now() + PATIENCE;
        for row in self.client.query(SLOTS, &[&NAME]).await? {
            let slot: String = row.try_get(0)?;
            let drop =
                "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = $1";
            // Its last reader may still be about to go.
            while let Err(error) = self.client.execute(drop, &[&slot]).await {
                if Instant::now() > until {
                    return Err(error.into());
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
        let log = Self::slot(LOG);
        self.run(&format!("DROP PUBLICATION IF EXISTS {NAME}, {log}; DROP SCHEMA IF EXISTS {SCHEMA} CASCADE"))
            .await
    }
}
