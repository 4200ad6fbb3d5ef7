//! Sources that are built wrong.

use std::time::Duration;

use semel::relay::{Batch, Lag, Pruned, Reached, Settled, Source, SourceError};

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

impl<S: Source> Source for Wrong<S> {
    async fn take_all(&mut self) -> Result<bool, SourceError> {
        match self {
            Self::Sharing(source) => {
                // Takes its share.
                let _ = source.next().await?;
                Ok(true)
            }
            Self::Deaf(source) => source.take_all().await,
        }
    }
    async fn resume(&mut self, reached: Option<&Reached>) -> Result<(), SourceError> {
        match self {
            Self::Sharing(source) => source.resume(reached).await,
            Self::Deaf(_) => Ok(()),
        }
    }
    async fn next(&mut self) -> Result<Option<Batch>, SourceError> {
        self.source().next().await
    }
    async fn done(&mut self, settled: &[Settled]) -> Result<(), SourceError> {
        self.source().done(settled).await
    }
    async fn keep(&mut self) -> Result<(), SourceError> {
        self.source().keep().await
    }
    fn keep_in(&self) -> Duration {
        self.seen().keep_in()
    }
    fn holds(&self) -> bool {
        self.seen().holds()
    }
    async fn prune(&mut self, older_than: Duration) -> Result<Pruned, SourceError> {
        self.source().prune(older_than).await
    }
    async fn lag(&mut self) -> Result<Lag, SourceError> {
        self.source().lag().await
    }
    async fn leave(&mut self) -> Result<(), SourceError> {
        self.source().leave().await
    }
}
