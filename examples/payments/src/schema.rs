//! A private schema in a given PostgreSQL database, for runs that leave nothing behind.
//!
//! A run that is killed cannot drop its schema. So each schema has a lock, held by a connection as long as the run
//! lives; a later run drops those whose lock is free.

use sqlx::{AssertSqlSafe, Connection, PgConnection};

use crate::Failed;

/// Most schemas that are dropped at once.
const ABANDONED_MAX: i64 = 100;
/// The comment on a schema that is kept on purpose.
const KEPT: &str = "kept";

const LOCK: &str = "SELECT pg_try_advisory_lock(hashtextextended($1, 7075))";
const UNLOCK: &str = "SELECT pg_advisory_unlock(hashtextextended($1, 7075))";
const NAMED: &str = "SELECT nspname::text FROM pg_namespace
                     WHERE starts_with(nspname, $1) AND nspname ~ '^[a-z0-9_]+$'
                       AND obj_description(oid, 'pg_namespace') IS DISTINCT FROM $2
                     ORDER BY nspname LIMIT $3";

/// A schema. It stays until it is [removed](Self::remove), or until this is dropped and a later run drops it.
#[derive(Debug)]
pub struct Schema {
    server: String,
    name: String,
    /// Holds the lock.
    held: PgConnection,
}

impl Schema {
    /// Creates it. The URL must not name one already, and the name is of lowercase letters, digits and `_`.
    pub async fn make(server: &str, name: &str) -> Result<Self, Failed> {
        if server.split_once('?').is_some_and(|(_, query)| query.contains("schema=")) {
            return Err("leave ?schema= out of the URL: this run makes schemas of its own".into());
        }
        let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
        if name.is_empty() || !name.bytes().all(plain) {
            return Err(format!("invalid schema name {name:?}: use lowercase letters, digits and '_'").into());
        }
        let mut held = PgConnection::connect(server).await?;
        // Before it exists: no other run finds it unlocked.
        if !sqlx::query_scalar::<_, bool>(LOCK).bind(name).fetch_one(&mut held).await? {
            return Err(format!("another run is creating the schema {name}").into());
        }
        run(&mut held, format!("CREATE SCHEMA {name}")).await?;
        Ok(Self { server: server.to_owned(), name: name.to_owned(), held })
    }

    /// Drops schemas whose names begin with `prefix` and whose runs have died, and returns their names. Those that
    /// were [kept](Self::keep) stay.
    pub async fn remove_abandoned(server: &str, prefix: &str) -> Result<Vec<String>, Failed> {
        let mut connection = PgConnection::connect(server).await?;
        // A process of the dead run may be about to end.
        run(&mut connection, "SET lock_timeout = '5s'".to_owned()).await?;
        let named = sqlx::query_scalar::<_, String>(NAMED).bind(prefix).bind(KEPT).bind(ABANDONED_MAX);
        let mut removed = Vec::new();
        for name in named.fetch_all(&mut connection).await? {
            if !sqlx::query_scalar::<_, bool>(LOCK).bind(&name).fetch_one(&mut connection).await? {
                continue;
            }
            run(&mut connection, format!("DROP SCHEMA IF EXISTS {name} CASCADE")).await?;
            sqlx::query(UNLOCK).bind(&name).execute(&mut connection).await?;
            removed.push(name);
        }
        connection.close().await?;
        Ok(removed)
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The URL of a store in it.
    pub fn url(&self) -> String {
        let and = if self.server.contains('?') { '&' } else { '?' };
        format!("{}{and}schema={}", self.server, self.name)
    }

    /// Leaves it there for inspection, until a person drops it.
    pub async fn keep(mut self) -> Result<(), Failed> {
        run(&mut self.held, format!("COMMENT ON SCHEMA {} IS '{KEPT}'", self.name)).await?;
        Ok(self.held.close().await?)
    }

    /// Drops it with all that is in it.
    pub async fn remove(mut self) -> Result<(), Failed> {
        run(&mut self.held, format!("DROP SCHEMA IF EXISTS {} CASCADE", self.name)).await?;
        Ok(self.held.close().await?)
    }
}

/// Runs a statement. Names in it were checked: they need no quotes.
async fn run(connection: &mut PgConnection, statement: String) -> Result<(), Failed> {
    sqlx::raw_sql(AssertSqlSafe(statement)).execute(connection).await?;
    Ok(())
}
