//! A saga and its application as a user writes them, with a mistake of the test's choice.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard};

use semel::Key;
use semel::saga::{At, LookedUp, Refused, Saga, SagaResult, StepError, StepResult};

/// What is wrong with the user's code.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Mistake {
    None,
    UndoIsNotIdempotent,
    UndoOfTheSecondChoiceIsNotIdempotent,
    UndoFailsForNone,
    UndoDoesNotFenceTheStep,
    UndoNeverWorks,
    KeyIsIgnored,
    AnswersAnew,
    LookupNeverFinds,
    LookupAlwaysFinds,
    LookupFindsOnce,
    RefusesAndTakes,
    RandomInput,
    RandomStep,
    Clock,
    RandomResult,
    EffectOutsideOfSteps,
    WaitsByItself,
    Panics,
}

#[derive(Default)]
pub(super) struct Ledger {
    /// Holds by key.
    pub(super) holds: BTreeMap<String, u32>,
    released: BTreeSet<String>,
    pub(super) stock: i64,
    /// The accounts' postings: nothing but charges, and what the code does by itself.
    pub(super) charges: Vec<String>,
    pub(super) mails: BTreeSet<String>,
    numbers: u32,
    /// Charges that were looked up.
    looked_up: BTreeSet<String>,
}

pub(super) struct Depot {
    ledger: Mutex<Ledger>,
    mistake: Mistake,
}

impl Depot {
    pub(super) fn with(mistake: Mistake) -> Self {
        Self { ledger: Mutex::default(), mistake }
    }

    pub(super) fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap()
    }

    fn has(&self, mistake: Mistake) -> bool {
        self.mistake == mistake
    }

    /// What is left, as a user would count it.
    pub(super) fn left(&self) -> (usize, i64, usize, usize) {
        let ledger = self.ledger();
        (ledger.holds.len(), ledger.stock, ledger.charges.len(), ledger.mails.len())
    }

    fn hold(&self, key: &Key, amount: u32) -> StepResult<u32> {
        let mut ledger = self.ledger();
        ledger.numbers += 1;
        let number = ledger.numbers;
        let key = key.as_str().to_owned();
        if ledger.released.contains(&key) {
            return Err(StepError::refused("it was released before it came"));
        }
        if self.has(Mistake::KeyIsIgnored) {
            ledger.stock -= i64::from(amount);
            ledger.holds.insert(format!("{key}-{number}"), amount);
            return Ok(amount);
        }
        if ledger.holds.insert(key, amount).is_none() {
            ledger.stock -= i64::from(amount);
        }
        Ok(if self.has(Mistake::AnswersAnew) { number } else { amount })
    }

    /// `repeats`: the mistake by which it gives back twice.
    fn release(&self, key: &Key, held: Option<u32>, repeats: Mistake) -> StepResult<()> {
        let mut ledger = self.ledger();
        if self.has(Mistake::UndoNeverWorks) {
            return Err(StepError::not_applied("the depot is closed"));
        }
        if held.is_none() && self.has(Mistake::UndoFailsForNone) {
            return Err(StepError::refused("which hold?"));
        }
        if !self.has(Mistake::UndoDoesNotFenceTheStep) {
            ledger.released.insert(key.as_str().to_owned());
        }
        let was = ledger.holds.remove(key.as_str());
        match (was, held) {
            (Some(amount), _) => ledger.stock += i64::from(amount),
            (None, Some(amount)) if self.has(repeats) => ledger.stock += i64::from(amount),
            (None, _) => {}
        }
        Ok(())
    }
}

#[semel::step(keyed, safe_for = "24h", undo = release)]
pub(super) async fn hold(at: At<'_, Depot>, amount: &u32) -> StepResult<u32> {
    at.app.hold(at.key(), *amount)
}

async fn release(at: At<'_, Depot>, _: &u32, held: Option<u32>) -> StepResult<()> {
    at.app.release(at.forward_key(), held, Mistake::UndoIsNotIdempotent)
}

/// The second choice.
#[semel::step(keyed, undo = release_elsewhere)]
pub(super) async fn hold_elsewhere(at: At<'_, Depot>, amount: &u32) -> StepResult<u32> {
    at.app.hold(at.key(), *amount)
}

async fn release_elsewhere(at: At<'_, Depot>, _: &u32, held: Option<u32>) -> StepResult<()> {
    at.app.release(at.forward_key(), held, Mistake::UndoOfTheSecondChoiceIsNotIdempotent)
}

#[semel::step(opaque, lookup = find, timeout = "10s")]
pub(super) async fn charge(at: At<'_, Depot>, cents: &u32) -> StepResult<String> {
    at.app.ledger().charges.push(at.key().as_str().to_owned());
    if at.app.has(Mistake::RefusesAndTakes) {
        return Err(StepError::refused("no money"));
    }
    Ok(format!("paid {cents}"))
}

async fn find(at: At<'_, Depot>, cents: &u32) -> LookedUp<String> {
    let charged = at.app.ledger().charges.iter().any(|key| key == at.key().as_str());
    let again = !at.app.ledger().looked_up.insert(at.key().as_str().to_owned());
    if again && at.app.has(Mistake::LookupFindsOnce) {
        return LookedUp::NotApplied;
    }
    let lies = at.app.has(if charged { Mistake::LookupNeverFinds } else { Mistake::LookupAlwaysFinds });
    if charged != lies { LookedUp::Applied(format!("paid {cents}")) } else { LookedUp::NotApplied }
}

#[semel::step(keyed)]
pub(super) async fn mail(at: At<'_, Depot>, _: &String) -> StepResult<()> {
    at.app.ledger().mails.insert(at.key().as_str().to_owned());
    Ok(())
}

#[semel::saga(name = "order", deadline = "15m", steps(mail))]
pub(super) async fn order(s: Saga<Depot>, amount: u32) -> SagaResult<String> {
    let mistake = s.app().mistake;
    let mut cents = amount * 100;
    match mistake {
        Mistake::RandomInput => cents = rand(),
        Mistake::Clock => {
            let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
            cents = now.subsec_nanos();
        }
        Mistake::EffectOutsideOfSteps => s.app().ledger().charges.push("by hand".to_owned()),
        Mistake::WaitsByItself => tokio::time::sleep(std::time::Duration::from_secs(1)).await,
        Mistake::Panics => panic!("a bug"),
        _ => {}
    }
    if mistake == Mistake::RandomStep && rand().is_multiple_of(2) {
        s.sleep(std::time::Duration::from_secs(1)).await;
    }
    if s.run(hold, amount).await? == 0 {
        return Err(Refused::new("nothing to hold"));
    }
    s.run(hold, amount + 1).await?;
    let (paid, s) = s.pivot(charge, cents).await?;
    s.run(mail, paid.clone()).await;
    Ok(if mistake == Mistake::RandomResult { rand().to_string() } else { paid })
}

/// Takes another depot where the first one refuses.
#[semel::saga(name = "choice", deadline = "15m")]
pub(super) async fn choice(s: Saga<Depot>, amount: u32) -> SagaResult<String> {
    if s.run(hold, amount).await.is_err() {
        s.run(hold_elsewhere, amount).await?;
    }
    let (paid, _) = s.pivot(charge, amount * 100).await?;
    Ok(paid)
}

/// Another number each time, in each process.
fn rand() -> u32 {
    use std::hash::{BuildHasher, Hasher};
    let mut hasher = std::collections::hash_map::RandomState::new().build_hasher();
    hasher.write_u8(1);
    hasher.finish() as u32
}
