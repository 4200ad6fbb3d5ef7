//! Options that a function needs.

use semel::idempotent;
use semel::store::memory::MemoryStore;
use semel::{Guard, Key, OnceError, Scope};

#[idempotent(guard = guard, scope = scope, key = key)]
async fn operation(guard: &Guard<MemoryStore>, scope: &Scope, key: &Key) -> Result<u32, OnceError> {
    Ok(1)
}

#[idempotent(operation = "pay", guard = guard, scope = scope)]
async fn key(guard: &Guard<MemoryStore>, scope: &Scope, key: &Key) -> Result<u32, OnceError> {
    Ok(1)
}

#[idempotent(operation = "pay", guard = guard, key = key)]
async fn scope(guard: &Guard<MemoryStore>, scope: &Scope, key: &Key) -> Result<u32, OnceError> {
    Ok(1)
}

#[idempotent(operation = "pay", scope = scope, key = key)]
async fn guard(guard: &Guard<MemoryStore>, scope: &Scope, key: &Key) -> Result<u32, OnceError> {
    Ok(1)
}

fn main() {}
