//! Over `tokio_postgres`.

use bytes::Bytes;
use futures_util::TryStreamExt;
use tokio_postgres::types::{ToSql, Type};

use super::error::kind_of_sqlstate;
use super::{Dialect, DriverError, DriverErrorKind, Lend, Row, Rows, Statement, Tx, Value};

impl Lend for tokio_postgres::Transaction<'_> {
    type Lent<'l> = &'l tokio_postgres::Transaction<'l>;
}

impl Tx for tokio_postgres::Transaction<'_> {
    fn dialect(&self) -> Dialect {
        Dialect::Postgres
    }

    fn lend(&mut self) -> Self::Lent<'_> {
        self
    }

    async fn run(&mut self, statement: Statement) -> Result<Rows, DriverError> {
        run(self, statement).await
    }
}

/// Types are sent along, so nothing is prepared: one round trip, also through PgBouncer. What is worth planning once is
/// inside functions, whose plans the server keeps per session.
pub(crate) async fn run(
    tx: &tokio_postgres::Transaction<'_>,
    statement: Statement,
) -> Result<Rows, DriverError> {
    run_typed(tx, statement.text, statement.values.iter().map(bound)).await
}

/// The same with parameters of any type.
pub(crate) async fn run_typed(
    tx: &tokio_postgres::Transaction<'_>,
    text: &str,
    values: impl ExactSizeIterator<Item = Typed<'_>>,
) -> Result<Rows, DriverError> {
    let stream = tx.query_typed_raw(text, values).await.map_err(explain)?;
    let mut stream = std::pin::pin!(stream);
    let mut rows = Vec::new();
    while let Some(row) = stream.try_next().await.map_err(explain)? {
        rows.push(read(&row)?);
    }
    Ok(Rows { rows, changed: stream.rows_affected().unwrap_or(0) })
}

/// A parameter, and its type.
pub(crate) type Typed<'v> = (Box<dyn ToSql + Sync + Send + 'v>, Type);

/// A value as a parameter.
pub(crate) fn bound(value: &Value) -> Typed<'_> {
    match value {
        Value::Int(value) => (Box::new(*value), Type::INT8),
        Value::Bytes(value) => (Box::new(value.as_deref()), Type::BYTEA),
        Value::Text(value) => (Box::new(value.as_deref()), Type::TEXT),
    }
}

fn read(row: &tokio_postgres::Row) -> Result<Row, DriverError> {
    let column = |(at, column): (usize, &tokio_postgres::Column)| {
        let value = match *column.type_() {
            Type::INT8 => Value::Int(row.try_get(at).map_err(explain)?),
            Type::INT4 => Value::Int(row.try_get::<_, Option<i32>>(at).map_err(explain)?.map(i64::from)),
            Type::INT2 => Value::Int(row.try_get::<_, Option<i16>>(at).map_err(explain)?.map(i64::from)),
            Type::BOOL => Value::Int(row.try_get::<_, Option<bool>>(at).map_err(explain)?.map(i64::from)),
            Type::BYTEA => {
                let bytes = row.try_get::<_, Option<&[u8]>>(at).map_err(explain)?;
                Value::Bytes(bytes.map(Bytes::copy_from_slice))
            }
            _ => Value::Text(row.try_get(at).map_err(explain)?),
        };
        Ok(value)
    };
    row.columns().iter().enumerate().map(column).collect::<Result<_, _>>().map(Row)
}

fn explain(error: tokio_postgres::Error) -> DriverError {
    let kind = match error.code() {
        Some(code) => kind_of_sqlstate(code.code()),
        None if error.is_closed() => DriverErrorKind::Lost,
        // Neither a server error nor a closed connection: I/O failed, or a value could not be converted.
        None => match std::error::Error::source(&error) {
            Some(source) if source.is::<std::io::Error>() => DriverErrorKind::Lost,
            _ => DriverErrorKind::Other,
        },
    };
    let message = error.as_db_error().map_or_else(|| error.to_string(), |error| error.message().to_owned());
    DriverError::of(kind, message)
}
