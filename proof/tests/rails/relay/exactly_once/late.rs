//! A lease that ends while the sink is taken over.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use semel::relay::{Batch, Lag, OutboxReader, OutboxReaderError, Pruned, Settled, SinkCheckpoint};

use super::broker::{Broker, Bug};
use super::outboxes::{Running, quick};

/// Lost as soon as the sink has begun for the first time, and then no judge of where the sink is.
struct Lost {
    broker: Broker,
    taken: u32,
    resumed: Arc<AtomicU32>,
}

impl OutboxReader for Lost {
    async fn acquire_exclusive(&mut self) -> Result<bool, OutboxReaderError> {
        self.taken += 1;
        Ok(true)
    }
    async fn resume(&mut self, _: Option<&SinkCheckpoint>) -> Result<(), OutboxReaderError> {
        if !self.holds_lease() {
            return Err(OutboxReaderError::Behind { reached: "another's".into() });
        }
        self.resumed.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
    async fn next(&mut self) -> Result<Option<Batch>, OutboxReaderError> {
        Ok(None)
    }
    async fn ack(&mut self, _: &[Settled]) -> Result<(), OutboxReaderError> {
        Err(OutboxReaderError::Fenced)
    }
    async fn renew_lease(&mut self) -> Result<(), OutboxReaderError> {
        if self.holds_lease() { Ok(()) } else { Err(OutboxReaderError::Fenced) }
    }
    fn renew_after(&self) -> Duration {
        Duration::from_secs(60)
    }
    fn holds_lease(&self) -> bool {
        self.taken > 1 || self.broker.state().begins == 0
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

#[tokio::test]
async fn a_source_that_is_lost_while_the_sink_begins_is_taken_again() {
    let (broker, resumed) = (Broker::new(), Arc::new(AtomicU32::new(0)));
    let source = Lost { broker: broker.clone(), taken: 0, resumed: resumed.clone() };
    let relay = Running::start(source, broker.sink(Bug::None), quick());
    let until = std::time::Instant::now() + Duration::from_secs(120);
    while resumed.load(Ordering::Relaxed) == 0 && !relay.task.is_finished() {
        assert!(std::time::Instant::now() < until, "it was never taken again");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    relay.stop().await;
    assert_eq!((resumed.load(Ordering::Relaxed), broker.state().begins), (1, 2));
}
