//! Who owns a partition, and what becomes of those who did.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use semel::relay::poll::postgres::{PostgresOutbox, PostgresOutboxReader};
use semel::relay::{OutboxReader, OutboxReaderError, Settled};
use testkit::proxy::{Fault, Proxy};

use crate::relay::sink::TestSink;
use crate::relay::world::{Postgres, Running, batch, drained, insert, quick, until};

/// One whose end is waited for. Two beats of it are longer than a busy machine takes for a commit.
const LEASE: Duration = Duration::from_secs(8);

/// Two believe to own everything: the first slept beyond its lease. Gives what the first one's word was worth, and what
/// a third finds afterwards.
async fn split(
    world: &Postgres,
    edit: Option<fn(&str) -> String>,
) -> (Result<(), OutboxReaderError>, Vec<String>) {
    let client = world.connect().await;
    for n in 0..2 {
        client.batch_execute(&insert("a", &n.to_string())).await.unwrap();
    }
    let mut options = world.options().lease(LEASE).batch_max(1, 1 << 20);
    if let Some(edit) = edit {
        options = options.edit_sql(edit);
    }
    let outbox = options.open().await.unwrap();
    let (mut first, mut second) = (outbox.source(), outbox.source());
    assert_eq!(batch(&mut first).await.events.len(), 1);
    assert!(first.holds_lease());
    tokio::time::sleep(LEASE * 9 / 8).await;
    assert!(!first.holds_lease());
    // And what is over is not renewed.
    let kept = first.renew_lease().await;
    assert!(matches!(kept, Err(OutboxReaderError::Fenced)) && !first.holds_lease(), "{kept:?}");
    // The second repeats what the first had begun, then writes down the next and is about to send it.
    assert_eq!(batch(&mut second).await.events.len(), 1);
    second.ack(&[Settled::Confirmed]).await.unwrap();
    assert_eq!(batch(&mut second).await.events.len(), 1);
    let word = first.ack(&[Settled::Confirmed]).await;
    // It dies before it does.
    drop(second);
    world.lease_over().await;
    (word, drained(&mut outbox.source()).await)
}

#[tokio::test]
async fn an_owner_of_yesterday_moves_nothing() {
    let Some(world) = Postgres::new().await else { return };
    let (word, left) = split(&world, None).await;
    assert!(matches!(word, Err(OutboxReaderError::Fenced)), "{word:?}");
    assert_eq!(left, ["1"]);
    world.end().await;
}

/// Gives what a relay may still do that kept nothing for longer than its lease, and wants to keep it now. Another has had
/// everything meanwhile and has gone on.
pub async fn kept_too_late(first: &mut impl OutboxReader, second: &mut impl OutboxReader, lease: Duration) {
    assert_eq!(batch(first).await.events.len(), 1);
    tokio::time::sleep(lease * 9 / 8).await;
    assert_eq!(drained(second).await.len(), 2);
    let word = first.renew_lease().await;
    assert!(matches!(word, Err(OutboxReaderError::Fenced)), "{word:?}");
    assert!(!first.holds_lease());
    // It begins afresh, and has nothing.
    assert_eq!(drained(first).await, Vec::<String>::new());
}

#[tokio::test]
async fn a_lease_that_is_over_is_not_kept() {
    let Some(world) = Postgres::new().await else { return };
    let client = world.connect().await;
    for n in 0..2 {
        client.batch_execute(&insert("a", &n.to_string())).await.unwrap();
    }
    let outbox = world.options().lease(LEASE).batch_max(1, 1 << 20).open().await.unwrap();
    kept_too_late(&mut outbox.source(), &mut outbox.source(), LEASE).await;
    world.end().await;
}

/// The renewal is asked for in time and answered after it: it is unknown on which side of the end it came.
#[tokio::test]
async fn a_lease_that_is_renewed_after_its_end_is_not_believed() {
    let Some(world) = Postgres::new().await else { return };
    let (client, holder) = (world.connect().await, world.connect().await);
    client.batch_execute(&insert("a", "0")).await.unwrap();
    let lease = Duration::from_millis(1_500);
    let outbox = world.options().lease(lease).open().await.unwrap();
    let mut first = outbox.source();
    assert_eq!(batch(&mut first).await.events.len(), 1);
    let begun = std::time::Instant::now();
    holder.batch_execute("BEGIN; LOCK TABLE semel_outbox_relay IN EXCLUSIVE MODE").await.unwrap();
    // Late in the lease, so that the end of the next is far behind the end of this one.
    tokio::time::sleep((lease * 5 / 8).saturating_sub(begun.elapsed())).await;
    let (word, ()) = tokio::join!(first.renew_lease(), async {
        tokio::time::sleep((lease * 9 / 8).saturating_sub(begun.elapsed())).await;
        let taken = "UPDATE semel_outbox_cursor SET epoch = epoch + 1, owner = gen_random_uuid()";
        client.batch_execute(taken).await.unwrap();
        holder.batch_execute("COMMIT").await.unwrap();
    });
    assert!(matches!(word, Err(OutboxReaderError::Fenced)), "{word:?}");
    assert!(!first.holds_lease());
    world.end().await;
}

#[tokio::test]
async fn advancing_without_the_epoch_is_caught_losing_events() {
    let Some(world) = Postgres::new().await else { return };
    let (word, left) = split(
        &world,
        Some(|text| {
            text.replace("AND c.epoch = m.epoch", "")
                .replace("AND c.epoch = ($2::bigint[])[array_position($1::smallint[], c.lane)]", "")
                .replace("c.ctid = ANY ($4::text[]::tid[])", "c.lane = ANY ($1) AND $4::text[] IS NOT NULL")
                .replace("c.ctid = ANY ($7::text[]::tid[])", "c.lane = ANY ($1) AND $7::text[] IS NOT NULL")
                .replace("AND c.until_seq = $3::bigint", "AND $3::bigint > 0")
        }),
    )
    .await;
    assert!(word.is_ok());
    assert_eq!(left, Vec::<String>::new());
    world.end().await;
}

#[tokio::test]
async fn lanes_are_shared_and_those_of_the_dead_are_taken() {
    let Some(world) = Postgres::new().await else { return };
    let client = world.connect().await;
    let outbox = world.options().lease(LEASE).open().await.unwrap();
    let (sinks, mut relays) = ([TestSink::default(), TestSink::default()], Vec::new());
    for sink in &sinks {
        relays.push(Running::start(outbox.source(), sink, quick()));
    }
    let owners = async |wanted: &[i64]| {
        let query =
            "SELECT count(*) FROM semel_outbox_cursor WHERE owner IS NOT NULL GROUP BY owner ORDER BY 1";
        until(&format!("partitions are owned as {wanted:?}"), async || {
            let rows = client.query(query, &[]).await.unwrap();
            rows.iter().map(|row| row.get(0)).collect::<Vec<i64>>() == wanted
        })
        .await;
    };
    owners(&[8, 8]).await;
    for n in 0..200 {
        client.batch_execute(&insert(&format!("k{n}"), &n.to_string())).await.unwrap();
    }
    until("all events", async || sinks.iter().map(|sink| sink.first_of_each().len()).sum::<usize>() >= 200)
        .await;
    assert!(sinks.iter().all(|sink| !sink.texts().is_empty()));
    // One dies without a word; the other goes on with all of it, and one that leaves leaves at once.
    relays.remove(0).kill().await;
    owners(&[16]).await;
    let before = sinks[1].first_of_each().len();
    client.batch_execute(&insert("k0", "after")).await.unwrap();
    for n in 1..16 {
        client.batch_execute(&insert(&format!("k{n}"), "after")).await.unwrap();
    }
    sinks[1].wait_for(before + 16).await;
    relays.remove(0).stop().await;
    let left = client.query("SELECT FROM semel_outbox_cursor WHERE owner IS NOT NULL", &[]).await.unwrap();
    assert!(left.is_empty());
    world.end().await;
}

/// Partitions that were taken over are at another place than one's own. They come together while events keep coming, and are
/// read as one again: otherwise each batch would be read and written down as often as there ever were owners.
#[tokio::test]
async fn lanes_taken_over_come_together_while_events_keep_coming() {
    let Some(world) = Postgres::new().await else { return };
    let client = world.connect().await;
    // Short: with each heartbeat a source learns who else is there.
    let outbox = world.options().lease(Duration::from_secs(3)).open().await.unwrap();
    let (mut one, mut other) = (outbox.source(), outbox.source());
    let ask = async |query: &str| client.query_one(query, &[]).await.unwrap().get::<_, i64>(0);
    let places = "SELECT count(DISTINCT low::text || coalesce(high::text, '')) FROM semel_outbox_cursor";
    let owners = "SELECT count(DISTINCT owner) FROM semel_outbox_cursor";
    // All partitions have something new at each look, so that no two looks see the same by chance.
    let fill = (0..64).map(|n| insert(&format!("k{n}"), "on")).collect::<String>();
    let step = async |source: &mut PostgresOutboxReader| {
        client.batch_execute(&fill).await.unwrap();
        // A beat that a busy machine was too slow for costs a lease, and nothing else.
        let looked = async {
            if let Some(batch) = source.next().await? {
                source.ack(&vec![Settled::Confirmed; batch.events.len()]).await?;
            }
            Ok::<_, OutboxReaderError>(())
        };
        if let Err(error) = looked.await {
            assert!(error.may_retry(), "{error}");
        }
    };
    let mut apart = false;
    for _ in 0..1_000 {
        step(&mut one).await;
        step(&mut other).await;
        apart = ask(owners).await == 2 && ask(places).await > 1;
        if apart {
            break;
        }
    }
    assert!(apart, "they never were at two places");
    other.release().await.unwrap();
    let (mut taken, mut together) = (false, false);
    for _ in 0..1_000 {
        step(&mut one).await;
        let all = ask("SELECT count(owner) FROM semel_outbox_cursor").await == 16;
        if all && !taken {
            assert!(ask(places).await > 1, "they were at one place from the beginning");
            taken = true;
        }
        together = taken && ask(places).await == 1;
        if together {
            break;
        }
    }
    assert!(taken && together);
    // And stay so.
    for _ in 0..10 {
        step(&mut one).await;
        assert_eq!(ask(places).await, 1);
    }
    world.end().await;
}

/// The connection stands still, and is not closed.
#[tokio::test]
async fn one_that_leaves_does_not_wait_for_ever() {
    let Some(world) = Postgres::new().await else { return };
    let proxy = Proxy::start(world.address()).unwrap();
    let url = world.url().replace(&world.address(), &proxy.addr().to_string());
    let outbox = PostgresOutbox::open(&format!("{url}&statement_timeout=5s")).await.unwrap();
    let (mut owner, mut standby) = (world.outbox().await.source(), outbox.source());
    assert!(owner.acquire_exclusive().await.unwrap() && !standby.acquire_exclusive().await.unwrap());
    proxy.set(Fault::Hang);
    let left = tokio::time::timeout(Duration::from_secs(60), standby.release()).await;
    assert!(left.is_ok(), "it still waits");
    proxy.cut();
    world.end().await;
}

/// A batch is written down for all partitions of its owner. Two take them over when that dies, and one of them has nothing of the
/// batch: what stands behind it is read all the same.
#[tokio::test]
async fn a_batch_whose_partitions_are_shared_out_takes_nothing_behind_it_along() {
    let Some(world) = Postgres::new().await else { return };
    let client = world.connect().await;
    let outbox = world.options().lease(LEASE).batch_max(1, 1 << 20).open().await.unwrap();
    let (mut first, mut one, mut other) = (outbox.source(), outbox.source(), outbox.source());
    let fill: String = (0..64).map(|n| insert(&format!("k{n}"), &n.to_string())).collect();
    client.batch_execute(&fill).await.unwrap();
    assert_eq!(batch(&mut first).await.events.len(), 1);
    // They are known, and have nothing yet.
    assert!(one.next().await.unwrap().is_none() && other.next().await.unwrap().is_none());
    drop(first);
    world.lease_over().await;
    let (mut texts, begun) = (BTreeSet::new(), Instant::now());
    while texts.len() < 64 {
        assert!(begun.elapsed() < Duration::from_secs(120), "{} of 64 events: {texts:?}", texts.len());
        for source in [&mut one, &mut other] {
            match source.next().await {
                Ok(Some(batch)) => {
                    texts.extend(batch.events.iter().map(|pending| crate::relay::sink::text(&pending.event)));
                    let done = source.ack(&vec![Settled::Confirmed; batch.events.len()]).await;
                    assert!(done.is_ok() || done.is_err_and(|error| error.may_retry()));
                }
                Ok(None) => tokio::time::sleep(Duration::from_millis(5)).await,
                Err(error) => assert!(error.may_retry(), "{error}"),
            }
        }
    }
    world.end().await;
}

/// A relay that loses its connection and not its lease: what falls to another meanwhile is given back.
pub async fn orphaned(
    first: &mut impl OutboxReader,
    second: &mut impl OutboxReader,
    proxy: &Proxy,
    owned: impl AsyncFn() -> Vec<i64>,
) {
    assert!(first.next().await.unwrap().is_none());
    assert!(second.next().await.unwrap().is_none());
    proxy.cut();
    let begun = Instant::now();
    loop {
        let _ = first.next().await;
        assert!(second.next().await.unwrap().is_none());
        if owned().await == [8, 8] {
            return;
        }
        assert!(
            begun.elapsed() < Duration::from_secs(120),
            "the partitions stay with one that does not know of them"
        );
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// How many partitions each relay has.
async fn owned(client: &tokio_postgres::Client) -> Vec<i64> {
    let owned = "SELECT count(*) FROM semel_outbox_cursor WHERE owner IS NOT NULL GROUP BY owner ORDER BY 1";
    client.query(owned, &[]).await.unwrap().iter().map(|row| row.get(0)).collect()
}

#[tokio::test]
async fn lanes_had_before_a_connection_broke_come_to_others() {
    let Some(world) = Postgres::new().await else { return };
    let client = world.connect().await;
    let proxy = Proxy::start(world.address()).unwrap();
    let url = world.url().replace(&world.address(), &proxy.addr().to_string());
    let lease = Duration::from_secs(30);
    let through = PostgresOutbox::options(&url).unwrap().lease(lease).open().await.unwrap();
    let direct = world.options().lease(lease).open().await.unwrap();
    orphaned(&mut through.source(), &mut direct.source(), &proxy, async || owned(&client).await).await;
    world.end().await;
}

/// It always has a batch on its way, with one event in it, when it hears of the other.
pub async fn shared_while_busy(
    first: &mut impl OutboxReader,
    second: &mut impl OutboxReader,
    lease: Duration,
    owned: impl AsyncFn() -> Vec<i64>,
) {
    let go_on = |result: Result<(), OutboxReaderError>| {
        assert!(result.as_ref().err().is_none_or(OutboxReaderError::may_retry), "{result:?}");
    };
    let begun = Instant::now();
    batch(first).await;
    while owned().await != [8, 8] {
        assert!(begun.elapsed() < Duration::from_secs(120), "it has {:?} partitions", owned().await);
        match second.next().await {
            Ok(Some(_)) => go_on(second.ack(&[Settled::Confirmed]).await),
            result => go_on(result.map(drop)),
        }
        tokio::time::sleep(lease * 3 / 8).await;
        go_on(first.renew_lease().await);
        go_on(first.ack(&[Settled::Confirmed]).await);
        batch(first).await;
    }
}

#[tokio::test]
async fn lanes_are_shared_by_one_that_is_always_busy() {
    let Some(world) = Postgres::new().await else { return };
    let client = world.connect().await;
    for n in 0..200 {
        client.batch_execute(&insert(&format!("k{n}"), "1")).await.unwrap();
    }
    let outbox = world.options().lease(LEASE).batch_max(1, 1 << 20).open().await.unwrap();
    shared_while_busy(&mut outbox.source(), &mut outbox.source(), LEASE, async || owned(&client).await).await;
    world.end().await;
}

/// Asked for its lag after a sleep, it has a lease again: but not the batch it had before.
pub async fn woken(first: &mut impl OutboxReader, second: &mut impl OutboxReader, lease: Duration) {
    assert_eq!(batch(first).await.events.len(), 1);
    tokio::time::sleep(lease * 9 / 8).await;
    assert_eq!(drained(second).await, ["1"]);
    let lag = first.lag().await;
    assert!(matches!(lag, Err(OutboxReaderError::Fenced)), "{lag:?}");
    assert!(!first.holds_lease());
}

#[tokio::test]
async fn a_new_lease_does_not_bring_back_an_old_batch() {
    let Some(world) = Postgres::new().await else { return };
    world.connect().await.batch_execute(&insert("a", "1")).await.unwrap();
    let outbox = world.options().lease(LEASE).open().await.unwrap();
    woken(&mut outbox.source(), &mut outbox.source(), LEASE).await;
    world.end().await;
}
