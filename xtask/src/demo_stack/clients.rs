//! Careless clients: they retry at once, retry later, and hang up before they are answered.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
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

/// An order that was answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Made {
    pub(super) key: String,
    pub(super) payment: String,
    pub(super) refund: Option<String>,
}

/// Why an order has no good answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum OrderError {
    /// It was asked for again and again, without an answer.
    InDoubt {
        key: String,
        /// What is known by then: the payment was answered and the refund was not.
        paid: Option<Made>,
        why: String,
    },
    /// A wrong answer.
    Wrong(String),
}

impl OrderError {
    fn message(self) -> String {
        match self {
            Self::InDoubt { key, why, .. } => format!("{key} is in doubt: {why}"),
            Self::Wrong(why) => why,
        }
    }
}

/// Asks for payments, and counts how often.
#[derive(Debug)]
pub(super) struct Client {
    to: SocketAddr,
    /// So that runs on one database or one topic do not mix.
    merchant: String,
    requests: AtomicUsize,
    cut: AtomicUsize,
    orders: AtomicUsize,
    refunds: AtomicUsize,
}

/// Sends this many payments, and refunds every tenth.
pub(super) fn send(client: &Client, payments: u32, patience: Patience) -> Result<Sent, String> {
    let failed = Mutex::new(None);
    std::thread::scope(|scope| {
        for first in 0..CLIENTS {
            let failed = &failed;
            scope.spawn(move || {
                for n in (first..payments).step_by(CLIENTS as usize) {
                    if let Err(error) = client.order(n, patience) {
                        failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
                        return;
                    }
                }
            });
        }
    });
    match failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
        Some(error) => Err(error.message()),
        None => Ok(client.sent()),
    }
}

impl Client {
    pub(super) fn new(to: SocketAddr, merchant: &str) -> Self {
        let counted = AtomicUsize::default;
        let (requests, cut, orders, refunds) = (counted(), counted(), counted(), counted());
        Self { to, merchant: merchant.to_owned(), requests, cut, orders, refunds }
    }

    /// What was asked for so far.
    pub(super) fn sent(&self) -> Sent {
        let read = |count: &AtomicUsize| count.load(Ordering::Relaxed);
        let (payments, refunds, requests) = (read(&self.orders), read(&self.refunds), read(&self.requests));
        let again = requests.saturating_sub(payments + refunds);
        Sent { payments, refunds, requests, again, cut: read(&self.cut) }
    }

    /// One order: some hang up first, some come twice at once, all come again at the end.
    pub(super) fn order(&self, n: u32, patience: Patience) -> Result<Made, OrderError> {
        let (key, path) = (format!("order-{n}"), "/api/v1/payments");
        let body = format!(r#"{{"amount": {}, "customer": "customer-{}"}}"#, 100 + n, n % 50);
        self.orders.fetch_add(1, Ordering::Relaxed);
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
        let payment = self.made_once(path, &key, &body, patience, None)?;
        let mut made = Made { key, payment, refund: None };
        if n.is_multiple_of(10) {
            let (path, key) = (format!("{path}/{}/refunds", made.payment), format!("refund-{n}"));
            self.refunds.fetch_add(1, Ordering::Relaxed);
            let refund = self.made_once(&path, &key, r#"{"amount": 50}"#, patience, Some(&made))?;
            made.refund = Some(refund);
        }
        Ok(made)
    }

    /// Asks until it is made, asks again, and returns its id: the same both times.
    fn made_once(
        &self,
        path: &str,
        key: &str,
        body: &str,
        patience: Patience,
        paid: Option<&Made>,
    ) -> Result<String, OrderError> {
        let first = self.made(path, key, body, patience, paid)?;
        match self.made(path, key, body, patience, paid) {
            Ok(again) if again == first => Ok(first),
            Ok(again) => Err(OrderError::Wrong(format!("{key} was made twice: {first} and {again}"))),
            // It was answered once, which is enough.
            Err(OrderError::InDoubt { .. }) => Ok(first),
            Err(wrong) => Err(wrong),
        }
    }

    /// Asks until it is made, and returns its id.
    fn made(
        &self,
        path: &str,
        key: &str,
        body: &str,
        patience: Patience,
        paid: Option<&Made>,
    ) -> Result<String, OrderError> {
        loop {
            match self.ask(path, key, body) {
                Ok((201, answer)) => {
                    let id = answer.get("id").and_then(Value::as_str).map(str::to_owned);
                    return id.ok_or_else(|| OrderError::Wrong(format!("{key} has no id: {answer}")));
                }
                // Another request is in flight, or the outcome is unknown.
                Ok((409 | 502..=504, _)) | Err(_) => {}
                Ok((status, answer)) => {
                    return Err(OrderError::Wrong(format!("{key} was answered with {status}: {answer}")));
                }
            }
            if let Err(why) = patience.check("clients get no answer") {
                return Err(OrderError::InDoubt { key: key.to_owned(), paid: paid.cloned(), why });
            }
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
        match serde_json::from_str(body) {
            Ok(body) => Ok((status, body)),
            // Cut off in the middle counts as no answer.
            Err(_) if status == 201 => Err(broken()),
            Err(_) => Ok((status, Value::Null)),
        }
    }

    fn hang_up(&self, path: &str, key: &str, body: &str) {
        if self.begin(path, key, body).is_ok() {
            self.cut.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn begin(&self, path: &str, key: &str, body: &str) -> io::Result<TcpStream> {
        let patience = Duration::from_secs(ANSWER_SECONDS_MAX);
        let mut stream = TcpStream::connect_timeout(&self.to, patience)?;
        stream.set_read_timeout(Some(patience))?;
        self.requests.fetch_add(1, Ordering::Relaxed);
        write!(
            stream,
            "POST {path} HTTP/1.1\r\nhost: {}\r\nx-merchant-id: {}\r\nconnection: close\r\n\
             idempotency-key: {key}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            self.to,
            self.merchant,
            body.len()
        )?;
        Ok(stream)
    }
}
