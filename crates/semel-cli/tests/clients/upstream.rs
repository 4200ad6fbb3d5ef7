//! A payments service that injects the fault named by the key, and writes every charge to its ledger.

use std::collections::HashMap;
use std::io::Write;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::json;
use testkit::ledger::{Entries, Ledger};

use crate::wire::{Head, read_message};

/// How long a slow answer takes: longer than the clients wait, shorter than the gateway does.
const LATE: Duration = Duration::from_millis(800);

/// Paths that charge. Everything else is answered and not recorded.
const CHARGING: [&str; 3] = ["/v1/payment_intents", "/v1/refunds", "/v1/files"];

/// Threads and connections end with the process.
pub(crate) struct Upstream {
    pub(crate) address: SocketAddr,
    shared: Arc<Shared>,
    ledger: PathBuf,
    _directory: tempfile::TempDir,
}

struct Shared {
    ledger: Ledger,
    charges: Mutex<HashMap<String, String>>,
    attempts: Mutex<HashMap<String, usize>>,
    next: AtomicUsize,
}

impl Upstream {
    pub(crate) fn start() -> Self {
        let directory = testkit::scratch::directory();
        let ledger = directory.path().join("ledger");
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            ledger: Ledger::open(&ledger).unwrap(),
            charges: Mutex::default(),
            attempts: Mutex::default(),
            next: AtomicUsize::new(1),
        });
        let theirs = Arc::clone(&shared);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let shared = Arc::clone(&theirs);
                std::thread::spawn(move || while shared.answer(&stream).is_some() {});
            }
        });
        Self { address, shared, ledger, _directory: directory }
    }

    /// The ledger: key and id of each charge.
    pub(crate) fn charges(&self) -> Vec<(String, String)> {
        let entries = Entries::read(&self.ledger).unwrap();
        assert_eq!(entries.torn(), None);
        let split = |line: &String| {
            let (key, id) = line.rsplit_once(' ').unwrap();
            (key.to_owned(), id.to_owned())
        };
        entries.lines().iter().map(split).collect()
    }

    /// How often a key was charged.
    pub(crate) fn charged(&self, key: &str) -> usize {
        self.charges().iter().filter(|(charged, _)| charged == key).count()
    }

    /// How often a request with this key arrived.
    pub(crate) fn attempts(&self, key: &str) -> usize {
        self.shared.attempts.lock().unwrap().get(key).copied().unwrap_or(0)
    }
}

impl Shared {
    /// One request. `None` at the end of the connection.
    fn answer(&self, stream: &TcpStream) -> Option<()> {
        let (head, _) = read_message(&mut &*stream)?;
        let key = head.header("idempotency-key").unwrap_or_default().to_owned();
        if let Some((_, key)) = head.path().split_once("/by-key/") {
            return match self.charges.lock().unwrap().get(key).cloned() {
                Some(id) => respond(stream, "200 OK", &Self::object(&head, &id)),
                None => respond(stream, "404 Not Found", "{}"),
            };
        }
        let path = head.path().split('?').next().unwrap_or_default();
        if head.method() != "POST" || key.is_empty() || !CHARGING.contains(&path) {
            return respond(stream, "200 OK", r#"{"charged": false}"#);
        }
        let attempt = {
            let mut attempts = self.attempts.lock().unwrap();
            let attempt = attempts.entry(key.clone()).or_default();
            *attempt += 1;
            *attempt
        };
        let behaviour = key.split('-').next().unwrap_or_default();
        match (behaviour, attempt) {
            ("late", _) => {
                std::thread::sleep(LATE);
                respond(stream, "200 OK", &self.charge(&head, &key))
            }
            ("error", 1) => respond(stream, "500 Internal Server Error", r#"{"error": {"message": "once"}}"#),
            ("lost", 1) => {
                self.charge(&head, &key);
                stream.shutdown(Shutdown::Both).ok()?;
                None
            }
            ("stuck", 1) => {
                self.charge(&head, &key);
                // Gives no answer until the gateway times out.
                let _ = read_message(&mut &*stream);
                None
            }
            // The only kind of key that the service honours itself.
            ("keyed", _) => {
                let known = self.charges.lock().unwrap().get(&key).cloned();
                let body = known.map_or_else(|| self.charge(&head, &key), |id| Self::object(&head, &id));
                respond(stream, "200 OK", &body)
            }
            ("dropped", 1) => {
                stream.shutdown(Shutdown::Both).ok()?;
                None
            }
            _ => respond(stream, "200 OK", &self.charge(&head, &key)),
        }
    }

    /// Charges on every call: this service ignores keys.
    fn charge(&self, head: &Head, key: &str) -> String {
        let id = format!("pi_{}", self.next.fetch_add(1, Ordering::Relaxed));
        self.ledger.append(&format!("{key} {id}")).unwrap();
        self.charges.lock().unwrap().insert(key.to_owned(), id.clone());
        Self::object(head, &id)
    }

    fn object(head: &Head, id: &str) -> String {
        let object = if head.path().contains("/files") { "file" } else { "payment_intent" };
        json!({ "id": id, "object": object, "amount": 4200, "currency": "eur" }).to_string()
    }
}

fn respond(mut stream: &TcpStream, status: &str, body: &str) -> Option<()> {
    let length = body.len();
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {length}\r\nRequest-Id: req_1\r\n\r\n"
    );
    stream.write_all((head + body).as_bytes()).ok()
}
