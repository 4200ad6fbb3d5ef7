//! A client's connection as hyper sees it: read along, and marked.

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use hyper::rt::{Read, ReadBufCursor, Write};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use super::metrics::Counted;
use super::pulse::Pulse;
use super::smuggling::{Inspector, Refusal};

/// Read at a time. On the stack: an idle connection holds no buffer.
const PIECE_BYTES: usize = 16 << 10;

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
}

impl Wire {
    /// A connection of which `begun` was read already.
    pub(super) fn new(
        stream: TcpStream,
        begun: &[u8],
        inspector: Option<Inspector>,
        headers_max: usize,
        pulse: Arc<Pulse>,
        counted: Counted,
    ) -> Self {
        let (readable, read, refused) = (Vec::new(), 0, false);
        let mut wire = Self { stream, inspector, headers_max, pulse, counted, readable, read, refused };
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

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }
}
