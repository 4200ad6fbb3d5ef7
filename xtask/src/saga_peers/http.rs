//! Callers of a peer that is asked over HTTP: threads with a connection each, as cheap as can be.
//!
//! They are not part of the peer, and their work is not counted.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

const ANSWER: Duration = Duration::from_secs(60);
const BODY_BYTES_MAX: u64 = 1024 * 1024;

/// A connection that stays open.
pub(super) struct Connection {
    to: SocketAddr,
    stream: BufReader<TcpStream>,
}

impl Connection {
    pub(super) fn open(to: SocketAddr) -> Result<Self, String> {
        let open = || {
            let stream = TcpStream::connect_timeout(&to, ANSWER)?;
            stream.set_read_timeout(Some(ANSWER))?;
            stream.set_nodelay(true)?;
            Ok(stream)
        };
        let stream = open().map_err(|error: std::io::Error| format!("{to}: {error}"))?;
        Ok(Self { to, stream: BufReader::new(stream) })
    }

    /// The status and the body of the answer.
    pub(super) fn ask(&mut self, method: &str, path: &str, body: &str) -> Result<(u16, String), String> {
        // Restate refuses a type where it expects nothing.
        let kind = if body.is_empty() { "" } else { "content-type: application/json\r\n" };
        let request = format!(
            "{method} {path} HTTP/1.1\r\nhost: {}\r\n{kind}content-length: {}\r\n\r\n{body}",
            self.to,
            body.len()
        );
        let asked = self.stream.get_mut().write_all(request.as_bytes());
        let answer = asked.and_then(|()| answer(&mut self.stream));
        answer.map_err(|error| format!("{method} http://{}{path}: {error}", self.to))
    }
}

fn answer(from: &mut impl BufRead) -> std::io::Result<(u16, String)> {
    let broken = |what: &str| std::io::Error::new(std::io::ErrorKind::InvalidData, what.to_owned());
    let first = line(from)?;
    let status = first.split(' ').nth(1).and_then(|status| status.parse().ok());
    let status = status.ok_or_else(|| broken("an answer without a status"))?;
    let (mut length, mut chunked) = (0, false);
    loop {
        let head = line(from)?.to_ascii_lowercase();
        let Some((name, value)) = head.split_once(':') else { break };
        match name {
            "content-length" => {
                length = value.trim().parse().map_err(|_| broken("a length that is no number"))?;
            }
            "transfer-encoding" => chunked = value.trim() == "chunked",
            _ => {}
        }
    }
    let mut body = Vec::new();
    while chunked {
        length = u64::from_str_radix(&line(from)?, 16).map_err(|_| broken("a chunk without a length"))?;
        take(from, length, &mut body)?;
        line(from)?;
        chunked = length > 0;
        length = 0;
    }
    take(from, length, &mut body)?;
    Ok((status, String::from_utf8_lossy(&body).into_owned()))
}

fn line(from: &mut impl BufRead) -> std::io::Result<String> {
    let mut line = String::new();
    from.by_ref().take(BODY_BYTES_MAX).read_line(&mut line)?;
    if !line.ends_with('\n') {
        return Err(std::io::ErrorKind::UnexpectedEof.into());
    }
    Ok(line.trim_end().to_owned())
}

fn take(from: &mut impl BufRead, length: u64, body: &mut Vec<u8>) -> std::io::Result<()> {
    let before = body.len() as u64;
    if before.saturating_add(length) > BODY_BYTES_MAX {
        return Err(std::io::Error::other("an answer that is too long"));
    }
    from.by_ref().take(length).read_to_end(body)?;
    let whole = body.len() as u64 == before + length;
    if whole { Ok(()) } else { Err(std::io::ErrorKind::UnexpectedEof.into()) }
}

/// Runs sagas one after the other from this many threads while there is to be `more`, and waits for those that have
/// begun. `saga` runs one on a connection; its number is its own. The first failure ends all.
pub(super) fn load(
    to: SocketAddr,
    callers: u64,
    more: impl Fn(u64) -> bool + Sync,
    saga: impl Fn(&mut Connection, u64) -> Result<(), String> + Sync,
) -> Result<u64, String> {
    let (begun, ended, stop) = (AtomicU64::new(0), AtomicU64::new(0), AtomicBool::new(false));
    let failed = Mutex::new(None);
    let call = || -> Result<(), String> {
        let mut connection = Connection::open(to)?;
        while !stop.load(Ordering::Relaxed) {
            let number = begun.fetch_add(1, Ordering::Relaxed);
            if !more(number) {
                break;
            }
            saga(&mut connection, number)?;
            ended.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        for _ in 0..callers {
            scope.spawn(|| {
                if let Err(error) = call() {
                    stop.store(true, Ordering::Relaxed);
                    failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
                }
            });
        }
    });
    match failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
        Some(error) => Err(error),
        None => Ok(ended.into_inner()),
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn answers_of_both_forms_are_read() {
        let plain =
            b"HTTP/1.1 201 Created\r\nContent-Length: 5\r\nx: y\r\n\r\nhelloHTTP/1.1 204 No Content\r\n\r\n";
        let mut plain = &plain[..];
        assert_eq!(answer(&mut plain).unwrap(), (201, "hello".to_owned()));
        assert_eq!(answer(&mut plain).unwrap(), (204, String::new()));
        assert!(answer(&mut plain).is_err(), "closed");
        let chunked =
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\nA\r\n0123456789\r\n0\r\n\r\n";
        assert_eq!(answer(&mut &chunked[..]).unwrap(), (200, "abc0123456789".to_owned()));
    }

    #[test]
    fn half_an_answer_is_an_error() {
        for half in [
            "HTTP/1.1",
            "HTTP/1.1 200 OK\r\n",
            "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhel",
            "HTTP/1.1 200 OK\r\ncontent-length: five\r\n\r\nhello",
            "HTTP/1.1 200 OK\r\ncontent-length: 99999999\r\n\r\n",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nab",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\na\r\nffffffffffffffff\r\n",
        ] {
            assert!(answer(&mut half.as_bytes()).is_err(), "{half}");
        }
    }

    #[test]
    fn every_caller_counts_and_the_first_failure_ends_all() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let to = listener.local_addr().unwrap();
        assert_eq!(load(to, 4, |number| number < 100, |_, _| Ok(())), Ok(100));
        // Only the failure ends it.
        let fails = |_: &mut Connection, number| if number == 100 { Err("no".to_owned()) } else { Ok(()) };
        let error = load(to, 4, |_| true, fails);
        assert_eq!(error, Err("no".to_owned()));
    }
}
