//! What a store's author provides: a store, a way to open it again, and a way to let time pass.

use std::future::Future;
use std::time::Duration;

use crate::intent::policy::StoreTime;
use crate::store::Store;

/// How long a store's clock may take beyond the wished moment before it counts as standing still.
const CLOCK_PATIENCE: Duration = Duration::from_secs(20);
/// How often the store's clock is looked at while waiting for it.
const CLOCK_POLL: Duration = Duration::from_millis(5);

/// Hands the laws a store to be judged.
///
/// Every law takes a tenant of its own at random, so one server may serve all laws at once, in parallel and
/// beside other users; only [`Store::sweep`] reaches beyond the tenant, and only to what has expired.
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
    /// The store under judgement.
    type Store: Store;

    /// A store, fresh or shared.
    fn store(&self) -> impl Future<Output = Self::Store> + Send;

    /// Closes the store and opens the same data again; `None` where there is nothing to open again. A store
    /// that says it is [durable](crate::store::Capabilities::durable) has to be opened again to be believed.
    fn reopen(&self, store: Self::Store) -> impl Future<Output = Option<Self::Store>> + Send {
        drop(store);
        async { None }
    }

    /// Whether expired records stay until they are swept. A store that forgets by itself has none to count.
    fn sweeps(&self) -> bool {
        true
    }

    /// Returns when the store's clock has reached `until`. A store on a virtual clock moves it; the others
    /// are waited for.
    fn pass(&self, store: &Self::Store, until: StoreTime) -> impl Future<Output = ()> + Send {
        async move {
            let began = tokio::time::Instant::now();
            let start = store.now().await.expect("the store tells the time");
            let patience = CLOCK_PATIENCE + Duration::from_millis(until.since_ms(start));
            let mut now = start;
            while now < until {
                assert!(began.elapsed() < patience, "the store's clock stands still at {now:?}");
                tokio::time::sleep(CLOCK_POLL).await;
                now = store.now().await.expect("the store tells the time");
            }
        }
    }
}
