//! Mistakes that a sink can make with a real broker: the laws catch them there.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use bytes::Bytes;
use semel::conformance::sink::{ReadMessage, SinkHarness, run};
use semel::outbox::Event;
use semel::sink::{Guarantee, Published, Sink};
use uuid::Uuid;

#[derive(Clone, Copy, Debug)]
pub enum Bug {
    /// What an impatient sink does: it takes what was sent for what is there, whatever the broker says.
    ConfirmsWhatWasSent,
    GoesOnPastARefusedEvent,
    /// So that no broker knows a repeat when it sees one.
    NewIdForARepeat,
}

/// An honest harness whose sinks have a bug.
struct Planted<H>(H, Bug);

struct PlantedSink<S> {
    honest: S,
    bug: Bug,
    sent: HashSet<Uuid>,
}

impl<S: Sink> PlantedSink<S> {
    fn new(honest: S, bug: Bug) -> Self {
        Self { honest, bug, sent: HashSet::new() }
    }
}

impl<H: SinkHarness> SinkHarness for Planted<H> {
    type Sink = PlantedSink<H::Sink>;

    async fn sink(&self) -> Self::Sink {
        PlantedSink::new(self.0.sink().await, self.1)
    }

    async fn sink_at(&self, address: SocketAddr) -> Self::Sink {
        PlantedSink::new(self.0.sink_at(address).await, self.1)
    }

    async fn topic(&self) -> String {
        self.0.topic().await
    }

    async fn refusing(&self) -> Option<(String, Bytes)> {
        self.0.refusing().await
    }

    async fn read(&self, topic: &str) -> Vec<ReadMessage> {
        self.0.read(topic).await
    }
}

impl<S: Sink> Sink for PlantedSink<S> {
    fn guarantee(&self) -> Guarantee {
        self.honest.guarantee()
    }

    async fn publish(&mut self, events: &[Arc<Event>]) -> Vec<Published> {
        match self.bug {
            Bug::ConfirmsWhatWasSent => {
                self.honest.publish(events).await;
                vec![Published::Confirmed; events.len()]
            }
            Bug::GoesOnPastARefusedEvent => {
                let mut answers = Vec::new();
                for event in events {
                    answers.extend(self.honest.publish(std::slice::from_ref(event)).await);
                }
                answers
            }
            Bug::NewIdForARepeat => {
                let named = |event: &Arc<Event>| match self.sent.insert(event.id()) {
                    true => Arc::clone(event),
                    false => Arc::new(Event::clone(event).with_id(Uuid::now_v7())),
                };
                let events: Vec<Arc<Event>> = events.iter().map(named).collect();
                self.honest.publish(&events).await
            }
        }
    }
}

/// Each of these bugs, and the law that forbids it.
pub fn are_caught<H: SinkHarness>(honest: impl Fn() -> Option<H>, bugs: &[(Bug, &str)]) {
    for (bug, law) in bugs {
        let Some(honest) = honest() else { return };
        let planted = Planted(honest, *bug);
        let judged = || semel::conformance::block_on(run(law, &planted));
        assert!(catch_unwind(AssertUnwindSafe(judged)).is_err(), "{bug:?} was not caught by {law}");
    }
}
