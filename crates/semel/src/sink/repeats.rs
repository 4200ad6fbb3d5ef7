//! The deduplication id, by which a broker recognises and drops duplicates.

use std::fmt::Write;

use sha2::{Digest, Sha256};

use crate::outbox::Event;

/// The event's id, a dot, and the SHA-256 of its topic as hexadecimal digits: two topics may share an id, and a topic
/// may have more and other characters than a broker accepts here. 101 characters; SQS accepts 128.
pub(crate) fn deduplication_id(event: &Event) -> String {
    let digest = Sha256::digest(event.topic());
    digest.iter().fold(format!("{}.", event.id()), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_id_on_two_topics_is_two() {
        let one = Event::new("paid", "k", "").unwrap();
        let other = Event::new(&"x".repeat(200), "k", "").unwrap().with_id(one.id());
        assert_eq!(deduplication_id(&one), deduplication_id(&one.clone()));
        assert_ne!(deduplication_id(&one), deduplication_id(&other));
        for event in [one, other] {
            let id = deduplication_id(&event);
            assert!(id.len() == 101 && id.starts_with(&event.id().to_string()), "{id}");
        }
    }
}
