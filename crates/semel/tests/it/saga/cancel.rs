//! A cancel that is recorded before the pivot begins counts, wherever the saga is by then.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use semel::saga::{
    At, AtomicStep, Definition, NoUndo, NothingToUndo, Requested, Saga, SagaEnd, SagaResult, SagaStep,
    SagasBuilder, StepResult, StepSpec, StepTx, StepType, UndoCause,
};
use semel::{Key, Scope};
use tokio::sync::Semaphore;

use super::shop::{journal, options};

/// A participant that answers each call when it is let.
#[derive(Clone)]
struct Gate {
    opens: Arc<Semaphore>,
    /// Calls that came.
    calls: Arc<AtomicUsize>,
}

impl Gate {
    async fn call(&self) -> StepResult<u32> {
        self.calls.fetch_add(1, Ordering::SeqCst);
        self.opens.acquire().await?.forget();
        Ok(1)
    }
}

/// A step of which one is called at once, as an atomic one or not.
macro_rules! step {
    ($step:ident, $name:literal, $undo:ty) => {
        struct $step<const ATOMIC: bool>;

        impl<const ATOMIC: bool> StepType for $step<ATOMIC> {
            type Input = u32;
            type Output = u32;
            type Undo = $undo;

            fn spec(&self) -> StepSpec {
                let spec = if ATOMIC { StepSpec::atomic($name) } else { StepSpec::keyed($name) };
                spec.timeout(Duration::from_secs(3_600)).concurrent_max(1)
            }
        }

        impl<const ATOMIC: bool> SagaStep<Gate> for $step<ATOMIC> {
            async fn run(&self, at: At<'_, Gate>, _: &u32) -> StepResult<u32> {
                at.app.call().await
            }
        }

        impl<const ATOMIC: bool> AtomicStep<Gate> for $step<ATOMIC> {
            async fn run(&self, _: &mut StepTx<'_>, at: At<'_, Gate>, _: &u32) -> StepResult<u32> {
                at.app.call().await
            }
        }
    };
}

step!(Step, "step", NothingToUndo);
step!(Pivot, "pivot", NoUndo);

async fn one_step<const ATOMIC: bool>(saga: Saga<Gate>, n: u32) -> SagaResult<u32> {
    saga.run(Step::<ATOMIC>, n).await
}

async fn one_pivot<const ATOMIC: bool>(saga: Saga<Gate>, n: u32) -> SagaResult<u32> {
    let (n, _) = saga.pivot(Pivot::<ATOMIC>, n).await?;
    Ok(n)
}

async fn step_and_pivot<const ATOMIC: bool>(saga: Saga<Gate>, n: u32) -> SagaResult<u32> {
    let n = saga.run(Step::<false>, n).await?;
    let (n, _) = saga.pivot(Pivot::<ATOMIC>, n).await?;
    Ok(n)
}

/// Starts so many sagas, cancels the last one while the first one is called, and lets the calls through. Returns their ends,
/// and how many calls came.
async fn cancelled_meanwhile(
    definition: Definition<Gate, u32, u32>,
    sagas_started: u32,
) -> (Vec<SagaEnd<u32>>, usize) {
    let gate = Gate { opens: Arc::new(Semaphore::new(0)), calls: Arc::default() };
    let mut builder = SagasBuilder::new(journal(), gate.clone()).options(options());
    let definition = builder.register(definition).unwrap();
    let sagas = builder.start();
    tokio::time::sleep(Duration::from_secs(1)).await;
    let mut numbers = Vec::new();
    for n in 0..sagas_started {
        let key = Key::new(format!("saga-{n}")).unwrap();
        numbers.push(sagas.submit(&definition, &Scope::single_tenant(), &key, &n).await.unwrap());
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    assert_eq!(sagas.cancel(*numbers.last().unwrap()).await.unwrap(), Requested::Recorded);
    tokio::time::sleep(Duration::from_secs(1)).await;
    gate.opens.add_permits(10);
    let mut ends = Vec::new();
    for number in numbers {
        ends.push(sagas.end(&definition, number).await.unwrap());
    }
    (ends, gate.calls.load(Ordering::SeqCst))
}

fn cancelled() -> SagaEnd<u32> {
    SagaEnd::Undone { cause: UndoCause::Cancelled, why: "cancelled".to_owned() }
}

#[tokio::test(start_paused = true)]
async fn a_saga_that_waits_for_its_kind_is_not_called_any_more() {
    for definition in [
        Definition::new("saga", 1, one_step::<false>).step(Step::<false>),
        Definition::new("saga", 1, one_step::<true>).atomic(Step::<true>),
        Definition::new("saga", 1, one_pivot::<false>).step(Pivot::<false>),
        Definition::new("saga", 1, one_pivot::<true>).atomic(Pivot::<true>),
    ] {
        let ended = cancelled_meanwhile(definition, 2).await;
        assert_eq!(ended, (vec![SagaEnd::Completed(1), cancelled()], 1));
    }
}

/// The worker learns of it when it ends the saga, or begins the pivot.
#[tokio::test(start_paused = true)]
async fn a_saga_in_its_last_call_before_the_pivot_or_the_end_is_undone() {
    for definition in [
        Definition::new("saga", 1, one_step::<false>).step(Step::<false>),
        Definition::new("saga", 1, one_step::<true>).atomic(Step::<true>),
        Definition::new("saga", 1, step_and_pivot::<false>).step(Step::<false>).step(Pivot::<false>),
        Definition::new("saga", 1, step_and_pivot::<true>).step(Step::<false>).atomic(Pivot::<true>),
    ] {
        assert_eq!(cancelled_meanwhile(definition, 1).await, (vec![cancelled()], 1));
    }
}

/// From its begin on the pivot decides.
#[tokio::test(start_paused = true)]
async fn during_the_pivot_it_comes_too_late() {
    let definition = Definition::new("saga", 1, one_pivot::<false>).step(Pivot::<false>);
    assert_eq!(cancelled_meanwhile(definition, 1).await, (vec![SagaEnd::Completed(1)], 1));
}
