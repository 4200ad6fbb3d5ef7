//! The participants, and what they wrote down: the judge's only source of what happened.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use semel::Key;
use semel::saga::{LookedUp, StepError, StepResult};

use super::plan::{Does, Plan, StepPlan};
use crate::stage::Stage;

/// One operation of one step of one saga: `b0`, or `b0/undo`.
pub(super) type OpName = (usize, String);

/// What happened at the participant of one operation, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Note {
    /// A call came, with this key.
    Call(String),
    /// It had its effect.
    Effect(String),
    /// The caller knows that it had none.
    NoEffect,
    /// The caller was refused.
    Refused,
    /// The caller knows that it happened.
    Answered,
    /// A lookup said that it did not happen.
    LookedUpNothing,
    /// A call of a fenced key came and did nothing.
    Fenced,
}

#[derive(Default)]
pub(super) struct Ledger {
    pub(super) notes: BTreeMap<OpName, Vec<(Duration, Note)>>,
    /// Forward keys that an undo has fenced.
    fenced: Vec<String>,
    /// Rows of atomic steps that were noted.
    rows: usize,
    calls: BTreeMap<OpName, usize>,
    /// Calls under way, by process and step.
    under_way: BTreeMap<(usize, &'static str), u32>,
    /// More of them than a process may have at once.
    pub(super) too_many: Option<String>,
}

/// A call is under way until this is dropped.
pub(super) struct UnderWay {
    network: Network,
    step: &'static str,
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        let of = (self.network.process, self.step);
        if let Some(calls) = self.network.ledger().under_way.get_mut(&of) {
            *calls -= 1;
        }
    }
}

#[derive(Clone)]
pub(super) struct Network {
    pub(super) stage: Stage,
    pub(super) plan: Arc<Plan>,
    ledger: Arc<Mutex<Ledger>>,
    /// Whose calls go through it: each start of a process is another one.
    process: usize,
}

impl Network {
    pub(super) fn new(stage: Stage, plan: Arc<Plan>) -> Self {
        Self { stage, plan, ledger: Arc::default(), process: 0 }
    }

    /// The same for another process.
    pub(super) fn of_process(&self, process: usize) -> Self {
        Self { process, ..self.clone() }
    }

    /// A call of a step, of its undo or of its lookup begins.
    pub(super) fn begin(&self, step: &'static str) -> UnderWay {
        let mut ledger = self.ledger();
        let calls = ledger.under_way.entry((self.process, step)).or_default();
        *calls += 1;
        let calls = *calls;
        if self.plan.settings.concurrent_max.is_some_and(|max| calls > max) {
            ledger
                .too_many
                .get_or_insert_with(|| format!("{calls} calls of {step} in process {}", self.process));
        }
        drop(ledger);
        UnderWay { network: self.clone(), step }
    }

    pub(super) fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, op: &OpName, note: Note) {
        self.stage.trace(format_args!("saga {} {}: {note:?}", op.0, op.1));
        let at = self.stage.elapsed();
        self.ledger().notes.entry(op.clone()).or_default().push((at, note));
    }

    /// The effect happens, unless the participant honours keys and has it, or the key is fenced.
    fn take(&self, op: &OpName, key: &str, step: &StepPlan) {
        if self.ledger().fenced.iter().any(|fenced| fenced == key) {
            self.note(op, Note::Fenced);
            return;
        }
        let known =
            self.ledger().notes.get(op).is_some_and(|notes| {
                notes.iter().any(|(_, note)| matches!(note, Note::Effect(of) if of == key))
            });
        if step.keyed && known {
            return;
        }
        self.stage.count("effects", 1);
        self.note(op, Note::Effect(key.to_owned()));
    }

    /// A call of a step, or of its undo.
    pub(super) async fn call(&self, op: OpName, key: &Key, step: &StepPlan) -> StepResult<u32> {
        let key = key.as_str().to_owned();
        let undo = op.1.ends_with("/undo");
        let script = if undo { &step.undoes } else { &step.does };
        let nth = {
            let mut ledger = self.ledger();
            let nth = ledger.calls.entry(op.clone()).or_default();
            *nth += 1;
            *nth - 1
        };
        let does = script.get(nth).copied().unwrap_or(Does::Take(1));
        self.note(&op, Note::Call(key.clone()));
        self.stage.count("calls", 1);
        let pause = |ms: u64| tokio::time::sleep(Duration::from_millis(ms));
        match does {
            Does::Take(ms) => {
                pause(ms).await;
                self.take(&op, &key, step);
                pause(1).await;
                self.note(&op, Note::Answered);
                Ok(7)
            }
            Does::Refuse(ms) => {
                pause(ms).await;
                self.note(&op, Note::Refused);
                Err(StepError::refused("refused"))
            }
            Does::Fail(ms) => {
                pause(ms).await;
                self.note(&op, Note::NoEffect);
                Err(StepError::not_applied("failed"))
            }
            Does::LoseCall(ms) => {
                self.stage.count("calls lost", 1);
                pause(ms).await;
                Err(StepError::unknown("lost"))
            }
            Does::LoseAnswer(ms) => {
                self.stage.count("answers lost", 1);
                pause(ms).await;
                self.take(&op, &key, step);
                Err(StepError::unknown("lost"))
            }
            Does::Late(ms) => {
                self.stage.count("late arrivals", 1);
                let (network, op, step) = (self.clone(), op.clone(), step.clone());
                let after = self.plan.settings.timeout_ms + ms;
                // On its way whatever becomes of the caller.
                tokio::spawn(async move {
                    tokio::time::sleep(Duration::from_millis(after)).await;
                    network.take(&op, &key, &step);
                });
                std::future::pending().await
            }
            Does::Hang => std::future::pending().await,
        }
    }

    /// The work of an atomic step before it writes.
    pub(super) async fn atomic(&self, op: &OpName, step: &StepPlan) -> StepResult<()> {
        let script = if op.1.ends_with("/undo") { &step.undoes } else { &step.does };
        let nth = {
            let mut ledger = self.ledger();
            let nth = ledger.calls.entry(op.clone()).or_default();
            *nth += 1;
            *nth - 1
        };
        let pause = |ms: u64| tokio::time::sleep(Duration::from_millis(ms));
        match script.get(nth).copied().unwrap_or(Does::Take(1)) {
            Does::Take(ms) | Does::Late(ms) => {
                pause(ms).await;
                Ok(())
            }
            Does::Refuse(ms) => {
                pause(ms).await;
                self.note(op, Note::Refused);
                Err(StepError::refused("refused"))
            }
            Does::Fail(ms) | Does::LoseCall(ms) | Does::LoseAnswer(ms) => {
                pause(ms).await;
                Err(StepError::unknown("the statement failed"))
            }
            Does::Hang => std::future::pending().await,
        }
    }

    /// Notes what atomic steps have committed since.
    pub(super) fn note_rows(&self, rows: &[String]) {
        let seen = std::mem::replace(&mut self.ledger().rows, rows.len());
        for row in &rows[seen..] {
            if let Some((saga, op)) = row.split_once(' ') {
                self.stage.count("effects", 1);
                self.note(
                    &(saga.parse().unwrap_or_default(), op.to_owned()),
                    Note::Effect("atomic".to_owned()),
                );
            }
        }
    }

    /// An undo makes the forward key do nothing any more.
    pub(super) fn fence(&self, forward: &Key) {
        if !self.stage.has("an undo does not fence the forward key") {
            self.ledger().fenced.push(forward.as_str().to_owned());
        }
    }

    /// What is true at this moment.
    pub(super) async fn look_up(&self, op: OpName) -> LookedUp<u32> {
        tokio::time::sleep(Duration::from_millis(1)).await;
        self.stage.count("lookups", 1);
        let happened = self
            .ledger()
            .notes
            .get(&op)
            .is_some_and(|notes| notes.iter().any(|(_, note)| matches!(note, Note::Effect(_))));
        if happened {
            return LookedUp::Applied(7);
        }
        self.note(&op, Note::LookedUpNothing);
        LookedUp::NotApplied
    }
}
