//! The laws of sinks can fail: a sink in memory passes them all, and each planted bug is caught by the law that forbids it.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use semel::conformance::sink::{LAWS, ReadMessage, SinkHarness, run};
use semel::outbox::Event;
use semel::sink::headers::{self, Style};
use semel::sink::{DeliverySemantics, Guarantee, Published, Sink, SinkError};
use tokio::io::AsyncReadExt;
use uuid::Uuid;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Bug {
    None,
    ConfirmsBeforeTheBroker,
    WaitsForEver,
    GoesOnPastARefusedEvent,
    RefusesNothing,
    LosesTheTail,
    Reverses,
    NewIdForARepeat,
    RepeatsAreKept,
    LosesTheIntent,
    Truncates,
    TakesBytesForText,
    AnswersTooFew,
    OneTopic,
    RefusesInAnOutage,
    LeftInDisorder,
}

const CAUGHT_BY: &[(Bug, &str)] = &[
    (Bug::ConfirmsBeforeTheBroker, "a_broker_that_is_gone_confirms_nothing"),
    (Bug::ConfirmsBeforeTheBroker, "a_broker_that_is_silent_confirms_nothing"),
    (Bug::WaitsForEver, "a_broker_that_is_silent_confirms_nothing"),
    (Bug::GoesOnPastARefusedEvent, "a_refused_event_is_reported_and_holds_back_its_key"),
    (Bug::RefusesNothing, "a_refused_event_is_reported_and_holds_back_its_key"),
    (Bug::LosesTheTail, "what_is_confirmed_is_there"),
    (Bug::Reverses, "order_is_kept_within_a_key"),
    (Bug::NewIdForARepeat, "a_repeat_has_the_same_id"),
    (Bug::RepeatsAreKept, "a_repeat_has_the_same_id"),
    (Bug::LosesTheIntent, "what_travels_with_an_event"),
    (Bug::Truncates, "a_large_payload_arrives_whole"),
    (Bug::TakesBytesForText, "any_bytes_arrive_as_they_are"),
    (Bug::AnswersTooFew, "what_is_confirmed_is_there"),
    (Bug::OneTopic, "several_topics_in_one_call"),
    (Bug::RefusesInAnOutage, "a_broker_that_is_gone_confirms_nothing"),
    (Bug::LeftInDisorder, "a_call_that_is_left_leaves_the_sink_usable"),
];

const TOO_LARGE: usize = 5_000;
const PATIENCE: Duration = Duration::from_millis(200);

type Topics = Arc<Mutex<HashMap<String, Vec<ReadMessage>>>>;

struct Memory {
    bug: Bug,
    topics: Topics,
}

impl Memory {
    fn with(bug: Bug) -> Self {
        Self { bug, topics: Topics::default() }
    }

    fn sink_to(&self, away: Option<SocketAddr>) -> MemorySink {
        MemorySink { bug: self.bug, topics: self.topics.clone(), away, left: false }
    }
}

impl SinkHarness for Memory {
    type Sink = MemorySink;

    async fn sink(&self) -> MemorySink {
        self.sink_to(None)
    }

    async fn sink_at(&self, address: SocketAddr) -> MemorySink {
        self.sink_to(Some(address))
    }

    async fn topic(&self) -> String {
        Uuid::now_v7().to_string()
    }

    async fn refusing(&self) -> Option<(String, Bytes)> {
        Some((format!("small-{}", Uuid::now_v7()), vec![b'x'; TOO_LARGE].into()))
    }

    async fn read(&self, topic: &str) -> Vec<ReadMessage> {
        self.topics.lock().unwrap().get(topic).cloned().unwrap_or_default()
    }

    fn bound(&self) -> Duration {
        Duration::from_secs(2)
    }
}

struct MemorySink {
    bug: Bug,
    topics: Topics,
    away: Option<SocketAddr>,
    left: bool,
}

impl MemorySink {
    /// Whether the broker is there, found out by asking it.
    async fn is_there(&self) -> bool {
        let Some(address) = self.away else { return true };
        let ask = async {
            let mut stream = tokio::net::TcpStream::connect(address).await.ok()?;
            stream.read_u8().await.ok()
        };
        match self.bug {
            Bug::WaitsForEver => ask.await.is_some(),
            _ => tokio::time::timeout(PATIENCE, ask).await.is_ok_and(|answer| answer.is_some()),
        }
    }

    fn append(&self, event: &Event) {
        let mut pairs = headers::of(event, &Style::Plain, "ce_");
        let mut payload = event.payload().clone();
        match self.bug {
            Bug::NewIdForARepeat => pairs[0].1 = Uuid::now_v7().to_string(),
            Bug::LosesTheIntent => pairs.retain(|(name, _)| name != headers::INTENT),
            Bug::Truncates => payload.truncate(65_536),
            Bug::TakesBytesForText => payload = String::from_utf8_lossy(&payload).into_owned().into(),
            _ => {}
        }
        let seen = ReadMessage::new(payload, pairs.iter().map(|(name, text)| (name.as_str(), text.as_str())));
        let mut topics = self.topics.lock().unwrap();
        let name = if self.bug == Bug::OneTopic { "all" } else { event.topic() };
        let topic = topics.entry(name.to_owned()).or_default();
        let known = topic.iter().any(|there| there.id() == seen.id());
        match self.bug {
            Bug::Reverses => topic.insert(0, seen),
            _ if known && self.bug != Bug::RepeatsAreKept => {}
            _ => topic.push(seen),
        }
    }
}

impl Sink for MemorySink {
    fn guarantee(&self) -> Guarantee {
        Guarantee {
            delivery: DeliverySemantics::Deduplicated,
            sentence: "In memory.".to_owned(),
            violations: Vec::new(),
        }
    }

    async fn publish(&mut self, events: &[Arc<Event>]) -> Vec<Published> {
        let failed = Published::Failed(SinkError::maybe_published("away"));
        if self.bug == Bug::LeftInDisorder && std::mem::replace(&mut self.left, true) {
            return vec![failed; events.len()];
        }
        tokio::task::yield_now().await;
        if !self.is_there().await && self.bug != Bug::ConfirmsBeforeTheBroker {
            return match self.bug {
                Bug::RefusesInAnOutage => {
                    vec![Published::Refused(SinkError::not_published("away")); events.len()]
                }
                _ => vec![failed; events.len()],
            };
        }
        let mut held = HashSet::new();
        let mut answers = Vec::new();
        for event in events {
            let key = event.ordered_by().map(|key| (event.topic(), key));
            if key.is_some_and(|key| held.contains(&key)) && self.bug != Bug::GoesOnPastARefusedEvent {
                answers.push(Published::Failed(SinkError::not_published("held")));
            } else if event.topic().starts_with("small-") && event.payload().len() >= TOO_LARGE {
                held.extend(key);
                answers.push(match self.bug {
                    Bug::RefusesNothing => failed.clone(),
                    _ => Published::Refused(SinkError::not_published("too large")),
                });
            } else {
                if self.away.is_none() {
                    self.append(event);
                }
                answers.push(Published::Confirmed);
            }
        }
        match (self.bug, events) {
            (Bug::AnswersTooFew, [_, .., _]) => drop(answers.pop()),
            (Bug::LosesTheTail, [.., last]) if events.len() > 1 => {
                self.topics.lock().unwrap().entry(last.topic().to_owned()).or_default().pop();
            }
            _ => {}
        }
        self.left = false;
        answers
    }
}

fn holds(bug: Bug, law: &str) -> bool {
    let judged = || semel::conformance::block_on(run(law, &Memory::with(bug)));
    catch_unwind(AssertUnwindSafe(judged)).is_ok()
}

mod memory {
    semel::sink_conformance!(Some(super::Memory::with(super::Bug::None)));
}

#[test]
fn every_planted_bug_is_caught() {
    for (bug, law) in CAUGHT_BY {
        assert!(!holds(*bug, law), "{bug:?} was not caught by {law}");
    }
}

#[test]
fn every_law_of_sinks_but_the_trivial_catches_something() {
    let caught: HashSet<&str> = CAUGHT_BY.iter().map(|(_, law)| *law).collect();
    let never: Vec<_> = LAWS.iter().filter(|law| !caught.contains(*law)).collect();
    assert_eq!(never, [&"nothing_is_answered_for_nothing"]);
}
