//! Texts without a meaning, and values out of bounds.

use semel::idempotent;
use semel::store::memory::MemoryStore;
use semel::{Guard, Key, OnceError, Scope};

#[idempotent(operation = " pay", guard = guard, scope = scope, key = key)]
async fn name(guard: &Guard<MemoryStore>, scope: &Scope, key: &Key) -> Result<u32, OnceError> {
    Ok(1)
}

#[idempotent(operation = "", guard = guard, scope = scope, key = key)]
async fn name_of_nothing(guard: &Guard<MemoryStore>, scope: &Scope, key: &Key) -> Result<u32, OnceError> {
    Ok(1)
}

#[idempotent(operation = "pay", retention = "7", guard = guard, scope = scope, key = key)]
async fn retention_without_unit(
    guard: &Guard<MemoryStore>,
    scope: &Scope,
    key: &Key,
) -> Result<u32, OnceError> {
    Ok(1)
}

#[idempotent(operation = "pay", retention = "0s", guard = guard, scope = scope, key = key)]
async fn retention_of_nothing(
    guard: &Guard<MemoryStore>,
    scope: &Scope,
    key: &Key,
) -> Result<u32, OnceError> {
    Ok(1)
}

#[idempotent(operation = "pay", lease = "1w", guard = guard, scope = scope, key = key)]
async fn lease_in_weeks(guard: &Guard<MemoryStore>, scope: &Scope, key: &Key) -> Result<u32, OnceError> {
    Ok(1)
}

#[idempotent(operation = "pay", lease = "25h", guard = guard, scope = scope, key = key)]
async fn lease_too_long(guard: &Guard<MemoryStore>, scope: &Scope, key: &Key) -> Result<u32, OnceError> {
    Ok(1)
}

#[idempotent(operation = "pay", lease = "9ms", guard = guard, scope = scope, key = key)]
async fn lease_too_short(guard: &Guard<MemoryStore>, scope: &Scope, key: &Key) -> Result<u32, OnceError> {
    Ok(1)
}

#[idempotent(operation = "pay", in_flight = "queue", guard = guard, scope = scope, key = key)]
async fn in_flight(guard: &Guard<MemoryStore>, scope: &Scope, key: &Key) -> Result<u32, OnceError> {
    Ok(1)
}

#[idempotent(operation = "pay", in_flight = "wait:soon", guard = guard, scope = scope, key = key)]
async fn wait(guard: &Guard<MemoryStore>, scope: &Scope, key: &Key) -> Result<u32, OnceError> {
    Ok(1)
}

#[idempotent(operation = "pay", in_flight = "wait:6m", guard = guard, scope = scope, key = key)]
async fn wait_too_long(guard: &Guard<MemoryStore>, scope: &Scope, key: &Key) -> Result<u32, OnceError> {
    Ok(1)
}

#[idempotent(operation = "pay", timeout = "0s", guard = guard, scope = scope, key = key)]
async fn timeout(guard: &Guard<MemoryStore>, scope: &Scope, key: &Key) -> Result<u32, OnceError> {
    Ok(1)
}

#[idempotent(operation = "pay", effect = "magic", guard = guard, scope = scope, key = key)]
async fn effect(guard: &Guard<MemoryStore>, scope: &Scope, key: &Key) -> Result<u32, OnceError> {
    Ok(1)
}

#[idempotent(operation = "pay", effect = "atomic", guard = guard, scope = scope, key = key)]
async fn atomic(guard: &Guard<MemoryStore>, scope: &Scope, key: &Key) -> Result<u32, OnceError> {
    Ok(1)
}

#[idempotent(operation = "pay", store_down = "maybe", guard = guard, scope = scope, key = key)]
async fn store_down(guard: &Guard<MemoryStore>, scope: &Scope, key: &Key) -> Result<u32, OnceError> {
    Ok(1)
}

fn main() {}
