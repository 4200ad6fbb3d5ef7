//! The core table of the edge, over HTTP, on every store that is a server.
//!
//! `cargo xtask services up`, then `cargo test -p proof --features stores,edge --test stores edge::`.
#[path = "../../../../crates/semel/tests/http/core_table.rs"]
mod core_table;
#[path = "../../../../crates/semel/tests/http/world.rs"]
// What only the other tests of the edge use, and their features.
#[allow(dead_code, unexpected_cfgs, unreachable_pub)]
mod world;

use std::cell::RefCell;

use crate::faults::place::Place;
use semel::observe::Metrics;
use semel::store::AnyStore;
use semel::store::tiered::TieredStore;
use testkit::services::{Lease, Service, require};

thread_local! {
    /// What a test made goes away with its thread.
    static MADE: RefCell<Vec<(Place, Lease)>> = const { RefCell::new(Vec::new()) };
}

async fn open(service: Service) -> AnyStore {
    let lease = require(service).expect("it was there a moment ago");
    let place = Place::on(service, lease.url()).await;
    let store = place.patient_store().await;
    MADE.with_borrow_mut(|made| made.push((place, lease)));
    store
}

async fn open_tiered() -> AnyStore {
    let cache = require(Service::Redis).expect("it was there a moment ago");
    let url = format!("{}?prefix=edge{:x}&timeout=30000", cache.url(), fastrand::u64(..));
    AnyStore::new(TieredStore::open(open(Service::Postgres).await, &url, &Metrics::new()).await.unwrap())
}

/// A store's rows, where its servers are.
macro_rules! rows_on {
    ($($row:ident)*) => {$(
        #[tokio::test]
        async fn $row() {
            for service in SERVICES {
                if require(*service).is_none() {
                    return;
                }
            }
            crate::edge::core_table::$row(Kind::Elsewhere(|| Box::pin(opened()))).await;
        }
    )*};
}

macro_rules! stores {
    ($($module:ident $open:expr, $services:expr;)*) => {$(
        mod $module {
            use semel::store::AnyStore;
            use testkit::services::{Service, require};

            use crate::edge::world::Kind;

            const SERVICES: &[Service] = $services;

            async fn opened() -> AnyStore {
                $open.await
            }

            crate::edge::core_table::core_rows!(rows_on);
        }
    )*};
}

stores! {
    postgres crate::edge::open(Service::Postgres), &[Service::Postgres];
    mariadb crate::edge::open(Service::Mariadb), &[Service::Mariadb];
    mysql crate::edge::open(Service::Mysql), &[Service::Mysql];
    redis crate::edge::open(Service::Redis), &[Service::Redis];
    redis_cluster crate::edge::open(Service::RedisCluster), &[Service::RedisCluster];
    tiered crate::edge::open_tiered(), &[Service::Redis, Service::Postgres];
}
