//! The judge. Pure: it compares what clients got with what databases and broker have.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use serde_json::json;

use super::load::Asked;
use super::seen::{About, Seen};
use super::turns::Turns;
use crate::demo_stack::tables::NOTIFIED;

/// How many are named in a message.
const NAMED_MAX: usize = 3;

/// What is found at one stage of the chain, beside what is expected.
#[derive(Debug, Default, PartialEq, Eq)]
struct Stage {
    name: &'static str,
    expected: usize,
    found: usize,
    missing: Vec<String>,
    doubled: Vec<String>,
    foreign: Vec<String>,
    /// A repetition is no mistake here: the next stage recognises it.
    repeats_allowed: bool,
}

impl Stage {
    fn of(name: &'static str, expected: &BTreeSet<String>, found: &[String]) -> Self {
        let mut times: BTreeMap<&String, usize> = BTreeMap::new();
        found.iter().for_each(|one| *times.entry(one).or_default() += 1);
        let those = |wanted: &dyn Fn(&String, usize) -> bool| {
            let those = times.iter().filter(|(one, times)| wanted(one, **times));
            those.map(|(one, _)| (*one).clone()).collect()
        };
        Self {
            name,
            expected: expected.len(),
            found: found.len(),
            missing: expected.iter().filter(|one| !times.contains_key(one)).cloned().collect(),
            doubled: those(&|_, times| times > 1),
            foreign: those(&|one, _| !expected.contains(one)),
            repeats_allowed: false,
        }
    }

    fn wrong(&self) -> Vec<String> {
        let doubled: &[String] = if self.repeats_allowed { &[] } else { &self.doubled };
        [("lost", &self.missing[..]), ("there more than once", doubled), ("foreign", &self.foreign)]
            .into_iter()
            .filter(|(_, which)| !which.is_empty())
            .map(|(what, which)| {
                let named = which[..which.len().min(NAMED_MAX)].join(", ");
                format!("{}: {} {what}, such as {named}", self.name, which.len())
            })
            .collect()
    }
}

/// The result of the run.
#[derive(Debug, Default)]
pub(super) struct Verdict {
    stages: Vec<Stage>,
    wrong: Vec<String>,
    /// Those that were in doubt, and whether they happened.
    in_doubt: Vec<(String, bool)>,
}

impl Verdict {
    pub(super) fn judge(asked: &Asked, seen: &Seen) -> Self {
        let in_doubt: BTreeSet<&String> = asked.in_doubt.iter().collect();
        // In doubt it may be there or not; answered it has to be.
        let mut keys: BTreeSet<String> = asked.made.iter().map(|made| made.key.clone()).collect();
        let found: Vec<String> = seen.payments.iter().map(|(_, key)| key.clone()).collect();
        keys.extend(found.iter().filter(|key| in_doubt.contains(key)).cloned());
        let mut refunded: BTreeSet<String> =
            asked.made.iter().filter_map(|made| made.refund.clone()).collect();
        let doubtful: BTreeSet<&String> = asked.refunds_in_doubt.iter().collect();
        refunded
            .extend(seen.refunds.iter().filter(|(_, of)| doubtful.contains(of)).map(|(id, _)| id.clone()));
        let refunds: Vec<String> = seen.refunds.iter().map(|(id, _)| id.clone()).collect();

        let paid = seen
            .payments
            .iter()
            .flat_map(|(id, _)| ["payment.completed", "payment.recorded"].map(|kind| format!("{kind} {id}")));
        let back = seen
            .refunds
            .iter()
            .flat_map(|(id, _)| ["payment.refunded", "refund.recorded"].map(|kind| format!("{kind} {id}")));
        let events: BTreeSet<String> = paid.chain(back).collect();
        let shown = |(kind, id): &About| format!("{kind} {id}");
        let in_outbox: Vec<String> = seen.outbox.iter().map(|(_, about)| shown(about)).collect();
        let ids: BTreeSet<String> = seen.outbox.iter().map(|(id, _)| id.clone()).collect();
        let wanted = seen.outbox.iter().filter(|(_, (kind, _))| NOTIFIED.contains(&kind.as_str()));
        let wanted: BTreeSet<String> = wanted.map(|(_, about)| shown(about)).collect();
        let notified: Vec<String> = seen.notifications.iter().map(shown).collect();

        let mut arrived = Stage::of("events in Kafka", &ids, &seen.kafka);
        arrived.repeats_allowed = true;
        let stages = vec![
            Stage::of("payments", &keys, &found),
            Stage::of("refunds", &refunded, &refunds),
            Stage::of("events in the outbox", &events, &in_outbox),
            arrived,
            Stage::of("notifications", &wanted, &notified),
        ];
        let mut wrong = asked.wrong.clone();
        let by_key: BTreeMap<&String, &String> = seen.payments.iter().map(|(id, key)| (key, id)).collect();
        wrong.extend(asked.made.iter().filter_map(|made| {
            let id = by_key.get(&made.key).filter(|id| **id != &made.payment)?;
            Some(format!("{} was answered with {} and is {id}", made.key, made.payment))
        }));
        wrong.extend(stages.iter().flat_map(Stage::wrong));
        let happened = |key: &String| (key.clone(), found.contains(key));
        Self { in_doubt: asked.in_doubt.iter().map(happened).collect(), stages, wrong }
    }

    /// What is lost or doubled, and where; empty when all is well.
    pub(super) fn wrong(&self) -> &[String] {
        &self.wrong
    }

    pub(super) fn table(&self, asked: &Asked, turns: &Turns) -> String {
        let mut out = String::new();
        if let Some(sent) = &asked.sent {
            let _ = writeln!(
                out,
                "\n{} requests for {} payments and {} refunds: {} of them again, {} cut off before the answer",
                sent.requests, sent.payments, sent.refunds, sent.again, sent.cut
            );
        }
        let killed = turns.killed().into_iter().map(|(name, times)| format!("{name} {times} ×"));
        let _ = writeln!(out, "killed: {}\n", killed.collect::<Vec<_>>().join(", "));
        let _ = writeln!(
            out,
            "{:<22}{:>10}{:>10}{:>10}{:>10}{:>10}",
            "", "expected", "found", "lost", "doubled", "foreign"
        );
        for stage in &self.stages {
            let Stage { name, expected, found, missing, doubled, foreign, repeats_allowed } = stage;
            let note = match *repeats_allowed && !doubled.is_empty() {
                true => "   the relay publishes at least once; the consumer skips duplicates",
                false => "",
            };
            let (missing, doubled, foreign) = (missing.len(), doubled.len(), foreign.len());
            let _ = writeln!(
                out,
                "{name:<22}{expected:>10}{found:>10}{missing:>10}{doubled:>10}{foreign:>10}{note}"
            );
        }
        out.push('\n');
        for (key, happened) in &self.in_doubt {
            let what = if *happened { "it was made" } else { "it was not made" };
            let _ = writeln!(out, "in doubt for its client: {key}; {what}");
        }
        for payment in &asked.refunds_in_doubt {
            let _ = writeln!(out, "in doubt for its client: the refund of {payment}");
        }
        if self.wrong.is_empty() {
            out.push_str("every payment was made once, published once, and notified once\n");
        }
        out
    }

    pub(super) fn json(&self, asked: &Asked, turns: &Turns) -> String {
        let stages = self.stages.iter().map(|stage| {
            json!({
                "stage": stage.name, "expected": stage.expected, "found": stage.found,
                "lost": stage.missing.len(), "doubled": stage.doubled.len(), "foreign": stage.foreign.len(),
                "repeats_allowed": stage.repeats_allowed,
            })
        });
        let killed = turns.killed().into_iter().map(|(name, times)| (name.to_owned(), json!(times)));
        let in_doubt = self.in_doubt.iter().map(|(key, made)| json!({ "key": key, "made": made }));
        let sent = asked.sent.as_ref().map(|sent| {
            json!({
                "payments": sent.payments, "refunds": sent.refunds, "requests": sent.requests,
                "again": sent.again, "cut": sent.cut,
            })
        });
        let report = json!({
            "ok": self.wrong.is_empty(),
            "wrong": self.wrong,
            "sent": sent,
            "killed": killed.collect::<serde_json::Map<_, _>>(),
            "stages": stages.collect::<Vec<_>>(),
            "in_doubt": in_doubt.collect::<Vec<_>>(),
            "refunds_in_doubt": asked.refunds_in_doubt,
            "redis": super::REDIS,
        });
        format!("{report}\n")
    }
}

#[cfg(test)]
#[path = "verdict_tests.rs"]
mod tests;
