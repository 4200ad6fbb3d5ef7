//! Health and metrics of a relay.

use std::time::Duration;

use semel::relay::RelayMetrics;
use tokio::sync::watch;

use crate::admin::Pages;

#[derive(Clone)]
pub(super) struct Admin {
    pub(super) metrics: RelayMetrics,
    /// How long database and broker may be unreachable.
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

    fn metrics(&self) -> String {
        self.metrics.render()
    }
}
