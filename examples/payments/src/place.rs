//! Opens books and store by their URLs: the same database for both, so that one commit decides.

use std::path::Path;
use std::time::Duration;

use axum::Router;
use semel::Guard;
use semel::observe::Metrics;
use semel::store::{self, AnyStore};
use semel::tx::sqlite::SqliteReader;
use sqlx::postgres::{PgConnectOptions, PgPool, PgPoolOptions};

use crate::Failed;
use crate::app::app;
use crate::books::{PostgresBooks, SqliteBooks};
use crate::provider::Provider;

const CONNECTIONS_MAX: u32 = 16;
/// How long a request waits for a connection before it is refused.
const CONNECTION_WAIT: Duration = Duration::from_secs(5);

/// The service on the database a URL names (`sqlite:PATH` or `postgres://…`), with the Redis of another URL in front
/// of what was answered before. Cards are taken where there is a provider.
pub async fn open(url: &str, cache: Option<&str>, provider: Option<Provider>) -> Result<Router, Failed> {
    if let Some(path) = url.strip_prefix("sqlite:") {
        if cache.is_some() {
            return Err("--cache needs PostgreSQL; leave it out with SQLite".into());
        }
        let path = Path::new(path.strip_prefix("//").unwrap_or(path));
        let books = SqliteBooks::open(path)?;
        return app(books, Guard::new(SqliteReader::open(path).await?), provider);
    }
    if !(url.starts_with("postgres://") || url.starts_with("postgresql://")) {
        return Err("--store must be sqlite:PATH or postgres://…".into());
    }
    let store: AnyStore = match cache {
        None => store::open(url).await?,
        Some(cache) => store::open_tiered(url, cache, &Metrics::new()).await?,
    };
    app(PostgresBooks::open(pool(url).await?).await?, Guard::new(store), provider)
}

/// Connections to the database of the store's URL: `?schema=` is semel's own parameter.
pub async fn pool(url: &str) -> Result<PgPool, Failed> {
    let mut options: PgConnectOptions = url.parse()?;
    let query = url.split_once('?').map_or("", |(_, query)| query);
    if let Some(schema) = query.split('&').find_map(|pair| pair.strip_prefix("schema=")) {
        options = options.options([("search_path", schema)]);
    }
    let pool = PgPoolOptions::new().max_connections(CONNECTIONS_MAX).acquire_timeout(CONNECTION_WAIT);
    Ok(pool.connect_with(options).await?)
}
