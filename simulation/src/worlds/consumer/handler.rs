//! The simulated handler and its database: the effect of a message, and how it is kept together with its mark.

use std::sync::Arc;
use std::time::Duration;

use semel::guard::{Guard, Limits};
use semel::inbox::consumer::{Handler, HandlerError, Message, OnBrokenCall};
use semel::inbox::store_dedup::{AtLeastOnce, AtMostOnce, ClaimFinish, Dedup, Work, WorkAttempt};
use semel::intent::policy::StoreTime;
use semel::store::memory::MemoryStore;
use semel::{Effect, observe::Metrics};

use super::ledger::Ledger;
use super::plan::{Behaviour, Down, Fault, Mode};
use super::process::Gate;
use crate::process::Process;

/// What the handlers of all processes share: the database, or the store with the marks.
#[derive(Clone)]
pub(super) struct Shared {
    ledger: Arc<Ledger>,
    store: MemoryStore,
}

impl Shared {
    pub(super) fn new(ledger: &Arc<Ledger>) -> Self {
        let stage = ledger.stage.clone();
        let store = MemoryStore::with_clock(move || StoreTime(1_000 + stage.elapsed().as_millis() as u64));
        Self { ledger: Arc::clone(ledger), store }
    }
}

/// The handler of the plan's mode.
pub(super) enum AnyHandler {
    Commit(Effects),
    AtMostOnce(AtMostOnce<MemoryStore, Effects>),
    AtLeastOnce(AtLeastOnce<MemoryStore, Effects>),
    ClaimFinish(ClaimFinish<MemoryStore, Effects>),
}

impl AnyHandler {
    pub(super) fn new(shared: &Shared, consumer: usize, gate: &Gate, process: &Process) -> Self {
        let effects = Effects { ledger: Arc::clone(&shared.ledger), consumer, gate: gate.clone() };
        let settings = &shared.ledger.plan.settings;
        if settings.mode == Mode::Commit {
            return Self::Commit(effects);
        }
        let guard = Guard::with(shared.store.clone(), Limits::default(), Metrics::default(), process.clone());
        let lease = Duration::from_millis(settings.lease_ms);
        let marks = Dedup::new(&guard, "sim").and_then(|marks| marks.lease(lease));
        let marks = marks.expect("the name and the lease are good ones");
        match settings.mode {
            Mode::AtMostOnce => Self::AtMostOnce(marks.at_most_once(effects)),
            Mode::AtLeastOnce => Self::AtLeastOnce(marks.at_least_once(effects)),
            _ => {
                let machine = marks.claim_finish(Effect::Keyed, effects);
                Self::ClaimFinish(machine.expect("an effect that is not atomic"))
            }
        }
    }
}

impl Handler for AnyHandler {
    async fn handle(&self, messages: &[Message]) -> Result<(), HandlerError> {
        match self {
            Self::Commit(handler) => handler.handle(messages).await,
            Self::AtMostOnce(handler) => handler.handle(messages).await,
            Self::AtLeastOnce(handler) => handler.handle(messages).await,
            Self::ClaimFinish(handler) => handler.handle(messages).await,
        }
    }

    fn batch_max(&self) -> usize {
        match self {
            Self::Commit(_) => usize::MAX,
            Self::AtMostOnce(handler) => handler.batch_max(),
            Self::AtLeastOnce(handler) => handler.batch_max(),
            Self::ClaimFinish(handler) => handler.batch_max(),
        }
    }

    fn on_broken_call(&self) -> OnBrokenCall {
        match self {
            Self::AtMostOnce(handler) => handler.on_broken_call(),
            Self::Commit(_) | Self::AtLeastOnce(_) | Self::ClaimFinish(_) => OnBrokenCall::Retry,
        }
    }
}

/// Handles messages as the plan says.
pub(super) struct Effects {
    ledger: Arc<Ledger>,
    consumer: usize,
    gate: Gate,
}

/// A call under way: one that is dropped was broken off.
struct UnderWay {
    ledger: Arc<Ledger>,
    messages: Vec<usize>,
    ended: bool,
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        if !self.ended {
            self.ledger.stage.count("calls broken off", 1);
            self.messages.iter().for_each(|message| self.ledger.broken_off(*message));
            if let [one] = self.messages[..] {
                self.ledger.failed(one);
            }
        }
    }
}

fn number(message: &Message) -> usize {
    std::str::from_utf8(message.payload()).ok().and_then(|text| text.parse().ok()).unwrap_or(usize::MAX)
}

impl Effects {
    fn under_way(&self, messages: Vec<usize>) -> UnderWay {
        UnderWay { ledger: Arc::clone(&self.ledger), messages, ended: false }
    }

    /// The database is asked for something.
    async fn ask(&self) -> Result<(), HandlerError> {
        let ms = self.ledger.plan.settings.handle_ms;
        tokio::time::sleep(Duration::from_millis(ms)).await;
        self.gate.open().await;
        let down = self.ledger.faults().find_map(|fault| match fault {
            Fault::HandlerDown { how, .. } => Some(how),
            _ => None,
        });
        let Some(down) = down else { return Ok(()) };
        self.ledger.stage.count("calls while the handler is down", 1);
        match down {
            Down::Hangs => std::future::pending().await,
            Down::SaysLater => Err(HandlerError::transient("the database is down").not_applied()),
            Down::Refuses if self.ledger.stage.has("calls an outage the message's fault") => {
                Err(HandlerError::permanent("the database is down"))
            }
            Down::Refuses => Err(HandlerError::retry("the database is down").not_applied()),
        }
    }

    /// The work for one message, as far as it can fail.
    async fn try_one(&self, message: usize) -> Result<(), HandlerError> {
        let behaviour = self.ledger.state().messages[message].behaviour;
        let now = self.ledger.now();
        let until = |ms: u64| now < Duration::from_millis(ms);
        match behaviour {
            Behaviour::Hangs => {
                self.ledger.stage.count("calls that hang", 1);
                std::future::pending().await
            }
            Behaviour::Panics => {
                self.ledger.stage.count("panics", 1);
                // Without a word on stderr.
                std::panic::resume_unwind(Box::new("the handler panics"))
            }
            Behaviour::Slow(ms) => {
                tokio::time::sleep(Duration::from_millis(ms)).await;
                self.gate.open().await;
                Ok(())
            }
            Behaviour::Fails if self.ledger.stage.has("says later of everything") => {
                Err(HandlerError::transient("not now"))
            }
            Behaviour::Fails => Err(HandlerError::retry("it cannot be handled").not_applied()),
            Behaviour::Poison => Err(HandlerError::permanent("it makes no sense").not_applied()),
            Behaviour::FailsUntil(ms) if until(ms) => Err(HandlerError::retry("not yet").not_applied()),
            Behaviour::LaterUntil(ms) if until(ms) => Err(HandlerError::transient("not now").not_applied()),
            _ => Ok(()),
        }
    }

    /// Whether the answer to a commit is lost.
    fn commit_unknown(&self) -> bool {
        let lost = self.ledger.faults().any(|fault| matches!(fault, Fault::CommitUnknown { .. }));
        if lost {
            self.ledger.stage.count("commits in doubt", 1);
        }
        lost
    }

    async fn try_all(&self, fresh: &[usize]) -> Result<(), HandlerError> {
        self.ask().await?;
        for message in fresh {
            self.try_one(*message).await?;
        }
        Ok(())
    }
}

impl Handler for Effects {
    /// Marks and effects, in one commit.
    async fn handle(&self, messages: &[Message]) -> Result<(), HandlerError> {
        let numbers: Vec<usize> = messages.iter().map(number).collect();
        let stage = &self.ledger.stage;
        let mut under_way = self.under_way(numbers.clone());
        let fresh: Vec<usize> = numbers.iter().copied().filter(|n| !self.ledger.is_marked(*n)).collect();
        stage.count("calls", 1);
        let tried = self.try_all(&fresh).await;
        under_way.ended = true;
        if let Err(failed) = tried {
            if let [one] = numbers[..] {
                self.ledger.failed(one);
                stage.trace(format_args!(
                    "consumer {}: {} fails: {failed}",
                    self.consumer,
                    self.ledger.name(one)
                ));
            }
            return if stage.has("swallows failures") { Ok(()) } else { Err(failed) };
        }
        // Of two transactions with one mark the second waits for the first, and finds it.
        for message in fresh.into_iter().filter(|message| !self.ledger.is_marked(*message)) {
            self.ledger.effect(message, self.consumer);
            if !stage.has("marks in a second commit") {
                self.ledger.mark(message);
            }
        }
        if stage.has("marks in a second commit") {
            tokio::time::sleep(Duration::from_millis(20)).await;
            numbers.iter().for_each(|message| self.ledger.mark(*message));
        }
        match self.commit_unknown() {
            true => {
                numbers.iter().for_each(|message| self.ledger.in_doubt(*message));
                Err(HandlerError::transient("the answer to the commit was lost"))
            }
            false => Ok(()),
        }
    }
}

impl Work for Effects {
    /// The effect alone: the mark is the mode's.
    async fn run(&self, call: WorkAttempt) -> Result<(), HandlerError> {
        let message = number(&call.message);
        let mut under_way = self.under_way(vec![message]);
        self.ledger.stage.count("calls", 1);
        if self.ledger.plan.settings.mode == Mode::AtMostOnce {
            self.ledger.mark(message);
        }
        let tried = self.try_all(&[message]).await;
        under_way.ended = true;
        if let Err(failed) = tried {
            self.ledger.failed(message);
            let name = self.ledger.name(message);
            self.ledger.stage.trace(format_args!("consumer {}: {name} fails: {failed}", self.consumer));
            return Err(failed);
        }
        // The downstream honours the key: the same effect under the same key happens once.
        let had = !self.ledger.state().messages[message].effects.is_empty();
        if !had || self.ledger.plan.settings.mode != Mode::ClaimFinish {
            self.ledger.effect(message, self.consumer);
        } else {
            self.ledger.stage.count("effects asked for again", 1);
        }
        Ok(())
    }
}
