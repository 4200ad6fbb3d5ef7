//! Two producers that take turns.
//!
//! A commit is answered before the broker has written its markers, and until it has, the same producer is sent away with
//! its next transaction, for 20 ms each time. With a second producer, which has a transactional id of its own, the markers
//! are written while that one works.
//!
//! **They are one.** Both are taken over before the position is read, so nobody from before can commit under either. And the
//! one begins when the other's transaction has ended and is known to have, so what they write has one order: the last
//! committed position is of the last transaction, whoever of the two had it.

use std::sync::Arc;

use super::line::Line;
use super::options::KafkaOptions;
use crate::sink::SinkError;

/// The producer whose turn it is, and the other.
pub(super) struct Turns {
    now: Arc<Line>,
    then: Arc<Line>,
}

impl Turns {
    /// Both, not yet taken over.
    pub(super) fn open(options: &KafkaOptions, id: &str) -> Result<Self, SinkError> {
        let open = |id: &str| Line::open(&options.transactional(id)).map(Arc::new);
        Ok(Self { now: open(id)?, then: open(&second(id))? })
    }

    pub(super) fn both(&self) -> [&Line; 2] {
        [&self.now, &self.then]
    }

    pub(super) fn now(&self) -> &Line {
        &self.now
    }

    /// The other one's turn.
    pub(super) fn pass(self) -> Self {
        Self { now: self.then, then: self.now }
    }
}

/// The transactional id of the second one.
fn second(id: &str) -> String {
    format!("{id}.2")
}
