//! Client connections: accepted, served, closed.

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use http::{Request, Response};
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::Service;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use tokio::io::AsyncReadExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::timeout;

use super::body::Payload;
use super::edge::Edge;
use super::forward::Peer;
use super::forwarded_headers::Trusted;
use super::idle_timeout::{Activity, Due, Phases};
use super::metrics::Counted;
use super::smuggling::{HeadLimits, Inspector};
use super::wire::Wire;

/// The first bytes of an HTTP/2 connection.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// The smallest buffer limit that hyper accepts.
const BUFFER_BYTES_MIN: usize = 64 << 10;
/// Pause after a failed accept, such as when the system is out of file descriptors.
const EXHAUSTED_PAUSE: Duration = Duration::from_millis(100);
/// Keep-alive pings of an HTTP/2 connection.
const PING_EVERY: Duration = Duration::from_secs(20);

/// How often a connection that is shutting down is checked.
const SHUTDOWN_CHECK_EVERY: Duration = Duration::from_millis(50);

/// How connections are served.
#[derive(Clone)]
pub(super) struct Serving {
    pub(super) edge: Arc<Edge>,
    pub(super) trusted: Arc<Trusted>,
    pub(super) head: HeadLimits,
    pub(super) streams_max: u32,
    pub(super) phases: Phases,
    /// How long a client's remaining bytes are read after its last answer.
    pub(super) linger: Duration,
    pub(super) counted: Counted,
    /// True when the gateway stops.
    pub(super) stopping: watch::Receiver<bool>,
}

/// Accepts connections until the gateway stops. At most as many as there are permits; more wait in the kernel's queue.
pub(super) async fn listen(listener: TcpListener, serving: Serving, permits: Arc<Semaphore>) {
    let mut stopping = serving.stopping.clone();
    loop {
        let next = async {
            let permit = Arc::clone(&permits).acquire_owned().await.map_err(io::Error::other)?;
            listener.accept().await.map(|(stream, peer)| (permit, stream, peer))
        };
        let taken = tokio::select! {
            biased;
            _ = stopping.wait_for(|stopping| *stopping) => return,
            taken = next => taken,
        };
        match taken {
            Ok((permit, stream, peer)) => {
                tokio::spawn(connection(serving.clone(), stream, peer, permit));
            }
            Err(error) => {
                tracing::warn!(%error, "could not accept a client connection; will retry");
                tokio::time::sleep(EXHAUSTED_PAUSE).await;
            }
        }
    }
}

async fn connection(serving: Serving, mut stream: TcpStream, peer: SocketAddr, permit: OwnedSemaphorePermit) {
    let _connected = serving.counted.connection();
    let _ = stream.set_nodelay(true);
    let mut begun = Vec::new();
    let mut stopping = serving.stopping.clone();
    let is_http2 = tokio::select! {
        begins = timeout(serving.phases.header_read, begins_as_http2(&mut stream, &mut begun)) => begins,
        _ = stopping.wait_for(|stopping| *stopping) => return,
    };
    let Ok(Ok(is_http2)) = is_http2 else {
        serving.counted.timed_out("stuck");
        return;
    };
    let (activity, head) = (Activity::new(), serving.head);
    let peer = Peer::new(peer.ip(), serving.trusted.trusts(peer.ip()));
    let calls = Calls { edge: Arc::clone(&serving.edge), activity: Arc::clone(&activity), peer };
    let inspector = (!is_http2).then(|| Inspector::new(head));
    let (seen, counted) = (Arc::clone(&activity), serving.counted.clone());
    let wire = Wire::new(stream, &begun, inspector, head.headers_max, serving.linger, seen, counted);
    drop(begun);
    if is_http2 {
        activity.head_whole();
        let mut builder = http2::Builder::new(TokioExecutor::new());
        builder
            .timer(TokioTimer::new())
            .max_concurrent_streams(serving.streams_max)
            .max_header_list_size(u32::try_from(head.head_bytes_max).unwrap_or(u32::MAX))
            .keep_alive_interval(PING_EVERY)
            .keep_alive_timeout(PING_EVERY);
        serve(builder.serve_connection(wire, calls), &activity, &serving).await;
    } else {
        let mut builder = http1::Builder::new();
        builder
            .header_read_timeout(None)
            // A client may close its sending side while it waits for its answer. One that is gone looks the same; it is
            // noticed when its answer is written, which has a timeout.
            .half_close(true)
            .max_headers(head.headers_max)
            .max_buf_size((2 * head.head_bytes_max).max(BUFFER_BYTES_MIN));
        serve(builder.serve_connection(wire, calls), &activity, &serving).await;
    }
    drop(permit);
}

/// Reads until it is clear whether the connection starts with the HTTP/2 preface.
async fn begins_as_http2(stream: &mut TcpStream, begun: &mut Vec<u8>) -> io::Result<bool> {
    loop {
        let compared = begun.len().min(PREFACE.len());
        if begun[..compared] != PREFACE[..compared] {
            return Ok(false);
        }
        if compared == PREFACE.len() {
            return Ok(true);
        }
        if stream.read_buf(begun).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
}

/// Graceful shutdown, for both versions of HTTP.
trait Connection: Future<Output = hyper::Result<()>> {
    fn start_shutdown(self: Pin<&mut Self>);
}

impl Connection for http1::Connection<Wire, Calls> {
    fn start_shutdown(self: Pin<&mut Self>) {
        self.graceful_shutdown();
    }
}

impl Connection for http2::Connection<Wire, Calls, TokioExecutor> {
    fn start_shutdown(self: Pin<&mut Self>) {
        self.graceful_shutdown();
    }
}

async fn serve(connection: impl Connection, activity: &Activity, serving: &Serving) {
    let mut connection = std::pin::pin!(connection);
    let mut check = tokio::time::interval(serving.phases.check_every());
    check.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut stopping = serving.stopping.clone();
    let (mut leaving, mut quiet) = (false, 0);
    loop {
        tokio::select! {
            ended = connection.as_mut() => {
                if let Err(error) = ended {
                    tracing::debug!(%error, "a client connection ended with an error");
                }
                return;
            }
            // No request is in flight, so the connection can close; hyper alone would wait for a first request. More
            // than one check leaves time to write the last answer.
            _ = check.tick() => match activity.due(&serving.phases) {
                Due::Nothing if leaving && activity.is_quiet() => {
                    quiet += 1;
                    if quiet > 2 {
                        return;
                    }
                }
                Due::Nothing => quiet = 0,
                // It is still open after its graceful shutdown began.
                Due::Idle if leaving => return,
                Due::Idle => {
                    serving.counted.timed_out("idle");
                    leaving = true;
                    connection.as_mut().start_shutdown();
                }
                Due::Stuck => {
                    serving.counted.timed_out("stuck");
                    return;
                }
            },
            _ = stopping.wait_for(|stopping| *stopping), if !leaving => {
                leaving = true;
                check = tokio::time::interval(SHUTDOWN_CHECK_EVERY);
                connection.as_mut().start_shutdown();
            }
        }
    }
}

/// The requests of one connection.
#[derive(Clone)]
struct Calls {
    edge: Arc<Edge>,
    activity: Arc<Activity>,
    peer: Peer,
}

impl Service<Request<Incoming>> for Calls {
    type Response = Response<Payload>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Payload>, Infallible>> + Send>>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        let (edge, peer, busy) = (Arc::clone(&self.edge), self.peer.clone(), self.activity.busy());
        Box::pin(async move { Ok(edge.answer(request, peer, busy).await) })
    }
}
