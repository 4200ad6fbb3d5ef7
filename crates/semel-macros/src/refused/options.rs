//! Options that are unknown, repeated or without a value.

use semel::idempotent;
use semel::store::memory::MemoryStore;
use semel::{Guard, Key, OnceError, Scope};

#[idempotent(operation = "pay", retension = "7d", guard = guard, scope = scope, key = key)]
async fn unknown(guard: &Guard<MemoryStore>, scope: &Scope, key: &Key) -> Result<u32, OnceError> {
    Ok(1)
}

#[idempotent(operation = "pay", lease = "30s", lease = "60s", guard = guard, scope = scope, key = key)]
async fn twice(guard: &Guard<MemoryStore>, scope: &Scope, key: &Key) -> Result<u32, OnceError> {
    Ok(1)
}

#[idempotent(operation = "pay", single_tenant, guard = guard, scope = scope, key = key)]
async fn two_scopes(guard: &Guard<MemoryStore>, scope: &Scope, key: &Key) -> Result<u32, OnceError> {
    Ok(1)
}

#[idempotent(operation = "pay", lease, guard = guard, scope = scope, key = key)]
async fn no_value(guard: &Guard<MemoryStore>, scope: &Scope, key: &Key) -> Result<u32, OnceError> {
    Ok(1)
}

#[idempotent(operation = "pay", lease = 30, guard = guard, scope = scope, key = key)]
async fn no_text(guard: &Guard<MemoryStore>, scope: &Scope, key: &Key) -> Result<u32, OnceError> {
    Ok(1)
}

#[idempotent(operation = "pay", guard = guard, scope = scope, key = key, skip = key)]
async fn no_list(guard: &Guard<MemoryStore>, scope: &Scope, key: &Key) -> Result<u32, OnceError> {
    Ok(1)
}

#[idempotent(operation = "pay" lease = "30s", guard = guard, scope = scope, key = key)]
async fn no_comma(guard: &Guard<MemoryStore>, scope: &Scope, key: &Key) -> Result<u32, OnceError> {
    Ok(1)
}

fn main() {}
