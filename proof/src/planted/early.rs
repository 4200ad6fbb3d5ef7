//! Said before it is so: a sink that confirms before the broker does, and a source that is done before it was sent.

use std::sync::Arc;
use std::time::Duration;

use semel::outbox::Event;
use semel::relay::{Batch, Lag, OutboxReader, OutboxReaderError, Pruned, Settled};
use semel::sink::{Guarantee, Published, Sink};
use tokio::sync::mpsc;

const GATHERS: Duration = Duration::from_millis(100);

/// Confirms at once and publishes afterwards.
pub struct ConfirmedEarly {
    guarantee: Guarantee,
    queue: mpsc::UnboundedSender<Vec<Arc<Event>>>,
}

impl ConfirmedEarly {
    /// Around a sink that is right.
    pub fn new(mut sink: impl Sink) -> Self {
        let (queue, mut waiting) = mpsc::unbounded_channel::<Vec<Arc<Event>>>();
        let guarantee = sink.guarantee();
        tokio::spawn(async move {
            while let Some(events) = waiting.recv().await {
                // As one that gathers for a while. Sent at once, it would often be there before the source is done.
                tokio::time::sleep(GATHERS).await;
                let _ = sink.publish(&events).await;
            }
        });
        Self { guarantee, queue }
    }
}

impl Sink for ConfirmedEarly {
    fn guarantee(&self) -> Guarantee {
        self.guarantee.clone()
    }

    async fn publish(&mut self, events: &[Arc<Event>]) -> Vec<Published> {
        let _ = self.queue.send(events.to_vec());
        vec![Published::Confirmed; events.len()]
    }
}

/// Marks a batch as published when it is given, before it is.
pub struct DoneEarly<S>(pub S);

impl<S: OutboxReader> OutboxReader for DoneEarly<S> {
    async fn next(&mut self) -> Result<Option<Batch>, OutboxReaderError> {
        let batch = self.0.next().await?;
        if let Some(batch) = &batch {
            self.0.ack(&vec![Settled::Confirmed; batch.events.len()]).await?;
        }
        Ok(batch)
    }

    async fn ack(&mut self, _: &[Settled]) -> Result<(), OutboxReaderError> {
        Ok(())
    }

    async fn renew_lease(&mut self) -> Result<(), OutboxReaderError> {
        self.0.renew_lease().await
    }

    fn renew_after(&self) -> Duration {
        self.0.renew_after()
    }

    fn holds_lease(&self) -> bool {
        self.0.holds_lease()
    }

    async fn prune(&mut self, older_than: Duration) -> Result<Pruned, OutboxReaderError> {
        self.0.prune(older_than).await
    }

    async fn lag(&mut self) -> Result<Lag, OutboxReaderError> {
        self.0.lag().await
    }

    async fn release(&mut self) -> Result<(), OutboxReaderError> {
        self.0.release().await
    }
}
