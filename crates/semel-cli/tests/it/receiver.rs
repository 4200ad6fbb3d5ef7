//! A webhook receiver on loopback: records requests, and answers with a chosen status.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

/// Longer than anything here takes.
pub(crate) const SOON: Duration = Duration::from_secs(30);

/// The parts of a request that the tests inspect.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: String,
}

impl Request {
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.iter().find(|(have, _)| have == name).map_or("", |(_, value)| value.as_str())
    }
}

type Judge = Box<dyn Fn(&Request) -> u16 + Send>;

struct Shared {
    judge: Mutex<Judge>,
    /// Those that were answered with 2xx.
    taken: Mutex<Vec<Request>>,
    came: Condvar,
}

pub(crate) struct Receiver {
    address: SocketAddr,
    shared: Arc<Shared>,
}

impl Receiver {
    pub(crate) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            judge: Mutex::new(Box::new(|_| 204)),
            taken: Mutex::default(),
            came: Condvar::new(),
        });
        let ours = Arc::clone(&shared);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let shared = Arc::clone(&ours);
                std::thread::spawn(move || serve(stream, &shared));
            }
        });
        Self { address, shared }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}/in", self.address)
    }

    /// Answers with this status from now on.
    pub(crate) fn answers(&self, judge: impl Fn(&Request) -> u16 + Send + 'static) {
        *self.shared.judge.lock().unwrap() = Box::new(judge);
    }

    /// Waits until it has accepted this many.
    pub(crate) fn wait_for(&self, count: usize) -> Vec<Request> {
        let until = Instant::now() + SOON;
        let mut taken = self.shared.taken.lock().unwrap();
        while taken.len() < count {
            let left = until.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "only {} came: {taken:?}", taken.len());
            taken = self.shared.came.wait_timeout(taken, left).unwrap().0;
        }
        taken.clone()
    }

    pub(crate) fn bodies(&self, count: usize) -> Vec<String> {
        self.wait_for(count).into_iter().map(|request| request.body).collect()
    }
}

fn serve(stream: TcpStream, shared: &Shared) -> Option<()> {
    let mut reader = BufReader::new(stream);
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).ok()? == 0 {
            return None;
        }
        let mut headers = Vec::new();
        loop {
            let mut line = String::new();
            reader.read_line(&mut line).ok()?;
            let Some((name, value)) = line.trim_end().split_once(':') else { break };
            headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
        }
        let mut request = Request { headers, body: String::new() };
        let mut body = vec![0; request.header("content-length").parse().unwrap_or(0)];
        reader.read_exact(&mut body).ok()?;
        request.body = String::from_utf8_lossy(&body).into_owned();
        let status = (shared.judge.lock().unwrap())(&request);
        if (200..300).contains(&status) {
            shared.taken.lock().unwrap().push(request);
            shared.came.notify_all();
        }
        write!(reader.get_mut(), "HTTP/1.1 {status} Answer\r\ncontent-length: 0\r\n\r\n").ok()?;
    }
}
