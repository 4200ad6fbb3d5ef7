//! How long a consumer remembers messages, and the metrics of that: the broker's retention decides, unless configured.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use semel::inbox::consumer::{Consumer, ConsumerMetrics, ConsumerOptions, DedupPruner, HandlerError};
use semel::observe::names;
use semel::source::memory::MemoryQueue;
use semel::source::{Delivery, Receipt, Settle, Source, SourceError};

use crate::captured_log::CapturedLog;
use crate::consumer::{Effects, options, until};

/// A source that tells how long its broker keeps messages.
struct Keeping<S>(S, Duration);

impl<S: Source> Source for Keeping<S> {
    async fn receive(&mut self, most: usize, wait: Duration) -> Result<Vec<Delivery>, SourceError> {
        self.0.receive(most, wait).await
    }

    async fn settle(&mut self, settled: &[(Receipt, Settle)]) -> Result<(), SourceError> {
        self.0.settle(settled).await
    }

    async fn keep(&mut self, held: &[Receipt]) -> Result<(), SourceError> {
        self.0.keep(held).await
    }

    fn renew_after(&self) -> Duration {
        self.0.renew_after()
    }

    fn lost(&mut self) -> Vec<Receipt> {
        self.0.lost()
    }

    async fn retention(&mut self) -> Option<Duration> {
        Some(self.1)
    }

    async fn leave(&mut self) -> Result<(), SourceError> {
        self.0.leave().await
    }
}

/// Remembers up to which age marks were to be kept.
#[derive(Clone, Default)]
struct Windows(Arc<Mutex<Vec<Duration>>>);

impl DedupPruner for Windows {
    async fn prune(&self, consumer: &str, window: Duration) -> Result<u64, HandlerError> {
        assert_eq!(consumer, "mail");
        self.0.lock().unwrap().push(window);
        // The second bite of each round is the last.
        Ok((self.0.lock().unwrap().len() % 2) as u64)
    }
}

#[tokio::test]
async fn no_mark_is_forgotten_as_long_as_the_broker_may_bring_its_message_again() {
    let days = |days: u64| Duration::from_secs(days * 24 * 60 * 60);
    for (retention, asked, kept) in [
        (days(1), None, semel::inbox::WINDOW),
        (days(30), None, days(60)),
        (Duration::MAX, None, Duration::MAX),
        // Shorter than the broker's, and asked for: warned about, and done.
        (days(30), Some(days(2)), days(2)),
    ] {
        let (queue, metrics, windows) =
            (MemoryQueue::new("payments"), ConsumerMetrics::new(), Windows::default());
        let options = options().prune_interval(Duration::from_millis(1));
        let options = asked.iter().fold(options, |options, window| options.window(*window));
        let source = Keeping(queue.source(), retention);
        let consumer = Consumer::new("mail", source, Effects::new(|_| None), options);
        let consumer = consumer.observed_by(&metrics).forgets(windows.clone());
        until(consumer, || windows.0.lock().unwrap().len() >= 4).await;
        assert!(windows.0.lock().unwrap().iter().all(|window| *window == kept), "{retention:?} {asked:?}");
        let rendered = metrics.render();
        let value = rendered.lines().find_map(|line| line.strip_prefix("semel_consumer_window_seconds "));
        assert_eq!(value.and_then(|value| value.parse().ok()), Some(kept.as_secs_f64()), "{rendered}");
        assert!(rendered.contains("semel_consumer_forgotten_marks_total"), "{rendered}");
    }
}

/// A consumer of one message, with what is said of it.
async fn consumed(options: ConsumerOptions) {
    let queue = MemoryQueue::new("payments");
    queue.push(Some("a"), &[("semel-id", "e-1"), ("traceparent", TRACE)], "a1");
    let source = Keeping(queue.source(), Duration::from_secs(3_600));
    until(Consumer::new("mail", source, Effects::new(|_| None), options), || queue.is_empty()).await;
}

const TRACE: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

#[tokio::test]
async fn spans_name_the_trace_of_the_message_and_a_window_too_short_is_warned_about() {
    let log = CapturedLog::default();
    let _default = tracing::subscriber::set_default(log.clone());
    let short = || options().window(Duration::from_secs(60));
    // As with the guard's: used once, then asked for again.
    consumed(short()).await;
    tracing::callsite::rebuild_interest_cache();
    log.take();
    consumed(short()).await;
    let text = log.take();
    for name in [names::SPAN_CONSUMER_HANDLE, names::SPAN_CONSUMER_MESSAGE] {
        let span = text.lines().find(|line| line.starts_with(name));
        assert!(span.is_some_and(|span| span.contains(&format!("trace_parent={TRACE:?}"))), "{name}\n{text}");
    }
    assert!(text.contains("outcome=\"done\""), "{text}");
    assert!(text.contains("handled AGAIN"), "{text}");
    consumed(options().window(Duration::from_secs(3_600))).await;
    assert!(!log.take().contains("handled AGAIN"));
}
