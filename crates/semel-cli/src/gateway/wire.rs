//! A client connection as hyper sees it: its bytes are inspected, and its activity is recorded.

use std::future::Future;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use hyper::rt::{Read, ReadBufCursor, Write};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep};

use super::idle_timeout::{Activity, Busy};
use super::metrics::Counted;
use super::smuggling::{Inspector, Refusal};

/// Bytes read at a time. On the stack, so an idle connection has no buffer.
const PIECE_BYTES: usize = 16 << 10;

/// How long a client may pause while its remaining bytes are discarded.
const LINGER_IDLE: Duration = Duration::from_secs(5);

/// Bytes that make hyper answer with 400 and close.
const REFUSED: &[u8] = b"\0\r\n\r\n";

/// A connection. A refused request is replaced by one that hyper refuses too: so its answer comes in order, after the
/// answers to earlier requests, and the connection is closed.
pub(super) struct Wire {
    stream: TcpStream,
    /// None for HTTP/2, whose frames delimit messages.
    inspector: Option<Inspector>,
    headers_max: usize,
    activity: Arc<Activity>,
    counted: Counted,
    /// Inspected bytes that hyper may read.
    readable: Vec<u8>,
    read: usize,
    refused: bool,
    /// The longest time to linger.
    linger: Duration,
    closing: Closing,
}

/// The shutdown state of a connection.
enum Closing {
    /// It is in use.
    Open,
    /// Our sending side is closed; what the client still sends is discarded.
    Lingers(Box<Lingers>),
    Closed,
}

struct Lingers {
    until: Instant,
    sleep: Pin<Box<Sleep>>,
    /// Keeps the connection busy.
    _busy: Busy,
}

impl Wire {
    /// A connection of which `begun` has already been read.
    pub(super) fn new(
        stream: TcpStream,
        begun: &[u8],
        inspector: Option<Inspector>,
        headers_max: usize,
        linger: Duration,
        activity: Arc<Activity>,
        counted: Counted,
    ) -> Self {
        let (readable, read, refused, closing) = (Vec::new(), 0, false, Closing::Open);
        let mut wire = Self {
            stream,
            inspector,
            headers_max,
            activity,
            counted,
            readable,
            read,
            refused,
            linger,
            closing,
        };
        wire.take(begun);
        wire
    }

    fn take(&mut self, bytes: &[u8]) {
        self.readable.reserve(bytes.len());
        let Some(inspector) = &mut self.inspector else {
            self.readable.extend_from_slice(bytes);
            return;
        };
        let Err(refusal) = inspector.feed(bytes, &mut self.readable) else {
            if inspector.is_in_head() {
                self.activity.head_begun()
            } else {
                self.activity.head_whole()
            }
            return;
        };
        self.activity.head_whole();
        self.counted.wire_refused(refusal);
        self.refused = true;
        match refusal {
            // In the middle of a body no answer is possible: the body ends early.
            Refusal::Chunk => {}
            Refusal::TooLarge => {
                self.readable.extend_from_slice(b"GET / HTTP/1.1\r\n");
                self.readable.extend_from_slice(&b"a: b\r\n".repeat(self.headers_max + 1));
                self.readable.extend_from_slice(b"\r\n");
            }
            _ => self.readable.extend_from_slice(REFUSED),
        }
    }
}

impl Wire {
    /// The client is in the middle of a request, or has sent more than was read.
    fn is_sending(&self) -> bool {
        let between = self.inspector.as_ref().is_none_or(Inspector::is_between);
        self.refused || !between || self.read < self.readable.len()
    }

    /// Reads and discards what the client still sends, until it closes its side or time is up.
    fn poll_discard(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Closing::Lingers(lingers) = &mut self.closing else { return Poll::Ready(()) };
        loop {
            if lingers.sleep.as_mut().poll(cx).is_ready() {
                return Poll::Ready(());
            }
            let mut piece = [MaybeUninit::uninit(); PIECE_BYTES];
            let mut into = ReadBuf::uninit(&mut piece);
            match ready!(Pin::new(&mut self.stream).poll_read(cx, &mut into)) {
                Ok(()) if !into.filled().is_empty() => {
                    let next = (Instant::now() + LINGER_IDLE).min(lingers.until);
                    lingers.sleep.as_mut().reset(next);
                }
                _ => return Poll::Ready(()),
            }
        }
    }
}

impl Read for Wire {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        mut buf: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        loop {
            let left = &this.readable[this.read..];
            if !left.is_empty() {
                let taken = left.len().min(buf.remaining());
                buf.put_slice(&left[..taken]);
                this.read += taken;
                if this.read == this.readable.len() {
                    (this.readable, this.read) = (Vec::new(), 0);
                }
                return Poll::Ready(Ok(()));
            }
            if this.refused {
                return Poll::Ready(Ok(()));
            }
            // Not zeroed: that would cost more than the read itself.
            let mut piece = [MaybeUninit::uninit(); PIECE_BYTES];
            let mut into = ReadBuf::uninit(&mut piece);
            ready!(Pin::new(&mut this.stream).poll_read(cx, &mut into))?;
            match into.filled() {
                [] => return Poll::Ready(Ok(())),
                came => this.take(came),
            }
        }
    }
}

impl Write for Wire {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.stream).poll_write(cx, buf);
        if written.is_pending() {
            this.activity.write_blocked()
        } else {
            this.activity.write_went_on()
        }
        written
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.stream).poll_write_vectored(cx, bufs);
        if written.is_pending() {
            this.activity.write_blocked()
        } else {
            this.activity.write_went_on()
        }
        written
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    /// Closes our sending side at once, so that the client sees the end of its answer. Closing the receiving side while
    /// the client still sends would reset the connection, and the client would lose the answer: most send a whole
    /// request before they read.
    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if let Closing::Open = this.closing {
            ready!(Pin::new(&mut this.stream).poll_shutdown(cx))?;
            this.closing = if this.is_sending() {
                let until = Instant::now() + this.linger;
                let first = (Instant::now() + LINGER_IDLE).min(until);
                let sleep = Box::pin(tokio::time::sleep_until(first));
                Closing::Lingers(Box::new(Lingers { until, sleep, _busy: this.activity.busy() }))
            } else {
                Closing::Closed
            };
        }
        ready!(this.poll_discard(cx));
        this.closing = Closing::Closed;
        Poll::Ready(Ok(()))
    }
}
