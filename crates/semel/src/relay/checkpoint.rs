//! The sink's checkpoint, as the bytes that the sink stores beside the events.

use std::fmt::Write;

use uuid::Uuid;

use super::outbox_reader::{LeftOut, Position, SinkCheckpoint};

/// Most events left out. A batch has fewer unless its limits were raised far.
pub(super) const LEFT_OUT_MAX: usize = 10_000;
/// A broker accepts records of up to a mebibyte by default.
const BYTES_MAX: usize = 1_000_000;
/// The first line: identifies the format and its version.
const VERSION: &str = "semel-reached-1";
/// As version 1, but each id is followed by its topic. Written only where an id alone is ambiguous, so that an older
/// relay can resume from most checkpoints.
const VERSION_WITH_TOPICS: &str = "semel-reached-2";

impl SinkCheckpoint {
    /// Encodes the checkpoint, to be stored beside the events. `None`: too many events were left out.
    pub fn to_bytes(&self) -> Option<Vec<u8>> {
        if self.left_out.len() > LEFT_OUT_MAX {
            return None;
        }
        let position = self.position.to_bytes();
        let with_topics = self.left_out.iter().any(|left| left.topic.is_some());
        let version = if with_topics { VERSION_WITH_TOPICS } else { VERSION };
        // The sizes of what follows, so that truncation is detected.
        let mut text = format!("{version}\n{} {}\n", self.left_out.len(), position.len());
        for LeftOut { event, topic } in &self.left_out {
            // Writing to a String cannot fail.
            let _ = match topic {
                // JSON, because a topic may contain any characters.
                Some(topic) => {
                    writeln!(text, "{} {}", event.simple(), serde_json::Value::from(topic.as_str()))
                }
                None => writeln!(text, "{}", event.simple()),
            };
        }
        // Last, because it may contain any characters.
        let mut bytes = text.into_bytes();
        bytes.extend(position);
        (bytes.len() <= BYTES_MAX).then_some(bytes)
    }

    /// Decodes what [`to_bytes`](Self::to_bytes) wrote. `None`: another format or another version.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        if bytes.len() > BYTES_MAX {
            return None;
        }
        let text = std::str::from_utf8(bytes).ok()?;
        let body = text.strip_prefix(VERSION).or_else(|| text.strip_prefix(VERSION_WITH_TOPICS))?;
        let (sizes, mut rest) = body.strip_prefix('\n')?.split_once('\n')?;
        let (count, size) = sizes.split_once(' ')?;
        let count: usize = count.parse().ok().filter(|count| *count <= LEFT_OUT_MAX)?;
        let mut left_out = Vec::with_capacity(count);
        for _ in 0..count {
            let (line, more) = rest.split_once('\n')?;
            let (id, topic) = match line.split_once(' ') {
                Some((id, topic)) => (id, Some(serde_json::from_str(topic).ok()?)),
                None => (line, None),
            };
            left_out.push(LeftOut { event: Uuid::try_parse(id).ok()?, topic });
            rest = more;
        }
        if size.parse() != Ok(rest.len()) {
            return None;
        }
        Some(Self { position: Position::from_bytes(rest.as_bytes())?, left_out })
    }

    /// Whether this checkpoint belongs to that batch. If either side does not know the database system, the tables
    /// decide.
    pub(super) fn is_of(&self, position: &Position) -> bool {
        self.position.lineage.matches(&position.lineage) && self.position.cursor == position.cursor
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::relay::{BatchCursor, OutboxLineage};

    fn reached(cursor: &str, left_out: usize) -> SinkCheckpoint {
        let position = Position { lineage: OutboxLineage::read("a/1"), cursor: BatchCursor::of(cursor) };
        SinkCheckpoint {
            position,
            left_out: (0..left_out).map(|n| Uuid::from_u128(n as u128).into()).collect(),
        }
    }

    #[test]
    fn it_reads_what_it_wrote_and_nothing_else() {
        for one in [reached("", 0), reached("[0, 1] 3:9:4..5:5: 0-7", 3), reached("two\nlines\n", 1)] {
            assert_eq!(SinkCheckpoint::from_bytes(&one.to_bytes().unwrap()), Some(one));
        }
        let bytes = reached("cursor", 2).to_bytes().unwrap();
        for end in 0..bytes.len() {
            assert_eq!(SinkCheckpoint::from_bytes(&bytes[..end]), None, "{end}");
        }
        for nonsense in
            ["", "nonsense", "semel-reached-3\n0 3\na\nb", "semel-reached-1\n9999999 3\na\nb", "a/1\ncursor"]
        {
            assert_eq!(SinkCheckpoint::from_bytes(nonsense.as_bytes()), None, "{nonsense}");
        }
        assert_eq!(SinkCheckpoint::from_bytes(&[0xff; 40]), None);
    }

    #[test]
    fn a_topic_is_written_where_an_id_does_not_name_an_event() {
        let mut one = reached("cursor", 3);
        assert!(one.to_bytes().unwrap().starts_with(b"semel-reached-1\n"));
        one.left_out[1].topic = Some("a \"topic\"\nof two lines".into());
        let bytes = one.to_bytes().unwrap();
        assert!(bytes.starts_with(b"semel-reached-2\n"));
        assert_eq!(SinkCheckpoint::from_bytes(&bytes), Some(one));
        for end in 0..bytes.len() {
            assert_eq!(SinkCheckpoint::from_bytes(&bytes[..end]), None, "{end}");
        }
    }

    #[test]
    fn it_is_bounded() {
        assert!(reached("cursor", LEFT_OUT_MAX).to_bytes().is_some());
        assert_eq!(reached("cursor", LEFT_OUT_MAX + 1).to_bytes(), None);
        assert_eq!(reached(&"x".repeat(BYTES_MAX), 0).to_bytes(), None);
    }

    #[test]
    fn the_system_is_compared_where_both_know_it() {
        let one = reached("cursor", 0);
        let of = |lineage: &str| {
            one.is_of(&Position { lineage: OutboxLineage::read(lineage), cursor: BatchCursor::of("cursor") })
        };
        assert!(of("a/1") && of("a") && !of("a/2") && !of("b/1"));
    }
}
