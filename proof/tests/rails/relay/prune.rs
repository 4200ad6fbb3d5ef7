//! Forgetting what is published, and never more.

use std::time::Duration;

use semel::relay::poll::postgres::PostgresOutbox;
use semel::relay::{OutboxReader, Pruned};
use tokio_postgres::Client;

use crate::relay::world::{LEASE, Postgres, drained, insert};

const TURN: i64 = 1 << 20;

async fn count(client: &Client) -> i64 {
    client.query_one("SELECT count(*) FROM semel_outbox", &[]).await.unwrap().get(0)
}

async fn to_turn(client: &Client, turn: i64) {
    client.execute("SELECT setval('semel_outbox_seq', $1)", &[&(turn * TURN + 5)]).await.unwrap();
}

async fn pruned(source: &mut impl OutboxReader, older_than: Duration) -> u32 {
    let Pruned { tables, .. } = source.prune(older_than).await.unwrap();
    tables
}

#[tokio::test]
async fn a_table_of_the_ring_is_emptied_when_all_of_it_is_published_and_old() {
    let Some(world) = Postgres::new().await else { return };
    let client = world.connect().await;
    let mut source = world.outbox().await.source();
    client.batch_execute(&insert("a", "1")).await.unwrap();
    to_turn(&client, 2).await;
    client.batch_execute(&insert("a", "2")).await.unwrap();
    drained(&mut source).await;
    // Young.
    assert_eq!(pruned(&mut source, Duration::from_secs(3600)).await, 0);
    // Old, but not published: there is a third one of the first table.
    to_turn(&client, 4).await;
    client.batch_execute(&insert("a", "3")).await.unwrap();
    assert_eq!(pruned(&mut source, Duration::ZERO).await, 1);
    assert_eq!(count(&client).await, 2);
    assert_eq!(drained(&mut source).await, ["3"]);
    // Somebody is writing there: another time.
    let writer = world.connect().await;
    writer.batch_execute(&format!("BEGIN; {}", insert("a", "4"))).await.unwrap();
    assert_eq!(pruned(&mut source, Duration::ZERO).await, 0);
    writer.batch_execute("COMMIT").await.unwrap();
    assert_eq!(drained(&mut source).await, ["4"]);
    assert_eq!(pruned(&mut source, Duration::ZERO).await, 1);
    assert_eq!(count(&client).await, 0);
    world.end().await;
}

#[tokio::test]
async fn what_another_relay_has_not_published_stays_and_the_next_turn_need_not_be_old() {
    let Some(world) = Postgres::new().await else { return };
    let client = world.connect().await;
    let outbox = world.outbox().await;
    for n in 0..32 {
        client.batch_execute(&insert(&format!("k{n}"), "x")).await.unwrap();
    }
    // The ring comes round to table 0 next.
    to_turn(&client, 3).await;
    let mut source = outbox.source();
    drained(&mut source).await;
    let behind =
        "UPDATE semel_outbox_cursor SET low = '3:3:', high = NULL, owner = gen_random_uuid() WHERE lane = 5";
    // Partition 5 is another's, who has published nothing.
    client
        .batch_execute(&format!("UPDATE semel_outbox_cursor SET epoch = epoch + 1; {behind}"))
        .await
        .unwrap();
    assert!(source.prune(Duration::ZERO).await.is_err());
    assert_eq!(pruned(&mut source, Duration::ZERO).await, 0);
    assert_eq!(count(&client).await, 32);
    drained(&mut source).await;
    assert_eq!(pruned(&mut source, Duration::from_secs(3600)).await, 1);
    assert_eq!(count(&client).await, 0);
    world.end().await;
}

/// A lock that is asked for holds up everybody who comes after. Where nothing is to be emptied none is asked for: not
/// even one whom the server would refuse it notices.
#[tokio::test]
async fn a_table_that_is_not_to_be_emptied_is_not_locked() {
    let Some(world) = Postgres::new().await else { return };
    let (client, schema) = (world.connect().await, world.schema().to_owned());
    let role = format!("{schema}_reader");
    client
        .batch_execute(&format!(
            "CREATE ROLE {role} LOGIN; GRANT USAGE ON SCHEMA {schema} TO {role};
             GRANT SELECT ON ALL TABLES IN SCHEMA {schema} TO {role};
             GRANT SELECT ON semel_outbox_seq TO {role};
             GRANT UPDATE ON semel_outbox_cursor TO {role}; GRANT UPDATE, DELETE ON semel_outbox_key TO {role};
             GRANT INSERT, UPDATE, DELETE ON semel_outbox_relay TO {role}"
        ))
        .await
        .unwrap();
    let url = world.url().replace("postgres@", &format!("{role}@"));
    let mut source = PostgresOutbox::options(&url).unwrap().lease(LEASE).open().await.unwrap().source();
    client.batch_execute(&insert("a", "1")).await.unwrap();
    // Not published, then young.
    assert_eq!(pruned(&mut source, Duration::ZERO).await, 0);
    assert_eq!(drained(&mut source).await, ["1"]);
    assert_eq!(pruned(&mut source, Duration::from_secs(3600)).await, 0);
    let refused = source.prune(Duration::ZERO).await.unwrap_err();
    assert!(refused.to_string().contains("may not use"), "{refused}");
    source.release().await.unwrap();
    client.batch_execute(&format!("DROP OWNED BY {role}; DROP ROLE {role}")).await.unwrap();
    world.end().await;
}

#[tokio::test]
async fn old_keys_are_forgotten_in_bites() {
    let Some(world) = Postgres::new().await else { return };
    let client = world.connect().await;
    client
        .batch_execute(
            "INSERT INTO semel_outbox_key (key, seq, made_at)
             SELECT n::text, n, clock_timestamp() - interval '1 day' FROM generate_series(1, 2500) n;
             INSERT INTO semel_outbox_key (key, seq) VALUES ('young', 1)",
        )
        .await
        .unwrap();
    let mut source = world.outbox().await.source();
    assert_eq!(source.prune(Duration::from_secs(3600)).await.unwrap().rows, 2_500);
    let left: i64 = client.query_one("SELECT count(*) FROM semel_outbox_key", &[]).await.unwrap().get(0);
    assert_eq!(left, 1);
    world.end().await;
}
