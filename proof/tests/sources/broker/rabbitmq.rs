//! A queue: `classic`, `quorum`, or `single` for a classic one with one active consumer.

use std::time::{Duration, Instant};

use lapin::options::{BasicPublishOptions, ConfirmSelectOptions, QueueDeclareOptions};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Channel, Connection, ConnectionProperties};

use crate::SOON;

pub struct Rabbitmq {
    url: String,
    queue: String,
}

pub async fn channel(url: &str) -> Result<(Connection, Channel), lapin::Error> {
    let connection = Connection::connect(url, ConnectionProperties::default()).await?;
    let channel = connection.create_channel().await?;
    Ok((connection, channel))
}

pub fn table(headers: &[(&str, &str)]) -> FieldTable {
    let mut table = FieldTable::default();
    for (name, value) in headers {
        table.insert((*name).into(), text(value));
    }
    table
}

fn text(text: &str) -> AMQPValue {
    AMQPValue::LongString(text.into())
}

impl Rabbitmq {
    pub async fn new(url: &str, queue: &str, kind: &str) -> Self {
        let (_connection, channel) = channel(url).await.unwrap();
        let mut arguments = FieldTable::default();
        match kind {
            "single" => arguments.insert("x-single-active-consumer".into(), AMQPValue::Boolean(true)),
            kind => arguments.insert("x-queue-type".into(), text(kind)),
        };
        let durable = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
        channel.queue_declare(queue.into(), durable, arguments).await.unwrap();
        Self { url: url.to_owned(), queue: queue.to_owned() }
    }

    /// Publishes anything, and waits for the confirms.
    pub async fn send(
        url: &str,
        queue: &str,
        messages: impl Iterator<Item = (FieldTable, Vec<u8>)>,
    ) -> Result<(), lapin::Error> {
        let (_connection, channel) = channel(url).await?;
        channel.confirm_select(ConfirmSelectOptions::default()).await?;
        let mut confirms = Vec::new();
        for (headers, payload) in messages {
            let properties = BasicProperties::default().with_delivery_mode(2).with_headers(headers);
            let options = BasicPublishOptions::default();
            let sent = channel.basic_publish("".into(), queue.into(), options, &payload, properties);
            confirms.push(sent.await?);
        }
        for confirm in confirms {
            assert!(confirm.await?.is_ack());
        }
        Ok(())
    }

    /// Again from the beginning while the broker is away: then some are there twice more.
    pub async fn publish(&self, sent: &[(String, usize)]) {
        let until = Instant::now() + SOON;
        while let Err(error) = self.try_publish(sent).await {
            assert!(Instant::now() < until, "{error}");
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    async fn try_publish(&self, sent: &[(String, usize)]) -> Result<(), lapin::Error> {
        for some in sent.chunks(1_000) {
            let messages = some.iter().map(|(key, n)| {
                let id = format!("{key}/{n}");
                (table(&[("semel-id", &id), ("semel-key", key)]), n.to_string().into_bytes())
            });
            Self::send(&self.url, &self.queue, messages).await?;
        }
        Ok(())
    }

    pub async fn behind(&self) -> i64 {
        let (_connection, channel) = channel(&self.url).await.unwrap();
        let passive = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
        let queue = self.queue.as_str().into();
        let told = channel.queue_declare(queue, passive, FieldTable::default()).await.unwrap();
        told.message_count().into()
    }
}
