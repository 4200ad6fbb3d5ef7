//! What the ledger and the store say, and whether it is right.

use std::collections::HashSet;

use serde::Serialize;

use super::client::{Ending, Told};
use super::ledger::Counted;
use super::plan::IntentNo;
use crate::table::{Side, Table, thousands};

/// Everything the demo found. What `demo --json` prints.
#[derive(Default, Serialize)]
pub(super) struct Report {
    pub(super) seed: u64,
    pub(super) intents: u64,
    pub(super) sends: u64,
    pub(super) tasks: u32,
    pub(super) elapsed_ms: u64,
    pub(super) without: Side1,
    pub(super) before_settling: Side2,
    pub(super) after_settling: Side2,
    pub(super) calls: Calls,
    pub(super) settled: Settled,
    /// Empty when all is well.
    pub(super) wrong: Vec<String>,
}

/// The side without a guard.
#[derive(Default, Serialize)]
pub(super) struct Side1 {
    pub(super) effects: u64,
    pub(super) intents_repeated: u64,
}

/// The side with one.
#[derive(Default, Serialize)]
pub(super) struct Side2 {
    /// Lines in the ledger.
    pub(super) effects: u64,
    /// Intents with more than one.
    pub(super) intents_repeated: u64,
    /// Intents the store holds as uncertain.
    pub(super) held: u64,
    /// Held ones whose effect happened.
    pub(super) held_in_ledger: u64,
    /// Effects of those not held, and the held: what has to be the number of intents.
    pub(super) accounted: u64,
}

/// What the callers met.
#[derive(Default, Serialize)]
pub(super) struct Calls {
    pub(super) ran: u64,
    pub(super) replayed: u64,
    pub(super) told_uncertain: u64,
    pub(super) refused_in_flight: u64,
    pub(super) callers_dropped: u64,
    pub(super) processes_killed: u32,
}

/// How the held ones ended.
#[derive(Default, Serialize)]
pub(super) struct Settled {
    /// Found in the ledger: replayed from now on.
    pub(super) applied: u64,
    /// Not found: run again, once.
    pub(super) run_again: u64,
}

impl Calls {
    pub(super) fn count(&mut self, told: &Told) -> Option<String> {
        self.refused_in_flight += u64::from(told.in_flight);
        self.callers_dropped += u64::from(told.dropped);
        match &told.ending {
            Ending::Ran => self.ran += 1,
            Ending::Replayed => self.replayed += 1,
            Ending::Held => self.told_uncertain += 1,
            Ending::Wrong(why) => return Some(why.clone()),
        }
        None
    }
}

impl Side2 {
    pub(super) fn new(intents: u32, ledger: &Counted, held: &HashSet<IntentNo>) -> Self {
        let of_the_rest = (0..intents).map(IntentNo).filter(|intent| !held.contains(intent));
        let effects_of_the_rest: u64 = of_the_rest.map(|intent| u64::from(ledger.of(intent))).sum();
        Self {
            effects: ledger.effects(),
            intents_repeated: ledger.repeated(),
            held: held.len() as u64,
            held_in_ledger: held.iter().filter(|intent| ledger.of(**intent) > 0).count() as u64,
            accounted: effects_of_the_rest + held.len() as u64,
        }
    }

    /// What is wrong with it. A sum can be right by chance, so each intent is looked at by itself.
    pub(super) fn judge(
        &self,
        when: &str,
        intents: u32,
        ledger: &Counted,
        held: &HashSet<IntentNo>,
    ) -> Vec<String> {
        let mut wrong = Vec::new();
        for intent in (0..intents).map(IntentNo) {
            let is_held = held.contains(&intent);
            match ledger.of(intent) {
                0 if !is_held => wrong.push(format!("{when}: {intent} never happened and is not held")),
                0 | 1 => {}
                n => wrong.push(format!("{when}: {intent} happened {n} times")),
            }
        }
        if self.accounted != u64::from(intents) {
            wrong.push(format!("{when}: {} effects and held, {intents} intents", self.accounted));
        }
        wrong
    }
}

impl Report {
    pub(super) fn text(&self) -> String {
        let n = thousands;
        let (without, before, after) = (&self.without, &self.before_settling, &self.after_settling);
        let mut table = Table::new([
            ("", Side::Left),
            ("WITHOUT SEMEL", Side::Right),
            ("WITH SEMEL", Side::Right),
            ("AFTER SETTLING", Side::Right),
        ]);
        let dash = || "-".to_owned();
        let mut row = |name: &str, cells: [String; 3]| {
            let [without, before, after] = cells;
            table.row([name.to_owned(), without, before, after]);
        };
        row("intents", [n(self.intents), n(self.intents), n(self.intents)]);
        row("sends", [n(self.sends), n(self.sends), dash()]);
        row("effects in the ledger", [n(without.effects), n(before.effects), n(after.effects)]);
        row(
            "intents done more than once",
            [n(without.intents_repeated), n(before.intents_repeated), n(after.intents_repeated)],
        );
        row("held, fate unknown", [dash(), n(before.held), n(after.held)]);
        row("  of these in the ledger", [dash(), n(before.held_in_ledger), n(after.held_in_ledger)]);
        row("effects of the rest + held", [dash(), n(before.accounted), n(after.accounted)]);
        let calls = &self.calls;
        format!(
            "{} intents sent {} times from {} tasks, seed {}\n\n{}\n\
             with semel: {} ran, {} replayed, {} told \"uncertain\"\n\
             on the way: {} refused while in flight, {} callers dropped, {} process killed\n\
             settling:   {} of the held found in the ledger, {} not found and run\n",
            n(self.intents),
            n(self.sends),
            self.tasks,
            self.seed,
            table.take(),
            n(calls.ran),
            n(calls.replayed),
            n(calls.told_uncertain),
            n(calls.refused_in_flight),
            n(calls.callers_dropped),
            calls.processes_killed,
            n(self.settled.applied),
            n(self.settled.run_again),
        )
    }
}
