//! How long marks are kept: at least as long as the broker may bring a message again. And forgetting them, a bite at a time,
//! beside the work.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::sync::watch;

use super::handler::HandlerError;
use crate::inbox::WINDOW;

/// Between two bites others get their turn.
const BREATH: Duration = Duration::from_millis(50);
/// Most bites of one round: what is left is left to the next.
const BITES_MAX: usize = 10_000;

/// Forgets marks that are older than the window.
pub trait DedupPruner: Send + Sync + 'static {
    /// Forgets a bounded bite of what `consumer` marked longer ago than `window`, in a transaction of its own. Zero:
    /// nothing is left to forget.
    fn prune(
        &self,
        consumer: &str,
        window: Duration,
    ) -> impl Future<Output = Result<u64, HandlerError>> + Send;
}

/// How long marks are kept, and what is wrong with that.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Kept {
    pub(super) window: Duration,
    /// The broker keeps messages for this long, and the window is shorter.
    pub(super) too_short_for: Option<Duration>,
}

/// What was asked for, or else what the broker needs: twice its retention, because brokers forget in large pieces and so
/// keep some messages longer than they say.
pub(super) fn kept(asked: Option<Duration>, retention: Option<Duration>) -> Kept {
    let window = asked.unwrap_or_else(|| WINDOW.max(retention.unwrap_or_default().saturating_mul(2)));
    Kept { window, too_short_for: retention.filter(|retention| *retention > window) }
}

pub(super) type PruneChunk =
    Arc<dyn Fn(Duration) -> BoxFuture<'static, Result<u64, HandlerError>> + Send + Sync>;

/// A bite of these marks.
pub(super) fn chunk(marks: impl DedupPruner, consumer: &str) -> PruneChunk {
    let (marks, consumer) = (Arc::new(marks), consumer.to_owned());
    Arc::new(move |window| {
        let (marks, consumer) = (Arc::clone(&marks), consumer.clone());
        Box::pin(async move { marks.prune(&consumer, window).await })
    })
}

/// Forgets marks for as long as the consumer runs: a round when the window is known, and then one each interval. It runs
/// beside the handlers, and nobody waits for it.
pub(super) async fn forget(
    chunk: PruneChunk,
    consumer: String,
    every: Duration,
    mut window: watch::Receiver<Option<Duration>>,
    forgotten: impl Fn(u64),
) {
    loop {
        // Before the window is known nothing is old.
        let Ok(known) = window.wait_for(Option::is_some).await.map(|known| *known) else { return };
        for _ in 0..BITES_MAX {
            match chunk(known.unwrap_or(Duration::MAX)).await {
                Ok(0) => break,
                Ok(marks) => forgotten(marks),
                Err(error) => {
                    tracing::warn!(%error, consumer, "old marks were not forgotten; trying again later");
                    break;
                }
            }
            tokio::time::sleep(BREATH).await;
        }
        // Not all processes of a consumer at once.
        tokio::time::sleep(every.mul_f64(0.8 + 0.4 * fastrand::f64())).await;
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
