//! One request on one connection, and what came back.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::Value;

const PATIENCE: Duration = Duration::from_secs(30);

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) replayed: bool,
    pub(crate) body: Value,
}

impl Answer {
    pub(crate) fn id(&self) -> &str {
        self.body["id"].as_str().unwrap_or_else(|| panic!("no payment or refund: {self:?}"))
    }
}

/// A request of the merchant `acme`; the key is empty for none.
pub(crate) fn send(to: SocketAddr, method: &str, path: &str, key: &str, body: &str) -> io::Result<Answer> {
    let key = if key.is_empty() { String::new() } else { format!("idempotency-key: {key}\r\n") };
    send_with(to, method, path, &key, body)
}

/// With these header lines.
pub(crate) fn send_with(
    to: SocketAddr,
    method: &str,
    path: &str,
    headers: &str,
    body: &str,
) -> io::Result<Answer> {
    let mut stream = TcpStream::connect(to)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nhost: {to}\r\nx-merchant-id: acme\r\nconnection: close\r\n{headers}\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    let broken = || io::Error::new(io::ErrorKind::UnexpectedEof, format!("no answer: {text:?}"));
    let (head, body) = text.split_once("\r\n\r\n").ok_or_else(broken)?;
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).ok_or_else(broken)?;
    let replayed = head.contains("idempotency-replayed: true");
    Ok(Answer { status, replayed, body: serde_json::from_str(body).map_err(|_| broken())? })
}

pub(crate) fn pay(to: SocketAddr, key: &str, amount: i64) -> io::Result<Answer> {
    send(to, "POST", "/api/v1/payments", key, &format!(r#"{{"amount": {amount}, "customer": "ana"}}"#))
}

pub(crate) fn pay_by_card(to: SocketAddr, key: &str, amount: i64) -> io::Result<Answer> {
    let body = format!(r#"{{"amount": {amount}, "customer": "ana", "method": "card"}}"#);
    send(to, "POST", "/api/v1/payments", key, &body)
}

pub(crate) fn refund(to: SocketAddr, payment: &str, key: &str, amount: i64) -> io::Result<Answer> {
    let path = format!("/api/v1/payments/{payment}/refunds");
    send(to, "POST", &path, key, &format!(r#"{{"amount": {amount}}}"#))
}

pub(crate) fn get(to: SocketAddr, path: &str) -> Answer {
    send(to, "GET", path, "", "").unwrap()
}
