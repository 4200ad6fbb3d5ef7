//! A schema of its own in somebody's PostgreSQL database, for runs that leave nothing behind.

use sqlx::{AssertSqlSafe, Connection, PgConnection};

use crate::Failed;

/// A schema. It stays until it is [removed](Self::remove).
#[derive(Debug)]
pub struct Schema {
    server: String,
    name: String,
}

impl Schema {
    /// Makes it. The URL must not name one already, and the name is of letters, digits and `_`.
    pub async fn make(server: &str, name: &str) -> Result<Self, Failed> {
        if server.split_once('?').is_some_and(|(_, query)| query.contains("schema=")) {
            return Err("leave ?schema= out of the URL: this run makes schemas of its own".into());
        }
        if name.is_empty() || !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_') {
            return Err(format!("{name:?} is no name for a schema").into());
        }
        let schema = Self { server: server.to_owned(), name: name.to_owned() };
        schema.run("CREATE SCHEMA").await?;
        Ok(schema)
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

    /// Takes it away with all that is in it.
    pub async fn remove(self) -> Result<(), Failed> {
        self.run("DROP SCHEMA IF EXISTS").await
    }

    async fn run(&self, verb: &str) -> Result<(), Failed> {
        let cascade = if verb.starts_with("DROP") { " CASCADE" } else { "" };
        let mut connection = PgConnection::connect(&self.server).await?;
        // The name was checked: it needs no quotes.
        let statement = AssertSqlSafe(format!("{verb} {}{cascade}", self.name));
        sqlx::raw_sql(statement).execute(&mut connection).await?;
        Ok(connection.close().await?)
    }
}
