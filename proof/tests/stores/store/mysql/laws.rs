//! Every law, each through a store of its own and all at once in one database.

use semel::conformance::Harness;
use semel::store::mysql::{MysqlOptions, MysqlStore};
use testkit::services::{Lease, require};

use super::SERVER;
use super::support::{PATIENT, SOON, raw, run};

/// The laws ask much at once: a request waits long enough for a connection.
fn options() -> MysqlOptions {
    MysqlStore::options().queue_wait(SOON)
}

/// All laws share the server's ordinary database, as many processes would.
struct Shared(Lease);

impl Shared {
    fn new() -> Option<Self> {
        require(SERVER).map(Self)
    }

    async fn open(&self) -> MysqlStore {
        options().open(&format!("{}{PATIENT}", self.0.url())).await.expect("the store opens")
    }
}

impl Harness for Shared {
    type Store = MysqlStore;

    async fn store(&self) -> MysqlStore {
        self.open().await
    }

    async fn reopen(&self, store: MysqlStore) -> Option<MysqlStore> {
        store.close().await;
        Some(self.open().await)
    }
}

mod shared {
    semel::store_conformance!(match super::Shared::new() {
        Some(harness) => harness,
        None => return,
    });
}

/// The same with one connection and batches of one, in a database of their own: no request travels with
/// another.
struct Lone {
    url: String,
    _lease: Lease,
}

impl Lone {
    fn new() -> Option<Self> {
        let lease = require(SERVER)?;
        // With one connection each, a law that sweeps all the time leaves another nothing to count: those have a
        // database each.
        let law = std::thread::current().name().and_then(|name| name.rsplit(':').next()).map(str::to_owned);
        let name = match law.filter(|law| law.contains("sweep")) {
            Some(law) => format!("semel_lone_{}", &law[..law.len().min(40)]),
            None => "semel_lone".to_owned(),
        };
        let url = format!("{}/{name}{PATIENT}", lease.url().rsplit_once('/').expect("a database").0);
        semel::conformance::block_on(async {
            let mut connection = raw(lease.url()).await;
            run(&mut connection, &format!("CREATE DATABASE IF NOT EXISTS {name}")).await;
        });
        Some(Self { url, _lease: lease })
    }
}

impl Harness for Lone {
    type Store = MysqlStore;

    async fn store(&self) -> MysqlStore {
        options().connections(1).batch_max(1).open(&self.url).await.expect("the store opens")
    }

    async fn reopen(&self, store: MysqlStore) -> Option<MysqlStore> {
        store.close().await;
        Some(self.store().await)
    }
}

mod lone {
    semel::store_conformance!(match super::Lone::new() {
        Some(harness) => harness,
        None => return,
    });
}
