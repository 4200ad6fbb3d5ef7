//! A sink that remembers, and has bad days on demand.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use semel::outbox::Event;
use semel::sink::{DeliverySemantics, Guarantee, Published, Sink, SinkError};

#[derive(Default)]
pub struct State {
    /// What got to the broker, in order: key, text, id. Also what was published in vain.
    pub log: Vec<(String, String, String)>,
    pub down: bool,
    /// Texts of events that are refused for good.
    pub refused: HashSet<String>,
    /// Texts of events that always fail.
    pub failing: HashSet<String>,
    /// Of a hundred, how many fail; half of them have got there.
    pub fail_percent: u32,
    pub delay: Duration,
    pub calls: u64,
}

#[derive(Clone, Default)]
pub struct TestSink(Arc<Mutex<State>>);

impl TestSink {
    pub fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    pub fn texts(&self) -> Vec<String> {
        self.state().log.iter().map(|(_, text, _)| text.clone()).collect()
    }

    /// Of each key the texts in the order in which they came first. A repetition must be one: same text, same id.
    pub fn first_of_each(&self) -> HashMap<String, Vec<String>> {
        let mut ids: HashMap<String, (String, String)> = HashMap::new();
        let mut first: HashMap<String, Vec<String>> = HashMap::new();
        for (key, text, id) in &self.state().log {
            match ids.get(id) {
                Some(known) => assert_eq!(known, &(key.clone(), text.clone())),
                None => {
                    ids.insert(id.clone(), (key.clone(), text.clone()));
                    first.entry(key.clone()).or_default().push(text.clone());
                }
            }
        }
        first
    }

    /// Waits until so many different events have come.
    pub async fn wait_for(&self, events: usize) {
        let counted = async {
            while self.state().log.iter().map(|(_, _, id)| id).collect::<HashSet<_>>().len() < events {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let patience = Duration::from_secs(180);
        if tokio::time::timeout(patience, counted).await.is_err() {
            panic!(
                "{events} events did not come within {patience:?}; there are {:?}",
                self.state().log.len()
            );
        }
    }
}

pub fn text(event: &Event) -> String {
    String::from_utf8(event.payload().to_vec()).unwrap()
}

impl Sink for TestSink {
    fn guarantee(&self) -> Guarantee {
        Guarantee {
            delivery: DeliverySemantics::AtLeastOnce,
            sentence: "Remembered until the test ends.".into(),
            violations: Vec::new(),
        }
    }

    async fn publish(&mut self, events: &[Arc<Event>]) -> Vec<Published> {
        let delay = self.state().delay;
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
        let mut state = self.state();
        state.calls += 1;
        let mut broken: HashSet<(String, String)> = HashSet::new();
        let mut answers = Vec::new();
        for event in events {
            let order = event.ordered_by().unwrap_or_default().to_owned();
            let place = (order.clone(), event.topic().to_owned());
            let text = text(event);
            let luck = fastrand::u32(0..100);
            let answer = if broken.contains(&place) && !order.is_empty() {
                Published::Failed(SinkError::not_published("one before it failed"))
            } else if state.down || state.failing.contains(&text) {
                Published::Failed(SinkError::not_published("the broker is down"))
            } else if state.refused.contains(&text) {
                Published::Refused(SinkError::not_published("the broker does not want it"))
            } else if luck < state.fail_percent {
                if luck % 2 == 0 {
                    state.log.push((order, text, event.id().to_string()));
                }
                Published::Failed(SinkError::maybe_published("the answer was lost"))
            } else {
                state.log.push((order, text, event.id().to_string()));
                Published::Confirmed
            };
            if answer != Published::Confirmed {
                broken.insert(place);
            }
            answers.push(answer);
        }
        answers
    }
}
