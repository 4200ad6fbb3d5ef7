//! A standby that was really promoted answers to the server's name, and a relay that reads the log comes to it.

use semel::relay::Rebase;
use semel::relay::cdc::CdcOutbox;
use testkit::child::Child;
use testkit::proxy::Proxy;
use testkit::services::{Cluster, Lease};

use crate::relay_chaos::SOON;
use crate::relay_chaos::judge::{Ledger, Verdict};
use crate::relay_chaos::scene::Scene;
use crate::relay_chaos::servers::{apart, asks_again, caught_up};

/// A promoted server in the place of the one that the relays know.
struct Promoted {
    scene: Scene,
    ledger: Ledger,
    _servers: [Cluster; 2],
    _proxy: Proxy,
    _broker: Lease,
}

/// A relay publishes from a server until that dies and its standby takes its place, with all that the writers know is
/// committed, also what is not published yet. The relay runs on.
async fn promoted(mode: &'static str) -> Option<(Promoted, Child)> {
    let (mut scene, mut cluster, proxy, broker) = apart().await?;
    scene.mode = mode;
    let load = scene.load();
    let relay = scene.relay();
    let standby = cluster.standby().unwrap();
    scene.follower.more(200);
    relay.pause().unwrap();
    load.more(100).await;
    let ledger = load.stop().await;
    caught_up(&scene, &standby).await;
    cluster.kill().unwrap();
    proxy.point_at(standby.addr()).unwrap();
    proxy.cut();
    relay.resume().unwrap();
    asks_again(&proxy).await;
    standby.promote().unwrap();
    let servers = [cluster, standby];
    Some((Promoted { scene, ledger, _servers: servers, _proxy: proxy, _broker: broker }, relay))
}

impl Promoted {
    /// More is written, and this relay publishes all there is.
    async fn goes_on(&mut self, relay: Child) -> Verdict {
        let load = self.scene.load();
        self.scene.follower.more(200);
        let after = load.stop().await;
        self.ledger.committed.extend(after.committed);
        self.ledger.rolled_back.extend(after.rolled_back);
        self.scene.judge(&self.ledger, vec![relay], SOON).await
    }
}

/// It ended, and said what a person has to know.
fn stopped(relay: &mut Child, what: &str) {
    let ended = relay.wait(SOON).unwrap();
    let last = ended.stdout.last().unwrap();
    assert!(last.starts_with("stopped: ") && last.contains(what), "{ended:?}");
}

/// Slow: two servers, of which the standby is made from a base backup and promoted.
#[tokio::test(flavor = "multi_thread")]
async fn it_stops_until_a_person_decides_and_then_loses_nothing() {
    let Some((mut promoted, mut relay)) = promoted("cdc").await else { return };
    stopped(&mut relay, "semel outbox rebase");
    // One that comes later, too.
    stopped(&mut promoted.scene.relay(), "semel outbox rebase");
    CdcOutbox::rebase(&promoted.scene.source, Rebase::Everything).await.unwrap();
    let relay = promoted.scene.relay();
    let verdict = promoted.goes_on(relay).await;
    assert!(verdict.holds(), "{verdict}");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "prove: load"]
async fn where_that_is_wanted_it_is_followed_from_the_table() {
    let Some((mut promoted, relay)) = promoted("cdc-following").await else { return };
    let verdict = promoted.goes_on(relay).await;
    assert!(verdict.holds(), "{verdict}");
}

/// The position in Kafka is a place in the old log, and in the new one another commit may have it: a relay that
/// compares them skips or repeats. So it stops before it publishes anything, and a decision about the outbox is none
/// about the position.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "prove: load"]
async fn exactly_once_it_stops_until_a_person_decides_about_the_position_too() {
    let Some((promoted, mut relay)) = promoted("cdc-exactly-once").await else { return };
    stopped(&mut relay, "semel outbox rebase");
    CdcOutbox::rebase(&promoted.scene.source, Rebase::Everything).await.unwrap();
    stopped(&mut promoted.scene.relay(), "its own transactional id");
}

/// Following is of the outbox. With another transactional id it goes on from the table, where the cursor is.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "prove: load"]
async fn exactly_once_a_promotion_is_followed_under_another_transactional_id() {
    let Some((mut promoted, mut relay)) = promoted("cdc-exactly-once-following").await else { return };
    stopped(&mut relay, "its own transactional id");
    promoted.scene.name.push_str("-promoted");
    let relay = promoted.scene.relay();
    let verdict = promoted.goes_on(relay).await;
    assert!(verdict.holds(), "{verdict}");
}
