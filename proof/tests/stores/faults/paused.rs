//! A server that stands still (SIGSTOP) with its connections open, and goes on later.

use std::time::Duration;

use proof::load::{Doubt, Settings};
use testkit::services::{Service, alone};

use crate::faults::place::Place;
use crate::faults::scene::{Scene, blocking};

async fn stands_still(service: Service, what: &str, still: Duration, settings: Settings) {
    let Some(server) = alone(service) else { return };
    let place = Place::on(service, server.url()).await;
    let scene = Scene::with(place.store().await, settings);
    let fault = async || {
        blocking(|| server.pause()).expect("it is paused");
        tokio::time::sleep(still).await;
        blocking(|| server.resume()).expect("it goes on");
    };
    // A claim that was sent to the paused server may be carried out when its caller has long given up, and given
    // the claim back before: nothing runs under it, and an opaque intent is held that never started.
    let judgement = scene.under(&format!("{service} paused {what}"), Doubt::Some, fault).await;
    judgement.expect_clean();
    assert!(judgement.unavailable > 0, "no caller noticed: {judgement}");
    assert_eq!(judgement.uncertain_happened, 0, "what happened is known by its owner: {judgement}");
}

async fn longer_than_the_time_out(service: Service) {
    let settings = Settings { store_timeout: Duration::from_millis(500), ..Settings::default() };
    stands_still(service, "beyond the time-out", Duration::from_millis(3_500), settings).await;
}

async fn longer_than_a_lease(service: Service) {
    let settings = Settings {
        store_timeout: Duration::from_millis(500),
        lease: Duration::from_millis(1_500),
        ..Settings::default()
    };
    stands_still(service, "beyond the lease", Duration::from_secs(4), settings).await;
}

macro_rules! both {
    ($($name:ident $service:ident)*) => {$(
        mod $name {
            use testkit::services::Service;

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            #[ignore = "prove: random traffic while a server stands still"]
            async fn longer_than_the_time_out() {
                super::longer_than_the_time_out(Service::$service).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            #[ignore = "prove: random traffic while a server stands still"]
            async fn longer_than_a_lease() {
                super::longer_than_a_lease(Service::$service).await;
            }
        }
    )*};
}

both! {
    postgres Postgres
    mariadb Mariadb
    mysql Mysql
    redis Redis
    redis_cluster RedisCluster
}
