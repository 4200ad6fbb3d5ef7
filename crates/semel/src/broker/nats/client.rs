//! Connecting to JetStream.

use std::time::Duration;

use async_nats::{ConnectOptions, jetstream};

/// Connects to JetStream at this address. The client reconnects by itself after an outage.
pub(super) async fn connect(url: &str, timeout: Duration) -> Result<jetstream::Context, String> {
    let options = ConnectOptions::new().connection_timeout(timeout).request_timeout(Some(timeout));
    match options.connect(url).await {
        Ok(client) => Ok(jetstream::context::ContextBuilder::new().timeout(timeout).build(client)),
        Err(error) => Err(format!("NATS could not be reached: {error}")),
    }
}
