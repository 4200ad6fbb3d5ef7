//! The trait of the two publishing strategies, and code that both use: attempts at a batch, renewal of the lease.
//!
//! | | at least once: [`rounds`](super::rounds) | exactly once: [`transactions`](super::transactions) |
//! |---|---|---|
//! | before a batch | nothing | leases the whole outbox, takes over the sink, resumes from its checkpoint |
//! | a call to the sink | given up when the drain times out | awaited: what it committed would be in doubt |
//! | a failed event | sent again with the batch's next round | found by splitting the transaction |
//! | in doubt what was published | sent again | starts over: the sink's checkpoint tells |

use std::future::Future;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use super::observer::Observer;
use super::options::{Delay, RelayOptions};
use super::outbox_reader::{Batch, OutboxReader, OutboxReaderError, Settled};
use super::run::{Relay, RelayError};
use crate::crash;
use crate::sink::Sink;
use crate::stop::{self, asked_to_stop};

/// The result of one iteration of the loop.
pub(super) enum Step {
    /// Another relay has the outbox.
    Standby,
    /// There is nothing to publish.
    Idle,
    /// A batch is acked.
    Done,
    /// Start over: the lease was lost, the drain timed out, or it is in doubt what was published.
    Restart,
}

/// A publishing strategy: the steps of the loop that differ between at least once and exactly once.
pub(super) trait Publish<S: OutboxReader, K: Sink>: Send {
    /// Gets ready for the next batch. `Some`: it is not ready, and the iteration ends with this step.
    fn prepare(
        &mut self,
        _: &mut Relay<S, K>,
    ) -> impl Future<Output = Result<Option<Step>, RelayError>> + Send {
        std::future::ready(Ok(None))
    }

    /// Publishes a batch until each event is confirmed or parked. `None`: start over.
    fn publish(
        &mut self,
        relay: &mut Relay<S, K>,
        batch: &Batch,
    ) -> impl Future<Output = Result<Option<Vec<Settled>>, RelayError>> + Send;

    /// An iteration ended with this. Whether it shows progress, so that the backoff starts anew.
    fn ended(&mut self, step: &Result<Step, RelayError>) -> bool {
        matches!(step, Ok(Step::Done | Step::Idle | Step::Standby))
    }

    /// Whether another relay may take over at once when this one ends.
    fn may_release(&self) -> bool {
        true
    }
}

/// The attempts at one batch: the backoff between them, and the end of the drain.
pub(super) struct Attempts {
    pub(super) delay: Delay,
    options: RelayOptions,
    stopped: watch::Receiver<bool>,
    /// The end of the drain, once a stop was seen.
    leave_at: Option<Instant>,
}

impl Attempts {
    pub(super) fn new<S, K>(relay: &Relay<S, K>) -> Self {
        let (options, stopped) = (relay.options.clone(), relay.stop.subscribe());
        Self { delay: Delay::new(options.backoff), options, stopped, leave_at: None }
    }

    fn leave_at(&mut self) -> Instant {
        *self.leave_at.get_or_insert_with(|| Instant::now() + self.options.drain_timeout)
    }

    /// Whether the drain has timed out.
    pub(super) fn are_over(&mut self) -> bool {
        let stopping = *self.stopped.borrow();
        stopping && Instant::now() >= self.leave_at()
    }

    /// Waits for a stop, then until the drain times out.
    pub(super) async fn end(&mut self) {
        asked_to_stop(&mut self.stopped).await;
        tokio::time::sleep_until(self.leave_at()).await;
    }

    /// Backs off while renewing the lease. A stop ends the wait, unless already stopping. `false`: the lease was lost.
    pub(super) async fn back_off<S: OutboxReader, K: Sink>(
        &mut self,
        relay: &mut Relay<S, K>,
    ) -> Result<bool, RelayError> {
        let Self { delay, stopped, leave_at, .. } = self;
        let wait = async {
            match leave_at {
                Some(_) => tokio::time::sleep(delay.next).await,
                None => stop::pause(delay.next, stopped).await,
            }
        };
        if while_renewing(&mut relay.source, relay.observer.as_ref(), wait).await?.is_none() {
            return Ok(false);
        }
        delay.grow();
        relay.sample_if_due().await;
        Ok(true)
    }
}

/// Makes one call to the sink while renewing the lease. Its answer, and how long that took. `None`: the lease was lost,
/// or the call was given up.
pub(super) async fn call<S: OutboxReader, T>(
    source: &mut S,
    observer: Option<&Observer>,
    before: &'static str,
    call: impl Future<Output = Option<T>>,
) -> Result<Option<(T, Duration)>, RelayError> {
    if !source.holds_lease() {
        return Ok(None);
    }
    let (metrics, began) = (observer.map(|observer| &observer.metrics), Instant::now());
    metrics.inspect(|metrics| metrics.call_begins());
    crash::point(before);
    let answer = while_renewing(source, observer, call).await.map(Option::flatten);
    if !matches!(answer, Ok(Some(_))) {
        metrics.inspect(|metrics| metrics.call_left());
    }
    Ok(answer?.map(|answer| (answer, began.elapsed())))
}

/// Runs something slow while renewing the lease (heartbeat). `None`: the lease was lost.
pub(super) async fn while_renewing<S: OutboxReader, T>(
    source: &mut S,
    observer: Option<&Observer>,
    work: impl Future<Output = T>,
) -> Result<Option<T>, RelayError> {
    let mut work = std::pin::pin!(work);
    loop {
        tokio::select! {
            biased;
            done = &mut work => return Ok(Some(done)),
            () = tokio::time::sleep(source.renew_after()) => {}
        }
        match Box::pin(source.renew_lease()).await {
            Ok(()) => observer.iter().for_each(|observer| observer.metrics.source_answered()),
            Err(OutboxReaderError::Fenced) => return Ok(None),
            Err(error) if !error.may_retry() => return Err(error.into()),
            Err(error) => {
                observer.iter().for_each(|observer| observer.metrics.source_failed(&error));
                tracing::warn!(%error, "failed to renew the relay's lease; will retry");
            }
        }
        if !source.holds_lease() {
            return Ok(None);
        }
    }
}
