//! Partitions: one position for all of them needs one owner for all of them.

use std::collections::HashSet;
use std::time::Duration;

use semel::relay::{OutboxReader, OutboxReaderError};

use super::broker::{Broker, Bug, Seen, Step};
use super::outboxes::{InPostgres, Outbox, Running, Verdict, quick, verdict};
use super::wrong::Wrong;

/// Long enough that all of them have it when the first has died.
const LEASE: Duration = Duration::from_secs(8);

fn borrowed(events: &[(String, String)]) -> Vec<(&str, &str)> {
    events.iter().map(|(key, text)| (key.as_str(), text.as_str())).collect()
}

fn events() -> Vec<(String, String)> {
    (0..64).map(|n| (format!("k{n}"), format!("e{n}"))).collect()
}

/// All partitions are published in one transaction and the relay dies before done. Then another relay is there, which shares,
/// and the successor.
async fn half_of_the_partitions(outbox: &InPostgres, sharing: bool) -> Verdict {
    let (broker, events) = (Broker::with(&[Step::CommitAndHang]), events());
    let all = borrowed(&events);
    outbox.append(&all).await;
    let first = outbox.start(&broker, Bug::None);
    broker.until("a commit without an answer", |state| state.hanging == 1).await;
    // Lives while the first dies: it has a lease, and half of the partitions fall to each.
    let mut other = outbox.outbox.source();
    assert!(other.next().await.unwrap().is_none());
    first.kill().await;
    let second = if sharing {
        Running::start(Wrong::Sharing(outbox.source()), broker.sink(Bug::None), quick())
    } else {
        outbox.start(&broker, Bug::None)
    };
    let client = outbox.world.connect().await;
    let owners = "SELECT count(DISTINCT owner) FROM semel_outbox_cursor";
    if sharing {
        // Both take their share.
        for _ in 0..500 {
            for looked in [other.renew_lease().await, other.next().await.map(drop)] {
                assert!(looked.as_ref().err().is_none_or(OutboxReaderError::may_retry), "{looked:?}");
            }
            // The first one's lease is over by then.
            if client.query_one(owners, &[]).await.unwrap().get::<_, i64>(0) == 2
                && broker.state().seen.len() > events.len()
            {
                break;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    } else {
        // Nothing is published as long as another may have partitions, or the first's lease lasts.
        other.release().await.unwrap();
        outbox.drained(&broker).await;
    }
    second.kill().await;
    verdict(outbox, &broker, &all).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_lanes_or_none() {
    let Some(outbox) = InPostgres::leased(LEASE).await else { return };
    assert_eq!(half_of_the_partitions(&outbox, false).await, Verdict::default());
    outbox.end().await;
}

/// Slow: a relay that is killed is followed only when its lease is over, up to five times.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sharing_partitions_is_caught_publishing_twice() {
    let mut found = Verdict::default();
    // Where one of them stands still for its lease, the other has everything and does it right.
    for _ in 0..5 {
        let Some(outbox) = InPostgres::leased(LEASE).await else { return };
        found = half_of_the_partitions(&outbox, true).await;
        outbox.end().await;
        if !found.twice.is_empty() {
            break;
        }
    }
    assert!(!found.twice.is_empty(), "{found:?}");
}

/// Batches of two groups of partitions are written down, left behind by relays that shared. Whichever the sink has had comes
/// first, however the partitions are found.
async fn two_batches_under_way(outbox: &InPostgres, deaf: bool) -> Verdict {
    let mut events = events();
    let client = outbox.world.connect().await;
    outbox.append(&borrowed(&events)).await;
    // The first of the two is committed and the relay killed, then the second.
    for round in 1..=6 {
        break_up(&client).await;
        let broker = Broker::new();
        let steps = [vec![Step::Commit; round % 2], vec![Step::CommitAndHang]].concat();
        broker.state().script.extend(steps);
        let relay = outbox.start(&broker, Bug::None);
        broker.until("a commit without an answer", |state| state.hanging == 1).await;
        relay.kill().await;
        // The other partitions are found first, and have more to tell by now.
        let (key, ..) = broker.state().seen.last().cloned().unwrap();
        let parity = format!("SELECT abs(hashtext('{key}') % 16) % 2");
        let parity: i32 = client.query_one(&parity, &[]).await.unwrap().get(0);
        let last = format!(
            "CREATE INDEX places ON semel_outbox_cursor ((lane % 2 = {parity}));
             CLUSTER semel_outbox_cursor USING places; DROP INDEX places"
        );
        client.batch_execute(&last).await.unwrap();
        let more: Vec<(String, String)> =
            (0..64).map(|n| (format!("k{n}"), format!("e{n}-{round}"))).collect();
        outbox.append(&borrowed(&more)).await;
        events.extend(more);
        let relay = if deaf {
            Running::start(Wrong::Deaf(outbox.source()), broker.sink(Bug::None), quick())
        } else {
            outbox.start(&broker, Bug::None)
        };
        // One group after the other: the last event of one says nothing of the other.
        let all = events.len();
        let different = |seen: &[Seen]| seen.iter().map(|(_, _, id)| *id).collect::<HashSet<_>>().len();
        broker.until("all", |state| different(&state.seen) == all).await;
        relay.stop().await;
        let found = verdict(outbox, &broker, &borrowed(&events)).await;
        if found != Verdict::default() {
            return found;
        }
    }
    Verdict::default()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_batches_under_way_the_positions_comes_first() {
    let Some(outbox) = InPostgres::new().await else { return };
    assert_eq!(two_batches_under_way(&outbox, false).await, Verdict::default());
    outbox.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_batch_before_the_positions_is_caught_publishing_twice() {
    let Some(outbox) = InPostgres::new().await else { return };
    let found = two_batches_under_way(&outbox, true).await;
    assert!(!found.twice.is_empty(), "{found:?}");
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
