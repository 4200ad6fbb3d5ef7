//! A service that keeps a ledger and injects the faults named by the path. Plain sockets: its bytes on the wire are
//! exactly those written here.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// One request as the service received it.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) head: String,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Seen {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(have, _)| have == name).map(|(_, value)| value.as_str())
    }
}

pub(crate) struct Upstream {
    pub(crate) addr: SocketAddr,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    seen: Mutex<Vec<Seen>>,
    /// One entry for each effect: its key.
    ledger: Mutex<Vec<String>>,
    connections: AtomicUsize,
    /// Connections it closed by itself.
    closed: AtomicUsize,
    /// `/slow` waits for a message on this.
    gate: Mutex<Option<Receiver<()>>>,
    opener: Mutex<Option<Sender<()>>>,
    /// Makes `/by-key` answer falsely.
    lookups_broken: AtomicBool,
    stopped: AtomicBool,
}

impl Upstream {
    pub(crate) fn start() -> Self {
        Self::start_on(SocketAddr::from(([127, 0, 0, 1], 0)))
    }

    pub(crate) fn start_on(addr: SocketAddr) -> Self {
        let listener = TcpListener::bind(addr).unwrap();
        let addr = listener.local_addr().unwrap();
        let (open, gate) = channel();
        let shared = Arc::new(Shared {
            gate: Mutex::new(Some(gate)),
            opener: Mutex::new(Some(open)),
            ..Shared::default()
        });
        let ours = Arc::clone(&shared);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if ours.stopped.load(Ordering::SeqCst) {
                    return;
                }
                ours.connections.fetch_add(1, Ordering::SeqCst);
                let ours = Arc::clone(&ours);
                std::thread::spawn(move || serve(stream, &ours));
            }
        });
        Self { addr, shared }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.addr)
    }

    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.shared.seen.lock().unwrap().clone()
    }

    pub(crate) fn last(&self) -> Seen {
        self.seen().pop().unwrap()
    }

    /// How often the effect of a key happened.
    pub(crate) fn effects(&self, key: &str) -> usize {
        self.shared.ledger.lock().unwrap().iter().filter(|entry| *entry == key).count()
    }

    pub(crate) fn connections(&self) -> usize {
        self.shared.connections.load(Ordering::SeqCst)
    }

    /// Waits until it has closed this many connections by itself.
    pub(crate) fn wait_for_closed(&self, connections: usize) {
        for _ in 0..12_000 {
            if self.shared.closed.load(Ordering::SeqCst) >= connections {
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        panic!("{connections} connections are not closed");
    }

    /// Releases one `/slow`.
    pub(crate) fn open(&self) {
        self.shared.opener.lock().unwrap().as_ref().unwrap().send(()).unwrap();
    }

    /// Waits until it has received this many requests.
    pub(crate) fn wait_for(&self, requests: usize) {
        for _ in 0..12_000 {
            if self.shared.seen.lock().unwrap().len() >= requests {
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        panic!("{requests} requests did not come: {:?}", self.seen());
    }

    pub(crate) fn break_lookups(&self, broken: bool) {
        self.shared.lookups_broken.store(broken, Ordering::SeqCst);
    }
}

impl Drop for Upstream {
    fn drop(&mut self) {
        self.shared.stopped.store(true, Ordering::SeqCst);
        let _ = TcpStream::connect(self.addr);
    }
}

fn serve(stream: TcpStream, shared: &Shared) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut writer = stream;
    while let Some(seen) = read(&mut reader, &mut writer) {
        let last = seen.header("connection") == Some("close");
        if !answer(&seen, shared, &mut reader, &mut writer) || last {
            let _ = writer.shutdown(std::net::Shutdown::Both);
            shared.closed.fetch_add(1, Ordering::SeqCst);
            return;
        }
    }
}

fn read(reader: &mut impl BufRead, writer: &mut impl Write) -> Option<Seen> {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if reader.read_line(&mut head).ok()? == 0 {
            return None;
        }
    }
    let mut lines = head.lines();
    let mut first = lines.next()?.split(' ');
    let (method, path) = (first.next()?.to_owned(), first.next()?.to_owned());
    let headers: Vec<(String, String)> = lines
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
        .collect();
    let mut seen = Seen { method, path, head, headers, body: Vec::new() };
    // This one answers piece by piece before it has read everything.
    if seen.path == "/both-ways" {
        writer.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n").ok()?;
        return Some(seen);
    }
    if seen.header("transfer-encoding") == Some("chunked") {
        while let Some(piece) = chunk(reader) {
            seen.body.extend(piece);
        }
    } else if let Some(length) = seen.header("content-length") {
        seen.body = vec![0; length.parse().unwrap()];
        reader.read_exact(&mut seen.body).ok()?;
    }
    Some(seen)
}

fn chunk(reader: &mut impl BufRead) -> Option<Vec<u8>> {
    let mut line = String::new();
    reader.read_line(&mut line).ok()?;
    let mut piece = vec![0; usize::from_str_radix(line.trim(), 16).ok()? + 2];
    reader.read_exact(&mut piece).ok()?;
    piece.truncate(piece.len() - 2);
    (!piece.is_empty()).then_some(piece)
}

/// Answers, and returns whether the connection stays open.
fn answer(seen: &Seen, shared: &Shared, reader: &mut impl BufRead, out: &mut TcpStream) -> bool {
    shared.seen.lock().unwrap().push(seen.clone());
    let key = seen.header("idempotency-key").unwrap_or("none").to_owned();
    let effect = || shared.ledger.lock().unwrap().push(key.clone());
    let path = seen.path.split('?').next().unwrap();
    let (status, headers, body) = match path {
        "/pay" | "/else" => {
            effect();
            let id = shared.ledger.lock().unwrap().len();
            (
                "201 Created",
                "Content-Type: application/json\r\nLocation: /pay/1\r\nSet-Cookie: a=b\r\nX-Hop: 1\r\nConnection: x-hop\r\n",
                format!("{{\"id\":{id}}}").into_bytes(),
            )
        }
        "/slow" => {
            let gate = shared.gate.lock().unwrap();
            gate.as_ref().unwrap().recv().unwrap();
            effect();
            ("201 Created", "", b"slow".to_vec())
        }
        // Like `/slow`, with a different answer each time.
        "/gated" => {
            let gate = shared.gate.lock().unwrap();
            gate.as_ref().unwrap().recv().unwrap();
            effect();
            ("201 Created", "", shared.ledger.lock().unwrap().len().to_string().into_bytes())
        }
        // Works the second time.
        "/second" => match shared.seen.lock().unwrap().iter().filter(|seen| seen.path == path).count() {
            1 => ("500 Internal Server Error", "", b"failed".to_vec()),
            _ => {
                effect();
                ("201 Created", "", b"done".to_vec())
            }
        },
        "/cut" => {
            effect();
            return false;
        }
        // The effect happened, and the answer is cut off halfway.
        "/half" => {
            effect();
            let _ = out.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf");
            return false;
        }
        "/half-applied" => {
            effect();
            let head = "HTTP/1.1 200 OK\r\nIdempotency-Effect: applied\r\nContent-Length: 10\r\n\r\nhalf";
            let _ = out.write_all(head.as_bytes());
            return false;
        }
        "/never" => {
            effect();
            let _ = reader.read(&mut [0]);
            return false;
        }
        "/big" => {
            effect();
            ("200 OK", "", vec![b'x'; 300 << 10])
        }
        "/declined" => ("402 Payment Required", "", b"declined".to_vec()),
        "/fails" => ("500 Internal Server Error", "", b"failed".to_vec()),
        "/cached" => ("304 Not Modified", "ETag: \"1\"\r\n", Vec::new()),
        "/nothing" => ("204 No Content", "", Vec::new()),
        // Answers, and closes a connection that it announced as kept alive.
        "/stale" => {
            effect();
            let _ = out.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
            return false;
        }
        "/both-ways" => {
            while let Some(piece) = chunk(reader) {
                let _ = write!(out, "{:x}\r\n", piece.len());
                let _ = out.write_all(&[&piece[..], b"\r\n"].concat());
            }
            let _ = out.write_all(b"0\r\n\r\n");
            return true;
        }
        "/whoami" => match seen.header("authorization").and_then(|token| token.strip_prefix("Bearer ")) {
            Some(token) => {
                let user = format!("X-User-Id: {}\r\n", token.split('.').next().unwrap());
                let _ = write!(out, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n{user}\r\nok");
                return true;
            }
            None => ("401 Unauthorized", "WWW-Authenticate: Bearer\r\n", b"who are you?".to_vec()),
        },
        _ if path.starts_with("/by-key/") => {
            let asked = &path["/by-key/".len()..];
            let there = shared.ledger.lock().unwrap().iter().any(|entry| entry == asked);
            match (shared.lookups_broken.load(Ordering::SeqCst), there) {
                (true, _) => ("503 Service Unavailable", "", Vec::new()),
                (false, true) => {
                    ("200 OK", "Content-Type: application/json\r\n", b"{\"found\":true}".to_vec())
                }
                (false, false) => ("404 Not Found", "", Vec::new()),
            }
        }
        _ => ("200 OK", "", b"hello".to_vec()),
    };
    let length = match path {
        "/cached" | "/nothing" => String::new(),
        _ => format!("Content-Length: {}\r\n", body.len()),
    };
    let body = if seen.method == "HEAD" { Vec::new() } else { body };
    let head = format!("HTTP/1.1 {status}\r\n{headers}{length}\r\n");
    out.write_all(&[head.as_bytes(), &body].concat()).is_ok()
}
