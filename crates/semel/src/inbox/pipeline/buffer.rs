//! What was taken from the broker and is not committed.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::mem;
use std::sync::Arc;

use super::message::Input;
use crate::source::kafka::Part;

/// The partitions that are ours, and their messages: as they came, so in the order of each partition. Always the first of
/// them are tried, and others may come meanwhile.
#[derive(Default)]
pub(super) struct Buffer {
    ours: HashSet<Part>,
    waiting: VecDeque<Input>,
    /// Of those that wait.
    bytes: usize,
    /// Those that are being tried and are ours. They came before all that wait.
    tried: Arc<[Input]>,
    /// Some of those that are being tried are not ours any more.
    broken: bool,
}

impl Buffer {
    /// A partition is ours from now on.
    pub(super) fn assigned(&mut self, part: Part) {
        self.revoked(&part);
        self.ours.insert(part);
    }

    /// A partition is not ours any more, and its messages are for others.
    pub(super) fn revoked(&mut self, part: &Part) {
        self.ours.remove(part);
        if self.tried.iter().any(|input| input.is_of(part)) {
            self.broken = true;
            self.tried = self.tried.iter().filter(|input| !input.is_of(part)).cloned().collect();
        }
        self.waiting.retain(|input| !input.is_of(part));
        self.bytes = self.waiting.iter().map(Input::bytes).sum();
    }

    /// A message came. Of a partition that is not ours it is nobody's here.
    pub(super) fn came(&mut self, input: Input) {
        if self.ours.iter().any(|part| input.is_of(part)) {
            self.bytes += input.bytes();
            self.waiting.push_back(input);
        }
    }

    /// Whether none waits.
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Whether enough wait for a try.
    pub(super) fn is_full(&self, messages: usize, bytes: usize) -> bool {
        self.waiting.len() >= messages || self.bytes >= bytes
    }

    /// The first of those that wait, for a try: at least one, if there is one.
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

    /// Whether all that is being tried is still ours.
    pub(super) fn is_whole(&self) -> bool {
        !self.broken
    }

    /// What is being tried is committed: whatever became ours or others' meanwhile, it begins behind that.
    pub(super) fn committed(&mut self) {
        self.tried = Arc::default();
    }

    /// What is being tried was not committed: what is ours of it waits again, before the others.
    pub(super) fn put_back(&mut self) {
        for input in mem::take(&mut self.tried).iter().rev() {
            self.bytes += input.bytes();
            self.waiting.push_front(input.clone());
        }
    }
}

/// Where whoever goes on after these has to begin.
pub(super) fn positions(tried: &[Input]) -> Vec<(Part, i64)> {
    let mut next = BTreeMap::new();
    // Those of a partition mostly come one after another.
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

    fn come(held: &mut Buffer, partition: i32, offset: i64) {
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
        held.came(Input::new(message, &Arc::from("cluster")));
    }

    fn places(tried: &[Input]) -> Vec<String> {
        tried.iter().map(Input::place).collect()
    }

    fn held() -> Buffer {
        let mut held = Buffer::default();
        held.assigned(part(0));
        held.assigned(part(1));
        for offset in [3, 4, 7] {
            come(&mut held, 0, offset);
            come(&mut held, 1, offset);
        }
        held
    }

    #[test]
    fn the_first_are_tried_until_they_are_committed() {
        let mut held = held();
        let first = held.begin(3, 1_000);
        assert_eq!(places(&first), ["t/0/3", "t/1/3", "t/0/4"]);
        assert_eq!(positions(&first), [(part(0), 5), (part(1), 4)]);
        held.put_back();
        assert_eq!(places(&held.begin(1, 1_000)), ["t/0/3"], "again, fewer of them");
        held.committed();
        assert_eq!(places(&held.begin(2, 1_000)), ["t/1/3", "t/0/4"]);
        held.committed();
        assert_eq!(places(&held.begin(9, 25)), ["t/1/4", "t/0/7"], "as many as fit");
        held.put_back();
        assert_eq!(places(&held.begin(9, 1)), ["t/1/4"], "one, however large");
        held.put_back();
        assert!(held.is_full(3, 1_000) && held.is_full(9, 30) && !held.is_full(4, 31));
    }

    #[test]
    fn what_is_taken_away_breaks_the_try_and_the_rest_stays() {
        let mut held = held();
        held.begin(1, 1_000);
        held.revoked(&part(1));
        assert!(held.is_whole(), "it was not among those that are tried");
        held.put_back();
        held.assigned(part(1));
        come(&mut held, 1, 3);
        held.begin(4, 1_000);
        held.revoked(&part(1));
        assert!(!held.is_whole());
        // Committed by nobody: nothing of it is forgotten.
        held.put_back();
        assert_eq!(places(&held.begin(9, 1_000)), ["t/0/3", "t/0/4", "t/0/7"]);
        assert!(held.is_whole());
        held.put_back();
        come(&mut held, 1, 4);
        assert_eq!(held.begin(9, 1_000).len(), 3, "that is for others");
    }

    #[test]
    fn what_comes_while_others_are_tried_waits_behind_them() {
        let mut held = Buffer::default();
        held.assigned(part(0));
        held.assigned(part(1));
        come(&mut held, 0, 3);
        come(&mut held, 1, 3);
        held.begin(9, 1_000);
        assert!(held.is_empty() && !held.is_full(1, 1), "what is tried does not wait");
        come(&mut held, 0, 4);
        held.put_back();
        assert_eq!(places(&held.begin(9, 1_000)), ["t/0/3", "t/1/3", "t/0/4"]);
        come(&mut held, 1, 4);
        held.committed();
        assert_eq!(places(&held.begin(9, 1_000)), ["t/1/4"]);
        assert!(!held.is_full(1, 1), "its bytes are gone with it");
    }

    #[test]
    fn what_is_committed_after_some_of_it_was_taken_away_is_not_tried_again() {
        let mut held = held();
        held.begin(4, 1_000);
        held.revoked(&part(1));
        held.assigned(part(1));
        // The broker took the offsets before it gave the partition away.
        held.committed();
        come(&mut held, 1, 7);
        assert_eq!(places(&held.begin(9, 1_000)), ["t/0/7", "t/1/7"]);
    }

    #[test]
    fn what_comes_back_begins_where_the_broker_says() {
        let mut held = held();
        held.begin(9, 1_000);
        held.assigned(part(0));
        assert!(!held.is_whole(), "assigned anew, it was somebody else's in between");
        held.put_back();
        come(&mut held, 0, 5);
        assert_eq!(places(&held.begin(9, 1_000)), ["t/1/3", "t/1/4", "t/1/7", "t/0/5"]);
    }
}
