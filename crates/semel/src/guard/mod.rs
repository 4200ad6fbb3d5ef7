//! How *once* is enforced: claim → run → finish → replay, for any async function.
//!
//! In the order of one call:
//!
//! | module | what |
//! |---|---|
//! | [`Guard`] | holds the store, the bounds and the drain |
//! | [`Guarded`] (`operation`) | one operation with its policy: effect, lease, retention, waiting, outage |
//! | `typed` | [`Guarded::once`]: the same for values instead of bytes |
//! | `protocol` | **the whole call on one page** |
//! | `drain` | bounds the calls in flight, and waits for them at shutdown |
//! | `key_age` | refuses time-ordered keys that are older than the retention |
//! | `claim` | asks the store for the intent until the answer is known; its metrics and span |
//! | `give_back` | releases a claim in doubt, or one that came too late, because nothing runs under it |
//! | `run` | the work in a task of its own, with panics caught and its time bounded, and then its finish |
//! | `detach_on_drop` | work in its caller's task that continues when the caller leaves |
//! | `renew`, `lease_time` | renewing the lease while the work runs, and how long the lease has lasted |
//! | `finish` | records the outcome, now or in the background, and makes the answer |
//! | `replay` | the answer of an earlier run |
//! | `rebuild` | storing only a reference to the result, from which `replay` rebuilds the answer |
//! | `wait` | duplicates that wait for the first call |
//! | `lookup` | resolving an uncertain intent |
//! | `unguarded` | the store is down and the policy is open: the work runs without a claim |
//! | `store_call`, `retry` | one request to the store, and the backoff of those that are retried in the background |
//! | `answer` | input and result types |

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use crate::intent::identity::{Intent, Operation, OperationError};
use crate::observe::Metrics;
use crate::store::Store;

mod answer;
mod claim;
mod detach_on_drop;
mod drain;
mod finish;
mod give_back;
mod key_age;
mod lease_time;
mod lookup;
mod operation;
mod protocol;
pub(crate) mod rebuild;
mod renew;
mod replay;
mod retry;
mod run;
mod store_call;
mod typed;
mod unguarded;
mod wait;

pub use answer::{Answer, Attempt, Execution, GuardError, WorkResult};
pub use drain::Drained;
pub use lookup::{Found, Lookup};
pub(crate) use lookup::{LookedUp, Unresolved};
pub use operation::{Guarded, LEASE_MAX, LEASE_MIN, Policy, PolicyError, WAIT_MAX};
pub use rebuild::{Kept, Rebuild, Rebuilt};
pub use typed::{Failure, FailureKind, OnceError, Reply};

use drain::Tracker;
use wait::Waiters;

/// Named bounds of one guard.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Limits {
    /// Calls in flight at once, including waiting ones and those whose caller has left. One more is refused.
    pub calls_max: usize,
    /// Outcomes that could not be recorded yet and are being retried. One more is given up with an error in the log.
    pub unrecorded_max: usize,
    /// How long one request to the store may take.
    pub store_timeout: Duration,
    /// How long a caller waits for its outcome to be recorded before it gets the answer anyway.
    pub finish_wait: Duration,
    /// How long a lookup may take.
    pub lookup_timeout: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            calls_max: 10_000,
            unrecorded_max: 10_000,
            store_timeout: Duration::from_secs(5),
            finish_wait: Duration::from_secs(2),
            lookup_timeout: Duration::from_secs(10),
        }
    }
}

/// Where the guard's work runs. The default is the tokio runtime of the caller.
pub trait Spawn: Send + Sync + 'static {
    /// Runs `task` to its end, even if no caller waits for it.
    fn spawn(&self, task: Pin<Box<dyn Future<Output = ()> + Send>>);

    /// How many ms the wall clock is ahead of the clock that timers use. While a machine is suspended its timers
    /// stand still but leases go on, so a gain between two moments is time asleep. Only differences are compared. A
    /// wall clock that is set forward looks the same, and ends leases too early rather than too late.
    fn gained_ms(&self) -> i64 {
        lease_time::gained_ms()
    }
}

/// Spawns on the current tokio runtime.
#[derive(Clone, Copy, Debug, Default)]
pub struct CurrentRuntime;

impl Spawn for CurrentRuntime {
    fn spawn(&self, task: Pin<Box<dyn Future<Output = ()> + Send>>) {
        match tokio::runtime::Handle::try_current() {
            Ok(handle) => {
                handle.spawn(task);
            }
            // Only a caller dropped outside of any runtime gets here; its lease expires and its intent is in doubt.
            Err(_) => tracing::error!(
                "a call was dropped outside of a tokio runtime; its claim stays until its lease expires"
            ),
        }
    }
}

/// Makes work happen once. Cheap to clone; clones share bounds, metrics and the drain.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// use semel::{Guard, Key, Scope, store::memory::MemoryStore};
///
/// let payments = Guard::new(MemoryStore::new()).operation("payment.create")?;
/// let (acme, key) = (Scope::tenant("acme")?, Key::new("order-1001")?);
/// for attempt in 0..3 {
///     let reply = payments
///         .once(&acme, &key, &("EUR", 4200), |_| async { Ok("charged".to_string()) })
///         .await?;
///     assert_eq!(reply.value, "charged");
///     assert_eq!(reply.replayed, attempt > 0);
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
/// ```
pub struct Guard<S> {
    inner: Arc<Inner<S>>,
}

struct Inner<S> {
    store: S,
    metrics: Metrics,
    limits: Limits,
    spawner: Arc<dyn Spawn>,
    waiters: Waiters,
    tracker: Tracker,
}

impl<S> Clone for Guard<S> {
    fn clone(&self) -> Self {
        Self { inner: Arc::clone(&self.inner) }
    }
}

impl<S: Store> Guard<S> {
    /// A guard on a store, with default bounds.
    pub fn new(store: S) -> Self {
        Self::with(store, Limits::default(), Metrics::new(), CurrentRuntime)
    }

    /// A guard with your own bounds, metrics and spawner.
    pub fn with(store: S, limits: Limits, metrics: Metrics, spawner: impl Spawn) -> Self {
        let tracker = Tracker::new(limits.calls_max, limits.unrecorded_max);
        let (spawner, waiters) = (Arc::new(spawner), Waiters::default());
        Self { inner: Arc::new(Inner { store, metrics, limits, spawner, waiters, tracker }) }
    }

    /// An operation to guard, with the default policy.
    pub fn operation(&self, name: &str) -> Result<Guarded<S>, OperationError> {
        Ok(Guarded::new(self.clone(), Operation::new(name)?))
    }

    /// The store it uses.
    pub fn store(&self) -> &S {
        &self.inner.store
    }

    /// Its metrics.
    pub fn metrics(&self) -> &Metrics {
        &self.inner.metrics
    }

    /// Graceful shutdown: refuses new calls and waits, at most for `limit`, until all work in flight has ended and
    /// every outcome is recorded. Call it on SIGTERM. After a full drain nothing is left uncertain.
    pub async fn drain(&self, limit: Duration) -> Drained {
        self.inner.tracker.drain(limit).await
    }

    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.inner.spawner.spawn(Box::pin(task));
    }
}

impl<S> std::fmt::Debug for Guard<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Guard").field("limits", &self.inner.limits).finish_non_exhaustive()
    }
}

/// An intent as logs show it: never the raw key.
fn shown(intent: &Intent) -> String {
    format!("{intent:?}")
}
