//! The service: an admitted request is claimed, run and answered, or answered from the record.

use std::fmt;
use std::future::{Future, pending};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use tokio::sync::oneshot;
use tower_service::Service;

use super::admit::{Admitted, admit};
use super::body::EdgeBody;
use super::builder::{Shared, is_safe};
use super::claim::{ClaimHandle, Contract};
use super::operations::Prepared;
use super::problem::{Problem, RETRY_AFTER};
use super::respond;
use super::rule::Rule;
use super::work::{Given, Work};
use crate::crash;
use crate::guard::{Answer, GuardError};
use crate::intent::fingerprint::{Comparison, Fingerprint};
use crate::intent::identity::{Intent, IntentId};
use crate::intent::outcome::{Outcome, Verdict};
use crate::intent::policy::{InFlight, StoreDown};
use crate::intent::state::State;
use crate::store::{ErrorKind, Fate, Store, StoreError};

/// How long the layer's own reads of the store may take.
const READ_TIME_MAX: Duration = Duration::from_secs(5);

/// Answers a request once, and every retry of it the same. Made by
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
    Inner: Service<Request<EdgeBody<B>>, Response = Response<R>> + Clone + Send + 'static,
    Inner::Future: Send + 'static,
    Inner::Error: Send + 'static,
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Send,
    R: Body<Data = Bytes> + Send + 'static,
    R::Error: Send,
{
    type Response = Response<EdgeBody<R>>;
    type Error = Inner::Error;
    type Future = Pin<Box<dyn Future<Output = Given<R, Inner::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Inner::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        if is_safe(request.method()) {
            let called = self.inner.call(request.map(EdgeBody::untouched));
            return Box::pin(async move { Ok(called.await?.map(EdgeBody::untouched)) });
        }
        // The one that was polled ready is used; the next call gets to ready its clone.
        let clone = self.inner.clone();
        let inner = std::mem::replace(&mut self.inner, clone);
        Box::pin(answer(Arc::clone(&self.shared), inner, request))
    }
}

async fn answer<S, Inner, B, R>(
    shared: Arc<Shared<S>>,
    mut inner: Inner,
    request: Request<B>,
) -> Given<R, Inner::Error>
where
    S: Store,
    Inner: Service<Request<EdgeBody<B>>, Response = Response<R>> + Send + 'static,
    Inner::Future: Send + 'static,
    Inner::Error: Send + 'static,
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Send,
    R: Body<Data = Bytes> + Send + 'static,
    R::Error: Send,
{
    let (prepared, intent, fingerprint, mut request) = match admit(&shared, request).await {
        Admitted::Pass(request) => return Ok(inner.call(request).await?.map(EdgeBody::untouched)),
        Admitted::Refused(problem) => return Ok(shared.refuse(&problem)),
        Admitted::Guard { prepared, intent, fingerprint, request } => {
            (prepared, intent, fingerprint, request)
        }
    };
    if prepared.atomic {
        return match shared.read_only(&prepared, &intent, &fingerprint).await {
            Some(response) => Ok(response),
            None => {
                let contract = shared.contract(&prepared.rule);
                let claim = ClaimHandle::unclaimed(intent, fingerprint, contract);
                request.extensions_mut().insert(claim);
                let answered = inner.call(request).await?.map(EdgeBody::untouched);
                // Whatever the handler has committed is committed.
                crash::point(crash::BEFORE_ANSWER);
                Ok(answered)
            }
        };
    }
    let (given, taken) = oneshot::channel();
    let (started, has_started) = oneshot::channel();
    let (id, rule) = (intent.id(), &prepared.rule);
    let (ours, operation) = (Arc::clone(&shared), Arc::clone(&prepared));
    // Boxed, because the guard hands it on from one future to the next; a request is large to move.
    let work =
        Box::new(Work { shared: ours, prepared: operation, inner, request, fingerprint, started, given });
    let work = move |attempt| Box::pin((*work).run(attempt));
    let run = Box::pin(prepared.guarded.run(intent, fingerprint, work));
    let ran = match rule.respond_async_after {
        None => run.await,
        Some(after) => tokio::select! {
            biased;
            ran = run => ran,
            // Dropping the run cancels nothing once the work has started.
            () = started_and_passed(has_started, after) => {
                return Ok(shared.accepted(&id, RETRY_AFTER).map(EdgeBody::whole));
            }
        },
    };
    match ran {
        Ok(answer) if answer.replayed => Ok(shared.replay(&answer.outcome, answer.verdict)),
        Ok(answer) => shared.give(answer, taken),
        Err(GuardError::InFlight { retry_after }) if rule.accept => {
            Ok(shared.accepted(&id, retry_after).map(EdgeBody::whole))
        }
        Err(error) => {
            if let GuardError::StoreUnavailable(error) = &error {
                tracing::error!(intent = %id, %error, "a request was refused: the store cannot be asked");
            }
            Ok(shared.refuse(&Problem::from(&error)))
        }
    }
}

async fn started_and_passed(started: oneshot::Receiver<()>, after: Duration) {
    if started.await.is_err() {
        // It never will: something else than a run is the answer, and that comes by itself.
        pending::<()>().await;
    }
    tokio::time::sleep(after).await;
}

impl<S: Store> Shared<S> {
    fn refuse<R: Body<Data = Bytes>>(&self, problem: &Problem) -> Response<EdgeBody<R>> {
        problem.response(self.profile, &self.types).map(EdgeBody::whole)
    }

    fn replay<R: Body<Data = Bytes>>(&self, outcome: &Outcome, verdict: Verdict) -> Response<EdgeBody<R>> {
        respond::replay(outcome, verdict, self.profile).map(EdgeBody::whole)
    }

    pub(super) fn accepted(&self, id: &IntentId, retry_after: Duration) -> Response<Bytes> {
        respond::accepted(self.status_at.as_deref(), id, retry_after)
    }

    /// The first caller gets the response as the service gave it, with what could not be done for it.
    fn give<R: Body<Data = Bytes>, E>(
        &self,
        answer: Answer,
        mut taken: oneshot::Receiver<Given<R, E>>,
    ) -> Given<R, E> {
        let mut response = match taken.try_recv() {
            Ok(given) => given?,
            // The work gives before it returns; this is for a reader's peace of mind only.
            Err(_) => self.replay(&answer.outcome, answer.verdict),
        };
        respond::flag(response.headers_mut(), answer.stored, answer.guarded);
        Ok(response)
    }

    /// What an atomic handler's answers have to follow.
    fn contract(&self, rule: &Rule) -> Contract {
        let wait = match rule.policy.in_flight {
            InFlight::Reject => Duration::ZERO,
            InFlight::Wait(wait) => wait,
        };
        Contract {
            retention: rule.policy.retention,
            wait,
            replay_headers: rule.replay_headers.clone(),
            response_bytes_max: rule.response_bytes_max,
            profile: self.profile,
            types: self.types.clone(),
        }
    }

    /// For atomic operations: what is known already, or `None` when the handler is to be called. Whether it may
    /// run is decided in its transaction, so all this may do is save it the work.
    async fn read_only<R: Body<Data = Bytes>>(
        &self,
        prepared: &Prepared<S>,
        intent: &Intent,
        fingerprint: &Fingerprint,
    ) -> Option<Response<EdgeBody<R>>> {
        let (store, id) = (self.guard.store(), intent.id());
        let found = if prepared.rule.policy.verify {
            in_time(store.get(id)).await
        } else {
            in_time(store.look(id)).await
        };
        let record = match found {
            Ok(record) => record?,
            Err(_) if prepared.rule.policy.store_down == StoreDown::Open => return None,
            Err(error) => return Some(self.refuse(&Problem::from(&GuardError::StoreUnavailable(error)))),
        };
        if fingerprint.compare(&record.head.fingerprint) == Comparison::Different {
            return Some(self.refuse(&Problem::from(&GuardError::Mismatch)));
        }
        let verdict = match record.head.state {
            State::Completed => Verdict::Completed,
            State::FailedFinal => Verdict::FailedFinal,
            State::InProgress | State::FailedRetryable | State::Uncertain => return None,
        };
        let outcome = record.outcome.unwrap_or_else(Outcome::unknown);
        Some(match prepared.guarded.given_again(intent, verdict, outcome).await {
            Ok(answer) => self.replay(&answer.outcome, verdict),
            Err(error) => self.refuse(&Problem::from(&error)),
        })
    }
}

/// One of the layer's own reads of the store.
pub(super) async fn in_time<T>(read: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
    tokio::time::timeout(READ_TIME_MAX, read).await.unwrap_or_else(|_| {
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
