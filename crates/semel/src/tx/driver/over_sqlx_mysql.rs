//! Over `sqlx` on MySQL and MariaDB.
//!
//! Statements are sent as text, with their values in hexadecimal: only so can one packet carry several of them. A
//! claim is one round trip instead of five.

use bytes::Bytes;
use futures_util::TryStreamExt;
use sqlx::mysql::{MySqlDatabaseError, MySqlRow};
use sqlx::{AssertSqlSafe, Column, Either, Executor, MySql, MySqlConnection, Row as _, TypeInfo};

use super::{Dialect, DriverError, DriverErrorKind, Lend, Row, Rows, Statement, Tx, Value};
use crate::store::mysql::literal;

impl Lend for MySqlConnection {
    type Lent<'l> = &'l mut MySqlConnection;
}

impl Tx for MySqlConnection {
    fn dialect(&self) -> Dialect {
        Dialect::Mysql
    }

    fn lend(&mut self) -> Self::Lent<'_> {
        self
    }

    fn is_open(&self) -> bool {
        sqlx::Connection::is_in_transaction(self)
    }

    /// The rows are those of all statements in the packet.
    async fn run(&mut self, statement: Statement) -> Result<Rows, DriverError> {
        run_text(self, fill(statement.text, &statement.values)).await
    }
}

/// Sends a text of ours whose values are filled in.
pub(crate) async fn run_text(connection: &mut MySqlConnection, text: String) -> Result<Rows, DriverError> {
    let mut rows = Rows::default();
    let mut stream = connection.fetch_many(AssertSqlSafe(text));
    while let Some(part) = stream.try_next().await.map_err(explain)? {
        match part {
            Either::Left(done) => rows.changed += done.rows_affected(),
            Either::Right(row) => rows.rows.push(read(&row)?),
        }
    }
    Ok(rows)
}

impl Lend for sqlx::Transaction<'_, MySql> {
    type Lent<'l> = &'l mut MySqlConnection;
}

impl Tx for sqlx::Transaction<'_, MySql> {
    fn dialect(&self) -> Dialect {
        Dialect::Mysql
    }

    fn lend(&mut self) -> Self::Lent<'_> {
        self
    }

    async fn run(&mut self, statement: Statement) -> Result<Rows, DriverError> {
        Tx::run(&mut **self, statement).await
    }
}

/// Writes the values in place of `?1`, `?2` …, or of `?` one after the other.
pub(crate) fn fill(text: &str, values: &[Value]) -> String {
    let mut out = String::with_capacity(text.len() + values.len() * 80);
    let mut next = 0;
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('?') {
        out.push_str(before);
        let digits = after.len() - after.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let at = after[..digits].parse::<usize>().map_or(next, |number| number.wrapping_sub(1));
        next += usize::from(digits == 0);
        // A missing value becomes NULL, and the statement fails where NULL is not allowed.
        out.push_str(&values.get(at).map_or_else(|| "NULL".to_owned(), written));
        rest = &after[digits..];
    }
    out.push_str(rest);
    out
}

fn written(value: &Value) -> String {
    match value {
        Value::Int(Some(value)) => value.to_string(),
        Value::Bytes(Some(value)) => literal::bytes(value),
        Value::Text(Some(value)) => literal::text(value),
        Value::Int(None) | Value::Bytes(None) | Value::Text(None) => "NULL".to_owned(),
    }
}

fn read(row: &MySqlRow) -> Result<Row, DriverError> {
    let column = |(at, column): (usize, &sqlx::mysql::MySqlColumn)| {
        let value = match column.type_info().name() {
            "BOOLEAN" | "TINYINT" | "SMALLINT" | "MEDIUMINT" | "INT" | "BIGINT" => {
                Value::Int(row.try_get(at).map_err(explain)?)
            }
            name if name.ends_with(" UNSIGNED") => {
                let value = row.try_get::<Option<u64>, _>(at).map_err(explain)?;
                Value::Int(value.map(|value| i64::try_from(value).unwrap_or(i64::MAX)))
            }
            "BINARY" | "VARBINARY" | "TINYBLOB" | "BLOB" | "MEDIUMBLOB" | "LONGBLOB" => {
                let bytes = row.try_get::<Option<&[u8]>, _>(at).map_err(explain)?;
                Value::Bytes(bytes.map(Bytes::copy_from_slice))
            }
            "NULL" => Value::Text(None),
            _ => Value::Text(row.try_get(at).map_err(explain)?),
        };
        Ok(value)
    };
    row.columns().iter().enumerate().map(column).collect::<Result<_, _>>().map(Row)
}

fn explain(error: sqlx::Error) -> DriverError {
    let kind = match &error {
        sqlx::Error::Database(database) => match database.try_downcast_ref::<MySqlDatabaseError>() {
            Some(database) => kind_of(database.number()),
            None => DriverErrorKind::Other,
        },
        sqlx::Error::Io(_) | sqlx::Error::Tls(_) | sqlx::Error::Protocol(_) | sqlx::Error::WorkerCrashed => {
            DriverErrorKind::Lost
        }
        sqlx::Error::ColumnDecode { .. } | sqlx::Error::Decode(_) => DriverErrorKind::Unreadable,
        _ => DriverErrorKind::Other,
    };
    if kind == DriverErrorKind::Serialization {
        let message = format!(
            "deadlock: the server has rolled back the whole transaction and commits each further statement on this \
             connection by itself; roll back here too and run the whole transaction again \
             ({error})"
        );
        return DriverError::new(kind, message);
    }
    DriverError::of(kind, error.to_string())
}

/// Classifies a server error number.
fn kind_of(number: u16) -> DriverErrorKind {
    match number {
        1213 => DriverErrorKind::Serialization,
        // The statement is undone, the transaction is not.
        1205 | 3572 => DriverErrorKind::Busy,
        1290 | 1792 | 1836 => DriverErrorKind::ReadOnly,
        1062 | 1586 => DriverErrorKind::Unique,
        1054 | 1146 | 1305 => DriverErrorKind::NoTables,
        1053 | 1077..=1079 | 1153 | 1158..=1161 | 1927 | 4031 => DriverErrorKind::Lost,
        _ => DriverErrorKind::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_written_in_their_places_and_as_digits() {
        let values = vec![7.into(), Value::from("'?1"), Value::Bytes(None)];
        assert_eq!(fill("a ?2 ?1 ?3 ?2", &values), "a _utf8mb4 X'273f31' 7 NULL _utf8mb4 X'273f31'");
        assert_eq!(fill("a ?, ?, ?", &values), "a 7, _utf8mb4 X'273f31', NULL");
        assert_eq!(fill("?12 ?0", &values), "NULL NULL");
    }
}
