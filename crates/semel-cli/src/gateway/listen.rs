//! Clients' connections: taken, served, ended.

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
use super::idle_timeout::{Due, Phases, Pulse};
use super::metrics::Counted;
use super::smuggling::{HeadLimits, Inspector};
use super::wire::Wire;

/// What an HTTP/2 connection begins with.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Least that hyper wants to be allowed to buffer.
const BUFFER_BYTES_MIN: usize = 64 << 10;
/// How long to wait when the system has no more connections to give.
const EXHAUSTED_PAUSE: Duration = Duration::from_millis(100);
/// How often a peer of an HTTP/2 connection is asked whether it is there.
const PING_EVERY: Duration = Duration::from_secs(20);

/// How often a connection that is to end is looked at.
const LEAVING_LOOK: Duration = Duration::from_millis(50);

/// How connections are served.
#[derive(Clone)]
pub(super) struct Serving {
    pub(super) edge: Arc<Edge>,
    pub(super) trusted: Arc<Trusted>,
    pub(super) head: HeadLimits,
    pub(super) streams_max: u32,
    pub(super) phases: Phases,
    /// How long what a client still sends is read after its last answer.
    pub(super) linger: Duration,
    pub(super) counted: Counted,
    /// True when the gateway stops.
    pub(super) stopping: watch::Receiver<bool>,
}

/// Takes connections until the gateway stops. At most as many as there are places; more wait in the kernel's
/// queue.
pub(super) async fn listen(listener: TcpListener, serving: Serving, places: Arc<Semaphore>) {
    let mut stopping = serving.stopping.clone();
    loop {
        let next = async {
            let place = Arc::clone(&places).acquire_owned().await.map_err(io::Error::other)?;
            listener.accept().await.map(|(stream, peer)| (place, stream, peer))
        };
        let taken = tokio::select! {
            biased;
            _ = stopping.wait_for(|stopping| *stopping) => return,
            taken = next => taken,
        };
        match taken {
            Ok((place, stream, peer)) => {
                tokio::spawn(connection(serving.clone(), stream, peer, place));
            }
            Err(error) => {
                tracing::warn!(%error, "a connection could not be taken");
                tokio::time::sleep(EXHAUSTED_PAUSE).await;
            }
        }
    }
}

async fn connection(serving: Serving, mut stream: TcpStream, peer: SocketAddr, place: OwnedSemaphorePermit) {
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
    let (pulse, head) = (Pulse::new(), serving.head);
    let peer = Peer::new(peer.ip(), serving.trusted.trusts(peer.ip()));
    let calls = Calls { edge: Arc::clone(&serving.edge), pulse: Arc::clone(&pulse), peer };
    let inspector = (!is_http2).then(|| Inspector::new(head));
    let (seen, counted) = (Arc::clone(&pulse), serving.counted.clone());
    let wire = Wire::new(stream, &begun, inspector, head.headers_max, serving.linger, seen, counted);
    drop(begun);
    if is_http2 {
        pulse.head_whole();
        let mut builder = http2::Builder::new(TokioExecutor::new());
        builder
            .timer(TokioTimer::new())
            .max_concurrent_streams(serving.streams_max)
            .max_header_list_size(u32::try_from(head.head_bytes_max).unwrap_or(u32::MAX))
            .keep_alive_interval(PING_EVERY)
            .keep_alive_timeout(PING_EVERY);
        serve(builder.serve_connection(wire, calls), &pulse, &serving).await;
    } else {
        let mut builder = http1::Builder::new();
        builder
            .header_read_timeout(None)
            // A client may say that it has no more to ask while it waits for its answer. One that is gone says the
            // same; it is noticed when its answer is written, which has its bounds.
            .half_close(true)
            .max_headers(head.headers_max)
            .max_buf_size((2 * head.head_bytes_max).max(BUFFER_BYTES_MIN));
        serve(builder.serve_connection(wire, calls), &pulse, &serving).await;
    }
    drop(place);
}

/// Reads until it is clear what the connection begins with.
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

/// Both kinds of connections say good-bye in the same way.
trait Connection: Future<Output = hyper::Result<()>> {
    fn good_bye(self: Pin<&mut Self>);
}

impl Connection for http1::Connection<Wire, Calls> {
    fn good_bye(self: Pin<&mut Self>) {
        self.graceful_shutdown();
    }
}

impl Connection for http2::Connection<Wire, Calls, TokioExecutor> {
    fn good_bye(self: Pin<&mut Self>) {
        self.graceful_shutdown();
    }
}

async fn serve(connection: impl Connection, pulse: &Pulse, serving: &Serving) {
    let mut connection = std::pin::pin!(connection);
    let mut look = tokio::time::interval(serving.phases.look_every());
    look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut stopping = serving.stopping.clone();
    let (mut leaving, mut quiet) = (false, 0);
    loop {
        tokio::select! {
            ended = connection.as_mut() => {
                if let Err(error) = ended {
                    tracing::debug!(%error, "a client's connection ended early");
                }
                return;
            }
            // Nothing is asked for, so nobody waits; but hyper would wait for a first request. The second look
            // leaves the time to write the last answer.
            _ = look.tick() => match pulse.due(&serving.phases) {
                Due::Nothing if leaving && pulse.is_quiet() => {
                    quiet += 1;
                    if quiet > 2 {
                        return;
                    }
                }
                Due::Nothing => quiet = 0,
                // It was asked to leave before and did not.
                Due::Idle if leaving => return,
                Due::Idle => {
                    serving.counted.timed_out("idle");
                    leaving = true;
                    connection.as_mut().good_bye();
                }
                Due::Stuck => {
                    serving.counted.timed_out("stuck");
                    return;
                }
            },
            _ = stopping.wait_for(|stopping| *stopping), if !leaving => {
                leaving = true;
                look = tokio::time::interval(LEAVING_LOOK);
                connection.as_mut().good_bye();
            }
        }
    }
}

/// The requests of one connection.
#[derive(Clone)]
struct Calls {
    edge: Arc<Edge>,
    pulse: Arc<Pulse>,
    peer: Peer,
}

impl Service<Request<Incoming>> for Calls {
    type Response = Response<Payload>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Payload>, Infallible>> + Send>>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        let (edge, peer, busy) = (Arc::clone(&self.edge), self.peer.clone(), self.pulse.busy());
        Box::pin(async move { Ok(edge.answer(request, peer, busy).await) })
    }
}
