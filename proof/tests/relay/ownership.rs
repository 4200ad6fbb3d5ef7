//! Who owns a lane, and what becomes of those who did.

use std::time::Duration;

use semel::relay::poll::postgres::PostgresSource;
use semel::relay::{Settled, Source, SourceError};

use crate::sink::TestSink;
use crate::world::{Postgres, Running, drained, insert, quick};

const LEASE: Duration = Duration::from_millis(300);

/// Two believe to own everything: the first slept beyond its lease. Gives what the first one's word was worth, and what
/// a third finds afterwards.
async fn split(world: &Postgres, edit: Option<fn(&str) -> String>) -> (Result<(), SourceError>, Vec<String>) {
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
    assert_eq!(first.next().await.unwrap().unwrap().events.len(), 1);
    assert!(first.holds());
    tokio::time::sleep(LEASE * 2).await;
    assert!(!first.holds());
    // And what is over is not renewed.
    let kept = first.keep().await;
    assert!(matches!(kept, Err(SourceError::Fenced)) && !first.holds(), "{kept:?}");
    // The second repeats what the first had begun, then writes down the next and is about to send it.
    assert_eq!(second.next().await.unwrap().unwrap().events.len(), 1);
    second.done(&[Settled::Confirmed]).await.unwrap();
    assert_eq!(second.next().await.unwrap().unwrap().events.len(), 1);
    let word = first.done(&[Settled::Confirmed]).await;
    // It dies before it does.
    drop(second);
    tokio::time::sleep(LEASE * 2).await;
    (word, drained(&mut outbox.source()).await)
}

#[tokio::test]
async fn an_owner_of_yesterday_moves_nothing() {
    let Some(world) = Postgres::new().await else { return };
    let (word, left) = split(&world, None).await;
    assert!(matches!(word, Err(SourceError::Fenced)), "{word:?}");
    assert_eq!(left, ["1"]);
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
        for _ in 0..600 {
            let rows = client.query(query, &[]).await.unwrap();
            if rows.iter().map(|row| row.get(0)).collect::<Vec<i64>>() == wanted {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        panic!("lanes were never owned as {wanted:?}");
    };
    owners(&[8, 8]).await;
    for n in 0..200 {
        client.batch_execute(&insert(&format!("k{n}"), &n.to_string())).await.unwrap();
    }
    let all = async || {
        for _ in 0..600 {
            let count: usize = sinks.iter().map(|sink| sink.first_of_each().len()).sum();
            if count >= 200 {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        panic!("events are missing");
    };
    all().await;
    assert!(sinks.iter().all(|sink| !sink.texts().is_empty()));
    // One dies without a word; the other goes on with all of it, and one that leaves leaves at once.
    relays.remove(0).kill().await;
    owners(&[16]).await;
    client.batch_execute(&insert("k0", "after")).await.unwrap();
    for n in 1..16 {
        client.batch_execute(&insert(&format!("k{n}"), "after")).await.unwrap();
    }
    sinks[1].wait_for(16).await;
    relays.remove(0).stop().await;
    let left = client.query("SELECT FROM semel_outbox_cursor WHERE owner IS NOT NULL", &[]).await.unwrap();
    assert!(left.is_empty());
    world.end().await;
}

/// Lanes that were taken over are at another place than one's own. They come together while events keep coming, and are
/// read as one again: otherwise each batch would be read and written down as often as there ever were owners.
#[tokio::test]
async fn lanes_taken_over_come_together_while_events_keep_coming() {
    let Some(world) = Postgres::new().await else { return };
    let client = world.connect().await;
    let outbox = world.options().lease(LEASE).open().await.unwrap();
    let (mut one, mut other) = (outbox.source(), outbox.source());
    let ask = async |query: &str| client.query_one(query, &[]).await.unwrap().get::<_, i64>(0);
    let places = "SELECT count(DISTINCT low::text || coalesce(high::text, '')) FROM semel_outbox_cursor";
    let owners = "SELECT count(DISTINCT owner) FROM semel_outbox_cursor";
    // All lanes have something new at each look, so that no two looks see the same by chance.
    let fill = (0..64).map(|n| insert(&format!("k{n}"), "on")).collect::<String>();
    let step = async |source: &mut PostgresSource| {
        client.batch_execute(&fill).await.unwrap();
        if let Some(batch) = source.next().await.unwrap() {
            source.done(&vec![Settled::Confirmed; batch.events.len()]).await.unwrap();
        }
    };
    for _ in 0..1_000 {
        step(&mut one).await;
        step(&mut other).await;
        if ask(owners).await == 2 && ask(places).await > 1 {
            break;
        }
    }
    assert_eq!(ask(owners).await, 2);
    other.leave().await.unwrap();
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
