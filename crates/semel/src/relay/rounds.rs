//! Publishes at least once: one call to the sink after the other, until each event of the batch is confirmed or parked.

use std::sync::Arc;

use tokio::time::Instant;

use super::batch_progress::BatchProgress;
use super::blame::Blame;
use super::observer::{record, spans};
use super::outbox_reader::{Batch, OutboxReader, Settled};
use super::publish::{Attempts, Publish, call};
use super::run::{Relay, RelayError};
use crate::crash;
use crate::outbox::Event;
use crate::sink::{Published, Sink};

/// The strategy for every sink.
#[derive(Default)]
pub(super) struct Rounds {
    blame: Blame,
}

impl<S: OutboxReader, K: Sink> Publish<S, K> for Rounds {
    async fn publish(
        &mut self,
        relay: &mut Relay<S, K>,
        batch: &Batch,
    ) -> Result<Option<Vec<Settled>>, RelayError> {
        let mut progress = BatchProgress::new(batch, &relay.options);
        let mut attempts = Attempts::new(relay);
        loop {
            let ready = progress.ready();
            if ready.is_empty() {
                return Ok(Some(progress.settled()));
            }
            if attempts.are_over() {
                return Ok(None);
            }
            let events = batch.events_at(&ready);
            let Some(results) = publish(relay, &events, &mut attempts).await? else { return Ok(None) };
            let round = progress.apply(&ready, results, Instant::now(), &mut self.blame);
            if let Some(error) = round.fenced {
                return Err(RelayError::Fenced(error));
            }
            if round.confirmed + round.parked + round.read_past > 0 {
                attempts.delay.reset();
            }
            if round.read_past > 0 {
                tracing::warn!(
                    keys = round.read_past,
                    "the sink confirmed none of these keys; parked them to try other events; check whether it is up"
                );
            }
            let Some(error) = round.failure else { continue };
            tracing::warn!(
                %error,
                confirmed = round.confirmed,
                sent = ready.len(),
                "the sink did not confirm all events; the others are retried or parked"
            );
            // Otherwise nothing is left to retry.
            if !progress.ready().is_empty() && !attempts.back_off(relay).await? {
                return Ok(None);
            }
        }
    }
}

/// Gives events to the sink in one call. `None`: the lease was lost, or the drain timed out.
async fn publish<S: OutboxReader, K: Sink>(
    relay: &mut Relay<S, K>,
    events: &[Arc<Event>],
    attempts: &mut Attempts,
) -> Result<Option<Vec<Published>>, RelayError> {
    let spans = spans(events);
    let Relay { source, sink, observer, .. } = relay;
    let published = async {
        tokio::select! {
            biased;
            results = sink.publish(events) => Some(results),
            () = attempts.end() => None,
        }
    };
    let called = call(source, observer.as_ref(), crash::BEFORE_PUBLISH, published).await?;
    let Some((results, took)) = called else { return Ok(None) };
    crash::point(crash::AFTER_PUBLISH);
    for (span, result) in spans.iter().zip(&results) {
        match result {
            Published::Confirmed => record(span, "confirmed", None),
            Published::Failed(error) => record(span, "failed", Some(error)),
            Published::Refused(error) => record(span, "refused", Some(error)),
        }
    }
    relay.observe(|metrics| metrics.call_ends(took, &results));
    Ok(Some(results))
}
