//! Finding the one that fails: halves, and halves of halves.

use std::collections::HashSet;
use std::sync::Arc;

use tokio::sync::watch;
use tokio::time::Instant;
use tracing::Instrument;

use super::call::{Called, call};
use super::handler::{Handler, HandlerError, HandlerErrorKind};
use super::metrics::{self, Observer};
use super::options::ConsumerOptions;
use super::scheduler::{AttemptResult, Held};
use crate::inbox::duplicate_count;
use crate::source::Receipt;

/// Handles a batch. What fails as one of many is tried in two halves, the first before the second; what comes after a
/// failed message in its line is not tried at all.
pub(super) async fn handle<H: Handler>(
    handler: Arc<H>,
    batch: Vec<Held>,
    options: &ConsumerOptions,
    observer: &Observer,
    stopped: &watch::Receiver<bool>,
    alive: &watch::Receiver<()>,
) -> Vec<(Receipt, AttemptResult)> {
    let mut told = Vec::with_capacity(batch.len());
    let mut failed_lines = HashSet::new();
    // The next on top.
    let mut rest = vec![batch];
    while let Some(mut part) = rest.pop() {
        // What is not tried now is tried another time.
        if *stopped.borrow() {
            break;
        }
        part.retain(|held| !failed_lines.contains(&held.line()));
        if part.is_empty() {
            continue;
        }
        let mut too_long = false;
        let error = match handled(&handler, &part, options, observer, alive).await {
            Called::Done(already) => {
                let different: HashSet<_> = part.iter().map(|held| held.message.identity()).collect();
                let done =
                    if already < different.len() { AttemptResult::Done } else { AttemptResult::Already };
                told.extend(part.iter().map(|held| (held.receipt, done.clone())));
                continue;
            }
            Called::Failed(error) | Called::Broke(error) => error,
            // Half of them, and the others not now: where everything hangs, each of them would take as long.
            Called::TooLong(error) => {
                rest.clear();
                if part.len() > 1 {
                    part.truncate(part.len() / 2);
                    rest.push(part);
                    continue;
                }
                too_long = true;
                error
            }
        };
        // Nobody's fault: asking for each of them alone would only ask a database that is down more often.
        if part.len() > 1 && error.kind() != HandlerErrorKind::Transient {
            let second = part.split_off(part.len() / 2);
            rest.push(second);
            rest.push(part);
            continue;
        }
        for held in part {
            if failed_lines.insert(held.line()) {
                let (error, kind, after) = (error.to_string(), error.kind(), error.pause());
                told.push((held.receipt, AttemptResult::Failed { error, kind, after, too_long }));
            }
        }
    }
    told
}

/// One call of the handler, watched. How many it found to be done already.
async fn handled<H: Handler>(
    handler: &Arc<H>,
    part: &[Held],
    options: &ConsumerOptions,
    observer: &Observer,
    alive: &watch::Receiver<()>,
) -> Called<usize> {
    let messages: Vec<_> = part.iter().map(|held| held.message.clone()).collect();
    let gives_up = handler.gives_up_at_once();
    let handler = Arc::clone(handler);
    let begun = Instant::now();
    let (span, spans) = observer.spans(part);
    let alive = alive.clone();
    let work = async move {
        // Held for as long as the handler runs, also by one that was broken off and has not heard of it.
        let _alive = alive;
        let (done, already) = duplicate_count::counting(handler.handle(&messages)).await;
        done.map(|()| already)
    };
    let called = match call("the handler", work.instrument(span), options.handle_timeout).await {
        Called::Broke(error) | Called::TooLong(error) if gives_up => {
            Called::Failed(HandlerError::permanent(error))
        }
        called => called,
    };
    let (error, already) = match &called {
        Called::Done(already) => (None, *already),
        Called::Failed(error) | Called::Broke(error) | Called::TooLong(error) => (Some(error), 0),
    };
    spans.iter().for_each(|span| metrics::record(span, error));
    observer.metrics.iter().for_each(|metrics| metrics.called(begun.elapsed(), part.len(), already, error));
    called
}
