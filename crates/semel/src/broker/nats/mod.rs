//! NATS JetStream.
//!
//! | module | what |
//! |---|---|
//! | `client` | connecting to JetStream |
//! | `sink`, `source` | see `semel::sink::nats` and `semel::source::nats` |

mod client;
pub mod sink;
pub mod source;
