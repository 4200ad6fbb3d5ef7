//! What the ledger, the callers and the store say, side by side.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use semel::State;
use semel::store::{Store, StoreError};
use tokio::time::Instant;

use super::answers::{Answer, Answers, What};
use super::party::{Kind, Party, intent_of, key_of, receipt_of};
use super::{Downstream, Failed};

/// A store that is there answers within this.
const PATIENCE: Duration = Duration::from_secs(60);

/// Whether intents may be left uncertain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Doubt {
    /// None: no process died, so each worker has brought its outcome.
    None,
    /// Some, where an owner died or a claim reached the store after its caller had given up.
    Some,
    /// The store cannot be asked what it knows: it has said that it lost its memory.
    Lost,
}

/// What was found.
#[derive(Clone, Default, Debug)]
pub struct Judgement {
    /// Different intents.
    pub intents: usize,
    /// Calls that got an answer.
    pub calls: usize,
    /// Calls answered "done", replays included.
    pub done: usize,
    /// Calls answered "the store is unavailable".
    pub unavailable: usize,
    /// Calls answered "the store has lost data".
    pub lost: usize,
    /// Effects that happened.
    pub effects: usize,
    /// Intents left uncertain whose effect happened.
    pub uncertain_happened: usize,
    /// Intents left uncertain that never started.
    pub uncertain_never: usize,
    /// What must not be.
    pub objections: Vec<String>,
}

impl Judgement {
    /// Panics where something is wrong.
    pub fn expect_clean(&self) -> &Self {
        assert!(self.objections.is_empty(), "{self}\n{}", self.objections.join("\n"));
        self
    }
}

impl fmt::Display for Judgement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} intents, {} calls: {} done, {} unavailable, {} lost; {} effects; uncertain: {} happened, {} never \
             started; {} objections",
            self.intents,
            self.calls,
            self.done,
            self.unavailable,
            self.lost,
            self.effects,
            self.uncertain_happened,
            self.uncertain_never,
            self.objections.len()
        )
    }
}

/// Judges the first `intents` intents. Everybody has to be back, and the store's servers whole.
pub async fn judge(party: &Party, intents: usize, doubt: Doubt) -> Result<Judgement, Failed> {
    let mut by_key: BTreeMap<String, Vec<What>> = BTreeMap::new();
    let mut found = Judgement { intents, ..Judgement::default() };
    for Answer { key, what } in Answers::read(&party.dir)? {
        found.calls += 1;
        match what {
            What::Unavailable => found.unavailable += 1,
            What::Lost => found.lost += 1,
            What::Done(_) | What::Unstored(_) | What::Replayed(_) => found.done += 1,
            _ => {}
        }
        by_key.entry(key).or_default().push(what);
    }
    let mut charges = Downstream::open(&party.dir)?.charges()?;
    found.effects = charges.values().map(Vec::len).sum();
    for number in 0..intents {
        let key = key_of(number);
        let receipts = charges.remove(&key).unwrap_or_default();
        let got = by_key.get(&key).map_or(&[][..], Vec::as_slice);
        compare(&key, &receipts, got, &mut found.objections);
        if doubt != Doubt::Lost {
            against_store(party, number, &receipts, got, doubt, &mut found).await?;
        }
    }
    for (key, receipts) in charges {
        found.objections.push(format!("{key}: it was never asked for, and it happened: {receipts:?}"));
    }
    Ok(found)
}

/// The ledger against the callers.
fn compare(key: &str, receipts: &[String], got: &[What], objections: &mut Vec<String>) {
    if receipts.len() > 1 {
        objections.push(format!("{key}: happened {} times", receipts.len()));
    }
    for what in got {
        if let What::Wrong(why) = what {
            objections.push(format!("{key}: a caller got {why}"));
        }
    }
    let mut answers: Vec<&str> = got.iter().filter_map(What::receipt).collect();
    answers.sort_unstable();
    answers.dedup();
    match answers[..] {
        [] => {}
        [answer] if receipts.is_empty() => {
            objections.push(format!("{key}: answered done ({answer}), and it never happened"));
        }
        [answer] if receipts.iter().any(|receipt| receipt == answer) => {}
        [answer] => objections.push(format!("{key}: answered {answer}, but the ledger says {receipts:?}")),
        _ => objections.push(format!("{key}: callers got different answers: {answers:?}")),
    }
}

/// Asks until the store answers: its bounds may be short, and the machine busy.
async fn at_last<T>(ask: impl AsyncFn() -> Result<T, StoreError>) -> Result<T, StoreError> {
    let began = Instant::now();
    loop {
        match ask().await {
            Err(error) if error.may_retry() && began.elapsed() < PATIENCE => {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            answer => return answer,
        }
    }
}

/// The store against both.
async fn against_store(
    party: &Party,
    number: usize,
    receipts: &[String],
    got: &[What],
    doubt: Doubt,
    found: &mut Judgement,
) -> Result<(), Failed> {
    let (key, store) = (key_of(number), party.store());
    let id = intent_of(number)?.id();
    let record = at_last(async || store.get(id).await).await?;
    let now = at_last(async || store.now().await).await?;
    let state = record.as_ref().and_then(|record| record.state_at(now));
    let answered = got.iter().any(|what| what.receipt().is_some());
    let objection = match state {
        Some(State::Completed) => {
            let kept = record.and_then(|record| record.outcome).map(|outcome| receipt_of(&outcome));
            let agrees = kept.as_ref().is_some_and(|kept| receipts.contains(kept));
            (!agrees).then(|| format!("the store has {kept:?}, the ledger {receipts:?}"))
        }
        Some(State::Uncertain) => {
            let count =
                if receipts.is_empty() { &mut found.uncertain_never } else { &mut found.uncertain_happened };
            *count += 1;
            // A process that brings the outcome after it answers may die in between.
            let known = got.iter().any(|what| matches!(what, What::Done(_) | What::Replayed(_)));
            if known || (answered && doubt == Doubt::None) {
                Some("answered done, and the store does not know it".to_owned())
            } else if Kind::of(number) != Kind::Opaque {
                Some(format!("{:?} is left uncertain: it can be run again or looked up", Kind::of(number)))
            } else {
                (doubt == Doubt::None).then(|| format!("left uncertain; the ledger says {receipts:?}"))
            }
        }
        // Callers got "held"; then the owner of the claim gave it back, and no caller asked again.
        Some(State::FailedRetryable)
            if doubt == Doubt::Some && receipts.is_empty() && !answered && got.contains(&What::Held) =>
        {
            found.uncertain_never += 1;
            None
        }
        other => {
            Some(format!("the store says {other:?} after everybody was answered; the ledger {receipts:?}"))
        }
    };
    if let Some(objection) = objection {
        found.objections.push(format!("{key}: {objection}"));
    }
    Ok(())
}
