//! The card provider: books every charge it is asked for, and loses the answer of every third.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use rusqlite::{Connection, OptionalExtension, Row};
use serde::{Deserialize, Serialize};

use crate::Failed;

/// One line of the book.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Charge {
    pub(crate) id: i64,
    pub(crate) amount: i64,
}

/// The bank, with its book in a SQLite file. It honours no keys: asked twice, it charges twice.
#[derive(Clone)]
pub(crate) struct Bank(Arc<Mutex<Connection>>);

impl Bank {
    pub(crate) fn open(path: &Path) -> Result<Self, Failed> {
        let book = Connection::open(path)?;
        book.execute_batch(
            "CREATE TABLE IF NOT EXISTS charges
                 (id INTEGER PRIMARY KEY, reference TEXT NOT NULL, amount INTEGER NOT NULL)",
        )?;
        Ok(Self(Arc::new(Mutex::new(book))))
    }

    /// Charges; and may then not say so.
    pub(crate) async fn charge(&self, reference: &str, amount: i64) -> Result<Charge, Failed> {
        let reference = reference.to_owned();
        let insert = "INSERT INTO charges (reference, amount) VALUES (?1, ?2) RETURNING id, amount";
        let charge = self.ask(move |book| book.query_row(insert, (reference, amount), charge)).await?;
        if charge.id % 3 == 0 {
            return Err("connection reset by the bank".into());
        }
        Ok(charge)
    }

    /// What was booked under a reference of ours.
    pub(crate) async fn find(&self, reference: &str) -> Result<Option<Charge>, Failed> {
        let reference = reference.to_owned();
        let select = "SELECT id, amount FROM charges WHERE reference = ?1";
        self.ask(move |book| book.query_row(select, [reference], charge).optional()).await
    }

    pub(crate) async fn get(&self, id: i64) -> Result<Option<Charge>, Failed> {
        let select = "SELECT id, amount FROM charges WHERE id = ?1";
        self.ask(move |book| book.query_row(select, [id], charge).optional()).await
    }

    pub(crate) async fn count(&self) -> Result<i64, Failed> {
        self.ask(|book| book.query_row("SELECT count(*) FROM charges", [], |row| row.get(0))).await
    }

    async fn ask<T: Send + 'static>(
        &self,
        what: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, Failed> {
        let book = Arc::clone(&self.0);
        let asked = move || what(&book.lock().unwrap_or_else(PoisonError::into_inner));
        Ok(tokio::task::spawn_blocking(asked).await??)
    }
}

fn charge(row: &Row<'_>) -> rusqlite::Result<Charge> {
    Ok(Charge { id: row.get(0)?, amount: row.get(1)? })
}
