//! The broker's side of a scene: something to read, published to by a bare client.

mod kafka;
pub mod rabbitmq;
pub mod redis_stream;

use kafka::Kafka;
use rabbitmq::Rabbitmq;
use redis_stream::RedisStream;

pub enum Broker {
    Kafka(Kafka),
    Rabbitmq(Rabbitmq),
    RedisStream(RedisStream),
}

impl Broker {
    /// By its address.
    pub async fn new(url: &str, name: &str, kind: &str) -> Self {
        match url.split_once("://").map(|(scheme, _)| scheme) {
            Some("amqp") => Self::Rabbitmq(Rabbitmq::new(url, name, kind).await),
            Some("redis") => Self::RedisStream(RedisStream::new(url, name)),
            _ => Self::Kafka(Kafka::new(url, name).await),
        }
    }

    /// Publishes these numbers of these keys, in this order.
    pub async fn publish(&self, sent: &[(String, usize)]) {
        match self {
            Self::Kafka(kafka) => kafka.publish(sent).await,
            Self::Rabbitmq(rabbitmq) => rabbitmq.publish(sent).await,
            Self::RedisStream(redis) => redis.publish(sent).await,
        }
    }

    /// Messages that are not done. RabbitMQ does not count those that somebody holds.
    pub async fn behind(&self) -> i64 {
        match self {
            Self::Kafka(kafka) => kafka.behind(),
            Self::Rabbitmq(rabbitmq) => rabbitmq.behind().await,
            Self::RedisStream(redis) => redis.behind().await,
        }
    }
}
