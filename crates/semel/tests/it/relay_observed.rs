//! What a relay tells operators: figures, health, and spans that name the trace an event was appended in.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use semel::observe::names;
use semel::outbox::Event;
use semel::relay::{
    Batch, BatchCursor, Lag, OutboxLineage, OutboxReader, OutboxReaderError, Pending, Position, Pruned,
    Relay, RelayMetrics, RelayOptions, RelayStopHandle, Settled,
};
use semel::sink::{DeliverySemantics, Guarantee, Published, Sink, SinkError};

use crate::captured_log::CapturedLog;

const TRACE: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

/// Gives its batches, then stops the relay.
struct Batches {
    left: VecDeque<Batch>,
    asked: Arc<AtomicUsize>,
    oldest: Option<Duration>,
    stop: Arc<Mutex<Option<RelayStopHandle>>>,
}

impl OutboxReader for Batches {
    async fn next(&mut self) -> Result<Option<Batch>, OutboxReaderError> {
        if self.left.is_empty() {
            self.stop.lock().unwrap().as_ref().unwrap().stop();
        }
        Ok(self.left.front().cloned())
    }
    async fn ack(&mut self, _: &[Settled]) -> Result<(), OutboxReaderError> {
        self.left.pop_front();
        Ok(())
    }
    async fn renew_lease(&mut self) -> Result<(), OutboxReaderError> {
        Ok(())
    }
    fn renew_after(&self) -> Duration {
        Duration::from_secs(60)
    }
    fn holds_lease(&self) -> bool {
        true
    }
    async fn prune(&mut self, _: Duration) -> Result<Pruned, OutboxReaderError> {
        Ok(Pruned::default())
    }
    async fn lag(&mut self) -> Result<Lag, OutboxReaderError> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        let mut lag = Lag::default();
        lag.oldest = self.oldest;
        Ok(lag)
    }
    async fn release(&mut self) -> Result<(), OutboxReaderError> {
        Ok(())
    }
}

/// Fails once, then takes everything but what says `refuse` and what is behind it.
#[derive(Default)]
struct Moody {
    failed: bool,
}

impl Sink for Moody {
    fn guarantee(&self) -> Guarantee {
        Guarantee {
            delivery: DeliverySemantics::AtLeastOnce,
            sentence: String::new(),
            violations: Vec::new(),
        }
    }
    async fn publish(&mut self, events: &[Arc<Event>]) -> Vec<Published> {
        let first = !std::mem::replace(&mut self.failed, true);
        let answer = |event: &Arc<Event>| match event.payload().as_ref() {
            _ if first => Published::Failed(SinkError::not_published("no leader")),
            b"refuse" => Published::Refused(SinkError::not_published("too odd")),
            b"behind" => Published::Failed(SinkError::not_published("one before it was not confirmed")),
            _ => Published::Confirmed,
        };
        events.iter().map(answer).collect()
    }
}

fn event(key: &str, payload: &'static str) -> Pending {
    let event = Event::new("payments", "payment.completed", payload).unwrap();
    Pending::new(event.key(key).unwrap().trace_parent(TRACE).unwrap())
}

/// Runs one batch to its end. How often the source was asked how much is left.
async fn relayed(metrics: Option<&RelayMetrics>) -> usize {
    relayed_late(metrics, None).await
}

/// The same while the oldest event has waited for so long.
async fn relayed_late(metrics: Option<&RelayMetrics>, oldest: Option<Duration>) -> usize {
    let position = Position { lineage: OutboxLineage::read("here"), cursor: BatchCursor::of("1-4") };
    let events = vec![event("a", "refuse"), event("a", "behind"), event("b", "1"), event("c", "2")];
    let (asked, stop) = (Arc::new(AtomicUsize::new(0)), Arc::new(Mutex::new(None)));
    let source = Batches {
        left: VecDeque::from([Batch::new(position, events)]),
        asked: Arc::clone(&asked),
        oldest,
        stop: Arc::clone(&stop),
    };
    let options = RelayOptions::default().backoff(Duration::from_millis(1), Duration::from_millis(1));
    let mut relay = Relay::new(source, Moody::default(), options);
    if let Some(metrics) = metrics {
        relay = relay.observed_by(metrics);
    }
    *stop.lock().unwrap() = Some(relay.stop_handle());
    relay.run().await.unwrap();
    asked.load(Ordering::SeqCst)
}

#[tokio::test]
async fn a_relay_counts_what_became_of_its_events() {
    let metrics = RelayMetrics::new();
    let (begun, asked) = (Instant::now(), relayed(Some(&metrics)).await);
    let most = 1 + begun.elapsed().as_secs() as usize / 3;
    assert!((1..=most).contains(&asked), "{asked} times: once at the start, and not again within seconds");
    let text = metrics.render();
    for line in [
        "semel_relay_events_total{outcome=\"confirmed\"} 2",
        "semel_relay_events_total{outcome=\"parked\"} 1",
        "semel_relay_events_total{outcome=\"held\"} 1",
        "semel_relay_events_total{outcome=\"failed\"} 5",
        "semel_relay_errors_total{side=\"sink\"} 2",
        "semel_relay_errors_total{side=\"source\"} 0",
        "semel_relay_batch_events_sum 4.0",
        "semel_relay_publish_seconds_count 2",
        "semel_relay_parked_events 0.0",
    ] {
        assert!(text.lines().any(|have| have == line), "{line}\n{text}");
    }
    assert_eq!(metrics.unhealthy_reason(Duration::from_secs(30)), None);
}

#[tokio::test]
async fn the_backlog_is_not_measured_if_it_is_not_exported() {
    assert_eq!(relayed(None).await, 0);
}

#[tokio::test]
async fn spans_name_the_trace_that_appended_the_event() {
    let log = CapturedLog::default();
    let _default = tracing::subscriber::set_default(log.clone());
    // As with the guard's: used once, then asked for again.
    relayed(None).await;
    tracing::callsite::rebuild_interest_cache();
    log.take();
    relayed(None).await;
    let text = log.take();
    let batches = text.lines().filter(|line| line.starts_with(names::SPAN_RELAY_BATCH)).count();
    assert_eq!(batches, 1, "{text}");
    let spans: Vec<&str> = text.lines().filter(|line| line.starts_with(names::SPAN_RELAY_PUBLISH)).collect();
    assert_eq!(spans.len(), 8, "four events in each of two calls:\n{text}");
    for span in spans {
        assert!(span.contains(&format!("trace_parent={TRACE:?}")), "{span}");
        assert!(span.contains("topic=\"payments\""), "{span}");
    }
    for outcome in ["failed", "confirmed", "refused"] {
        assert!(text.contains(&format!("outcome={outcome:?}")), "{outcome}\n{text}");
    }
}

#[tokio::test]
async fn events_that_wait_for_long_are_warned_of() {
    let log = CapturedLog::default();
    let _default = tracing::subscriber::set_default(log.clone());
    let metrics = RelayMetrics::new();
    let late = Some(Duration::from_secs(90));
    // Used once, then asked for again.
    relayed_late(Some(&metrics), late).await;
    tracing::callsite::rebuild_interest_cache();
    for (oldest, warned) in [(late, true), (Some(Duration::from_secs(30)), false), (None, false)] {
        log.take();
        relayed_late(Some(&metrics), oldest).await;
        let text = log.take();
        assert_eq!(text.contains("oldest_seconds=90"), warned, "{oldest:?}\n{text}");
    }
}
