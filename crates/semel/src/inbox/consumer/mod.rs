//! A consumer: any source with any handler.
//!
//! ```text
//!  source ─▶ identity ─▶ key queues ─▶ handler: marks and effects, one commit ─▶ ack at the source
//! ```
//!
//! | module | what it decides |
//! |---|---|
//! | `run` | the loop: receive, handle concurrently, ack |
//! | `scheduler` | what is in flight, what may be handled now, max attempts, backoff, poison |
//! | `batches`, `bisect` | which messages share a call; halving a batch until the failing one is found |
//! | `workers`, `call` | calls in flight; one call with its timeout |
//! | `dead_letter` | writes a dead letter, then acknowledges the message |
//! | `redelivery` | dead letters that an operator wants redelivered |
//! | `handler`, `message` | what users implement, and what they are given |
//! | `idle_poll` | when an idle source is polled again |
//! | `pruner`, `retention` | retention of marks, and the task that prunes them |
//! | `options`, `metrics` | bounds; metrics and health |

mod batches;
mod bisect;
pub(super) mod call;
mod dead_letter;
mod handler;
mod idle_poll;
mod message;
mod metrics;
mod options;
mod pruner;
mod redelivery;
mod retention;
pub(super) mod run;
mod scheduler;
mod workers;

pub use handler::{
    AFTER_MAX, DeadLetter, DeadLetters, Due, Handler, HandlerError, HandlerErrorKind, OnBrokenCall,
};
pub use message::Message;
pub use metrics::ConsumerMetrics;
#[cfg(feature = "fault-injection")]
#[doc(hidden)]
pub use options::Mechanism;
pub use options::{ATTEMPTS_MAX, ConsumerOptions};
pub use retention::DedupPruner;
pub use run::{Consumer, ConsumerStats, ConsumerStopHandle, NoDeadLetters};
