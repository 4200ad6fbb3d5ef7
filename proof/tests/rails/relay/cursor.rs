//! The cursor: windows, chunks, restarts, lineage.

use semel::relay::poll::postgres::PostgresOutbox;
use semel::relay::{OutboxReader, OutboxReaderError, Rebase, Settled};

use crate::relay::sink::{TestSink, text};
use crate::relay::world::{Postgres, Running, drained, insert, quick};

/// What a relay publishes that comes and leaves.
async fn all_there_is(world: &Postgres) -> Vec<String> {
    let mut source = world.outbox().await.source();
    let texts = drained(&mut source).await;
    source.release().await.unwrap();
    texts
}

#[tokio::test]
async fn an_open_transaction_elsewhere_stalls_nothing() {
    let Some(world) = Postgres::new().await else { return };
    let (held, client) = (world.connect().await, world.connect().await);
    held.batch_execute(&format!("BEGIN; {}", insert("held", "held"))).await.unwrap();
    let sink = TestSink::default();
    let relay = Running::start(world.outbox().await.source(), &sink, quick());
    for n in 0..50 {
        client.batch_execute(&insert("a", &n.to_string())).await.unwrap();
    }
    sink.wait_for(50).await;
    held.batch_execute("COMMIT").await.unwrap();
    sink.wait_for(51).await;
    let first = sink.first_of_each();
    assert_eq!(first["a"], (0..50).map(|n| n.to_string()).collect::<Vec<_>>());
    assert_eq!(relay.stop().await.confirmed, 51);
    world.end().await;
}

#[tokio::test]
async fn a_restart_repeats_exactly_the_batch_that_was_written_down() {
    let Some(world) = Postgres::new().await else { return };
    let client = world.connect().await;
    for n in 0..30 {
        client.batch_execute(&insert(&format!("k{}", n % 7), &n.to_string())).await.unwrap();
    }
    let outbox = world.options().batch_max(10, 1 << 20).open().await.unwrap();
    let mut source = outbox.source();
    let first = source.next().await.unwrap().unwrap();
    assert_eq!(first.events.len(), 10);
    let ids = |batch: &semel::relay::Batch| -> Vec<_> {
        batch.events.iter().map(|pending| pending.event.id()).collect()
    };
    // Until it is done it is the same, also for somebody who comes after a crash and when more was appended.
    assert_eq!(ids(&source.next().await.unwrap().unwrap()), ids(&first));
    client.batch_execute(&insert("k0", "more")).await.unwrap();
    source.release().await.unwrap();
    let mut next = outbox.source();
    let again = next.next().await.unwrap().unwrap();
    assert_eq!(ids(&again), ids(&first));
    assert_eq!(again.position, first.position);
    next.ack(&[const { Settled::Confirmed }; 10]).await.unwrap();
    let rest = drained(&mut next).await;
    let mut expected: Vec<String> = (10..30).map(|n| n.to_string()).collect();
    expected.push("more".into());
    assert_eq!(rest, expected);
    world.end().await;
}

#[tokio::test]
async fn a_batch_ends_where_its_bytes_do_and_a_large_window_is_walked_through() {
    let Some(world) = Postgres::new().await else { return };
    let client = world.connect().await;
    client
        .batch_execute(
            "INSERT INTO semel_outbox (topic, type, key, payload)
             SELECT 't', 'made', 'k' || n % 50, convert_to(n::text, 'UTF8') FROM generate_series(1, 12000) n;
             INSERT INTO semel_outbox (topic, type, key, payload)
             SELECT 't', 'made', 'big', decode(repeat('61', 1000), 'hex') FROM generate_series(1, 10)",
        )
        .await
        .unwrap();
    let outbox = world.options().batch_max(5_000, 4_000).open().await.unwrap();
    let mut source = outbox.source();
    let batch = source.next().await.unwrap().unwrap();
    let bytes: usize = batch.events.iter().map(|pending| pending.event.payload().len()).sum();
    assert!((4_000..4_010).contains(&bytes), "{bytes}");
    let mut texts: Vec<String> = batch.events.iter().map(|pending| text(&pending.event)).collect();
    source.ack(&vec![Settled::Confirmed; texts.len()]).await.unwrap();
    texts.extend(drained(&mut source).await);
    assert_eq!(texts.len(), 12_010);
    assert_eq!(texts[..12_000], (1..=12_000).map(|n| n.to_string()).collect::<Vec<_>>());
    world.end().await;
}

/// Partitions at two places: those of a relay that has gone on, and one of a relay that died. The snapshot at which they meet
/// was taken while somebody wrote a lot.
#[tokio::test]
async fn an_event_behind_much_that_was_under_way_at_the_meeting_place_is_published() {
    let Some(world) = Postgres::new().await else { return };
    let (bulk, client) = (world.connect().await, world.connect().await);
    bulk.batch_execute(
        "BEGIN; INSERT INTO semel_outbox (topic, type, key, payload)
         SELECT 't', 'made', 'k' || n % 50, 'bulk' FROM generate_series(1, 10001) n",
    )
    .await
    .unwrap();
    client.batch_execute(&insert("behind", "behind")).await.unwrap();
    let gone_on = "UPDATE semel_outbox_cursor SET low = pg_current_snapshot()
                   WHERE lane <> abs(hashtext('behind') % 16)";
    assert_eq!(client.execute(gone_on, &[]).await.unwrap(), 15);
    bulk.batch_execute("COMMIT").await.unwrap();
    let texts = all_there_is(&world).await;
    assert_eq!(texts.iter().filter(|text| *text == "behind").count(), 1);
    assert_eq!(texts.len(), 10_002);
    world.end().await;
}

#[tokio::test]
async fn looking_writes_nothing() {
    let Some(world) = Postgres::new().await else { return };
    let client = world.connect().await;
    client.batch_execute(&insert("a", "1")).await.unwrap();
    let mut source = world.outbox().await.source();
    assert_eq!(drained(&mut source).await, ["1"]);
    let rows = async || -> Vec<String> {
        let rows =
            client.query("SELECT xmin::text || ctid::text FROM semel_outbox_cursor ORDER BY lane", &[]);
        rows.await.unwrap().iter().map(|row| row.get(0)).collect()
    };
    let before = rows().await;
    for _ in 0..20 {
        assert!(source.next().await.unwrap().is_none());
    }
    assert_eq!(rows().await, before);
    world.end().await;
}

#[tokio::test]
async fn another_lineage_stops_the_relay_until_a_person_decides() {
    let Some(world) = Postgres::new().await else { return };
    let client = world.connect().await;
    client.batch_execute(&insert("a", "1")).await.unwrap();
    let sink = TestSink::default();
    let relay = Running::start(world.outbox().await.source(), &sink, quick());
    sink.wait_for(1).await;
    client.batch_execute("UPDATE semel_outbox_meta SET lineage = gen_random_uuid()").await.unwrap();
    let stopped = relay.task.await.unwrap().unwrap_err();
    assert!(stopped.to_string().contains("semel outbox rebase"), "{stopped}");
    let refused = world.options().open().await.err().unwrap();
    assert!(matches!(refused, OutboxReaderError::OutboxLineage { .. }), "{refused}");
    client.batch_execute(&insert("a", "2")).await.unwrap();
    PostgresOutbox::rebase(&world.url(), Rebase::Everything).await.unwrap();
    assert_eq!(all_there_is(&world).await, ["1", "2"]);
    PostgresOutbox::rebase(&world.url(), Rebase::FromNow).await.unwrap();
    client.batch_execute(&insert("a", "3")).await.unwrap();
    assert_eq!(all_there_is(&world).await, ["3"]);
    world.end().await;
}

#[tokio::test]
async fn another_cluster_and_transactions_still_to_come_are_noticed() {
    let Some(world) = Postgres::new().await else { return };
    let client = world.connect().await;
    client.batch_execute(&insert("a", "1")).await.unwrap();
    assert_eq!(all_there_is(&world).await, ["1"]);
    let moved = "UPDATE semel_outbox_cursor SET lineage = split_part(lineage, '/', 1) || '/1'";
    client.batch_execute(moved).await.unwrap();
    let refused = world.options().open().await.err().unwrap();
    assert!(matches!(refused, OutboxReaderError::OutboxLineage { .. }), "{refused}");
    // As a dump brings it where this user may not ask for the cluster's number.
    client
        .batch_execute(
            "UPDATE semel_outbox_cursor SET lineage = split_part(lineage, '/', 1), high = NULL,
             low = '900000000000:900000000000:'; UPDATE semel_outbox SET xid = '899999999999'",
        )
        .await
        .unwrap();
    let refused = world.options().open().await.err().unwrap();
    assert!(refused.to_string().contains("still to come"), "{refused}");
    PostgresOutbox::rebase(&world.url(), Rebase::Everything).await.unwrap();
    assert_eq!(all_there_is(&world).await, ["1"]);
    world.end().await;
}

#[tokio::test]
async fn lag_is_reported() {
    let Some(world) = Postgres::new().await else { return };
    let client = world.connect().await;
    let mut source = world.outbox().await.source();
    assert_eq!(drained(&mut source).await, Vec::<String>::new());
    for n in 0..5 {
        client.batch_execute(&insert(&format!("k{n}"), "x")).await.unwrap();
    }
    let lag = source.lag().await.unwrap();
    assert_eq!((lag.events, lag.parked, lag.partitions), (5, 0, 16));
    assert!(lag.oldest.is_some());
    drained(&mut source).await;
    let lag = source.lag().await.unwrap();
    assert_eq!((lag.events, lag.oldest), (0, None));
    world.end().await;
}
