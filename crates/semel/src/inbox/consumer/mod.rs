//! A consumer: any source with any handler.
//!
//! ```text
//!  source ─▶ named ─▶ lines by key ─▶ handler: marks and effects, one commit ─▶ settled at the source
//! ```
//!
//! | module | what it decides |
//! |---|---|
//! | `run` | the loop: receive, handle side by side, settle |
//! | `desk` | the scheduler: what is in flight, what may be handled now, max attempts, backoff, poison |
//! | `batches`, `bisect` | which messages share a call; halving a batch until the failing one is found |
//! | `calls`, `call` | the workers: calls under way, one call with its timeout |
//! | `burial` | writes a dead letter, then acknowledges the message |
//! | `letters` | dead letters that somebody wants redelivered |
//! | `handler`, `message` | what users implement, and what they are given |
//! | `look` | when an idle source is polled again |
//! | `upkeep`, `window` | retention of marks, and the task that prunes them |
//! | `options`, `metrics`, `trouble` | bounds; what is counted; health |

mod batches;
mod bisect;
mod burial;
pub(super) mod call;
mod calls;
mod desk;
mod handler;
mod letters;
mod look;
mod message;
mod metrics;
mod options;
pub(super) mod run;
mod trouble;
mod upkeep;
mod window;

pub use handler::{AFTER_MAX, Buried, DeadLetters, Due, Failed, FailedKind, Handler};
pub use message::Message;
pub use metrics::ConsumerMetrics;
pub use options::{ConsumerOptions, Mechanism};
pub use run::{Consumer, Ended, Nowhere, Stop};
pub use window::Marks;
