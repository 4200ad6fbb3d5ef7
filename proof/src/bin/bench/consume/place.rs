//! A schema of the benchmark's own: the inbox, and a table for effects.

use semel::inbox;
use semel::tx::driver::Dialect;
use sqlx::postgres::{PgConnectOptions, PgPool, PgPoolOptions};
use sqlx::{AssertSqlSafe, Executor};

use crate::Failed;

const SCHEMA: &str = "semel_bench_consume";
/// Calls of a consumer under way at once, and a connection for each.
pub(super) const CALLS: usize = 4;
const EFFECT: &str =
    "CREATE TABLE effect (n bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, payload bytea NOT NULL)";

pub(super) struct Place {
    pub(super) pool: PgPool,
}

impl Place {
    /// An empty one. What a run that was killed left behind goes away.
    pub(super) async fn make(url: &str) -> Result<Self, Failed> {
        let options: PgConnectOptions = url.parse()?;
        let options = options.options([("search_path", SCHEMA)]);
        let connections = u32::try_from(CALLS)? + 1;
        let pool = PgPoolOptions::new().min_connections(connections).max_connections(connections);
        let place = Self { pool: pool.connect_with(options).await? };
        place.empty().await?;
        Ok(place)
    }

    /// Nothing is remembered.
    pub(super) async fn empty(&self) -> Result<(), Failed> {
        let tables = inbox::schema(Dialect::Postgres);
        self.run(&format!(
            "DROP SCHEMA IF EXISTS {SCHEMA} CASCADE; CREATE SCHEMA {SCHEMA}; {tables}; {EFFECT}"
        ))
        .await
    }

    pub(super) async fn run(&self, sql: &str) -> Result<(), Failed> {
        self.pool.acquire().await?.execute(AssertSqlSafe(sql.to_owned())).await?;
        Ok(())
    }

    /// Effects so far.
    pub(super) async fn effects(&self) -> Result<u64, Failed> {
        let count: i64 = sqlx::query_scalar("SELECT count(*) FROM effect").fetch_one(&self.pool).await?;
        Ok(count.unsigned_abs())
    }

    pub(super) async fn remove(&self) -> Result<(), Failed> {
        self.run(&format!("DROP SCHEMA IF EXISTS {SCHEMA} CASCADE")).await?;
        self.pool.close().await;
        Ok(())
    }
}
