//! Whether the sink can keep what it promises: asked when the relay starts, and said where operators look.
//!
//! Said, not refused: what is in the outbox is better published to a broker that may forget it than to none. A broker that
//! is away is asked again later; the relay works meanwhile as it would.

use std::time::Duration;

use tokio::time::Instant;

use super::outbox_reader::OutboxReader;
use super::run::{Relay, keeping, wait};
use crate::sink::{Sink, SinkError};

/// The longest that events wait for the answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// When it is asked again if there was none, at first and at most: seldom, and only when no events wait for it.
const AGAIN: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(600));

/// When the sink is asked next.
pub(super) struct SinkProbe {
    /// `None`: it has answered.
    ask_at: Option<Instant>,
    again: Duration,
    said: Vec<String>,
}

impl SinkProbe {
    pub(super) fn unknown() -> Self {
        Self { ask_at: Some(Instant::now()), again: AGAIN.0, said: Vec::new() }
    }
}

impl<S: OutboxReader, K: Sink> Relay<S, K> {
    /// Asks the sink before anything is published. A stop ends it.
    pub(super) async fn check_promise_first(&mut self) {
        if self.promise.again == AGAIN.0 {
            self.check_promise_if_due().await;
        }
    }

    /// Asks the sink, if it has not answered yet and it is time: for when there is nothing else to do.
    pub(super) async fn check_promise_if_due(&mut self) {
        if self.promise.ask_at.is_none_or(|at| at > Instant::now()) {
            return;
        }
        let mut stopped = self.stop.subscribe();
        let Self { source, sink, observer, .. } = self;
        let asked = async {
            tokio::select! {
                biased;
                () = wait(&mut stopped) => None,
                answer = tokio::time::timeout(PATIENCE, sink.probe()) => Some(answer),
            }
        };
        // At the start there is nothing to keep yet. A source that is in trouble says so at its next turn.
        let answer = match source.holds_lease() {
            true => keeping(source, observer.as_ref(), asked).await.ok().flatten().flatten(),
            false => asked.await,
        };
        match answer {
            Some(Ok(Ok(()))) => {
                self.promise.ask_at = None;
                self.say_what_is_broken();
            }
            Some(Ok(Err(error))) => {
                self.say_what_is_broken();
                self.ask_again(&error);
            }
            Some(Err(_)) => {
                self.say_what_is_broken();
                self.ask_again(&SinkError::not_published("the sink did not answer in time"));
            }
            None => {}
        }
    }

    /// Each thing once.
    fn say_what_is_broken(&mut self) {
        for why in self.sink.guarantee().violations {
            if !self.promise.said.contains(&why) {
                tracing::error!(%why, "this configuration cannot keep what it promises");
                self.promise.said.push(why);
            }
        }
    }

    fn ask_again(&mut self, error: &SinkError) {
        let SinkProbe { ask_at, again, .. } = &mut self.promise;
        if *again == AGAIN.0 {
            tracing::warn!(%error, "it could not be found out whether the promise is kept; the sink is asked again");
        }
        *ask_at = Some(Instant::now() + *again);
        *again = (*again * 2).min(AGAIN.1);
    }
}
