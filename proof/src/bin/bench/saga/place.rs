//! Where the journal is: a file, or a schema of the benchmark's own.

use std::path::{Path, PathBuf};

use rusqlite::Connection;
use semel::saga::sql::{SqlJournal, migrate, schema};
use semel::tx::driver::Dialect;
use testkit::services::{Service, find};
use tokio_postgres::{Client, NoTls};

use crate::Failed;

/// What the schemas and files are called, with what they are for.
const NAME: &str = "semel_bench_saga";
const ROWS: &str = "CREATE TABLE bench_row (n INTEGER PRIMARY KEY, name TEXT NOT NULL)";
const ROWS_POSTGRES: &str =
    "CREATE TABLE bench_row (n bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, name text NOT NULL)";

pub(super) enum Place {
    Sqlite(PathBuf),
    Postgres(Schema),
}

/// A schema on a server.
pub(super) struct Schema {
    server: String,
    name: String,
    /// The process that all the server's processes are children of.
    parent: u32,
}

impl Place {
    /// An empty journal. `None`: the server does not run.
    pub(super) async fn make(name: &str, directory: &Path, what: &str) -> Result<Option<Self>, Failed> {
        if name == "sqlite" {
            let path = directory.join(format!("{NAME}_{what}.db"));
            migrate(&format!("sqlite:{}", path.display())).await?;
            let db = Connection::open(&path)?;
            db.pragma_update(None, "journal_mode", "wal")?;
            db.execute_batch(ROWS)?;
            return Ok(Some(Self::Sqlite(path)));
        }
        let Some(server) = find(Service::Postgres) else { return Ok(None) };
        let client = connect(&server).await?;
        let name = format!("{NAME}_{what}");
        let tables = schema(Dialect::Postgres);
        client
            .batch_execute(&format!(
                "DROP SCHEMA IF EXISTS {name} CASCADE; CREATE SCHEMA {name}; SET search_path = {name}; {tables}; \
                 {ROWS_POSTGRES}"
            ))
            .await?;
        let backend: i32 = client.query_one("SELECT pg_backend_pid()", &[]).await?.get(0);
        let parent = crate::usage::parent(u32::try_from(backend)?)?;
        Ok(Some(Self::Postgres(Schema { server, name, parent })))
    }

    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Sqlite(_) => "sqlite",
            Self::Postgres(_) => "postgres",
        }
    }

    pub(super) async fn journal(&self) -> Result<SqlJournal, Failed> {
        Ok(SqlJournal::open(&match self {
            Self::Sqlite(path) => format!("sqlite:{}", path.display()),
            Self::Postgres(Schema { server, name, .. }) => {
                let joint = if server.contains('?') { '&' } else { '?' };
                format!("{server}{joint}schema={name}")
            }
        })
        .await?)
    }

    /// A connection of the benchmark's own, to the file.
    pub(super) fn sqlite(path: &Path) -> Result<Connection, Failed> {
        let db = Connection::open(path)?;
        db.pragma_update(None, "synchronous", "full")?;
        db.busy_timeout(std::time::Duration::from_secs(60))?;
        Ok(db)
    }

    /// A connection of the benchmark's own, to the schema.
    pub(super) async fn postgres(schema: &Schema) -> Result<Client, Failed> {
        let client = connect(&schema.server).await?;
        client
            .batch_execute(&format!("SET search_path = {}; SET synchronous_commit = on", schema.name))
            .await?;
        Ok(client)
    }

    /// How long processors have worked for the server, where there is one.
    pub(super) fn server_cpu_seconds(&self) -> Result<Option<f64>, Failed> {
        match self {
            Self::Sqlite(_) => Ok(None),
            Self::Postgres(schema) => crate::usage::cpu_seconds_with_children(schema.parent).map(Some),
        }
    }

    pub(super) async fn remove(self) -> Result<(), Failed> {
        if let Self::Postgres(Schema { server, name, .. }) = self {
            connect(&server).await?.batch_execute(&format!("DROP SCHEMA {name} CASCADE")).await?;
        }
        Ok(())
    }
}

async fn connect(server: &str) -> Result<Client, Failed> {
    let (client, connection) = tokio_postgres::connect(server, NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}
