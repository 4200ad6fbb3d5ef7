//! Sagas of one process: registered, started, and asked for.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::{OwnedSemaphorePermit, oneshot};
use tokio::time::Instant;
use tracing::Instrument;

use super::definition::{AnyDefinition, Definition, DefinitionError};
use super::engine::{Engine, Waiter};
use super::journal::{
    BODY_BYTES_MAX, Journal, Loaded, NewSaga, SIGNAL_ID_BYTES_MAX, SagaChange, SagaFilter, SagaNumber,
    SagaRecord, SagaStarted, Signal, Signalled, TakenSaga,
};
use super::metrics::SagaMetrics;
use super::options::SagaOptions;
use super::protect::is_protected;
use super::run::Left;
use super::spec::{NAME_BYTES_MAX, is_name};
use super::state::{ParkReason, RowAnswer, RowEvent, Status, UndoCause};
use super::step::{decode, encode};
use crate::backoff::spread;
use crate::crash::{AFTER_SAGA_START, point};
use crate::guard::{CurrentRuntime, Spawn};
use crate::intent::fingerprint::{Comparison, FingerprintError, Recipe};
use crate::intent::identity::{Intent, Operation};
use crate::intent::key::Key;
use crate::intent::policy::millis;
use crate::intent::scope::Scope;
use crate::store::StoreError;

/// How often a caller asks the journal about a saga that runs elsewhere.
const ASK_INTERVAL: Duration = Duration::from_millis(500);

/// Sagas of one application, before they start.
pub struct SagasBuilder<App: ?Sized> {
    journal: Arc<dyn Journal>,
    app: Arc<App>,
    definitions: BTreeMap<String, Arc<dyn AnyDefinition<App>>>,
    options: SagaOptions,
    spawner: Arc<dyn Spawn>,
    metrics: Option<SagaMetrics>,
}

/// A definition that was registered: what starts its sagas.
pub struct Registered<In, Out> {
    name: Arc<str>,
    values: PhantomData<fn(In) -> Out>,
}

impl<In, Out> Clone for Registered<In, Out> {
    fn clone(&self) -> Self {
        Self { name: Arc::clone(&self.name), values: PhantomData }
    }
}

impl<In, Out> fmt::Debug for Registered<In, Out> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Registered({})", self.name)
    }
}

impl<App: Send + Sync + 'static> SagasBuilder<App> {
    /// Sagas recorded in this journal, for this application.
    pub fn new(journal: impl Journal, app: App) -> Self {
        Self {
            journal: Arc::new(journal),
            app: Arc::new(app),
            definitions: BTreeMap::new(),
            options: SagaOptions::default(),
            spawner: Arc::new(CurrentRuntime),
            metrics: None,
        }
    }
}

impl<App: Send + Sync + ?Sized + 'static> SagasBuilder<App> {
    /// Bounds of your own.
    pub fn options(mut self, options: SagaOptions) -> Self {
        self.options = options;
        self
    }

    /// Counts in these metrics what happens in this process, and exports what the journal has.
    pub fn observed_by(mut self, metrics: &SagaMetrics) -> Self {
        self.metrics = Some(metrics.clone());
        self
    }

    /// Where its tasks run. The default is the caller's tokio runtime.
    pub fn spawner(mut self, spawner: impl Spawn) -> Self {
        self.spawner = Arc::new(spawner);
        self
    }

    /// Registers a definition, or what becomes one: this process runs its sagas, new ones and those that others left.
    pub fn register<In, Out>(
        &mut self,
        definition: impl Into<Definition<App, In, Out>>,
    ) -> Result<Registered<In, Out>, DefinitionError>
    where
        In: Serialize + DeserializeOwned + Send + 'static,
        Out: Serialize + DeserializeOwned + Send + 'static,
    {
        let definition = definition.into();
        definition.check()?;
        let name = definition.name().to_owned();
        if self.definitions.contains_key(&name) {
            return Err(DefinitionError::SagaTwice { saga: name });
        }
        let registered = Registered { name: name.as_str().into(), values: PhantomData };
        self.definitions.insert(name, Arc::new(definition));
        Ok(registered)
    }

    /// Starts the worker of this process.
    pub fn start(self) -> Sagas<App> {
        let Self { journal, app, definitions, mut options, spawner, metrics } = self;
        let steps = definitions.values().flat_map(|definition| definition.steps());
        let longest = steps.map(|step| step.spec().timeout).max().unwrap_or_default();
        // A call has to fit into what is left of the lease, also when it was just not renewed.
        options.lease = options.lease.max((longest + options.lease_margin) * 2);
        let engine = Arc::new(Engine::new(journal, app, definitions, options, spawner, metrics));
        engine.start();
        Sagas { engine }
    }
}

/// Sagas at work. Cheap to clone.
pub struct Sagas<App: ?Sized> {
    engine: Arc<Engine<App>>,
}

impl<App: ?Sized> Clone for Sagas<App> {
    fn clone(&self) -> Self {
        Self { engine: Arc::clone(&self.engine) }
    }
}

impl<App: ?Sized> fmt::Debug for Sagas<App> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sagas").finish_non_exhaustive()
    }
}

/// What a saga ended in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SagaEnd<Out> {
    /// With its result.
    Completed(Out),
    /// Everything that happened was undone.
    Undone {
        /// Why.
        cause: UndoCause,
        /// In words: the refusal.
        why: String,
    },
    /// A person ended it as it was.
    Abandoned,
}

/// Why a caller has no end.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SagaError {
    /// The key was used with another input.
    #[error("the key was used before, for a saga with another input; nothing was started")]
    Mismatch,
    /// The saga cannot go on by itself.
    #[error("saga {} is parked ({}): it is not known how it ends; it goes on when that is found out", number.0, reason.as_str())]
    Parked {
        /// Which.
        number: SagaNumber,
        /// Why.
        reason: ParkReason,
    },
    /// It goes on; the caller's wait is over.
    #[error("saga {} is still under way ({}); ask again with the same key", number.0, status.as_str())]
    UnderWay {
        /// Which.
        number: SagaNumber,
        /// How far.
        status: Status,
    },
    /// This process stops.
    #[error("this process stops and starts no sagas any more; ask another one")]
    Stopping,
    /// The input is larger than a journal takes.
    #[error("the input has {bytes} bytes, at most {BODY_BYTES_MAX}; nothing was started")]
    TooLarge {
        /// How large it is.
        bytes: usize,
    },
    /// The signal cannot be named so.
    #[error(
        "a signal has a name (1 to {NAME_BYTES_MAX} printable ASCII characters without # and /) and an id (1 to \
         {SIGNAL_ID_BYTES_MAX} bytes)"
    )]
    SignalName,
    /// The signal could be read by anyone with the database.
    #[error(
        "saga {} is sealed, and this process does not have its key, so nothing was recorded: it would be in plain text; \
         open the journal as a `ProtectedJournal`, with the keys", number.0
    )]
    Sealed {
        /// The saga.
        number: SagaNumber,
    },
    /// The input cannot be encoded, or the end cannot be read.
    #[error("{0}")]
    Value(String),
    /// The input cannot be fingerprinted.
    #[error("the input cannot be fingerprinted, so nothing was started: {0}")]
    Input(#[from] FingerprintError),
    /// The journal did not answer.
    #[error("the journal did not answer: {0}; ask again with the same key")]
    Journal(#[from] StoreError),
    /// The journal took too long.
    #[error("the journal did not answer in time; ask again with the same key")]
    JournalTimeout,
}

/// What a request of a person came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Requested {
    /// Recorded; the saga follows it.
    Recorded,
    /// It was so before.
    Already,
    /// Not in this state.
    Refused,
    /// There is no such saga, or it has changed since it was read.
    Stale,
}

/// A saga that has begun, and if it began here what reports its end.
type Begun<App> = (SagaNumber, Option<Waiter<App>>);

impl<App: Send + Sync + ?Sized + 'static> Sagas<App> {
    /// Runs a saga once: the same key is the same saga, and gets the same end. Waits for it, at most as long as
    /// [`SagaOptions::wait`] says; the saga goes on without its caller.
    pub async fn once<In, Out>(
        &self,
        of: &Registered<In, Out>,
        scope: &Scope,
        key: &Key,
        input: &In,
    ) -> Result<SagaEnd<Out>, SagaError>
    where
        In: Serialize,
        Out: DeserializeOwned,
    {
        let (number, begun) = self.begin(of, scope, key, input).await?;
        self.wait(number, begun).await
    }

    /// Starts a saga unless its key has one, and returns at once. It is in the journal then, and runs whatever happens to
    /// this process.
    pub async fn submit<In: Serialize, Out>(
        &self,
        of: &Registered<In, Out>,
        scope: &Scope,
        key: &Key,
        input: &In,
    ) -> Result<SagaNumber, SagaError> {
        Ok(self.begin(of, scope, key, input).await?.0)
    }

    /// Starts a saga unless its key has one; if it begins here, with what reports its end.
    async fn begin<In: Serialize, Out>(
        &self,
        of: &Registered<In, Out>,
        scope: &Scope,
        key: &Key,
        input: &In,
    ) -> Result<Begun<App>, SagaError> {
        let engine = &self.engine;
        let Some(definition) = engine.definition(&of.name) else {
            return Err(SagaError::Value(format!("{} is registered elsewhere, not here", of.name)));
        };
        if engine.is_stopping() {
            return Err(SagaError::Stopping);
        }
        let fingerprint = Recipe::default().value(input)?;
        let input = encode(input).map_err(SagaError::Value)?;
        if input.len() > BODY_BYTES_MAX {
            return Err(SagaError::TooLarge { bytes: input.len() });
        }
        let operation = Operation::new(&of.name).map_err(|error| SagaError::Value(error.to_string()))?;
        let intent = Intent::new(scope.clone(), operation, key.clone());
        // Without room, or without a lease, the next worker that is free takes it.
        let permit = Arc::clone(&engine.running).try_acquire_owned().ok();
        let worker = engine.lease.worker().filter(|_| permit.is_some());
        let saga = NewSaga {
            intent,
            fingerprint,
            name: of.name.to_string(),
            version: definition.version(),
            input,
            deadline_ms: definition.deadline().map(millis),
            worker,
        };
        // In a task of its own: a caller that goes away must not leave a saga that this worker has and does not run.
        let (begun, answer) = oneshot::channel();
        let starting = Arc::clone(engine).start_saga(saga, permit);
        engine.spawn(async move { drop(begun.send(starting.await)) }.in_current_span());
        // Its runtime ended.
        answer.await.unwrap_or(Err(SagaError::JournalTimeout))
    }

    /// Waits for the end of a saga.
    pub async fn end<In, Out: DeserializeOwned>(
        &self,
        _of: &Registered<In, Out>,
        number: SagaNumber,
    ) -> Result<SagaEnd<Out>, SagaError> {
        self.wait(number, None).await
    }

    async fn wait<Out: DeserializeOwned>(
        &self,
        number: SagaNumber,
        mut begun: Option<Waiter<App>>,
    ) -> Result<SagaEnd<Out>, SagaError> {
        let until = Instant::now() + self.engine.options.wait;
        loop {
            let mut waiter = match begun.take() {
                Some(waiter) => waiter,
                None => {
                    // Before the journal is asked: an end after the answer is reported here.
                    let waiter = self.engine.wait_for(number);
                    let found = self.engine.journal.look(number);
                    let found = tokio::time::timeout(self.engine.options.journal_timeout, found).await;
                    let Some(record) = found.map_err(|_| SagaError::JournalTimeout)?? else {
                        return Err(SagaError::Value(format!("there is no saga {}", number.0)));
                    };
                    let row = record.row;
                    match row.status {
                        Status::Parked => {
                            let reason = row.reason.unwrap_or(ParkReason::UnknownResult);
                            return Err(SagaError::Parked { number, reason });
                        }
                        status if status.is_ended() => return ended(&record),
                        status if Instant::now() >= until => {
                            return Err(SagaError::UnderWay { number, status });
                        }
                        _ => {}
                    }
                    waiter
                }
            };
            let ask_again = (Instant::now() + spread(ASK_INTERVAL, 0.2)).min(until);
            match tokio::time::timeout_at(ask_again, waiter.left()).await {
                Ok(Some((_, Some(record)))) => return ended(&record),
                Ok(Some((Left::Lost, _))) => tokio::time::sleep_until(ask_again).await,
                _ => {}
            }
        }
    }

    /// Sends a signal. The same id again is the same signal. Refused if the saga is sealed and its key is missing here.
    pub async fn signal<T: Serialize>(
        &self,
        number: SagaNumber,
        id: &str,
        name: &str,
        body: &T,
    ) -> Result<Signalled, SagaError> {
        if !is_name(name) || id.starts_with('/') || id.is_empty() || id.len() > SIGNAL_ID_BYTES_MAX {
            return Err(SagaError::SignalName);
        }
        let body = encode(body).map_err(SagaError::Value)?;
        if body.len() > BODY_BYTES_MAX {
            return Err(SagaError::TooLarge { bytes: body.len() });
        }
        let signal = Signal { id: id.to_owned(), name: name.to_owned(), body };
        let (journal, limit) = (&self.engine.journal, self.engine.options.journal_timeout);
        let found = tokio::time::timeout(limit, journal.look(number)).await;
        let found = found.map_err(|_| SagaError::JournalTimeout)??;
        if found.is_some_and(|record| is_protected(&record.input)) {
            return Err(SagaError::Sealed { number });
        }
        let signalled = tokio::time::timeout(limit, journal.signal(number, signal)).await;
        let signalled = signalled.map_err(|_| SagaError::JournalTimeout)??;
        self.engine.woken.notify_one();
        Ok(signalled)
    }

    /// Asks for a saga to be undone. It is, unless its pivot has begun by then and happens.
    pub async fn cancel(&self, number: SagaNumber) -> Result<Requested, SagaError> {
        self.request(number, SagaChange::of(RowEvent::Cancel)).await
    }

    async fn request(&self, number: SagaNumber, change: SagaChange) -> Result<Requested, SagaError> {
        let changed = self.engine.journal.change(number, change);
        let changed = tokio::time::timeout(self.engine.options.journal_timeout, changed).await;
        let changed = changed.map_err(|_| SagaError::JournalTimeout)??;
        self.engine.woken.notify_one();
        Ok(match changed.answer {
            RowAnswer::Done | RowAnswer::Signalled => Requested::Recorded,
            RowAnswer::Already => Requested::Already,
            RowAnswer::Refused => Requested::Refused,
            RowAnswer::Lost => Requested::Stale,
        })
    }

    /// Lists sagas, newest first.
    pub async fn list(&self, filter: SagaFilter) -> Result<Vec<SagaRecord>, SagaError> {
        let listed = self.engine.journal.list(filter);
        let listed = tokio::time::timeout(self.engine.options.journal_timeout, listed).await;
        Ok(listed.map_err(|_| SagaError::JournalTimeout)??)
    }

    /// How many sagas somebody waits for in this process.
    #[cfg(feature = "fault-injection")]
    #[doc(hidden)]
    pub fn waited_for(&self) -> usize {
        self.engine.waited_for()
    }

    /// The journal.
    pub fn journal(&self) -> &dyn Journal {
        &*self.engine.journal
    }

    /// Graceful shutdown: begins no step any more, waits for the calls under way, at most for `limit`, and leaves, so that
    /// another process goes on at once. Returns how many sagas were still in a call.
    pub async fn drain(&self, limit: Duration) -> usize {
        self.engine.drain(limit).await
    }
}

impl<App: Send + Sync + ?Sized + 'static> Engine<App> {
    /// Starts the saga unless its intent has one, and runs it if it is this worker's.
    async fn start_saga(
        self: Arc<Self>,
        saga: NewSaga,
        permit: Option<OwnedSemaphorePermit>,
    ) -> Result<Begun<App>, SagaError> {
        let _handing_over = self.handing_over.read().await;
        let asked = self.journal.start(saga.clone());
        let started = match tokio::time::timeout(self.options.journal_timeout, asked).await {
            Ok(Ok(started)) => started,
            failed => {
                // It may be ours now.
                self.doubts();
                self.woken.notify_one();
                return Err(failed.map_or(SagaError::JournalTimeout, |failed| match failed {
                    Ok(_) => SagaError::JournalTimeout,
                    Err(error) => SagaError::Journal(error),
                }));
            }
        };
        match started {
            SagaStarted::New { number, row, now } => {
                point(AFTER_SAGA_START);
                self.metrics.started(&saga.name);
                let NewSaga { intent, fingerprint, name, version, input, worker, .. } = saga;
                let Some(worker) = worker else {
                    self.woken.notify_one();
                    return Ok((number, None));
                };
                let (outcome, created_at) = (None, now);
                let record = SagaRecord {
                    number,
                    row,
                    intent,
                    fingerprint,
                    name,
                    version,
                    input,
                    outcome,
                    created_at,
                };
                let loaded = Loaded { record, entries: Vec::new(), signals: Vec::new(), now };
                // Before it runs: its end is reported to who waits by then.
                let waiter = self.wait_for(number);
                let taken = TakenSaga { number, row, taken_over: false };
                self.begin(worker, taken, permit, Some((loaded, Instant::now())));
                Ok((number, Some(waiter)))
            }
            SagaStarted::Existing(record) => match saga.fingerprint.compare(&record.fingerprint) {
                Comparison::Different => Err(SagaError::Mismatch),
                _ => {
                    self.metrics.suppressed();
                    Ok((record.number, None))
                }
            },
        }
    }
}

fn ended<Out: DeserializeOwned>(record: &SagaRecord) -> Result<SagaEnd<Out>, SagaError> {
    let outcome = record.outcome.as_ref();
    if outcome.is_some_and(|outcome| is_protected(outcome)) {
        return Err(SagaError::Value(format!(
            "saga {} is {}, and what it ended in is sealed: this process does not have the key; open its journal with it",
            record.number.0,
            record.row.status.as_str()
        )));
    }
    match record.row.status {
        Status::Completed => {
            let result = outcome.map_or(&b"null"[..], Bytes::as_ref);
            let wrong = |error| SagaError::Value(format!("the saga's result cannot be read: {error}"));
            decode(result).map(SagaEnd::Completed).map_err(wrong)
        }
        Status::Abandoned => Ok(SagaEnd::Abandoned),
        _ => {
            let why = outcome.map(|why| String::from_utf8_lossy(why).into_owned()).unwrap_or_default();
            Ok(SagaEnd::Undone { cause: record.row.undo.unwrap_or(UndoCause::Refused), why })
        }
    }
}
