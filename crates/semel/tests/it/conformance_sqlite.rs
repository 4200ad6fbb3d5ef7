//! The SQLite store keeps every law, each on a file of its own and all at once on one file.

use std::sync::LazyLock;
use std::time::Duration;

use semel::conformance::Harness;
use semel::store::sqlite::SqliteStore;
use tempfile::TempDir;

/// A file of its own for each law, which can be opened again.
struct Own(TempDir);

impl Own {
    fn new() -> Self {
        Self(TempDir::new().expect("a temporary directory"))
    }

    async fn open(&self) -> SqliteStore {
        SqliteStore::open(self.0.path().join("semel.db")).await.expect("the file opens")
    }
}

impl Harness for Own {
    type Store = SqliteStore;

    async fn store(&self) -> SqliteStore {
        self.open().await
    }

    async fn reopen(&self, store: SqliteStore) -> Option<SqliteStore> {
        drop(store);
        Some(self.open().await)
    }
}

static DIRECTORY: LazyLock<TempDir> = LazyLock::new(testkit::scratch::directory);
/// So many writers one after the other: none may give up the wait for a turn.
const TURN: Duration = Duration::from_secs(120);

/// One file for all laws: each law opens it anew, so that many writers compete for it like processes do.
struct Crowded;

impl Harness for Crowded {
    type Store = SqliteStore;

    async fn store(&self) -> SqliteStore {
        let options = SqliteStore::options().busy_timeout(TURN);
        options.open(DIRECTORY.path().join("semel.db")).await.expect("the file opens")
    }

    async fn reopen(&self, store: SqliteStore) -> Option<SqliteStore> {
        drop(store);
        Some(self.store().await)
    }
}

mod alone {
    semel::store_conformance!(super::Own::new());
}

mod crowded {
    semel::store_conformance!(super::Crowded);
}
