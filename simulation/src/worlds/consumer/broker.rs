//! The simulated broker: a log with partitions or a queue with leases, and the source each consumer has.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use semel::source::{Delivery, Receipt, Settle, Source, SourceError};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::ledger::{Ledger, PULSE};
use super::plan::{Behaviour, BrokerKind, Fault};
use super::process::Gate;

/// Where messages come from.
pub(super) const TOPIC: &str = "orders";

/// How long a message without a key waits for the consumer whose turn it is.
const TURN: Duration = Duration::from_millis(600);

/// The broker. It outlives consumers.
pub(super) struct Broker {
    ledger: Arc<Ledger>,
    state: Mutex<State>,
    more: Notify,
}

#[derive(Default)]
struct State {
    parts: Vec<Part>,
    /// Members of the group: the consumer, its incarnation, and until when it is believed alive.
    members: BTreeMap<u64, Instant>,
    next_member: u64,
    turned: usize,
}

/// A partition of a log, or the whole of a queue.
#[derive(Default)]
struct Part {
    messages: Vec<Kept>,
    /// All before it are done.
    committed: usize,
    /// The member that reads it: of a log only.
    owner: Option<u64>,
    /// How often it changed hands: what was given before is worth nothing.
    generation: u64,
}

struct Kept {
    message: usize,
    done: bool,
    /// Who has it, under which receipt, until when: of a queue only.
    out: Option<(u64, Receipt, Instant)>,
}

impl Broker {
    pub(super) fn new(ledger: &Arc<Ledger>) -> Arc<Self> {
        let settings = &ledger.plan.settings;
        let parts = match settings.broker {
            BrokerKind::Log => settings.partitions.max(1),
            BrokerKind::Queue => 1,
        };
        let state = State { parts: (0..parts).map(|_| Part::default()).collect(), ..State::default() };
        Arc::new(Self { ledger: Arc::clone(ledger), state: Mutex::new(state), more: Notify::new() })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_log(&self) -> bool {
        self.ledger.plan.settings.broker == BrokerKind::Log
    }

    fn lease(&self) -> Duration {
        Duration::from_millis(self.ledger.plan.settings.lease_ms)
    }

    /// Puts a message at the end.
    pub(super) fn publish(&self, message: usize, key: usize) {
        let mut state = self.state();
        let part = if key == PULSE { message } else { key } % state.parts.len();
        state.parts[part].messages.push(Kept { message, done: false, out: None });
        drop(state);
        self.more.notify_waiters();
    }

    /// Whether nothing is open.
    pub(super) fn is_empty(&self) -> bool {
        self.state().parts.iter().all(|part| part.messages[part.committed..].iter().all(|kept| kept.done))
    }

    /// Whether nothing is open but pulses.
    pub(super) fn has_only_pulses(&self) -> bool {
        let state = self.state();
        let ledger = self.ledger.state();
        let open =
            state.parts.iter().flat_map(|part| &part.messages[part.committed..]).filter(|kept| !kept.done);
        open.into_iter().all(|kept| ledger.messages[kept.message].key == PULSE)
    }

    /// A consumer joins.
    pub(super) fn join(self: &Arc<Self>, consumer: usize, gate: &Gate) -> SimSource {
        let mut state = self.state();
        state.next_member += 1;
        let me = state.next_member;
        let until = Instant::now() + self.lease();
        state.members.insert(me, until);
        drop(state);
        SimSource {
            broker: Arc::clone(self),
            consumer,
            gate: gate.clone(),
            me,
            given: 0,
            out: BTreeMap::new(),
            again: BTreeSet::new(),
            positions: BTreeMap::new(),
        }
    }

    /// Every partition goes to the next member; every lease ends.
    pub(super) fn rebalance(&self) {
        let mut state = self.state();
        state.turned += 1;
        for part in &mut state.parts {
            part.generation += 1;
            part.owner = None;
            part.messages.iter_mut().for_each(|kept| kept.out = None);
        }
        drop(state);
        self.more.notify_waiters();
    }

    /// A broken call, where a fault says so.
    fn trouble(&self) -> Result<(), SourceError> {
        match self.ledger.faults().find(|fault| matches!(fault, Fault::SourceDown { .. })) {
            Some(_) => {
                self.ledger.stage.count("source errors", 1);
                Err(SourceError::later("the broker is down"))
            }
            None => Ok(()),
        }
    }
}

impl State {
    /// Members that were silent for too long are not members any more, and partitions without an owner get one.
    fn assign(&mut self, now: Instant) {
        self.members.retain(|_, until| *until > now);
        let members: Vec<u64> = self.members.keys().copied().collect();
        for (n, part) in self.parts.iter_mut().enumerate() {
            if part.owner.is_some_and(|owner| !members.contains(&owner)) {
                part.owner = None;
                part.generation += 1;
            }
            if part.owner.is_none() && !members.is_empty() {
                part.owner = Some(members[(n + self.turned) % members.len()]);
            }
        }
        // A member that has none gets one from the one that has most.
        for member in &members {
            let count = |of: u64| self.parts.iter().filter(|part| part.owner == Some(of)).count();
            let richest = members.iter().copied().max_by_key(|other| count(*other)).unwrap_or(*member);
            if count(*member) == 0
                && count(richest) > 1
                && let Some(part) = self.parts.iter_mut().rfind(|part| part.owner == Some(richest))
            {
                part.owner = Some(*member);
                part.generation += 1;
            }
        }
    }
}

/// Where a message is: partition, generation, index.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    part: usize,
    generation: u64,
    at: usize,
}

/// What one consumer process reads from.
pub(super) struct SimSource {
    broker: Arc<Broker>,
    consumer: usize,
    gate: Gate,
    me: u64,
    given: u64,
    out: BTreeMap<Receipt, Place>,
    /// Of a log: given back, to be given again first.
    again: BTreeSet<(usize, usize)>,
    /// Of a log: where it reads on, with the generation in which it does.
    positions: BTreeMap<usize, (u64, usize)>,
}

impl SimSource {
    /// A call on the wire.
    async fn call(&self) -> Result<(), SourceError> {
        let settings = &self.broker.ledger.plan.settings;
        tokio::time::sleep(Duration::from_millis(settings.broker_ms)).await;
        self.gate.open().await;
        self.broker.trouble()?;
        let (now, lease) = (Instant::now(), self.broker.lease());
        let mut state = self.broker.state();
        // One that was thrown out joins again.
        state.members.insert(self.me, now + lease);
        state.assign(now);
        Ok(())
    }

    fn receipt(&mut self) -> Receipt {
        self.given += 1;
        Receipt((self.me << 32) | self.given)
    }

    fn take(&mut self, most: usize) -> Vec<Delivery> {
        let broker = Arc::clone(&self.broker);
        let mut state = broker.state();
        let taken = if broker.is_log() { self.take_log(&state, most) } else { self.take_queue(&state, most) };
        let until = Instant::now() + broker.lease();
        let mut deliveries = Vec::new();
        for place in taken {
            let receipt = self.receipt();
            self.out.insert(receipt, place);
            let kept = &mut state.parts[place.part].messages[place.at];
            if !broker.is_log() {
                kept.out = Some((self.me, receipt, until));
            }
            if broker.ledger.stage.has("acknowledges on receipt") {
                kept.done = true;
            }
            deliveries.push((kept.message, receipt, format!("{}/{}", place.part, place.at)));
        }
        drop(state);
        deliveries
            .into_iter()
            .map(|(message, receipt, place)| self.delivery(message, receipt, place))
            .collect()
    }

    fn take_log(&mut self, state: &State, most: usize) -> Vec<Place> {
        let mut taken = Vec::new();
        for (n, part) in state.parts.iter().enumerate().filter(|(_, part)| part.owner == Some(self.me)) {
            let (generation, position) = self.positions.get(&n).copied().unwrap_or((u64::MAX, 0));
            if generation != part.generation {
                self.again.retain(|(of, _)| *of != n);
            }
            let mut position = if generation == part.generation { position } else { part.committed };
            let again: Vec<_> = self.again.iter().filter(|(of, _)| *of == n).copied().collect();
            for (part_n, at) in again {
                if taken.len() == most {
                    break;
                }
                self.again.remove(&(part_n, at));
                taken.push(Place { part: n, generation: part.generation, at });
            }
            while taken.len() < most && position < part.messages.len() {
                // What was done behind a gap comes again after a restart, as an offset says nothing of it.
                taken.push(Place { part: n, generation: part.generation, at: position });
                position += 1;
            }
            self.positions.insert(n, (part.generation, position));
        }
        taken
    }

    fn take_queue(&self, state: &State, most: usize) -> Vec<Place> {
        let now = Instant::now();
        let (mut taken, mut busy) = (Vec::new(), BTreeSet::new());
        let ledger = self.broker.ledger.state();
        for (at, kept) in state.parts[0].messages.iter().enumerate().skip(state.parts[0].committed) {
            if kept.done {
                continue;
            }
            let entry = &ledger.messages[kept.message];
            let key = (entry.keyed && entry.key != PULSE).then_some(entry.key);
            match kept.out.filter(|(_, _, until)| *until > now) {
                Some((by, ..)) => {
                    if by != self.me {
                        busy.extend(key);
                    }
                }
                None if key.is_some_and(|key| busy.contains(&key)) => {}
                // Who waits for a message is served by turns.
                None if key.is_none() && !self.is_my_turn(state, kept.message, entry.published) => {}
                None if taken.len() == most => break,
                None => taken.push(Place { part: 0, generation: state.parts[0].generation, at }),
            }
        }
        taken
    }

    /// Messages without a key go to the members by turns, and after a while to any of them.
    fn is_my_turn(&self, state: &State, message: usize, published: Duration) -> bool {
        let waits = self.broker.ledger.now().saturating_sub(published);
        let nth = state.members.keys().nth(message % state.members.len().max(1));
        nth == Some(&self.me) || waits > TURN
    }

    fn delivery(&self, message: usize, receipt: Receipt, place: String) -> Delivery {
        let ledger = &self.broker.ledger;
        ledger.delivered(message);
        let mut delivery = Delivery::new(receipt, TOPIC, place, message.to_string());
        let state = ledger.state();
        let entry = &state.messages[message];
        delivery.key = match entry.key {
            PULSE => None,
            key => (entry.keyed && !ledger.stage.has("gives no keys")).then(|| format!("key-{key}")),
        };
        if entry.behaviour != Behaviour::MissingIdentity {
            delivery.headers.push(("semel-id".into(), format!("00000000-0000-4000-8000-{message:012}")));
        }
        delivery.deliveries = Some(entry.deliveries);
        delivery
    }

    /// Whether a message is still ours.
    fn is_ours(&self, state: &State, receipt: Receipt, place: Place) -> bool {
        let part = &state.parts[place.part];
        match self.broker.is_log() {
            true => part.owner == Some(self.me) && part.generation == place.generation,
            false => part.messages[place.at].out.is_some_and(|(by, under, until)| {
                (by, under) == (self.me, receipt) && until > Instant::now()
            }),
        }
    }

    /// Tells the broker what became of messages. Returns those that are done for the first time.
    fn apply(&mut self, settled: &[(Receipt, Settle)]) -> Vec<usize> {
        let broker = Arc::clone(&self.broker);
        let mut state = broker.state();
        let mut done = Vec::new();
        for (receipt, settle) in settled {
            let Some(place) = self.out.remove(receipt) else { continue };
            if !self.is_ours(&state, *receipt, place) {
                continue;
            }
            let kept = &mut state.parts[place.part].messages[place.at];
            match settle {
                Settle::Ack => {
                    kept.done = true;
                    done.push(kept.message);
                }
                _ if broker.ledger.stage.has("gives back at the end") => {
                    kept.done = true;
                    let message = kept.message;
                    state.parts[place.part].messages.push(Kept { message, done: false, out: None });
                }
                _ if broker.is_log() => drop(self.again.insert((place.part, place.at))),
                _ => kept.out = None,
            }
        }
        for part in &mut state.parts {
            if broker.ledger.stage.has("commits past a gap") && broker.is_log() {
                part.committed = part.messages.iter().rposition(|kept| kept.done).map_or(0, |at| at + 1);
                continue;
            }
            while part.messages.get(part.committed).is_some_and(|kept| kept.done) {
                part.committed += 1;
            }
        }
        drop(state);
        broker.more.notify_waiters();
        done
    }
}

impl Source for SimSource {
    async fn receive(&mut self, most: usize, wait: Duration) -> Result<Vec<Delivery>, SourceError> {
        let until = Instant::now() + wait;
        let broker = Arc::clone(&self.broker);
        loop {
            let more = broker.more.notified();
            self.call().await?;
            let taken = self.take(most);
            let left = until.saturating_duration_since(Instant::now());
            if !taken.is_empty() || left.is_zero() {
                return Ok(taken);
            }
            // A lease may end without anybody saying so.
            let _ = tokio::time::timeout(left.min(Duration::from_millis(500)), more).await;
        }
    }

    async fn settle(&mut self, settled: &[(Receipt, Settle)]) -> Result<(), SourceError> {
        self.call().await?;
        let ledger = Arc::clone(&self.broker.ledger);
        let lost = ledger.faults().find_map(|fault| match fault {
            Fault::SettleLost { applied, .. } => Some(applied),
            _ => None,
        });
        if lost == Some(false) {
            ledger.stage.count("settles lost", 1);
            return Err(SourceError::later("the broker did not answer"));
        }
        for message in self.apply(settled) {
            ledger.stage.trace(format_args!("done at the broker: {}", ledger.name(message)));
            ledger.done(message);
        }
        match lost {
            Some(_) => {
                ledger.stage.count("settles lost", 1);
                Err(SourceError::later("the answer of the broker was lost"))
            }
            None => Ok(()),
        }
    }

    async fn keep(&mut self, held: &[Receipt]) -> Result<(), SourceError> {
        self.call().await?;
        let until = Instant::now() + self.broker.lease();
        let broker = Arc::clone(&self.broker);
        let mut state = broker.state();
        for receipt in held {
            if let Some(place) = self.out.get(receipt).copied()
                && !broker.is_log()
                && self.is_ours(&state, *receipt, place)
            {
                state.parts[place.part].messages[place.at].out = Some((self.me, *receipt, until));
            }
        }
        Ok(())
    }

    fn renew_after(&self) -> Duration {
        self.broker.lease() / 3
    }

    fn lost(&mut self) -> Vec<Receipt> {
        let broker = Arc::clone(&self.broker);
        let state = broker.state();
        let lost: Vec<Receipt> = self
            .out
            .iter()
            .filter(|(receipt, place)| !self.is_ours(&state, **receipt, **place))
            .map(|(receipt, _)| *receipt)
            .collect();
        drop(state);
        for receipt in &lost {
            self.out.remove(receipt);
        }
        if !lost.is_empty() {
            broker.ledger.stage.count("messages lost to others", lost.len() as u64);
            broker.ledger.stage.trace(format_args!(
                "consumer {} lost {} messages to others",
                self.consumer,
                lost.len()
            ));
        }
        lost
    }

    async fn retention(&mut self) -> Option<Duration> {
        Some(Duration::from_secs(7 * 86_400))
    }

    async fn leave(&mut self) -> Result<(), SourceError> {
        let settled: Vec<_> = self.out.keys().map(|receipt| (*receipt, Settle::Nack)).collect();
        self.apply(&settled);
        let mut state = self.broker.state();
        state.members.remove(&self.me);
        state.assign(Instant::now());
        drop(state);
        self.broker.more.notify_waiters();
        Ok(())
    }
}
