//! Bisects a failed batch until the poison message is found.

use std::collections::HashSet;
use std::sync::Arc;

use tokio::sync::watch;
use tokio::time::Instant;
use tracing::Instrument;

use super::call::{Called, call};
use super::handler::{Handler, HandlerError, HandlerErrorKind, OnBrokenCall};
use super::metrics::{self, Observer};
use super::options::ConsumerOptions;
use super::scheduler::{AttemptResult, QueuedMessage};
use crate::inbox::duplicate_count;
use crate::source::Receipt;

/// Handles a batch. A failed batch is bisected and its halves are tried in order. Messages behind a failed one in the
/// same key queue are not tried.
pub(super) async fn handle<H: Handler>(
    handler: Arc<H>,
    batch: Vec<QueuedMessage>,
    options: &ConsumerOptions,
    observer: &Observer,
    stopped: &watch::Receiver<bool>,
    alive: &watch::Receiver<()>,
) -> Vec<(Receipt, AttemptResult)> {
    let mut results = Vec::with_capacity(batch.len());
    let mut failed_queues = HashSet::new();
    // A stack: the next part is last.
    let mut rest = vec![batch];
    while let Some(mut part) = rest.pop() {
        // Untried messages are tried later.
        if *stopped.borrow() {
            break;
        }
        part.retain(|queued| !failed_queues.contains(&queued.queue()));
        if part.is_empty() {
            continue;
        }
        let mut too_long = false;
        let error = match handled(&handler, &part, options, observer, alive).await {
            Called::Done(already) => {
                let different: HashSet<_> = part.iter().map(|queued| queued.message.identity()).collect();
                let done =
                    if already < different.len() { AttemptResult::Done } else { AttemptResult::Already };
                results.extend(part.iter().map(|queued| (queued.receipt, done.clone())));
                continue;
            }
            Called::Failed(error) | Called::Panicked(error) => error,
            // Try one half now and leave the rest: where everything hangs, each part would take the whole timeout.
            Called::TimedOut(error) => {
                rest.clear();
                if part.len() > 1 {
                    let left = part.split_off(part.len() / 2);
                    results.extend(left.into_iter().map(|queued| (queued.receipt, AttemptResult::Unclear)));
                    rest.push(part);
                    continue;
                }
                too_long = true;
                error
            }
        };
        // No message is to blame for a transient error. Bisecting would only load a database that is down.
        if part.len() > 1 && error.kind() != HandlerErrorKind::Transient {
            let second = part.split_off(part.len() / 2);
            rest.push(second);
            rest.push(part);
            continue;
        }
        for queued in part {
            if failed_queues.insert(queued.queue()) {
                let (error, kind, after) = (error.to_string(), error.kind(), error.pause());
                results.push((queued.receipt, AttemptResult::Failed { error, kind, after, too_long }));
            }
        }
    }
    results
}

/// One call of the handler, with its span and metrics. Returns how many messages were duplicates.
async fn handled<H: Handler>(
    handler: &Arc<H>,
    part: &[QueuedMessage],
    options: &ConsumerOptions,
    observer: &Observer,
    alive: &watch::Receiver<()>,
) -> Called<usize> {
    let messages: Vec<_> = part.iter().map(|queued| queued.message.clone()).collect();
    let gives_up = handler.on_broken_call() == OnBrokenCall::DeadLetter;
    let handler = Arc::clone(handler);
    let begun = Instant::now();
    let (span, spans) = observer.spans(part);
    let alive = alive.clone();
    let work = async move {
        // Kept until the handler is really gone, also after an abort that has not taken effect yet.
        let _alive = alive;
        let (done, already) = duplicate_count::counting(handler.handle(&messages)).await;
        done.map(|()| already)
    };
    let called = match call("the handler", work.instrument(span), options.handle_timeout).await {
        Called::Panicked(error) | Called::TimedOut(error) if gives_up => {
            Called::Failed(HandlerError::permanent(error))
        }
        called => called,
    };
    let (error, already) = match &called {
        Called::Done(already) => (None, *already),
        Called::Failed(error) | Called::Panicked(error) | Called::TimedOut(error) => (Some(error), 0),
    };
    spans.iter().for_each(|span| metrics::record(span, error));
    observer.metrics.iter().for_each(|metrics| metrics.called(begun.elapsed(), part.len(), already, error));
    called
}
