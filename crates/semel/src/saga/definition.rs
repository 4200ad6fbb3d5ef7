//! A definition: a saga's name and version, its code, and its steps.

use std::collections::BTreeMap;
use std::future::Future;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::handle::{Asks, Refused, Saga, SagaResult};
use super::spec::{NAME_BYTES_MAX, is_name};
use super::step::{AnyStep, Atomic, AtomicStep, Calling, Calls, Remote, SagaStep, decode, encode};
use crate::intent::policy::{Effect, Retention};

/// A saga: its name and version, its code, and the steps that the code may run.
///
/// The version rises when the code changes while sagas are under way; the code asks
/// [`since`](super::Saga::since) and does for older sagas what it did before.
pub struct Definition<App: ?Sized, In, Out> {
    name: String,
    version: u32,
    deadline: Option<Duration>,
    retention: Retention,
    steps: BTreeMap<&'static str, Arc<dyn AnyStep<App>>>,
    twice: Option<&'static str>,
    code: Arc<Code<App, In, Out>>,
}

type Code<App, In, Out> = dyn Fn(Saga<App>, In) -> Calling<SagaResult<Out>> + Send + Sync;

impl<App: ?Sized, In, Out> std::fmt::Debug for Definition<App, In, Out> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Definition")
            .field("name", &self.name)
            .field("version", &self.version)
            .field("steps", &self.steps.keys())
            .finish_non_exhaustive()
    }
}

/// Why a definition cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DefinitionError {
    /// Its name, or a step's, cannot stand in the journal.
    #[error(
        "{name:?} cannot name a saga or a step: 1 to {NAME_BYTES_MAX} printable ASCII characters without # and /"
    )]
    Name {
        /// The name.
        name: String,
    },
    /// Two steps have one name.
    #[error("the saga {saga:?} has two steps {step:?}; give one of them another name")]
    StepTwice {
        /// The saga.
        saga: String,
        /// The steps' name.
        step: &'static str,
    },
    /// Two sagas have one name.
    #[error(
        "two sagas are called {saga:?}; a new version replaces the old one, it is not registered beside it"
    )]
    SagaTwice {
        /// The saga.
        saga: String,
    },
    /// A version counts from 1.
    #[error("the saga {saga:?} has version 0; versions begin with 1")]
    Version {
        /// The saga.
        saga: String,
    },
    /// A step is atomic if and only if it runs in the journal's transaction.
    #[error(
        "the step {step:?} is declared by `atomic` and its spec is not `StepSpec::atomic`, or the other way round"
    )]
    Atomic {
        /// The step.
        step: &'static str,
    },
    /// A step's bound is zero.
    #[error("the step {step:?} has a timeout of zero: nothing could be called")]
    Timeout {
        /// The step.
        step: &'static str,
    },
}

/// How long an ended saga answers the same key.
const RETENTION: Retention = Retention::Ms(7 * 24 * 60 * 60 * 1_000);

impl<App, In, Out> Definition<App, In, Out>
where
    App: Send + Sync + ?Sized + 'static,
    In: Serialize + DeserializeOwned + Send + 'static,
    Out: Serialize + DeserializeOwned + Send + 'static,
{
    /// A saga without steps yet.
    pub fn new<F, Fut>(name: &str, version: u32, code: F) -> Self
    where
        F: Fn(Saga<App>, In) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = SagaResult<Out>> + Send + 'static,
    {
        Self {
            name: name.to_owned(),
            version,
            deadline: None,
            retention: RETENTION,
            steps: BTreeMap::new(),
            twice: None,
            code: Arc::new(move |saga, input| Box::pin(code(saga, input))),
        }
    }

    /// Declares a step that calls somebody else. One that is not declared parks the saga.
    pub fn step<S: SagaStep<App>>(self, step: S) -> Self {
        let spec = step.spec();
        self.add(spec.name, Arc::new(Remote { step, spec, app: PhantomData }))
    }

    /// Declares a step in the journal's own database.
    pub fn atomic<S: AtomicStep<App>>(self, step: S) -> Self {
        let spec = step.spec();
        self.add(spec.name, Arc::new(Atomic { step, spec, app: PhantomData }))
    }

    fn add(mut self, name: &'static str, step: Arc<dyn AnyStep<App>>) -> Self {
        if self.steps.insert(name, step).is_some() {
            self.twice.get_or_insert(name);
        }
        self
    }

    /// A saga that has not passed its pivot by then is undone.
    pub fn deadline(self, deadline: Duration) -> Self {
        Self { deadline: Some(deadline), ..self }
    }

    /// How long an ended saga answers the same key; seven days by default.
    pub fn retention(self, retention: impl Into<Retention>) -> Self {
        Self { retention: retention.into(), ..self }
    }
}

/// How a saga's code ended.
pub(super) type CodeEnd = Result<Bytes, CodeError>;

pub(super) enum CodeError {
    Refused(Refused),
    /// The input cannot be read, or the result cannot be written.
    Unreadable(String),
}

/// A definition without its types.
pub(super) trait AnyDefinition<App: ?Sized>: Send + Sync {
    fn name(&self) -> &str;
    fn version(&self) -> u32;
    fn deadline(&self) -> Option<Duration>;
    fn retention(&self) -> Retention;
    fn step(&self, name: &str) -> Option<&Arc<dyn AnyStep<App>>>;
    fn steps(&self) -> Vec<&Arc<dyn AnyStep<App>>>;
    fn run(&self, asks: &Arc<Asks>, app: Arc<App>, input: &Bytes) -> Calling<CodeEnd>;
    fn check(&self) -> Result<(), DefinitionError>;
}

impl<App, In, Out> AnyDefinition<App> for Definition<App, In, Out>
where
    App: Send + Sync + ?Sized + 'static,
    In: Serialize + DeserializeOwned + Send + 'static,
    Out: Serialize + DeserializeOwned + Send + 'static,
{
    fn name(&self) -> &str {
        &self.name
    }

    fn version(&self) -> u32 {
        self.version
    }

    fn deadline(&self) -> Option<Duration> {
        self.deadline
    }

    fn retention(&self) -> Retention {
        self.retention
    }

    fn step(&self, name: &str) -> Option<&Arc<dyn AnyStep<App>>> {
        self.steps.get(name)
    }

    fn steps(&self) -> Vec<&Arc<dyn AnyStep<App>>> {
        self.steps.values().collect()
    }

    fn run(&self, asks: &Arc<Asks>, app: Arc<App>, input: &Bytes) -> Calling<CodeEnd> {
        let input: In = match decode(input) {
            Ok(input) => input,
            Err(error) => {
                let why = format!("the saga's input cannot be read: {error}");
                return Box::pin(std::future::ready(Err(CodeError::Unreadable(why))));
            }
        };
        let code = Arc::clone(&self.code);
        let saga = Saga::new(Arc::clone(asks), app);
        Box::pin(async move {
            let output = code(saga, input).await.map_err(CodeError::Refused)?;
            let why = |error| CodeError::Unreadable(format!("the saga's result cannot be encoded: {error}"));
            encode(&output).map_err(why)
        })
    }

    fn check(&self) -> Result<(), DefinitionError> {
        let named = |name: &str| DefinitionError::Name { name: name.to_owned() };
        if !is_name(&self.name) {
            return Err(named(&self.name));
        }
        if self.version == 0 {
            return Err(DefinitionError::Version { saga: self.name.clone() });
        }
        if let Some(step) = self.twice {
            return Err(DefinitionError::StepTwice { saga: self.name.clone(), step });
        }
        for step in self.steps.values() {
            let spec = step.spec();
            if !is_name(spec.name) {
                return Err(named(spec.name));
            }
            if spec.timeout.is_zero() {
                return Err(DefinitionError::Timeout { step: spec.name });
            }
            let is_atomic = matches!(Arc::clone(step).calls(), Calls::Atomic(_));
            if is_atomic != (spec.effect == Effect::Atomic) {
                return Err(DefinitionError::Atomic { step: spec.name });
            }
        }
        Ok(())
    }
}
