//! The laws, judged by what the simulated ends wrote down.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use http::{Request, Response};
use semel::http::client::ClientError;
use semel::http::client::durable::{DurableError, FromJournal, JournalState};

use super::application::{amount, read};
use super::draw::{ON_ITS_WAY_MAX_MS, RUN_TAKES_MAX_MS};
use super::ledger::{Answer, Given, Pages, Seen, request_body};
use super::plan::{Delivery, Settings, What};
use super::scene::{Scene, TENANT};
use crate::world::Violation;

/// An effect that nothing else protects happens at most once.
const ONE_EFFECT: &str = "one effect per intent";
/// What a caller is given or the journal keeps is a final answer of the service to that very request.
const TRUE_ANSWERS: &str = "answers are final answers of the service";
/// "Done, and its answer is lost" is true.
const LOST_IS_DONE: &str = "an answer is lost only of what happened";
/// Nothing is sent later than retention after the first request.
const WITHIN_RETENTION: &str = "nothing is sent after the server's retention";
/// Every intent ends answered, refused or held within a bound.
const EVERY_INTENT_ENDS: &str = "every intent ends";
/// Every call returns within the time its policy gives it.
const EVERY_CALL_ENDS: &str = "every call returns in its time";
/// What was sent is in the journal.
const WRITTEN_DOWN: &str = "what was sent is written down";
/// "Did not happen" is true.
const NOT_SENT_IS_TRUE: &str = "not sent means it did not happen";
/// An intent is given up as too old only when it is.
const NOT_TOO_EARLY: &str = "an intent is not given up before its time";
/// An intent is held only because of an answer that says so.
const HELD_FOR_A_REASON: &str = "an intent is held for a reason";

/// Commits of one call, each as slow as the slowest disk.
const DISK_TAKES_MAX: Duration = Duration::from_secs(10);

/// How long after the last fault every intent has ended.
///
/// Claims of dead processes end with the journal's lease; what is under way at the server ends with its longest run, or
/// with the lease of a killed one. Until then each intent may use up the whole time of its call, one after the other.
pub(super) fn bound(settings: &Settings, intents: usize) -> Duration {
    let call_ms = settings.time_max_ms + ON_ITS_WAY_MAX_MS;
    let round_ms = intents as u64 * call_ms + settings.resume_every_ms;
    let server_ms = settings.lease_ms + RUN_TAKES_MAX_MS;
    Duration::from_millis(settings.journal_lease_ms + server_ms + 3 * round_ms)
}

fn is_recorded<B>(response: &Response<B>) -> bool {
    response.extensions().get::<FromJournal>().is_some()
}

/// Where the journal has each intent: its state, if it has no answer.
pub(super) type Unfinished = BTreeMap<usize, JournalState>;

impl Scene {
    /// What is in the journal without an answer.
    pub(super) async fn unfinished(self: &Arc<Self>) -> Result<Unfinished, Violation> {
        let (reader, _) = self.clients(0, true);
        let listed = reader.unfinished(u32::MAX).await;
        let listed = listed.map_err(|error| Violation::new(WRITTEN_DOWN, error.to_string()))?;
        let by_intent = listed.into_iter().filter_map(|intent| {
            let number = self.intent_of(intent.key.as_str())?;
            Some((number, intent.state))
        });
        Ok(by_intent.collect())
    }

    /// Reads the answers the journal has. Nothing is sent for it.
    pub(super) async fn read_recorded(self: &Arc<Self>, unfinished: &Unfinished) {
        let (reader, _) = self.clients(0, true);
        for (intent, planned) in self.plan.intents.iter().enumerate() {
            let was_sent = !self.ledger.with(intent, |pages| pages.sent.is_empty());
            let is_answered = planned.durable && was_sent && !unfinished.contains_key(&intent);
            let Some(key) = self.key_of(intent).filter(|_| is_answered) else { continue };
            for other_request in [false, true] {
                let amount = amount(intent, other_request);
                let request = Request::post("http://payments.example/payments")
                    .header("content-type", "application/json")
                    .header("x-tenant-id", TENANT)
                    .extension(key.clone())
                    .body(request_body(intent, amount));
                let Ok(request) = request else { continue };
                let sent = reader.send(request).await;
                let given = match sent {
                    Ok(response) if is_recorded(&response) => read(response).await.map(Given::Answer),
                    Err(DurableError::Client(ClientError::AnswerLost(gave_up))) => {
                        gave_up.response.filter(is_recorded).map(|_| Given::AnswerLost)
                    }
                    _ => None,
                };
                let Some(given) = given else { continue };
                self.stage.count("recorded answers", 1);
                let recorded = Seen { amount, given };
                self.ledger.with(intent, |pages| pages.recorded = Some(recorded));
            }
        }
    }

    /// Every law. `open_calls` are those of living processes that have not returned.
    pub(super) fn judge(&self, unfinished: &Unfinished, open_calls: &[usize]) -> Result<(), Violation> {
        let pages = self.ledger.pages();
        for (intent, pages) in pages.iter().enumerate() {
            self.judge_effects(intent, pages)?;
            self.judge_sent(intent, pages)?;
            self.judge_answers(intent, pages)?;
            self.judge_calls(intent, pages)?;
            if self.plan.intents[intent].durable {
                self.judge_journal(intent, pages, unfinished.get(&intent).copied())?;
            }
        }
        if let Some(intent) = open_calls.first() {
            let what = format!("intent {intent}: a call has not returned");
            return Err(Violation::new(EVERY_CALL_ENDS, what));
        }
        Ok(())
    }

    fn judge_effects(&self, intent: usize, pages: &Pages) -> Result<(), Violation> {
        // What is sent after the server has forgotten it happens again.
        if pages.charges.len() < 2 || self.sent_late(intent, pages).any(|(_, knew)| !knew) {
            return Ok(());
        }
        Err(Violation::new(ONE_EFFECT, format!("intent {intent} was charged {} times", pages.charges.len())))
    }

    fn judge_sent(&self, intent: usize, pages: &Pages) -> Result<(), Violation> {
        let Some((number, _)) = self.sent_late(intent, pages).find(|(_, knew)| *knew) else { return Ok(()) };
        let age = pages.sent[number].at - pages.sent[0].at;
        let what = format!("intent {intent}: request {} was sent {age:?} after the first", number + 1);
        Err(Violation::new(WITHIN_RETENTION, what))
    }

    /// The requests that were sent later than retention after the first, and whether the client could know.
    fn sent_late<'a>(
        &self,
        intent: usize,
        pages: &'a Pages,
    ) -> impl Iterator<Item = (usize, bool)> + use<'a> {
        let retention = Duration::from_millis(self.plan.settings.retention_ms);
        let durable = self.plan.intents[intent].durable;
        let first = pages.sent.first();
        pages.sent.iter().enumerate().filter_map(move |(number, sent)| {
            let first = first.filter(|first| sent.at - first.at > retention)?;
            // No client can notice a clock that is set back while it does not run. One without a journal has nothing
            // but the clock.
            let set_backs = match durable {
                true => sent.unnoticed_set_backs - first.unnoticed_set_backs,
                false => sent.set_backs - first.set_backs,
            };
            Some((number, set_backs == 0))
        })
    }

    fn judge_answers(&self, intent: usize, pages: &Pages) -> Result<(), Violation> {
        for seen in pages.seen.iter().chain(&pages.recorded) {
            if let Given::AnswerLost = seen.given
                && !pages.charges.iter().any(|(_, amount)| *amount == seen.amount)
            {
                let what = format!("intent {intent}: said to be done, and not charged");
                return Err(Violation::new(LOST_IS_DONE, what));
            }
            let Given::Answer(answer) = &seen.given else { continue };
            let same = |(amount, given): &(u64, Answer)| {
                let body = answer.not_kept || given.body == answer.body;
                *amount == seen.amount && given.status == answer.status && body
            };
            if !pages.finals.iter().any(same) {
                let Answer { status, body, .. } = answer;
                let what = format!("intent {intent}: {status} {body:?} was taken for the answer");
                return Err(Violation::new(TRUE_ANSWERS, what));
            }
        }
        Ok(())
    }

    fn judge_calls(&self, intent: usize, pages: &Pages) -> Result<(), Violation> {
        let stalls = self.plan.events.iter().any(|event| matches!(event.what, What::StallClient { .. }));
        let bound = Duration::from_millis(self.plan.settings.time_max_ms) + DISK_TAKES_MAX;
        if !stalls && pages.longest_call > bound {
            let what = format!("intent {intent}: a call took {:?}", pages.longest_call);
            return Err(Violation::new(EVERY_CALL_ENDS, what));
        }
        let planned = &self.plan.intents[intent];
        // No client knows of a second copy of its request; of several calls one may have charged what another did not send.
        let twice =
            planned.deliveries.iter().any(|delivery| matches!(delivery, Delivery::ArrivesTwice { .. }));
        if twice || planned.calls.len() > 1 || pages.charges.is_empty() {
            return Ok(());
        }
        match pages.seen.last().map(|seen| &seen.given) {
            Some(given @ (Given::NotSent | Given::Refused)) => {
                let what = format!("intent {intent}: charged, but its caller was given {given:?}");
                Err(Violation::new(NOT_SENT_IS_TRUE, what))
            }
            _ => Ok(()),
        }
    }

    fn judge_journal(
        &self,
        intent: usize,
        pages: &Pages,
        state: Option<JournalState>,
    ) -> Result<(), Violation> {
        let broken = |law, what: &str| Err(Violation::new(law, format!("intent {intent} {what}")));
        match state {
            Some(JournalState::Open) => broken(EVERY_INTENT_ENDS, "is still open"),
            Some(JournalState::Held) if !pages.may_hold && !self.clock_may_hold() => {
                broken(HELD_FOR_A_REASON, "is held although no answer said so")
            }
            Some(JournalState::Expired) if !self.is_too_old(pages) => {
                broken(NOT_TOO_EARLY, "was given up although the server remembers it")
            }
            None if !pages.sent.is_empty() && pages.recorded.is_none() => {
                broken(WRITTEN_DOWN, "was sent and is not in the journal")
            }
            _ => Ok(()),
        }
    }

    /// A clock that was wrong excuses caution.
    fn clock_may_hold(&self) -> bool {
        self.machine.forward_jumps() > 0 || self.machine.set_backs().0 > 0
    }

    /// Whether it is so old that nothing may be sent any more, as far as a client can know.
    fn is_too_old(&self, pages: &Pages) -> bool {
        let first_call = pages.first_call;
        let age = first_call.map_or(Duration::ZERO, |at| self.stage.elapsed().saturating_sub(at));
        let retention = Duration::from_millis(self.plan.settings.retention_ms);
        age >= retention - retention / 10 || self.clock_may_hold()
    }
}
