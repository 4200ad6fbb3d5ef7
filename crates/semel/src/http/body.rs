//! Bodies: read up to a bound, passed on unchanged.

use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body, Frame, SizeHint};
use tokio::time::Instant;

use super::budget::{AHEAD_BYTES, Budget, Taken};

/// A body whose beginning, or all of it, may have been read already. Its reader gets the same bytes and trailers as
/// without the layer.
pub struct BufferedBody<B: Body> {
    /// What was read.
    data: Bytes,
    trailers: Option<HeaderMap>,
    /// The error that ended reading; the next reader gets it at the same position.
    error: Option<B::Error>,
    /// What was not read yet.
    rest: Option<Pin<Box<B>>>,
    /// Its share of the layer's budget, for the body of a request.
    taken: Option<Taken>,
}

impl<B: Body<Data = Bytes>> BufferedBody<B> {
    /// A body of which nothing was read.
    pub(crate) fn untouched(body: B) -> Self {
        let rest = (!body.is_end_stream()).then(|| Box::pin(body));
        Self { data: Bytes::new(), trailers: None, error: None, rest, taken: None }
    }

    /// A body of these bytes.
    pub(super) fn whole(data: Bytes) -> Self {
        Self { data, trailers: None, error: None, rest: None, taken: None }
    }

    /// From now on bytes are taken from this budget before they are read.
    pub(super) fn within(&mut self, budget: &Arc<Budget>) {
        self.taken = self.rest.is_some().then(|| budget.open());
    }
}

impl<B: Body<Data = Bytes>> Body for BufferedBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let this = self.get_mut();
        if !this.data.is_empty() {
            return Poll::Ready(Some(Ok(Frame::data(std::mem::take(&mut this.data)))));
        }
        if let Some(error) = this.error.take() {
            return Poll::Ready(Some(Err(error)));
        }
        match &mut this.rest {
            Some(rest) => rest.as_mut().poll_frame(cx),
            None => Poll::Ready(this.trailers.take().map(|trailers| Ok(Frame::trailers(trailers)))),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.data.is_empty()
            && self.error.is_none()
            && self.trailers.is_none()
            && self.rest.as_ref().is_none_or(|rest| rest.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        let read = self.data.len() as u64;
        let rest = match &self.rest {
            Some(rest) => rest.size_hint(),
            None if self.error.is_none() => SizeHint::with_exact(0),
            None => SizeHint::default(),
        };
        let mut hint = SizeHint::default();
        hint.set_lower(rest.lower().saturating_add(read));
        if let Some(upper) = rest.upper().and_then(|upper| upper.checked_add(read)) {
            hint.set_upper(upper);
        }
        hint
    }
}

// Only the box inside is ever pinned.
impl<B: Body> Unpin for BufferedBody<B> {}

impl<B: Body<Data = Bytes>> fmt::Debug for BufferedBody<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BufferedBody").field("size", &self.size_hint()).finish_non_exhaustive()
    }
}

/// How far the body was read.
pub(crate) enum Extent {
    /// To the end, without trailers.
    Whole,
    /// To the end, with trailers.
    Trailers,
    /// To the bound, in bytes or in time.
    Bound,
    /// Until the budget was used up, if there is one.
    Full,
    /// To an error.
    Error,
}

impl<B: Body<Data = Bytes>> BufferedBody<B> {
    /// Reads until the end, an error, more than `bytes_max`, `time_max` has passed, or the budget is used up. The next
    /// reader gets what was read first, so nothing is lost.
    pub(crate) async fn fill(&mut self, bytes_max: usize, time_max: Option<Duration>) -> Extent {
        let Some(rest) = &mut self.rest else { return Extent::Whole };
        if rest.size_hint().lower() > u64::try_from(bytes_max).unwrap_or(u64::MAX) {
            return Extent::Bound;
        }
        let upper = rest.size_hint().upper().and_then(|upper| usize::try_from(upper).ok());
        let most = upper.map_or(bytes_max, |upper| upper.min(bytes_max));
        let mut deadline = None;
        let mut more = Vec::new();
        let extent = loop {
            if let Some(taken) = &mut self.taken {
                let ahead = (self.data.len() + more.len()).saturating_add(AHEAD_BYTES).min(most);
                if !taken.cover(ahead, most) {
                    break Extent::Full;
                }
            }
            let next = poll_fn(|cx| Poll::Ready(rest.as_mut().poll_frame(cx))).await;
            let next = match (next, time_max) {
                (Poll::Ready(next), _) => next,
                (Poll::Pending, None) => poll_fn(|cx| rest.as_mut().poll_frame(cx)).await,
                // Most answers are ready at once, and need no clock.
                (Poll::Pending, Some(time_max)) => {
                    let deadline = *deadline.get_or_insert_with(|| Instant::now() + time_max);
                    let next = poll_fn(|cx| rest.as_mut().poll_frame(cx));
                    match Box::pin(tokio::time::timeout_at(deadline, next)).await {
                        Ok(next) => next,
                        Err(_) => break Extent::Bound,
                    }
                }
            };
            match next {
                None => break Extent::Whole,
                Some(Err(error)) => {
                    self.error = Some(error);
                    break Extent::Error;
                }
                Some(Ok(frame)) => match frame.into_data() {
                    // Most bodies are one frame, which is taken without a copy.
                    Ok(data) if self.data.is_empty() => self.data = data,
                    Ok(data) => more.extend_from_slice(&data),
                    Err(frame) => {
                        self.trailers = frame.into_trailers().ok();
                        break Extent::Trailers;
                    }
                },
            }
            if self.data.len() + more.len() > bytes_max {
                break Extent::Bound;
            }
            // Most bodies know that nothing follows, and need not be polled again.
            if rest.is_end_stream() {
                break Extent::Whole;
            }
        };
        if !more.is_empty() {
            self.data = [&*self.data, &more].concat().into();
        }
        if let Some(taken) = &mut self.taken {
            taken.shrink(self.data.len());
        }
        if !matches!(extent, Extent::Bound | Extent::Full) {
            self.rest = None;
        }
        extent
    }

    /// What was read of it.
    pub(crate) fn data(&self) -> &Bytes {
        &self.data
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    /// Frames as a peer sends them.
    struct Sent(VecDeque<Result<Frame<Bytes>, &'static str>>);

    impl Body for Sent {
        type Data = Bytes;
        type Error = &'static str;
        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, &'static str>>> {
            Poll::Ready(self.0.pop_front())
        }
    }

    fn sent(chunks: &[&'static str]) -> Sent {
        Sent(chunks.iter().map(|chunk| Ok(Frame::data(Bytes::from_static(chunk.as_bytes())))).collect())
    }

    async fn drained(mut body: BufferedBody<Sent>) -> (Vec<u8>, Option<HeaderMap>, Option<&'static str>) {
        let (mut bytes, mut trailers, mut error) = (Vec::new(), None, None);
        while let Some(next) = poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {
            match next.map(Frame::into_data) {
                Ok(Ok(data)) => bytes.extend_from_slice(&data),
                Ok(Err(frame)) => trailers = frame.into_trailers().ok(),
                Err(e) => error = Some(e),
            }
        }
        (bytes, trailers, error)
    }

    async fn read<B: Body<Data = Bytes>>(
        body: B,
        bytes_max: usize,
        time_max: Option<Duration>,
    ) -> (Extent, BufferedBody<B>) {
        let mut body = BufferedBody::untouched(body);
        (body.fill(bytes_max, time_max).await, body)
    }

    #[tokio::test]
    async fn the_bound_is_exact_and_nothing_is_lost_at_it() {
        for (bytes_max, whole) in [(5, false), (6, true), (7, true)] {
            let (extent, body) = read(sent(&["ab", "", "cd", "ef"]), bytes_max, None).await;
            assert_eq!(matches!(extent, Extent::Whole), whole, "{bytes_max}");
            assert_eq!(body.size_hint().exact(), whole.then_some(6));
            assert_eq!(drained(body).await, (b"abcdef".to_vec(), None, None));
        }
    }

    #[tokio::test]
    async fn trailers_and_errors_come_where_they_came() {
        let mut with_trailers = sent(&["ab"]);
        let mut trailers = HeaderMap::new();
        trailers.insert("x-sum", 7.into());
        with_trailers.0.push_back(Ok(Frame::trailers(trailers.clone())));
        let (extent, body) = read(with_trailers, 10, None).await;
        assert!(matches!(extent, Extent::Trailers) && !body.is_end_stream());
        assert_eq!(drained(body).await, (b"ab".to_vec(), Some(trailers), None));

        let mut broken = sent(&["ab"]);
        broken.0.push_back(Err("reset"));
        let (extent, body) = read(broken, 10, None).await;
        assert!(matches!(extent, Extent::Error) && !body.is_end_stream());
        assert_eq!(body.size_hint().exact(), None);
        assert_eq!(drained(body).await, (b"ab".to_vec(), None, Some("reset")));
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_without_end_stops_at_its_time() {
        struct Endless(u32);
        impl Body for Endless {
            type Data = Bytes;
            type Error = &'static str;
            fn poll_frame(
                mut self: Pin<&mut Self>,
                _: &mut Context<'_>,
            ) -> Poll<Option<Result<Frame<Bytes>, &'static str>>> {
                self.0 += 1;
                if self.0 == 1 { Poll::Ready(Some(Ok(Frame::data("a".into())))) } else { Poll::Pending }
            }
        }
        let (extent, body) = read(Endless(0), 10, Some(Duration::from_secs(5))).await;
        assert!(matches!(extent, Extent::Bound) && body.rest.is_some());
        assert_eq!(body.data(), "a");
    }
}
