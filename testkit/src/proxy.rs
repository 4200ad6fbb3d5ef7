//! A TCP proxy on loopback that loses, delays and cuts what passes through it.
//!
//! The interesting failures of a network are those after which one side knows something the other
//! does not: the server has committed and the answer is gone. The proxy produces them on demand.
//! A fault is set for all connections with [`Proxy::set`], at run time and also for those that are
//! open, or for the next few connections only with [`Proxy::next`].

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Connections served at once; further ones are closed as if refused.
pub const CONNECTIONS_MAX: usize = 256;

/// How soon a thread that waits for bytes notices a changed fault.
const NOTICE: Duration = Duration::from_millis(5);

/// What happens to the bytes of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Everything passes.
    Pass,
    /// Every piece waits this long, in each direction.
    Delay(Duration),
    /// Requests are delivered; the answer is swallowed and the connection then closed. The client
    /// is left in doubt while the server has done the work.
    DropResponse,
    /// The connection stays open and nothing moves. Lifted, what was sent meanwhile is delivered.
    Hang,
    /// A new connection is closed before a byte is exchanged. Open ones are not touched.
    Refuse,
    /// The server gets this many bytes of the connection's requests, then both sides are closed.
    CutRequestAfter(u64),
    /// The client gets this many bytes of the connection's answers, then both sides are closed.
    CutAnswerAfter(u64),
}

/// A running proxy. Its connections are closed and its threads ended when it is dropped.
#[derive(Debug)]
pub struct Proxy {
    addr: SocketAddr,
    shared: Arc<Shared>,
    acceptor: Option<JoinHandle<()>>,
}

impl Proxy {
    /// Starts a proxy in front of `upstream`, which is asked anew for every connection: it may be
    /// down now and up later.
    pub fn start(upstream: impl ToSocketAddrs) -> io::Result<Self> {
        let upstream = upstream.to_socket_addrs()?.next().ok_or(io::ErrorKind::AddrNotAvailable)?;
        let listener = TcpListener::bind(("127.0.0.1", 0))?;
        let addr = listener.local_addr()?;
        let shared = Arc::new(Shared::default());
        shared.lock().upstream = Some(upstream);
        let acceptor = {
            let shared = Arc::clone(&shared);
            std::thread::spawn(move || accept(&listener, &shared))
        };
        Ok(Self { addr, shared, acceptor: Some(acceptor) })
    }

    /// Where clients connect.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// From now on this happens on every connection, open ones included.
    pub fn set(&self, fault: Fault) {
        self.shared.lock().fault = fault;
        self.shared.changed.notify_all();
    }

    /// The next `connections` to be made suffer this for their whole life, whatever is set.
    pub fn next(&self, connections: usize, fault: Fault) {
        let mut state = self.shared.lock();
        state.next.extend(std::iter::repeat_n(fault, connections.min(CONNECTIONS_MAX)));
    }

    /// From now on connections go to another server, as when a name is given to another machine. Open ones stay where
    /// they are until they are [cut](Self::cut).
    pub fn point_at(&self, upstream: impl ToSocketAddrs) -> io::Result<()> {
        let upstream = upstream.to_socket_addrs()?.next().ok_or(io::ErrorKind::AddrNotAvailable)?;
        self.shared.lock().upstream = Some(upstream);
        Ok(())
    }

    /// Closes both sides of every open connection now.
    pub fn cut(&self) {
        for link in &self.shared.lock().links {
            link.close();
        }
    }

    /// How many connections were made so far, refused ones included.
    #[must_use]
    pub fn accepted(&self) -> u64 {
        self.shared.accepted.load(Ordering::SeqCst)
    }

    /// How many answers were swallowed so far by [`Fault::DropResponse`].
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.shared.dropped.load(Ordering::SeqCst)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.lock().stopped = true;
        self.cut();
        self.shared.changed.notify_all();
        // The acceptor is blocked in accept: one last connection lets it look at `stopped`.
        let _ = TcpStream::connect(self.addr);
        if let Some(acceptor) = self.acceptor.take() {
            let _ = acceptor.join();
        }
    }
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    accepted: AtomicU64,
    dropped: AtomicU64,
}

#[derive(Debug)]
struct State {
    upstream: Option<SocketAddr>,
    fault: Fault,
    next: VecDeque<Fault>,
    links: Vec<Arc<Link>>,
    stopped: bool,
}

impl Default for State {
    fn default() -> Self {
        Self { upstream: None, fault: Fault::Pass, next: VecDeque::new(), links: Vec::new(), stopped: false }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The fault this link suffers now.
    fn fault(&self, link: &Link) -> Fault {
        link.own.unwrap_or_else(|| self.lock().fault)
    }

    /// Sleeps until something may have changed.
    fn wait(&self, at_most: Duration) {
        let _ = self.changed.wait_timeout(self.lock(), at_most);
    }
}

/// One connection: both sockets, and the fault that is its own if it was one of the next few.
#[derive(Debug)]
struct Link {
    client: TcpStream,
    server: TcpStream,
    own: Option<Fault>,
    closed: std::sync::atomic::AtomicBool,
}

impl Link {
    fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        let _ = self.client.shutdown(Shutdown::Both);
        let _ = self.server.shutdown(Shutdown::Both);
    }

    fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }
}

fn accept(listener: &TcpListener, shared: &Arc<Shared>) {
    let mut pumps: Vec<JoinHandle<()>> = Vec::new();
    for client in listener.incoming() {
        if shared.lock().stopped {
            break;
        }
        pumps.retain(|pump| !pump.is_finished());
        let Ok(client) = client else { continue };
        shared.accepted.fetch_add(1, Ordering::SeqCst);
        let (own, fault, upstream) = {
            let mut state = shared.lock();
            state.links.retain(|link| !link.is_closed());
            if state.links.len() >= CONNECTIONS_MAX {
                continue;
            }
            let own = state.next.pop_front();
            (own, own.unwrap_or(state.fault), state.upstream)
        };
        let Some(upstream) = upstream.filter(|_| fault != Fault::Refuse) else { continue };
        // A server that is down looks through the proxy like one that closes at once.
        let Ok(server) = TcpStream::connect_timeout(&upstream, Duration::from_secs(5)) else { continue };
        let Ok(link) = prepare(client, server, own) else { continue };
        shared.lock().links.push(Arc::clone(&link));
        for direction in [Direction::Request, Direction::Answer] {
            let (shared, link) = (Arc::clone(shared), Arc::clone(&link));
            pumps.push(std::thread::spawn(move || {
                pump(direction, &link, &shared);
            }));
        }
    }
    for link in &shared.lock().links {
        link.close();
    }
    for pump in pumps {
        let _ = pump.join();
    }
}

fn prepare(client: TcpStream, server: TcpStream, own: Option<Fault>) -> io::Result<Arc<Link>> {
    for socket in [&client, &server] {
        socket.set_nodelay(true)?;
        socket.set_read_timeout(Some(NOTICE))?;
    }
    Ok(Arc::new(Link { client, server, own, closed: false.into() }))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Direction {
    Request,
    Answer,
}

/// Moves one direction of one connection until it ends, then closes what is to be closed.
fn pump(direction: Direction, link: &Link, shared: &Shared) {
    let (mut from, mut to) = match direction {
        Direction::Request => (&link.client, &link.server),
        Direction::Answer => (&link.server, &link.client),
    };
    let mut buffer = [0u8; 16 * 1024];
    let mut moved = 0u64;
    while !link.is_closed() {
        // A hanging link does not even read: the sender's window fills up as with a real one.
        if shared.fault(link) == Fault::Hang {
            shared.wait(NOTICE);
            continue;
        }
        let length = match from.read(&mut buffer) {
            Ok(0) => {
                // Half-closed: the other direction may still have an answer to deliver.
                let _ = to.shutdown(Shutdown::Write);
                if direction == Direction::Answer {
                    link.close();
                }
                return;
            }
            Ok(length) => length,
            Err(error) if is_timeout(&error) => continue,
            Err(_) => break,
        };
        let mut piece = &buffer[..length];
        let mut last = false;
        // Asked again after the read: the fault may have been set while the bytes were awaited.
        match (shared.fault(link), direction) {
            (Fault::Delay(delay), _) => std::thread::sleep(delay),
            (Fault::DropResponse, Direction::Answer) => {
                shared.dropped.fetch_add(1, Ordering::SeqCst);
                break;
            }
            (Fault::CutRequestAfter(bytes), Direction::Request)
            | (Fault::CutAnswerAfter(bytes), Direction::Answer) => {
                let left = usize::try_from(bytes.saturating_sub(moved)).unwrap_or(usize::MAX);
                last = piece.len() >= left;
                piece = &piece[..piece.len().min(left)];
            }
            (Fault::Hang, _) => {
                while shared.fault(link) == Fault::Hang && !link.is_closed() {
                    shared.wait(NOTICE);
                }
            }
            _ => {}
        }
        if to.write_all(piece).is_err() {
            break;
        }
        moved += piece.len() as u64;
        if last {
            break;
        }
    }
    link.close();
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted)
}

#[cfg(test)]
mod tests;
