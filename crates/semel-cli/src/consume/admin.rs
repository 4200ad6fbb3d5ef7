//! Health and metrics of a consumer.

use std::time::Duration;

use semel::Guard;
use semel::inbox::consumer::ConsumerMetrics;
use semel::observe::Registry;
use semel::store::AnyStore;

use crate::admin::Pages;

#[derive(Clone)]
pub(super) struct Admin {
    pub(super) metrics: ConsumerMetrics,
    pub(super) guard: Guard<AnyStore>,
    /// How long broker and endpoint may be unreachable.
    pub(super) patience: Duration,
}

impl Pages for Admin {
    async fn ready(&self) -> Result<(), String> {
        self.metrics.unhealthy_reason(self.patience).map_or(Ok(()), Err)
    }

    /// The store's metrics, then the consumer's.
    fn register(&self, registry: &mut Registry) {
        self.guard.metrics().register(registry);
        self.metrics.register(registry);
    }
}
