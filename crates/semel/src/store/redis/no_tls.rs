//! Builds without the feature `redis-tls`: plain connections.

use redis::cluster::ClusterClientBuilder;
use redis::{Client, RedisResult};

use super::options::{RedisOptions, wrong};
use crate::store::StoreError;

/// Refuses a URL that asks for TLS.
pub(super) fn check(scheme: &str, _ca: Option<&str>) -> Result<Option<Vec<u8>>, StoreError> {
    Err(wrong(format!(
        "{scheme}:// needs TLS, which this build does not have for Redis; build with the feature `redis-tls`, or use \
         a TLS proxy (stunnel, HAProxy, a sidecar) and write redis:// with its address"
    )))
}

pub(super) fn client(options: &RedisOptions) -> RedisResult<Client> {
    Client::open(options.nodes.first().map_or("", String::as_str))
}

pub(super) fn cluster(builder: ClusterClientBuilder, _options: &RedisOptions) -> ClusterClientBuilder {
    builder
}
