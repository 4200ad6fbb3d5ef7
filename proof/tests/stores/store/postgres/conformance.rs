//! The PostgreSQL store keeps every law, each in a schema of its own, and all at once in one.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use semel::conformance::Harness;
use semel::store::postgres::PostgresStore;

use super::place::Place;

/// Tables of its own for each law, which can be opened again.
struct Own(Place);

impl Harness for Own {
    type Store = PostgresStore;

    async fn store(&self) -> PostgresStore {
        self.0.store().await
    }

    async fn reopen(&self, store: PostgresStore) -> Option<PostgresStore> {
        store.close().await;
        Some(self.0.store().await)
    }
}

/// The same tables for all laws, in the middle of each other's traffic.
struct Crowded(Arc<Place>);

impl Crowded {
    /// Shares the place with the tests that are there. It goes with the last one, so that a test that needs the server
    /// alone gets it one day.
    fn join() -> Option<Self> {
        static PLACE: Mutex<Weak<Place>> = Mutex::new(Weak::new());
        let mut kept = PLACE.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(place) = kept.upgrade() {
            return Some(Self(place));
        }
        let place = Arc::new(Place::take()?);
        *kept = Arc::downgrade(&place);
        Some(Self(place))
    }
}

impl Harness for Crowded {
    type Store = PostgresStore;

    async fn store(&self) -> PostgresStore {
        self.0.options().connections(2).open().await.expect("the store opens")
    }

    async fn reopen(&self, store: PostgresStore) -> Option<PostgresStore> {
        store.close().await;
        Some(self.store().await)
    }
}

mod alone {
    semel::store_conformance!(match super::Place::take() {
        Some(place) => super::Own(place),
        None => return,
    });
}

mod crowded {
    semel::store_conformance!(match super::Crowded::join() {
        Some(crowd) => crowd,
        None => return,
    });
}
