//! The service behind the gateways: it writes each payment down, and loses some answers.

use std::collections::HashSet;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use testkit::ledger::Ledger;

use crate::receiver::SOON;

/// Of so many requests, one loses its answer.
const LOST_ONE_IN: usize = 9;

pub(super) struct Payments {
    address: SocketAddr,
    ledger: PathBuf,
}

struct Books {
    ledger: Ledger,
    paid: Mutex<HashSet<String>>,
    requests: AtomicUsize,
}

impl Payments {
    pub(super) fn start(path: &Path) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let books = Arc::new(Books {
            ledger: Ledger::open(path).unwrap(),
            paid: Mutex::default(),
            requests: AtomicUsize::new(1),
        });
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let books = Arc::clone(&books);
                std::thread::spawn(move || books.serve(stream));
            }
        });
        Self { address, ledger: path.to_owned() }
    }

    pub(super) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(super) fn ledger(&self) -> &Path {
        &self.ledger
    }
}

impl Books {
    fn serve(&self, stream: TcpStream) -> Option<()> {
        let mut reader = BufReader::new(stream);
        loop {
            let (line, headers) = head(&mut reader).ok()?;
            let mut body = vec![0; header(&headers, "content-length").parse().unwrap_or(0)];
            reader.read_exact(&mut body).ok()?;
            let path = line.split(' ').nth(1)?;
            let status = if line.starts_with("POST ") {
                let key = header(&headers, "idempotency-key").trim_matches('"').to_owned();
                // No check for duplicates: that is the gateways' work.
                self.ledger.append(&key).unwrap();
                self.paid.lock().unwrap().insert(key);
                // Not by the number of payments: a repeated one would lose its answer again and again.
                if self.requests.fetch_add(1, Ordering::Relaxed).is_multiple_of(LOST_ONE_IN) {
                    return None;
                }
                201
            } else {
                let key = path.rsplit('/').next()?;
                if self.paid.lock().unwrap().contains(key) { 200 } else { 404 }
            };
            write!(reader.get_mut(), "HTTP/1.1 {status} Answer\r\ncontent-length: 0\r\n\r\n").ok()?;
        }
    }
}

/// The first line, and the headers in lower case.
fn head(reader: &mut BufReader<TcpStream>) -> io::Result<(String, Vec<(String, String)>)> {
    let mut first = String::new();
    if reader.read_line(&mut first)? == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let mut headers = Vec::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        let Some((name, value)) = line.trim_end().split_once(':') else { return Ok((first, headers)) };
        headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
    }
}

fn header<'a>(headers: &'a [(String, String)], name: &str) -> &'a str {
    headers.iter().find(|(have, _)| have == name).map_or("", |(_, value)| value.as_str())
}

/// The status of a POST with this key.
pub(super) fn post(address: SocketAddr, path: &str, key: &str) -> io::Result<u16> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(SOON))?;
    write!(
        stream,
        "POST {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\nidempotency-key: \"{key}\"\r\ncontent-length: 1\r\n\r\nx"
    )?;
    let (line, _) = head(&mut BufReader::new(stream))?;
    line.split(' ')
        .nth(1)
        .and_then(|status| status.parse().ok())
        .ok_or_else(|| io::ErrorKind::InvalidData.into())
}
