//! Over `sqlx` on PostgreSQL.

use bytes::Bytes;
use futures_util::TryStreamExt;
use sqlx::postgres::{PgArguments, PgRow};
use sqlx::query::Query;
use sqlx::{Column, Connection, Either, Executor, PgConnection, Postgres, Row as _, TypeInfo};

use super::error::kind_of_sqlstate;
use super::{Dialect, DriverError, DriverErrorKind, Lend, Row, Rows, Statement, Tx, Value};

/// A prepared statement is missing, or is there already (26000, 42P05).
const POOLED: &str = "prepared statements are mixed up, as behind a pooler in transaction mode: open the connections with \
                      PgConnectOptions::statement_cache_capacity(0), and say persistent(false) for queries of your own";

impl Lend for PgConnection {
    type Lent<'l> = &'l mut PgConnection;
}

impl Tx for PgConnection {
    fn dialect(&self) -> Dialect {
        Dialect::Postgres
    }

    fn lend(&mut self) -> Self::Lent<'_> {
        self
    }

    fn is_open(&self) -> bool {
        Connection::is_in_transaction(self)
    }

    async fn run(&mut self, statement: Statement) -> Result<Rows, DriverError> {
        run(self, statement.values.into_iter().fold(sqlx::query(statement.text), bind)).await
    }
}

/// sqlx prepares it once per connection, like the caller's own statements. Where sqlx keeps none of those (a cache of 0,
/// for PgBouncer in transaction mode), ours are unnamed too: sqlx would otherwise name them, and another connection's
/// statement may have that name on the session that a transaction gets.
pub(crate) async fn run(
    connection: &mut PgConnection,
    query: Query<'_, Postgres, PgArguments>,
) -> Result<Rows, DriverError> {
    let keeps = Connection::cached_statements_size(connection) > 0;
    let mut rows = Rows::default();
    let mut stream = connection.fetch_many(query.persistent(keeps));
    while let Some(part) = stream.try_next().await.map_err(explain)? {
        match part {
            Either::Left(done) => rows.changed += done.rows_affected(),
            Either::Right(row) => rows.rows.push(read(&row)?),
        }
    }
    Ok(rows)
}

impl Lend for sqlx::Transaction<'_, Postgres> {
    type Lent<'l> = &'l mut PgConnection;
}

impl Tx for sqlx::Transaction<'_, Postgres> {
    fn dialect(&self) -> Dialect {
        Dialect::Postgres
    }

    fn lend(&mut self) -> Self::Lent<'_> {
        self
    }

    async fn run(&mut self, statement: Statement) -> Result<Rows, DriverError> {
        Tx::run(&mut **self, statement).await
    }
}

fn bind(query: Query<'_, Postgres, PgArguments>, value: Value) -> Query<'_, Postgres, PgArguments> {
    match value {
        Value::Int(value) => query.bind(value),
        Value::Bytes(value) => query.bind(value.map(|bytes| bytes.to_vec())),
        Value::Text(value) => query.bind(value),
    }
}

fn read(row: &PgRow) -> Result<Row, DriverError> {
    let column = |(at, column): (usize, &sqlx::postgres::PgColumn)| {
        let value = match column.type_info().name() {
            "INT8" => Value::Int(row.try_get(at).map_err(explain)?),
            "INT4" => Value::Int(row.try_get::<Option<i32>, _>(at).map_err(explain)?.map(i64::from)),
            "INT2" => Value::Int(row.try_get::<Option<i16>, _>(at).map_err(explain)?.map(i64::from)),
            "BOOL" => Value::Int(row.try_get::<Option<bool>, _>(at).map_err(explain)?.map(i64::from)),
            "BYTEA" => {
                let bytes = row.try_get::<Option<&[u8]>, _>(at).map_err(explain)?;
                Value::Bytes(bytes.map(Bytes::copy_from_slice))
            }
            // `SELECT f()` of a function without a result.
            "VOID" => Value::Text(None),
            _ => Value::Text(row.try_get(at).map_err(explain)?),
        };
        Ok(value)
    };
    row.columns().iter().enumerate().map(column).collect::<Result<_, _>>().map(Row)
}

pub(crate) fn explain(error: sqlx::Error) -> DriverError {
    let kind = match &error {
        sqlx::Error::Database(database) => {
            database.code().map_or(DriverErrorKind::Other, |code| kind_of_sqlstate(&code))
        }
        sqlx::Error::Io(_) | sqlx::Error::Tls(_) | sqlx::Error::WorkerCrashed => DriverErrorKind::Lost,
        sqlx::Error::ColumnDecode { .. } | sqlx::Error::Decode(_) => DriverErrorKind::Unreadable,
        _ => DriverErrorKind::Other,
    };
    let code = error.as_database_error().and_then(|database| database.code());
    if matches!(code.as_deref(), Some("26000" | "42P05")) {
        return DriverError::because(POOLED, kind, error.to_string());
    }
    DriverError::of(kind, error.to_string())
}
