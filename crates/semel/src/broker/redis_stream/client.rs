//! Connecting to Redis.

use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client};

/// Connects, with this timeout for the connection and for each answer.
pub(super) async fn connect(client: &Client, patience: Duration) -> Result<MultiplexedConnection, String> {
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(patience))
        .set_response_timeout(Some(patience));
    let connected = client.get_multiplexed_async_connection_with_config(&config).await;
    connected.map_err(|error| format!("Redis could not be reached: {error}"))
}
