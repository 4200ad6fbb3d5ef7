//! What a relay does between two attempts: the same, whether it publishes at least once or exactly once.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use semel::outbox::Event;
use semel::relay::{
    Batch, BatchCursor, Lag, OutboxLineage, OutboxReader, OutboxReaderError, Pending, Position, Pruned,
    Relay, RelayError, RelayMetrics, RelayOptions, RelayStats, RelayStopHandle, Settled,
};
use semel::sink::{DeliverySemantics, ExactlyOnce, Guarantee, Published, Sink, SinkError};
use semel::store::{ErrorKind, Fate, StoreError};
use tokio::time::Instant;

/// What happens in one test, and what was seen of it.
#[derive(Default)]
struct Script {
    /// What the outbox gives, one after the other. Then the relay is stopped.
    next: VecDeque<Result<Option<Batch>, OutboxReaderError>>,
    /// The lease is renewed this soon, and that fails.
    lost_after: Option<Duration>,
    /// How often the sink fails before it works.
    failures: u32,
    stop: Option<RelayStopHandle>,
    asked_at: Vec<Instant>,
    samples: u32,
    released: bool,
}

#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Script>>);

impl Shared {
    fn with<T>(&self, work: impl FnOnce(&mut Script) -> T) -> T {
        work(&mut self.0.lock().unwrap())
    }

    fn result(&self) -> Result<(), SinkError> {
        self.with(|script| {
            let fails = script.failures > 0;
            script.failures = script.failures.saturating_sub(1);
            if fails { Err(SinkError::not_published("no leader")) } else { Ok(()) }
        })
    }
}

impl OutboxReader for Shared {
    async fn next(&mut self) -> Result<Option<Batch>, OutboxReaderError> {
        self.with(|script| {
            script.asked_at.push(Instant::now());
            script.next.pop_front().unwrap_or_else(|| {
                script.stop.as_ref().unwrap().stop();
                Ok(None)
            })
        })
    }
    async fn acquire_exclusive(&mut self) -> Result<bool, OutboxReaderError> {
        Ok(true)
    }
    async fn ack(&mut self, _: &[Settled]) -> Result<(), OutboxReaderError> {
        Ok(())
    }
    async fn renew_lease(&mut self) -> Result<(), OutboxReaderError> {
        let (stored, found) = (OutboxLineage::read("a/1"), OutboxLineage::read("b/1"));
        Err(OutboxReaderError::OutboxLineage { stored, found })
    }
    fn renew_after(&self) -> Duration {
        self.with(|script| script.lost_after.unwrap_or(Duration::from_secs(3_600)))
    }
    fn holds_lease(&self) -> bool {
        true
    }
    async fn prune(&mut self, _: Duration) -> Result<Pruned, OutboxReaderError> {
        Ok(Pruned::default())
    }
    async fn lag(&mut self) -> Result<Lag, OutboxReaderError> {
        self.with(|script| script.samples += 1);
        Ok(Lag::default())
    }
    async fn release(&mut self) -> Result<(), OutboxReaderError> {
        self.with(|script| script.released = true);
        Ok(())
    }
}

struct Fails(Shared);

impl Sink for Fails {
    fn guarantee(&self) -> Guarantee {
        let (delivery, sentence) = (DeliverySemantics::ExactlyOnce, String::new());
        Guarantee { delivery, sentence, violations: Vec::new() }
    }
    async fn publish(&mut self, events: &[Arc<Event>]) -> Vec<Published> {
        let result = self.0.result().map_or_else(Published::Failed, |()| Published::Confirmed);
        vec![result; events.len()]
    }
}

impl ExactlyOnce for Fails {
    async fn begin(&mut self) -> Result<Option<Vec<u8>>, SinkError> {
        // With an outbox that is lost soon, the take-over is what fails.
        if self.0.with(|script| script.lost_after.is_some()) {
            self.0.result().map(|()| None)
        } else {
            Ok(None)
        }
    }
    async fn publish_at(&mut self, _: &[Arc<Event>], _: &[u8]) -> Result<(), SinkError> {
        self.0.result()
    }
}

fn batch() -> Batch {
    let position = Position { lineage: OutboxLineage::read("here"), cursor: BatchCursor::of("1") };
    Batch::new(position, vec![Pending::new(Event::new("payments", "payment.completed", "1").unwrap())])
}

/// Runs a relay until the script is over.
async fn relayed(script: Script, exactly_once: bool) -> (Result<RelayStats, RelayError>, Script) {
    let shared = Shared(Arc::new(Mutex::new(script)));
    let options = RelayOptions::default().failing_keys_max(0);
    let relay = Relay::new(shared.clone(), Fails(shared.clone()), options).observed_by(&RelayMetrics::new());
    shared.with(|script| script.stop = Some(relay.stop_handle()));
    let ended = if exactly_once { relay.run_exactly_once().await } else { relay.run().await };
    (ended, shared.with(std::mem::take))
}

#[tokio::test(start_paused = true)]
async fn the_lag_is_measured_while_a_batch_fails() {
    for exactly_once in [false, true] {
        let script = Script { next: [Ok(Some(batch()))].into(), failures: 40, ..Script::default() };
        let (ended, script) = relayed(script, exactly_once).await;
        assert_eq!(ended.unwrap().confirmed, 1);
        assert!(script.samples > 10, "{} samples, exactly once: {exactly_once}", script.samples);
    }
}

#[tokio::test(start_paused = true)]
async fn an_outbox_that_is_lost_while_the_relay_backs_off_is_released() {
    for exactly_once in [false, true] {
        let script = Script {
            next: [Ok(Some(batch()))].into(),
            lost_after: Some(Duration::from_secs(1)),
            failures: u32::MAX,
            ..Script::default()
        };
        let (ended, script) = relayed(script, exactly_once).await;
        let error = ended.unwrap_err();
        assert!(matches!(error, RelayError::Outbox(OutboxReaderError::OutboxLineage { .. })), "{error}");
        assert!(script.released, "exactly once: {exactly_once}");
    }
}

#[tokio::test(start_paused = true)]
async fn after_a_quiet_time_the_backoff_is_short_again() {
    let down = || Err(StoreError::new(ErrorKind::Unavailable, Fate::NotApplied, "down").into());
    for exactly_once in [false, true] {
        let mut next: VecDeque<_> = (0..12).map(|_| down()).collect();
        next.extend([Ok(None), down(), Ok(None)]);
        let (ended, script) = relayed(Script { next, ..Script::default() }, exactly_once).await;
        ended.unwrap();
        let waits: Vec<Duration> = script.asked_at.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert!(waits[11] > Duration::from_secs(5), "{waits:?}");
        assert!(waits[13] <= Duration::from_millis(20), "{waits:?}, exactly once: {exactly_once}");
    }
}
