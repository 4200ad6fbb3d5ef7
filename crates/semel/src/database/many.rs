//! One statement for many rows: arrays on PostgreSQL, longer texts on MySQL, one execution after the other on SQLite.

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

/// A text for MySQL takes no more rows after this many bytes: a server reads no more than `max_allowed_packet` (16 MiB on
/// MariaDB), and closes the connection of one who sends more.
#[cfg(feature = "mysql")]
const TEXT_BYTES: usize = 1 << 20;

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
                let mut all = Rows::default();
                for text in sql.mysql.filled(&rows, TEXT_BYTES) {
                    let some = crate::tx::driver::run_mysql(connection, text).await?;
                    all.rows.extend(some.rows);
                    all.changed += some.changed;
                }
                Ok(all)
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
    /// Texts with at least one row each, and no more than fit into so many bytes.
    #[cfg(feature = "mysql")]
    fn filled(&self, rows: &[Vec<Value>], bytes_max: usize) -> Vec<String> {
        let mut texts: Vec<String> = Vec::new();
        for values in rows {
            let row = crate::tx::driver::fill_mysql(self.row, values);
            let more = self.between.len() + row.len() + self.after.len();
            match texts.last_mut().filter(|text| text.len() + more <= bytes_max) {
                Some(text) => text.push_str(self.between),
                None => texts.push(self.before.to_owned()),
            }
            if let Some(text) = texts.last_mut() {
                text.push_str(&row);
            }
        }
        texts.iter_mut().for_each(|text| text.push_str(self.after));
        texts
    }
}

#[cfg(all(test, feature = "mysql"))]
mod tests {
    use super::*;

    #[test]
    fn a_text_for_mysql_has_each_row() {
        let many = MysqlMany { before: "INSERT VALUES ", row: "(?1, ?2)", between: ", ", after: " x" };
        let rows = vec![vec![1.into(), Value::Text(None)], vec![2.into(), Value::from("a")]];
        assert_eq!(many.filled(&rows, 1000), ["INSERT VALUES (1, NULL), (2, _utf8mb4 X'61') x"]);
    }

    #[test]
    fn rows_that_do_not_fit_into_a_text_are_in_the_next_one() {
        let many = MysqlMany { before: "IN (", row: "?1", between: ", ", after: ")" };
        let rows: Vec<Vec<Value>> = [1, 22, 333_333_333, 4, 5].map(|row| vec![row.into()]).into();
        assert_eq!(many.filled(&rows, 10), ["IN (1, 22)", "IN (333333333)", "IN (4, 5)"]);
        assert_eq!(many.filled(&rows, 9), ["IN (1)", "IN (22)", "IN (333333333)", "IN (4, 5)"]);
        assert_eq!(many.filled(&rows, 0).len(), 5, "each by itself");
        assert_eq!(many.filled(&[], 10), [""; 0]);
    }
}
