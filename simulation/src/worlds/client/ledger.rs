//! What the simulated ends write down: requests, effects, final answers, and what callers were given.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// One request of an intent, as the network saw it leave.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sent {
    /// When it left.
    pub(super) at: Duration,
    /// How far the client had been set back until then without a process that could have noticed.
    pub(super) unnoticed_set_backs: u32,
    /// How often the client's clock had been set back until then.
    pub(super) set_backs: u32,
}

/// An answer, by what a reader of it sees.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) body: String,
    /// The body is not there because it was not kept.
    pub(super) not_kept: bool,
}

/// What a call of the application came to.
#[derive(Clone, Debug)]
pub(super) enum Given {
    /// An answer.
    Answer(Answer),
    /// "Done, and its answer is lost."
    AnswerLost,
    /// "Did not happen."
    NotSent,
    /// "Refused, and nothing is open", although the key stands for this very request.
    Refused,
    /// Anything else: in doubt, expired, sent by another, refused before it was sent.
    Other,
}

/// What a caller was given.
#[derive(Clone, Debug)]
pub(super) struct Seen {
    pub(super) amount: u64,
    pub(super) given: Given,
}

/// What was written down about one intent.
#[derive(Clone, Debug, Default)]
pub(super) struct Pages {
    /// Requests that left.
    pub(super) sent: Vec<Sent>,
    /// Runs of the service.
    pub(super) runs: usize,
    /// Charges: when, and over which amount.
    pub(super) charges: Vec<(Duration, u64)>,
    /// Answers of the service that are final, with the amount they are about.
    pub(super) finals: Vec<(u64, Answer)>,
    /// Answers that say "about the caller" or "do not retry": a caller that got one may hold the intent.
    pub(super) may_hold: bool,
    /// What callers were given.
    pub(super) seen: Vec<Seen>,
    /// When the application first called.
    pub(super) first_call: Option<Duration>,
    /// The longest call of a client.
    pub(super) longest_call: Duration,
    /// Answers found in the journal at the end.
    pub(super) recorded: Option<Seen>,
}

/// All pages. Clones are the same ledger.
#[derive(Clone)]
pub(super) struct Ledger(Arc<Mutex<Vec<Pages>>>);

impl Ledger {
    pub(super) fn new(intents: usize) -> Self {
        Self(Arc::new(Mutex::new(vec![Pages::default(); intents])))
    }

    pub(super) fn pages(&self) -> MutexGuard<'_, Vec<Pages>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn with<T>(&self, intent: usize, write: impl FnOnce(&mut Pages) -> T) -> T {
        write(&mut self.pages()[intent])
    }
}

/// What the application asks for: which intent, and over which amount.
pub(super) fn request_body(intent: usize, amount: u64) -> String {
    format!(r#"{{"intent":{intent},"amount":{amount}}}"#)
}

/// Reads what [`request_body`] wrote.
pub(super) fn read_request(body: &[u8]) -> Option<(usize, u64)> {
    let document: serde_json::Value = serde_json::from_slice(body).ok()?;
    let number = |name: &str| document.get(name)?.as_u64();
    Some((usize::try_from(number("intent")?).ok()?, number("amount")?))
}
