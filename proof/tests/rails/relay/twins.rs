//! Two events with one id on two topics are two events.

use semel::blocking;
use semel::outbox::Event;
use semel::relay::poll::postgres::PostgresOutbox;
use semel::relay::poll::sqlite::SqliteOutbox;
use semel::relay::{OutboxReaderError, Parked};
use uuid::Uuid;

use crate::relay::sink::TestSink;
use crate::relay::sqlite::{connect, file};
use crate::relay::world::{Postgres, Running, quick, until};

/// What a person asks.
trait ParkedAdmin {
    async fn all_parked(&self) -> Vec<Parked>;
    async fn skip_id(&self, id: Uuid) -> Result<bool, OutboxReaderError>;
}

macro_rules! parked_admin {
    ($outbox:ty) => {
        impl ParkedAdmin for $outbox {
            async fn all_parked(&self) -> Vec<Parked> {
                self.parked(None, 100).await.unwrap()
            }
            async fn skip_id(&self, id: Uuid) -> Result<bool, OutboxReaderError> {
                self.skip(id).await
            }
        }
    };
}

parked_admin!(PostgresOutbox);
parked_admin!(SqliteOutbox);

/// The sink refuses one for good and the other for a while: that one comes by itself, and is not skipped with the first.
async fn are_two(outbox: &impl ParkedAdmin, sink: &TestSink, id: Uuid) {
    until("both are parked", async || outbox.all_parked().await.len() == 2).await;
    let parked = outbox.all_parked().await;
    assert_ne!(parked[0].key, parked[1].key, "each is parked by itself");
    let refused = outbox.skip_id(id).await;
    assert!(refused.as_ref().is_err_and(|error| error.to_string().contains("several topics")), "{refused:?}");
    assert_eq!(outbox.all_parked().await.len(), 2, "nothing is skipped by mistake");
    sink.state().failing.clear();
    sink.wait_for(1).await;
    until("one is left", async || outbox.all_parked().await.len() == 1).await;
    assert_eq!(sink.texts(), ["mail"]);
    assert!(outbox.skip_id(id).await.unwrap());
    until("none is left", async || outbox.all_parked().await.is_empty()).await;
}

fn sink() -> TestSink {
    let sink = TestSink::default();
    sink.state().refused.insert("paid".into());
    sink.state().failing.insert("mail".into());
    sink
}

#[tokio::test]
async fn parked_in_postgres_each_by_itself() {
    let Some(world) = Postgres::new().await else { return };
    let (outbox, sink, id) = (world.outbox().await, sink(), Uuid::now_v7());
    let client = world.connect().await;
    for topic in ["paid", "mail"] {
        let insert = format!(
            "INSERT INTO semel_outbox (id, topic, type, payload) VALUES ('{id}', '{topic}', 'made', '{topic}')"
        );
        client.batch_execute(&insert).await.unwrap();
    }
    let relay = Running::start(outbox.source(), &sink, quick());
    are_two(&outbox, &sink, id).await;
    relay.stop().await;
    world.end().await;
}

#[tokio::test]
async fn parked_in_sqlite_each_by_itself() {
    let (_directory, path, outbox) = file();
    let (sink, id) = (sink(), Uuid::now_v7());
    let mut connection = connect(&path);
    for topic in ["paid", "mail"] {
        let tx = connection.transaction().unwrap();
        blocking::append_tx(&tx, &Event::new(topic, "made", topic).unwrap().with_id(id)).unwrap();
        tx.commit().unwrap();
    }
    let relay = Running::start(outbox.source(), &sink, quick());
    are_two(&outbox, &sink, id).await;
    relay.stop().await;
}
