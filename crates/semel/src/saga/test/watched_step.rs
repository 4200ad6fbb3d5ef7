//! The steps: what they are called with, what they say, and faults in between.

use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;

use super::fault::{CallFault, CallId, CallOp};
use super::report::SagaRule;
use super::watch::Watch;
use crate::intent::policy::{Effect, Retention};
use crate::saga::definition::{AnyDefinition, CodeEnd, DefinitionError};
use crate::saga::entry::StepId;
use crate::saga::handle::Asks;
use crate::saga::journal::ENTRIES_MAX;
use crate::saga::spec::StepSpec;
use crate::saga::step::{
    AnyStep, Call, Calling, CallingIn, Calls, CallsAtomic, CallsRemote, LookedUp, StepError, StepResult,
    Undoing,
};
use crate::saga::step_tx::StepTx;

/// The number that the only saga of a history has in its journal: the keys of its calls are made with it.
pub(super) const NUMBER: u64 = 1;

/// A definition whose steps are watched.
pub(super) struct WatchedSaga<App: ?Sized> {
    definition: Arc<dyn AnyDefinition<App>>,
    steps: BTreeMap<&'static str, Arc<dyn AnyStep<App>>>,
}

impl<App: Send + Sync + ?Sized + 'static> WatchedSaga<App> {
    pub(super) fn new(definition: Arc<dyn AnyDefinition<App>>, watch: &Arc<Watch>) -> Self {
        let watched = |step: &Arc<dyn AnyStep<App>>| {
            let watched = WatchedStep { inner: Arc::clone(step), watch: Arc::clone(watch) };
            (step.spec().name, Arc::new(watched) as Arc<dyn AnyStep<App>>)
        };
        let steps = definition.steps().into_iter().map(watched).collect();
        Self { definition, steps }
    }
}

impl<App: Send + Sync + ?Sized + 'static> AnyDefinition<App> for WatchedSaga<App> {
    fn name(&self) -> &str {
        self.definition.name()
    }

    fn version(&self) -> u32 {
        self.definition.version()
    }

    fn deadline(&self) -> Option<Duration> {
        self.definition.deadline()
    }

    fn retention(&self) -> Retention {
        // What has ended is judged; nothing sweeps it before.
        Retention::Forever
    }

    fn step(&self, name: &str) -> Option<&Arc<dyn AnyStep<App>>> {
        self.steps.get(name)
    }

    fn steps(&self) -> Vec<&Arc<dyn AnyStep<App>>> {
        self.steps.values().collect()
    }

    fn run(&self, asks: &Arc<Asks>, app: Arc<App>, input: &Bytes) -> Calling<CodeEnd> {
        self.definition.run(asks, app, input)
    }

    fn check(&self) -> Result<(), DefinitionError> {
        self.definition.check()
    }
}

struct WatchedStep<App: ?Sized> {
    inner: Arc<dyn AnyStep<App>>,
    watch: Arc<Watch>,
}

impl<App: Send + Sync + ?Sized + 'static> AnyStep<App> for WatchedStep<App> {
    fn spec(&self) -> &StepSpec {
        self.inner.spec()
    }

    fn undoing(&self) -> Undoing {
        self.inner.undoing()
    }

    fn calls(self: Arc<Self>) -> Calls<App> {
        let (spec, watch) = (self.inner.spec().clone(), Arc::clone(&self.watch));
        match Arc::clone(&self.inner).calls() {
            Calls::Remote(inner) => Calls::Remote(Arc::new(WatchedRemote { inner, spec, watch })),
            Calls::Atomic(inner) => Calls::Atomic(Arc::new(WatchedAtomic { inner, spec, watch })),
        }
    }
}

/// Which step the call is about: by its key, which names it.
fn step_of<App: ?Sized>(name: &str, call: &Call<App>) -> StepId {
    let key = |nth: &u32| call.keys.intent.child(&format!("{NUMBER}/{name}#{nth}")) == call.keys.forward;
    StepId { name: name.to_owned(), nth: (0..ENTRIES_MAX).find(key).unwrap_or_default() }
}

fn again<App: ?Sized>(call: &Call<App>) -> Call<App> {
    Call {
        app: Arc::clone(&call.app),
        keys: call.keys.clone(),
        attempt: call.attempt,
        input: call.input.clone(),
    }
}

fn text(result: &StepResult<Bytes>) -> String {
    match result {
        Ok(result) => String::from_utf8_lossy(result).into_owned(),
        Err(error) => error.to_string(),
    }
}

struct WatchedRemote<App: ?Sized> {
    inner: Arc<dyn CallsRemote<App>>,
    spec: StepSpec,
    watch: Arc<Watch>,
}

/// What a call does: the step, or its undo.
#[derive(Clone)]
enum Doing {
    Run,
    Undo(Option<Bytes>),
}

impl<App: Send + Sync + ?Sized + 'static> WatchedRemote<App> {
    fn keyed(&self, op: CallOp) -> bool {
        let effect = if op == CallOp::Undo { self.spec.undo_effect } else { self.spec.effect };
        effect == Effect::Keyed
    }

    fn begins(&self, op: CallOp, call: &Call<App>, perhaps: bool) -> (CallId, Option<CallFault>) {
        self.watch.begins_call(op, step_of(self.spec.name, call), self.keyed(op), false, perhaps)
    }

    async fn faulty(self: Arc<Self>, op: CallOp, call: Call<App>, doing: Doing) -> StepResult<Bytes> {
        let perhaps = matches!(doing, Doing::Undo(None));
        let (id, fault) = self.begins(op, &call, perhaps);
        let watch = Arc::clone(&self.watch);
        match fault {
            None => {}
            Some(CallFault::CrashBefore) => return watch.die().await,
            Some(CallFault::RequestLost | CallFault::RequestLostThenRefused) => {
                watch.say(format!("  {id}: the request is lost"));
                return Err(StepError::unknown("the test lost the request"));
            }
            Some(CallFault::RequestLateThenRefused) => {
                watch.say(format!("  {id}: the request is under way, and its caller gives up"));
                let (late, call, what) = (Arc::clone(&self), again(&call), id.clone());
                let arrives =
                    move || Box::pin(async move { late.invoke(&what, &call, doing).await }) as Calling<_>;
                watch.comes_late((id, Box::new(arrives)));
                return Err(StepError::unknown("the test delivers the request late"));
            }
            Some(CallFault::Refused) => {
                watch.say(format!("  {id}: refused by the test"));
                return Err(StepError::refused("the test refuses"));
            }
            Some(CallFault::NotApplied) => {
                watch.say(format!("  {id}: not applied, by the test"));
                return Err(StepError::not_applied("the test does not apply it"));
            }
            Some(CallFault::CrashAfter) => {
                let _ = self.invoke(&id, &call, doing).await;
                return watch.die().await;
            }
            Some(CallFault::AnswerLost | CallFault::AnswerLostThenRefused) => {
                let _ = self.invoke(&id, &call, doing).await;
                watch.say(format!("  {id}: the answer is lost"));
                return Err(StepError::unknown("the test lost the answer"));
            }
            Some(CallFault::Twice) => {
                let _ = self.invoke(&id, &call, doing.clone()).await;
            }
        }
        self.invoke(&id, &call, doing).await
    }

    /// The user's own code.
    async fn invoke(&self, id: &CallId, call: &Call<App>, doing: Doing) -> StepResult<Bytes> {
        let known = self.watch.seen().keys.get(&call.keys.key).cloned().unwrap_or_default();
        let in_flight = self.watch.enters();
        let before = self.watch.left();
        let perhaps = matches!(doing, Doing::Undo(None));
        let inner = Arc::clone(&self.inner);
        let work = match doing {
            Doing::Run => inner.run(again(call)),
            Doing::Undo(result) => inner.undo(again(call), result),
        };
        let result = AssertUnwindSafe(work).catch_unwind().await;
        let result = result.unwrap_or_else(|_| Err(StepError::unknown("the step panicked")));
        let after = if in_flight.is_alone() { self.watch.left() } else { None };
        drop(in_flight);
        self.watch.say(format!("  {id} → {}", text(&result)));
        let differs = match (&before, &after) {
            (Some(before), Some(after)) if !before.is(&**after) => {
                Some(format!("it left {} and leaves {}", before.text(), after.text()))
            }
            _ => None,
        };
        self.judge(id, &known, &result, differs, perhaps);
        let mut seen = self.watch.seen();
        let key = seen.keys.entry(call.keys.key.clone()).or_default();
        match &result {
            Ok(result) => key.applied = Some(result.clone()),
            Err(StepError::Unknown(_)) => key.unclear = true,
            Err(_) => {}
        }
        drop(seen);
        result
    }

    fn judge(
        &self,
        id: &CallId,
        known: &super::watch::KeySeen,
        result: &StepResult<Bytes>,
        differs: Option<String>,
        perhaps: bool,
    ) {
        let undo = id.op == CallOp::Undo;
        if let Some(first) = &known.applied {
            let rule = match (self.keyed(id.op), undo) {
                (true, false) => SagaRule::KeyedStepHonoursItsKey,
                (true, true) => SagaRule::UndoMayBeRepeated,
                (false, _) => SagaRule::OpaqueStepOnce,
            };
            let another = match result {
                Ok(result) => result != first,
                // It may fail, and is called again.
                Err(error) => matches!(error, StepError::Refused(_)),
            };
            let first = String::from_utf8_lossy(first);
            if rule == SagaRule::OpaqueStepOnce {
                self.watch.broke(rule, format!("{id} was called again, and it had happened: {first}"));
            } else if let Some(differs) = &differs {
                self.watch.broke(rule, format!("{id} with the same key had its effect again: {differs}"));
            } else if another {
                let now = text(result);
                self.watch.broke(rule, format!("{id} answered {first}, and with the same key {now}"));
            }
            return;
        }
        if let (Err(StepError::Refused(_) | StepError::NotApplied(_)), Some(differs)) = (result, &differs)
            && !known.unclear
        {
            let rule = SagaRule::RefusedLeavesNothing;
            self.watch.broke(rule, format!("{id} says {}, and left something: {differs}", text(result)));
        }
        if undo && let Err(StepError::Refused(why)) = result {
            let rule = if perhaps { SagaRule::UndoOfPerhapsWorks } else { SagaRule::UndoWorks };
            self.watch.broke(rule, format!("{id} refuses: {why}"));
        }
    }

    fn judge_lookup(&self, id: &CallId, call: &Call<App>, found: &LookedUp<Bytes>) {
        let known = self.watch.seen().keys.get(&call.keys.forward).cloned().unwrap_or_default();
        let lies = match (found, &known.applied) {
            (LookedUp::NotApplied, Some(result)) => {
                format!("{id} found nothing, and it happened: {}", String::from_utf8_lossy(result))
            }
            (LookedUp::Applied(result), None) if !known.unclear => {
                let result = String::from_utf8_lossy(result);
                format!("{id} found {result}, and it never happened")
            }
            _ => return,
        };
        self.watch.broke(SagaRule::LookupTellsTheTruth, lies);
    }
}

impl<App: Send + Sync + ?Sized + 'static> CallsRemote<App> for WatchedRemote<App> {
    fn run(self: Arc<Self>, call: Call<App>) -> Calling<StepResult<Bytes>> {
        Box::pin(self.faulty(CallOp::Run, call, Doing::Run))
    }

    fn undo(self: Arc<Self>, call: Call<App>, result: Option<Bytes>) -> Calling<StepResult<Bytes>> {
        Box::pin(self.faulty(CallOp::Undo, call, Doing::Undo(result)))
    }

    fn look_up(self: Arc<Self>, call: Call<App>) -> Calling<LookedUp<Bytes>> {
        Box::pin(async move {
            let (id, fault) = self.begins(CallOp::LookUp, &call, false);
            if fault == Some(CallFault::CrashBefore) {
                return self.watch.die().await;
            }
            let found = Arc::clone(&self.inner).look_up(again(&call)).await;
            self.watch.say(format!("  {id} → {found:?}"));
            self.judge_lookup(&id, &call, &found);
            match fault {
                Some(CallFault::CrashAfter) => self.watch.die().await,
                Some(CallFault::AnswerLost) => LookedUp::Unknown,
                _ => found,
            }
        })
    }
}

struct WatchedAtomic<App: ?Sized> {
    inner: Arc<dyn CallsAtomic<App>>,
    spec: StepSpec,
    watch: Arc<Watch>,
}

impl<App: Send + Sync + ?Sized + 'static> WatchedAtomic<App> {
    /// A fault that a transaction can have: crashes are beside the journal's writes.
    fn fails(&self, op: CallOp, call: &Call<App>) -> (CallId, Option<StepError>) {
        let (id, fault) = self.watch.begins_call(op, step_of(self.spec.name, call), false, true, false);
        let error = match fault {
            Some(CallFault::Refused) => Some(StepError::refused("the test refuses")),
            Some(CallFault::NotApplied) => Some(StepError::not_applied("the test rolls back")),
            _ => None,
        };
        (id, error)
    }
}

impl<App: Send + Sync + ?Sized + 'static> CallsAtomic<App> for WatchedAtomic<App> {
    fn run<'t>(&'t self, tx: &'t mut StepTx<'_>, call: &'t Call<App>) -> CallingIn<'t, StepResult<Bytes>> {
        Box::pin(async move {
            let (id, error) = self.fails(CallOp::Run, call);
            let _in_flight = self.watch.enters();
            let result = match error {
                Some(error) => Err(error),
                None => self.inner.run(tx, call).await,
            };
            self.watch.say(format!("  {id} → {}", text(&result)));
            result
        })
    }

    fn undo<'t>(
        &'t self,
        tx: &'t mut StepTx<'_>,
        call: &'t Call<App>,
        result: &'t [u8],
    ) -> CallingIn<'t, StepResult<Bytes>> {
        Box::pin(async move {
            let (id, error) = self.fails(CallOp::Undo, call);
            let _in_flight = self.watch.enters();
            let injected = error.is_some();
            let result = match error {
                Some(error) => Err(error),
                None => self.inner.undo(tx, call, result).await,
            };
            self.watch.say(format!("  {id} → {}", text(&result)));
            if let (Err(StepError::Refused(why)), false) = (&result, injected) {
                self.watch.broke(SagaRule::UndoWorks, format!("{id} refuses: {why}"));
            }
            result
        })
    }
}
