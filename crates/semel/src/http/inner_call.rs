//! The guarded call of the inner service, as a task that outlives its caller.
//!
//! The guard records an outcome; the caller gets the response itself, with cookies and all, which the guard passes on
//! beside it. It does so only after it has recorded the outcome, so no byte leaves before the record is there. A body
//! that is not kept still streams to the caller.

use std::future::{Future, ready};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::Either;
use http::response::Parts;
use http::{HeaderValue, Request, Response, StatusCode, header};
use http_body::Body;
use tokio::sync::oneshot;
use tower_service::Service;

use super::body::{BufferedBody, Extent};
use super::builder::Shared;
use super::claim::ClaimHandle;
use super::failure::Known;
use super::headers::{IDEMPOTENCY_PROBLEM, kept, strip_ours};
use super::operations::Prepared;
use super::problem::{self, ATTEMPT_FAILED, Code, Problem};
use super::rule::Rule;
use crate::guard::{Attempt, Execution, WorkResult};
use crate::intent::fingerprint::Fingerprint;
use crate::intent::outcome::{Body as Kept, Outcome};

const ANSWER_LOST: &str = "The request took effect, but its answer was lost. It will not run again.";

/// What the caller gets.
pub(super) type Given<R, E> = Result<Response<BufferedBody<R>>, E>;

/// One call to make. On the heap from the start: a request is large to move.
pub(super) struct Work<S, Inner, B: Body> {
    pub(super) shared: Arc<Shared<S>>,
    pub(super) prepared: Arc<Prepared<S>>,
    pub(super) inner: Inner,
    pub(super) parts: http::request::Parts,
    pub(super) body: BufferedBody<B>,
    /// Signals that the call has begun under a claim.
    pub(super) started: Option<oneshot::Sender<()>>,
}

impl<S, Inner, B, R> Work<S, Inner, B>
where
    Inner: Service<Request<BufferedBody<B>>, Response = Response<R>>,
    B: Body<Data = Bytes>,
    R: Body<Data = Bytes>,
{
    /// Makes the call; the returned future waits for the answer.
    pub(super) fn run(
        mut self: Box<Self>,
        attempt: Attempt,
        fingerprint: Fingerprint,
    ) -> impl Future<Output = (Execution, Box<Given<R, Inner::Error>>)> {
        if let Some(started) = self.started.take().filter(|_| attempt.epoch.is_some()) {
            let _ = started.send(());
        }
        let (shared, prepared) = (Arc::clone(&self.shared), Arc::clone(&self.prepared));
        let claim = ClaimHandle::new(attempt, fingerprint);
        self.parts.extensions.insert(claim.clone());
        // Moved out of the box straight into the service.
        let called = catch_unwind(AssertUnwindSafe(move || {
            let Self { mut inner, parts, body, .. } = *self;
            inner.call(Request::from_parts(parts, body))
        }));
        let called = match called {
            Ok(called) => Either::Left(AssertUnwindSafe(called).catch_unwind()),
            Err(panic) => Either::Right(ready(Err(panic))),
        };
        // Not in one async block: that would hold the call twice.
        called.then(|called| async move {
            match called {
                Ok(Ok(response)) => keep(&shared, &prepared.rule, &claim, response).await,
                // Something between the service and the layer broke: the effect is unknown, unless the handler has
                // marked it before.
                Ok(Err(error)) => (broken(claim.known(), &shared).1, Box::new(Err(error))),
                Err(panic) if claim.known().is_none() => resume_unwind(panic),
                Err(_) => {
                    let (response, execution) = broken(claim.known(), &shared);
                    (execution, Box::new(Ok(response.map(BufferedBody::whole))))
                }
            }
        })
    }
}

/// Reads the part of a response that is stored; the caller gets all of it.
fn keep<S, R: Body<Data = Bytes>, E>(
    shared: &Shared<S>,
    rule: &Rule,
    claim: &ClaimHandle,
    response: Response<R>,
) -> impl Future<Output = (Execution, Box<Given<R, E>>)> {
    let (mut parts, body) = response.into_parts();
    let mut result = rule.failures.judge(claim.known(), &parts);
    // Read from the head, so it is known even if the body breaks off.
    let in_headers = Known::from_headers(&parts.headers);
    strip_ours(&mut parts.headers);
    let headers = kept(&parts.headers, &rule.replay_headers);
    // Only replayed answers are stored; one with too many headers could not be replayed the same.
    let replayed = matches!(result, WorkResult::Completed | WorkResult::FailedFinal);
    let whole = replayed && headers.is_some() && !is_stream(&parts);
    let headers = headers.unwrap_or_default();
    let mut outcome = Outcome { code: parts.status.as_u16(), headers, body: Kept::NotKept };
    let mut given = Box::new(Ok(Response::from_parts(parts, BufferedBody::untouched(body))));
    async move {
        if whole && let Ok(response) = &mut *given {
            let body = response.body_mut();
            match body.fill(rule.response_bytes_max, Some(rule.response_time_max)).await {
                Extent::Whole => outcome.body = Kept::Kept(body.data().clone()),
                // An outcome has no trailers, and without them (gRPC's status) the body alone would be wrong.
                Extent::Bound | Extent::Trailers | Extent::Full => {}
                // The service broke off in the middle of its answer: treated like a failed call. No byte of it has
                // left.
                Extent::Error => {
                    let known = claim.known().or(in_headers);
                    result = known.map_or(WorkResult::Unknown, Known::result);
                    tracing::warn!(
                        operation = claim.intent().operation().as_str(),
                        intent = %claim.intent().id(),
                        ?known,
                        "the service's response broke off before its end; the client gets an error instead"
                    );
                    let problem = half_answered(known, rule).response(shared.profile, &shared.types);
                    *response = problem.map(BufferedBody::whole);
                }
            }
        }
        (Execution { result, outcome }, given)
    }
}

/// A response without a known end, such as server-sent events.
fn is_stream(parts: &Parts) -> bool {
    const STREAMS: [&[u8]; 2] = [b"text/event-stream", b"multipart/x-mixed-replace"];
    let content_type = parts.headers.get(header::CONTENT_TYPE).map_or(&[][..], HeaderValue::as_bytes);
    let is = |stream: &[u8]| {
        let essence = content_type.trim_ascii_start().split_at_checked(stream.len());
        essence.is_some_and(|(essence, rest)| {
            essence.eq_ignore_ascii_case(stream)
                && matches!(rest.trim_ascii_start().first(), None | Some(b';'))
        })
    };
    parts.status == StatusCode::SWITCHING_PROTOCOLS || STREAMS.into_iter().any(is)
}

/// The problem that the caller gets instead of half an answer.
fn half_answered(known: Option<Known>, rule: &Rule) -> Problem {
    let problem = match known {
        Some(Known::Applied) => Problem::new(Code::AnswerLost, ANSWER_LOST),
        Some(Known::NotApplied) => Problem::new(Code::AttemptFailed, ATTEMPT_FAILED),
        None => {
            let settles_in = rule.lookup.as_ref().map(|_| rule.policy.settle);
            problem::broken(WorkResult::Unknown.verdict(rule.policy.effect), settles_in)
        }
    };
    problem.with_status(StatusCode::BAD_GATEWAY)
}

/// There is no response; at most the handler has marked what happened.
fn broken<S>(known: Option<Known>, shared: &Shared<S>) -> (Response<Bytes>, Execution) {
    let (code, detail) = match known {
        Some(Known::Applied) => (Code::AnswerLost, ANSWER_LOST),
        Some(Known::NotApplied) | None => (Code::AttemptFailed, ATTEMPT_FAILED),
    };
    let problem = Problem::new(code, detail).with_status(StatusCode::INTERNAL_SERVER_ERROR);
    let response = problem.response(shared.profile, &shared.types);
    // With its code, as a client that reads only the beginning of a body needs it in a replay, too.
    let headers = kept(response.headers(), &[IDEMPOTENCY_PROBLEM]).unwrap_or_default();
    let body = Kept::Kept(response.body().clone());
    let outcome = Outcome { code: response.status().as_u16(), headers, body };
    (response, Execution { result: known.map_or(WorkResult::Unknown, Known::result), outcome })
}
