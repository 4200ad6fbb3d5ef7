//! Health and metrics of a relay.

use std::time::Duration;

use semel::observe::Registry;
use semel::relay::RelayMetrics;

use crate::admin::Pages;

#[derive(Clone)]
pub(super) struct Admin {
    pub(super) metrics: RelayMetrics,
    /// How long database and broker may be unreachable.
    pub(super) patience: Duration,
}

impl Pages for Admin {
    async fn ready(&self) -> Result<(), String> {
        self.metrics.unhealthy_reason(self.patience).map_or(Ok(()), Err)
    }

    fn register(&self, registry: &mut Registry) {
        self.metrics.register(registry);
    }
}
