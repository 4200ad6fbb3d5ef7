//! The tower service: claims, runs and answers a request, or replays the record.

use std::fmt;
use std::future::{Future, pending, ready};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::header::{self, HeaderValue};
use http::{Request, Response};
use http_body::Body;
use tokio::sync::oneshot;
use tokio::time::Instant;
use tower_service::Service;

use super::body::BufferedBody;
use super::builder::Shared;
use super::claim::{ByReference, ClaimHandle, Contract};
use super::classify::{Named, Screened, fingerprint, screen, unread};
use super::inner_call::{Given, Work};
use super::operations::Prepared;
use super::problem::{Code, Problem, RETRY_AFTER};
use super::respond;
use super::rule::Rule;
use crate::crash;
use crate::guard::{Answer, GuardError};
use crate::intent::fingerprint::{Comparison, Fingerprint};
use crate::intent::identity::{Intent, IntentId};
use crate::intent::key::Key;
use crate::intent::outcome::{Outcome, Verdict};
use crate::intent::policy::{InFlight, KeyFormat, StoreDown};
use crate::intent::scope::Scope;
use crate::store::{ErrorKind, Fate, Record, Store, StoreError};
use crate::timeout::within;

/// How long the layer's own reads of the store may take.
const READ_TIME_MAX: Duration = Duration::from_secs(5);

/// Runs a request once and gives every retry of it the same answer. Made by
/// [`IdempotencyLayer`](super::IdempotencyLayer).
pub struct IdempotencyService<Inner, S> {
    inner: Inner,
    shared: Arc<Shared<S>>,
}

impl<Inner, S> IdempotencyService<Inner, S> {
    pub(super) fn new(inner: Inner, shared: Arc<Shared<S>>) -> Self {
        Self { inner, shared }
    }
}

impl<Inner, S, B, R> Service<Request<B>> for IdempotencyService<Inner, S>
where
    S: Store,
    Inner: Service<Request<BufferedBody<B>>, Response = Response<R>> + Clone + Send + 'static,
    Inner::Future: Send + 'static,
    Inner::Error: Send + 'static,
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Send,
    R: Body<Data = Bytes> + Send + 'static,
    R::Error: Send,
{
    type Response = Response<BufferedBody<R>>;
    type Error = Inner::Error;
    type Future = Pin<Box<dyn Future<Output = Given<R, Inner::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Inner::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let (parts, body) = request.into_parts();
        let problem = match screen(&self.shared, &parts) {
            Screened::Guard(named) => {
                // Uses the service that was polled ready, and leaves its clone for the next call.
                let clone = self.inner.clone();
                let inner = std::mem::replace(&mut self.inner, clone);
                let Named { prepared, scope, key } = named;
                let shared = Arc::clone(&self.shared);
                let body = BufferedBody::untouched(body);
                let work = Box::new(Work { shared, prepared, inner, parts, body, started: None });
                return Box::pin(answer(work, scope, key));
            }
            Screened::Pass => {
                let called = self.inner.call(Request::from_parts(parts, BufferedBody::untouched(body)));
                return Box::pin(async move { Ok(called.await?.map(BufferedBody::untouched)) });
            }
            Screened::BadKey(refusal) => Problem::from(refusal),
            Screened::NoScope => {
                let detail = "The tenant of this request could not be determined, so nothing was done.";
                Problem::new(Code::ScopeMissing, detail)
            }
        };
        Box::pin(ready(Ok(self.shared.refuse(&problem))))
    }
}

/// Answers a guarded request. Until the body is read, a client that disconnects leaves nothing behind.
#[expect(clippy::manual_async_fn, reason = "an async function holds its arguments twice")]
fn answer<S, Inner, B, R>(
    mut work: Box<Work<S, Inner, B>>,
    scope: Scope,
    key: Key,
) -> impl Future<Output = Given<R, Inner::Error>> + Send
where
    S: Store,
    Inner: Service<Request<BufferedBody<B>>, Response = Response<R>> + Send + 'static,
    Inner::Future: Send + 'static,
    Inner::Error: Send + 'static,
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Send,
    R: Body<Data = Bytes> + Send + 'static,
    R::Error: Send,
{
    async move {
        let (shared, prepared) = (Arc::clone(&work.shared), Arc::clone(&work.prepared));
        let rule = &prepared.rule;
        work.body.within(&shared.budget);
        let extent = work.body.fill(rule.body_bytes_max, None).await;
        if let Some(problem) = unread(&extent, rule.body_bytes_max) {
            return Ok(shared.refuse(&problem));
        }
        let intent = Intent::new(scope, prepared.guarded.name().clone(), key);
        let name = intent.operation().as_str();
        let fingerprint = fingerprint(&rule.recipe, &work.parts, work.body.data(), name);
        // The answer is for every retry, whatever that one accepts; a layer outside of this one may compress it.
        // Always set, because without the header any coding is acceptable.
        work.parts.headers.insert(header::ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        if prepared.atomic {
            return Box::pin(atomic(work, intent, fingerprint)).await;
        }
        let named = intent.clone();
        let ran = match rule.respond_async_after {
            None => {
                // Boxed as well: the guard's own task stays small, and small boxes cost less than large ones.
                let work = move |attempt| Box::pin(work.run(attempt, fingerprint));
                prepared.guarded.run_with(intent, fingerprint, work).await
            }
            Some(after) => {
                let (started, has_started) = oneshot::channel();
                work.started = Some(started);
                let work = move |attempt| Box::pin(work.run(attempt, fingerprint));
                let run = Box::pin(prepared.guarded.run_with(intent, fingerprint, work));
                tokio::select! {
                    biased;
                    ran = run => ran,
                    // Dropping the run cancels nothing once the work has started.
                    () = Box::pin(started_and_passed(has_started, after)) => {
                        return Ok(shared.accepted(&named.id(), RETRY_AFTER).map(BufferedBody::whole));
                    }
                }
            }
        };
        match ran {
            Ok((answer, _)) if answer.replayed => Ok(shared.replay(&answer.outcome, answer.verdict)),
            Ok((answer, given)) => shared.give(&answer, given),
            Err(GuardError::InFlight { retry_after }) if rule.accept => {
                Ok(shared.accepted(&named.id(), retry_after).map(BufferedBody::whole))
            }
            Err(error) => {
                if let GuardError::StoreUnavailable(error) = &error {
                    tracing::error!(intent = %named.id(), %error, "a request was refused: the store is unavailable");
                }
                Ok(shared.refuse(&Problem::from(&error)))
            }
        }
    }
}

/// The handler claims and finishes in its own transaction.
async fn atomic<S, Inner, B, R>(
    mut work: Box<Work<S, Inner, B>>,
    intent: Intent,
    fingerprint: Fingerprint,
) -> Given<R, Inner::Error>
where
    S: Store,
    Inner: Service<Request<BufferedBody<B>>, Response = Response<R>>,
    B: Body<Data = Bytes>,
    R: Body<Data = Bytes>,
{
    let (shared, prepared) = (Arc::clone(&work.shared), Arc::clone(&work.prepared));
    let policy = &prepared.rule.policy;
    let (asked, mut fine_for) = (Instant::now(), None);
    if policy.key_format != KeyFormat::Any {
        match prepared.guarded.check_key_age(&intent).await {
            Ok(fine) => fine_for = fine,
            Err(error) => return Ok(shared.refuse(&Problem::from(&error))),
        }
    }
    if let Some(response) = shared.read_only(&prepared, &intent, &fingerprint).await {
        return Ok(response);
    }
    let expires = fine_for.and_then(|fine_for| asked.checked_add(fine_for));
    let contract = shared.contract(&prepared.rule, expires);
    work.parts.extensions.insert(ClaimHandle::unclaimed(intent.clone(), fingerprint, contract));
    let called = work.inner.call(Request::from_parts(work.parts, work.body));
    let answered = match policy.timeout {
        None => called.await?,
        Some(limit) => match within(limit, pin!(called)).await {
            Some(answered) => answered?,
            // Its transaction was dropped with it. If it was just being committed, a retry finds the answer.
            None => {
                let error = GuardError::TimedOut { limit, verdict: Verdict::FailedRetryable };
                return Ok(shared.refuse(&Problem::from(&error)));
            }
        },
    };
    // Whatever the handler has committed is committed.
    crash::point(crash::BEFORE_ANSWER);
    let mut answered = answered.map(BufferedBody::untouched);
    // Rebuilt only after the handler's transaction has ended: before that it would need a second connection.
    if let Some(ByReference(verdict, outcome)) = answered.extensions_mut().remove() {
        answered = shared.replay_stored(&prepared, &intent, verdict, outcome).await;
    }
    Ok(answered)
}

async fn started_and_passed(started: oneshot::Receiver<()>, after: Duration) {
    if started.await.is_err() {
        // It never starts: the answer is not a run, and the other branch gives it.
        pending::<()>().await;
    }
    tokio::time::sleep(after).await;
}

impl<S: Store> Shared<S> {
    fn refuse<R: Body<Data = Bytes>>(&self, problem: &Problem) -> Response<BufferedBody<R>> {
        problem.response(self.profile, &self.types).map(BufferedBody::whole)
    }

    fn replay<R: Body<Data = Bytes>>(
        &self,
        outcome: &Outcome,
        verdict: Verdict,
    ) -> Response<BufferedBody<R>> {
        respond::replay(outcome, verdict, self.profile).map(BufferedBody::whole)
    }

    pub(super) fn accepted(&self, id: &IntentId, retry_after: Duration) -> Response<Bytes> {
        let status_url =
            self.status_path.as_ref().map(|status_path| format!("{status_path}/{}", self.tokens.segment(id)));
        respond::accepted(status_url, retry_after)
    }

    /// The first caller gets the response of the service, flagged if it is not stored or ran unguarded.
    fn give<R: Body<Data = Bytes>, E>(
        &self,
        answer: &Answer,
        given: Option<Box<Given<R, E>>>,
    ) -> Given<R, E> {
        let mut response = match given {
            Some(given) => (*given)?,
            // Unreachable: work that ran has a response.
            None => self.replay(&answer.outcome, answer.verdict),
        };
        respond::flag(response.headers_mut(), answer.stored, answer.guarded);
        Ok(response)
    }

    /// The settings that an atomic handler needs.
    fn contract(&self, rule: &Rule, expires: Option<Instant>) -> Contract {
        let wait = match rule.policy.in_flight {
            InFlight::Reject => Duration::ZERO,
            InFlight::Wait(wait) => wait,
        };
        Contract {
            retention: rule.policy.retention,
            lease: rule.policy.lease,
            wait,
            expires,
            rebuild: rule.rebuild.clone(),
            replay_headers: rule.replay_headers.clone(),
            response_bytes_max: rule.response_bytes_max,
            profile: self.profile,
            types: self.types.clone(),
            protection: self.guard.store().protection(),
        }
    }

    /// For atomic operations: the answer that is already known, or `None` if the handler must be called. Its
    /// transaction decides whether it may run; this only saves the call.
    async fn read_only<R: Body<Data = Bytes>>(
        &self,
        prepared: &Prepared<S>,
        intent: &Intent,
        fingerprint: &Fingerprint,
    ) -> Option<Response<BufferedBody<R>>> {
        let (store, id) = (self.guard.store(), intent.id());
        let differs =
            |record: &Record| fingerprint.compare(&record.head.fingerprint) == Comparison::Different;
        let found = if prepared.rule.policy.verify {
            in_time(store.get(id)).await
        } else {
            match in_time(store.get_cached(id)).await {
                // Only the authority refuses a request, never a cache.
                Ok(Some(record)) if differs(&record) => in_time(store.get(id)).await,
                found => found,
            }
        };
        let record = match found {
            Ok(record) => record?,
            Err(_) if prepared.rule.policy.store_down == StoreDown::Open => return None,
            Err(error) => return Some(self.refuse(&Problem::from(&GuardError::StoreUnavailable(error)))),
        };
        if differs(&record) {
            return Some(self.refuse(&Problem::from(&GuardError::Mismatch)));
        }
        let verdict = record.head.state.replayed_as()?;
        let outcome = record.outcome.unwrap_or_else(Outcome::unknown);
        Some(self.replay_stored(prepared, intent, verdict, outcome).await)
    }

    async fn replay_stored<R: Body<Data = Bytes>>(
        &self,
        prepared: &Prepared<S>,
        intent: &Intent,
        verdict: Verdict,
        outcome: Outcome,
    ) -> Response<BufferedBody<R>> {
        match prepared.guarded.replay_stored(intent, verdict, outcome).await {
            Ok(answer) => self.replay(&answer.outcome, verdict),
            Err(error) => self.refuse(&Problem::from(&error)),
        }
    }
}

/// One of the layer's own reads of the store.
pub(super) async fn in_time<T>(read: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
    within(READ_TIME_MAX, pin!(read)).await.unwrap_or_else(|| {
        let message = format!("the store did not answer within {READ_TIME_MAX:?}");
        Err(StoreError::new(ErrorKind::Unavailable, Fate::NotApplied, message))
    })
}

impl<Inner: Clone, S> Clone for IdempotencyService<Inner, S> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), shared: Arc::clone(&self.shared) }
    }
}

impl<Inner: fmt::Debug, S> fmt::Debug for IdempotencyService<Inner, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdempotencyService").field("inner", &self.inner).finish_non_exhaustive()
    }
}
