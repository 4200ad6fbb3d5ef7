//! Bodies while they are forwarded, with an idle timeout and a progress count.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body::{Body, Frame, SizeHint};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use tokio::time::{Instant, Sleep};

pub(super) type BoxError = Box<dyn std::error::Error + Send + Sync>;
/// Any body that is forwarded.
pub(super) type Payload = UnsyncBoxBody<Bytes, BoxError>;

/// A body of these bytes.
pub(super) fn whole(bytes: impl Into<Bytes>) -> Payload {
    Full::new(bytes.into()).map_err(|never| match never {}).boxed_unsync()
}

/// Reads a whole body of at most `bytes_max`.
pub(super) async fn collected(mut body: Payload, bytes_max: usize) -> Result<Bytes, BoxError> {
    let mut all = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame?.into_data() else { continue };
        if all.len() + data.len() > bytes_max {
            return Err(format!("it is longer than {bytes_max} bytes").into());
        }
        all.extend_from_slice(&data);
    }
    Ok(all.freeze())
}

/// The idle timeout of a body has passed.
#[derive(Debug)]
pub(super) struct BodyIdle(Duration);

impl fmt::Display for BodyIdle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no part of the body arrived for {:?}", self.0)
    }
}

impl std::error::Error for BodyIdle {}

/// Progress of a request's body, read by the task that waits for the answer.
#[derive(Clone, Default, Debug)]
pub(super) struct Progress(Arc<ProgressState>);

#[derive(Default, Debug)]
struct ProgressState {
    frames: AtomicU64,
    failed: AtomicBool,
}

impl Progress {
    pub(super) fn frames(&self) -> u64 {
        self.0.frames.load(Ordering::Relaxed)
    }

    /// The sender aborted, not the reader.
    pub(super) fn failed(&self) -> bool {
        self.0.failed.load(Ordering::Relaxed)
    }
}

/// A body that fails after an idle timeout and counts its progress. It may own a guard that is dropped with it.
pub(super) struct Watched<B, H = ()> {
    body: B,
    idle_max: Option<Duration>,
    sleep: Option<Pin<Box<Sleep>>>,
    progress: Progress,
    _guard: H,
}

impl<B, H> Watched<B, H> {
    pub(super) fn new(body: B, idle_max: Option<Duration>, progress: Progress, guard: H) -> Self {
        Self { body, idle_max, sleep: None, progress, _guard: guard }
    }
}

impl<B, H> Body for Watched<B, H>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<BoxError>,
    H: Unpin,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = self.get_mut();
        let Poll::Ready(next) = Pin::new(&mut this.body).poll_frame(cx) else {
            let Some(idle_max) = this.idle_max else { return Poll::Pending };
            let sleep = this.sleep.get_or_insert_with(|| Box::pin(tokio::time::sleep(idle_max)));
            ready!(sleep.as_mut().poll(cx));
            this.progress.0.failed.store(true, Ordering::Relaxed);
            return Poll::Ready(Some(Err(Box::new(BodyIdle(idle_max)))));
        };
        if let (Some(sleep), Some(idle_max)) = (&mut this.sleep, this.idle_max) {
            sleep.as_mut().reset(Instant::now() + idle_max);
        }
        this.progress.0.frames.fetch_add(1, Ordering::Relaxed);
        if matches!(next, Some(Err(_))) {
            this.progress.0.failed.store(true, Ordering::Relaxed);
        }
        Poll::Ready(next.map(|next| next.map_err(Into::into)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
