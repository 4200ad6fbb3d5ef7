//! The simulated sink: a broker that fails as the plan says and writes down what it has got.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use semel::outbox::Event;
use semel::relay::SinkCheckpoint;
use semel::sink::{DeliverySemantics, ExactlyOnce, Guarantee, Published, Sink, SinkError};

use super::plan::{Fault, How, Plan};
use super::tables::{name, number};
use crate::process::Process;
use crate::stage::Stage;

/// An event that the broker has got.
#[derive(Clone, Copy, Debug)]
pub(super) struct Got {
    pub(super) event: usize,
}

/// A relay was killed or stalled in a call.
#[derive(Clone, Copy, Debug)]
pub(super) struct Strike {
    pub(super) at_ms: u64,
    pub(super) for_ms: u64,
}

struct State {
    strikes: Vec<Strike>,
    got: Vec<Got>,
    /// When each event came first.
    first: BTreeMap<usize, u64>,
    /// Of the transactional id.
    epoch: u64,
    position: Option<Vec<u8>>,
    calls: u64,
}

/// The broker, shared by all relays.
#[derive(Clone)]
pub(super) struct Broker {
    stage: Stage,
    plan: Arc<Plan>,
    state: Arc<Mutex<State>>,
}

impl Broker {
    pub(super) fn new(stage: &Stage, plan: &Plan) -> Self {
        let state = State {
            strikes: Vec::new(),
            got: Vec::new(),
            first: BTreeMap::new(),
            epoch: 0,
            position: None,
            calls: 0,
        };
        Self { stage: stage.clone(), plan: Arc::new(plan.clone()), state: Arc::new(Mutex::new(state)) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Everything it has got, in order.
    pub(super) fn got(&self) -> Vec<Got> {
        self.state().got.clone()
    }

    /// When it got each event first.
    pub(super) fn first(&self) -> BTreeMap<usize, u64> {
        self.state().first.clone()
    }

    /// The relays that were killed or stalled in a call.
    pub(super) fn strikes(&self) -> Vec<Strike> {
        self.state().strikes.clone()
    }

    /// A sink for one process of a relay.
    pub(super) fn sink(&self, relay: usize, process: &Process) -> SimulatedSink {
        SimulatedSink { broker: self.clone(), relay, process: process.clone(), epoch: 0 }
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.stage.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn write(&self, event: &Event) {
        let (at_ms, event_number) = (self.now_ms(), number(event));
        let mut state = self.state();
        let first = !state.first.contains_key(&event_number);
        state.first.entry(event_number).or_insert(at_ms);
        state.got.push(Got { event: event_number });
        drop(state);
        self.stage.count(if first { "events published" } else { "events repeated" }, 1);
    }

    fn call_time(&self) -> Duration {
        let now = self.now_ms();
        let slower = self.plan.faults.iter().filter_map(|fault| match fault {
            Fault::SinkSlow { at_ms, for_ms, by_ms } if (*at_ms..at_ms + for_ms).contains(&now) => {
                Some(*by_ms)
            }
            _ => None,
        });
        Duration::from_millis(self.plan.settings.call_ms + slower.max().unwrap_or(0))
    }

    /// How everything fails now, if it does.
    fn down(&self) -> Option<How> {
        let now = self.now_ms();
        self.plan.faults.iter().find_map(|fault| match fault {
            Fault::SinkDown { at_ms, for_ms, how } if (*at_ms..at_ms + for_ms).contains(&now) => Some(*how),
            _ => None,
        })
    }

    fn by_chance(&self, call: u64, salt: usize) -> Option<How> {
        let now = self.now_ms();
        let percent = self.plan.faults.iter().find_map(|fault| match fault {
            Fault::SinkFlaky { at_ms, for_ms, percent } if (*at_ms..at_ms + for_ms).contains(&now) => {
                Some(*percent)
            }
            _ => None,
        })?;
        let mut rng = fastrand::Rng::with_seed(call * 1_000_003 + salt as u64);
        let hows = [How::NotPublished, How::InDoubt, How::Unconfirmed];
        (rng.u8(..100) < percent).then(|| hows[rng.usize(..hows.len())])
    }

    /// How this event fails now by its key or destination, if it does.
    fn fails_itself(&self, event: &Event) -> Option<How> {
        let now = self.now_ms();
        let append = self.plan.appends.get(number(event))?;
        let during = |at: &u64, long: &Option<u64>| *at <= now && long.is_none_or(|long| now < at + long);
        self.plan.faults.iter().find_map(|fault| match fault {
            Fault::KeyFails { key, at_ms, for_ms, how }
                if append.key == Some(*key) && during(at_ms, for_ms) =>
            {
                Some(*how)
            }
            Fault::TopicFails { topic, at_ms, for_ms, how }
                if append.topic == *topic && during(at_ms, for_ms) =>
            {
                Some(*how)
            }
            _ => None,
        })
    }

    /// How this event fails now, if it does.
    fn fails(&self, event: &Event, call: u64) -> Option<How> {
        self.down().or_else(|| self.fails_itself(event)).or_else(|| self.by_chance(call, number(event)))
    }

    fn is_refused(&self, event: &Event) -> bool {
        let number = number(event);
        self.plan.faults.iter().any(|fault| matches!(fault, Fault::Refused { event } if *event == number))
    }

    fn next_call(&self) -> u64 {
        let mut state = self.state();
        state.calls += 1;
        state.calls
    }

    fn count_failure(&self, how: How) {
        self.stage.count(
            match how {
                How::NotPublished => "events not published",
                How::InDoubt => "events in doubt",
                How::Unconfirmed => "events published without a confirm",
                How::OneDestination => "events whose destination was away",
                How::NotTried => "events not tried",
            },
            1,
        );
    }
}

fn error(how: How) -> SinkError {
    match how {
        How::NotPublished => SinkError::not_published("the broker refused the connection"),
        How::InDoubt | How::Unconfirmed => SinkError::maybe_published("the broker did not answer in time"),
        How::OneDestination => SinkError::not_published("the destination is away").destination_down(),
        How::NotTried => SinkError::not_tried("there was no time left to send it"),
    }
}

/// One relay's connection to the broker.
pub(super) struct SimulatedSink {
    broker: Broker,
    relay: usize,
    process: Process,
    epoch: u64,
}

impl SimulatedSink {
    /// Kills or stalls the relay in this call, if the plan says so.
    async fn strike(&self, call: u64, is_written: bool) {
        let strikes = self.broker.plan.faults.iter().filter_map(|fault| match fault {
            Fault::CrashInCall { call: at, written } if *at == call && *written == is_written => Some(None),
            Fault::StallInCall { call: at, for_ms } if *at == call && !is_written => Some(Some(*for_ms)),
            _ => None,
        });
        for stall_ms in strikes {
            let strike = Strike { at_ms: self.broker.now_ms(), for_ms: stall_ms.unwrap_or(0) };
            self.broker.state().strikes.push(strike);
            let (stage, relay, process) = (&self.broker.stage, self.relay, self.process.clone());
            let Some(stall_ms) = stall_ms else {
                stage.trace(format_args!("relay {relay} is killed in a call"));
                stage.count("crashes in a call", 1);
                process.kill();
                return std::future::pending().await;
            };
            stage.trace(format_args!("relay {relay} stalls in a call"));
            stage.count("stalls in a call", 1);
            process.stall();
            tokio::spawn(async move {
                tokio::time::sleep(Duration::from_millis(stall_ms)).await;
                process.resume();
            });
            tokio::task::yield_now().await;
            self.broker.stage.trace(format_args!("relay {relay} goes on"));
        }
    }
}

impl Sink for SimulatedSink {
    fn guarantee(&self) -> Guarantee {
        Guarantee {
            delivery: DeliverySemantics::AtLeastOnce,
            sentence: "simulated".into(),
            violations: Vec::new(),
        }
    }

    async fn publish(&mut self, events: &[Arc<Event>]) -> Vec<Published> {
        let (broker, time) = (&self.broker, self.broker.call_time());
        tokio::time::sleep(time / 2).await;
        let call = broker.next_call();
        self.strike(call, false).await;
        let mut behind = BTreeSet::new();
        let mut answers = Vec::new();
        for event in events {
            let key = event.ordered_by().map(|key| (event.topic(), key));
            if key.is_some_and(|key| behind.contains(&key))
                && !broker.stage.has("sink_goes_on_in_a_failed_key")
            {
                answers
                    .push(Published::Failed(SinkError::not_published("an earlier event of its key failed")));
                continue;
            }
            let how = broker.fails(event, call);
            let refused = broker.is_refused(event) && how.is_none_or(|how| how != How::NotTried);
            let answer = match how {
                _ if refused => {
                    broker.stage.count("events refused", 1);
                    Published::Refused(SinkError::not_published("too large"))
                }
                None => {
                    broker.write(event);
                    Published::Confirmed
                }
                Some(how) => {
                    broker.count_failure(how);
                    if how == How::Unconfirmed {
                        broker.write(event);
                    }
                    match how {
                        How::InDoubt if broker.stage.has("doubt_is_a_confirm") => Published::Confirmed,
                        how => Published::Failed(error(how)),
                    }
                }
            };
            if answer != Published::Confirmed {
                behind.extend(key);
            }
            answers.push(answer);
        }
        let confirmed = answers.iter().filter(|answer| **answer == Published::Confirmed).count();
        let first = events.first().map(|event| name(event)).unwrap_or_default();
        let (relay, sent) = (self.relay, events.len());
        broker.stage.trace(format_args!("relay {relay} sends {sent} from {first} on: {confirmed} confirmed"));
        if confirmed > 0 && confirmed < sent {
            broker.stage.count("calls confirmed in part", 1);
        }
        self.strike(call, true).await;
        tokio::time::sleep(time - time / 2).await;
        answers
    }
}

impl SimulatedSink {
    /// Whether the transaction is committed, and what is said of it.
    fn transact(&self, call: u64, events: &[Arc<Event>], position: &[u8]) -> (bool, Result<(), SinkError>) {
        let broker = &self.broker;
        if self.epoch != broker.state().epoch && !broker.stage.has("old_transactions_commit") {
            broker.stage.count("transactions fenced", 1);
            return (false, Err(SinkError::fenced("a newer producer has this transactional id")));
        }
        if let Some(how) = broker.down().or_else(|| broker.by_chance(call, position.len())) {
            broker.count_failure(how);
            return (how == How::Unconfirmed, Err(error(how)));
        }
        if let Some(refused) = events.iter().find(|event| broker.is_refused(event)) {
            broker.stage.count("events refused", 1);
            return (false, Err(SinkError::refused(refused.id(), "too large")));
        }
        match events.iter().find_map(|event| broker.fails_itself(event)) {
            Some(how) => {
                broker.count_failure(how);
                if how == How::InDoubt && broker.stage.has("doubt_is_a_confirm") {
                    return (false, Ok(()));
                }
                (how == How::Unconfirmed, Err(error(how)))
            }
            None => (true, Ok(())),
        }
    }
}

impl ExactlyOnce for SimulatedSink {
    async fn begin(&mut self) -> Result<Option<Vec<u8>>, SinkError> {
        tokio::time::sleep(self.broker.call_time()).await;
        if let Some(how) = self.broker.down() {
            return Err(error(if how == How::Unconfirmed { How::InDoubt } else { how }));
        }
        let mut state = self.broker.state();
        state.epoch += 1;
        self.epoch = state.epoch;
        Ok(state.position.clone())
    }

    async fn publish_at(&mut self, events: &[Arc<Event>], position: &[u8]) -> Result<(), SinkError> {
        let time = self.broker.call_time();
        tokio::time::sleep(time / 2).await;
        let call = self.broker.next_call();
        self.strike(call, false).await;
        let (committed, answer) = self.transact(call, events, position);
        let (relay, sent) = (self.relay, events.len());
        let first = events.first().map(|event| name(event)).unwrap_or_else(|| "nothing".into());
        let result = match &answer {
            Ok(()) => "committed",
            Err(error) if error.is_fenced() => "fenced",
            Err(error) if error.is_maybe_published() => "in doubt",
            Err(_) => "failed",
        };
        self.broker.stage.trace(format_args!("relay {relay} commits {sent} from {first} on: {result}"));
        if committed {
            self.broker.stage.count("transactions", 1);
            events.iter().for_each(|event| self.broker.write(event));
            let mut position = position.to_vec();
            if self.broker.stage.has("position_forgets_what_is_left_out")
                && let Some(mut reached) = SinkCheckpoint::from_bytes(&position)
            {
                reached.left_out.clear();
                position = reached.to_bytes().unwrap_or(position);
            }
            self.broker.state().position = Some(position);
        }
        self.strike(call, true).await;
        tokio::time::sleep(time - time / 2).await;
        answer
    }
}
