//! A database with orders, and the ledger of the participants.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use rusqlite::Connection;
use semel::saga::sql::{SqlJournal, schema};
use semel::tx::driver::Dialect;
use semel::{outbox, saga};
use sqlx::{AssertSqlSafe, Executor, Row};
use testkit::child::Child;
use testkit::services::Service;

use crate::outbox::world::{Mysql, Postgres};

/// Nothing here takes this long on a machine that works.
const PATIENCE: Duration = Duration::from_secs(60);

enum Server {
    Postgres(Postgres),
    Mysql(Mysql),
    Sqlite(PathBuf),
}

pub struct Place {
    server: Server,
    /// Atomic steps run over a pool of sqlx.
    over_sqlx: bool,
    url: String,
    directory: tempfile::TempDir,
}

/// What the orders, the participants and the outbox have of one key.
#[derive(Debug, PartialEq, Eq)]
pub struct Seen {
    pub orders: Vec<String>,
    /// Effects at participants: a line that is there twice under one key is one effect, unless nothing protects it.
    pub holds: usize,
    pub releases: usize,
    /// Each call counts: nothing protects it.
    pub charges: usize,
    pub mails: usize,
    pub events: usize,
}

impl Place {
    pub async fn postgres() -> Option<Self> {
        let orders = "CREATE TABLE orders (n bigserial PRIMARY KEY, name text NOT NULL, what text NOT NULL);";
        let tables = format!("{} {} {orders}", schema(Dialect::Postgres), outbox::schema(Dialect::Postgres));
        let world = Postgres::with(&tables).await?;
        Some(Self::new(world.url(), Server::Postgres(world)))
    }

    pub async fn sqlx_postgres() -> Option<Self> {
        Some(Self { over_sqlx: true, ..Self::postgres().await? })
    }

    pub async fn mariadb() -> Option<Self> {
        Self::mysql_of(Service::Mariadb).await
    }

    pub async fn mysql() -> Option<Self> {
        Self::mysql_of(Service::Mysql).await
    }

    pub async fn mysql_of(server: Service) -> Option<Self> {
        let orders = "CREATE TABLE orders (n bigint AUTO_INCREMENT PRIMARY KEY, name varchar(200) NOT NULL, \
                      what varchar(20) NOT NULL);";
        let tables = format!("{} {} {orders}", schema(Dialect::Mysql), outbox::schema(Dialect::Mysql));
        let world = Mysql::with(server, &tables).await?;
        Some(Self::new(world.url(), Server::Mysql(world)))
    }

    pub async fn sqlite() -> Option<Self> {
        let directory = testkit::scratch::directory();
        let path = directory.path().join("app.db");
        let url = format!("sqlite:{}", path.display());
        saga::sql::migrate(&url).await.unwrap();
        outbox::migrate(&url).await.unwrap();
        let db = Connection::open(&path).unwrap();
        db.pragma_update(None, "journal_mode", "wal").unwrap();
        db.execute_batch(
            "CREATE TABLE orders (n INTEGER PRIMARY KEY, name TEXT NOT NULL, what TEXT NOT NULL)",
        )
        .unwrap();
        Some(Self { server: Server::Sqlite(path), over_sqlx: false, url, directory })
    }

    fn new(url: String, server: Server) -> Self {
        Self { server, over_sqlx: false, url, directory: testkit::scratch::directory() }
    }

    pub async fn journal(&self) -> SqlJournal {
        let journal = SqlJournal::open(&self.url).await.unwrap();
        match &self.server {
            Server::Postgres(world) if self.over_sqlx => {
                journal.steps_over(world.pool(4).await).await.unwrap()
            }
            _ => journal,
        }
    }

    /// `None`: it is another database.
    pub async fn postgres_pool(&self) -> Option<sqlx::PgPool> {
        match &self.server {
            Server::Postgres(world) => Some(world.pool(1).await),
            _ => None,
        }
    }

    /// Of a server that speaks MySQL's protocol.
    pub fn mysql_pool(&self) -> sqlx::MySqlPool {
        match &self.server {
            Server::Mysql(world) => world.pool.clone(),
            _ => panic!("it speaks another protocol"),
        }
    }

    fn ledger(&self, key: &str) -> PathBuf {
        self.directory.path().join(format!("{}.ledger", key.replace(':', ".")))
    }

    pub fn start(&self, key: &str, what: &str, crash_at: Option<&str>) -> Child {
        let mut command = Command::new(env!("CARGO_BIN_EXE_proof-worker"));
        command.arg("saga").arg(&self.url).arg(self.ledger(key)).arg(key).arg(what);
        command.args(self.over_sqlx.then_some("sqlx"));
        Child::spawn(command, crash_at).unwrap()
    }

    /// Kills a process at a point; `false`: it ended without passing it.
    pub fn kill_at(&self, key: &str, what: &str, at: &str) -> bool {
        let mut child = self.start(key, what, Some(at));
        match child.wait_for_point(PATIENCE) {
            Ok(_) => {
                child.kill().unwrap();
                true
            }
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => {
                let ended = child.wait(PATIENCE).unwrap();
                assert!(ended.status.success(), "{key}: {ended:?}");
                false
            }
            Err(error) => panic!("{key}: {error}"),
        }
    }

    /// What a process says that is not killed.
    pub fn call(&self, key: &str, what: &str) -> String {
        let mut child = self.start(key, what, None);
        let ended = child.wait(PATIENCE).unwrap();
        assert!(ended.status.success(), "{key}: {ended:?}");
        ended.stdout[0].clone()
    }

    /// No test waits for a lease: it is ended in the table.
    pub async fn end_leases(&self) {
        let sql = "UPDATE semel_saga_worker SET lease_until = 0";
        match &self.server {
            Server::Postgres(world) => drop(world.pool(1).await.execute(sql).await.unwrap()),
            Server::Mysql(world) => drop(world.pool.execute(sql).await.unwrap()),
            Server::Sqlite(path) => {
                let db = open(path);
                db.execute_batch(sql).unwrap();
            }
        }
    }

    async fn texts(&self, sql: String) -> Vec<String> {
        match &self.server {
            Server::Postgres(world) => {
                let rows = sqlx::query(AssertSqlSafe(sql)).fetch_all(&world.pool(1).await).await.unwrap();
                rows.iter().map(|row| row.get(0)).collect()
            }
            Server::Mysql(world) => {
                let rows = sqlx::query(AssertSqlSafe(sql)).fetch_all(&world.pool).await.unwrap();
                rows.iter().map(|row| row.get(0)).collect()
            }
            Server::Sqlite(path) => {
                let db = open(path);
                let mut found = db.prepare(&sql).unwrap();
                found.query_map([], |row| row.get(0)).unwrap().collect::<Result<_, _>>().unwrap()
            }
        }
    }

    /// What is there, by connections and a file of the judge's own.
    pub async fn seen(&self, key: &str) -> Seen {
        let orders = self.texts(format!("SELECT what FROM orders WHERE name = '{key}' ORDER BY n")).await;
        let payload = match &self.server {
            Server::Postgres(_) => "convert_from(payload, 'UTF8')",
            Server::Mysql(_) => "CONVERT(payload USING utf8mb4)",
            Server::Sqlite(_) => "CAST(payload AS TEXT)",
        };
        let events = self.texts(format!("SELECT {payload} FROM semel_outbox")).await;
        let ledger = std::fs::read_to_string(self.ledger(key)).unwrap_or_default();
        let lines = |what: &str| {
            ledger.lines().filter(|line| line.starts_with(&format!("{what} "))).collect::<Vec<_>>()
        };
        let effects = |what: &str| {
            let mut lines = lines(what);
            lines.sort_unstable();
            lines.dedup();
            lines.len()
        };
        Seen {
            orders,
            holds: effects("hold"),
            releases: effects("release"),
            charges: lines("charge").len(),
            mails: effects("mail"),
            events: events.iter().filter(|event| *event == key).count(),
        }
    }

    pub async fn end(self) {
        match self.server {
            Server::Postgres(world) => world.end().await,
            Server::Mysql(world) => world.end().await,
            Server::Sqlite(_) => {}
        }
    }
}

fn open(path: &PathBuf) -> Connection {
    let db = Connection::open(path).unwrap();
    db.busy_timeout(PATIENCE).unwrap();
    db
}
