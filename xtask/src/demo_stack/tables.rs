//! What the database says, to plain SQL.

use std::collections::{BTreeMap, BTreeSet};

use super::stack::Stack;

/// What is told: of each payment the first two, of each refund the last two.
pub(super) const KINDS: [&str; 4] =
    ["payment.completed", "payment.recorded", "payment.refunded", "refund.recorded"];

/// Payments, refunds and events that are committed.
#[derive(Debug, Default)]
pub(super) struct Tables {
    payments: BTreeSet<String>,
    refunds: BTreeSet<String>,
    told: BTreeMap<String, usize>,
}

impl Tables {
    pub(super) fn read(stack: &Stack) -> Result<Self, String> {
        let ids = |sql: &str| Ok::<_, String>(stack.sql(sql)?.lines().map(str::to_owned).collect());
        let told = stack.sql("SELECT type, count(*) FROM semel_outbox GROUP BY type")?;
        let told = told.lines().filter_map(|line| {
            let (kind, count) = line.split_once('|')?;
            Some((kind.to_owned(), count.parse().ok()?))
        });
        Ok(Self {
            payments: ids("SELECT id FROM payment")?,
            refunds: ids("SELECT id FROM refund")?,
            told: told.collect(),
        })
    }

    /// Two payments, each told of twice.
    #[cfg(test)]
    pub(super) fn sample() -> Self {
        Self {
            payments: ["pay_1", "pay_2"].map(str::to_owned).into(),
            refunds: BTreeSet::new(),
            told: [("payment.completed".to_owned(), 2), ("payment.recorded".to_owned(), 2)].into(),
        }
    }

    /// The payments or refunds that events of this kind tell of.
    pub(super) fn ids(&self, kind: &str) -> &BTreeSet<String> {
        if kind.starts_with("refund") || kind.ends_with("refunded") { &self.refunds } else { &self.payments }
    }

    pub(super) fn made(&self, kind: &str) -> usize {
        self.ids(kind).len()
    }

    pub(super) fn told(&self, kind: &str) -> usize {
        self.told.get(kind).copied().unwrap_or_default()
    }
}
