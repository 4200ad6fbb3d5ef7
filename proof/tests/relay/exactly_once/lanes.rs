//! Lanes: one position for all of them needs one owner for all of them.

use semel::relay::{Batch, Lag, Pruned, Reached, Settled, Source, SourceError};

use super::broker::{Broker, Bug, Step};
use super::outboxes::{InPostgres, LEASE, Outbox, Running, Verdict, quick, verdict};

/// A source that says it has everything and shares all the same.
struct Sharing<S>(S);

impl<S: Source> Source for Sharing<S> {
    async fn take_all(&mut self) -> Result<bool, SourceError> {
        // Takes its share.
        let _ = self.0.next().await?;
        Ok(true)
    }
    async fn next(&mut self) -> Result<Option<Batch>, SourceError> {
        self.0.next().await
    }
    async fn resume(&mut self, reached: Option<&Reached>) -> Result<(), SourceError> {
        self.0.resume(reached).await
    }
    async fn done(&mut self, settled: &[Settled]) -> Result<(), SourceError> {
        self.0.done(settled).await
    }
    async fn keep(&mut self) -> Result<(), SourceError> {
        self.0.keep().await
    }
    fn keep_in(&self) -> std::time::Duration {
        self.0.keep_in()
    }
    fn holds(&self) -> bool {
        self.0.holds()
    }
    async fn prune(&mut self, older_than: std::time::Duration) -> Result<Pruned, SourceError> {
        self.0.prune(older_than).await
    }
    async fn lag(&mut self) -> Result<Lag, SourceError> {
        self.0.lag().await
    }
    async fn leave(&mut self) -> Result<(), SourceError> {
        self.0.leave().await
    }
}

fn events() -> Vec<(String, String)> {
    (0..64).map(|n| (format!("k{n}"), format!("e{n}"))).collect()
}

/// All lanes are published in one transaction and the relay dies before done. Then another relay is there, which shares,
/// and the successor.
async fn half_of_the_lanes(outbox: &InPostgres, sharing: bool) -> Verdict {
    let (broker, events) = (Broker::with(&[Step::CommitAndHang]), events());
    let told: Vec<(&str, &str)> = events.iter().map(|(key, text)| (key.as_str(), text.as_str())).collect();
    outbox.append(&told).await;
    let first = outbox.start(&broker, Bug::None);
    broker.until("a commit without an answer", |state| state.hanging == 1).await;
    // Lives while the first dies: it has a lease, and half of the lanes fall to each.
    let mut other = outbox.outbox.source();
    assert!(other.next().await.unwrap().is_none());
    first.kill().await;
    let second = if sharing {
        Running::start(Sharing(outbox.source()), broker.sink(Bug::None), quick())
    } else {
        outbox.start(&broker, Bug::None)
    };
    let client = outbox.world.connect().await;
    let owners = "SELECT count(DISTINCT owner) FROM semel_outbox_cursor";
    if sharing {
        // Both take their share.
        for _ in 0..500 {
            other.keep().await.unwrap();
            let _ = other.next().await.unwrap();
            if client.query_one(owners, &[]).await.unwrap().get::<_, i64>(0) == 2
                && broker.state().seen.len() > events.len()
            {
                break;
            }
            tokio::time::sleep(LEASE / 20).await;
        }
    } else {
        // Nothing is published as long as another may have lanes, or the first's lease lasts.
        other.leave().await.unwrap();
        outbox.drained(&broker).await;
    }
    second.kill().await;
    verdict(outbox, &broker, &told).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_lanes_or_none() {
    let Some(outbox) = InPostgres::new().await else { return };
    assert_eq!(half_of_the_lanes(&outbox, false).await, Verdict::default());
    outbox.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sharing_lanes_is_caught_publishing_twice() {
    let Some(outbox) = InPostgres::new().await else { return };
    let found = half_of_the_lanes(&outbox, true).await;
    assert!(!found.twice.is_empty(), "{found:?}");
    outbox.end().await;
}

/// Batches of two groups of lanes are written down, left behind by relays that shared. Whichever the sink has had comes
/// first, however the lanes are found.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_batches_under_way_the_positions_comes_first() {
    let Some(outbox) = InPostgres::new().await else { return };
    let events = events();
    let told: Vec<(&str, &str)> = events.iter().map(|(key, text)| (key.as_str(), text.as_str())).collect();
    let client = outbox.world.connect().await;
    outbox.append(&told).await;
    // The first of the two is committed and the relay killed, then the second.
    for round in 1..=6 {
        break_up(&client).await;
        let broker = Broker::new();
        let steps = [vec![Step::Commit; round % 2], vec![Step::CommitAndHang]].concat();
        broker.state().script.extend(steps);
        let relay = outbox.start(&broker, Bug::None);
        broker.until("a commit without an answer", |state| state.hanging == 1).await;
        relay.kill().await;
        // The rows are found in another order.
        client
            .batch_execute("UPDATE semel_outbox_cursor SET lineage = lineage WHERE lane < 8")
            .await
            .unwrap();
        let relay = outbox.start(&broker, Bug::None);
        outbox.drained(&broker).await;
        relay.stop().await;
        assert_eq!(verdict(&outbox, &broker, &told).await, Verdict::default(), "round {round}");
    }
    outbox.end().await;
}

/// As two leave it that shared, had each written down all of its own, and died.
async fn break_up(client: &tokio_postgres::Client) {
    client
        .batch_execute(
            "DELETE FROM semel_outbox WHERE key = 'the-end';
             UPDATE semel_outbox_cursor SET low = '3:3:', high = pg_current_snapshot(), after_seq = 0,
                 until_seq = (SELECT max(seq) FROM semel_outbox o
                              WHERE abs(hashtext(o.key) % 16) % 2 = lane % 2)",
        )
        .await
        .unwrap();
}
