//! A consumer: any source with any handler.
//!
//! ```text
//!  source ─▶ named ─▶ lines by key ─▶ handler: marks and effects, one commit ─▶ settled at the source
//! ```

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
