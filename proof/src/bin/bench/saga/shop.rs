//! Sagas of three trivial steps: what is measured is the engine and its journal.

use std::time::Duration;

use semel::saga::{
    At, AtomicStep, Definition, HasUndo, NoUndo, Registered, Saga, SagaResult, SagaStep, Sagas, SagasBuilder,
    StepError, StepResult, StepSpec, StepTx, StepType, sql::SqlJournal,
};

use crate::Failed;

/// The application: it has nothing, because the participants answer at once.
pub(super) struct Shop;

/// What a saga orders.
pub(super) type Order = String;

/// What the steps are.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Calls with a key: an entry before the call, one after it.
    Remote,
    /// Rows in the journal's database.
    Atomic,
}

const TIMEOUT: Duration = Duration::from_secs(5);

/// A call with a key, and an undo.
struct Reserve(&'static str);

impl StepType for Reserve {
    type Input = Order;
    type Output = u64;
    type Undo = HasUndo;

    fn spec(&self) -> StepSpec {
        StepSpec::keyed(self.0).timeout(TIMEOUT).safe_for(Duration::from_secs(24 * 3600))
    }
}

impl SagaStep<Shop> for Reserve {
    async fn run(&self, at: At<'_, Shop>, order: &Order) -> StepResult<u64> {
        Ok((at.key().as_str().len() + order.len()) as u64)
    }

    async fn undo(&self, _: At<'_, Shop>, _: &Order, _: Option<u64>) -> StepResult<()> {
        Ok(())
    }
}

/// The pivot.
struct Charge;

impl StepType for Charge {
    type Input = Order;
    type Output = u64;
    type Undo = NoUndo;

    fn spec(&self) -> StepSpec {
        StepSpec::keyed("charge").timeout(TIMEOUT)
    }
}

impl SagaStep<Shop> for Charge {
    async fn run(&self, at: At<'_, Shop>, order: &Order) -> StepResult<u64> {
        Ok((at.key().as_str().len() + order.len()) as u64)
    }
}

/// A row of the application's own.
struct Row(&'static str);

impl StepType for Row {
    type Input = Order;
    type Output = u64;
    type Undo = HasUndo;

    fn spec(&self) -> StepSpec {
        StepSpec::atomic(self.0).timeout(TIMEOUT)
    }
}

impl AtomicStep<Shop> for Row {
    async fn run(&self, tx: &mut StepTx<'_>, _: At<'_, Shop>, order: &Order) -> StepResult<u64> {
        let changed = if let Some(db) = tx.sqlite() {
            db.prepare_cached("INSERT INTO bench_row (name) VALUES (?1)")?.execute([order])? as u64
        } else if let Some(tx) = tx.postgres() {
            tx.execute_typed(
                "INSERT INTO bench_row (name) VALUES ($1)",
                &[(order, tokio_postgres::types::Type::TEXT)],
            )
            .await?
        } else {
            return Err(StepError::refused("there is no such database"));
        };
        Ok(changed)
    }

    async fn undo(&self, _: &mut StepTx<'_>, _: At<'_, Shop>, _: &Order, _: u64) -> StepResult<()> {
        Ok(())
    }
}

async fn remote(saga: Saga<Shop>, order: Order) -> SagaResult<u64> {
    let one = saga.run(Reserve("reserve"), order.clone()).await?;
    let two = saga.run(Reserve("truck"), order.clone()).await?;
    let (three, _) = saga.pivot(Charge, order).await?;
    Ok(one + two + three)
}

async fn atomic(saga: Saga<Shop>, order: Order) -> SagaResult<u64> {
    let one = saga.run(Row("create"), order.clone()).await?;
    let two = saga.run(Row("book"), order.clone()).await?;
    let (three, _) = saga.pivot(Row("bill"), order).await?;
    Ok(one + two + three)
}

/// A process that runs sagas of this kind.
pub(super) fn start(
    journal: SqlJournal,
    kind: Kind,
) -> Result<(Sagas<Shop>, Registered<Order, u64>), Failed> {
    let definition = match kind {
        Kind::Remote => {
            Definition::new("remote", 1, remote).step(Reserve("reserve")).step(Reserve("truck")).step(Charge)
        }
        Kind::Atomic => {
            let definition = Definition::new("atomic", 1, atomic);
            definition.atomic(Row("create")).atomic(Row("book")).atomic(Row("bill"))
        }
    };
    let mut sagas = SagasBuilder::new(journal, Shop);
    let registered = sagas.register(definition.deadline(Duration::from_secs(900)))?;
    Ok((sagas.start(), registered))
}
