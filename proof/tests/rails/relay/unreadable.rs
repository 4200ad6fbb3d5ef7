//! A row that cannot be read is an event to park, and the others go on.

use semel::relay::poll::postgres::PostgresOutbox;
use semel::relay::poll::sqlite::SqliteOutbox;
use semel::relay::{EventFilter, Parked};
use testkit::services::{Service, require};

use crate::relay::sink::TestSink;
use crate::relay::sqlite::{append, connect, file};
use crate::relay::world::{ODD_ROW, Postgres, Running, ascii_database, drop_database, insert, quick, until};

/// The row is parked with its reason, and what comes after it in its key waits.
fn is_parked(parked: &[Parked]) {
    assert_eq!(parked.len(), 2, "{parked:?}");
    let error = parked[0].error.as_deref().unwrap();
    assert!(error.contains("topic") && error.contains("not UTF-8") && error.contains("74ff"), "{error}");
    assert_eq!((parked[0].event.payload().as_ref(), parked[0].key.as_str()), (&b"odd"[..], "odd"));
    assert_eq!((parked[1].event.payload().as_ref(), &parked[1].error), (&b"behind"[..], &None));
}

async fn until_parked(outbox: &SqliteOutbox, events: usize) -> Vec<Parked> {
    until("they are parked", async || outbox.parked(None, 10).await.unwrap().len() == events).await;
    outbox.parked(None, 10).await.unwrap()
}

#[tokio::test]
async fn in_sqlite() {
    let (_directory, path, outbox) = file();
    append(&path, &[("a", "a1")]);
    let odd = "INSERT INTO semel_outbox (topic, type, key, payload)
               VALUES (CAST(x'74ff' AS TEXT), 'made', 'odd', CAST('odd' AS BLOB))";
    connect(&path).execute(odd, []).unwrap();
    append(&path, &[("odd", "behind"), ("b", "b1")]);
    let sink = TestSink::default();
    let relay = Running::start(outbox.source(), &sink, quick());
    sink.wait_for(2).await;
    is_parked(&until_parked(&outbox, 2).await);
    relay.stop().await;
    // A retry without a repair fails with the same error again.
    let relay = Running::start(outbox.source(), &sink, quick());
    assert_eq!(outbox.retry(None).await.unwrap(), 1);
    append(&path, &[("a", "a2")]);
    sink.wait_for(3).await;
    is_parked(&until_parked(&outbox, 2).await);
    connect(&path).execute("UPDATE semel_outbox_parked SET topic = 't' WHERE error IS NOT NULL", []).unwrap();
    until("it is tried again", async || {
        outbox.retry(None).await.unwrap();
        outbox.parked(None, 10).await.unwrap().is_empty()
    })
    .await;
    assert_eq!(sink.first_of_each()["odd"], ["odd", "behind"]);
    assert_eq!(sink.first_of_each()["a"], ["a1", "a2"]);
    relay.stop().await;
}

/// Keys that cannot be read are parked each as what can be read of them.
#[tokio::test]
async fn also_a_key_in_sqlite() {
    let (_directory, path, outbox) = file();
    for column in ["key", "aggregate_id", "headers", "id", "content_type", "trace_parent"] {
        let odd = format!(
            "INSERT INTO semel_outbox (topic, type, {column}, payload)
             VALUES ('t', 'made', '{column}' || CAST(x'ff' AS TEXT), CAST('{column}' AS BLOB))"
        );
        connect(&path).execute(&odd, []).unwrap();
    }
    append(&path, &[("a", "a1")]);
    let sink = TestSink::default();
    let relay = Running::start(outbox.source(), &sink, quick());
    sink.wait_for(1).await;
    for parked in until_parked(&outbox, 6).await {
        let column = String::from_utf8(parked.event.payload().to_vec()).unwrap();
        assert!(parked.error.as_ref().is_some_and(|error| error.contains(&column)), "{parked:?}");
    }
    // A person sees them all the same.
    assert_eq!(outbox.list(&EventFilter::new(10)).await.unwrap().len(), 7);
    relay.stop().await;
}

#[tokio::test]
async fn in_a_database_of_any_bytes() {
    let Some(server) = require(Service::Postgres) else { return };
    let url = ascii_database(server.url()).await;
    let world = Postgres::on(&url).await;
    let client = world.connect().await;
    client.batch_execute(&insert("a", "a1")).await.unwrap();
    client.batch_execute(ODD_ROW).await.unwrap();
    client.batch_execute(&format!("{}{}", insert("odd", "behind"), insert("b", "b1"))).await.unwrap();
    let (outbox, sink): (PostgresOutbox, _) = (world.outbox().await, TestSink::default());
    let relay = Running::start(outbox.source(), &sink, quick());
    sink.wait_for(2).await;
    until("two are parked", async || outbox.parked(None, 10).await.unwrap().len() == 2).await;
    is_parked(&outbox.parked(None, 10).await.unwrap());
    assert_eq!(outbox.list(&EventFilter::new(10)).await.unwrap().len(), 4);
    client.batch_execute("UPDATE semel_outbox_parked SET topic = 't'").await.unwrap();
    until("it is tried again", async || {
        outbox.retry(None).await.unwrap();
        outbox.parked(None, 10).await.unwrap().is_empty()
    })
    .await;
    assert_eq!(sink.first_of_each()["odd"], ["odd", "behind"]);
    relay.stop().await;
    drop_database(server.url(), &url).await;
}
