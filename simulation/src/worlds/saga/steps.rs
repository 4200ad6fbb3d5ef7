//! The sagas of the world: their code, and steps that call the simulated participants.

use std::sync::Arc;
use std::time::Duration;

use semel::Key;
use semel::outbox::Event;
use semel::saga::{
    At, AtomicStep, Definition, HasUndo, LookedUp, NoUndo, NothingToUndo, Refused, Saga, SagaResult,
    SagaStep, StepError, StepResult, StepSpec, StepTx, StepType,
};

use super::network::Network;
use super::plan::{AFTER, BEFORE, PIVOT, Pause, SagaPlan, StepPlan};

/// A step as the plan has it; what may be undone is in its type.
pub(super) struct Planned<U> {
    saga: usize,
    name: &'static str,
    plan: StepPlan,
    spec: StepSpec,
    undo: std::marker::PhantomData<fn() -> U>,
}

impl<U> Planned<U> {
    fn new(network: &Network, saga: usize, name: &'static str, plan: &StepPlan) -> Self {
        let settings = &network.plan.settings;
        let keyed = plan.keyed || network.stage.has("an opaque step is declared keyed");
        let spec = match (plan.atomic, keyed) {
            (true, _) => StepSpec::atomic(name),
            (false, true) => StepSpec::keyed(name),
            (false, false) => StepSpec::opaque(name),
        };
        let settle = if network.stage.has("a lookup is believed at once") { 0 } else { settings.settle_ms };
        let mut spec = spec
            .timeout(Duration::from_millis(settings.timeout_ms))
            .settle(Duration::from_millis(settle))
            .attempts_max(settings.attempts_max);
        if let Some(ms) = plan.safe_for_ms {
            spec = spec.safe_for(Duration::from_millis(ms));
        }
        if plan.lookup && !plan.atomic {
            spec = spec.with_lookup();
        }
        let limit = settings.concurrent_max.filter(|_| !network.stage.has("a kind of step has no limit"));
        if let Some(max) = limit {
            spec = spec.concurrent_max(max);
        }
        Self { saga, name, plan: plan.clone(), spec, undo: std::marker::PhantomData }
    }

    async fn write(&self, tx: &mut StepTx<'_>, network: &Network, op: String) -> StepResult<u32> {
        let op = (self.saga, op);
        network.atomic(&op, &self.plan).await?;
        let rows = tx.memory().ok_or_else(|| StepError::refused("not in memory"))?;
        rows.write(format!("{} {}", op.0, op.1));
        Ok(7)
    }

    /// Declares it in the way its plan says.
    fn declare(self, definition: Definition<Network, u32, u32>) -> Definition<Network, u32, u32>
    where
        Self: SagaStep<Network> + AtomicStep<Network>,
    {
        if self.plan.atomic { definition.atomic(self) } else { definition.step(self) }
    }

    fn key(&self, at: &At<'_, Network>) -> Key {
        if at.app.stage.has("the key differs by attempt") {
            return at.intent().child(&format!("{}@{}", self.name, at.attempt));
        }
        at.key().clone()
    }
}

macro_rules! planned {
    ($undo:ty) => {
        impl StepType for Planned<$undo> {
            type Input = u32;
            type Output = u32;
            type Undo = $undo;

            fn spec(&self) -> StepSpec {
                self.spec.clone()
            }
        }

        impl AtomicStep<Network> for Planned<$undo> {
            async fn run(&self, tx: &mut StepTx<'_>, at: At<'_, Network>, _input: &u32) -> StepResult<u32> {
                self.write(tx, at.app, self.name.to_owned()).await
            }

            async fn undo(
                &self,
                tx: &mut StepTx<'_>,
                at: At<'_, Network>,
                _input: &u32,
                _result: u32,
            ) -> StepResult<()> {
                self.write(tx, at.app, format!("{}/undo", self.name)).await.map(drop)
            }
        }

        impl SagaStep<Network> for Planned<$undo> {
            async fn run(&self, at: At<'_, Network>, _input: &u32) -> StepResult<u32> {
                let _under_way = at.app.begin(self.name);
                at.app.call((self.saga, self.name.to_owned()), &self.key(&at), &self.plan).await
            }

            async fn undo(&self, at: At<'_, Network>, _input: &u32, _result: Option<u32>) -> StepResult<()> {
                let _under_way = at.app.begin(self.name);
                at.app.fence(at.forward_key());
                at.app.call((self.saga, format!("{}/undo", self.name)), at.key(), &self.plan).await.map(drop)
            }

            async fn look_up(&self, at: At<'_, Network>, _input: &u32) -> LookedUp<u32> {
                let _under_way = at.app.begin(self.name);
                at.app.look_up((self.saga, self.name.to_owned())).await
            }
        }
    };
}

planned!(HasUndo);
planned!(NothingToUndo);
planned!(NoUndo);

/// The name of a saga's definition.
pub(super) fn name(saga: usize) -> String {
    format!("saga{saga}")
}

pub(super) fn definition(network: &Network, saga: usize) -> Definition<Network, u32, u32> {
    let plan = Arc::new(network.plan.sagas[saga].clone());
    let code = {
        let (plan, network) = (Arc::clone(&plan), network.clone());
        move |handle: Saga<Network>, input: u32| code(network.clone(), saga, Arc::clone(&plan), handle, input)
    };
    let mut definition = Definition::new(&name(saga), 1, code);
    for (name, step) in BEFORE.into_iter().zip(&plan.before) {
        definition = if step.undo {
            Planned::<HasUndo>::new(network, saga, name, step).declare(definition)
        } else {
            Planned::<NothingToUndo>::new(network, saga, name, step).declare(definition)
        };
    }
    if let Some(step) = &plan.pivot {
        definition = Planned::<NoUndo>::new(network, saga, PIVOT, step).declare(definition);
    }
    for (name, step) in AFTER.into_iter().zip(&plan.after) {
        definition = Planned::<NoUndo>::new(network, saga, name, step).declare(definition);
    }
    if let Some(ms) = plan.deadline_ms {
        definition = definition.deadline(Duration::from_millis(ms));
    }
    definition
}

/// What a completed saga publishes.
pub(super) fn event(saga: usize) -> Event {
    Event::new("sagas", "saga.completed", saga.to_string()).expect("a valid event")
}

async fn code(
    network: Network,
    n: usize,
    plan: Arc<SagaPlan>,
    saga: Saga<Network>,
    input: u32,
) -> SagaResult<u32> {
    network.stage.count("runs of a saga's code", 1);
    // Published only by the run that completes it.
    saga.publish(event(n));
    let before = async |at: usize| -> SagaResult<u32> {
        let (name, step) = (BEFORE[at], &plan.before[at]);
        if step.undo {
            saga.run(Planned::<HasUndo>::new(&network, n, name, step), input).await
        } else {
            saga.run(Planned::<NothingToUndo>::new(&network, n, name, step), input).await
        }
    };
    let mut from = 0;
    if plan.parallel {
        let (one, other) = tokio::join!(biased; before(0), before(1));
        one?;
        other?;
        from = 2;
    }
    for at in from..plan.before.len() {
        before(at).await?;
    }
    match plan.pause {
        None => {}
        Some(Pause::Sleep(ms)) => saga.sleep(Duration::from_millis(ms)).await,
        Some(Pause::Signal(ms)) => {
            let signal = saga.signal::<u32>("go", Some(Duration::from_millis(ms))).await;
            signal.ok_or_else(|| Refused::new("no signal"))?;
        }
    }
    if let Some(step) = &plan.pivot {
        let (_, saga) = saga.pivot(Planned::<NoUndo>::new(&network, n, PIVOT, step), input).await?;
        for (name, step) in AFTER.into_iter().zip(&plan.after) {
            saga.run(Planned::<NoUndo>::new(&network, n, name, step), input).await;
        }
    }
    Ok(input)
}
