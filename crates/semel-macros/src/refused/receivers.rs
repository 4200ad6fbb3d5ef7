//! `self` that is consumed, or borrowed by work that outlives the borrow.

use semel::idempotent;
use semel::store::memory::MemoryStore;
use semel::{Guard, Key, OnceError, Scope};

struct Payments {
    fee: u32,
}

impl Payments {
    #[idempotent(operation = "pay", guard = guard, scope = scope, key = key)]
    async fn by_value(self, guard: &Guard<MemoryStore>, scope: &Scope, key: &Key) -> Result<u32, OnceError> {
        Ok(1)
    }

    #[idempotent(operation = "pay", guard = guard, scope = scope, key = key)]
    async fn mutable(
        &mut self,
        guard: &Guard<MemoryStore>,
        scope: &Scope,
        key: &Key,
    ) -> Result<u32, OnceError> {
        Ok(1)
    }

    #[idempotent(operation = "pay", guard = guard, scope = scope, key = key)]
    async fn boxed(
        self: Box<Self>,
        guard: &Guard<MemoryStore>,
        scope: &Scope,
        key: &Key,
    ) -> Result<u32, OnceError> {
        Ok(1)
    }

    #[idempotent(operation = "pay", guard = guard, scope = scope, key = key)]
    async fn by_the_work(
        &self,
        guard: &Guard<MemoryStore>,
        scope: &Scope,
        key: &Key,
    ) -> Result<u32, OnceError> {
        Ok(self.fee)
    }

    #[idempotent(operation = "pay")]
    async fn handler(&self, guard: &Guard<MemoryStore>, scope: &Scope, key: &Key) -> Result<u32, OnceError> {
        Ok(1)
    }
}

fn main() {}
