//! Where the effects are: a corner of the PostgreSQL server, or a file.

use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use semel::inbox;
use semel::tx::driver::Dialect;
use testkit::services::{Lease, Service, require};

pub enum Place {
    Postgres { url: String, schema: String, _lease: Lease },
    Sqlite(tempfile::TempDir),
}

impl Place {
    /// `None` when the run goes without PostgreSQL.
    pub async fn postgres() -> Option<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let lease = require(Service::Postgres)?;
        let schema = format!("hooks_{}_{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let tables = inbox::schema(Dialect::Postgres);
        let table = "CREATE TABLE effect (event text NOT NULL)";
        let sql = format!("CREATE SCHEMA {schema}; SET search_path = {schema}; {tables}; {table}");
        connect(lease.url()).await.batch_execute(&sql).await.unwrap();
        Some(Self::Postgres { url: lease.url().to_owned(), schema, _lease: lease })
    }

    pub fn sqlite() -> Self {
        let place = Self::Sqlite(tempfile::tempdir().unwrap());
        let db = rusqlite::Connection::open(place.path()).unwrap();
        db.pragma_update(None, "journal_mode", "wal").unwrap();
        db.execute_batch(inbox::schema(Dialect::Sqlite)).unwrap();
        db.execute_batch("CREATE TABLE effect (event TEXT NOT NULL)").unwrap();
        place
    }

    fn path(&self) -> std::path::PathBuf {
        let Self::Sqlite(directory) = self else { panic!("no file") };
        directory.path().join("app.db")
    }

    /// Tells a worker where it is.
    pub fn tell(&self, command: &mut Command) {
        match self {
            Self::Postgres { url, schema, .. } => command.args(["postgres", url, schema]),
            Self::Sqlite(_) => command.arg("sqlite").arg(self.path()),
        };
    }

    /// How often an event took effect, by a connection of the judge's own. All of them with `%`.
    pub async fn effects(&self, event: &str) -> i64 {
        match self {
            Self::Postgres { url, schema, .. } => {
                let query = format!("SELECT count(*) FROM {schema}.effect WHERE event LIKE $1");
                connect(url).await.query_one(&query, &[&event]).await.unwrap().get(0)
            }
            Self::Sqlite(_) => {
                let db = rusqlite::Connection::open(self.path()).unwrap();
                db.busy_timeout(std::time::Duration::from_secs(15)).unwrap();
                let query = "SELECT count(*) FROM effect WHERE event LIKE ?1";
                db.query_row(query, [event], |row| row.get(0)).unwrap()
            }
        }
    }

    pub async fn end(self) {
        if let Self::Postgres { url, schema, .. } = self {
            connect(&url).await.batch_execute(&format!("DROP SCHEMA {schema} CASCADE")).await.unwrap();
        }
    }
}

async fn connect(url: &str) -> tokio_postgres::Client {
    let (client, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}
