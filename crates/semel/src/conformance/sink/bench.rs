//! Context of one law on one sink.

use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use super::harness::{ReadMessage, SinkHarness};
use crate::outbox::Event;
use crate::sink::{Published, Sink};

/// Most attempts at what has to work, with a pause in between: a broker may be busy.
const ATTEMPTS_MAX: usize = 20;
const PAUSE: Duration = Duration::from_millis(250);

/// One law, one sink.
pub(super) struct Bench<'a, H: SinkHarness> {
    law: &'static str,
    pub(super) harness: &'a H,
    pub(super) sink: H::Sink,
}

impl<'a, H: SinkHarness> Bench<'a, H> {
    pub(super) async fn of(law: &'static str, harness: &'a H) -> Self {
        Self { law, harness, sink: harness.sink().await }
    }

    pub(super) fn with(law: &'static str, harness: &'a H, sink: H::Sink) -> Self {
        Self { law, harness, sink }
    }

    /// The law is broken.
    pub(super) fn fail(&self, what: impl Display) -> ! {
        panic!("the law {} is broken: {what}", self.law)
    }

    pub(super) fn check(&self, holds: bool, what: impl Display) {
        if !holds {
            self.fail(what);
        }
    }

    /// One call, which has to end within the time limit and answer each event.
    pub(super) async fn publish(&mut self, events: &[Arc<Event>]) -> Vec<Published> {
        let answers = tokio::time::timeout(self.harness.bound(), self.sink.publish(events)).await;
        let Ok(answers) = answers else {
            self.fail(format_args!("no answer within {:?}", self.harness.bound()))
        };
        self.check(
            answers.len() == events.len(),
            format_args!("{} answers to {} events", answers.len(), events.len()),
        );
        answers
    }

    /// Publishes until all are confirmed, like a relay: retries the others, in order.
    pub(super) async fn settle(&mut self, events: &[Arc<Event>]) {
        let mut open = events.to_vec();
        let mut last = None;
        for _ in 0..ATTEMPTS_MAX {
            let answers = self.publish(&open).await;
            let mut retry = Vec::new();
            for (event, answer) in open.iter().zip(answers) {
                match answer {
                    Published::Confirmed => {}
                    Published::Refused(error) => self.fail(format_args!("a good event was refused: {error}")),
                    Published::Failed(error) => {
                        last = Some(error);
                        retry.push(event.clone());
                    }
                }
            }
            if retry.is_empty() {
                return;
            }
            open = retry;
            tokio::time::sleep(PAUSE).await;
        }
        let error = last.map_or_else(String::new, |error| error.to_string());
        self.fail(format_args!("{} events were not confirmed after all attempts: {error}", open.len()))
    }

    pub(super) async fn read(&self, topic: &str) -> Vec<ReadMessage> {
        self.harness.read(topic).await
    }

    /// How often the reader saw that event.
    pub(super) fn times(&self, seen: &[ReadMessage], event: &Event) -> usize {
        let id = event.id().to_string();
        seen.iter().filter(|seen| seen.id() == Some(id.as_str())).count()
    }
}

/// The `number`th event of that key; its payload says both.
pub(super) fn numbered(topic: &str, key: &str, number: usize) -> Arc<Event> {
    let payload = format!(r#"{{"key":"{key}","number":{number}}}"#);
    let event = Event::new(topic, "law.tried", payload).and_then(|event| event.key(key));
    Arc::new(event.expect("a valid event"))
}
