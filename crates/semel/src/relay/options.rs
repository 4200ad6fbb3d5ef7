//! Options of a relay: attempts, backoff, polling, drain, retention.

use std::time::Duration;

use crate::backoff::Backoff;

/// The default max attempts of an event. Fewer than a consumer gives a message: all other events of the batch wait until
/// then, and a parked key is retried soon by itself.
pub const ATTEMPTS_MAX: u32 = 3;

/// Share of a backoff that is random, so that many relays do not retry at once.
const BACKOFF_JITTER: f64 = 0.2;

/// What is parked when an event cannot be published (a poison message).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum Poison {
    /// The event and all later events of its key: order is kept.
    #[default]
    ParksItsKey,
    /// Only the event: later events of its key overtake it.
    ParksItself,
}

/// Options of a relay. The defaults suit a service.
#[derive(Clone, Debug)]
pub struct RelayOptions {
    pub(super) poison: Poison,
    pub(super) attempts_max: u32,
    pub(super) failing_keys_max: usize,
    pub(super) poll_interval: Backoff,
    pub(super) backoff: Backoff,
    pub(super) drain_timeout: Duration,
    pub(super) prune: Option<Prune>,
    pub(super) warn_age: Duration,
}

/// A backoff under way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Delay {
    backoff: Backoff,
    /// The next wait.
    pub(super) next: Duration,
}

impl Delay {
    pub(super) fn new(backoff: Backoff) -> Self {
        Self { backoff, next: backoff.first }
    }

    pub(super) fn reset(&mut self) {
        self.next = self.backoff.first;
    }

    /// Grows from what jitter left of the last wait.
    pub(super) fn grow(&mut self) {
        self.next = self.backoff.jittered(self.backoff.next(self.next)).max(self.backoff.first);
    }
}

/// Retention: when published events are pruned.
#[derive(Clone, Copy, Debug)]
pub(super) struct Prune {
    pub(super) every: Duration,
    pub(super) older_than: Duration,
}

impl Default for RelayOptions {
    fn default() -> Self {
        Self {
            poison: Poison::default(),
            attempts_max: ATTEMPTS_MAX,
            failing_keys_max: 8,
            poll_interval: Backoff::new(Duration::from_millis(1), Duration::from_millis(25)),
            backoff: Backoff::new(Duration::from_millis(20), Duration::from_secs(10)).jitter(BACKOFF_JITTER),
            drain_timeout: Duration::from_secs(10),
            prune: Some(Prune {
                every: Duration::from_secs(60),
                older_than: Duration::from_secs(24 * 60 * 60),
            }),
            warn_age: Duration::from_secs(60),
        }
    }
}

impl RelayOptions {
    /// What is parked when an event cannot be published: by default its key.
    pub fn poison(mut self, poison: Poison) -> Self {
        self.poison = poison;
        self
    }

    /// Max attempts of one event before its key is parked, while the sink accepts others: by default
    /// [`ATTEMPTS_MAX`]. An event that the broker refuses for good is parked at once, and so is one that was parked
    /// before and fails again.
    pub fn attempts_max(mut self, attempts: u32) -> Self {
        self.attempts_max = attempts.max(1);
        self
    }

    /// How many failing keys may be to blame while the sink confirms nothing: by default 8.
    ///
    /// An event is to blame for its failure if the sink confirmed anything since, or reports that only [its
    /// destination](crate::sink::SinkError::destination_down) is down. If nothing gets through, either the sink or
    /// these events may be to blame. After a while the relay skips them to see whether others get through. It waits at
    /// most a second for a batch with up to `keys` failing keys. More keys look like a sink that is down: it waits half
    /// a minute, or with very many keys up to a minute. The second batch in a row waits twice as long, the third three
    /// times, until anything succeeds. 0: it waits without end, and so does everything behind it.
    pub fn failing_keys_max(mut self, keys: usize) -> Self {
        self.failing_keys_max = keys;
        self
    }

    /// Poll interval of an idle outbox: the shortest, right after an event, and the longest, when nothing came for
    /// long. By default 1 to 25 ms.
    pub fn poll_interval(mut self, min: Duration, max: Duration) -> Self {
        let min = min.max(Duration::from_micros(100));
        self.poll_interval = Backoff::new(min, max.max(min));
        self
    }

    /// Exponential backoff after a failure: the first pause and the longest. By default 20 ms to 10 s.
    pub fn backoff(mut self, first: Duration, max: Duration) -> Self {
        let first = first.max(Duration::from_millis(1));
        self.backoff = Backoff::new(first, max.max(first)).jitter(BACKOFF_JITTER);
        self
    }

    /// How long a batch may take to drain after [`RelayStopHandle::stop`](super::RelayStopHandle::stop): by default ten
    /// seconds. Then it is abandoned, and the next relay sends it again.
    pub fn drain_timeout(mut self, patience: Duration) -> Self {
        self.drain_timeout = patience;
        self
    }

    /// How long the oldest event may wait before the log warns, once a minute: by default a minute. Checked only if the
    /// relay is [observed](super::Relay::observed_by).
    pub fn warn_age(mut self, age: Duration) -> Self {
        self.warn_age = age;
        self
    }

    /// Retention: how often published events older than this are pruned. By default every minute, those older than a
    /// day. See [`OutboxReader::prune`](super::OutboxReader::prune).
    pub fn prune(mut self, every: Duration, older_than: Duration) -> Self {
        self.prune = Some(Prune { every: every.max(Duration::from_millis(1)), older_than });
        self
    }

    /// Never prunes: something else has to.
    pub fn keep_all(mut self) -> Self {
        self.prune = None;
        self
    }
}
