//! A function runs once per scope and key, and its arguments are what was asked for.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use semel::store::Store;
use semel::store::memory::MemoryStore;
use semel::{Guard, GuardError, Key, OnceError, Scope};
use tokio::sync::Notify;

use crate::world::{Effects, Memory, acme, guard, key};

#[semel::idempotent(operation = "charge", guard = guard, scope = scope, key = key, skip(effects))]
async fn charge(
    guard: &Memory,
    scope: Scope,
    key: Key,
    cents: u32,
    currency: &'static str,
    effects: Effects,
) -> Result<String, OnceError> {
    // Everything that is owned is there, the key and the scope too.
    Ok(format!("{} {} {cents} {currency} {}", scope.as_str(), key.as_str(), effects.happen()))
}

#[tokio::test]
async fn a_retry_gets_the_value_of_the_first_run() {
    let (guard, effects) = (guard(), Effects::default());
    for _ in 0..3 {
        let value = charge(&guard, acme(), key("k"), 4200, "EUR", effects.clone()).await.unwrap();
        assert_eq!(value, "acme k 4200 EUR 1");
    }
    assert_eq!(effects.count(), 1);
}

#[tokio::test]
async fn another_argument_under_the_same_key_is_a_mismatch_and_a_skipped_one_is_not() {
    let (guard, effects) = (guard(), Effects::default());
    charge(&guard, acme(), key("k"), 4200, "EUR", effects.clone()).await.unwrap();
    for (cents, currency) in [(4201, "EUR"), (4200, "USD")] {
        let other = charge(&guard, acme(), key("k"), cents, currency, effects.clone()).await;
        assert!(matches!(other, Err(OnceError::Guard(GuardError::Mismatch))), "{other:?}");
    }
    let elsewhere = Effects::default();
    charge(&guard, acme(), key("k"), 4200, "EUR", elsewhere.clone()).await.unwrap();
    assert_eq!((effects.count(), elsewhere.count()), (1, 0));
}

#[tokio::test]
async fn scopes_and_keys_are_apart() {
    let (guard, effects) = (guard(), Effects::default());
    let globex = Scope::tenant("globex").unwrap();
    for (scope, text) in [(acme(), "k"), (acme(), "other"), (globex, "k")] {
        charge(&guard, scope, key(text), 4200, "EUR", effects.clone()).await.unwrap();
    }
    assert_eq!(effects.count(), 3);
}

#[semel::idempotent(operation = "slow", in_flight = "wait:60s", guard = guard, single_tenant, key = key)]
async fn slow<S: Store>(guard: Guard<S>, key: &str, go: Gate, effects: Effects) -> Result<u32, OnceError> {
    go.0.notified().await;
    Ok(effects.happen())
}

/// Serialises to nothing: which gate it is does not count.
#[derive(Clone, Default)]
struct Gate(Arc<Notify>);

impl serde::Serialize for Gate {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_unit()
    }
}

impl serde::Serialize for Effects {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_unit()
    }
}

#[tokio::test(start_paused = true)]
async fn a_duplicate_waits_as_long_as_declared() {
    let (guard, gate, effects) = (guard(), Gate::default(), Effects::default());
    // Time stands still while anything can run: after a sleep, whatever was spawned is as far as it gets.
    let first = tokio::spawn(slow(guard.clone(), "k", gate.clone(), effects.clone()));
    tokio::time::sleep(Duration::from_millis(1)).await;
    // Longer than two seconds: the answer is "in progress".
    let early = slow(guard.clone(), "k", gate.clone(), effects.clone()).await;
    assert!(matches!(early, Err(OnceError::Guard(GuardError::InFlight { .. }))), "{early:?}");
    let second = tokio::spawn(slow(guard, "k", gate.clone(), effects.clone()));
    tokio::time::sleep(Duration::from_millis(1)).await;
    gate.0.notify_one();
    assert_eq!((first.await.unwrap().unwrap(), second.await.unwrap().unwrap()), (1, 1));
}

static GUARD: LazyLock<Guard<MemoryStore>> = LazyLock::new(|| Guard::new(MemoryStore::new()));

fn the_guard() -> &'static Guard<MemoryStore> {
    &GUARD
}

#[derive(Clone, serde::Serialize)]
struct Order {
    id: String,
    shop: String,
    cents: u32,
}

#[semel::idempotent(operation = "order", guard = GUARD, scope = order.shop, key = format!("order-{}", order.id))]
async fn place(order: Order) -> Result<u32, OnceError> {
    Ok(order.cents)
}

#[semel::idempotent(operation = "order", guard = the_guard(), scope = Scope::tenant(&order.shop)?, key = Key::new(format!("order-{}", order.id))?)]
async fn place_too(mut order: Order) -> Result<u32, Box<dyn std::error::Error + Send + Sync>> {
    order.cents += 1;
    Ok(order.cents)
}

#[tokio::test]
async fn guard_scope_and_key_are_expressions() {
    let order = Order { id: "7".into(), shop: "acme".into(), cents: 4200 };
    assert_eq!(place(order.clone()).await.unwrap(), 4200);
    // The same operation, scope, key and arguments, come by otherwise: the same intent.
    assert_eq!(place_too(order.clone()).await.unwrap(), 4200);
    let other = Order { cents: 1, ..order.clone() };
    assert!(matches!(place(other).await, Err(OnceError::Guard(GuardError::Mismatch))));
    let no_tenant = Order { shop: String::new(), ..order.clone() };
    assert!(matches!(place(no_tenant.clone()).await, Err(OnceError::Scope(_))));
    assert!(place_too(no_tenant).await.unwrap_err().to_string().contains("tenant"));
    let bad = Order { id: "ä".into(), ..order };
    assert!(matches!(place(bad).await, Err(OnceError::Key(_))));
}

#[semel::idempotent(operation = "hygiene", guard = GUARD, single_tenant, key = key)]
async fn shadows(key: String, call: u32) -> Result<u32, OnceError> {
    // The generated code has a name like this one, and it is another.
    Ok(call + 1)
}

#[semel::idempotent(operation = "nothing", guard = GUARD, single_tenant, key = "only")]
async fn nothing() -> Result<(), OnceError> {
    Ok(())
}

#[tokio::test]
async fn names_are_the_bodys_own_and_arguments_may_be_none() {
    assert_eq!(shadows("k".into(), 1).await.unwrap(), 2);
    nothing().await.unwrap();
    nothing().await.unwrap();
}

/// What a service is made of.
struct Services {
    payments: Memory,
}

/// `payments` is a field of what the guard is made from, and an argument: only the argument is asked for.
#[semel::idempotent(operation = "book", guard = state.payments, scope = scope, key = key, skip(effects))]
async fn book(
    state: &Services,
    scope: Scope,
    key: Key,
    payments: Vec<u32>,
    effects: Effects,
) -> Result<u32, OnceError> {
    effects.happen();
    Ok(payments.iter().sum())
}

#[tokio::test]
async fn an_argument_that_shares_its_name_with_a_field_is_part_of_what_was_asked_for() {
    let (state, effects) = (Services { payments: guard() }, Effects::default());
    assert_eq!(book(&state, acme(), key("k"), vec![1, 2], effects.clone()).await.unwrap(), 3);
    assert_eq!(book(&state, acme(), key("k"), vec![1, 2], effects.clone()).await.unwrap(), 3);
    let other = book(&state, acme(), key("k"), vec![7], effects.clone()).await;
    assert!(matches!(other, Err(OnceError::Guard(GuardError::Mismatch))), "{other:?}");
    assert_eq!(effects.count(), 1);
}
