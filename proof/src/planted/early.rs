//! Said before it is so: a sink that confirms before the broker does, and a source that is done before it was sent.

use std::sync::Arc;
use std::time::Duration;

use semel::outbox::Event;
use semel::relay::{Batch, Lag, Pruned, Settled, Source, SourceError};
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

impl<S: Source> Source for DoneEarly<S> {
    async fn next(&mut self) -> Result<Option<Batch>, SourceError> {
        let batch = self.0.next().await?;
        if let Some(batch) = &batch {
            self.0.done(&vec![Settled::Confirmed; batch.events.len()]).await?;
        }
        Ok(batch)
    }

    async fn done(&mut self, _: &[Settled]) -> Result<(), SourceError> {
        Ok(())
    }

    async fn keep(&mut self) -> Result<(), SourceError> {
        self.0.keep().await
    }

    fn keep_in(&self) -> Duration {
        self.0.keep_in()
    }

    fn holds(&self) -> bool {
        self.0.holds()
    }

    async fn prune(&mut self, older_than: Duration) -> Result<Pruned, SourceError> {
        self.0.prune(older_than).await
    }

    async fn lag(&mut self) -> Result<Lag, SourceError> {
        self.0.lag().await
    }

    async fn leave(&mut self) -> Result<(), SourceError> {
        self.0.leave().await
    }
}
