//! What the guard's tests share: a memory store in virtual time, and work that counts its effects.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use semel::store::memory::MemoryStore;
use semel::{Execution, Key, Outcome, Scope, StoreTime};
use tokio::time::Instant;

/// A memory store whose clock is tokio's, so that `tokio::time::advance` moves leases too.
pub fn store() -> MemoryStore {
    let start = Instant::now();
    MemoryStore::with_clock(move || StoreTime(1_000_000 + start.elapsed().as_millis() as u64))
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

pub fn done(body: &str) -> Execution {
    Execution::completed(Outcome::new(201, body.to_owned()))
}
