//! The demo's report: counts from the ledgers, the clients and the store, and whether they are right.

use serde::Serialize;

use super::client::{Ending, SendResult};
use super::ledger::Counted;
use super::picture;
use super::plan::IntentNo;
use crate::table::{Side as Edge, Table, thousands};

const HEADINGS: [(&str, Edge); 4] = [
    ("", Edge::Left),
    ("WITHOUT SEMEL", Edge::Right),
    ("WITH SEMEL", Edge::Right),
    ("IN THE SERVICE'S COMMIT", Edge::Right),
];

/// The whole result, as `demo --json` prints it.
#[derive(Default, Serialize)]
pub(super) struct Report {
    pub(super) seed: u64,
    pub(super) intents: u64,
    pub(super) sends: u64,
    pub(super) tasks: u32,
    pub(super) elapsed_ms: u64,
    pub(super) without: Side,
    pub(super) with: Side,
    /// At the reference service, with PostgreSQL.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) in_transaction: Option<Side>,
    pub(super) settled: Settled,
    pub(super) gateways_killed: u32,
    pub(super) services_killed: u32,
    /// Empty when all is well.
    pub(super) wrong: Vec<String>,
}

/// One side: counts from its ledger and its clients.
#[derive(Default, Serialize)]
pub(super) struct Side {
    /// Lines in the ledger.
    pub(super) charges: u64,
    /// Intents with more than one charge.
    pub(super) intents_repeated: u64,
    /// Intents without a charge.
    pub(super) intents_missing: u64,
    /// Intents with no charge, one, two, and more.
    pub(super) intents_by_charges: [u64; 4],
    /// Requests sent.
    pub(super) attempts: u64,
    pub(super) unanswered: u64,
    pub(super) failed: u64,
    pub(super) replayed: u64,
    pub(super) refused_in_flight: u64,
    pub(super) refused_conflict: u64,
    pub(super) told_uncertain: u64,
}

/// How intents in doubt were settled, each counted once.
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
    /// Adds the result of one send.
    pub(super) fn count(&mut self, result: &SendResult) {
        self.attempts += result.attempts;
        self.unanswered += result.unanswered;
        self.failed += result.failed;
        self.refused_in_flight += result.in_flight;
        self.refused_conflict += result.conflicts;
        self.told_uncertain += result.uncertain;
        self.replayed += u64::from(result.ending == Ending::Replayed);
    }

    /// Adds the counts from the ledger.
    pub(super) fn judge(&mut self, intents: u32, ledger: &Counted) {
        self.charges = ledger.charges();
        self.intents_repeated = ledger.repeated();
        for intent in (0..intents).map(IntentNo) {
            self.intents_by_charges[ledger.of(intent).len().min(3)] += 1;
        }
        self.intents_missing = self.intents_by_charges[0];
    }
}

/// The faults in the guarded side's ledger. Its sum could be right by chance, so each intent is checked.
pub(super) fn off(intents: u32, ledger: &Counted) -> Vec<String> {
    let mut wrong = Vec::new();
    for intent in (0..intents).map(IntentNo) {
        match ledger.of(intent) {
            [] => wrong.push(format!("{intent} was never charged")),
            [charge] if charge.amount == intent.amount() => {}
            [charge] => wrong.push(format!("{intent} was charged the wrong amount, {} cents", charge.amount)),
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
        let (n, settled) = (thousands, &self.settled);
        let killed = |number: u32| n(number.into());
        let mut table = match self.in_transaction {
            None => Table::new([HEADINGS[0], HEADINGS[1], HEADINGS[2], ("", Edge::Left)]),
            Some(_) => Table::new(HEADINGS),
        };
        let dash = || "-".to_owned();
        let mut row = |name: &str, without: String, with: String, inside: &dyn Fn(&Side) -> String| {
            let inside = self.in_transaction.as_ref().map(inside).unwrap_or_default();
            table.row([name.to_owned(), without, with, inside]);
        };
        row("intents", n(self.intents), n(self.intents), &|_| n(self.intents));
        let mut both = |name: &str, number: fn(&Side) -> u64| {
            row(name, n(number(&self.without)), n(number(&self.with)), &|side| n(number(side)));
        };
        both("requests, with retries", |side| side.attempts);
        both("  of these without an answer", |side| side.unanswered);
        both("  of these failed (5xx)", |side| side.failed);
        both("charges in the ledger", |side| side.charges);
        both("intents charged more than once", |side| side.intents_repeated);
        both("intents never charged", |side| side.intents_missing);
        let mut guarded = |name: &str, number: fn(&Side) -> u64| {
            row(name, dash(), n(number(&self.with)), &|side| n(number(side)));
        };
        guarded("answers replayed", |side| side.replayed);
        guarded("refused: already in flight", |side| side.refused_in_flight);
        guarded("refused: key used for another request", |side| side.refused_conflict);
        for (name, number) in [
            ("intents in doubt", settled.uncertain()),
            ("  lookup found the charge", settled.found),
            ("  lookup found none, so it was run", settled.not_found_and_run),
            ("  resolved by hand, charged", settled.resolved_charged),
            ("  resolved by hand, run", settled.resolved_and_run),
        ] {
            row(name, dash(), n(number), &|_| dash());
        }
        row("gateways killed and restarted", dash(), killed(self.gateways_killed), &|_| dash());
        if self.in_transaction.is_some() {
            row("services killed and restarted", dash(), dash(), &|_| killed(self.services_killed));
        }
        format!(
            "{} payments sent {} times by {} clients, seed {}\n\n{}{}",
            n(self.intents),
            n(self.sends),
            self.tasks,
            self.seed,
            table.take(),
            picture::bars(self)
        )
    }
}
