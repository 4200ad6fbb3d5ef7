//! Careless clients: they ask again at once, ask again later, and hang up before they are answered.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::Value;

use super::Patience;

const CLIENTS: u32 = 8;
const ANSWER_SECONDS_MAX: u64 = 30;
const AGAIN_PAUSE: Duration = Duration::from_millis(20);

/// What was asked for.
#[derive(Debug)]
pub(super) struct Sent {
    pub(super) payments: usize,
    pub(super) refunds: usize,
    pub(super) requests: usize,
    /// Under a key that was used before.
    pub(super) again: usize,
    pub(super) cut: usize,
}

struct Client {
    to: SocketAddr,
    /// So that runs on one database do not meet.
    run: u32,
    patience: Patience,
    requests: AtomicUsize,
    cut: AtomicUsize,
    refunds: AtomicUsize,
}

/// Sends so many payments, and refunds of every tenth.
pub(super) fn send(to: SocketAddr, payments: u32, patience: Patience) -> Result<Sent, String> {
    let counted = AtomicUsize::default;
    let client = Client {
        to,
        run: std::process::id(),
        patience,
        requests: counted(),
        cut: counted(),
        refunds: counted(),
    };
    let failed = Mutex::new(None);
    std::thread::scope(|scope| {
        for first in 0..CLIENTS {
            let (client, failed) = (&client, &failed);
            scope.spawn(move || {
                for n in (first..payments).step_by(CLIENTS as usize) {
                    if let Err(error) = client.order(n) {
                        failed.lock().unwrap_or_else(std::sync::PoisonError::into_inner).get_or_insert(error);
                        return;
                    }
                }
            });
        }
    });
    if let Some(error) = failed.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner) {
        return Err(error);
    }
    let read = |count: &AtomicUsize| count.load(Ordering::Relaxed);
    let (payments, refunds, requests) = (payments as usize, read(&client.refunds), read(&client.requests));
    Ok(Sent { payments, refunds, requests, again: requests - payments - refunds, cut: read(&client.cut) })
}

impl Client {
    /// One order: some hang up first, some come twice at once, all come again at the end.
    fn order(&self, n: u32) -> Result<(), String> {
        let (key, path) = (format!("order-{}-{n}", self.run), "/api/v1/payments");
        let body = format!(r#"{{"amount": {}, "customer": "customer-{}"}}"#, 100 + n, n % 50);
        if n.is_multiple_of(5) {
            self.hang_up(path, &key, &body);
        }
        if n.is_multiple_of(3) {
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    let _ = self.ask(path, &key, &body);
                });
                let _ = self.ask(path, &key, &body);
            });
        }
        let first = self.made(path, &key, &body)?;
        let again = self.made(path, &key, &body)?;
        if first != again {
            return Err(format!("{key} is two payments: {first} and {again}"));
        }
        if n.is_multiple_of(10) {
            let (path, key) = (format!("{path}/{first}/refunds"), format!("refund-{}-{n}", self.run));
            self.refunds.fetch_add(1, Ordering::Relaxed);
            self.made(&path, &key, r#"{"amount": 50}"#)?;
            self.made(&path, &key, r#"{"amount": 50}"#)?;
        }
        Ok(())
    }

    /// Asks until it is made, and gives its id.
    fn made(&self, path: &str, key: &str, body: &str) -> Result<String, String> {
        loop {
            match self.ask(path, key, body) {
                Ok((201, answer)) => {
                    let id = answer.get("id").and_then(Value::as_str).map(str::to_owned);
                    return id.ok_or_else(|| format!("{key} has no id: {answer}"));
                }
                // Another one is at it, or it is not known to be done.
                Ok((409 | 502..=504, _)) | Err(_) => {}
                Ok((status, answer)) => return Err(format!("{key} was answered with {status}: {answer}")),
            }
            self.patience.check("clients are not answered")?;
            std::thread::sleep(AGAIN_PAUSE);
        }
    }

    fn ask(&self, path: &str, key: &str, body: &str) -> io::Result<(u16, Value)> {
        let mut stream = self.begin(path, key, body)?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        let broken = || io::Error::new(io::ErrorKind::UnexpectedEof, "no answer");
        let (head, body) = text.split_once("\r\n\r\n").ok_or_else(broken)?;
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).ok_or_else(broken)?;
        Ok((status, serde_json::from_str(body).unwrap_or(Value::Null)))
    }

    fn hang_up(&self, path: &str, key: &str, body: &str) {
        if self.begin(path, key, body).is_ok() {
            self.cut.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn begin(&self, path: &str, key: &str, body: &str) -> io::Result<TcpStream> {
        let mut stream = TcpStream::connect(self.to)?;
        stream.set_read_timeout(Some(Duration::from_secs(ANSWER_SECONDS_MAX)))?;
        self.requests.fetch_add(1, Ordering::Relaxed);
        write!(
            stream,
            "POST {path} HTTP/1.1\r\nhost: {}\r\nx-merchant-id: acme\r\nconnection: close\r\nidempotency-key: {key}\r\n\
             content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            self.to,
            body.len()
        )?;
        Ok(stream)
    }
}
