//! On PostgreSQL and SQLite.

use rusqlite::Connection;
use semel::outbox::{self, AppendError, Appended, Duplicates, Event, append_all_tx, append_tx};
use semel::tx::driver::Dialect;
use semel::{Intent, Key, Operation, Scope, blocking};

use crate::outbox::world::{Postgres, event};

const TRACE: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

fn full() -> (Event, Intent) {
    let key = Key::new("order-1001").unwrap();
    let intent = Intent::new(Scope::tenant("acme").unwrap(), Operation::new("payment.create").unwrap(), key);
    let event = Event::new("payments", "payment.completed", &b"\x00\xff{}"[..]).unwrap();
    let event = event.key("Konto-ä").unwrap().aggregate("payment", "7").unwrap();
    let event = event.content_type("application/cbor").unwrap().header("region", "eu \"1\"").unwrap();
    let event = event.once(Key::new("paid-7").unwrap()).trace_parent(TRACE).unwrap().caused_by(&intent);
    (event, intent)
}

#[tokio::test]
async fn an_event_is_there_as_it_was_given_and_only_after_the_commit() {
    let Some(world) = Postgres::new().await else { return };
    let (pool, judge) = (world.pool(2).await, world.connect().await);
    let count =
        async || judge.query_one("SELECT count(*) FROM semel_outbox", &[]).await.unwrap().get::<_, i64>(0);
    let (event, intent) = full();
    let mut tx = pool.begin().await.unwrap();
    append_tx(&mut tx, &event).await.unwrap();
    assert_eq!(count().await, 0);
    tx.rollback().await.unwrap();
    assert_eq!(count().await, 0);
    // What was rolled back has used up no key.
    let mut tx = pool.begin().await.unwrap();
    append_tx(&mut tx, &event).await.unwrap();
    tx.commit().await.unwrap();
    let query =
        "SELECT id::text, topic, type, key, aggregate_type, aggregate_id, content_type, headers->>'region',
                        idempotency_key, trace_parent, intent, payload FROM semel_outbox";
    let row = judge.query_one(query, &[]).await.unwrap();
    let texts: Vec<String> = (0..10).map(|at| row.get(at)).collect();
    let id = event.id().to_string();
    let given = [
        &id,
        "payments",
        "payment.completed",
        "Konto-ä",
        "payment",
        "7",
        "application/cbor",
        "eu \"1\"",
        "paid-7",
        TRACE,
    ];
    assert_eq!(texts, given);
    assert_eq!(row.get::<_, Vec<u8>>(10), intent.id().as_bytes());
    assert_eq!(row.get::<_, Vec<u8>>(11), b"\x00\xff{}");
    world.end().await;
}

#[tokio::test]
async fn many_events_keep_their_order_over_both_drivers() {
    let Some(world) = Postgres::new().await else { return };
    let events: Vec<Event> = (0..150).map(event).collect();
    let mut client = world.connect().await;
    let mut tx = client.transaction().await.unwrap();
    let done = append_all_tx(&mut tx, &events[..75], Duplicates::Refuse).await.unwrap();
    assert_eq!(done, [Appended::Added; 75]);
    tx.commit().await.unwrap();
    let pool = world.pool(1).await;
    let mut tx = pool.begin().await.unwrap();
    append_all_tx(&mut tx, &events[75..], Duplicates::Refuse).await.unwrap();
    tx.commit().await.unwrap();
    let rows = client
        .query("SELECT convert_from(payload, 'UTF8') FROM semel_outbox ORDER BY seq", &[])
        .await
        .unwrap();
    let payloads: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
    assert_eq!(payloads, (0..150).map(|n| n.to_string()).collect::<Vec<_>>());
    let too_many = vec![event(1); outbox::APPEND_EVENTS_MAX + 1];
    let mut tx = pool.begin().await.unwrap();
    let refused = append_all_tx(&mut tx, &too_many, Duplicates::Ignore).await.unwrap_err();
    assert!(matches!(refused, AppendError::TooMany { events: 10_001 }), "{refused}");
    world.end().await;
}

#[tokio::test]
async fn a_second_event_of_one_key_is_refused_or_left_out() {
    let Some(world) = Postgres::new().await else { return };
    let pool = world.pool(2).await;
    let once = |n: usize| event(n).once(Key::new("paid-7").unwrap());
    let mut tx = pool.begin().await.unwrap();
    append_tx(&mut tx, &once(0)).await.unwrap();
    tx.commit().await.unwrap();
    let mut tx = pool.begin().await.unwrap();
    let refused = append_tx(&mut tx, &once(1)).await.unwrap_err();
    assert!(matches!(refused, AppendError::Duplicate { at: 0 }), "{refused}");
    let done = append_all_tx(&mut tx, &[event(2), once(3), event(4)], Duplicates::Ignore).await.unwrap();
    assert_eq!(done, [Appended::Added, Appended::Already, Appended::Added]);
    tx.commit().await.unwrap();
    let rows =
        world.connect().await.query("SELECT payload FROM semel_outbox ORDER BY seq", &[]).await.unwrap();
    let payloads: Vec<Vec<u8>> = rows.iter().map(|row| row.get(0)).collect();
    assert_eq!(payloads, [b"0", b"2", b"4"]);
    world.end().await;
}

#[tokio::test]
async fn of_many_who_append_one_key_at_once_one_does() {
    let Some(world) = Postgres::new().await else { return };
    let pool = world.pool(8).await;
    let tasks: Vec<_> = (0..8)
        .map(|n| {
            let pool = pool.clone();
            tokio::spawn(async move {
                let mut added = 0;
                for key in 0..20 {
                    let event = event(n).once(Key::new(format!("key-{key}")).unwrap());
                    let mut tx = pool.begin().await.unwrap();
                    let done = append_all_tx(&mut tx, &[event], Duplicates::Ignore).await.unwrap();
                    // Every third rolls back: the next one in line comes in.
                    if (n + key) % 3 == 0 {
                        tx.rollback().await.unwrap();
                    } else {
                        tx.commit().await.unwrap();
                        added += usize::from(done == [Appended::Added]);
                    }
                }
                added
            })
        })
        .collect();
    let mut added = 0;
    for task in tasks {
        added += task.await.unwrap();
    }
    let judge = world.connect().await;
    let query = "SELECT count(*), count(DISTINCT idempotency_key) FROM semel_outbox";
    let row = judge.query_one(query, &[]).await.unwrap();
    assert_eq!((row.get::<_, i64>(0), row.get::<_, i64>(1), added), (20, 20, 20));
    world.end().await;
}

#[tokio::test]
async fn plain_sql_appends_too_and_has_the_id_of_the_whole_transaction() {
    let Some(world) = Postgres::new().await else { return };
    let client = world.connect().await;
    let insert = "INSERT INTO semel_outbox (topic, type, key, payload) VALUES ('t', 'made', 'k', '{}')";
    client
        .batch_execute(&format!("BEGIN; {insert}; SAVEPOINT s; {insert}; RELEASE s; COMMIT; {insert}"))
        .await
        .unwrap();
    let rows =
        client.query("SELECT xid::text, id::text, seq FROM semel_outbox ORDER BY seq", &[]).await.unwrap();
    let xids: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
    assert_eq!(xids.len(), 3);
    assert_eq!(xids[0], xids[1]);
    assert_ne!(xids[1], xids[2]);
    assert_ne!(rows[0].get::<_, String>(1), rows[1].get::<_, String>(1));
    // The key's rule holds for everybody.
    let insert =
        "INSERT INTO semel_outbox (topic, type, payload, idempotency_key) VALUES ('t', 'made', '{}', 'one')";
    assert_eq!(client.execute(insert, &[]).await.unwrap(), 1);
    assert_eq!(client.execute(insert, &[]).await.unwrap(), 0);
    world.end().await;
}

#[test]
fn sqlite_in_the_callers_file() {
    let directory = tempfile::tempdir().unwrap();
    let mut connection = Connection::open(directory.path().join("app.db")).unwrap();
    connection.execute_batch(outbox::schema(Dialect::Sqlite)).unwrap();
    let (event, intent) = full();
    let tx = connection.transaction().unwrap();
    blocking::append_tx(&tx, &event).unwrap();
    tx.rollback().unwrap();
    let tx = connection.transaction().unwrap();
    blocking::append_tx(&tx, &event).unwrap();
    let refused =
        blocking::append_tx(&tx, &event.clone().with_id(crate::outbox::world::event(0).id())).unwrap_err();
    assert!(matches!(refused, AppendError::Duplicate { at: 0 }), "{refused}");
    let events: Vec<Event> = (0..100).map(crate::outbox::world::event).collect();
    assert_eq!(blocking::append_all_tx(&tx, &events, Duplicates::Refuse).unwrap(), [Appended::Added; 100]);
    tx.commit().unwrap();
    let row = "SELECT id, headers, intent, payload FROM semel_outbox WHERE idempotency_key = 'paid-7'";
    let (id, headers, cause, payload): (String, String, Vec<u8>, Vec<u8>) = connection
        .query_row(row, [], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?)))
        .unwrap();
    assert_eq!(id, event.id().to_string());
    assert_eq!(headers, r#"{"region":"eu \"1\""}"#);
    assert_eq!(cause, intent.id().as_bytes());
    assert_eq!(payload, b"\x00\xff{}");
    let mut query = connection.prepare("SELECT payload FROM semel_outbox ORDER BY seq").unwrap();
    let payloads: Vec<Vec<u8>> =
        query.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).skip(1).collect();
    assert_eq!(payloads, (0..100).map(|n| n.to_string().into_bytes()).collect::<Vec<_>>());
    connection
        .execute("INSERT INTO semel_outbox (topic, type, payload) VALUES ('t', 'made', x'7b7d')", [])
        .unwrap();
    let id: String = connection
        .query_row("SELECT id FROM semel_outbox ORDER BY seq DESC LIMIT 1", [], |row| row.get(0))
        .unwrap();
    assert_eq!(id.parse::<uuid::Uuid>().unwrap().get_version_num(), 4);
}
