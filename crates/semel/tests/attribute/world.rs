//! What these tests share: a store in virtual time, effects that are counted, and a payment.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use semel::store::memory::MemoryStore;
use semel::store::{Record, Store};
use semel::{Guard, Intent, Key, Operation, Scope, StoreTime};
use tokio::time::Instant;

pub type Memory = Guard<MemoryStore>;

/// A guard whose store's clock is tokio's.
pub fn guard() -> Memory {
    let start = Instant::now();
    Guard::new(MemoryStore::with_clock(move || {
        StoreTime(1_000_000 + u64::try_from(start.elapsed().as_millis()).unwrap())
    }))
}

pub fn acme() -> Scope {
    Scope::tenant("acme").unwrap()
}

pub fn key(text: &str) -> Key {
    Key::new(text).unwrap()
}

/// How often the effect happened.
#[derive(Clone, Default)]
pub struct Effects(Arc<AtomicU32>);

impl Effects {
    pub fn happen(&self) -> u32 {
        self.0.fetch_add(1, Ordering::SeqCst) + 1
    }

    pub fn count(&self) -> u32 {
        self.0.load(Ordering::SeqCst)
    }
}

/// What the store has of one of acme's intents.
pub async fn record(guard: &Memory, operation: &str, text: &str) -> Option<Record> {
    let intent = Intent::new(acme(), Operation::new(operation).unwrap(), key(text));
    guard.store().get(intent.id()).await.unwrap()
}
