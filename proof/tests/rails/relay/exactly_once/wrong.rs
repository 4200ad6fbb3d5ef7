//! Sources that are built wrong.

use std::time::Duration;

use semel::relay::{Batch, Lag, OutboxReader, OutboxReaderError, Pruned, Settled, SinkCheckpoint};

pub enum Wrong<S> {
    /// Says that it has everything, and shares all the same.
    Sharing(S),
    /// Does not listen to what the sink has had last.
    Deaf(S),
}

impl<S> Wrong<S> {
    fn source(&mut self) -> &mut S {
        match self {
            Self::Sharing(source) | Self::Deaf(source) => source,
        }
    }

    fn seen(&self) -> &S {
        match self {
            Self::Sharing(source) | Self::Deaf(source) => source,
        }
    }
}

impl<S: OutboxReader> OutboxReader for Wrong<S> {
    async fn acquire_exclusive(&mut self) -> Result<bool, OutboxReaderError> {
        match self {
            Self::Sharing(source) => {
                // Takes its share.
                let _ = source.next().await?;
                Ok(true)
            }
            Self::Deaf(source) => source.acquire_exclusive().await,
        }
    }
    async fn resume(&mut self, reached: Option<&SinkCheckpoint>) -> Result<(), OutboxReaderError> {
        match self {
            Self::Sharing(source) => source.resume(reached).await,
            Self::Deaf(_) => Ok(()),
        }
    }
    async fn next(&mut self) -> Result<Option<Batch>, OutboxReaderError> {
        self.source().next().await
    }
    async fn ack(&mut self, settled: &[Settled]) -> Result<(), OutboxReaderError> {
        self.source().ack(settled).await
    }
    async fn renew_lease(&mut self) -> Result<(), OutboxReaderError> {
        self.source().renew_lease().await
    }
    fn renew_after(&self) -> Duration {
        self.seen().renew_after()
    }
    fn holds_lease(&self) -> bool {
        self.seen().holds_lease()
    }
    async fn prune(&mut self, older_than: Duration) -> Result<Pruned, OutboxReaderError> {
        self.source().prune(older_than).await
    }
    async fn lag(&mut self) -> Result<Lag, OutboxReaderError> {
        self.source().lag().await
    }
    async fn release(&mut self) -> Result<(), OutboxReaderError> {
        self.source().release().await
    }
}
