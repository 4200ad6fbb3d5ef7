//! The memory store keeps every law: in virtual time, in real time with all laws at one store at once, and
//! behind the type that is chosen at run time.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};

use semel::StoreTime;
use semel::conformance::Harness;
use semel::store::AnyStore;
use semel::store::memory::MemoryStore;

/// A clock that moves only by hand. It starts in 1970: far from the machine's, so that a store that asks the
/// machine is found out.
#[derive(Clone)]
pub(crate) struct ManualClock(Arc<AtomicU64>);

impl ManualClock {
    pub(crate) fn new() -> Self {
        Self(Arc::new(AtomicU64::new(1_000_000)))
    }

    pub(crate) fn now(&self) -> StoreTime {
        StoreTime(self.0.load(Ordering::SeqCst))
    }

    pub(crate) fn reach(&self, until: StoreTime) {
        self.0.fetch_max(until.0, Ordering::SeqCst);
    }

    pub(crate) fn store(&self) -> MemoryStore {
        let clock = self.clone();
        MemoryStore::with_clock(move || clock.now())
    }
}

struct Virtual(ManualClock);

impl Harness for Virtual {
    type Store = MemoryStore;

    async fn store(&self) -> MemoryStore {
        self.0.store()
    }

    async fn pass(&self, _store: &MemoryStore, until: StoreTime) {
        self.0.reach(until);
    }
}

struct Shared;

static SHARED: LazyLock<MemoryStore> = LazyLock::new(MemoryStore::new);

impl Harness for Shared {
    type Store = MemoryStore;

    async fn store(&self) -> MemoryStore {
        SHARED.clone()
    }
}

struct ChosenAtRunTime(ManualClock);

impl Harness for ChosenAtRunTime {
    type Store = AnyStore;

    async fn store(&self) -> AnyStore {
        AnyStore::new(self.0.store())
    }

    async fn pass(&self, _store: &AnyStore, until: StoreTime) {
        self.0.reach(until);
    }
}

mod virtual_time {
    semel::store_conformance!(super::Virtual(super::ManualClock::new()));
}

mod real_time {
    semel::store_conformance!(super::Shared);
}

mod chosen_at_run_time {
    semel::store_conformance!(super::ChosenAtRunTime(super::ManualClock::new()));
}
