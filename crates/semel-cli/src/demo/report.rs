//! What the ledgers, the clients and the store say, and whether it is right.

use serde::Serialize;

use super::client::{Ending, Told};
use super::ledger::Counted;
use super::plan::IntentNo;
use crate::table::{Side as Edge, Table, thousands};

/// Everything the demo found. What `demo --json` prints.
#[derive(Default, Serialize)]
pub(super) struct Report {
    pub(super) seed: u64,
    pub(super) intents: u64,
    pub(super) sends: u64,
    pub(super) tasks: u32,
    pub(super) elapsed_ms: u64,
    pub(super) without: Side,
    pub(super) with: Side,
    pub(super) settled: Settled,
    pub(super) gateways_killed: u32,
    /// Empty when all is well.
    pub(super) wrong: Vec<String>,
}

/// One side: what its ledger says, and what its clients met.
#[derive(Default, Serialize)]
pub(super) struct Side {
    /// Lines in the ledger.
    pub(super) charges: u64,
    /// Intents with more than one.
    pub(super) intents_repeated: u64,
    /// Intents with none.
    pub(super) intents_missing: u64,
    /// Requests sent.
    pub(super) attempts: u64,
    pub(super) unanswered: u64,
    pub(super) failed: u64,
    pub(super) replayed: u64,
    pub(super) refused_in_flight: u64,
    pub(super) refused_conflict: u64,
    pub(super) told_uncertain: u64,
}

/// How intents in doubt came out of it, each counted once.
#[derive(Default, Serialize)]
pub(super) struct Settled {
    /// The lookup found the payment.
    pub(super) found: u64,
    /// The lookup found none, and the next retry made it.
    pub(super) not_found_and_run: u64,
    /// Resolved by hand: it was in the ledger.
    pub(super) resolved_charged: u64,
    /// Resolved by hand: it was not, and the next retry made it.
    pub(super) resolved_and_run: u64,
}

impl Settled {
    fn uncertain(&self) -> u64 {
        self.found + self.not_found_and_run + self.resolved_charged + self.resolved_and_run
    }
}

impl Side {
    /// What one send met.
    pub(super) fn count(&mut self, told: &Told) {
        self.attempts += told.attempts;
        self.unanswered += told.unanswered;
        self.failed += told.failed;
        self.refused_in_flight += told.in_flight;
        self.refused_conflict += told.conflicts;
        self.told_uncertain += told.uncertain;
        self.replayed += u64::from(told.ending == Ending::Replayed);
    }

    /// What the ledger says.
    pub(super) fn judge(&mut self, intents: u32, ledger: &Counted) {
        self.charges = ledger.charges();
        self.intents_repeated = ledger.repeated();
        self.intents_missing =
            (0..intents).filter(|intent| ledger.of(IntentNo(*intent)).is_empty()).count() as u64;
    }
}

/// What is wrong with the guarded side's ledger. A sum can be right by chance, so each intent is looked at.
pub(super) fn off(intents: u32, ledger: &Counted) -> Vec<String> {
    let mut wrong = Vec::new();
    for intent in (0..intents).map(IntentNo) {
        match ledger.of(intent) {
            [] => wrong.push(format!("{intent} was never charged")),
            [charge] if charge.amount == intent.amount() => {}
            [charge] => wrong.push(format!("{intent} was charged with {} cents", charge.amount)),
            charges => wrong.push(format!("{intent} was charged {} times", charges.len())),
        }
    }
    if ledger.charges() != u64::from(intents) {
        wrong.push(format!("{} charges for {intents} intents", ledger.charges()));
    }
    wrong
}

impl Report {
    pub(super) fn text(&self) -> String {
        let n = thousands;
        let (without, with, settled) = (&self.without, &self.with, &self.settled);
        let mut table =
            Table::new([("", Edge::Left), ("WITHOUT SEMEL", Edge::Right), ("WITH SEMEL", Edge::Right)]);
        let dash = || "-".to_owned();
        for (name, left, right) in [
            ("intents", n(self.intents), n(self.intents)),
            ("requests, with retries", n(without.attempts), n(with.attempts)),
            ("  of these without an answer", n(without.unanswered), n(with.unanswered)),
            ("  of these failed (5xx)", n(without.failed), n(with.failed)),
            ("charges in the ledger", n(without.charges), n(with.charges)),
            ("intents charged more than once", n(without.intents_repeated), n(with.intents_repeated)),
            ("intents never charged", n(without.intents_missing), n(with.intents_missing)),
            ("answers replayed", dash(), n(with.replayed)),
            ("refused: already in flight", dash(), n(with.refused_in_flight)),
            ("refused: key used for another request", dash(), n(with.refused_conflict)),
            ("intents in doubt", dash(), n(settled.uncertain())),
            ("  lookup found the charge", dash(), n(settled.found)),
            ("  lookup found none, so it was run", dash(), n(settled.not_found_and_run)),
            ("  resolved by hand, charged", dash(), n(settled.resolved_charged)),
            ("  resolved by hand, run", dash(), n(settled.resolved_and_run)),
            ("gateways killed and restarted", dash(), n(self.gateways_killed.into())),
        ] {
            table.row([name.to_owned(), left, right]);
        }
        format!(
            "{} payments sent {} times by {} clients, seed {}\n\n{}",
            n(self.intents),
            n(self.sends),
            self.tasks,
            self.seed,
            table.take()
        )
    }
}
