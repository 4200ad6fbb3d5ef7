//! A response's body that may break off.

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};

/// Chunks, and what they end in.
#[derive(Debug, Default)]
pub(super) struct Chunks {
    data: VecDeque<Bytes>,
    breaks: bool,
}

impl Chunks {
    pub(super) fn whole(data: impl Into<Bytes>) -> Self {
        Self { data: VecDeque::from([data.into()]), breaks: false }
    }

    /// Half of it, then an error.
    pub(super) fn broken(data: &Bytes) -> Self {
        Self { data: VecDeque::from([data.slice(..data.len() / 2)]), breaks: true }
    }
}

impl Body for Chunks {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        if let Some(data) = self.data.pop_front() {
            return Poll::Ready(Some(Ok(Frame::data(data))));
        }
        let breaks = std::mem::take(&mut self.breaks);
        Poll::Ready(breaks.then(|| Err(io::Error::from(io::ErrorKind::ConnectionReset))))
    }

    fn is_end_stream(&self) -> bool {
        self.data.is_empty() && !self.breaks
    }

    fn size_hint(&self) -> SizeHint {
        match self.breaks {
            true => SizeHint::default(),
            false => SizeHint::with_exact(self.data.iter().map(|chunk| chunk.len() as u64).sum()),
        }
    }
}
