//! What databases and broker have, by plain SQL and Kafka's own console consumer.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::Value;
use testkit::services::kafka::console_consumer_shown;

use crate::demo_stack::Patience;
use crate::demo_stack::arrived::TOPICS;
use crate::demo_stack::stack::Stack;

/// More than a run sends; the topics may have those of earlier runs as well.
const MESSAGES_MAX: usize = 50_000_000;
/// How often a topic is read again while something is missing.
const READINGS_MAX: usize = 6;
const CONSUMER_SECONDS_MAX: u64 = 60;

/// An event's kind, and the payment or refund that it is about.
pub(super) type About = (String, String);

/// Everything that is there when all is at rest.
#[derive(Debug, Default)]
pub(super) struct Seen {
    /// Id and key.
    pub(super) payments: Vec<(String, String)>,
    /// Id and payment.
    pub(super) refunds: Vec<(String, String)>,
    /// The event's id, and what it is about.
    pub(super) outbox: Vec<(String, About)>,
    /// Ids of events of this run, each as often as it is there.
    pub(super) kafka: Vec<String>,
    pub(super) notifications: Vec<About>,
}

const OUTBOX: &str = "SELECT id::text, topic, type, coalesce(body->>'refund', body->>'made', body->>'payment')
                      FROM (SELECT id, topic, type, convert_from(payload, 'UTF8')::jsonb AS body FROM semel_outbox) o";
const NOTIFICATIONS: &str =
    "SELECT kind, coalesce(refund, payment) FROM notifications WHERE merchant LIKE '%{}'";
const MISSING: &str = "SELECT count(*) FROM semel_outbox o WHERE topic = 'payments' AND NOT EXISTS
                       (SELECT FROM notifications n WHERE n.kind = o.type
                        AND coalesce(n.refund, n.payment) = coalesce(
                            convert_from(o.payload, 'UTF8')::jsonb->>'refund',
                            convert_from(o.payload, 'UTF8')::jsonb->>'payment'))";

impl Seen {
    pub(super) fn read(stack: &Stack) -> Result<Self, String> {
        let pair = |columns: &[String]| (columns[0].clone(), columns[1].clone());
        let outbox = rows::<4>(stack, OUTBOX)?;
        let mut kafka = Vec::new();
        for topic in TOPICS {
            let expected = outbox.iter().filter(|row| row[1] == topic).map(|row| row[0].as_str()).collect();
            kafka.extend(arrived(stack, topic, &expected)?);
        }
        let outbox = outbox.iter().map(|row| (row[0].clone(), pair(&row[2..]))).collect();
        let notifications = rows::<2>(stack, &NOTIFICATIONS.replace("{}", stack.merchant()))?;
        Ok(Self {
            payments: rows::<2>(stack, "SELECT id, key FROM payment")?.iter().map(|row| pair(row)).collect(),
            refunds: rows::<2>(stack, "SELECT id, payment FROM refund")?
                .iter()
                .map(|row| pair(row))
                .collect(),
            kafka,
            notifications: notifications.iter().map(|row| pair(row)).collect(),
            outbox,
        })
    }
}

fn rows<const N: usize>(stack: &Stack, query: &str) -> Result<Vec<[String; N]>, String> {
    let read = |line: &str| {
        let columns: Vec<String> = line.split('|').map(str::to_owned).collect();
        columns.try_into().map_err(|_| format!("unexpected psql output: {line:?}"))
    };
    stack.sql(query)?.lines().map(read).collect()
}

/// The ids of this run's events in a topic, as Kafka's own consumer reads what is committed.
fn arrived(stack: &Stack, topic: &str, expected: &BTreeSet<&str>) -> Result<Vec<String>, String> {
    let mut ids = Vec::new();
    // It ends when nothing came for five seconds. On a busy machine that may be before its first fetch.
    for _ in 0..READINGS_MAX {
        let shown = console_consumer_shown(stack.kafka(), topic, MESSAGES_MAX);
        let shown = shown.map_err(|error| error.to_string())?;
        let ours = shown.iter().filter(|record| {
            let event: Value = serde_json::from_str(&record.value).unwrap_or(Value::Null);
            event["merchant"].as_str().is_some_and(|name| name.ends_with(stack.merchant()))
        });
        ids = ours.map(|record| record.header("semel-id").unwrap_or("without an id").to_owned()).collect();
        let seen: BTreeSet<&str> = ids.iter().map(String::as_str).collect();
        if expected.is_subset(&seen) {
            break;
        }
    }
    Ok(ids)
}

/// Notifications of this run so far.
pub(super) fn notifications(stack: &Stack) -> Result<usize, String> {
    number(stack, &format!("SELECT count(*) FROM notifications WHERE merchant LIKE '%{}'", stack.merchant()))
}

/// Events without a notification.
pub(super) fn notifications_missing(stack: &Stack) -> Result<usize, String> {
    number(stack, MISSING)
}

/// Waits until the consumer has done nothing for some seconds: a duplicate may come late.
pub(super) fn wait_for_the_consumer(stack: &Stack) -> Result<(), String> {
    let handled = || number(stack, "SELECT coalesce(sum(messages), 0) FROM semel_inbox_batch");
    let patience = Patience::new(CONSUMER_SECONDS_MAX);
    let mut last = handled()?;
    loop {
        std::thread::sleep(Duration::from_secs(2));
        let now = handled()?;
        if now == last {
            return Ok(());
        }
        last = now;
        patience.check("the consumer does not become idle")?;
    }
}

fn number(stack: &Stack, query: &str) -> Result<usize, String> {
    let text = stack.sql(query)?;
    text.parse().map_err(|_| format!("psql printed {text:?} instead of a number"))
}
