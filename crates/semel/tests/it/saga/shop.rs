//! A shop whose participants keep a ledger, and answer as the test says.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use semel::saga::memory::MemoryJournal;
use semel::saga::{
    At, Definition, HasUndo, LookedUp, NoUndo, NothingToUndo, Refused, Registered, Saga, SagaEnd, SagaError,
    SagaFilter, SagaOptions, SagaRecord, SagaResult, SagaStep, Sagas, SagasBuilder, StepError, StepResult,
    StepSpec, StepType,
};
use semel::{Key, Scope, StoreTime};

/// What a participant does with a call.
#[derive(Clone, Debug)]
pub(super) enum Does {
    Takes,
    Refuses,
    Fails,
    /// It takes it, and the answer is lost.
    TakesAndLosesTheAnswer,
    /// It does not take it, and the caller does not know.
    LosesTheCall,
    Hangs,
    Panics,
}

#[derive(Default)]
pub(super) struct Ledger {
    /// `hold sm1-…`, by key: what happened, in order.
    pub(super) effects: Vec<(String, Key)>,
    /// Every call that came, also those that did nothing.
    pub(super) calls: Vec<String>,
    /// What the next calls of a step come to. Then they are taken.
    pub(super) script: Vec<(String, VecDeque<Does>)>,
    /// What the bank's lookup finds out; `None`: what is true.
    pub(super) lookup: Option<LookedUp<String>>,
}

#[derive(Clone, Default)]
pub(super) struct Shop(pub(super) Arc<Mutex<Ledger>>);

impl Shop {
    pub(super) fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.0.lock().unwrap()
    }

    pub(super) fn script(&self, step: &str, does: impl IntoIterator<Item = Does>) {
        self.ledger().script.push((step.to_owned(), does.into_iter().collect()));
    }

    /// The names of what happened, in order.
    pub(super) fn effects(&self) -> Vec<String> {
        self.ledger().effects.iter().map(|(name, _)| name.clone()).collect()
    }

    pub(super) fn calls(&self, name: &str) -> usize {
        self.ledger().calls.iter().filter(|call| *call == name).count()
    }

    /// One call. A participant that honours keys does the same thing once.
    pub(super) async fn call(&self, name: &str, key: &Key, honours_keys: bool) -> StepResult<String> {
        let does = {
            let mut ledger = self.ledger();
            ledger.calls.push(name.to_owned());
            let script = ledger.script.iter_mut().find(|(step, does)| step == name && !does.is_empty());
            script.and_then(|(_, does)| does.pop_front()).unwrap_or(Does::Takes)
        };
        match does {
            Does::Takes => {}
            Does::Refuses => return Err(StepError::refused("no")),
            Does::Fails => return Err(StepError::not_applied("try again")),
            Does::LosesTheCall => return Err(StepError::unknown("connection reset")),
            Does::Hangs => std::future::pending().await,
            Does::Panics => panic!("a step panics"),
            Does::TakesAndLosesTheAnswer => {
                self.take(name, key, honours_keys);
                return Err(StepError::unknown("connection reset"));
            }
        }
        Ok(self.take(name, key, honours_keys))
    }

    fn take(&self, name: &str, key: &Key, honours_keys: bool) -> String {
        let mut ledger = self.ledger();
        let known = ledger.effects.iter().any(|(effect, of)| effect == name && of == key);
        if !(honours_keys && known) {
            ledger.effects.push((name.to_owned(), key.clone()));
        }
        format!("{name} done")
    }
}

/// Holds stock: keyed.
pub(super) struct Hold;

impl StepType for Hold {
    type Input = String;
    type Output = String;
    type Undo = HasUndo;

    fn spec(&self) -> StepSpec {
        StepSpec::keyed("hold").safe_for(Duration::from_secs(3_600)).timeout(Duration::from_secs(5))
    }
}

impl SagaStep<Shop> for Hold {
    async fn run(&self, at: At<'_, Shop>, _sku: &String) -> StepResult<String> {
        at.app.call("hold", at.key(), true).await
    }

    async fn undo(&self, at: At<'_, Shop>, _sku: &String, result: Option<String>) -> StepResult<()> {
        let name = if result.is_some() { "release" } else { "release perhaps" };
        at.app.call(name, at.key(), true).await.map(drop)
    }
}

/// Reserves a truck: keyed, the second step with an undo.
pub(super) struct Truck;

impl StepType for Truck {
    type Input = u32;
    type Output = String;
    type Undo = HasUndo;

    fn spec(&self) -> StepSpec {
        StepSpec::keyed("truck").timeout(Duration::from_secs(5)).attempts_max(3)
    }
}

impl SagaStep<Shop> for Truck {
    async fn run(&self, at: At<'_, Shop>, _day: &u32) -> StepResult<String> {
        at.app.call("truck", at.key(), true).await
    }

    async fn undo(&self, at: At<'_, Shop>, _day: &u32, result: Option<String>) -> StepResult<()> {
        let name = if result.is_some() { "no truck" } else { "no truck perhaps" };
        at.app.call(name, at.key(), true).await.map(drop)
    }
}

/// Reads the price: nothing to undo.
pub(super) struct Price;

impl StepType for Price {
    type Input = String;
    type Output = u64;
    type Undo = NothingToUndo;

    fn spec(&self) -> StepSpec {
        StepSpec::keyed("price")
    }
}

impl SagaStep<Shop> for Price {
    async fn run(&self, at: At<'_, Shop>, _sku: &String) -> StepResult<u64> {
        at.app.call("price", at.key(), true).await.map(|_| 42)
    }
}

/// Charges: opaque, the pivot.
pub(super) struct Charge {
    pub(super) lookup: bool,
}

impl StepType for Charge {
    type Input = u64;
    type Output = String;
    type Undo = NoUndo;

    fn spec(&self) -> StepSpec {
        let spec = StepSpec::opaque("charge").timeout(Duration::from_secs(5)).settle(Duration::from_secs(5));
        if self.lookup { spec.with_lookup() } else { spec }
    }
}

impl SagaStep<Shop> for Charge {
    async fn run(&self, at: At<'_, Shop>, _cents: &u64) -> StepResult<String> {
        at.app.call("charge", at.key(), false).await
    }

    async fn look_up(&self, at: At<'_, Shop>, _cents: &u64) -> LookedUp<String> {
        let mut ledger = at.app.ledger();
        ledger.calls.push("look up".to_owned());
        if let Some(found) = &ledger.lookup {
            return found.clone();
        }
        let charged = ledger.effects.iter().any(|(name, key)| name == "charge" && key == at.key());
        if charged { LookedUp::Applied("charge done".to_owned()) } else { LookedUp::NotApplied }
    }
}

/// Sends a mail: after the pivot.
pub(super) struct Mail;

impl StepType for Mail {
    type Input = String;
    type Output = String;
    type Undo = NoUndo;

    fn spec(&self) -> StepSpec {
        StepSpec::keyed("mail").attempts_max(3)
    }
}

impl SagaStep<Shop> for Mail {
    async fn run(&self, at: At<'_, Shop>, _text: &String) -> StepResult<String> {
        at.app.call("mail", at.key(), true).await
    }
}

/// The order saga of most tests.
pub(super) async fn order(saga: Saga<Shop>, sku: String) -> SagaResult<String> {
    saga.run(Hold, sku.clone()).await?;
    saga.run(Truck, 7).await?;
    let cents = saga.run(Price, sku).await?;
    if cents > 1_000 {
        return Err(Refused::new("too expensive"));
    }
    let (paid, saga) = saga.pivot(Charge { lookup: false }, cents).await?;
    saga.run(Mail, paid.clone()).await;
    Ok(paid)
}

pub(super) fn definition(lookup: bool) -> Definition<Shop, String, String> {
    Definition::new("order", 1, order).step(Hold).step(Truck).step(Price).step(Charge { lookup }).step(Mail)
}

/// A journal in virtual time.
pub(super) fn journal() -> MemoryJournal {
    let begin = tokio::time::Instant::now();
    MemoryJournal::with_clock(move || StoreTime(1_000_000 + begin.elapsed().as_millis() as u64))
}

pub(super) struct Open {
    pub(super) shop: Shop,
    pub(super) journal: MemoryJournal,
    pub(super) sagas: Sagas<Shop>,
    pub(super) order: Registered<String, String>,
}

impl Open {
    pub(super) fn new(definition: Definition<Shop, String, String>) -> Self {
        Self::over(journal(), Shop::default(), definition)
    }

    /// Another process over the same journal.
    pub(super) fn over(
        journal: MemoryJournal,
        shop: Shop,
        definition: Definition<Shop, String, String>,
    ) -> Self {
        let mut sagas = SagasBuilder::new(journal.clone(), shop.clone()).options(options());
        let order = sagas.register(definition).unwrap();
        Self { shop, journal, sagas: sagas.start(), order }
    }

    pub(super) async fn once(&self, key: &str) -> Result<SagaEnd<String>, SagaError> {
        self.once_with(key, "book").await
    }

    pub(super) async fn once_with(&self, key: &str, sku: &str) -> Result<SagaEnd<String>, SagaError> {
        let (acme, key) = (Scope::tenant("acme").unwrap(), Key::new(key).unwrap());
        self.sagas.once(&self.order, &acme, &key, &sku.to_owned()).await
    }

    pub(super) async fn only(&self) -> SagaRecord {
        let mut sagas = self.sagas.list(SagaFilter::default()).await.unwrap();
        assert_eq!(sagas.len(), 1);
        sagas.remove(0)
    }
}

pub(super) fn options() -> SagaOptions {
    let mut options = SagaOptions::default();
    options.wait = Duration::from_secs(3_600);
    options
}

pub(super) fn completed() -> SagaEnd<String> {
    SagaEnd::Completed("charge done".to_owned())
}
