//! Over `rusqlite`, in a thread of its own.

use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::{Connection, OpenFlags};

use super::explain;
use crate::blocking::ready;
use crate::inbox::dead_letter::any_tx::{AnyTx, LetterOperation, in_tx};
use crate::migration::sqlite_path;
use crate::store::sqlite::error::{SqliteError, refused};
use crate::store::sqlite::open::{full_path, in_thread};
use crate::store::{Fate, StoreError};

/// How long to wait for another writer.
const BUSY: Duration = Duration::from_secs(5);

pub(in crate::inbox::dead_letter) struct Sqlite {
    path: PathBuf,
}

impl Sqlite {
    pub(super) fn new(url: &str) -> Result<Self, StoreError> {
        Ok(Self { path: full_path(sqlite_path(url))? })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) async fn run<T: Send + 'static>(
        &self,
        operation: impl LetterOperation<T>,
    ) -> Result<T, StoreError> {
        let path = self.path.clone();
        in_thread(move || {
            let explained = |fate| {
                let path = path.clone();
                move |error: rusqlite::Error| SqliteError::from(error).explain(&path, fate)
            };
            // A missing file is an error, not an empty inbox.
            let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
            let opened = Connection::open_with_flags(&path, flags).map_err(SqliteError::from);
            let mut connection = opened.map_err(|error| {
                let missing = "cannot be opened; give the path of the file that has the inbox";
                let error = if error.is_cannot_open() { refused(missing.into()) } else { error };
                error.explain(&path, Fate::NotApplied)
            })?;
            connection.busy_timeout(BUSY).map_err(explained(Fate::NotApplied))?;
            connection.execute_batch("BEGIN IMMEDIATE").map_err(explained(Fate::NotApplied))?;
            // After an error the connection is closed, which rolls back.
            let value = ready(in_tx(&mut AnyTx::Sqlite(&mut connection), operation)).map_err(explain)?;
            connection.execute_batch("COMMIT").map_err(explained(Fate::InDoubt))?;
            Ok(value)
        })
        .await
    }
}
