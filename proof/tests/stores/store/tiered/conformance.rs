//! The laws, with a cache in front.

use semel::conformance::Harness;
use semel::store::sqlite::SqliteStore;
use semel::store::tiered::TieredStore;

use super::support::Place;

impl Harness for Place {
    type Store = TieredStore<SqliteStore>;

    async fn store(&self) -> Self::Store {
        self.open().await
    }

    async fn reopen(&self, store: Self::Store) -> Option<Self::Store> {
        store.authority().close().await;
        drop(store);
        Some(self.open().await)
    }
}

mod over_sqlite {
    semel::store_conformance!(match super::Place::new() {
        Some(place) => place,
        None => return,
    });
}
