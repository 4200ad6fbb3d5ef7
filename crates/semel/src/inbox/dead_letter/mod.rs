//! Dead letters: messages that could not be handled, in a table beside the marks.
//!
//! ```text
//!  handler fails ─▶ letter (durable) ─▶ the broker may forget it
//!  `semel inbox retry` ─▶ a consumer handles it as any message: marks and effects, one commit ─▶ the letter goes
//!  `semel inbox drop` ─▶ what it said is deleted; that it was there, and why it was dropped, stays for a while
//! ```
//!
//! A letter is named by the mark that its message would have, so that a message that dies twice is one letter, and a
//! letter that is handled twice, because whoever did was killed before the letter was gone, has one effect.

mod letter;
mod link;
mod script;
mod sql;
mod tables;

pub use letter::{Counted, DeadLetterFilter, DeadLetterState, ERROR_BYTES_MAX, StoredDeadLetter};
pub use tables::{DeadLetterStore, LISTED_LETTERS_MAX};
