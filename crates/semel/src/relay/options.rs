//! Bounds of a relay.

use std::time::Duration;

/// What is held back when an event cannot be published.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum Poison {
    /// All events of its key from it on: order is kept.
    #[default]
    ParksItsKey,
    /// Only the event: the key's later events overtake it.
    ParksItself,
}

/// Bounds of a relay. The defaults suit a service.
#[derive(Clone, Debug)]
pub struct RelayOptions {
    pub(super) poison: Poison,
    pub(super) tries_max: u32,
    pub(super) suspects_max: usize,
    pub(super) probe: (Duration, Duration),
    pub(super) pause: (Duration, Duration),
    pub(super) drain_timeout: Duration,
    pub(super) prune: Option<Prune>,
    pub(super) warn_age: Duration,
}

/// When what was published is forgotten.
#[derive(Clone, Copy, Debug)]
pub(super) struct Prune {
    pub(super) every: Duration,
    pub(super) older_than: Duration,
}

impl Default for RelayOptions {
    fn default() -> Self {
        Self {
            poison: Poison::default(),
            tries_max: 3,
            suspects_max: 8,
            probe: (Duration::from_millis(1), Duration::from_millis(25)),
            pause: (Duration::from_millis(20), Duration::from_secs(10)),
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
    /// What is held back when an event cannot be published: its key unless told otherwise.
    pub fn poison(mut self, poison: Poison) -> Self {
        self.poison = poison;
        self
    }

    /// How often one event may fail before its key is set aside, while the sink takes others: 3 unless told
    /// otherwise. Few, because all others wait until then; it comes back by itself soon. One that the broker refuses for
    /// good is parked at once, and so is one that was parked before and fails again.
    pub fn tries_max(mut self, tries: u32) -> Self {
        self.tries_max = tries.max(1);
        self
    }

    /// How many failing keys may be to blame while the sink confirms nothing: 8 unless told otherwise.
    ///
    /// An event is to blame for its failure if the sink confirmed anything since, or says that only
    /// [one place](crate::sink::SinkError::destination_down) is away. Where nothing gets through, it may be the sink or it may be these events:
    /// after a while the relay reads past them to see whether others get through. A batch with up to 8 failing keys is waited
    /// for for at most a second. More look like a sink that is down: half a minute, with 4,000 keys a minute, which is the most.
    /// The second batch in a row is waited for twice as long, the third three times, until anything succeeds. 0: such a batch is waited for without end, and what is behind it too.
    pub fn suspects_max(mut self, keys: usize) -> Self {
        self.suspects_max = keys;
        self
    }

    /// How often an idle source is looked at, from right after an event to when nothing came for long: 1 to 25 ms
    /// unless told otherwise.
    pub fn probe(mut self, least: Duration, most: Duration) -> Self {
        let least = least.max(Duration::from_micros(100));
        self.probe = (least, most.max(least));
        self
    }

    /// The pause after a failure, from the first to the longest: 20 ms to 10 s unless told otherwise.
    pub fn pause(mut self, first: Duration, longest: Duration) -> Self {
        let first = first.max(Duration::from_millis(1));
        self.pause = (first, longest.max(first));
        self
    }

    /// How long a batch may take to end after [`Stop::stop`](super::Stop::stop): ten seconds unless told otherwise.
    /// Then it is left, and sent again by whoever comes next.
    pub fn drain_timeout(mut self, patience: Duration) -> Self {
        self.drain_timeout = patience;
        self
    }

    /// For how long the oldest event may wait before the log says so, once a minute: a minute unless told otherwise. Looked at
    /// where the relay is [observed](super::Relay::observed_by).
    pub fn warn_age(mut self, age: Duration) -> Self {
        self.warn_age = age;
        self
    }

    /// How often what is published and older than this is forgotten: every minute, a day, unless told otherwise. See
    /// [`OutboxReader::prune`](super::OutboxReader::prune).
    pub fn prune(mut self, every: Duration, older_than: Duration) -> Self {
        self.prune = Some(Prune { every: every.max(Duration::from_millis(1)), older_than });
        self
    }

    /// Forgets nothing: somebody else does.
    pub fn keep_all(mut self) -> Self {
        self.prune = None;
        self
    }
}
