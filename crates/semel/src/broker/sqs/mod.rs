//! Amazon SQS.
//!
//! | module | what |
//! |---|---|
//! | `client` | URL, credentials and errors |
//! | `message` | how an event is written as a message, and read again |
//! | `queue` | the attributes of a queue |
//! | `sink`, `source` | see `semel::sink::sqs` and `semel::source::sqs` |

mod client;
mod message;
mod queue;
pub mod sink;
pub mod source;
