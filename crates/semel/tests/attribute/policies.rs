//! What was written is what holds, and what was not written is the default.

use std::time::Duration;

use semel::guard::{LEASE_MAX, LEASE_MIN, Policy, WAIT_MAX};
use semel::intent::identity::OPERATION_BYTES_MAX;
use semel::store::Store;
use semel::{Effect, OnceError, Retention, State};

use crate::world::{Memory, guard, record};

const DAY_MS: u64 = 24 * 60 * 60 * 1000;

#[semel::idempotent(operation = "week", retention = "7d", guard = guard, scope = "acme", key = "k")]
async fn week(guard: &Memory) -> Result<(), OnceError> {
    Ok(())
}

#[semel::idempotent(operation = "forever", retention = "forever", guard = guard, scope = "acme", key = "k")]
async fn forever(guard: &Memory) -> Result<(), OnceError> {
    Ok(())
}

#[semel::idempotent(operation = "default", guard = guard, scope = "acme", key = "k")]
async fn default(guard: &Memory) -> Result<(), OnceError> {
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn outcomes_are_remembered_as_long_as_declared() {
    let guard = guard();
    week(&guard).await.unwrap();
    forever(&guard).await.unwrap();
    default(&guard).await.unwrap();
    let now = guard.store().now().await.unwrap();
    assert_eq!(Policy::default().retention, Retention::DAY);
    for (operation, expiry) in [
        ("week", Some(now.plus_ms(7 * DAY_MS))),
        ("forever", None),
        ("default", Policy::default().retention.expiry(now)),
    ] {
        assert_eq!(record(&guard, operation, "k").await.unwrap().head.expires_at, expiry, "{operation}");
    }
}

#[semel::idempotent(operation = "lease", effect = "keyed", lease = "90s", timeout = "1h", guard = guard, scope = "acme", key = "k")]
async fn leased(guard: &Memory) -> Result<(), OnceError> {
    std::future::pending().await
}

#[tokio::test(start_paused = true)]
async fn lease_effect_and_timeout_are_as_declared() {
    let guard = guard();
    let running = tokio::spawn({
        let guard = guard.clone();
        async move { leased(&guard).await }
    });
    while record(&guard, "lease", "k").await.is_none() {
        tokio::task::yield_now().await;
    }
    let head = record(&guard, "lease", "k").await.unwrap().head;
    let now = guard.store().now().await.unwrap();
    assert_eq!((head.state, head.effect), (State::InProgress, Effect::Keyed));
    assert_eq!(head.lease_until, now.plus_ms(90_000));
    let error = running.await.unwrap().unwrap_err();
    assert!(error.to_string().contains("3600s"), "{error}");
}

/// The macro has these numbers too, and can have them from nowhere else. If you change one, change `value.rs` of
/// semel-macros with it.
#[test]
fn the_bounds_the_attribute_checks_are_those_of_the_guard() {
    assert_eq!(LEASE_MIN, Duration::from_millis(10));
    assert_eq!(LEASE_MAX, Duration::from_secs(24 * 60 * 60));
    assert_eq!(WAIT_MAX, Duration::from_secs(5 * 60));
    assert_eq!(OPERATION_BYTES_MAX, 200);
}

#[semel::idempotent(operation = "least", lease = "10ms", in_flight = "wait:0s", guard = guard, scope = "acme", key = "k")]
async fn least(guard: &Memory) -> Result<(), OnceError> {
    Ok(())
}

#[semel::idempotent(operation = "most", lease = "24h", in_flight = "wait:5m", store_down = "closed", guard = guard, scope = "acme", key = "k")]
async fn most(guard: &Memory) -> Result<(), OnceError> {
    Ok(())
}

#[tokio::test]
async fn what_the_attribute_lets_through_the_guard_takes() {
    let guard = guard();
    least(&guard).await.unwrap();
    most(&guard).await.unwrap();
}
