//! The ledger of a simulated server: one row for each effect, in a SQLite file that is not ours.

use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use rusqlite::{Connection, Transaction, TransactionBehavior};

use crate::Failed;

const TABLE: &str = "CREATE TABLE IF NOT EXISTS effect (id INTEGER PRIMARY KEY, what TEXT NOT NULL, key TEXT NOT NULL) STRICT";

/// The ledger. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Ledger(Arc<Mutex<Connection>>);

impl Ledger {
    /// The ledger in this file.
    pub fn open(path: &Path) -> Result<Self, Failed> {
        let db = Connection::open(path)?;
        db.pragma_update(None, "journal_mode", "WAL")?;
        db.execute_batch(TABLE)?;
        Ok(Self(Arc::new(Mutex::new(db))))
    }

    /// Reads and writes in one transaction, which goes on when the caller has gone away.
    pub async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Transaction<'_>) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, Failed> {
        let db = Arc::clone(&self.0);
        let done = tokio::task::spawn_blocking(move || {
            let mut db = db.lock().unwrap_or_else(PoisonError::into_inner);
            let tx = db.transaction_with_behavior(TransactionBehavior::Immediate)?;
            let value = work(&tx)?;
            tx.commit()?;
            Ok(value)
        });
        done.await.map_err(io::Error::other)?
    }
}

/// The id of the effect of this kind under this key, if it happened.
pub(super) fn find(tx: &Transaction<'_>, what: &str, key: &str) -> rusqlite::Result<Option<i64>> {
    let first = "SELECT min(id) FROM effect WHERE what = ?1 AND key = ?2";
    tx.query_row(first, [what, key], |row| row.get(0))
}

/// Writes an effect and returns its id.
pub(super) fn write(tx: &Transaction<'_>, what: &str, key: &str) -> rusqlite::Result<i64> {
    tx.execute("INSERT INTO effect (what, key) VALUES (?1, ?2)", [what, key])?;
    Ok(tx.last_insert_rowid())
}
