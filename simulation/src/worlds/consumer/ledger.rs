//! What the simulated ends wrote down. Judges the history, together with the laws.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::plan::{Behaviour, Fault, Mode, Plan};
use crate::stage::Stage;
use crate::world::Violation;

/// The key of the messages that are published for as long as anything is open.
pub(super) const PULSE: usize = usize::MAX;

/// One message.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) key: usize,
    /// Its number in its key.
    pub(super) n: u32,
    pub(super) keyed: bool,
    pub(super) behaviour: Behaviour,
    pub(super) published: Duration,
    /// How often the broker gave it, and when it did so last.
    pub(super) deliveries: u32,
    pub(super) delivered: Duration,
    /// When its effect happened: once, if all is well.
    pub(super) effects: Vec<Duration>,
    pub(super) marked: Option<Duration>,
    /// How often it failed alone.
    pub(super) failures: u32,
    /// How often its call was broken off, or its process died in it: its mark may be without its effect.
    pub(super) broken_off: u32,
    /// Whether a commit of it happened whose answer was lost.
    pub(super) in_doubt: bool,
    pub(super) dead_letter: Option<Duration>,
    /// Whether the dead letter is still there.
    pub(super) letter_open: bool,
    /// Whether a person wanted it handled again.
    pub(super) letter_retried: bool,
    pub(super) done: bool,
}

/// Everything the simulated ends share.
pub(super) struct Ledger {
    pub(super) plan: Plan,
    pub(super) stage: Stage,
    state: Mutex<State>,
}

#[derive(Default)]
pub(super) struct State {
    pub(super) messages: Vec<Entry>,
    /// The last of each key whose effect happened in its turn.
    last_in_key: BTreeMap<usize, (u32, u32)>,
    /// The first law that was seen to be broken.
    pub(super) broken: Option<Violation>,
}

impl Ledger {
    pub(super) fn new(plan: &Plan, stage: &Stage) -> Self {
        Self { plan: plan.clone(), stage: stage.clone(), state: Mutex::default() }
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn now(&self) -> Duration {
        self.stage.elapsed()
    }

    /// The faults that are going on now.
    pub(super) fn faults(&self) -> impl Iterator<Item = Fault> {
        let now = self.now();
        self.plan.faults.iter().copied().filter(move |fault| fault.is_on(now))
    }

    /// Registers a message, and returns its number.
    pub(super) fn published(&self, key: usize, n: u32) -> usize {
        let plan = self.plan.keys.get(key);
        let behaviour = plan.filter(|plan| plan.is_bad(n)).map_or(Behaviour::Healthy, |plan| plan.behaviour);
        let entry = Entry {
            key,
            n,
            keyed: plan.is_none_or(|plan| plan.keyed),
            behaviour,
            published: self.now(),
            deliveries: 0,
            delivered: Duration::ZERO,
            effects: Vec::new(),
            marked: None,
            failures: 0,
            broken_off: 0,
            in_doubt: false,
            dead_letter: None,
            letter_open: false,
            letter_retried: false,
            done: false,
        };
        let mut state = self.state();
        state.messages.push(entry);
        state.messages.len() - 1
    }

    /// How a message is called in the trace.
    pub(super) fn name(&self, message: usize) -> String {
        let state = self.state();
        let entry = &state.messages[message];
        match entry.key {
            PULSE => format!("pulse {}", entry.n),
            key => format!("key {key} message {}", entry.n),
        }
    }

    pub(super) fn break_law(&self, law: &'static str, what: String) {
        self.stage.trace(format_args!("BROKEN {law}: {what}"));
        self.state().broken.get_or_insert(Violation::new(law, what));
    }

    pub(super) fn delivered(&self, message: usize) {
        let now = self.now();
        let mut state = self.state();
        let entry = &mut state.messages[message];
        entry.deliveries += 1;
        entry.delivered = now;
        let again = entry.deliveries > 1;
        drop(state);
        self.stage.count("deliveries", 1);
        if again {
            self.stage.count("redeliveries", 1);
        }
    }

    /// The source was acked.
    pub(super) fn done(&self, message: usize) {
        let mut state = self.state();
        let entry = &mut state.messages[message];
        entry.done = true;
        let known = !entry.effects.is_empty() || entry.marked.is_some() || entry.dead_letter.is_some();
        drop(state);
        if !known {
            let what = format!(
                "{} was acked at the source, with neither an effect nor a dead letter",
                self.name(message)
            );
            self.break_law(super::laws::DONE_AFTER_EFFECT, what);
        }
    }

    /// Its effect happened.
    pub(super) fn effect(&self, message: usize, by: usize) {
        let now = self.now();
        let mut state = self.state();
        let entry = &mut state.messages[message];
        let again = !entry.effects.is_empty();
        entry.effects.push(now);
        let (key, n, is_dead) = (entry.key, entry.n, entry.dead_letter.is_some());
        let keyed = entry.keyed && key != PULSE;
        let mut overtaken = None;
        if keyed && !again && !is_dead {
            let last = state.last_in_key.entry(key).or_insert((n, n));
            if n < last.0 {
                overtaken = Some(last.0);
            }
            last.0 = last.0.max(n);
        }
        drop(state);
        self.stage.trace(format_args!("effect of {} at consumer {by}", self.name(message)));
        self.stage.count("effects", 1);
        if let Some(last) = overtaken {
            let what = format!("{} had its effect after message {last} of its key", self.name(message));
            self.break_law(super::laws::ORDER, what);
        }
        if again {
            self.stage.count("effects repeated", 1);
            if self.plan.settings.mode != Mode::AtLeastOnce {
                let what = format!("{} had its effect twice", self.name(message));
                self.break_law(super::laws::ONCE, what);
            }
        }
    }

    pub(super) fn mark(&self, message: usize) {
        let now = self.now();
        self.state().messages[message].marked.get_or_insert(now);
    }

    pub(super) fn is_marked(&self, message: usize) -> bool {
        let early = self.stage.has("forgets marks early").then(|| Duration::from_secs(2));
        let marked = self.state().messages[message].marked;
        marked.is_some_and(|at| early.is_none_or(|early| at + early > self.now()))
    }

    /// A call with this message alone failed.
    pub(super) fn failed(&self, message: usize) {
        self.state().messages[message].failures += 1;
        self.stage.count("failures", 1);
    }

    pub(super) fn broken_off(&self, message: usize) {
        self.state().messages[message].broken_off += 1;
    }

    /// Its commit happened, and the handler does not know.
    pub(super) fn in_doubt(&self, message: usize) {
        self.state().messages[message].in_doubt = true;
    }

    /// A dead letter is kept.
    pub(super) fn dead_letter(&self, message: usize, tries: u32) {
        let now = self.now();
        let name = self.name(message);
        let mut state = self.state();
        let entry = &mut state.messages[message];
        entry.dead_letter.get_or_insert(now);
        entry.letter_open = true;
        let failures = entry.failures;
        drop(state);
        self.stage.trace(format_args!("{name} is kept as a dead letter after {tries} tries"));
        self.stage.count("dead letters", 1);
        super::laws::dead_letter_is_deserved(self, message, failures);
    }
}
