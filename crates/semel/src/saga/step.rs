//! What a saga is made of: steps, what they return, and how the engine calls them.

use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::spec::StepSpec;
use super::step_tx::StepTx;
use crate::intent::identity::Intent;
use crate::intent::key::Key;

/// What a step returns.
pub type StepResult<T> = Result<T, StepError>;

/// Why a step has no result. `?` turns any error into [`StepError::Unknown`], because nothing more is known about it; say
/// [`refused`](StepError::refused) or [`not_applied`](StepError::not_applied) where you know better.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StepError {
    /// Refused for good, without effect: before the pivot the saga is undone.
    Refused(String),
    /// It had no effect this time, and may be tried again: a refused connection, a 429.
    NotApplied(String),
    /// It is not known whether it had an effect: the connection broke after the request was sent. A keyed step is called
    /// again with its key, an opaque one is looked up or parked.
    Unknown(String),
}

impl fmt::Display for StepError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(why) => write!(f, "refused: {why}"),
            Self::NotApplied(why) => write!(f, "had no effect: {why}"),
            Self::Unknown(why) => write!(f, "unknown result: {why}"),
        }
    }
}

// `StepError` does not implement `Error`: only so can `?` turn every other error into one.
impl<E: std::error::Error> From<E> for StepError {
    fn from(error: E) -> Self {
        Self::Unknown(error.to_string())
    }
}

impl StepError {
    /// Refused for good.
    pub fn refused(why: impl fmt::Display) -> Self {
        Self::Refused(why.to_string())
    }

    /// Had no effect this time.
    pub fn not_applied(why: impl fmt::Display) -> Self {
        Self::NotApplied(why.to_string())
    }

    /// It is not known whether it had an effect.
    pub fn unknown(why: impl fmt::Display) -> Self {
        Self::Unknown(why.to_string())
    }
}

/// What a lookup found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LookedUp<T> {
    /// It happened, with this result.
    Applied(T),
    /// It did not happen, and cannot any more.
    NotApplied,
    /// Still unknown: asked again later.
    Unknown,
}

/// Whether a step can be undone, as a type: what may run before the pivot, and what after it.
pub trait UndoKind: Send + Sync + 'static {
    /// The same as a value.
    const UNDOING: Undoing;
}

/// What undoing does about a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Undoing {
    /// It calls the step's undo.
    ByStep,
    /// There is nothing to do.
    Nothing,
    /// It cannot be undone.
    Impossible,
}

/// The step has an undo.
#[derive(Debug)]
pub enum HasUndo {}
/// The step only reads, or what it leaves behind does no harm: there is nothing to undo.
#[derive(Debug)]
pub enum NothingToUndo {}
/// The step cannot be undone.
#[derive(Debug)]
pub enum NoUndo {}

impl UndoKind for HasUndo {
    const UNDOING: Undoing = Undoing::ByStep;
}
impl UndoKind for NothingToUndo {
    const UNDOING: Undoing = Undoing::Nothing;
}
impl UndoKind for NoUndo {
    const UNDOING: Undoing = Undoing::Impossible;
}

/// A step of this kind may run before the pivot.
#[diagnostic::on_unimplemented(
    message = "a step that cannot be undone runs before the pivot",
    label = "its `Undo` is {Self}",
    note = "give it an undo (`undo = …`, or `type Undo = HasUndo`), say that it leaves nothing (`leaves_nothing`, or \
            `NothingToUndo`), or make it the pivot"
)]
pub trait RunsBeforePivot: UndoKind {}
impl RunsBeforePivot for HasUndo {}
impl RunsBeforePivot for NothingToUndo {}

/// A step of this kind may run after the pivot.
#[diagnostic::on_unimplemented(
    message = "a step with an undo runs after the pivot, where nothing is undone",
    label = "its `Undo` is {Self}",
    note = "run it before the pivot, or declare it as a step without undo (no `undo = …`, or `type Undo = NoUndo`)"
)]
pub trait RunsAfterPivot: UndoKind {}
impl RunsAfterPivot for NothingToUndo {}
impl RunsAfterPivot for NoUndo {}

/// What every step says of itself.
pub trait StepType: Send + Sync + 'static {
    /// What it gets. Kept in the journal.
    type Input: Serialize + DeserializeOwned + Send + Sync + 'static;
    /// What it returns. Kept in the journal.
    type Output: Serialize + DeserializeOwned + Send + Sync + 'static;
    /// [`HasUndo`], [`NothingToUndo`] or [`NoUndo`].
    type Undo: UndoKind;

    /// Its name, what protects it, its bounds.
    fn spec(&self) -> StepSpec;
}

/// A step that calls somebody else: keyed or opaque.
///
/// - `run` may be called again with the same key where the step is keyed, also while an earlier call is under way.
/// - `undo` may be called several times, and gets `None` as the result where it is not known whether the step happened.
///   It must then see to it that the forward key ([`At::forward_key`]) does nothing any more.
/// - Each of them is dropped when its timeout is over.
pub trait SagaStep<App: ?Sized>: StepType {
    /// Does it.
    fn run(
        &self,
        at: At<'_, App>,
        input: &Self::Input,
    ) -> impl Future<Output = StepResult<Self::Output>> + Send;

    /// Undoes it.
    fn undo(
        &self,
        _at: At<'_, App>,
        _input: &Self::Input,
        _result: Option<Self::Output>,
    ) -> impl Future<Output = StepResult<()>> + Send {
        std::future::ready(Err(StepError::refused("the step has no undo")))
    }

    /// Finds out whether it happened. Only reads.
    fn look_up(
        &self,
        _at: At<'_, App>,
        _input: &Self::Input,
    ) -> impl Future<Output = LookedUp<Self::Output>> + Send {
        std::future::ready(LookedUp::Unknown)
    }
}

/// A step in the journal's own database: what it writes and the journal's entry are one commit, so its result is never
/// unknown.
///
/// An error rolls back what it wrote: a refusal is recorded, anything else is tried again. On SQLite it must not wait for
/// anything but the database, and may not begin, commit or attach.
pub trait AtomicStep<App: ?Sized>: StepType {
    /// Does it, in the transaction.
    fn run(
        &self,
        tx: &mut StepTx<'_>,
        at: At<'_, App>,
        input: &Self::Input,
    ) -> impl Future<Output = StepResult<Self::Output>> + Send;

    /// Undoes it, in another transaction.
    fn undo(
        &self,
        _tx: &mut StepTx<'_>,
        _at: At<'_, App>,
        _input: &Self::Input,
        _result: Self::Output,
    ) -> impl Future<Output = StepResult<()>> + Send {
        std::future::ready(Err(StepError::refused("the step has no undo")))
    }
}

/// What a step knows of its call.
#[derive(Debug)]
pub struct At<'a, App: ?Sized> {
    /// The application.
    pub app: &'a App,
    /// Attempt number, counted from 1.
    pub attempt: u32,
    pub(super) keys: &'a CallKeys,
}

/// The keys of one call.
#[derive(Debug, Clone)]
pub(super) struct CallKeys {
    pub(super) intent: Intent,
    pub(super) key: Key,
    pub(super) forward: Key,
}

impl<'a, App: ?Sized> At<'a, App> {
    /// The key to send: the same for every attempt of this step, or of its undo.
    pub fn key(&self) -> &'a Key {
        &self.keys.key
    }

    /// In an undo: the key that the step itself sent.
    pub fn forward_key(&self) -> &'a Key {
        &self.keys.forward
    }

    /// The intent the saga runs for.
    pub fn intent(&self) -> &'a Intent {
        &self.keys.intent
    }
}

impl<App: ?Sized> Clone for At<'_, App> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<App: ?Sized> Copy for At<'_, App> {}

/// Bytes of the journal that are not what the step says, or a result that cannot be written.
pub(super) fn encode<T: Serialize>(value: &T) -> Result<Bytes, String> {
    serde_json::to_vec(value).map(Bytes::from).map_err(|error| error.to_string())
}

pub(super) fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, String> {
    serde_json::from_slice(bytes).map_err(|error| error.to_string())
}

/// One call, as the engine makes it.
pub(super) struct Call<App: ?Sized> {
    pub(super) app: Arc<App>,
    pub(super) keys: CallKeys,
    pub(super) attempt: u32,
    pub(super) input: Bytes,
}

pub(super) type Calling<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// A call that borrows its transaction.
pub(super) type CallingIn<'t, T> = Pin<Box<dyn Future<Output = T> + Send + 't>>;

/// A step without its types.
pub(super) trait AnyStep<App: ?Sized>: Send + Sync {
    fn spec(&self) -> &StepSpec;
    fn undoing(&self) -> Undoing;
    fn calls(self: Arc<Self>) -> Calls<App>;
}

/// How a step is called.
pub(super) enum Calls<App: ?Sized> {
    /// Somebody else: the beginning is in the journal before the call.
    Remote(Arc<dyn CallsRemote<App>>),
    /// In a transaction of the journal's database: one commit.
    Atomic(Arc<dyn CallsAtomic<App>>),
}

pub(super) trait CallsRemote<App: ?Sized>: Send + Sync {
    fn run(self: Arc<Self>, call: Call<App>) -> Calling<StepResult<Bytes>>;
    fn undo(self: Arc<Self>, call: Call<App>, result: Option<Bytes>) -> Calling<StepResult<Bytes>>;
    fn look_up(self: Arc<Self>, call: Call<App>) -> Calling<LookedUp<Bytes>>;
}

pub(super) trait CallsAtomic<App: ?Sized>: Send + Sync {
    fn run<'t>(&'t self, tx: &'t mut StepTx<'_>, call: &'t Call<App>) -> CallingIn<'t, StepResult<Bytes>>;
    fn undo<'t>(
        &'t self,
        tx: &'t mut StepTx<'_>,
        call: &'t Call<App>,
        result: &'t [u8],
    ) -> CallingIn<'t, StepResult<Bytes>>;
}

/// A [`SagaStep`] in its box.
pub(super) struct Remote<App: ?Sized, S> {
    pub(super) step: S,
    pub(super) spec: StepSpec,
    pub(super) app: PhantomData<fn(&App)>,
}

impl<App: Send + Sync + ?Sized + 'static, S: SagaStep<App>> AnyStep<App> for Remote<App, S> {
    fn spec(&self) -> &StepSpec {
        &self.spec
    }

    fn undoing(&self) -> Undoing {
        <S::Undo as UndoKind>::UNDOING
    }

    fn calls(self: Arc<Self>) -> Calls<App> {
        Calls::Remote(self)
    }
}

impl<App: Send + Sync + ?Sized + 'static, S: SagaStep<App>> CallsRemote<App> for Remote<App, S> {
    fn run(self: Arc<Self>, call: Call<App>) -> Calling<StepResult<Bytes>> {
        Box::pin(async move {
            let input: S::Input = decode(&call.input).map_err(unreadable)?;
            let output = self.step.run(call.at(), &input).await?;
            // It happened; that its result cannot be written must not make it happen again.
            encode(&output)
                .map_err(|error| StepError::Unknown(format!("its result cannot be encoded: {error}")))
        })
    }

    fn undo(self: Arc<Self>, call: Call<App>, result: Option<Bytes>) -> Calling<StepResult<Bytes>> {
        Box::pin(async move {
            let input: S::Input = decode(&call.input).map_err(unreadable)?;
            let result = result.map(|result| decode::<S::Output>(&result)).transpose().map_err(unreadable)?;
            self.step.undo(call.at(), &input, result).await?;
            Ok(Bytes::from_static(b"null"))
        })
    }

    fn look_up(self: Arc<Self>, call: Call<App>) -> Calling<LookedUp<Bytes>> {
        Box::pin(async move {
            let Ok(input) = decode::<S::Input>(&call.input) else { return LookedUp::Unknown };
            match self.step.look_up(call.at(), &input).await {
                LookedUp::Applied(output) => match encode(&output) {
                    Ok(output) => LookedUp::Applied(output),
                    Err(_) => LookedUp::Unknown,
                },
                LookedUp::NotApplied => LookedUp::NotApplied,
                LookedUp::Unknown => LookedUp::Unknown,
            }
        })
    }
}

/// An [`AtomicStep`] in its box.
pub(super) struct Atomic<App: ?Sized, S> {
    pub(super) step: S,
    pub(super) spec: StepSpec,
    pub(super) app: PhantomData<fn(&App)>,
}

impl<App: Send + Sync + ?Sized + 'static, S: AtomicStep<App>> AnyStep<App> for Atomic<App, S> {
    fn spec(&self) -> &StepSpec {
        &self.spec
    }

    fn undoing(&self) -> Undoing {
        <S::Undo as UndoKind>::UNDOING
    }

    fn calls(self: Arc<Self>) -> Calls<App> {
        Calls::Atomic(self)
    }
}

impl<App: Send + Sync + ?Sized + 'static, S: AtomicStep<App>> CallsAtomic<App> for Atomic<App, S> {
    fn run<'t>(&'t self, tx: &'t mut StepTx<'_>, call: &'t Call<App>) -> CallingIn<'t, StepResult<Bytes>> {
        Box::pin(async move {
            let input: S::Input = decode(&call.input).map_err(unreadable)?;
            let output = self.step.run(tx, call.at(), &input).await?;
            // Nothing is committed yet.
            encode(&output)
                .map_err(|error| StepError::refused(format!("its result cannot be encoded: {error}")))
        })
    }

    fn undo<'t>(
        &'t self,
        tx: &'t mut StepTx<'_>,
        call: &'t Call<App>,
        result: &'t [u8],
    ) -> CallingIn<'t, StepResult<Bytes>> {
        Box::pin(async move {
            let input: S::Input = decode(&call.input).map_err(unreadable)?;
            let result: S::Output = decode(result).map_err(unreadable)?;
            self.step.undo(tx, call.at(), &input, result).await?;
            Ok(Bytes::from_static(b"null"))
        })
    }
}

impl<App: ?Sized> Call<App> {
    fn at(&self) -> At<'_, App> {
        At { app: &self.app, attempt: self.attempt, keys: &self.keys }
    }
}

/// Written by another version of the step: nothing was called.
fn unreadable(error: String) -> StepError {
    StepError::NotApplied(format!("the journal's bytes are not what the step declares: {error}"))
}
