//! What a store's author provides: a store, a way to reopen it, and a way to let time pass.

use std::future::Future;
use std::time::Duration;

use crate::intent::policy::StoreTime;
use crate::store::Store;

/// How much longer than expected the store's clock may take before it counts as stopped.
const CLOCK_TIMEOUT: Duration = Duration::from_secs(20);
/// How often the store's clock is polled while waiting for it.
const CLOCK_POLL: Duration = Duration::from_millis(5);

/// Provides the store under test.
///
/// Every law uses its own random tenant, so one server may serve all laws at once, in parallel and beside other
/// users. Only [`Store::sweep`] reaches beyond the tenant, and only to expired records.
///
/// ```
/// use semel::conformance::{self, Harness};
/// use semel::store::memory::MemoryStore;
///
/// struct Memory;
///
/// impl Harness for Memory {
///     type Store = MemoryStore;
///     async fn store(&self) -> MemoryStore {
///         MemoryStore::new()
///     }
/// }
///
/// // In a test file: `semel::store_conformance!(Memory);`. One law by hand:
/// conformance::block_on(conformance::a_fresh_claim_runs(&Memory));
/// ```
pub trait Harness: Send + Sync {
    /// The store under test.
    type Store: Store;

    /// A store, fresh or shared.
    fn store(&self) -> impl Future<Output = Self::Store> + Send;

    /// Closes the store and opens the same data again; `None` if there is nothing to reopen. A store that claims to be
    /// [durable](crate::store::Capabilities::durable) has to be reopened as proof.
    fn reopen(&self, store: Self::Store) -> impl Future<Output = Option<Self::Store>> + Send {
        drop(store);
        async { None }
    }

    /// Whether expired records stay until they are swept. A store that deletes them by itself has none to count.
    fn sweeps(&self) -> bool {
        true
    }

    /// Returns when the store's clock has reached `until`. For a virtual clock, override this to advance it; the
    /// default waits.
    fn pass(&self, store: &Self::Store, until: StoreTime) -> impl Future<Output = ()> + Send {
        async move {
            let began = tokio::time::Instant::now();
            let start = store.now().await.expect("the store returns its time");
            let timeout = CLOCK_TIMEOUT + Duration::from_millis(until.since_ms(start));
            let mut now = start;
            while now < until {
                assert!(began.elapsed() < timeout, "the store's clock is stuck at {now:?}");
                tokio::time::sleep(CLOCK_POLL).await;
                now = store.now().await.expect("the store returns its time");
            }
        }
    }
}
