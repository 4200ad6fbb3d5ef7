//! The brokers: one folder each, with what its sink and its source share.
//!
//! | folder | broker |
//! |---|---|
//! | `kafka` | Kafka: at least once and exactly once; also the producers of the pipeline |
//! | `nats` | NATS JetStream |
//! | `rabbitmq` | RabbitMQ |
//! | `redis_stream` | Redis Streams |
//! | `sqs` | Amazon SQS |
//!
//! The public paths are `semel::sink::kafka`, `semel::source::kafka` and so on. No broker imports another one.

#[cfg(feature = "kafka")]
pub(crate) mod kafka;
#[cfg(feature = "nats")]
pub(crate) mod nats;
#[cfg(feature = "rabbitmq")]
pub(crate) mod rabbitmq;
#[cfg(feature = "redis")]
pub(crate) mod redis_stream;
#[cfg(feature = "sqs")]
pub(crate) mod sqs;
