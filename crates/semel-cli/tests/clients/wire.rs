//! HTTP/1.1 by hand: as much of it as the tests need.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use crate::SOON;

/// Largest message read.
const MESSAGE_BYTES_MAX: usize = 4 << 20;

/// First line and headers, as they came.
#[derive(Debug)]
pub(crate) struct Head {
    lines: Vec<String>,
}

impl Head {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.lines.iter().skip(1).find_map(|line| {
            let (found, value) = line.split_once(':')?;
            found.eq_ignore_ascii_case(name).then(|| value.trim())
        })
    }

    pub(crate) fn method(&self) -> &str {
        self.word(0)
    }

    pub(crate) fn path(&self) -> &str {
        self.word(1)
    }

    /// Of an answer.
    pub(crate) fn status(&self) -> u16 {
        self.word(1).parse().unwrap()
    }

    fn word(&self, at: usize) -> &str {
        self.lines.first().and_then(|line| line.split(' ').nth(at)).unwrap_or_default()
    }
}

/// One message with its body. `None` if the other side closed or stalled before it was complete.
pub(crate) fn read_message(stream: &mut impl Read) -> Option<(Head, Vec<u8>)> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(byte(stream)?);
        (head.len() < MESSAGE_BYTES_MAX).then_some(())?;
    }
    let text = String::from_utf8_lossy(&head);
    let lines = text.lines().map(str::to_owned).filter(|line| !line.is_empty());
    let head = Head { lines: lines.collect() };
    if head.header("transfer-encoding").is_some() {
        return chunks(stream).map(|body| (head, body));
    }
    let length: usize = head.header("content-length").map_or(Some(0), |text| text.parse().ok())?;
    (length <= MESSAGE_BYTES_MAX).then_some(())?;
    let mut body = vec![0; length];
    stream.read_exact(&mut body).ok()?;
    Some((head, body))
}

fn chunks(stream: &mut impl Read) -> Option<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let mut line = Vec::new();
        while !line.ends_with(b"\r\n") {
            line.push(byte(stream)?);
        }
        let line = String::from_utf8_lossy(&line).into_owned();
        let size = usize::from_str_radix(line.trim().split(';').next()?, 16).ok()?;
        (body.len() + size <= MESSAGE_BYTES_MAX).then_some(())?;
        let mut chunk = vec![0; size + 2];
        stream.read_exact(&mut chunk).ok()?;
        body.extend_from_slice(&chunk[..size]);
        if size == 0 {
            return Some(body);
        }
    }
}

fn byte(stream: &mut impl Read) -> Option<u8> {
    let mut byte = [0];
    stream.read_exact(&mut byte).ok()?;
    Some(byte[0])
}

pub(crate) fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(SOON)).unwrap();
    stream.set_write_timeout(Some(SOON)).unwrap();
    stream
}

/// `POST /v1/payment_intents` with a key.
pub(crate) fn payment(key: &str) -> Vec<u8> {
    post("/v1/payment_intents", key)
}

/// A form with a key.
pub(crate) fn post(path: &str, key: &str) -> Vec<u8> {
    let body = "amount=4200&currency=eur";
    let length = body.len();
    format!(
        "POST {path} HTTP/1.1\r\nHost: pay.example\r\nIdempotency-Key: {key}\r\n\
         Content-Type: application/x-www-form-urlencoded\r\nContent-Length: {length}\r\n\r\n{body}"
    )
    .into_bytes()
}

/// Sends and waits for the answer; `None` if none came.
pub(crate) fn ask(address: SocketAddr, request: &[u8]) -> Option<(Head, Vec<u8>)> {
    exchange(connect(address), request)
}

/// The same on an existing connection.
pub(crate) fn exchange(mut stream: TcpStream, request: &[u8]) -> Option<(Head, Vec<u8>)> {
    stream.write_all(request).ok()?;
    read_message(&mut stream)
}
