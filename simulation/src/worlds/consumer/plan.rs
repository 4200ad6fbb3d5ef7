//! What a seed decides: settings, keys with their messages, faults. Data only.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Everything a seed decides.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Plan {
    /// How the consumers, the broker and the handler are set.
    pub settings: Settings,
    /// The keys, and what is published under them.
    pub keys: Vec<KeyPlan>,
    /// What goes wrong, and when.
    pub faults: Vec<Fault>,
}

/// How a message and its effect are kept together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Mode {
    /// Mark and effect in one commit: a SQL inbox.
    Commit,
    /// Mark, then effect, over a store.
    AtMostOnce,
    /// Effect, then mark, over a store.
    AtLeastOnce,
    /// Claim, effect with a key that is honoured, finish, over a store.
    ClaimFinish,
}

/// Which kind of broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum BrokerKind {
    /// Partitions, each read in order by one consumer, with one committed offset: as Kafka.
    Log,
    /// Messages with leases; a key is with one consumer at a time: as SQS FIFO.
    Queue,
}

/// Settings of one history. Times are in milliseconds.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Settings {
    /// The inbox.
    pub mode: Mode,
    /// The broker.
    pub broker: BrokerKind,
    /// Partitions of a log.
    pub partitions: usize,
    /// Consumer processes.
    pub consumers: usize,
    /// Messages in one call.
    pub batch_max: usize,
    /// Messages held.
    pub held_max: usize,
    /// Failures before a message becomes a dead letter.
    pub tries_max: u32,
    /// Failing keys from which on an outage is assumed.
    pub suspects_max: usize,
    /// Calls side by side.
    pub concurrency: usize,
    /// The first pause after a failure.
    pub pause_first_ms: u64,
    /// The longest pause after a failure.
    pub pause_longest_ms: u64,
    /// How long one call may take.
    pub handle_timeout_ms: u64,
    /// How long calls may take after a stop.
    pub drain_ms: u64,
    /// How often dead letters are looked for.
    pub letters_every_ms: u64,
    /// The lease of a queue's messages, or the session of a log's consumer.
    pub lease_ms: u64,
    /// How long a call takes.
    pub handle_ms: u64,
    /// How long a call of the broker takes.
    pub broker_ms: u64,
    /// A healthy message is published this often for as long as anything is open.
    pub pulse_ms: u64,
}

/// What the messages of a key do to the handler.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Behaviour {
    /// They are handled.
    Healthy,
    /// They fail for ever; the handler does not know whose fault it is.
    Fails,
    /// They fail for ever, and the handler says that it is the message's fault.
    Poison,
    /// They fail until then.
    FailsUntil(u64),
    /// The handler says "later" until then.
    LaterUntil(u64),
    /// The handler panics.
    Panics,
    /// The handler never answers.
    Hangs,
    /// Each takes this long.
    Slow(u64),
    /// They have no id.
    MissingIdentity,
}

/// A key and its messages.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct KeyPlan {
    /// What they do.
    pub behaviour: Behaviour,
    /// One of so many messages behaves so, the others are healthy: 1 is all of them.
    pub bad_every: u32,
    /// How many messages.
    pub messages: u32,
    /// When the first is published.
    pub first_ms: u64,
    /// How long after the one before. 0: all at once.
    pub every_ms: u64,
    /// Whether they have a key: without one they have no order.
    pub keyed: bool,
    /// Whether each is published twice, under the same id.
    pub twice: bool,
}

/// What a handler does that is down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Down {
    /// Every call fails; the handler does not know why.
    Refuses,
    /// Every call fails, and the handler says that it is not the message's fault.
    SaysLater,
    /// Every call hangs.
    Hangs,
}

/// What goes wrong. Times are in milliseconds: when it begins, how long it lasts, when a process is back.
#[allow(missing_docs)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Fault {
    /// The database of the handler is down: nothing succeeds.
    HandlerDown { at_ms: u64, for_ms: u64, how: Down },
    /// Each call of the broker fails.
    SourceDown { at_ms: u64, for_ms: u64 },
    /// Whether the broker gets what is settled; the answer is an error either way.
    SettleLost { at_ms: u64, for_ms: u64, applied: bool },
    /// Dead letters cannot be kept.
    LettersDown { at_ms: u64, for_ms: u64, hangs: bool },
    /// A commit happens, and its answer is lost.
    CommitUnknown { at_ms: u64, for_ms: u64 },
    /// All partitions move on to the next consumer; all leases of a queue end.
    Rebalance { at_ms: u64 },
    /// A consumer dies and comes back.
    Crash { consumer: usize, at_ms: u64, back_ms: u64 },
    /// A consumer stands still.
    Stall { consumer: usize, at_ms: u64, for_ms: u64 },
    /// A consumer is stopped in order and comes back.
    Stop { consumer: usize, at_ms: u64, back_ms: u64 },
    /// A person wants all dead letters handled again.
    RetryLetters { at_ms: u64 },
}

impl Fault {
    /// When it begins.
    pub fn at_ms(&self) -> u64 {
        match *self {
            Self::HandlerDown { at_ms, .. }
            | Self::SourceDown { at_ms, .. }
            | Self::SettleLost { at_ms, .. }
            | Self::LettersDown { at_ms, .. }
            | Self::CommitUnknown { at_ms, .. }
            | Self::Rebalance { at_ms }
            | Self::Crash { at_ms, .. }
            | Self::Stall { at_ms, .. }
            | Self::Stop { at_ms, .. }
            | Self::RetryLetters { at_ms } => at_ms,
        }
    }

    /// How long it lasts.
    pub fn for_ms(&self) -> u64 {
        match *self {
            Self::HandlerDown { for_ms, .. }
            | Self::SourceDown { for_ms, .. }
            | Self::SettleLost { for_ms, .. }
            | Self::LettersDown { for_ms, .. }
            | Self::CommitUnknown { for_ms, .. }
            | Self::Stall { for_ms, .. } => for_ms,
            Self::Crash { back_ms, .. } | Self::Stop { back_ms, .. } => back_ms,
            Self::Rebalance { .. } | Self::RetryLetters { .. } => 0,
        }
    }

    /// Whether it is going on at that time.
    pub fn is_on(&self, now: Duration) -> bool {
        let now_ms = now.as_millis() as u64;
        (self.at_ms()..self.at_ms() + self.for_ms()).contains(&now_ms)
    }
}

impl KeyPlan {
    /// Whether its n-th message behaves as the key does.
    pub fn is_bad(&self, n: u32) -> bool {
        self.behaviour != Behaviour::Healthy && n % self.bad_every == self.bad_every - 1
    }

    /// How many of its messages behave as the key does.
    pub fn bad(&self) -> u64 {
        match self.behaviour {
            Behaviour::Healthy => 0,
            _ => u64::from(self.messages / self.bad_every),
        }
    }
}

impl Plan {
    /// When the last fault is over and the last message of a key is published.
    pub fn quiet_from(&self) -> Duration {
        let faults = self.faults.iter().map(|fault| fault.at_ms() + fault.for_ms());
        let until = |key: &KeyPlan| match key.behaviour {
            Behaviour::FailsUntil(ms) | Behaviour::LaterUntil(ms) => ms,
            _ => 0,
        };
        let last = |key: &KeyPlan| key.first_ms + key.every_ms * u64::from(key.messages);
        let keys = self.keys.iter().map(|key| last(key).max(until(key)));
        Duration::from_millis(faults.chain(keys).max().unwrap_or_default())
    }
}
