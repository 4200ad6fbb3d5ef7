//! The guarded call of the inner service, as a task that outlives its caller.
//!
//! The guard records an outcome; the caller gets the response itself, cookies and all, over a channel of its
//! own. That channel is read only after the guard has recorded, so no byte leaves before the record is there,
//! and a body that is not kept still reaches the caller as it comes.

use std::panic::{AssertUnwindSafe, resume_unwind};
use std::sync::Arc;

use bytes::Bytes;
use futures_util::FutureExt;
use http::response::Parts;
use http::{Request, Response, StatusCode, header};
use http_body::Body;
use tokio::sync::oneshot;
use tower_service::Service;

use super::body::{EdgeBody, Extent, read};
use super::builder::Shared;
use super::claim::ClaimHandle;
use super::failure::Known;
use super::headers::{kept, strip_ours};
use super::operations::Prepared;
use super::problem::{Code, Problem};
use super::rule::Rule;
use crate::guard::{Attempt, Ended, Execution};
use crate::intent::fingerprint::Fingerprint;
use crate::intent::outcome::{Body as Kept, Outcome};

/// What the caller gets.
pub(super) type Given<R, E> = Result<Response<EdgeBody<R>>, E>;

/// One call to be made once.
pub(super) struct Work<S, Inner, B: Body, R: Body, E> {
    pub(super) shared: Arc<Shared<S>>,
    pub(super) prepared: Arc<Prepared<S>>,
    pub(super) inner: Inner,
    pub(super) request: Request<EdgeBody<B>>,
    pub(super) fingerprint: Fingerprint,
    /// Told when the call begins under a claim.
    pub(super) started: oneshot::Sender<()>,
    pub(super) given: oneshot::Sender<Given<R, E>>,
}

impl<S, Inner, B, R> Work<S, Inner, B, R, Inner::Error>
where
    Inner: Service<Request<EdgeBody<B>>, Response = Response<R>>,
    B: Body<Data = Bytes>,
    R: Body<Data = Bytes>,
{
    pub(super) async fn run(mut self, attempt: Attempt) -> Execution {
        if attempt.epoch.is_some() {
            let _ = self.started.send(());
        }
        let claim = ClaimHandle::new(attempt, self.fingerprint);
        self.request.extensions_mut().insert(claim.clone());
        let (mut inner, request) = (self.inner, self.request);
        let called = AssertUnwindSafe(async move { inner.call(request).await }).catch_unwind().await;
        let (given, execution) = match called {
            Ok(Ok(response)) => {
                let (response, execution) = keep(&self.prepared.rule, &claim, response).await;
                (Ok(response), execution)
            }
            // Between the service and us something broke: what happened behind it is not known, unless the
            // handler has said so before.
            Ok(Err(error)) => (Err(error), broken(claim.known(), &self.shared).1),
            Err(panic) if claim.known().is_none() => resume_unwind(panic),
            Err(_) => {
                let (response, execution) = broken(claim.known(), &self.shared);
                (Ok(response.map(EdgeBody::whole)), execution)
            }
        };
        // The caller may be gone; the outcome is recorded all the same.
        let _ = self.given.send(given);
        execution
    }
}

/// Reads what is to be kept of a response, and puts it together again for the caller.
async fn keep<R: Body<Data = Bytes>>(
    rule: &Rule,
    claim: &ClaimHandle,
    response: Response<R>,
) -> (Response<EdgeBody<R>>, Execution) {
    let (mut parts, body) = response.into_parts();
    let mut ended = rule.failures.judge(claim.known(), &parts);
    strip_ours(&mut parts.headers);
    let headers = kept(&parts.headers, &rule.replay_headers);
    let mut outcome = Outcome {
        code: parts.status.as_u16(),
        headers: headers.clone().unwrap_or_default(),
        body: Kept::NotKept,
    };
    // An answer that is not replayed need not be kept; one with too many headers would not be the same.
    let replayed = matches!(ended, Ended::Completed | Ended::FailedFinal);
    if !replayed || headers.is_none() || is_stream(&parts) {
        let response = Response::from_parts(parts, EdgeBody::untouched(body));
        return (response, Execution { ended, outcome });
    }
    let (extent, body) = read(body, rule.response_bytes_max, Some(rule.response_time_max)).await;
    match extent {
        Extent::Whole => outcome.body = Kept::Kept(body.data().clone()),
        // Trailers have no place in an outcome, and without them (gRPC's status) the body alone would lie.
        Extent::Bound | Extent::Trailers => {}
        // The service broke off in the middle of its answer, like a call that broke.
        Extent::Error => ended = claim.known().map_or(Ended::Unknown, Known::ended),
    }
    (Response::from_parts(parts, body), Execution { ended, outcome })
}

/// A response that is read as it comes, for as long as it comes.
fn is_stream(parts: &Parts) -> bool {
    const STREAMS: [&str; 2] = ["text/event-stream", "multipart/x-mixed-replace"];
    let content_type = parts.headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let essence = content_type.and_then(|value| value.split(';').next()).unwrap_or("").trim();
    parts.status == StatusCode::SWITCHING_PROTOCOLS
        || STREAMS.iter().any(|stream| essence.eq_ignore_ascii_case(stream))
}

/// There is no response, and at most the handler's word on what happened.
fn broken<S>(known: Option<Known>, shared: &Shared<S>) -> (Response<Bytes>, Execution) {
    let (code, detail) = match known {
        Some(Known::Applied) => {
            (Code::AnswerLost, "It took effect; what it answered was lost. It will not be repeated.")
        }
        Some(Known::NotApplied) | None => {
            (Code::AttemptFailed, "The attempt broke off. Retry with the same key.")
        }
    };
    let problem = Problem::new(code, detail).with_status(StatusCode::INTERNAL_SERVER_ERROR);
    let response = problem.response(shared.profile, &shared.types);
    let headers = kept(response.headers(), &[]).unwrap_or_default();
    let body = Kept::Kept(response.body().clone());
    let outcome = Outcome { code: response.status().as_u16(), headers, body };
    (response, Execution { ended: known.map_or(Ended::Unknown, Known::ended), outcome })
}
