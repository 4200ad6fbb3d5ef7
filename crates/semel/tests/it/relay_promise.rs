//! A relay asks its sink whether the promise is kept, before anything is published.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use semel::outbox::Event;
use semel::relay::{
    Batch, BatchCursor, Lag, OutboxLineage, OutboxReader, OutboxReaderError, Pending, Position, Pruned,
    Relay, RelayOptions, RelayStopHandle, Settled,
};
use semel::sink::{DeliverySemantics, ExactlyOnce, Guarantee, Published, Sink, SinkError};

use crate::captured_log::CapturedLog;

const BROKEN: &str = "what it confirmed is gone; keep it";

/// What was called, in order, and who is stopped at the end.
#[derive(Clone, Default)]
pub(crate) struct Calls(pub(crate) Arc<Mutex<(Vec<&'static str>, Option<RelayStopHandle>)>>);

impl Calls {
    pub(crate) fn note(&self, call: &'static str) {
        self.0.lock().unwrap().0.push(call);
    }
}

/// Gives one batch, then stops the relay.
pub(crate) struct One(pub(crate) Option<Batch>, pub(crate) Calls);

impl OutboxReader for One {
    async fn next(&mut self) -> Result<Option<Batch>, OutboxReaderError> {
        if self.0.is_none() {
            self.1.0.lock().unwrap().1.as_ref().unwrap().stop();
        }
        Ok(self.0.clone())
    }
    async fn acquire_exclusive(&mut self) -> Result<bool, OutboxReaderError> {
        Ok(true)
    }
    async fn ack(&mut self, _: &[Settled]) -> Result<(), OutboxReaderError> {
        self.0 = None;
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
        Ok(Lag::default())
    }
    async fn release(&mut self) -> Result<(), OutboxReaderError> {
        Ok(())
    }
}

/// Finds out by asking that it forgets; where it is down, it cannot be asked.
struct Forgets {
    calls: Calls,
    away: bool,
    asked: bool,
}

impl Sink for Forgets {
    fn guarantee(&self) -> Guarantee {
        let violations = self.asked.then(|| BROKEN.to_owned()).into_iter().collect();
        Guarantee { delivery: DeliverySemantics::AtLeastOnce, sentence: String::new(), violations }
    }
    async fn probe(&mut self) -> Result<(), SinkError> {
        self.calls.note("probe");
        if self.away {
            return Err(SinkError::not_published("the sink is down"));
        }
        self.asked = true;
        Ok(())
    }
    async fn publish(&mut self, events: &[Arc<Event>]) -> Vec<Published> {
        self.calls.note("publish");
        vec![Published::Confirmed; events.len()]
    }
}

impl ExactlyOnce for Forgets {
    async fn begin(&mut self) -> Result<Option<Vec<u8>>, SinkError> {
        self.calls.note("begin");
        Ok(None)
    }
    async fn publish_at(&mut self, _: &[Arc<Event>], _: &[u8]) -> Result<(), SinkError> {
        self.calls.note("publish_at");
        Ok(())
    }
}

/// Runs a relay until one batch is done. What was called, and what was said.
async fn relayed(away: bool, exactly_once: bool) -> (Vec<&'static str>, String) {
    let log = CapturedLog::default();
    let _default = tracing::subscriber::set_default(log.clone());
    tracing::callsite::rebuild_interest_cache();
    let calls = Calls::default();
    let position = Position { lineage: OutboxLineage::read("here"), cursor: BatchCursor::of("1") };
    let event = Event::new("payments", "payment.completed", "1").unwrap();
    let source = One(Some(Batch::new(position, vec![Pending::new(event)])), calls.clone());
    let sink = Forgets { calls: calls.clone(), away, asked: false };
    let relay = Relay::new(source, sink, RelayOptions::default());
    calls.0.lock().unwrap().1 = Some(relay.stop_handle());
    let ended = if exactly_once { relay.run_exactly_once().await } else { relay.run().await };
    assert_eq!(ended.unwrap().confirmed, 1);
    let called = std::mem::take(&mut calls.0.lock().unwrap().0);
    (called, log.take())
}

#[tokio::test]
async fn it_is_asked_first_and_what_is_broken_is_said() {
    for (exactly_once, wanted) in
        [(false, &["probe", "publish"][..]), (true, &["probe", "begin", "publish_at"])]
    {
        // The first time a line is used, its interest may be another test's.
        relayed(false, exactly_once).await;
        let (called, said) = relayed(false, exactly_once).await;
        assert_eq!(called, wanted);
        let lines: Vec<&str> = said.lines().filter(|line| line.contains("break its guarantee")).collect();
        assert!(lines.len() == 1 && lines[0].contains(BROKEN), "{said}");
    }
}

#[tokio::test]
async fn one_that_is_down_does_not_stop_publishing() {
    for (exactly_once, wanted) in
        [(false, &["probe", "publish"][..]), (true, &["probe", "begin", "publish_at"])]
    {
        relayed(true, exactly_once).await;
        let (called, said) = relayed(true, exactly_once).await;
        assert_eq!(called, wanted);
        assert!(said.contains("the sink is down") && !said.contains("cannot keep"), "{said}");
    }
}

/// A relay that wants to take it over waits.
struct Silent(Calls);

impl Sink for Silent {
    fn guarantee(&self) -> Guarantee {
        Guarantee {
            delivery: DeliverySemantics::ExactlyOnce,
            sentence: String::new(),
            violations: Vec::new(),
        }
    }
    async fn probe(&mut self) -> Result<(), SinkError> {
        Ok(())
    }
    async fn publish(&mut self, _: &[Arc<Event>]) -> Vec<Published> {
        std::future::pending().await
    }
}

impl ExactlyOnce for Silent {
    async fn begin(&mut self) -> Result<Option<Vec<u8>>, SinkError> {
        self.0.0.lock().unwrap().1.as_ref().unwrap().stop();
        std::future::pending().await
    }
    async fn publish_at(&mut self, _: &[Arc<Event>], _: &[u8]) -> Result<(), SinkError> {
        std::future::pending().await
    }
}

#[tokio::test]
async fn a_stop_is_noticed_while_a_sink_is_taken_over() {
    let calls = Calls::default();
    let relay = Relay::new(One(None, calls.clone()), Silent(calls.clone()), RelayOptions::default());
    calls.0.lock().unwrap().1 = Some(relay.stop_handle());
    let ended = tokio::time::timeout(Duration::from_secs(20), relay.run_exactly_once()).await;
    assert_eq!(ended.expect("it waits for a sink that is silent").unwrap().confirmed, 0);
}
