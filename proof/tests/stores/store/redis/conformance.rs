//! The laws, on one server and on a cluster, all at once on one store.

use semel::conformance::Harness;
use semel::store::redis::RedisStore;
use testkit::services::{Lease, Service, require};

use super::support::{cluster_url, options};

struct Redis {
    /// Held, so that no other test kills the server meanwhile.
    lease: Lease,
    service: Service,
}

impl Redis {
    /// One store for all laws and all runs: each law has a tenant of its own.
    fn crowded(service: Service) -> Option<Self> {
        Some(Self { lease: require(service)?, service })
    }

    async fn open(&self) -> RedisStore {
        let url = self.lease.url();
        let url = if self.service == Service::RedisCluster { cluster_url(url) } else { url.to_owned() };
        options(&url, "laws:").create().await.expect("the store opens")
    }
}

impl Harness for Redis {
    type Store = RedisStore;

    async fn store(&self) -> RedisStore {
        self.open().await
    }

    async fn reopen(&self, store: RedisStore) -> Option<RedisStore> {
        drop(store);
        Some(self.open().await)
    }

    fn sweeps(&self) -> bool {
        false
    }
}

mod plain {
    use testkit::services::Service;
    semel::store_conformance!(match super::Redis::crowded(Service::Redis) {
        Some(harness) => harness,
        None => return,
    });
}

mod cluster {
    use testkit::services::Service;
    semel::store_conformance!(match super::Redis::crowded(Service::RedisCluster) {
        Some(harness) => harness,
        None => return,
    });
}
