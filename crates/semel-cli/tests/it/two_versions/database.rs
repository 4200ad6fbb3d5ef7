//! A database of the test's own, with a store and an outbox.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Mutex;

use sqlx::{AssertSqlSafe, Connection, Executor, MySqlConnection};
use tempfile::TempDir;
use testkit::services::{Lease, Service, require};

use crate::receiver::SOON;
use crate::world::block_on;

pub(super) struct Database {
    kind: Kind,
    /// For each event, its number among those of its key.
    order: Mutex<(HashMap<usize, usize>, usize)>,
}

enum Kind {
    Sqlite(TempDir),
    Postgres { lease: Lease, schema: String },
    Mysql { lease: Lease, name: String },
}

impl Database {
    fn new(kind: Kind) -> Self {
        Self { kind, order: Mutex::default() }
    }

    pub(super) fn sqlite() -> Self {
        Self::new(Kind::Sqlite(testkit::scratch::directory()))
    }

    /// `None` if the run goes without that server.
    pub(super) fn postgres() -> Option<Self> {
        let lease = require(Service::Postgres)?;
        let schema = format!("versions_{}_{:08x}", std::process::id(), fastrand::u32(..));
        postgres(lease.url(), &format!("CREATE SCHEMA {schema}"));
        Some(Self::new(Kind::Postgres { lease, schema }))
    }

    pub(super) fn mysql(service: Service) -> Option<Self> {
        let lease = require(service)?;
        let name = format!("semel_versions_{}_{:08x}", std::process::id(), fastrand::u32(..));
        mysql(lease.url(), &format!("CREATE DATABASE {name}"));
        Some(Self::new(Kind::Mysql { lease, name }))
    }

    fn file(&self, name: &str) -> Option<PathBuf> {
        match &self.kind {
            Kind::Sqlite(folder) => Some(folder.path().join(name)),
            _ => None,
        }
    }

    /// The URL of the store. On SQLite it has a file of its own.
    pub(super) fn store(&self) -> String {
        self.file("store.db").map_or_else(|| self.outbox(), |file| format!("sqlite:{}", file.display()))
    }

    /// The URL of the outbox.
    pub(super) fn outbox(&self) -> String {
        match &self.kind {
            Kind::Sqlite(folder) => format!("sqlite:{}", folder.path().join("app.db").display()),
            Kind::Postgres { lease, schema } => format!("{}?schema={schema}", lease.url()),
            Kind::Mysql { lease, name } => format!("{}/{name}", lease.url().rsplit_once('/').unwrap().0),
        }
    }

    /// Appends an event as a service in any language does. One at a time, so that its order is known.
    pub(super) fn append(&self, key: usize, n: usize) {
        let mut order = self.order.lock().unwrap();
        let insert = |key_column: &str, payload: String| {
            format!(
                "INSERT INTO semel_outbox (topic, type, {key_column}, payload) VALUES ('paid', 'paid', 'key-{key}', {payload})"
            )
        };
        match &self.kind {
            Kind::Sqlite(folder) => {
                let connection = rusqlite::Connection::open(folder.path().join("app.db")).unwrap();
                connection.busy_timeout(SOON).unwrap();
                connection.execute_batch(&insert("key", format!("CAST('{n}' AS BLOB)"))).unwrap();
            }
            Kind::Postgres { lease, schema } => {
                let insert = insert("key", format!("convert_to('{n}', 'UTF8')"));
                postgres(lease.url(), &format!("SET search_path = {schema}; {insert}"));
            }
            Kind::Mysql { .. } => mysql(&self.outbox(), &insert("`key`", format!("'{n}'"))),
        }
        let at = order.1;
        order.0.insert(n, at);
        order.1 += 1;
    }

    /// Whether the first of two events was appended before the other.
    pub(super) fn came_before(&self, first: usize, second: usize) -> bool {
        let order = self.order.lock().unwrap();
        order.0[&first] < order.0[&second]
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        match &self.kind {
            Kind::Sqlite(_) => {}
            Kind::Postgres { lease, schema } => {
                postgres(lease.url(), &format!("DROP SCHEMA IF EXISTS {schema} CASCADE"));
            }
            Kind::Mysql { lease, name } => mysql(lease.url(), &format!("DROP DATABASE IF EXISTS {name}")),
        }
    }
}

fn postgres(url: &str, sql: &str) {
    block_on(async {
        let (client, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls).await.unwrap();
        tokio::spawn(connection);
        client.batch_execute(sql).await.unwrap();
    });
}

fn mysql(url: &str, sql: &str) {
    block_on(async {
        let mut connection = MySqlConnection::connect(url).await.unwrap();
        connection.execute(AssertSqlSafe(sql.to_owned())).await.unwrap();
    });
}
