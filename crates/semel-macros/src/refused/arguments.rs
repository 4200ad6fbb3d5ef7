//! Arguments that the work cannot take along, or that have no name.

use semel::idempotent;
use semel::store::memory::MemoryStore;
use semel::{Guard, Key, OnceError, Scope};

#[idempotent(operation = "pay", guard = guard, scope = scope, key = key, skip(database))]
async fn stranger(guard: &Guard<MemoryStore>, scope: &Scope, key: &Key) -> Result<u32, OnceError> {
    Ok(1)
}

#[idempotent(operation = "pay", guard = guard, scope = scope, key = key)]
async fn pattern(
    guard: &Guard<MemoryStore>,
    scope: &Scope,
    key: &Key,
    (cents, currency): (u32, String),
) -> Result<u32, OnceError> {
    Ok(1)
}

#[idempotent(operation = "pay", guard = guard, scope = scope, key = key)]
async fn borrowed(
    guard: &Guard<MemoryStore>,
    scope: &Scope,
    key: &Key,
    currency: &str,
) -> Result<u32, OnceError> {
    Ok(1)
}

#[idempotent(operation = "pay", guard = guard, scope = scope, key = key)]
async fn borrowed_inside(
    guard: &Guard<MemoryStore>,
    scope: &Scope,
    key: &Key,
    memo: Option<std::borrow::Cow<'_, str>>,
) -> Result<u32, OnceError> {
    Ok(1)
}

#[idempotent(operation = "pay", guard = guard, scope = scope, key = key)]
async fn lifetime<'a>(
    guard: &Guard<MemoryStore>,
    scope: &Scope,
    key: &Key,
    currency: &'a str,
) -> Result<u32, OnceError> {
    Ok(1)
}

#[idempotent(operation = "pay", guard = guard, scope = scope, key = key)]
async fn too_many(
    guard: &Guard<MemoryStore>,
    scope: &Scope,
    key: &Key,
    a0: u8,
    a1: u8,
    a2: u8,
    a3: u8,
    a4: u8,
    a5: u8,
    a6: u8,
    a7: u8,
    a8: u8,
    a9: u8,
    a10: u8,
    a11: u8,
    a12: u8,
    a13: u8,
    a14: u8,
    a15: u8,
    a16: u8,
) -> Result<u32, OnceError> {
    Ok(1)
}

fn main() {}
