//! The laws, on one server and on a cluster: each law on a store of its own, and all at once on one.

use std::sync::LazyLock;

use semel::conformance::Harness;
use semel::store::redis::RedisStore;
use testkit::services::{Lease, Service, require};

use super::support::{cluster_url, options, prefix};

struct Redis {
    /// Held: nobody kills the server meanwhile.
    lease: Lease,
    service: Service,
    prefix: String,
}

static SHARED: LazyLock<String> = LazyLock::new(|| prefix("shared"));

impl Redis {
    fn of(service: Service, prefix: String) -> Option<Self> {
        Some(Self { lease: require(service)?, service, prefix })
    }

    fn own(service: Service) -> Option<Self> {
        Self::of(service, prefix("law"))
    }

    fn crowded(service: Service) -> Option<Self> {
        Self::of(service, SHARED.clone())
    }

    async fn open(&self) -> RedisStore {
        let url = self.lease.url();
        let url = if self.service == Service::RedisCluster { cluster_url(url) } else { url.to_owned() };
        options(&url, &self.prefix).create().await.expect("the store opens")
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

mod alone {
    use testkit::services::Service;
    semel::store_conformance!(match super::Redis::own(Service::Redis) {
        Some(harness) => harness,
        None => return,
    });
}

mod crowded {
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
