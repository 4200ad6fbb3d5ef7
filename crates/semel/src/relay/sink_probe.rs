//! Checks that the sink's configuration can keep its guarantee: when the relay starts, with violations in the log.
//!
//! A violation is logged but does not stop the relay: publishing to a broker that may lose events is better than not
//! publishing at all. A broker that is down is probed again later; the relay runs as usual meanwhile.

use std::time::Duration;

use tokio::time::Instant;

use super::options::Delay;
use super::outbox_reader::OutboxReader;
use super::publish::while_renewing;
use super::run::Relay;
use crate::backoff::Backoff;
use crate::sink::{Sink, SinkError};
use crate::stop::asked_to_stop;

/// Longest time that events wait for the probe.
const PATIENCE: Duration = Duration::from_secs(5);
/// Backoff after a failed probe: rare, and only while no events are waiting.
const BACKOFF: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(600));

/// When the sink is probed next.
pub(super) struct SinkProbe {
    /// `None`: the probe succeeded.
    due_at: Option<Instant>,
    delay: Delay,
    logged: Vec<String>,
}

impl SinkProbe {
    pub(super) fn unknown() -> Self {
        Self { due_at: Some(Instant::now()), delay: Delay::new(BACKOFF), logged: Vec::new() }
    }
}

impl<S: OutboxReader, K: Sink> Relay<S, K> {
    /// Probes the sink if a probe is due: before anything is published, then while the relay is idle. A stop ends it.
    pub(super) async fn probe_sink_if_due(&mut self) {
        if self.sink_probe.due_at.is_none_or(|at| at > Instant::now()) {
            return;
        }
        let mut stopped = self.stop.subscribe();
        let Self { source, sink, observer, .. } = self;
        let probed = async {
            tokio::select! {
                biased;
                () = asked_to_stop(&mut stopped) => None,
                answer = tokio::time::timeout(PATIENCE, sink.probe()) => Some(answer),
            }
        };
        // At the start there is no lease to renew. A failing outbox is reported by the next iteration.
        let answer = match source.holds_lease() {
            true => while_renewing(source, observer.as_ref(), probed).await.ok().flatten().flatten(),
            false => probed.await,
        };
        let Some(answer) = answer else { return };
        self.log_violations();
        let late = |_| Err(SinkError::not_published("the sink did not answer in time"));
        let Err(error) = answer.unwrap_or_else(late) else {
            self.sink_probe.due_at = None;
            return;
        };
        let SinkProbe { due_at, delay, .. } = &mut self.sink_probe;
        if delay.next == BACKOFF.first {
            tracing::warn!(%error, "could not verify the sink's configuration; will retry");
        }
        *due_at = Some(Instant::now() + delay.next);
        delay.grow();
    }

    /// Logs each violation once.
    fn log_violations(&mut self) {
        for why in self.sink.guarantee().violations {
            if !self.sink_probe.logged.contains(&why) {
                tracing::error!(%why, "the sink's settings break its guarantee; change the setting named in `why`");
                self.sink_probe.logged.push(why);
            }
        }
    }
}
