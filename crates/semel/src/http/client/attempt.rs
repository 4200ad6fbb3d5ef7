//! One attempt: sends the request and reads the answer, within the attempt's timeout.

use std::future::poll_fn;
use std::pin::Pin;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body::Body;
use http_body_util::Full;
use tokio::time::{Instant, timeout_at};
use tower_service::Service;

use super::error::BoxError;
use super::response_class::{ResponseClass, Signals};
use super::transport::never_sent;
use crate::http::body::{BufferedBody, Extent};
use crate::in_progress::IN_PROGRESS_BYTES_MAX;

/// Longer than any caller waits, and short enough to be added to any `Instant`.
const TIMEOUT_MAX: Duration = Duration::from_secs(365 * 24 * 3_600);

/// The result of an attempt: a response, an error, or neither.
pub(super) struct Got<R: Body> {
    pub(super) response: Option<Response<BufferedBody<R>>>,
    pub(super) error: Option<BoxError>,
}

impl<R: Body> Got<R> {
    pub(super) fn nothing() -> Self {
        Self { response: None, error: None }
    }

    fn response(response: Response<BufferedBody<R>>) -> Self {
        Self { response: Some(response), error: None }
    }

    fn error(error: impl Into<BoxError>) -> Self {
        Self { response: None, error: Some(error.into()) }
    }
}

pub(super) async fn attempt<S, R>(
    transport: &mut S,
    request: Request<Full<Bytes>>,
    timeout: Duration,
    answer_bytes_max: usize,
    wall: &(dyn Fn() -> SystemTime + Send + Sync),
) -> (ResponseClass, Got<R>)
where
    S: Service<Request<Full<Bytes>>, Response = Response<R>>,
    S::Error: Into<BoxError>,
    R: Body<Data = Bytes>,
    R::Error: Into<BoxError>,
{
    let deadline = Instant::now() + timeout.min(TIMEOUT_MAX);
    match timeout_at(deadline, poll_fn(|cx| transport.poll_ready(cx))).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => return (ResponseClass::NotSent, Got::error(error)),
        Err(_) => return (ResponseClass::NotSent, Got::nothing()),
    }
    let response = match timeout_at(deadline, transport.call(request)).await {
        Ok(Ok(response)) => response,
        Ok(Err(error)) => {
            let error = error.into();
            let seen = if never_sent(&*error) { ResponseClass::NotSent } else { ResponseClass::Lost };
            return (seen, Got::error(error));
        }
        Err(_) => return (ResponseClass::TimedOut, Got::nothing()),
    };
    let (head, body) = response.into_parts();
    let signals =
        |body: &[u8]| ResponseClass::Answer(Signals::read(head.status, &head.headers, body, wall()));
    // Readers of an event stream do not wait for its end.
    if head.status.is_success() && is_event_stream(&head.headers) {
        let seen = signals(&[]);
        return (seen, Got::response(Response::from_parts(head, BufferedBody::untouched(body))));
    }
    let left = deadline.saturating_duration_since(Instant::now());
    let mut body = BufferedBody::untouched(body);
    // The body shows whether a 202 is semel's own.
    let bytes_max = match head.status {
        StatusCode::ACCEPTED => answer_bytes_max.max(IN_PROGRESS_BYTES_MAX),
        _ => answer_bytes_max,
    };
    let extent = body.fill(bytes_max, Some(left)).await;
    match extent {
        Extent::Error => (ResponseClass::Lost, broken(body).await),
        // The bound in time, not the one in bytes: the answer stopped half way.
        Extent::Bound if Instant::now() >= deadline => (ResponseClass::TimedOut, Got::nothing()),
        Extent::Whole | Extent::Trailers | Extent::Bound | Extent::Full => {
            let seen = signals(body.data());
            (seen, Got::response(Response::from_parts(head, body)))
        }
    }
}

fn is_event_stream(headers: &HeaderMap) -> bool {
    let value = headers.get(CONTENT_TYPE).map_or(&[][..], |value| value.as_bytes());
    value.to_ascii_lowercase().starts_with(b"text/event-stream")
}

/// The error that the body ends in.
async fn broken<R>(mut body: BufferedBody<R>) -> Got<R>
where
    R: Body<Data = Bytes>,
    R::Error: Into<BoxError>,
{
    while let Some(frame) = poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {
        if let Err(error) = frame {
            return Got::error(error);
        }
    }
    Got::nothing()
}
