//! The buffer of messages received from the broker and not yet committed.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::mem;
use std::sync::Arc;

use super::message::Input;
use crate::broker::kafka::source::Part;

/// The assigned partitions and their messages, by arrival, and so in the order of each partition. The first ones are
/// tried; others may arrive meanwhile.
#[derive(Default)]
pub(super) struct Buffer {
    ours: HashSet<Part>,
    waiting: VecDeque<Input>,
    /// Bytes of the waiting messages.
    bytes: usize,
    /// The batch being tried, without revoked partitions. It came before all that wait.
    tried: Arc<[Input]>,
    /// A partition of the batch being tried was revoked.
    broken: bool,
}

impl Buffer {
    /// A partition was assigned (rebalance).
    pub(super) fn assigned(&mut self, part: Part) {
        self.revoked(&part);
        self.ours.insert(part);
    }

    /// A partition was revoked (rebalance): its messages are dropped.
    pub(super) fn revoked(&mut self, part: &Part) {
        self.ours.remove(part);
        if self.tried.iter().any(|input| input.is_of(part)) {
            self.broken = true;
            self.tried = self.tried.iter().filter(|input| !input.is_of(part)).cloned().collect();
        }
        self.waiting.retain(|input| !input.is_of(part));
        self.bytes = self.waiting.iter().map(Input::bytes).sum();
    }

    /// A message arrived. It is ignored if its partition is not assigned.
    pub(super) fn received(&mut self, input: Input) {
        if self.ours.iter().any(|part| input.is_of(part)) {
            self.bytes += input.bytes();
            self.waiting.push_back(input);
        }
    }

    /// Whether no message waits.
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Whether enough messages wait for a batch.
    pub(super) fn is_full(&self, messages: usize, bytes: usize) -> bool {
        self.waiting.len() >= messages || self.bytes >= bytes
    }

    /// Starts a batch with the first waiting messages: at least one, if there is one.
    pub(super) fn begin(&mut self, messages: usize, bytes: usize) -> Arc<[Input]> {
        let (mut room, mut first) = (bytes, 0);
        for input in self.waiting.iter().take(messages) {
            let of_it = input.bytes();
            if of_it > room && first > 0 {
                break;
            }
            room = room.saturating_sub(of_it);
            self.bytes = self.bytes.saturating_sub(of_it);
            first += 1;
        }
        (self.tried, self.broken) = (self.waiting.drain(..first).collect(), false);
        Arc::clone(&self.tried)
    }

    /// Whether all partitions of the batch are still assigned.
    pub(super) fn is_whole(&self) -> bool {
        !self.broken
    }

    /// The batch is committed: the owner of its partitions continues behind it.
    pub(super) fn committed(&mut self) {
        self.tried = Arc::default();
    }

    /// The batch was not committed: its messages that are still ours wait again, in front.
    pub(super) fn put_back(&mut self) {
        for input in mem::take(&mut self.tried).iter().rev() {
            self.bytes += input.bytes();
            self.waiting.push_front(input.clone());
        }
    }
}

/// The offsets to commit: the next one of each partition.
pub(super) fn positions(tried: &[Input]) -> Vec<(Part, i64)> {
    let mut next = BTreeMap::new();
    // Messages of a partition mostly come in runs.
    for run in tried.chunk_by(Input::is_beside) {
        next.extend(run.last().map(|last| (last.part(), last.offset().saturating_add(1))));
    }
    next.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use rdkafka::Timestamp;
    use rdkafka::message::OwnedMessage;

    use super::*;

    fn part(partition: i32) -> Part {
        ("t".to_owned(), partition)
    }

    fn come(buffer: &mut Buffer, partition: i32, offset: i64) {
        let payload = Some(vec![b'x'; 10]);
        let message = OwnedMessage::new(
            payload,
            None,
            "t".to_owned(),
            Timestamp::NotAvailable,
            partition,
            offset,
            None,
        );
        buffer.received(Input::new(message, &Arc::from("cluster")));
    }

    fn positions_of(tried: &[Input]) -> Vec<String> {
        tried.iter().map(Input::place).collect()
    }

    fn buffer() -> Buffer {
        let mut buffer = Buffer::default();
        buffer.assigned(part(0));
        buffer.assigned(part(1));
        for offset in [3, 4, 7] {
            come(&mut buffer, 0, offset);
            come(&mut buffer, 1, offset);
        }
        buffer
    }

    #[test]
    fn the_first_are_tried_until_they_are_committed() {
        let mut buffer = buffer();
        let first = buffer.begin(3, 1_000);
        assert_eq!(positions_of(&first), ["t/0/3", "t/1/3", "t/0/4"]);
        assert_eq!(positions(&first), [(part(0), 5), (part(1), 4)]);
        buffer.put_back();
        assert_eq!(positions_of(&buffer.begin(1, 1_000)), ["t/0/3"], "again, fewer of them");
        buffer.committed();
        assert_eq!(positions_of(&buffer.begin(2, 1_000)), ["t/1/3", "t/0/4"]);
        buffer.committed();
        assert_eq!(positions_of(&buffer.begin(9, 25)), ["t/1/4", "t/0/7"], "as many as fit");
        buffer.put_back();
        assert_eq!(positions_of(&buffer.begin(9, 1)), ["t/1/4"], "one, however large");
        buffer.put_back();
        assert!(buffer.is_full(3, 1_000) && buffer.is_full(9, 30) && !buffer.is_full(4, 31));
    }

    #[test]
    fn what_is_taken_away_breaks_the_try_and_the_rest_stays() {
        let mut buffer = buffer();
        buffer.begin(1, 1_000);
        buffer.revoked(&part(1));
        assert!(buffer.is_whole(), "its partition was not in the batch");
        buffer.put_back();
        buffer.assigned(part(1));
        come(&mut buffer, 1, 3);
        buffer.begin(4, 1_000);
        buffer.revoked(&part(1));
        assert!(!buffer.is_whole());
        // Not committed, so nothing is lost.
        buffer.put_back();
        assert_eq!(positions_of(&buffer.begin(9, 1_000)), ["t/0/3", "t/0/4", "t/0/7"]);
        assert!(buffer.is_whole());
        buffer.put_back();
        come(&mut buffer, 1, 4);
        assert_eq!(buffer.begin(9, 1_000).len(), 3, "its partition is not assigned");
    }

    #[test]
    fn what_comes_while_others_are_tried_waits_behind_them() {
        let mut buffer = Buffer::default();
        buffer.assigned(part(0));
        buffer.assigned(part(1));
        come(&mut buffer, 0, 3);
        come(&mut buffer, 1, 3);
        buffer.begin(9, 1_000);
        assert!(buffer.is_empty() && !buffer.is_full(1, 1), "the batch being tried does not wait");
        come(&mut buffer, 0, 4);
        buffer.put_back();
        assert_eq!(positions_of(&buffer.begin(9, 1_000)), ["t/0/3", "t/1/3", "t/0/4"]);
        come(&mut buffer, 1, 4);
        buffer.committed();
        assert_eq!(positions_of(&buffer.begin(9, 1_000)), ["t/1/4"]);
        assert!(!buffer.is_full(1, 1), "its bytes are gone with it");
    }

    #[test]
    fn what_is_committed_after_some_of_it_was_taken_away_is_not_tried_again() {
        let mut buffer = buffer();
        buffer.begin(4, 1_000);
        buffer.revoked(&part(1));
        buffer.assigned(part(1));
        // The broker accepted the offsets before it revoked the partition.
        buffer.committed();
        come(&mut buffer, 1, 7);
        assert_eq!(positions_of(&buffer.begin(9, 1_000)), ["t/0/7", "t/1/7"]);
    }

    #[test]
    fn what_comes_back_begins_where_the_broker_says() {
        let mut buffer = buffer();
        buffer.begin(9, 1_000);
        buffer.assigned(part(0));
        assert!(!buffer.is_whole(), "assigned again, it belonged to another member in between");
        buffer.put_back();
        come(&mut buffer, 0, 5);
        assert_eq!(positions_of(&buffer.begin(9, 1_000)), ["t/1/3", "t/1/4", "t/1/7", "t/0/5"]);
    }
}
