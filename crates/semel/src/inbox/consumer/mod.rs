//! A consumer: any source with any handler.
//!
//! ```text
//!  source ─▶ named ─▶ lines by key ─▶ handler: marks and effects, one commit ─▶ settled at the source
//! ```

mod bisect;
pub(super) mod call;
mod desk;
mod handler;
mod message;
mod options;
pub(super) mod run;

pub use handler::{Buried, DeadLetters, Failed, FailedKind, Handler};
pub use message::Message;
pub use options::ConsumerOptions;
pub use run::{Consumer, Ended, Nowhere, Stop};
