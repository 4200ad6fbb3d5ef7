//! The broker dies and comes back; connections are cut in the middle of a batch.

use testkit::proxy::{Fault, Proxy};
use testkit::services::{Service, alone, require};

use crate::relay_chaos::rounds;
use crate::relay_chaos::scene::Scene;

/// Host and port in a URL.
fn address(url: &str) -> &str {
    let behind = url.split_once("//").map_or(url, |(_, behind)| behind);
    let server = behind.split('/').next().unwrap();
    server.rsplit_once('@').map_or(server, |(_, server)| server)
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "prove: a broker killed under load"]
async fn the_broker_is_killed_and_comes_back() {
    let (Some(database), Some(mut broker)) = (require(Service::Postgres), alone(Service::Kafka)) else {
        return;
    };
    let mut scene = Scene::postgres(database.url(), broker.url()).await;
    let load = scene.load();
    let relay = scene.relay();
    for _ in 0..rounds(1) {
        scene.follower.more(200);
        broker.kill().unwrap();
        load.more(200).await;
        broker.start().unwrap();
    }
    scene.follower.more(300);
    let verdict = scene.end(load, vec![relay]).await;
    assert!(verdict.holds(), "{verdict}");
}

/// Between the relay and its database: the statement is half sent, the answer is half read, or is lost although the
/// server has done what was asked.
#[tokio::test(flavor = "multi_thread")]
async fn connections_to_the_database_are_cut_in_the_middle_of_a_batch() {
    let (Some(database), Some(broker)) = (require(Service::Postgres), require(Service::Kafka)) else {
        return;
    };
    let mut scene = Scene::postgres(database.url(), broker.url()).await;
    let proxy = Proxy::start(address(database.url())).unwrap();
    scene.source = scene.source.replace(address(database.url()), &proxy.addr().to_string());
    let load = scene.load();
    let relay = scene.relay();
    for _ in 0..rounds(3) {
        for fault in [
            Fault::CutAnswerAfter(fastrand::u64(3_000..60_000)),
            Fault::CutRequestAfter(fastrand::u64(5_000..30_000)),
        ] {
            proxy.next(1, fault);
            scene.follower.more(50);
            proxy.cut();
        }
        scene.follower.more(50);
        let dropped = proxy.dropped();
        proxy.set(Fault::DropResponse);
        while proxy.dropped() == dropped {
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
        proxy.set(Fault::Pass);
    }
    scene.follower.more(100);
    let cuts = proxy.accepted();
    let verdict = scene.end(load, vec![relay]).await;
    assert!(cuts > 6, "{cuts}");
    assert!(verdict.holds(), "{verdict}");
}

/// Between the relay and its database nothing moves for longer than the lease.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "prove: load beside a hanging connection"]
async fn a_connection_hangs_for_longer_than_the_lease() {
    let (Some(database), Some(broker)) = (require(Service::Postgres), require(Service::Kafka)) else {
        return;
    };
    let mut scene = Scene::postgres(database.url(), broker.url()).await;
    let direct = scene.source.clone();
    let proxy = Proxy::start(address(database.url())).unwrap();
    scene.source = scene.source.replace(address(database.url()), &proxy.addr().to_string());
    let load = scene.load();
    let first = scene.relay();
    scene.follower.more(100);
    proxy.set(Fault::Hang);
    scene.source = direct;
    let second = scene.relay();
    // All that comes now comes through the second.
    scene.follower.more(500);
    proxy.set(Fault::Pass);
    scene.follower.more(100);
    let verdict = scene.end(load, vec![first, second]).await;
    assert!(verdict.holds(), "{verdict}");
}
