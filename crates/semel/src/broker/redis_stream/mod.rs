//! Redis Streams.
//!
//! | module | what |
//! |---|---|
//! | `client` | connecting |
//! | `durability` | settings with which Redis may lose entries |
//! | `sink`, `source` | see `semel::sink::redis_stream` and `semel::source::redis_stream` |

use crate::sink::headers;

mod client;
mod durability;
pub mod sink;
pub mod source;

/// The field of the payload. An event's header with this name is left out.
pub const PAYLOAD: &str = "semel-payload";
/// The field of the partition key.
pub const KEY: &str = headers::KEY;
