//! What a saga's code sees: it asks for steps, and gets their results from the journal or from a call.

use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use serde::de::DeserializeOwned;
use tokio::sync::oneshot;

use super::entry::{Op, StepId};
use super::step::{RunsAfterPivot, RunsBeforePivot, StepType, decode, encode};
use crate::intent::identity::Intent;
use crate::intent::policy::millis;
use crate::outbox::Event;

/// What a saga's code returns.
pub type SagaResult<T> = Result<T, Refused>;

/// Why a saga is undone: a step was refused, or its code refuses. Travels by `?`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{why}")]
pub struct Refused {
    /// In words, or a code of your own.
    pub why: String,
}

impl Refused {
    /// Refuses: everything that happened is undone.
    pub fn new(why: impl fmt::Display) -> Self {
        Self { why: why.to_string() }
    }
}

/// Before the pivot: steps need an undo, and a refusal undoes what happened.
#[derive(Debug)]
pub enum BeforePivot {}
/// After the pivot: nothing is undone any more.
#[derive(Debug)]
pub enum AfterPivot {}

/// One saga, as its code sees it.
///
/// The code may run several times: after a crash, a sleep or a signal it begins anew, and steps that are done answer
/// from the journal. So it must do the same each time: no clock, no random number and no call of its own, only steps.
pub struct Saga<App: ?Sized, Phase = BeforePivot> {
    asks: Arc<Asks>,
    app: Arc<App>,
    phase: PhantomData<fn() -> Phase>,
}

/// What the code asks for.
pub(super) enum Wanted {
    Step { op: Op, input: Bytes },
    Sleep { ms: u64 },
    Signal { timeout_ms: Option<u64> },
}

pub(super) struct Ask {
    pub(super) step: StepId,
    pub(super) wanted: Wanted,
    pub(super) reply: oneshot::Sender<Reply>,
}

pub(super) enum Reply {
    Done(Bytes),
    Refused(Bytes),
    TimedOut,
}

/// Between the code and the task that runs it.
pub(super) struct Asks {
    pub(super) intent: Intent,
    pub(super) version: u32,
    state: Mutex<AskState>,
}

#[derive(Default)]
struct AskState {
    /// How often each name was used: the code asks in the same order each time.
    used: HashMap<String, u32>,
    new: Vec<Ask>,
    /// Published when the saga completes.
    events: Vec<Event>,
    /// What the code did wrong, for people.
    wrong: Option<String>,
}

impl Asks {
    pub(super) fn new(intent: Intent, version: u32) -> Arc<Self> {
        Arc::new(Self { intent, version, state: Mutex::default() })
    }

    fn state(&self) -> MutexGuard<'_, AskState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn take(&self) -> Vec<Ask> {
        std::mem::take(&mut self.state().new)
    }

    pub(super) fn has_new(&self) -> bool {
        !self.state().new.is_empty()
    }

    pub(super) fn events(&self) -> Vec<Event> {
        std::mem::take(&mut self.state().events)
    }

    pub(super) fn wrong(&self) -> Option<String> {
        self.state().wrong.clone()
    }

    fn ask(&self, name: &str, wanted: Wanted) -> oneshot::Receiver<Reply> {
        let (reply, answer) = oneshot::channel();
        let mut state = self.state();
        let used = state.used.entry(name.to_owned()).or_default();
        let nth = *used;
        *used += 1;
        state.new.push(Ask { step: StepId { name: name.to_owned(), nth }, wanted, reply });
        answer
    }

    /// The saga cannot go on: it is parked, and this future never ends.
    async fn stuck<T>(&self, why: String) -> T {
        self.state().wrong.get_or_insert(why);
        std::future::pending().await
    }

    async fn run<S: StepType>(&self, step: &S, op: Op, input: &S::Input) -> SagaResult<S::Output> {
        let name = step.spec().name;
        let input = match encode(input) {
            Ok(input) => input,
            Err(error) => return self.stuck(format!("the input of {name} cannot be encoded: {error}")).await,
        };
        match self.ask(name, Wanted::Step { op, input }).await {
            Ok(Reply::Done(result)) => match decode(&result) {
                Ok(result) => Ok(result),
                Err(error) => self.stuck(format!("the result of {name} cannot be read: {error}")).await,
            },
            Ok(Reply::Refused(why)) => Err(Refused::new(String::from_utf8_lossy(&why))),
            // Parked, or its worker stops: this code is dropped.
            Ok(Reply::TimedOut) | Err(_) => std::future::pending().await,
        }
    }
}

impl<App: ?Sized, Phase> Saga<App, Phase> {
    pub(super) fn new(asks: Arc<Asks>, app: Arc<App>) -> Self {
        Self { asks, app, phase: PhantomData }
    }

    /// The application, for settings that never change. Whatever has an effect is a step.
    pub fn app(&self) -> &App {
        &self.app
    }

    /// The intent it runs for.
    pub fn intent(&self) -> &Intent {
        &self.asks.intent
    }

    /// Whether it began with this version of the definition, or a newer one. A saga keeps the version it began with.
    pub fn since(&self, version: u32) -> bool {
        self.asks.version >= version
    }

    /// Publishes an event when the saga completes, in the commit that ends it: it is appended to the outbox, which is in
    /// the journal's database. A saga that is undone publishes nothing.
    pub fn publish(&self, event: Event) {
        self.asks.state().events.push(event);
    }

    /// Sleeps. Meanwhile nothing of the saga is in memory.
    pub async fn sleep(&self, time: Duration) {
        let wanted = Wanted::Sleep { ms: millis(time) };
        if self.asks.ask(SLEEP, wanted).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Waits for a signal, an approval for example. `None`: the time is over. A signal that came earlier counts; each
    /// counts once.
    pub async fn signal<T: DeserializeOwned>(&self, name: &str, timeout: Option<Duration>) -> Option<T> {
        let wanted = Wanted::Signal { timeout_ms: timeout.map(millis) };
        match self.asks.ask(&signal_step(name), wanted).await {
            Ok(Reply::Done(body)) => match decode(&body) {
                Ok(body) => Some(body),
                Err(error) => self.asks.stuck(format!("the signal {name} cannot be read: {error}")).await,
            },
            Ok(Reply::TimedOut) => None,
            Ok(Reply::Refused(_)) | Err(_) => std::future::pending().await,
        }
    }
}

impl<App: ?Sized> Saga<App, BeforePivot> {
    /// Runs a step, unless the journal has its result. A refusal travels by `?` and undoes the saga; an unknown
    /// result never comes back here: it is looked up, or the saga is parked.
    pub fn run<S: StepType>(
        &self,
        step: S,
        input: S::Input,
    ) -> impl Future<Output = SagaResult<S::Output>> + Send
    where
        S::Undo: RunsBeforePivot,
    {
        let asks = Arc::clone(&self.asks);
        async move { asks.run(&step, Op::Forward, &input).await }
    }

    /// Runs the step after which nothing is undone.
    pub fn pivot<S: StepType>(
        self,
        step: S,
        input: S::Input,
    ) -> impl Future<Output = SagaResult<(S::Output, Saga<App, AfterPivot>)>> + Send
    where
        App: Send + Sync,
    {
        let Self { asks, app, .. } = self;
        async move {
            let result = asks.run(&step, Op::Pivot, &input).await?;
            Ok((result, Saga::new(asks, app)))
        }
    }
}

impl<App: ?Sized> Saga<App, AfterPivot> {
    /// Runs a step. It is tried until it happened; a refusal parks the saga, because nothing can be undone.
    pub fn run<S: StepType>(&self, step: S, input: S::Input) -> impl Future<Output = S::Output> + Send
    where
        S::Undo: RunsAfterPivot,
    {
        let asks = Arc::clone(&self.asks);
        async move {
            match asks.run(&step, Op::Forward, &input).await {
                Ok(result) => result,
                Err(_) => std::future::pending().await,
            }
        }
    }
}

impl<App: ?Sized, Phase> fmt::Debug for Saga<App, Phase> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Saga").field("intent", &self.asks.intent).finish_non_exhaustive()
    }
}

/// The name of sleeps in the journal. No step has it: names have no slash.
pub(super) const SLEEP: &str = "/sleep";

pub(super) fn signal_step(name: &str) -> String {
    format!("/signal/{name}")
}
