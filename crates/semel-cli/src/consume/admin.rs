//! Health and metrics of a consumer.

use std::time::Duration;

use semel::Guard;
use semel::inbox::consumer::ConsumerMetrics;
use semel::store::AnyStore;
use tokio::sync::watch;

use crate::admin::Pages;

#[derive(Clone)]
pub(super) struct Admin {
    pub(super) metrics: ConsumerMetrics,
    pub(super) guard: Guard<AnyStore>,
    /// How long broker and endpoint may be unreachable.
    pub(super) patience: Duration,
    pub(super) stopping: watch::Receiver<bool>,
}

impl Pages for Admin {
    async fn ready(&self) -> Result<(), String> {
        if *self.stopping.borrow() {
            return Err("stopping".to_owned());
        }
        self.metrics.trouble(self.patience).map_or(Ok(()), Err)
    }

    /// The store's metrics, then the consumer's. A document has only one `# EOF`.
    fn metrics(&self) -> String {
        let guard = self.guard.metrics().render();
        format!("{}{}", guard.strip_suffix("# EOF\n").unwrap_or(&guard), self.metrics.render())
    }
}
