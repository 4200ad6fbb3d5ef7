//! The configuration that all Kafka clients share.

use rdkafka::ClientConfig;

/// The common configuration of all Kafka clients.
pub(super) fn config(bootstrap: &str, own: &[(String, String)]) -> ClientConfig {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", bootstrap);
    config.set("client.id", "semel");
    // Reconnects within a second after an outage.
    config.set("reconnect.backoff.max.ms", "1000");
    for (property, value) in own {
        config.set(property, value);
    }
    config
}
