//! Reads the broker's feature versions that transactions depend on. librdkafka does not expose them.
//!
//! Sends one `ApiVersions` request over a separate connection. The response has the features that the broker supports
//! and those that are finalised.

use std::io::{Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(2);
/// Far more than any broker's response.
const ANSWER_BYTES_MAX: usize = 256 * 1024;
const SUPPORTED_FEATURES: u32 = 0;
const FINALIZED_FEATURES: u32 = 2;
/// The highest `metadata.version` of Kafka 4.3, and of no other version.
const METADATA_OF_4_3: u16 = 30;
/// ApiVersions is request 18; version 3 includes the features. Correlation id 1, client id `semel`.
const REQUEST: &[u8] = b"\x00\x12\x00\x03\x00\x00\x00\x01\x00\x05semel\x00\x06semel\x020\x00";

/// The feature versions of a broker.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Features {
    /// The finalised `transaction.version`; 0 if there is none.
    pub(super) transactions: u16,
    /// The highest supported `metadata.version`; 0 if there is none.
    metadata: u16,
}

impl Features {
    /// Violations of exactly-once.
    pub(super) fn violations(self) -> Vec<String> {
        let mut violations = Vec::new();
        if self.transactions < 2 {
            violations.push(format!(
                "the broker has transaction version {}: a late message may end up in the next transaction \
                 (KIP-890); upgrade to Kafka 4 and finalise transaction.version=2",
                self.transactions
            ));
        }
        if self.metadata == METADATA_OF_4_3 {
            violations.push(
                "the broker runs Kafka 4.3: versions 4.3.0 and 4.3.1 do not end a transaction in partitions that have \
                 no leader at that moment, so after a crash of all their replicas readers see aborted messages, or \
                 none (KAFKA-20734); use 4.2, or a version with the fix"
                    .to_owned(),
            );
        }
        violations
    }
}

/// Reads the broker's features. `None` if it could not be asked.
pub(super) fn ask(broker: &str) -> Option<Features> {
    let answer = exchange(broker).ok()?;
    let features = parse(&answer);
    if features.is_none() {
        tracing::debug!(target: "semel::kafka", broker, "could not parse the broker's features");
    }
    features
}

/// Reads the broker's features, and warns about each violation of exactly-once.
pub(crate) fn ask_and_warn(broker: &str) -> Option<Features> {
    let features = ask(broker);
    for violation in features.map(Features::violations).unwrap_or_default() {
        tracing::warn!(target: "semel::kafka", broker, "{violation}");
    }
    features
}

fn exchange(broker: &str) -> std::io::Result<Vec<u8>> {
    let address = broker.to_socket_addrs()?.next().ok_or(std::io::ErrorKind::AddrNotAvailable)?;
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let length = u32::try_from(REQUEST.len()).unwrap_or(0).to_be_bytes();
    stream.write_all(&[&length, REQUEST].concat())?;
    let mut length = [0; 4];
    stream.read_exact(&mut length)?;
    let length = usize::try_from(u32::from_be_bytes(length)).unwrap_or(usize::MAX);
    if length > ANSWER_BYTES_MAX {
        return Err(std::io::ErrorKind::InvalidData.into());
    }
    let mut answer = vec![0; length];
    stream.read_exact(&mut answer)?;
    Ok(answer)
}

fn parse(answer: &[u8]) -> Option<Features> {
    let mut rest = Rest(answer);
    rest.take(4)?; // the correlation id
    if rest.short()? != 0 {
        return None;
    }
    for _ in 1..rest.varint()? {
        rest.take(6)?; // one API: its number, lowest and highest version
        rest.tags(|_, _| None)?;
    }
    rest.take(4)?; // the throttle time
    let mut features = Features::default();
    rest.tags(|tag, mut value| match tag {
        SUPPORTED_FEATURES => value.features(|name, _, highest| {
            if name == b"metadata.version" {
                features.metadata = highest;
            }
        }),
        FINALIZED_FEATURES => value.features(|name, highest, _| {
            if name == b"transaction.version" {
                features.transactions = highest;
            }
        }),
        _ => Some(()),
    })?;
    Some(features)
}

struct Rest<'a>(&'a [u8]);

impl<'a> Rest<'a> {
    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(taken)
    }

    fn short(&mut self) -> Option<u16> {
        self.take(2).map(|bytes| u16::from_be_bytes([bytes[0], bytes[1]]))
    }

    fn varint(&mut self) -> Option<u32> {
        let mut value = 0u32;
        for shift in [0, 7, 14, 21, 28] {
            let byte = self.take(1)?[0];
            value |= u32::from(byte & 0x7f).checked_shl(shift)?;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }

    /// Features: each has a name and two versions; in supported ones the lowest comes first, in finalised ones the
    /// highest.
    fn features(&mut self, mut each: impl FnMut(&[u8], u16, u16)) -> Option<()> {
        for _ in 1..self.varint()? {
            let length = usize::try_from(self.varint()?.checked_sub(1)?).ok()?;
            each(self.take(length)?, self.short()?, self.short()?);
            self.tags(|_, _| None)?;
        }
        Some(())
    }

    /// Passes each tagged field to `each`, and continues whatever it returns.
    fn tags(&mut self, mut each: impl FnMut(u32, Rest<'a>) -> Option<()>) -> Option<()> {
        for _ in 0..self.varint()? {
            let tag = self.varint()?;
            let length = usize::try_from(self.varint()?).ok()?;
            let value = self.take(length)?;
            let _ = each(tag, Rest(value));
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(features: &[(&str, u8, u8)]) -> Vec<u8> {
        let mut all = vec![u8::try_from(features.len()).unwrap() + 1];
        for (name, first, second) in features {
            all.push(u8::try_from(name.len()).unwrap() + 1);
            all.extend_from_slice(name.as_bytes());
            all.extend_from_slice(&[0, *first, 0, *second, 0]);
        }
        all
    }

    /// A broker's response: one supported API, and these features.
    fn answer(supported: &[(&str, u8, u8)], finalised: &[(&str, u8, u8)]) -> Vec<u8> {
        let mut answer = vec![0, 0, 0, 1, 0, 0, 2, 0, 18, 0, 0, 0, 4, 0, 0, 0, 0, 0, 2];
        for (tag, features) in [(SUPPORTED_FEATURES, supported), (FINALIZED_FEATURES, finalised)] {
            let list = list(features);
            answer.push(u8::try_from(tag).unwrap());
            answer.push(u8::try_from(list.len()).unwrap());
            answer.extend_from_slice(&list);
        }
        answer
    }

    #[test]
    fn features_are_found_among_others_or_are_zero() {
        let read = |supported: &[_], finalised: &[_]| {
            let features = parse(&answer(supported, finalised)).unwrap();
            (features.transactions, features.metadata)
        };
        let metadata = ("metadata.version", 7, 29);
        assert_eq!(
            read(&[metadata], &[("metadata.version", 27, 27), ("transaction.version", 2, 2)]),
            (2, 29)
        );
        assert_eq!(read(&[], &[("group.version", 1, 1), ("transaction.version", 1, 1)]), (1, 0));
        assert_eq!(read(&[("group.version", 0, 1), metadata], &[("metadata.version", 20, 20)]), (0, 29));
    }

    #[test]
    fn what_breaks_exactly_once_is_reported() {
        let of = |transactions, metadata| Features { transactions, metadata }.violations();
        assert_eq!(of(2, 29), Vec::<String>::new());
        assert_eq!(of(2, 31), Vec::<String>::new());
        assert!(of(1, 29)[0].contains("KIP-890"));
        assert!(of(2, 30)[0].contains("KAFKA-20734"));
        assert_eq!(of(0, 30).len(), 2);
    }

    #[test]
    fn nonsense_is_no_version() {
        let whole = answer(&[("metadata.version", 7, 29)], &[("transaction.version", 2, 2)]);
        for cut in 0..whole.len() {
            assert_eq!(parse(&whole[..cut]), None, "cut at {cut}");
        }
        assert_eq!(parse(&[0xff; 64]), None);
    }
}
