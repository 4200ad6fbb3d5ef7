//! RabbitMQ.
//!
//! | module | what |
//! |---|---|
//! | `client` | connections, and the short strings of AMQP |
//! | `sink`, `source` | see `semel::sink::rabbitmq` and `semel::source::rabbitmq` |

mod client;
pub mod sink;
pub mod source;
