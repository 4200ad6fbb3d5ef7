//! Over `rusqlite`, which is synchronous: each future is ready when it is polled first.

use std::time::Duration;

use bytes::Bytes;
use rusqlite::types::{ToSqlOutput, ValueRef};
use rusqlite::{Connection, ErrorCode, ToSql, ffi, params_from_iter};

use super::{Dialect, DriverError, DriverErrorKind, Lend, Row, Rows, Statement, Tx, Value};

impl Lend for &Connection {
    type Lent<'l> = &'l Connection;
}

/// Statements and pauses block the thread: not for a thread that an async runtime needs.
impl Tx for &Connection {
    fn dialect(&self) -> Dialect {
        Dialect::Sqlite
    }

    fn lend(&mut self) -> Self::Lent<'_> {
        self
    }

    fn is_open(&self) -> bool {
        !self.is_autocommit()
    }

    async fn run(&mut self, statement: Statement) -> Result<Rows, DriverError> {
        run(self, &statement)
    }

    async fn pause(&mut self, pause: Duration) {
        std::thread::sleep(pause);
    }
}

pub(crate) fn run(connection: &Connection, statement: &Statement) -> Result<Rows, DriverError> {
    let mut prepared = connection.prepare_cached(statement.text).map_err(explain)?;
    let columns = prepared.column_count();
    let mut rows = Vec::new();
    {
        let mut found = prepared.query(params_from_iter(&statement.values)).map_err(explain)?;
        while let Some(row) = found.next().map_err(explain)? {
            let read = |column| row.get_ref(column).map_err(explain).and_then(|value| read(column, value));
            rows.push(Row((0..columns).map(read).collect::<Result<_, _>>()?));
        }
    }
    Ok(Rows { rows, changed: connection.changes() })
}

impl ToSql for Value {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        let value = match self {
            Self::Int(Some(value)) => ValueRef::Integer(*value),
            Self::Bytes(Some(value)) => ValueRef::Blob(value),
            Self::Text(Some(value)) => ValueRef::Text(value.as_bytes()),
            Self::Int(None) | Self::Bytes(None) | Self::Text(None) => ValueRef::Null,
        };
        Ok(ToSqlOutput::Borrowed(value))
    }
}

fn read(column: usize, value: ValueRef<'_>) -> Result<Value, DriverError> {
    match value {
        ValueRef::Null => Ok(Value::Int(None)),
        ValueRef::Integer(value) => Ok(value.into()),
        ValueRef::Blob(value) => Ok(Value::Bytes(Some(Bytes::copy_from_slice(value)))),
        ValueRef::Text(value) => match std::str::from_utf8(value) {
            Ok(text) => Ok(text.into()),
            Err(error) => Err(DriverError::of(DriverErrorKind::Unreadable, error)),
        },
        ValueRef::Real(_) => {
            let message = format!("column {column} of the result is a floating-point number");
            Err(DriverError::new(DriverErrorKind::Unreadable, message))
        }
    }
}

pub(crate) fn explain(error: rusqlite::Error) -> DriverError {
    let rusqlite::Error::SqliteFailure(failure, words) = &error else {
        return DriverError::of(DriverErrorKind::Unreadable, error.to_string());
    };
    let kind = match (failure.code, failure.extended_code) {
        // Waiting cannot help: this transaction's snapshot is out of date.
        (_, ffi::SQLITE_BUSY_SNAPSHOT) => DriverErrorKind::Serialization,
        (ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked, _) => DriverErrorKind::Busy,
        (ErrorCode::ReadOnly, _) => DriverErrorKind::ReadOnly,
        (_, ffi::SQLITE_CONSTRAINT_UNIQUE | ffi::SQLITE_CONSTRAINT_PRIMARYKEY) => DriverErrorKind::Unique,
        _ if words.as_ref().is_some_and(|words| words.contains("no such table")) => DriverErrorKind::NoTables,
        _ => DriverErrorKind::Other,
    };
    DriverError::of(kind, error.to_string())
}
