//! What arrived at the other end, read by Kafka's own console consumer.

use std::collections::HashMap;

use serde_json::Value;
use testkit::services::kafka::console_consumer;

use super::Patience;
use super::stack::Stack;
use super::tables::{KINDS, Tables};

/// The topics the reference service publishes to.
pub(super) const TOPICS: [&str; 2] = ["payments", "audit"];
/// More than a run sends; the topics may have those of earlier runs as well.
const MESSAGES_MAX: usize = 1_000_000;

/// What arrived of one kind of event.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Count {
    pub(super) total: usize,
    pub(super) once: usize,
    pub(super) twice: usize,
    pub(super) missing: usize,
}

/// How often each event of this run arrived.
#[derive(Debug, Default)]
pub(super) struct Arrived {
    counts: Vec<(&'static str, Count)>,
}

impl Arrived {
    /// Reads until nothing is missing, and once more after that: a duplicate may come late.
    pub(super) fn wait_for(stack: &Stack, tables: &Tables, patience: Patience) -> Result<Self, String> {
        loop {
            let arrived = Self::read(stack, tables)?;
            let missing: usize = arrived.counts.iter().map(|(_, count)| count.missing).sum();
            if missing == 0 {
                return Self::read(stack, tables);
            }
            // What arrived is worth showing; what is missing is the result.
            if patience.check("events are missing").is_err() {
                return Ok(arrived);
            }
        }
    }

    fn read(stack: &Stack, tables: &Tables) -> Result<Self, String> {
        let mut seen = HashMap::new();
        for topic in TOPICS {
            let lines = console_consumer(stack.kafka(), topic, true, MESSAGES_MAX);
            for line in lines.map_err(|error| error.to_string())? {
                if let Some(event) = event(topic, &line) {
                    *seen.entry(event).or_insert(0) += 1;
                }
            }
        }
        Ok(Self { counts: KINDS.into_iter().map(|kind| (kind, count(kind, &seen, tables))).collect() })
    }

    /// As if these had been read.
    #[cfg(test)]
    pub(super) fn sample(events: &[(&'static str, &str)], tables: &Tables) -> Self {
        let mut seen = HashMap::new();
        events.iter().for_each(|(kind, id)| *seen.entry((*kind, (*id).to_owned())).or_insert(0) += 1);
        Self { counts: KINDS.into_iter().map(|kind| (kind, count(kind, &seen, tables))).collect() }
    }

    pub(super) fn of(&self, kind: &str) -> Count {
        let found = self.counts.iter().find(|(of, _)| *of == kind);
        found.map(|(_, count)| *count).unwrap_or_default()
    }
}

/// Which payment or refund a message is about, and the kind of its event.
fn event(topic: &str, line: &str) -> Option<(&'static str, String)> {
    let message: Value = serde_json::from_str(line).ok()?;
    let text = |name: &str| message.get(name)?.as_str().map(str::to_owned);
    match topic {
        "payments" => match text("refund") {
            Some(refund) => Some(("payment.refunded", refund)),
            None => Some(("payment.completed", text("payment")?)),
        },
        _ => {
            let made = text("made")?;
            Some((if made.starts_with("ref_") { "refund.recorded" } else { "payment.recorded" }, made))
        }
    }
}

/// Events of earlier runs are about other payments and do not count.
fn count(kind: &'static str, seen: &HashMap<(&'static str, String), usize>, tables: &Tables) -> Count {
    let mut count = Count::default();
    for id in tables.ids(kind) {
        let times = seen.get(&(kind, id.clone())).copied().unwrap_or_default();
        count.total += times;
        match times {
            0 => count.missing += 1,
            1 => count.once += 1,
            _ => count.twice += 1,
        }
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_says_what_it_tells_of() {
        let of = |topic, line| event(topic, line).map(|(kind, id)| format!("{kind} {id}"));
        assert_eq!(of("payments", r#"{"payment":"pay_1"}"#).as_deref(), Some("payment.completed pay_1"));
        let refund = r#"{"payment":"pay_1","refund":"ref_2"}"#;
        assert_eq!(of("payments", refund).as_deref(), Some("payment.refunded ref_2"));
        assert_eq!(of("audit", r#"{"made":"pay_1"}"#).as_deref(), Some("payment.recorded pay_1"));
        assert_eq!(of("audit", r#"{"made":"ref_2"}"#).as_deref(), Some("refund.recorded ref_2"));
        assert_eq!(of("audit", "not JSON"), None);
    }
}
