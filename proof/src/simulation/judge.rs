//! The judge: what the effects wrote down, against what callers were told and what the store says.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use semel::store::{Filter, PAGE_RECORDS_MAX, Record, Store};
use semel::{Answer, Effect, GuardError, State, Verdict};

use super::process::Process;
use super::worker::World;

/// What a caller was told.
pub(super) struct Given {
    pub(super) key: String,
    pub(super) differs: bool,
    pub(super) result: Result<Answer, GuardError>,
}

#[derive(Default)]
struct Told {
    /// Per intent, the effects as they happened: by which downstream key, with which answer.
    effects: HashMap<String, Vec<(String, String)>>,
    given: Vec<Given>,
    /// Who is at what: a run of a dead process has ended.
    running: Vec<(String, Process)>,
    /// What a downstream that honours keys answered to each.
    remembered: HashMap<String, Result<String, String>>,
    decided: u32,
    crashes: u32,
    unclean: u32,
}

/// Everything that was written down beside the store.
#[derive(Clone, Default)]
pub(super) struct History(Arc<Mutex<Told>>);

impl History {
    fn told(&self) -> MutexGuard<'_, Told> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The downstream is asked to do it, or (the request being what it is) refuses it. One that honours keys
    /// gives the same answer to the same key; an opaque one does it again.
    pub(super) fn ask(
        &self,
        key: &str,
        effect: Effect,
        downstream: &str,
        refuses: bool,
    ) -> Result<String, String> {
        let mut told = self.told();
        if effect == Effect::Keyed
            && let Some(answer) = told.remembered.get(downstream)
        {
            return answer.clone();
        }
        let answer = if refuses {
            Err(format!("refused {key}"))
        } else {
            let effects = told.effects.entry(key.to_owned()).or_default();
            let body = format!("{key} effect {}", effects.len() + 1);
            effects.push((downstream.to_owned(), body.clone()));
            Ok(body)
        };
        told.remembered.insert(downstream.to_owned(), answer.clone());
        answer
    }

    pub(super) fn effect_of(&self, key: &str) -> Option<String> {
        self.told().effects.get(key).and_then(|effects| effects.first()).map(|(_, body)| body.clone())
    }

    pub(super) fn runs(&self, key: &str, process: &Process) {
        self.told().running.push((key.to_owned(), process.clone()));
    }

    pub(super) fn ends(&self, key: &str, process: &Process) {
        let mut told = self.told();
        let found = told.running.iter().position(|(running, theirs)| running == key && theirs.is(process));
        if let Some(found) = found {
            told.running.swap_remove(found);
        }
    }

    pub(super) fn is_running(&self, key: &str) -> bool {
        self.told().running.iter().any(|(running, process)| running == key && !process.is_dead())
    }

    pub(super) fn given(&self, given: Given) {
        self.told().given.push(given);
    }

    pub(super) fn decided(&self) {
        self.told().decided += 1;
    }

    pub(super) fn crashed(&self) {
        self.told().crashes += 1;
    }

    pub(super) fn drained(&self, clean: bool) {
        self.told().unclean += u32::from(!clean);
    }
}

/// What one history came to.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Report {
    /// Effects that happened.
    pub effects: usize,
    /// Calls that were answered with a stored outcome.
    pub replays: usize,
    /// Intents in doubt at the end.
    pub uncertain: usize,
    /// Decisions taken.
    pub decided: u32,
    /// Processes killed.
    pub crashes: u32,
}

impl Report {
    /// Adds another history's figures.
    pub fn add(&mut self, other: &Self) {
        self.effects += other.effects;
        self.replays += other.replays;
        self.uncertain += other.uncertain;
        self.decided += other.decided;
        self.crashes += other.crashes;
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { effects, replays, uncertain, decided, crashes } = self;
        write!(f, "{effects} effects, none twice; {replays} replays; {crashes} crashes; ")?;
        write!(f, "{decided} decisions; {uncertain} left in doubt, as they must be")
    }
}

/// A law that was broken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The seed that shows it.
    pub seed: u64,
    /// What happened.
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "seed {}: {}", self.seed, self.what)
    }
}

pub(super) struct Judge<'a> {
    world: &'a World,
}

impl<'a> Judge<'a> {
    pub(super) fn new(world: &'a World) -> Self {
        Self { world }
    }

    fn broken<T>(&self, what: String) -> Result<T, Violation> {
        Err(Violation { seed: self.world.seed, what })
    }

    pub(super) async fn judge(&self) -> Result<Report, Violation> {
        let filter = Filter { limit: PAGE_RECORDS_MAX, ..Filter::default() };
        let page = self.world.store.list(filter).await;
        let Ok(page) = page else { return self.broken("the store cannot be read".to_owned()) };
        let told = self.world.history.told();
        let mut report = Report { decided: told.decided, crashes: told.crashes, ..Report::default() };
        for (key, effects) in &told.effects {
            report.effects += effects.len();
            if effects.len() > 1 {
                return self.broken(format!("{key} had {} effects", effects.len()));
            }
        }
        for record in &page.records {
            let state = record.state_at(page.now);
            report.uncertain += usize::from(state == Some(State::Uncertain));
            self.judge_record(record, state, &told)?;
        }
        for given in &told.given {
            self.judge_given(given, &told)?;
            report.replays += usize::from(given.result.as_ref().is_ok_and(|answer| answer.replayed));
        }
        if told.unclean > 0 {
            return self.broken("a drain did not end although nothing runs".to_owned());
        }
        Ok(report)
    }

    fn judge_record(&self, record: &Record, state: Option<State>, told: &Told) -> Result<(), Violation> {
        let key = record.intent.key().as_str();
        let effect = told.effects.get(key).and_then(|effects| effects.first());
        let body = record.outcome.as_ref().and_then(|outcome| outcome.body_bytes());
        match (state, effect) {
            (Some(State::Completed), None) => self.broken(format!("{key} is completed but never happened")),
            (Some(State::Completed), Some((_, happened))) if body.is_none_or(|body| body != happened) => {
                self.broken(format!("{key} is remembered as {body:?}, but {happened:?} happened"))
            }
            (Some(State::FailedFinal), Some(_)) => self.broken(format!("{key} is refused but happened")),
            (Some(State::FailedRetryable), Some(_)) if record.head.effect == Effect::Opaque => {
                self.broken(format!("{key} may run again but happened"))
            }
            (Some(State::Uncertain | State::InProgress), _) if self.world.calm => {
                self.broken(format!("{key} is left {state:?} although nothing went wrong"))
            }
            (None, _) => self.broken(format!("{key} expired within its retention")),
            _ => Ok(()),
        }
    }

    fn judge_given(&self, given: &Given, told: &Told) -> Result<(), Violation> {
        let (key, Ok(answer)) = (&given.key, &given.result) else { return Ok(()) };
        if given.differs
            && !told.given.iter().all(|other| other.key != *key || other.differs || other.result.is_err())
        {
            return self.broken(format!("{key}: two different requests were both answered"));
        }
        if answer.verdict != Verdict::Completed {
            return Ok(());
        }
        let happened = told.effects.get(key).and_then(|effects| effects.first());
        let said = answer.outcome.body_bytes();
        match (happened, said) {
            (Some((_, happened)), Some(said)) if said == happened => Ok(()),
            _ => self.broken(format!("{key}: a caller was told {said:?}, but {happened:?} happened")),
        }
    }
}
