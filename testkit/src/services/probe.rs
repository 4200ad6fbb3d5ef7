//! Questions over a socket that only a server which really serves can answer.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(2);
const ANSWER_BYTES_MAX: usize = 64 * 1024;

/// Sends `question` and reads until `enough` says so. `None` when that does not happen.
pub(super) fn ask(port: u16, question: &[u8], enough: impl Fn(&[u8]) -> bool) -> Option<Vec<u8>> {
    let until = Instant::now() + PATIENCE;
    let mut stream = TcpStream::connect_timeout(&SocketAddr::from(([127, 0, 0, 1], port)), PATIENCE).ok()?;
    stream.set_read_timeout(Some(PATIENCE)).ok()?;
    stream.set_write_timeout(Some(PATIENCE)).ok()?;
    stream.write_all(question).ok()?;
    let mut answer = Vec::new();
    let mut buffer = [0; 4096];
    while !enough(&answer) {
        let length = stream.read(&mut buffer).ok()?;
        if length == 0 || answer.len() > ANSWER_BYTES_MAX || Instant::now() > until {
            return None;
        }
        answer.extend_from_slice(&buffer[..length]);
    }
    Some(answer)
}

/// Whether a GET is answered with 200.
pub(super) fn http_ok(port: u16, path: &str) -> bool {
    let request = format!("GET {path} HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n");
    ask(port, request.as_bytes(), |answer| answer.len() >= 12)
        .is_some_and(|answer| answer.get(9..12) == Some(b"200".as_slice()))
}

/// One inline command to Redis, and its answer up to the end of a line or of a bulk string.
pub(super) fn redis(port: u16, command: &str) -> Option<String> {
    let answer = ask(port, format!("{command}\r\n").as_bytes(), |answer| {
        let text = String::from_utf8_lossy(answer);
        let Some((head, rest)) = text.split_once("\r\n") else { return false };
        match head.strip_prefix('$').and_then(|length| length.parse::<usize>().ok()) {
            Some(length) => rest.len() >= length,
            None => true,
        }
    })?;
    Some(String::from_utf8_lossy(&answer).into_owned())
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    /// Answers one connection with these bytes and closes.
    fn answering(bytes: &'static [u8]) -> u16 {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let _ = stream.read(&mut [0; 512]);
            let _ = stream.write_all(bytes);
        });
        port
    }

    #[test]
    fn only_a_200_is_ready() {
        assert!(http_ok(answering(b"HTTP/1.1 200 OK\r\n\r\n"), "/"));
        assert!(!http_ok(answering(b"HTTP/1.1 503 No\r\n\r\n"), "/"));
        assert!(!http_ok(answering(b""), "/"));
    }

    #[test]
    fn redis_answers_are_read_to_their_end() {
        assert_eq!(redis(answering(b"+PONG\r\n"), "PING").unwrap(), "+PONG\r\n");
        assert!(redis(answering(b"$7\r\na:b\r\nc:d\r\n"), "INFO").unwrap().contains("c:d"));
        assert_eq!(redis(answering(b"$99\r\na:b\r\n"), "INFO"), None);
    }
}
