//! A database of a test's own with the tables of a release, and plain SQL in it.

use std::sync::atomic::{AtomicU64, Ordering};

use rusqlite::Connection as Sqlite;
use semel::tx::driver::Dialect;
use sqlx::{AssertSqlSafe, Connection, Executor, MySqlConnection, Row};
use tempfile::TempDir;
use testkit::services::{Lease, Service, require};

use crate::store::postgres::place::Place;

pub(super) enum World {
    Postgres(Place),
    Mysql { url: String, name: String, server: String, _lease: Lease },
    Sqlite(TempDir),
}

/// The tables as a release created them.
pub(super) struct Release {
    store: [&'static str; 3],
    outbox: [&'static str; 3],
    inbox: [&'static str; 3],
    ledger: [&'static str; 3],
    references: [&'static str; 3],
}

macro_rules! release {
    ($version:literal) => {
        Release {
            store: release!($version, "store"),
            outbox: release!($version, "outbox"),
            inbox: release!($version, "inbox"),
            ledger: release!($version, "ledger"),
            references: release!($version, "references"),
        }
    };
    ($version:literal, $part:literal) => {
        [
            include_str!(concat!("../../../fixtures/", $version, "/", $part, ".postgres.sql")),
            include_str!(concat!("../../../fixtures/", $version, "/", $part, ".mysql.sql")),
            include_str!(concat!("../../../fixtures/", $version, "/", $part, ".sqlite.sql")),
        ]
    };
}

/// The release before this one.
pub(super) const BEFORE: Release = release!("v0.1.0");

impl World {
    /// `None` when the run goes without that server.
    pub(super) async fn postgres() -> Option<Self> {
        Place::take().map(Self::Postgres)
    }

    pub(super) async fn mysql(service: Service) -> Option<Self> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let lease = require(service)?;
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("semel_upgrade_{}_{count}_{:x}", std::process::id(), fastrand::u32(..));
        let server = lease.url().to_owned();
        let mut connection = MySqlConnection::connect(&server).await.unwrap();
        connection.execute(AssertSqlSafe(format!("CREATE DATABASE {name}"))).await.unwrap();
        let base = server.rsplit_once('/').unwrap().0;
        let url = format!("{base}/{name}");
        Some(Self::Mysql { url, name, server, _lease: lease })
    }

    pub(super) fn sqlite() -> Self {
        Self::Sqlite(tempfile::tempdir().unwrap())
    }

    pub(super) fn dialect(&self) -> Dialect {
        match self {
            Self::Postgres(_) => Dialect::Postgres,
            Self::Mysql { .. } => Dialect::Mysql,
            Self::Sqlite(_) => Dialect::Sqlite,
        }
    }

    /// Where the store is. On SQLite that is a file of its own.
    pub(super) fn store_url(&self) -> String {
        match self {
            Self::Sqlite(folder) => format!("sqlite:{}", folder.path().join("store.db").display()),
            _ => self.url(),
        }
    }

    /// Where outbox and inbox are.
    pub(super) fn url(&self) -> String {
        match self {
            Self::Postgres(place) => place.url(),
            Self::Mysql { url, .. } => format!("{url}?connect-timeout-ms=60000&statement-timeout-ms=60000"),
            Self::Sqlite(folder) => format!("sqlite:{}", folder.path().join("app.db").display()),
        }
    }

    /// Creates the tables as that release did.
    pub(super) async fn create(&self, release: &Release) {
        let of = |part: [&'static str; 3]| match self.dialect() {
            Dialect::Postgres => part[0],
            Dialect::Mysql => part[1],
            Dialect::Sqlite => part[2],
        };
        self.run_in(&self.store_url(), of(release.store)).await;
        self.run(of(release.outbox)).await;
        for part in [release.inbox, release.ledger, release.references] {
            self.run(of(part)).await;
        }
    }

    /// Does to all tables what a next version may do: a column more in each, one more table, the version raised.
    pub(super) async fn expand(&self) {
        let mut places = vec![self.store_url(), self.url()];
        places.dedup();
        for url in places {
            for table in self.tables(&url).await {
                self.run_in(&url, &format!("ALTER TABLE {table} ADD COLUMN added_later INTEGER")).await;
            }
            self.run_in(&url, "CREATE TABLE IF NOT EXISTS semel_added_later (n INTEGER PRIMARY KEY)").await;
        }
        self.raise().await;
    }

    /// Raises the versions of all tables by one.
    pub(super) async fn raise(&self) {
        self.run("UPDATE semel_outbox_meta SET version = version + 1").await;
        self.run("UPDATE semel_inbox_meta SET version = version + 1").await;
        match self {
            Self::Sqlite(_) => {
                let url = self.store_url();
                let version = self.numbers(&url, "SELECT user_version FROM pragma_user_version").await;
                self.run_in(&url, &format!("PRAGMA user_version = {}", version + 1)).await;
            }
            _ => self.run("UPDATE semel_meta SET version = version + 1").await,
        }
    }

    async fn tables(&self, url: &str) -> Vec<String> {
        match self {
            Self::Postgres(place) => {
                let query = "SELECT relname::text FROM pg_class WHERE relnamespace = current_schema()::regnamespace \
                             AND relkind IN ('r', 'p') AND NOT relispartition";
                let rows = place.client().await.query(query, &[]).await.unwrap();
                rows.iter().map(|row| row.get(0)).collect()
            }
            Self::Mysql { name, .. } => {
                let query = format!(
                    "SELECT table_name FROM information_schema.tables \
                     WHERE table_schema = '{name}' AND table_type = 'BASE TABLE'"
                );
                let mut connection = MySqlConnection::connect(url).await.unwrap();
                let rows = connection.fetch_all(AssertSqlSafe(query)).await.unwrap();
                rows.iter().map(|row| row.get::<String, _>(0)).collect()
            }
            Self::Sqlite(_) => {
                let connection = open(url);
                let query =
                    "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%'";
                let mut statement = connection.prepare(query).unwrap();
                let names = statement.query_map([], |row| row.get(0)).unwrap();
                names.map(Result::unwrap).collect()
            }
        }
    }

    pub(super) async fn run(&self, sql: &str) {
        self.run_in(&self.url(), sql).await;
    }

    pub(super) async fn run_in(&self, url: &str, sql: &str) {
        match self {
            Self::Postgres(place) => place.client().await.batch_execute(sql).await.unwrap(),
            Self::Mysql { url, .. } => {
                let mut connection = MySqlConnection::connect(url).await.unwrap();
                connection.execute(AssertSqlSafe(sql.to_owned())).await.unwrap();
            }
            Self::Sqlite(_) => open(url).execute_batch(sql).unwrap(),
        }
    }

    /// One number, from where outbox and inbox are.
    pub(super) async fn number(&self, sql: &str) -> i64 {
        self.numbers(&self.url(), sql).await
    }

    async fn numbers(&self, url: &str, sql: &str) -> i64 {
        match self {
            Self::Postgres(place) => place.client().await.query_one(sql, &[]).await.unwrap().get::<_, i64>(0),
            Self::Mysql { url, .. } => {
                let mut connection = MySqlConnection::connect(url).await.unwrap();
                connection.fetch_one(AssertSqlSafe(sql.to_owned())).await.unwrap().get(0)
            }
            Self::Sqlite(_) => open(url).query_row(sql, [], |row| row.get(0)).unwrap(),
        }
    }
}

fn open(url: &str) -> Sqlite {
    let connection = Sqlite::open(url.strip_prefix("sqlite:").unwrap()).unwrap();
    connection.busy_timeout(std::time::Duration::from_secs(60)).unwrap();
    connection
}

impl Drop for World {
    fn drop(&mut self) {
        let Self::Mysql { name, server, .. } = self else { return };
        let (server, name) = (server.clone(), name.clone());
        // A thread of its own: this may be inside a runtime, which cannot be blocked on.
        let dropping = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime").block_on(async {
                if let Ok(mut connection) = MySqlConnection::connect(&server).await {
                    let _ = connection.execute("SET lock_wait_timeout = 2").await;
                    let drop = format!("DROP DATABASE IF EXISTS {name}");
                    let _ = connection.execute(AssertSqlSafe(drop)).await;
                }
            });
        });
        let _ = dropping.join();
    }
}
