//! A broker with transactions, in memory: it commits, refuses, loses answers and hangs on demand, and it can be built
//! wrong.

use std::collections::{HashSet, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

use semel::outbox::Event;
use semel::relay::SinkCheckpoint;
use semel::sink::{DeliverySemantics, ExactlyOnce, Guarantee, Published, Sink, SinkError};
use tokio::sync::Semaphore;
use uuid::Uuid;

use crate::relay::sink::text;

/// What readers of committed data see: key, text, id.
pub type Seen = (String, String, Uuid);

#[derive(Default)]
pub struct State {
    pub seen: Vec<Seen>,
    pub position: Option<Vec<u8>>,
    /// Every transaction that was committed: the relay's epoch, the texts, the checkpoint. For people who read a failure.
    pub commits: Vec<(u64, Vec<String>, String)>,
    pub epoch: u64,
    pub begins: u32,
    pub transactions: u32,
    /// What the next transactions come to. After them, all is well or left to chance.
    pub script: VecDeque<Step>,
    pub chance: Option<fastrand::Rng>,
    /// Texts that are refused, and named.
    pub refused: HashSet<String>,
    /// Texts with which a transaction fails, without naming which it was.
    pub failing: HashSet<String>,
    pub down: bool,
    /// How many have come to where they hang.
    pub hanging: u32,
    thawed: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    Commit,
    /// Committed, and the answer never comes.
    CommitAndHang,
    /// The whole process stands still before the commit, until it is thawed.
    FreezeAndCommit,
    /// The answer is lost: of a commit, or of nothing.
    InDoubt {
        committed: bool,
    },
    Fail,
}

/// How a sink may be built wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bug {
    None,
    /// `begin` reads the position, waits at the gate, and fences only then.
    ReadsBeforeTheFence,
    /// The answer comes before the commit, so the source gets the ack before it is done.
    AnswersBeforeTheCommit,
    ForgetsThePosition,
    ForgetsWhatWasLeftOut,
}

#[derive(Clone)]
pub struct Broker {
    state: Arc<(Mutex<State>, Condvar)>,
    pub gate: Arc<Semaphore>,
}

impl Broker {
    pub fn new() -> Self {
        Self { state: Arc::default(), gate: Arc::new(Semaphore::new(0)) }
    }

    pub fn with(script: &[Step]) -> Self {
        let broker = Self::new();
        broker.state().script.extend(script);
        broker
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.0.lock().unwrap()
    }

    /// One relay's line to it.
    pub fn sink(&self, bug: Bug) -> Transactions {
        Transactions { broker: self.clone(), epoch: None, bug, answered: None }
    }

    pub fn thaw(&self) {
        self.state().thawed = true;
        self.state.1.notify_all();
    }

    pub fn texts(&self) -> Vec<String> {
        self.state().seen.iter().map(|(_, text, _)| text.clone()).collect()
    }

    /// Waits until something holds.
    pub async fn until(&self, what: &str, holds: impl Fn(&State) -> bool) {
        for _ in 0..24_000 {
            if holds(&self.state()) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        panic!("never came: {what}; seen: {:?}", self.texts());
    }

    fn commit(&self, epoch: u64, events: &[Arc<Event>], position: &[u8]) -> Result<(), SinkError> {
        let mut state = self.state();
        state.transactions += 1;
        if state.epoch != epoch {
            return Err(SinkError::fenced("another has begun"));
        }
        if state.down {
            return Err(SinkError::not_published("the broker is down"));
        }
        if let Some(event) = events.iter().find(|event| state.refused.contains(&text(event))) {
            return Err(SinkError::refused(event.id(), "the broker does not want it"));
        }
        if events.iter().any(|event| state.failing.contains(&text(event))) {
            return Err(SinkError::not_published("one of them does not work"));
        }
        for event in events {
            let key = event.ordered_by().unwrap_or_default().to_owned();
            state.seen.push((key, text(event), event.id()));
        }
        state.position = Some(position.to_vec());
        let texts = events.iter().map(|event| text(event)).collect();
        state.commits.push((epoch, texts, String::from_utf8_lossy(position).replace('\n', " ")));
        Ok(())
    }

    /// The transactions with events that were committed more than once, and those beside them.
    pub fn repeats(&self) -> String {
        let state = self.state();
        let mut ids = HashSet::new();
        let again: HashSet<&str> = state
            .seen
            .iter()
            .filter(|(_, _, id)| !ids.insert(id))
            .map(|(_, text, _)| text.as_str())
            .collect();
        let commits = state.commits.iter().enumerate();
        let repeats =
            commits.filter(|(_, (_, texts, _))| texts.iter().any(|text| again.contains(text.as_str())));
        let near: std::collections::BTreeSet<usize> =
            repeats.flat_map(|(n, _)| n.saturating_sub(4)..(n + 5).min(state.commits.len())).collect();
        near.into_iter().fold(String::new(), |shown, n| {
            let (epoch, texts, position) = &state.commits[n];
            shown + &format!("{n}: epoch {epoch}, {texts:?}, {position}\n")
        })
    }
}

pub struct Transactions {
    broker: Broker,
    epoch: Option<u64>,
    bug: Bug,
    answered: Option<(Vec<Arc<Event>>, Vec<u8>)>,
}

impl Sink for Transactions {
    fn guarantee(&self) -> Guarantee {
        Guarantee {
            delivery: DeliverySemantics::ExactlyOnce,
            sentence: "Remembered until the test ends.".into(),
            violations: Vec::new(),
        }
    }

    async fn publish(&mut self, events: &[Arc<Event>]) -> Vec<Published> {
        vec![Published::Failed(SinkError::not_published("only with a position")); events.len()]
    }
}

fn lost() -> SinkError {
    SinkError::maybe_published("the answer was lost")
}

impl ExactlyOnce for Transactions {
    async fn begin(&mut self) -> Result<Option<Vec<u8>>, SinkError> {
        self.epoch = None;
        {
            let mut state = self.broker.state();
            state.begins += 1;
            let bad_luck = state.chance.as_mut().is_some_and(|rng| rng.u32(0..10) == 0);
            if state.down || bad_luck {
                return Err(SinkError::not_published("the broker does not answer"));
            }
        }
        let early = self.broker.state().position.clone();
        if self.bug == Bug::ReadsBeforeTheFence {
            self.broker.state().hanging += 1;
            self.broker.gate.acquire().await.unwrap().forget();
        }
        let mut state = self.broker.state();
        state.epoch += 1;
        self.epoch = Some(state.epoch);
        Ok(match self.bug {
            Bug::ReadsBeforeTheFence => early,
            Bug::ForgetsThePosition => None,
            Bug::ForgetsWhatWasLeftOut => state.position.as_deref().map(|bytes| {
                let reached = SinkCheckpoint::from_bytes(bytes).unwrap();
                SinkCheckpoint { left_out: Vec::new(), ..reached }.to_bytes().unwrap()
            }),
            _ => state.position.clone(),
        })
    }

    async fn publish_at(&mut self, events: &[Arc<Event>], position: &[u8]) -> Result<(), SinkError> {
        let Some(epoch) = self.epoch.take() else { return Err(lost()) };
        if let Some((events, position)) = self.answered.take() {
            self.broker.commit(epoch, &events, &position)?;
        }
        let step = {
            let mut state = self.broker.state();
            state.script.pop_front().unwrap_or_else(|| by_chance(&mut state))
        };
        match step {
            Step::InDoubt { committed: false } => return Err(lost()),
            Step::Fail => {
                self.epoch = Some(epoch);
                return Err(SinkError::not_published("not now"));
            }
            Step::FreezeAndCommit => {
                let mut state = self.broker.state();
                state.hanging += 1;
                drop(self.broker.state.1.wait_while(state, |state| !state.thawed).unwrap());
            }
            _ => {}
        }
        if self.bug == Bug::AnswersBeforeTheCommit {
            self.answered = Some((events.to_vec(), position.to_vec()));
            self.epoch = Some(epoch);
            return Ok(());
        }
        let done = self.broker.commit(epoch, events, position);
        if done.as_ref().is_err_and(SinkError::is_fenced) {
            return done;
        }
        match step {
            Step::CommitAndHang => {
                self.broker.state().hanging += 1;
                std::future::pending::<()>().await;
            }
            Step::InDoubt { .. } => return Err(lost()),
            _ => {}
        }
        self.epoch = Some(epoch);
        done
    }
}

fn by_chance(state: &mut State) -> Step {
    match state.chance.as_mut().map(|rng| rng.u32(0..20)) {
        Some(0) => Step::InDoubt { committed: true },
        Some(1) => Step::InDoubt { committed: false },
        Some(2 | 3) => Step::Fail,
        _ => Step::Commit,
    }
}
