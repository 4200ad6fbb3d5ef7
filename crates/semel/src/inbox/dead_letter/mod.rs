//! Dead letters (the dead letter queue): messages that could not be handled, in a table beside the marks.
//!
//! ```text
//!  handler fails ─▶ dead letter (durable) ─▶ ack at the broker
//!  `semel inbox retry` ─▶ redelivered like any message: marks and effects, one commit ─▶ dead letter deleted
//!  `semel inbox drop` ─▶ payload and headers deleted; the row and the reason stay for a while
//! ```
//!
//! A dead letter has the mark of its message as its id. So a message that fails for good twice is one dead letter, and
//! one that is redelivered twice, because a consumer crashed before deleting it, has one effect.
//!
//! | module | what it decides |
//! |---|---|
//! | `tables` | the dead letter store: where they are written, inspected, retried and dropped |
//! | `letter` | a dead letter as it is written and read, and its id |
//! | `operations`, `sql` | the operations over any driver, and their statements |

mod letter;
mod operations;
mod sql;
mod tables;

pub use letter::{Counted, DeadLetterFilter, DeadLetterState, ERROR_BYTES_MAX, StoredDeadLetter};
pub use tables::{DeadLetterStore, LISTED_LETTERS_MAX};
