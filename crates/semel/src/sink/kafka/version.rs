//! Asks a broker for its transaction version, which librdkafka does not tell.
//!
//! One request of the protocol, `ApiVersions`, over a connection of its own: the finalised features are in its answer.

use std::io::{Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(2);
/// Far more than any broker's list of what it speaks.
const ANSWER_BYTES_MAX: usize = 256 * 1024;
const FINALIZED_FEATURES: u32 = 2;
/// ApiVersions is request 18; version 3 brings the features. Correlation id 1, client id `semel`.
const REQUEST: &[u8] = b"\x00\x12\x00\x03\x00\x00\x00\x01\x00\x05semel\x00\x06semel\x020\x00";

/// The broker's finalised `transaction.version`; 0 where it has none. `None` if it could not be asked.
pub(super) fn ask(broker: &str) -> Option<u16> {
    let answer = exchange(broker).ok()?;
    let version = parse(&answer);
    if version.is_none() {
        tracing::debug!(target: "semel::kafka", broker, "the broker's features could not be read");
    }
    version
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

fn parse(answer: &[u8]) -> Option<u16> {
    let mut rest = Rest(answer);
    rest.take(4)?; // the correlation id
    if rest.short()? != 0 {
        return None;
    }
    for _ in 1..rest.varint()? {
        rest.take(6)?; // one request: its number, lowest and highest version
        rest.tags(|_, _| None)?;
    }
    rest.take(4)?; // throttled for so long
    let mut version = 0;
    rest.tags(|tag, mut value| {
        if tag == FINALIZED_FEATURES {
            for _ in 1..value.varint()? {
                let length = usize::try_from(value.varint()?.checked_sub(1)?).ok()?;
                let name = value.take(length)?;
                let highest = value.short()?;
                value.short()?;
                value.tags(|_, _| None)?;
                if name == b"transaction.version" {
                    version = highest;
                }
            }
        }
        Some(())
    })?;
    Some(version)
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

    /// Tagged fields: each is shown, and skipped whatever is made of it.
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

    /// As a broker would answer: one request it speaks, and these features.
    fn answer(features: &[(&str, u8)]) -> Vec<u8> {
        let mut all = vec![u8::try_from(features.len()).unwrap() + 1];
        for (name, version) in features {
            all.push(u8::try_from(name.len()).unwrap() + 1);
            all.extend_from_slice(name.as_bytes());
            all.extend_from_slice(&[0, *version, 0, *version, 0]);
        }
        let mut answer = vec![0, 0, 0, 1, 0, 0, 2, 0, 18, 0, 0, 0, 4, 0, 0, 0, 0, 0, 1, 2];
        answer.push(u8::try_from(all.len()).unwrap());
        answer.extend_from_slice(&all);
        answer
    }

    #[test]
    fn the_feature_is_found_among_others_or_is_zero() {
        assert_eq!(parse(&answer(&[("metadata.version", 27), ("transaction.version", 2)])), Some(2));
        assert_eq!(parse(&answer(&[("group.version", 1), ("transaction.version", 1)])), Some(1));
        assert_eq!(parse(&answer(&[("metadata.version", 20)])), Some(0));
    }

    #[test]
    fn nonsense_is_no_version() {
        let whole = answer(&[("transaction.version", 2)]);
        for cut in 0..whole.len() {
            assert_eq!(parse(&whole[..cut]), None, "cut at {cut}");
        }
        assert_eq!(parse(&[0xff; 64]), None);
    }
}
