//! A server that does with each connection what the test says, and remembers what it got.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use semel::Key;
use semel::http::BufferedBody;
use semel::http::client::{Attempts, IdempotentClient, RetryPolicy};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::Notify;

/// What happens to one connection.
#[derive(Clone)]
pub enum Step {
    /// Closed before a byte is read.
    CloseAtOnce,
    /// The whole request is read, then the connection is closed.
    ReadAndClose,
    /// The request is read and nothing ever comes.
    Hang,
    /// Half of the answer comes, then the connection is closed.
    HalfAnswer,
    /// This status, these headers, this body.
    Answer(u16, Vec<(&'static str, String)>, &'static str),
}

/// An address at which no server listens, and none begins to while the first is kept.
pub fn closed_port() -> (TcpSocket, SocketAddr) {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = socket.local_addr().unwrap();
    (socket, address)
}

pub fn answer(status: u16) -> Step {
    Step::Answer(status, vec![], "done")
}

pub fn problem(status: u16, code: &'static str) -> Step {
    Step::Answer(status, vec![("idempotency-problem", code.into())], "")
}

/// One request as it arrived.
#[derive(Clone, Debug)]
pub struct Arrived {
    pub head: String,
    pub body: String,
}

impl Arrived {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| {
            let (found, value) = line.split_once(": ")?;
            found.eq_ignore_ascii_case(name).then_some(value)
        })
    }
}

#[derive(Clone)]
pub struct Script {
    pub address: SocketAddr,
    arrived: Arc<Mutex<Vec<Arrived>>>,
    news: Arc<Notify>,
}

impl Script {
    /// The last step is repeated for ever.
    pub async fn start(steps: impl IntoIterator<Item = Step>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let script = Self { address, arrived: Arc::default(), news: Arc::default() };
        let steps: Vec<_> = steps.into_iter().collect();
        let server = script.clone();
        tokio::spawn(async move {
            for connection in 0.. {
                let (stream, _) = listener.accept().await.unwrap();
                let step = steps[connection.min(steps.len() - 1)].clone();
                tokio::spawn(server.clone().serve(stream, step));
            }
        });
        script
    }

    async fn serve(self, mut stream: TcpStream, step: Step) {
        if let Step::CloseAtOnce = step {
            return;
        }
        let Some(arrived) = read(&mut stream).await else { return };
        self.arrived.lock().unwrap().push(arrived);
        self.news.notify_one();
        let answer = match step {
            Step::CloseAtOnce | Step::ReadAndClose => return,
            Step::Hang => return std::future::pending().await,
            Step::HalfAnswer => "HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf".to_owned(),
            Step::Answer(status, headers, body) => {
                let headers: String =
                    headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
                let length = body.len();
                format!(
                    "HTTP/1.1 {status} X\r\n{headers}connection: close\r\ncontent-length: {length}\r\n\r\n{body}"
                )
            }
        };
        let _ = stream.write_all(answer.as_bytes()).await;
        let _ = stream.shutdown().await;
        // What the client still sends is read, or the kernel would reset what it has not read yet.
        let _ = stream.read(&mut [0; 64]).await;
    }

    pub fn arrived(&self) -> Vec<Arrived> {
        self.arrived.lock().unwrap().clone()
    }

    /// Waits for the next request since the last wait.
    pub async fn news(&self) {
        self.news.notified().await;
    }

    /// Every request had this key, and the same body.
    pub fn assert_one_intent(&self, key: &str) {
        for arrived in self.arrived() {
            assert_eq!(arrived.header("idempotency-key"), Some(key));
            assert_eq!(arrived.body, BODY);
        }
    }

    pub fn uri(&self) -> String {
        format!("http://{}/payments", self.address)
    }
}

async fn read(stream: &mut TcpStream) -> Option<Arrived> {
    let mut bytes = Vec::new();
    loop {
        let mut piece = [0; 4096];
        let length = stream.read(&mut piece).await.ok()?;
        bytes.extend_from_slice(&piece[..length]);
        let text = String::from_utf8_lossy(&bytes).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let arrived = Arrived { head: head.to_owned(), body: body.to_owned() };
            let expected = arrived.header("content-length").map_or(0, |length| length.parse().unwrap());
            if body.len() >= expected {
                return Some(arrived);
            }
        }
        if length == 0 {
            return None;
        }
    }
}

pub const BODY: &str = r#"{"amount":4200}"#;

pub type Http = Client<HttpConnector, Full<Bytes>>;

/// Waits are short; everything else as in production.
pub fn policy() -> RetryPolicy {
    RetryPolicy::default()
        .backoff(Duration::from_millis(1), Duration::from_millis(5))
        .attempts_max(5)
        .time_max(Duration::from_secs(60))
}

pub fn client(policy: RetryPolicy) -> IdempotentClient<Http> {
    IdempotentClient::http().with_policy(policy)
}

pub fn payment(uri: String, key: &str) -> Request<String> {
    Request::post(uri)
        .header("content-type", "application/json")
        .extension(Key::new(key).unwrap())
        .body(BODY.to_owned())
        .unwrap()
}

pub async fn text<R>(response: http::Response<BufferedBody<R>>) -> String
where
    R: http_body::Body<Data = Bytes>,
    R::Error: std::fmt::Debug,
{
    String::from_utf8(response.into_body().collect().await.unwrap().to_bytes().to_vec()).unwrap()
}

pub fn attempts<B>(response: &http::Response<B>) -> u32 {
    response.extensions().get::<Attempts>().unwrap().count()
}
