//! A client's connection as hyper sees it: read along, and marked.

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

use super::idle_timeout::{Busy, Pulse};
use super::metrics::Counted;
use super::smuggling::{Inspector, Refusal};

/// Read at a time. On the stack: an idle connection holds no buffer.
const PIECE_BYTES: usize = 16 << 10;

/// How long a client may pause before what it still sends is not waited for any more.
const LINGER_IDLE: Duration = Duration::from_secs(5);

/// What hyper answers with 400, and closes.
const REFUSED: &[u8] = b"\0\r\n\r\n";

/// A connection. What is refused is replaced by something that hyper refuses too: so the answer comes in its
/// place, behind the answers to what came before, and the connection is closed.
pub(super) struct Wire {
    stream: TcpStream,
    /// None for HTTP/2, which has frames to tell where things end.
    inspector: Option<Inspector>,
    headers_max: usize,
    pulse: Arc<Pulse>,
    counted: Counted,
    /// What hyper may read.
    readable: Vec<u8>,
    read: usize,
    refused: bool,
    /// Longest that is lingered.
    linger: Duration,
    closing: Closing,
}

/// How far the end of a connection has come.
enum Closing {
    /// It is in use.
    Open,
    /// The way there is closed; what still comes is thrown away.
    Lingers(Box<Lingers>),
    Closed,
}

struct Lingers {
    until: Instant,
    sleep: Pin<Box<Sleep>>,
    /// The connection is not quiet yet.
    _busy: Busy,
}

impl Wire {
    /// A connection of which `begun` was read already.
    pub(super) fn new(
        stream: TcpStream,
        begun: &[u8],
        inspector: Option<Inspector>,
        headers_max: usize,
        linger: Duration,
        pulse: Arc<Pulse>,
        counted: Counted,
    ) -> Self {
        let (readable, read, refused, closing) = (Vec::new(), 0, false, Closing::Open);
        let mut wire =
            Self { stream, inspector, headers_max, pulse, counted, readable, read, refused, linger, closing };
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
                self.pulse.head_begun()
            } else {
                self.pulse.head_whole()
            }
            return;
        };
        self.pulse.head_whole();
        self.counted.wire_refused(refusal);
        self.refused = true;
        match refusal {
            // In the middle of a body there is nothing to answer: it ends too early.
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
    /// The client is in the middle of something, or has sent more than was read.
    fn is_sending(&self) -> bool {
        let between = self.inspector.as_ref().is_none_or(Inspector::is_between);
        self.refused || !between || self.read < self.readable.len()
    }

    /// Reads and throws away what still comes, until the client has closed its side or time is up.
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
            // Not cleared beforehand: that would cost more than the reading.
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
            this.pulse.write_blocked()
        } else {
            this.pulse.write_went_on()
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
            this.pulse.write_blocked()
        } else {
            this.pulse.write_went_on()
        }
        written
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    /// Closes the way there at once, so that the client sees its answer and the end of it. To close the way back while
    /// the client still sends would reset the connection, and the client would lose the answer: most send all of a
    /// request before they read.
    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if let Closing::Open = this.closing {
            ready!(Pin::new(&mut this.stream).poll_shutdown(cx))?;
            this.closing = if this.is_sending() {
                let until = Instant::now() + this.linger;
                let first = (Instant::now() + LINGER_IDLE).min(until);
                let sleep = Box::pin(tokio::time::sleep_until(first));
                Closing::Lingers(Box::new(Lingers { until, sleep, _busy: this.pulse.busy() }))
            } else {
                Closing::Closed
            };
        }
        ready!(this.poll_discard(cx));
        this.closing = Closing::Closed;
        Poll::Ready(Ok(()))
    }
}
