//! What plain SQL finds in the database.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::Patience;
use super::stack::Stack;

/// Kinds of events: the first two of each payment, the last two of each refund.
pub(super) const KINDS: [&str; 4] =
    ["payment.completed", "payment.recorded", "payment.refunded", "refund.recorded"];

/// What the consumer makes notifications of.
pub(super) const NOTIFIED: [&str; 2] = ["payment.completed", "payment.refunded"];

/// How often each payment and refund of this run was notified of. The topic has those of other runs as well.
const NOTIFICATIONS: &str =
    "SELECT kind, coalesce(refund, payment) FROM notifications WHERE merchant LIKE '%{}'";

/// Payments, refunds, events and notifications that are committed.
#[derive(Debug, Default)]
pub(super) struct Tables {
    payments: BTreeSet<String>,
    refunds: BTreeSet<String>,
    in_outbox: BTreeMap<String, usize>,
    /// By kind and id.
    notified: BTreeMap<(String, String), usize>,
}

impl Tables {
    pub(super) fn read(stack: &Stack) -> Result<Self, String> {
        let ids = |sql: &str| Ok::<_, String>(stack.sql(sql)?.lines().map(str::to_owned).collect());
        let in_outbox = stack.sql("SELECT type, count(*) FROM semel_outbox GROUP BY type")?;
        let in_outbox = in_outbox.lines().filter_map(|line| {
            let (kind, count) = line.split_once('|')?;
            Some((kind.to_owned(), count.parse().ok()?))
        });
        Ok(Self {
            payments: ids("SELECT id FROM payment")?,
            refunds: ids("SELECT id FROM refund")?,
            in_outbox: in_outbox.collect(),
            notified: notified(stack)?,
        })
    }

    /// Reads until there is a notification of everything, or it takes too long.
    pub(super) fn wait_for_notifications(stack: &Stack, patience: Patience) -> Result<Self, String> {
        loop {
            let tables = Self::read(stack)?;
            let missing = |kind: &&str| tables.notified(kind).1 < tables.made(kind);
            // What is there is worth showing; what is missing is the result.
            if !NOTIFIED.iter().any(missing) || patience.check("notifications are missing").is_err() {
                return Ok(tables);
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Two payments, with two events each.
    #[cfg(test)]
    pub(super) fn sample() -> Self {
        Self {
            payments: ["pay_1", "pay_2"].map(str::to_owned).into(),
            refunds: BTreeSet::new(),
            in_outbox: [("payment.completed".to_owned(), 2), ("payment.recorded".to_owned(), 2)].into(),
            notified: ["pay_1", "pay_2"]
                .map(|id| (("payment.completed".to_owned(), id.to_owned()), 1))
                .into(),
        }
    }

    /// The payments or refunds that events of this kind are about.
    pub(super) fn ids(&self, kind: &str) -> &BTreeSet<String> {
        if kind.starts_with("refund") || kind.ends_with("refunded") { &self.refunds } else { &self.payments }
    }

    pub(super) fn made(&self, kind: &str) -> usize {
        self.ids(kind).len()
    }

    pub(super) fn in_outbox(&self, kind: &str) -> usize {
        self.in_outbox.get(kind).copied().unwrap_or_default()
    }

    /// Notifications of a kind, and how many different ones.
    pub(super) fn notified(&self, kind: &str) -> (usize, usize) {
        let times = self.notified.iter().filter(|((of, _), _)| of == kind).map(|(_, times)| *times);
        times.fold((0, 0), |(rows, different), times| (rows + times, different + 1))
    }

    /// One notification more than there should be.
    #[cfg(test)]
    pub(super) fn with_a_double(mut self) -> Self {
        self.notified.values_mut().take(1).for_each(|times| *times += 1);
        self
    }
}

fn notified(stack: &Stack) -> Result<BTreeMap<(String, String), usize>, String> {
    let mut notified = BTreeMap::new();
    for line in stack.sql(&NOTIFICATIONS.replace("{}", stack.merchant()))?.lines() {
        if let Some((kind, id)) = line.split_once('|') {
            *notified.entry((kind.to_owned(), id.to_owned())).or_default() += 1;
        }
    }
    Ok(notified)
}
