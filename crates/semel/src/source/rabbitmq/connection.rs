//! A connection, its one channel, and the consumer on it.

use lapin::options::{BasicConsumeOptions, BasicQosOptions, QueueDeclareOptions};
use lapin::types::{FieldTable, ShortString};
use lapin::{Channel, Connection, Consumer};

use super::options::RabbitmqSourceOptions;
use super::queue_check;
use crate::sink::rabbitmq::{dial, short};
use crate::source::SourceError;

/// Fields are dropped in their order: with the connection everything goes back at once. A consumer that is cancelled before
/// that leaves what it has, and another gets what comes after it.
pub(super) struct BrokerConnection {
    connection: Connection,
    pub(super) channel: Channel,
    pub(super) consumer: Consumer,
    /// Delivery tags count from one on every channel: together with this they name a delivery.
    pub(super) name: String,
}

impl BrokerConnection {
    /// And what the queue may lose.
    pub(super) async fn open(options: &RabbitmqSourceOptions) -> Result<(Self, Option<String>), SourceError> {
        let unreachable =
            |error: lapin::Error| SourceError::later(format!("RabbitMQ could not be reached: {error}"));
        let (connection, channel) = dial(&options.url).await.map_err(unreachable)?;
        let queue = short(&options.queue).unwrap_or_default();
        let passive = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
        channel.queue_declare(queue.clone(), passive, FieldTable::default()).await.map_err(|error| {
            let queue = &options.queue;
            SourceError::later(format!("the queue {queue:?} cannot be read ({error}); declare it, durable"))
        })?;
        let may_lose = queue_check::check(&connection, &options.queue).await?;
        let refused = |error: lapin::Error| {
            SourceError::later(format!("RabbitMQ does not let us consume {:?}: {error}", options.queue))
        };
        // Of this consumer, not of the channel, which quorum queues do not have.
        channel.basic_qos(options.prefetch, BasicQosOptions { global: false }).await.map_err(refused)?;
        let by_hand = BasicConsumeOptions { no_ack: false, ..BasicConsumeOptions::default() };
        let consumer = channel
            .basic_consume(queue, ShortString::default(), by_hand, FieldTable::default())
            .await
            .map_err(refused)?;
        let name = uuid::Uuid::now_v7().simple().to_string();
        Ok((Self { connection, channel, consumer, name }, may_lose))
    }

    pub(super) fn is_up(&self) -> bool {
        self.channel.status().connected() && self.connection.status().connected()
    }

    /// Closes the channel, behind whatever was sent on it: when the answer is there the broker has read all acknowledgements
    /// and given the rest back.
    pub(super) async fn close(self) -> Result<(), lapin::Error> {
        self.channel.close(200, ShortString::from("left")).await?;
        self.connection.close(200, ShortString::from("left")).await
    }
}
