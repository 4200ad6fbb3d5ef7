//! How *once* is enforced: claim → run → finish → replay, for any async function.
//!
//! | module | what |
//! |---|---|
//! | [`Guard`] | holds the store, the bounds and the drain |
//! | [`Guarded`] | one operation with its policy: effect, lease, retention, waiting, outage |
//! | `protocol` | the protocol itself |
//! | `typed` | [`Guarded::once`]: the same for values instead of bytes |
//! | `retry` | finishes that failed and claims in doubt, tried until they are known |
//! | `renew`, `lease_time` | keeping the lease while the work goes on, and how long it has lasted |
//! | `wait`, `timeout` | duplicates that wait for the first one; timeouts |
//! | `detach_on_drop` | work in its caller's task that goes on when the caller leaves |
//! | `drain` | what is under way: bounded, and waited for at shutdown |
//! | `answer` | what goes in and what comes out |
//! | `lookup` | finding out about an uncertain intent |
//! | `rebuild` | keeping only what names a result, and making the answer again |

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use crate::intent::identity::{Intent, Operation, OperationError};
use crate::observe::Metrics;
use crate::store::Store;

mod answer;
mod detach_on_drop;
mod drain;
mod lease_time;
mod lookup;
mod operation;
mod protocol;
pub(crate) mod rebuild;
mod renew;
mod retry;
pub(crate) mod timeout;
mod typed;
mod wait;

pub use answer::{Answer, Attempt, Execution, GuardError, WorkResult};
pub use drain::Drained;
pub use lookup::{Found, Lookup};
pub(crate) use lookup::{Held, LookedUp};
pub use operation::{Guarded, LEASE_MAX, LEASE_MIN, Policy, PolicyError, WAIT_MAX};
pub use rebuild::{Kept, Rebuild, Rebuilt};
pub use typed::{Failure, FailureKind, OnceError, Reply};

use drain::Tracker;
use wait::Waiters;

/// Named bounds of one guard.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Limits {
    /// Calls under way at once, waiting ones and those whose caller has left included. One more is refused.
    pub calls_max: usize,
    /// Outcomes that could not be recorded yet and are being tried again. One more is given up, loudly.
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
    /// Runs `task` to its end, whoever waits for it.
    fn spawn(&self, task: Pin<Box<dyn Future<Output = ()> + Send>>);

    /// By how many ms the time of day has moved ahead of the time that timers count. While a machine is suspended its
    /// timers stand still and leases go on, so what is gained between two moments was slept. Only differences are
    /// looked at; a time of day that is set forward looks the same, and ends leases too early rather than too late.
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
            // Only a caller dropped outside of any runtime comes here; its claim lapses into doubt.
            Err(_) => tracing::error!("no tokio runtime is left to settle an abandoned claim"),
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

    /// A guard with bounds, metrics and a place to run of your own.
    pub fn with(store: S, limits: Limits, metrics: Metrics, spawner: impl Spawn) -> Self {
        let tracker = Tracker::new(limits.calls_max, limits.unrecorded_max);
        let (spawner, waiters) = (Arc::new(spawner), Waiters::default());
        Self { inner: Arc::new(Inner { store, metrics, limits, spawner, waiters, tracker }) }
    }

    /// One operation to guard, with the default policy.
    pub fn operation(&self, name: &str) -> Result<Guarded<S>, OperationError> {
        Ok(Guarded::new(self.clone(), Operation::new(name)?))
    }

    /// The store behind it.
    pub fn store(&self) -> &S {
        &self.inner.store
    }

    /// What it has counted.
    pub fn metrics(&self) -> &Metrics {
        &self.inner.metrics
    }

    /// Takes no new calls, waits until all work under way has ended and every outcome is recorded, at most
    /// for `limit`. What a service does on SIGTERM: after a full drain nothing is left uncertain.
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

/// What logs show of an intent: never the raw key.
fn shown(intent: &Intent) -> String {
    format!("{intent:?}")
}
