//! The gateway's admin pages: readiness (the store answers), metrics, and the OpenAPI description.

use std::time::Duration;

use semel::store::{AnyStore, Store};
use semel::{Guard, IntentId};
use tokio::sync::watch;

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
    pub(super) stopping: watch::Receiver<bool>,
}

impl Pages for Admin {
    /// Ready for requests: the store answers, and the gateway is not stopping.
    async fn ready(&self) -> Result<(), String> {
        if *self.stopping.borrow() {
            return Err("stopping".to_owned());
        }
        // An id that no intent has: a real read that finds nothing.
        let unused: IntentId = "0".repeat(64).parse().map_err(|_| "no id")?;
        match tokio::time::timeout(READY_TIME_MAX, self.guard.store().get(unused)).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) => Err(format!("the store failed: {error}")),
            Err(_) => Err(format!("the store did not answer within {READY_TIME_MAX:?}")),
        }
    }

    fn metrics(&self) -> String {
        self.counted.render_after(&self.guard.metrics().render())
    }

    fn documents(&self) -> &'static [Document] {
        &[("/openapi.json", || openapi::text().into())]
    }
}
