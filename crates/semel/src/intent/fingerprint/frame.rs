//! Parts into a digest, framed so that no two lists of parts run together.

use sha2::{Digest, Sha256};

use super::VERSION;

/// What a part is. A number is never reused for another meaning without a new [`VERSION`].
#[derive(Clone, Copy)]
#[repr(u8)]
pub(super) enum Tag {
    Domain = 0,
    Version = 1,
    Method = 2,
    Route = 3,
    PathName = 4,
    PathValue = 5,
    QueryName = 6,
    QueryValue = 7,
    QueryRaw = 8,
    HeaderName = 9,
    HeaderValue = 10,
    ContentType = 11,
    BodyRaw = 12,
    BodyJson = 13,
    /// The body has none of the fields that the recipe includes: all its fields are hashed, except excluded ones.
    BodyJsonUnchosen = 14,
    BodyForm = 15,
    FormName = 16,
    FormValue = 17,
    BodyMultipart = 18,
    PartName = 19,
    PartFilename = 20,
    PartFilenameExtended = 21,
    PartContentType = 22,
    PartBody = 23,
    Setting = 24,
}

/// A tag and a length.
const HEAD_BYTES: usize = 9;

/// SHA-256 over `tag, length, bytes` of each part.
///
/// Such a list can be read back in one way only, so two different lists are two different inputs. A part that
/// is missing and a part that is empty differ as well.
pub(super) struct Frame(Sha256);

impl Frame {
    /// `domain` keeps requests, values, bytes and settings apart: equal parts never make them equal.
    pub(super) fn new(domain: &str) -> Self {
        Self::versioned(domain, VERSION)
    }

    pub(super) fn versioned(domain: &str, version: u32) -> Self {
        let mut frame = Self(Sha256::new());
        frame.part(Tag::Domain, domain.as_bytes());
        frame.part(Tag::Version, &version.to_le_bytes());
        frame
    }

    pub(super) fn part(&mut self, tag: Tag, bytes: &[u8]) {
        let mut head = [tag as u8; HEAD_BYTES];
        head[1..].copy_from_slice(&(bytes.len() as u64).to_le_bytes());
        // Most parts are short; one update costs less than two.
        let mut short = [0; 64];
        match short.get_mut(..HEAD_BYTES + bytes.len()) {
            Some(part) => {
                part[..HEAD_BYTES].copy_from_slice(&head);
                part[HEAD_BYTES..].copy_from_slice(bytes);
                self.0.update(part);
            }
            None => {
                self.0.update(head);
                self.0.update(bytes);
            }
        }
    }

    pub(super) fn finish(self) -> [u8; 32] {
        self.0.finalize().into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digest(parts: &[(Tag, &[u8])]) -> [u8; 32] {
        let mut frame = Frame::new("test");
        for (tag, bytes) in parts {
            frame.part(*tag, bytes);
        }
        frame.finish()
    }

    #[test]
    fn a_part_that_imitates_the_frame_of_another_does_not_become_it() {
        for length in [0, 1] {
            let forged = [&b"a"[..], &[Tag::Route as u8, length, 0, 0, 0, 0, 0, 0, 0], b"b"].concat();
            let honest = digest(&[(Tag::Method, b"a"), (Tag::Route, b"b")]);
            assert_ne!(digest(&[(Tag::Method, &forged)]), honest);
        }
    }

    #[test]
    fn lists_of_parts_never_run_together() {
        let lists: [&[(Tag, &[u8])]; 8] = [
            &[],
            &[(Tag::Method, b"")],
            &[(Tag::Route, b"")],
            &[(Tag::Method, b""), (Tag::Method, b"")],
            &[(Tag::Method, b"ab")],
            &[(Tag::Method, b"a"), (Tag::Method, b"b")],
            &[(Tag::Method, b"a"), (Tag::Route, b"b")],
            &[(Tag::Method, b"ab"), (Tag::Route, b"")],
        ];
        for (i, a) in lists.iter().enumerate() {
            for (j, b) in lists.iter().enumerate() {
                assert_eq!(digest(a) == digest(b), i == j, "{i} and {j}");
            }
        }
    }

    #[test]
    fn domain_and_version_keep_digests_apart() {
        let one = Frame::versioned("a", 1).finish();
        assert_ne!(one, Frame::versioned("b", 1).finish());
        assert_ne!(one, Frame::versioned("a", 2).finish());
    }
}
