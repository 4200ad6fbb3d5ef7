//! Items that are no function, or none that can be guarded.

use semel::idempotent;
use semel::store::memory::MemoryStore;
use semel::{Guard, Key, OnceError, Scope};

#[idempotent(operation = "pay", guard = guard, scope = scope, key = key)]
fn not_async(guard: &Guard<MemoryStore>, scope: &Scope, key: &Key) -> Result<u32, OnceError> {
    Ok(1)
}

#[idempotent(operation = "pay", guard = guard, scope = scope, key = key)]
async fn no_result(guard: &Guard<MemoryStore>, scope: &Scope, key: &Key) {}

#[idempotent(operation = "pay", guard = guard, scope = scope, key = key)]
async fn a_pair(guard: &Guard<MemoryStore>, scope: &Scope, key: &Key) -> (u32, OnceError) {
    1
}

#[idempotent(operation = "pay")]
struct NoFunction;

trait Payments {
    #[idempotent(operation = "pay")]
    async fn no_body();
}

fn main() {}
