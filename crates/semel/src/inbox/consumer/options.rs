//! Bounds of a consumer.

use std::time::Duration;

use crate::source::Identify;

/// Longest wait: a clock can be asked for more, and does not have it.
const LONGEST: Duration = Duration::from_secs(365 * 86_400);

/// Bounds of a consumer. The defaults suit a service.
#[derive(Clone, Debug)]
#[must_use]
pub struct ConsumerOptions {
    pub(super) identify: Identify,
    pub(super) source: Option<String>,
    pub(super) held_max: usize,
    pub(super) batch_max: usize,
    pub(super) concurrency: usize,
    pub(super) tries_max: u32,
    pub(super) suspects_max: usize,
    pub(super) pause: (Duration, Duration),
    pub(super) handle_timeout: Duration,
    pub(super) drain_timeout: Duration,
    pub(super) letters_every: Duration,
    pub(super) window: Option<Duration>,
    pub(super) prune_every: Duration,
    left_out: Option<Mechanism>,
}

/// What keeps healthy keys going while others fail. A simulation leaves one out, to see that it is missed.
#[doc(hidden)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mechanism {
    /// A failure counts if anything was handled since the one before.
    BlameByTime,
    /// Messages of failing keys take up no room, within a bound.
    ReadingPast,
    /// Failing keys that hold too much are given up sooner.
    GivingUpSooner,
    /// Failing keys are tried in calls of their own.
    RetriesApart,
}

impl Default for ConsumerOptions {
    fn default() -> Self {
        Self {
            identify: Identify::default(),
            source: None,
            held_max: 2_000,
            batch_max: 500,
            concurrency: 4,
            tries_max: 8,
            suspects_max: 8,
            pause: (Duration::from_millis(50), Duration::from_secs(30)),
            handle_timeout: Duration::from_secs(60),
            drain_timeout: Duration::from_secs(20),
            letters_every: Duration::from_secs(5),
            window: None,
            prune_every: Duration::from_secs(600),
            left_out: None,
        }
    }
}

impl ConsumerOptions {
    /// Where the id of a message is: [`Identify::ByEvent`] unless told otherwise.
    pub fn identify(mut self, identify: Identify) -> Self {
        self.identify = identify;
        self
    }

    /// Names where messages come from: the topic, queue or stream unless told otherwise. The same name for a topic and for
    /// the one its messages are moved to for retries, or a message that was moved is another one.
    pub fn source(mut self, name: &str) -> Self {
        self.source = Some(name.to_owned());
        self
    }

    /// Most messages received and not settled: 2,000 unless told otherwise. When so many are held nothing more is
    /// received.
    ///
    /// Messages of keys that fail are not counted, up to as many again: what stands behind them at the source is read all
    /// the same. At most twice this many are held in all. Where those of failing keys are more than this many, the keys that
    /// hold most of them are given up sooner: what fails is buried if anything else was handled since it failed before, or
    /// since its key began to fail and within the last second, however many [tries](Self::tries_max) it had left.
    pub fn held_max(mut self, messages: usize) -> Self {
        self.held_max = messages.max(1);
        self
    }

    /// Most messages that are handled by one call, in one transaction: 500 unless told otherwise.
    pub fn batch_max(mut self, messages: usize) -> Self {
        self.batch_max = messages.clamp(1, crate::inbox::BATCH_MESSAGES_MAX);
        self
    }

    /// How many calls are under way at once: 4 unless told otherwise. Messages of one key are never in two of them.
    pub fn concurrency(mut self, calls: usize) -> Self {
        self.concurrency = calls.clamp(1, 1_024);
        self
    }

    /// How often a message may fail before it is buried: 8 unless told otherwise. A failure counts if anything was handled
    /// between the message's last failure and this try, or if few messages fail ([`suspects_max`](Self::suspects_max)).
    pub fn tries_max(mut self, tries: u32) -> Self {
        self.tries_max = tries.max(1);
        self
    }

    /// Where nothing is handled at all, it is an outage if at least so many keys fail, and no message is to blame; fewer
    /// are to blame themselves: 8 unless told otherwise. With 1 a message is never buried unless something else was
    /// handled between two of its failures, except for [poison](super::Failed::poison).
    ///
    /// As soon as anything is handled this does not matter: what fails again after that is to blame, however many they are.
    pub fn suspects_max(mut self, lines: usize) -> Self {
        self.suspects_max = lines.max(1);
        self
    }

    /// The pause after a failure, from the first to the longest: 50 ms to 30 s unless told otherwise.
    pub fn pause(mut self, first: Duration, longest: Duration) -> Self {
        let first = first.max(Duration::from_millis(1));
        let first = first.min(LONGEST);
        self.pause = (first, longest.clamp(first, LONGEST));
        self
    }

    /// How long one call may take: a minute unless told otherwise. Then it is broken off, and with it its transaction.
    pub fn handle_timeout(mut self, timeout: Duration) -> Self {
        self.handle_timeout = timeout.clamp(Duration::from_millis(10), LONGEST);
        self
    }

    /// How long calls under way may take to end after a stop, or after the source has failed for good: twenty seconds unless
    /// told otherwise. Then they are broken off, and their messages are given back. What failed at last and would be found done
    /// elsewhere ([`Handler::gives_up_at_once`](super::Handler::gives_up_at_once)) has as long again to be buried.
    pub fn drain_timeout(mut self, patience: Duration) -> Self {
        self.drain_timeout = patience.min(LONGEST);
        self
    }

    /// How often is looked for dead letters that are to be handled again: every five seconds unless told otherwise.
    pub fn letters_every(mut self, pause: Duration) -> Self {
        self.letters_every = pause.clamp(Duration::from_millis(1), LONGEST);
        self
    }

    /// How long marks are kept: unless told otherwise [`WINDOW`](crate::inbox::WINDOW), and at least twice as long as the
    /// source keeps messages, where it [tells](crate::source::Source::retention). One that is shorter than the source's
    /// retention is warned about, because a message may come again after its mark is forgotten, and be handled again.
    pub fn window(mut self, window: Duration) -> Self {
        self.window = Some(window);
        self
    }

    /// How often marks older than the window are forgotten, where [`Consumer::forgets`](super::Consumer::forgets) says where
    /// they are: every ten minutes unless told otherwise.
    pub fn prune_every(mut self, pause: Duration) -> Self {
        self.prune_every = pause.clamp(Duration::from_millis(1), LONGEST);
        self
    }

    /// Leaves a mechanism out.
    #[doc(hidden)]
    pub fn leaving_out(mut self, mechanism: Mechanism) -> Self {
        self.left_out = Some(mechanism);
        self
    }

    pub(super) fn has(&self, mechanism: Mechanism) -> bool {
        self.left_out != Some(mechanism)
    }
}
