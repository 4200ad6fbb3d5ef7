//! The sample service: accepts payments, keeps a ledger, and has faults. It only records keys and does not act on them;
//! a client that sends twice is charged twice.
//!
//! | request | answer |
//! |---|---|
//! | `POST /payments` `{"amount": 4200}` | 201 and the payment |
//! | `GET /payments/by-key/{key}` | the payment, 404 if there is none, 503 if that is not known now |
//! | `GET /payments/{id}` | the payment, or 404 |

use std::collections::HashMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use http::header::{self, HeaderValue};
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use serde_json::json;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::faults::{Ending, Fault, lookup_is_broken};
use super::ledger::{Charge, Ledger};
use crate::args::Bug;

const CONNECTIONS_MAX: usize = 2_048;
const BODY_BYTES_MAX: usize = 64 << 10;
/// Most keys and payments it keeps.
const PAYMENTS_MAX: usize = 4_000_000;

#[derive(Deserialize)]
struct Order {
    amount: u64,
}

#[derive(Default)]
struct Books {
    calls: HashMap<String, u32>,
    in_flight: HashMap<String, u32>,
    by_key: HashMap<String, Charge>,
    by_id: HashMap<String, Charge>,
    given: u64,
}

struct Inner {
    ledger: Ledger,
    seed: u64,
    loses: bool,
    /// No more faults.
    calm: AtomicBool,
    books: Mutex<Books>,
}

/// The service. Cheap to clone.
#[derive(Clone)]
pub(super) struct Service(Arc<Inner>);

/// A listening service; stops when dropped.
pub(super) struct Running {
    pub(super) service: Service,
    pub(super) address: SocketAddr,
    _tasks: JoinSet<()>,
}

impl Service {
    pub(super) fn new(ledger: Ledger, seed: u64, bug: Option<Bug>) -> Self {
        let (loses, calm, books) = (bug == Some(Bug::Lost), AtomicBool::new(false), Mutex::default());
        Self(Arc::new(Inner { ledger, seed, loses, calm, books }))
    }

    /// Serves on a free port of this machine.
    pub(super) async fn listen(self) -> io::Result<Running> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let mut tasks = JoinSet::new();
        tasks.spawn(accept(listener, self.clone()));
        Ok(Running { service: self, address, _tasks: tasks })
    }

    /// Stops injecting faults.
    pub(super) fn calm_down(&self) {
        self.0.calm.store(true, Ordering::SeqCst);
    }

    /// Whether no charge is in flight.
    pub(super) fn is_quiet(&self) -> bool {
        self.books().in_flight.is_empty()
    }

    fn books(&self) -> MutexGuard<'_, Books> {
        self.0.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn answer(self, request: Request<Incoming>) -> io::Result<Response<Full<Bytes>>> {
        let path = request.uri().path().to_owned();
        match (request.method(), path.strip_prefix("/payments")) {
            (&Method::POST, Some("")) => self.pay(request).await,
            (&Method::GET, Some(rest)) => Ok(match rest.strip_prefix("/by-key/") {
                Some(key) => self.look_up(&unescaped(key)),
                None => found(self.books().by_id.get(rest.trim_start_matches('/'))),
            }),
            _ => Ok(plain(StatusCode::NOT_FOUND, "there are only /payments here")),
        }
    }

    async fn pay(self, request: Request<Incoming>) -> io::Result<Response<Full<Bytes>>> {
        let key = request.headers().get("idempotency-key").and_then(|key| key.to_str().ok());
        let key = key.unwrap_or("none").trim_matches('"').to_owned();
        let body = Limited::new(request.into_body(), BODY_BYTES_MAX).collect().await;
        let order = body.ok().and_then(|body| serde_json::from_slice::<Order>(&body.to_bytes()).ok());
        let Some(Order { amount }) = order else {
            return Ok(plain(StatusCode::BAD_REQUEST, "send {\"amount\": 4200}"));
        };
        let Some((charge, fault)) = self.begin(key, amount) else {
            return Ok(plain(StatusCode::INSUFFICIENT_STORAGE, "the books are full"));
        };
        // A task of its own: the charge continues after its client has hung up.
        let charged = tokio::spawn(self.charge(charge.clone(), fault)).await;
        charged.map_err(io::Error::other)??;
        match fault.ending {
            Ending::Answered => Ok(json(StatusCode::CREATED, &charge)),
            Ending::FailsBefore | Ending::FailsAfter => {
                Ok(plain(StatusCode::INTERNAL_SERVER_ERROR, "something went wrong"))
            }
            // Returning an error closes the connection without an answer.
            Ending::AnswerLost => Err(io::ErrorKind::ConnectionReset.into()),
        }
    }

    fn begin(&self, key: String, amount: u64) -> Option<(Charge, Fault)> {
        let mut books = self.books();
        if books.calls.len().max(books.by_id.len()) >= PAYMENTS_MAX {
            return None;
        }
        let calls = books.calls.entry(key.clone()).or_default();
        *calls = calls.saturating_add(1);
        let fault = if self.0.calm.load(Ordering::SeqCst) {
            Fault::NONE
        } else {
            Fault::of(self.0.seed, &key, *calls)
        };
        *books.in_flight.entry(key.clone()).or_default() += 1;
        books.given += 1;
        Some((Charge { id: format!("pay-{:06}", books.given), key, amount }, fault))
    }

    async fn charge(self, charge: Charge, fault: Fault) -> io::Result<()> {
        tokio::time::sleep(fault.before).await;
        let forgets = fault.ending == Ending::FailsBefore || (self.0.loses && charge.key.ends_with('3'));
        let written = if forgets { Ok(()) } else { self.0.ledger.append(charge.clone()).await };
        {
            let books = &mut *self.books();
            if !forgets && written.is_ok() {
                books.by_key.entry(charge.key.clone()).or_insert_with(|| charge.clone());
                books.by_id.insert(charge.id.clone(), charge.clone());
            }
            if let Some(n) = books.in_flight.get_mut(&charge.key) {
                *n -= 1;
                if *n == 0 {
                    books.in_flight.remove(&charge.key);
                }
            }
        }
        tokio::time::sleep(fault.after).await;
        written
    }

    /// A charge in flight is neither found nor absent.
    fn look_up(&self, key: &str) -> Response<Full<Bytes>> {
        let broken = !self.0.calm.load(Ordering::SeqCst) && lookup_is_broken(self.0.seed, key);
        let books = self.books();
        if broken || books.in_flight.contains_key(key) {
            return plain(StatusCode::SERVICE_UNAVAILABLE, "this is not known now");
        }
        found(books.by_key.get(key))
    }
}

async fn accept(listener: TcpListener, service: Service) {
    let permits = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let mut connections = JoinSet::new();
    while let Ok(permit) = Arc::clone(&permits).acquire_owned().await {
        while connections.try_join_next().is_some() {}
        let Ok((stream, _)) = listener.accept().await else { continue };
        let service = service.clone();
        connections.spawn(async move {
            serve(stream, service).await;
            drop(permit);
        });
    }
}

async fn serve(stream: TcpStream, service: Service) {
    let _ = stream.set_nodelay(true);
    let calls = service_fn(move |request| service.clone().answer(request));
    // Ends with an error whenever an answer is dropped on purpose.
    let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), calls).await;
}

fn found(charge: Option<&Charge>) -> Response<Full<Bytes>> {
    match charge {
        Some(charge) => json(StatusCode::OK, charge),
        None => plain(StatusCode::NOT_FOUND, "no such payment"),
    }
}

fn json(status: StatusCode, charge: &Charge) -> Response<Full<Bytes>> {
    // Strings and numbers always serialise.
    answer(status, serde_json::to_vec(charge).unwrap_or_default())
}

fn plain(status: StatusCode, error: &str) -> Response<Full<Bytes>> {
    answer(status, json!({ "error": error }).to_string().into_bytes())
}

fn answer(status: StatusCode, mut body: Vec<u8>) -> Response<Full<Bytes>> {
    body.push(b'\n');
    let mut response = Response::new(Full::from(body));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// Percent-decodes a path segment.
fn unescaped(segment: &str) -> String {
    let bytes = segment.as_bytes();
    let (mut out, mut at) = (Vec::with_capacity(bytes.len()), 0);
    while let Some(byte) = bytes.get(at) {
        let escaped = segment.get(at + 1..at + 3).filter(|_| *byte == b'%');
        match escaped.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
            Some(byte) => {
                out.push(byte);
                at += 3;
            }
            None => {
                out.push(*byte);
                at += 1;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_read_as_they_were_meant() {
        for (segment, key) in
            [("order-1", "order-1"), ("a%20b%2Fc", "a b/c"), ("100%", "100%"), ("%zz", "%zz")]
        {
            assert_eq!(unescaped(segment), key);
        }
    }
}
