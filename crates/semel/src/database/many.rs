//! One statement for many rows: arrays on PostgreSQL, a longer text on MySQL, one execution after the other on SQLite.

use super::any_tx::{AnyTx, OwnTx};
use crate::tx::driver::{DriverError, Rows, Value};
#[cfg(feature = "sqlite")]
use crate::tx::driver::{Statement, run_rusqlite};

/// A statement for many rows, in each dialect.
#[cfg_attr(not(all(feature = "postgres", feature = "mysql", feature = "sqlite")), allow(dead_code))]
pub(crate) struct ManySql {
    /// Each parameter is the array of one column.
    pub(crate) postgres: &'static str,
    pub(crate) mysql: MysqlMany,
    /// For one row.
    pub(crate) sqlite: &'static str,
}

/// The text in between is repeated for each row.
#[cfg_attr(not(feature = "mysql"), allow(dead_code))]
pub(crate) struct MysqlMany {
    pub(crate) before: &'static str,
    pub(crate) row: &'static str,
    pub(crate) between: &'static str,
    pub(crate) after: &'static str,
}

impl OwnTx<'_, '_> {
    /// Runs a statement for these rows, which have the same columns. What comes back, and what is counted as changed, is
    /// of all of them together; without rows it is nothing.
    pub(crate) async fn run_many(
        &mut self,
        sql: &ManySql,
        rows: Vec<Vec<Value>>,
    ) -> Result<Rows, DriverError> {
        if rows.is_empty() {
            return Ok(Rows::default());
        }
        match self.inner() {
            #[cfg(feature = "postgres")]
            AnyTx::Postgres(tx) => {
                let arrays = columns(&rows).map(typed);
                crate::tx::driver::run_tokio_postgres_typed(tx, sql.postgres, arrays).await
            }
            #[cfg(feature = "sqlx-postgres")]
            AnyTx::SqlxPostgres(connection) => {
                let query = columns(&rows).fold(sqlx::query(sql.postgres), |query, column| match column {
                    Column::Ints(ints) => query.bind(ints),
                    Column::Bytes(bytes) => query.bind(bytes),
                    Column::Texts(texts) => query.bind(texts),
                });
                crate::tx::driver::run_sqlx_postgres(connection, query).await
            }
            #[cfg(feature = "mysql")]
            AnyTx::Mysql(connection) => {
                crate::tx::driver::run_mysql(connection, sql.mysql.filled(&rows)).await
            }
            #[cfg(feature = "sqlite")]
            AnyTx::Sqlite(connection) => {
                let mut all = Rows::default();
                for values in rows {
                    let one = run_rusqlite(connection, &Statement { text: sql.sqlite, values })?;
                    all.rows.extend(one.rows);
                    all.changed += one.changed;
                }
                Ok(all)
            }
        }
    }
}

/// One column of all rows.
#[cfg(feature = "postgres")]
enum Column<'r> {
    Ints(Vec<Option<i64>>),
    Bytes(Vec<Option<&'r [u8]>>),
    Texts(Vec<Option<&'r str>>),
}

/// The first row says of what types they are.
#[cfg(feature = "postgres")]
fn columns(rows: &[Vec<Value>]) -> impl ExactSizeIterator<Item = Column<'_>> {
    (0..rows.first().map_or(0, Vec::len)).map(|at| {
        let values = rows.iter().map(|row| row.get(at));
        match rows.first().and_then(|row| row.get(at)) {
            Some(Value::Bytes(_)) => {
                let bytes = values.map(|value| match value {
                    Some(Value::Bytes(bytes)) => bytes.as_deref(),
                    _ => None,
                });
                Column::Bytes(bytes.collect())
            }
            Some(Value::Text(_)) => {
                let texts = values.map(|value| match value {
                    Some(Value::Text(text)) => text.as_deref(),
                    _ => None,
                });
                Column::Texts(texts.collect())
            }
            _ => {
                let ints = values.map(|value| match value {
                    Some(Value::Int(int)) => *int,
                    _ => None,
                });
                Column::Ints(ints.collect())
            }
        }
    })
}

/// As a parameter of `tokio_postgres`.
#[cfg(feature = "postgres")]
fn typed(column: Column<'_>) -> crate::tx::driver::TypedPostgres<'_> {
    use tokio_postgres::types::Type;
    match column {
        Column::Ints(ints) => (Box::new(ints), Type::INT8_ARRAY),
        Column::Bytes(bytes) => (Box::new(bytes), Type::BYTEA_ARRAY),
        Column::Texts(texts) => (Box::new(texts), Type::TEXT_ARRAY),
    }
}

impl MysqlMany {
    #[cfg(feature = "mysql")]
    fn filled(&self, rows: &[Vec<Value>]) -> String {
        let mut text = self.before.to_owned();
        for (at, values) in rows.iter().enumerate() {
            text.push_str(if at == 0 { "" } else { self.between });
            text.push_str(&crate::tx::driver::fill_mysql(self.row, values));
        }
        text.push_str(self.after);
        text
    }
}

#[cfg(all(test, feature = "mysql"))]
mod tests {
    use super::*;

    #[test]
    fn a_text_for_mysql_has_each_row() {
        let many = MysqlMany { before: "INSERT VALUES ", row: "(?1, ?2)", between: ", ", after: " x" };
        let rows = vec![vec![1.into(), Value::Text(None)], vec![2.into(), Value::from("a")]];
        assert_eq!(many.filled(&rows), "INSERT VALUES (1, NULL), (2, _utf8mb4 X'61') x");
    }
}
