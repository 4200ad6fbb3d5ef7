//! Bounds of a consumer.

use std::time::Duration;

use crate::backoff::Backoff;
use crate::fault::Hook;
use crate::source::Identify;

/// Default of [`attempts_max`](ConsumerOptions::attempts_max).
pub const ATTEMPTS_MAX: u32 = 8;
/// Longest wait. A longer one can overflow an `Instant`.
const LONGEST: Duration = Duration::from_secs(365 * 86_400);
/// Share of a queue's pause that is random.
const BACKOFF_JITTER: f64 = 0.5;

/// Bounds of a consumer. The defaults suit a service.
#[derive(Clone, Debug)]
#[must_use]
pub struct ConsumerOptions {
    pub(super) identify: Identify,
    pub(super) source: Option<String>,
    pub(super) in_flight_max: usize,
    pub(super) batch_max: usize,
    pub(super) concurrency: usize,
    pub(super) attempts_max: u32,
    pub(super) outage_keys_min: usize,
    pub(super) backoff: Backoff,
    pub(super) handle_timeout: Duration,
    pub(super) drain_timeout: Duration,
    pub(super) dead_letter_poll_interval: Duration,
    pub(super) window: Option<Duration>,
    pub(super) prune_interval: Duration,
    left_out: Hook<Mechanism>,
}

/// The mechanisms that keep healthy keys going while others fail. The simulation disables one to prove that it is
/// needed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(not(feature = "fault-injection"), allow(unreachable_pub))]
pub enum Mechanism {
    /// A failure counts if anything was handled since the previous one.
    BlameByTime,
    /// Messages of failing keys do not count against the in-flight limit, within a bound.
    ReadingPast,
    /// Failing keys with too many messages in flight are given up sooner.
    GivingUpSooner,
    /// Failing keys are retried in separate calls.
    RetriesApart,
}

impl Default for ConsumerOptions {
    fn default() -> Self {
        Self {
            identify: Identify::default(),
            source: None,
            in_flight_max: 2_000,
            batch_max: 500,
            concurrency: 4,
            attempts_max: ATTEMPTS_MAX,
            outage_keys_min: 8,
            backoff: Backoff::new(Duration::from_millis(50), Duration::from_secs(30)).jitter(BACKOFF_JITTER),
            handle_timeout: Duration::from_secs(60),
            drain_timeout: Duration::from_secs(20),
            dead_letter_poll_interval: Duration::from_secs(5),
            window: None,
            prune_interval: Duration::from_secs(600),
            left_out: Hook::default(),
        }
    }
}

impl ConsumerOptions {
    /// How to find a message's id. Default: [`Identify::ByEvent`].
    pub fn identify(mut self, identify: Identify) -> Self {
        self.identify = identify;
        self
    }

    /// The source name in a message's identity. Default: the topic, queue or stream. Use one name for a topic and its
    /// retry topic; otherwise a message that moved counts as a new one.
    pub fn source(mut self, name: &str) -> Self {
        self.source = Some(name.to_owned());
        self
    }

    /// Most messages in flight: received and not settled. Default: 2,000. At the limit nothing more is received.
    ///
    /// Messages of failing keys do not count, up to as many again, so that messages behind them at the source are still
    /// read. In all, at most twice this many are in flight. If failing keys have more than this many, the keys with
    /// most of them are given up sooner: a message that fails becomes a dead letter if anything else was handled since
    /// its previous failure, or since its key began to fail and within the last second, however many
    /// [attempts](Self::attempts_max) are left.
    pub fn in_flight_max(mut self, messages: usize) -> Self {
        self.in_flight_max = messages.max(1);
        self
    }

    /// Most messages in one call, and so in one transaction. Default: 500.
    pub fn batch_max(mut self, messages: usize) -> Self {
        self.batch_max = messages.clamp(1, crate::inbox::BATCH_MESSAGES_MAX);
        self
    }

    /// Most calls in flight at once. Default: 4. Messages of one key are never in two calls at once.
    pub fn concurrency(mut self, calls: usize) -> Self {
        self.concurrency = calls.clamp(1, 1_024);
        self
    }

    /// Max attempts: how often a message may fail before it becomes a dead letter. Default: [`ATTEMPTS_MAX`]. A failure counts if
    /// anything was handled between the message's last failure and this attempt, or if few messages fail
    /// ([`outage_keys_min`](Self::outage_keys_min)).
    pub fn attempts_max(mut self, attempts: u32) -> Self {
        self.attempts_max = attempts.max(1);
        self
    }

    /// While nothing is handled at all: if at least this many keys fail, it is an outage and no message is to blame; if
    /// fewer fail, their messages are. Default: 8. With 1, a message becomes a dead letter only if something else was
    /// handled between two of its failures, except for a [permanent](super::HandlerError::permanent) error.
    ///
    /// Once anything is handled this no longer matters: messages that fail after that are to blame, however many.
    pub fn outage_keys_min(mut self, keys: usize) -> Self {
        self.outage_keys_min = keys.max(1);
        self
    }

    /// Exponential backoff after a failure: the first pause and the longest. Default: 50 ms to 30 s.
    pub fn backoff(mut self, first: Duration, max: Duration) -> Self {
        let first = first.max(Duration::from_millis(1));
        let first = first.min(LONGEST);
        self.backoff = Backoff::new(first, max.clamp(first, LONGEST)).jitter(BACKOFF_JITTER);
        self
    }

    /// Timeout of one call. Default: one minute. Then the call is aborted, and its transaction with it.
    pub fn handle_timeout(mut self, timeout: Duration) -> Self {
        self.handle_timeout = timeout.clamp(Duration::from_millis(10), LONGEST);
        self
    }

    /// How long calls in flight may take to finish after a stop, or after the source has failed for good. Default:
    /// twenty seconds. Then they are aborted and their messages returned to the source. Dead letters of a handler that
    /// [gives up on broken calls](super::Handler::on_broken_call) get as long again to be written.
    pub fn drain_timeout(mut self, timeout: Duration) -> Self {
        self.drain_timeout = timeout.min(LONGEST);
        self
    }

    /// How often to look for dead letters to redeliver. Default: every five seconds.
    pub fn dead_letter_poll_interval(mut self, interval: Duration) -> Self {
        self.dead_letter_poll_interval = interval.clamp(Duration::from_millis(1), LONGEST);
        self
    }

    /// Retention of marks: the dedup window. Default: [`WINDOW`](crate::inbox::WINDOW), or twice the source's
    /// [retention](crate::source::Source::retention) if that is known and longer. A window shorter than the source's
    /// retention is logged as an error: a message redelivered after its mark was pruned is handled again.
    pub fn window(mut self, window: Duration) -> Self {
        self.window = Some(window);
        self
    }

    /// How often to prune marks older than the window, if [`Consumer::forgets`](super::Consumer::forgets) was called.
    /// Default: every ten minutes.
    pub fn prune_interval(mut self, interval: Duration) -> Self {
        self.prune_interval = interval.clamp(Duration::from_millis(1), LONGEST);
        self
    }

    /// Disables a mechanism.
    #[cfg(feature = "fault-injection")]
    #[doc(hidden)]
    pub fn leaving_out(mut self, mechanism: Mechanism) -> Self {
        self.left_out = mechanism.into();
        self
    }

    pub(super) fn has(&self, mechanism: Mechanism) -> bool {
        !self.left_out.is(mechanism)
    }
}
