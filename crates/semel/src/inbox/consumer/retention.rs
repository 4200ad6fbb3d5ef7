//! Retention of marks: at least as long as the broker may redeliver a message. And pruning them in bounded chunks, in
//! the background.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::sync::watch;

use super::handler::HandlerError;
use crate::backoff::spread;
use crate::inbox::WINDOW;

/// Pause between two chunks, so that others get their turn.
const CHUNK_PAUSE: Duration = Duration::from_millis(50);
/// Most chunks of one round. The next round goes on.
const CHUNKS_MAX: usize = 10_000;

/// Prunes marks that are older than the dedup window.
pub trait DedupPruner: Send + Sync + 'static {
    /// Deletes one bounded batch of `consumer`'s marks older than `window`, in its own transaction. Returns how many;
    /// zero: nothing is left to prune.
    fn prune(
        &self,
        consumer: &str,
        window: Duration,
    ) -> impl Future<Output = Result<u64, HandlerError>> + Send;
}

/// Retention of marks, and whether it is too short.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Kept {
    pub(super) window: Duration,
    /// The broker's retention, if the window is shorter.
    pub(super) too_short_for: Option<Duration>,
}

/// The configured window, or else at least twice the broker's retention: brokers delete in large segments, and so keep
/// some messages longer than they say.
pub(super) fn kept(asked: Option<Duration>, retention: Option<Duration>) -> Kept {
    let window = asked.unwrap_or_else(|| WINDOW.max(retention.unwrap_or_default().saturating_mul(2)));
    Kept { window, too_short_for: retention.filter(|retention| *retention > window) }
}

pub(super) type PruneChunk =
    Arc<dyn Fn(Duration) -> BoxFuture<'static, Result<u64, HandlerError>> + Send + Sync>;

/// Prunes one chunk of these marks.
pub(super) fn chunk(marks: impl DedupPruner, consumer: &str) -> PruneChunk {
    let (marks, consumer) = (Arc::new(marks), consumer.to_owned());
    Arc::new(move |window| {
        let (marks, consumer) = (Arc::clone(&marks), consumer.clone());
        Box::pin(async move { marks.prune(&consumer, window).await })
    })
}

/// Prunes marks for as long as the consumer runs: one round when the window is known, then one each interval. Runs in
/// the background; no handler waits for it.
pub(super) async fn prune(
    chunk: PruneChunk,
    consumer: String,
    every: Duration,
    mut window: watch::Receiver<Option<Duration>>,
    pruned: impl Fn(u64),
) {
    loop {
        // Nothing is pruned before the window is known.
        let Ok(known) = window.wait_for(Option::is_some).await.map(|known| *known) else { return };
        for _ in 0..CHUNKS_MAX {
            match chunk(known.unwrap_or(Duration::MAX)).await {
                Ok(0) => break,
                Ok(marks) => pruned(marks),
                Err(error) => {
                    tracing::warn!(%error, consumer, "failed to prune old marks; will retry in the next round");
                    break;
                }
            }
            tokio::time::sleep(CHUNK_PAUSE).await;
        }
        // Jitter, so that the processes of a consumer do not prune at once.
        tokio::time::sleep(spread(every, 0.2)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_kept_for_longer_than_the_broker_keeps_messages() {
        let days = |days: u64| Duration::from_secs(days * 24 * 60 * 60);
        for (asked, retention, window, too_short) in [
            (None, None, WINDOW, false),
            (None, Some(days(1)), WINDOW, false),
            (None, Some(days(30)), days(60), false),
            (None, Some(Duration::MAX), Duration::MAX, false),
            (Some(days(31)), Some(days(30)), days(31), false),
            (Some(days(30)), Some(days(30)), days(30), false),
            (Some(days(29)), Some(days(30)), days(29), true),
            (Some(days(1)), Some(Duration::MAX), days(1), true),
            (Some(days(1)), None, days(1), false),
        ] {
            let kept = kept(asked, retention);
            let shown = (asked, retention);
            assert_eq!((kept.window, kept.too_short_for.is_some()), (window, too_short), "{shown:?}");
        }
    }
}
