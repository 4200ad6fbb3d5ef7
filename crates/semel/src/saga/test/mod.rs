//! Tests of your own sagas: run everywhere they may be disturbed, and run again on the journals of yesterday.
//!
//! [`everywhere`] runs a saga, with your application's fakes, on a journal in memory and in virtual time: first
//! undisturbed, then once for every point at which something can go wrong. [`replay`] runs stored journals against
//! today's code.
//!
//! | module | what it decides |
//! |---|---|
//! | `everywhere` | which histories are played |
//! | `ways` | what is met only on a way that a fault opens: lookups, undos, steps instead of others |
//! | `fault` | what is done to a history, and where |
//! | `play` | plays one history: workers, takeovers, the end |
//! | `process` | a worker that can be killed |
//! | `watched_journal` | the journal: its writes are counted, and crashes happen beside them |
//! | `watched_step` | the steps: what they are called with, what they say, and faults in between |
//! | `watch` | what was seen of one history |
//! | `atomic_rows` | the database of atomic steps, in memory |
//! | `world` | what a history left: your application, rows, events |
//! | `judge` | the rules |
//! | `report` | counts, and what a violation says |
//! | `ask_again` | the code alone, on a journal: does it ask for the same? |
//! | `replay` | stored journals against today's code |

mod ask_again;
#[cfg(feature = "sqlite")]
mod atomic_rows;
mod everywhere;
mod fault;
mod judge;
mod play;
mod process;
mod replay;
mod report;
mod watch;
mod watched_journal;
mod watched_step;
mod ways;
mod world;

pub use ask_again::ChangedStep;
pub use everywhere::{Everywhere, HISTORIES_MAX, everywhere};
pub use replay::{Replay, ReplayReport, ReplayedAs, ReplayedFile, replay};
pub use report::{HistoryEnd, HistoryReport, HistoryViolation, SagaRule};
pub use world::World;
