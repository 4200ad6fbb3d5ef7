//! The gateway's admin pages: readiness (the store answers), metrics, and the OpenAPI description.

use std::time::Duration;

use semel::observe::Registry;
use semel::store::{AnyStore, Store};
use semel::{Guard, IntentId};

use super::metrics::Counted;
use super::openapi;
use crate::admin::{Document, Pages};

/// How long the store may take to answer the readiness check.
const READY_TIME_MAX: Duration = Duration::from_secs(2);

/// The gateway's admin pages.
#[derive(Clone)]
pub(super) struct Admin {
    pub(super) guard: Guard<AnyStore>,
    pub(super) counted: Counted,
}

impl Pages for Admin {
    /// Ready for requests: the store answers.
    async fn ready(&self) -> Result<(), String> {
        // An id that no intent has: a real read that finds nothing.
        let unused: IntentId = "0".repeat(64).parse().map_err(|_| "no id")?;
        match tokio::time::timeout(READY_TIME_MAX, self.guard.store().get(unused)).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) => Err(format!("the store failed: {error}")),
            Err(_) => Err(format!("the store did not answer within {READY_TIME_MAX:?}")),
        }
    }

    /// The guard's metrics, then the gateway's own.
    fn register(&self, registry: &mut Registry) {
        self.guard.metrics().register(registry);
        self.counted.register(registry);
    }

    fn documents(&self) -> &'static [Document] {
        &[("/openapi.json", || openapi::text().into())]
    }
}
