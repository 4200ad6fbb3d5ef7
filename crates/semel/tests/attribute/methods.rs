//! Methods: a service that holds its guard.

use std::sync::Arc;

use semel::{GuardError, OnceError};
use tokio::sync::Semaphore;

use crate::world::{Effects, Memory, guard};

struct Payments {
    guard: Memory,
    effects: Effects,
    /// A payment takes one before it is done.
    permits: Semaphore,
}

impl Payments {
    fn new(permits: usize) -> Arc<Self> {
        Arc::new(Self { guard: guard(), effects: Effects::default(), permits: Semaphore::new(permits) })
    }

    /// Pays once.
    #[semel::idempotent(operation = "pay", in_flight = "wait:5m", guard = self.guard, scope = tenant, key = key)]
    async fn pay(self: Arc<Self>, tenant: &str, key: &str, cents: u32) -> Result<String, OnceError> {
        let run = self.effects.happen();
        self.permits.acquire().await?.forget();
        Ok(format!("{cents} paid by run {run}"))
    }

    #[semel::idempotent(operation = "quote", guard = &self.guard, scope = tenant, key = key)]
    async fn quote(&self, tenant: &str, key: &str, cents: u32) -> Result<u32, OnceError> {
        Ok(cents * 2)
    }
}

#[tokio::test]
async fn a_method_runs_once_and_its_service_is_not_part_of_what_was_asked_for() {
    let payments = Payments::new(1);
    for _ in 0..2 {
        let paid = Arc::clone(&payments).pay("acme", "k", 4200).await.unwrap();
        assert_eq!(paid, "4200 paid by run 1");
    }
    let other = Arc::clone(&payments).pay("acme", "k", 1).await;
    assert!(matches!(other, Err(OnceError::Guard(GuardError::Mismatch))), "{other:?}");
    assert_eq!(payments.quote("acme", "k", 21).await.unwrap(), 42);
}

#[tokio::test]
async fn work_goes_on_when_its_caller_leaves() {
    let payments = Payments::new(0);
    let caller = tokio::spawn(Arc::clone(&payments).pay("acme", "k", 4200));
    while payments.effects.count() == 0 {
        tokio::task::yield_now().await;
    }
    caller.abort();
    assert!(caller.await.unwrap_err().is_cancelled());
    payments.permits.add_permits(1);
    let paid = Arc::clone(&payments).pay("acme", "k", 4200).await.unwrap();
    assert_eq!(paid, "4200 paid by run 1");
}
