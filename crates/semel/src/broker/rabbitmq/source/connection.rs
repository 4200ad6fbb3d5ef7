//! A connection, its one channel, and the consumer on it.

use lapin::options::{BasicConsumeOptions, BasicQosOptions, QueueDeclareOptions};
use lapin::types::{FieldTable, ShortString};
use lapin::{Channel, Connection, Consumer};

use super::options::RabbitmqSourceOptions;
use super::queue_check;
use crate::broker::rabbitmq::client::{dial, short};
use crate::source::SourceError;

/// Fields drop in this order: closing the connection gives everything back at once. A consumer cancelled before that
/// would keep its messages, and another would get later ones first.
pub(super) struct BrokerConnection {
    connection: Connection,
    pub(super) channel: Channel,
    pub(super) consumer: Consumer,
    /// Delivery tags start at one on every channel: only together with this name they identify a delivery.
    pub(super) name: String,
}

impl BrokerConnection {
    /// Connects, checks the queue and starts to consume. Also returns a warning if the queue may lose messages.
    pub(super) async fn open(options: &RabbitmqSourceOptions) -> Result<(Self, Option<String>), SourceError> {
        let unreachable =
            |error: lapin::Error| SourceError::later(format!("RabbitMQ could not be reached: {error}"));
        let (connection, channel) = dial(&options.url).await.map_err(unreachable)?;
        let queue = short(&options.queue).unwrap_or_default();
        let passive = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
        channel.queue_declare(queue.clone(), passive, FieldTable::default()).await.map_err(|error| {
            let queue = &options.queue;
            SourceError::later(format!("cannot read the queue {queue:?} ({error}); declare it as durable"))
        })?;
        let may_lose = queue_check::check(&connection, &options.queue).await?;
        let refused = |error: lapin::Error| {
            SourceError::later(format!("RabbitMQ refused a consumer on {:?}: {error}", options.queue))
        };
        // Per consumer: quorum queues do not support a prefetch per channel.
        channel.basic_qos(options.prefetch, BasicQosOptions { global: false }).await.map_err(refused)?;
        let manual_ack = BasicConsumeOptions { no_ack: false, ..BasicConsumeOptions::default() };
        let consumer = channel
            .basic_consume(queue, ShortString::default(), manual_ack, FieldTable::default())
            .await
            .map_err(refused)?;
        let name = uuid::Uuid::now_v7().simple().to_string();
        Ok((Self { connection, channel, consumer, name }, may_lose))
    }

    pub(super) fn is_up(&self) -> bool {
        self.channel.status().connected() && self.connection.status().connected()
    }

    /// Closes the channel after everything sent on it: once it answers, the broker has read all acks and requeued the
    /// rest.
    pub(super) async fn close(self) -> Result<(), lapin::Error> {
        self.channel.close(200, ShortString::from("left")).await?;
        self.connection.close(200, ShortString::from("left")).await
    }
}
