//! What must never happen, judged by the ledger.

use std::time::Duration;

use semel::store::{Filter, PAGE_RECORDS_MAX, Store};
use semel::{Effect, State, Verdict};

use super::clock::StoreClock;
use super::ledger::{Call, Given, Pages, RunEnd};
use super::network::Shared;
use super::plan::{End, Plan};
use crate::world::Violation;

struct Judge<'a> {
    plan: &'a Plan,
    clock: &'a StoreClock,
    pages: &'a Pages,
}

type Verdicts = Result<(), Violation>;

/// Judges everything that was written down.
pub(super) async fn judge(plan: &Plan, shared: &Shared, clock: &StoreClock) -> Verdicts {
    let filter = Filter { limit: PAGE_RECORDS_MAX, ..Filter::default() };
    let page = shared.store.list(filter).await;
    let page = page.map_err(|error| Violation::new("the store can be read", error.to_string()))?;
    let pages = shared.ledger.pages();
    let judge = Judge { plan, clock, pages: &pages };
    judge.effects()?;
    judge.runs()?;
    judge.dropped()?;
    judge.unguarded()?;
    judge.fence()?;
    judge.answers()?;
    judge.stored()?;
    judge.replays()?;
    for record in &page.records {
        let Some(key) = shared.key_of(&record.intent.id()) else { continue };
        let state = record.state_at(page.now);
        let happened = pages.effects.get(&key).is_some_and(|effects| !effects.is_empty());
        if state == Some(State::Completed) && !happened {
            return broken(
                "completed means it happened",
                format!("key {key} is completed and never happened"),
            );
        }
    }
    Ok(())
}

fn broken(law: &'static str, what: String) -> Verdicts {
    Err(Violation::new(law, what))
}

impl Judge<'_> {
    /// Whether an outcome recorded in this span may have expired in it.
    fn may_expire(&self, from: Duration, to: Duration) -> bool {
        self.clock.rise_ms(from, to) + 1 >= self.plan.settings.retention_ms
    }

    fn effects(&self) -> Verdicts {
        for (key, effects) in &self.pages.effects {
            let keyed = self.plan.settings.effect(*key) == Effect::Keyed;
            if keyed && self.plan.settings.safe_for_ms.is_none() {
                if effects.len() > 1 {
                    return broken(
                        "a keyed effect counts once",
                        format!("key {key} had {} effects", effects.len()),
                    );
                }
                continue;
            }
            for pair in effects.windows(2) {
                let (first, second) = (&pair[0], &pair[1]);
                // An open policy accepts this, and says so in the answer.
                if !(first.guarded && second.guarded) {
                    continue;
                }
                if !self.may_expire(first.at, second.at) {
                    return broken(
                        if keyed {
                            "a keyed effect counts once where its key is forgotten"
                        } else {
                            "an opaque effect happens at most once"
                        },
                        format!("{} at {:?}, {} at {:?}", first.body, first.at, second.body, second.at),
                    );
                }
                if self.plan.settings.time_ordered && self.plan.back_ms() == 0 {
                    return broken(
                        "a time-ordered key is refused after retention",
                        format!("{} at {:?}, {} at {:?}", first.body, first.at, second.body, second.at),
                    );
                }
            }
        }
        Ok(())
    }

    /// The table of failure windows: opaque work runs again only where an earlier run is known to have done nothing.
    fn runs(&self) -> Verdicts {
        for key in
            (0..self.plan.settings.keys).filter(|key| self.plan.settings.effect(*key) == Effect::Opaque)
        {
            let runs: Vec<_> =
                self.pages.runs.iter().filter(|run| run.key == key && run.epoch.is_some()).collect();
            for pair in runs.windows(2) {
                let (first, second) = (pair[0], pair[1]);
                let span = first.began..=second.began;
                let ruled_out =
                    self.pages.ruled_out.iter().any(|(ruled, at)| *ruled == key && span.contains(at));
                let failed = first.ended == Some(RunEnd::Returned(End::NotApplied));
                if !(failed || ruled_out || self.may_expire(first.began, second.began)) {
                    return broken(
                        "opaque work runs again only if it did nothing",
                        format!(
                            "key {key} ran at {:?} ({:?}) and again at {:?}",
                            first.began, first.ended, second.began
                        ),
                    );
                }
            }
        }
        Ok(())
    }

    /// Work that lost its claim runs to its end: what it does cannot be taken back. It is dropped where a lookup decides about
    /// it, and after the operation's own timeout.
    fn dropped(&self) -> Verdicts {
        let settings = &self.plan.settings;
        let may_drop = |key: usize| {
            settings.timeout_ms.is_some()
                || (settings.lookup.is_some() && settings.effect(key) == Effect::Opaque)
        };
        let dropped =
            self.pages.runs.iter().find(|run| {
                run.ended == Some(RunEnd::Dropped) && !run.process.is_dead() && !may_drop(run.key)
            });
        match dropped {
            Some(run) => broken(
                "work is dropped only where a lookup decides about it",
                format!("key {} began at {:?} and was dropped", run.key, run.began),
            ),
            None => Ok(()),
        }
    }

    fn unguarded(&self) -> Verdicts {
        match self.pages.open_for_nothing.first() {
            Some(key) => broken(
                "work runs unguarded only where that is allowed and the store did not answer",
                format!("key {key}"),
            ),
            None => Ok(()),
        }
    }

    fn fence(&self) -> Verdicts {
        match self.pages.not_fenced.first() {
            Some(what) => broken("a finish under an old epoch changes nothing", what.clone()),
            None => Ok(()),
        }
    }

    fn answers(&self) -> Verdicts {
        for (number, call) in self.pages.calls.iter().enumerate() {
            let Some(Given::Answer { verdict, body, .. }) = &call.given else { continue };
            let key = call.key;
            let is_true = match (verdict, body) {
                (Verdict::Completed, Some(body)) => {
                    let effects = self.pages.effects.get(&key);
                    effects.is_some_and(|effects| effects.iter().any(|it| it.body == *body))
                }
                (Verdict::Completed, None) => self.pages.effects.contains_key(&key),
                (Verdict::FailedFinal, Some(body)) => body.starts_with(&format!("key {key} refused")),
                (Verdict::FailedFinal | Verdict::FailedRetryable | Verdict::Uncertain, _) => true,
            };
            if !is_true {
                return broken(
                    "a caller is given what happened",
                    format!("call {number}: {verdict:?} {body:?}"),
                );
            }
        }
        Ok(())
    }

    fn stored(&self) -> Verdicts {
        for (_, began, at, what) in &self.pages.not_stored {
            if !self.may_expire(*began, *at) {
                return broken("stored means stored", what.clone());
            }
        }
        Ok(())
    }

    /// An outcome that a caller was given as stored is what every later caller gets, until it expires.
    fn replays(&self) -> Verdicts {
        for (number, call) in self.pages.calls.iter().enumerate() {
            let Some(Given::Answer { verdict, stored: true, guarded: true, replayed: false, .. }) =
                &call.given
            else {
                continue;
            };
            if !matches!(verdict, Verdict::Completed | Verdict::FailedFinal) {
                continue;
            }
            let Some(ended) = call.ended else { continue };
            for (other_number, other) in self.pages.calls.iter().enumerate() {
                let later = other.key == call.key && other.began > ended;
                let (Some(given), Some(end)) = (&other.given, other.ended) else { continue };
                if later && !self.may_expire(call.began, end) && !self.follows(call, other, given) {
                    return broken(
                        "a stored outcome is given again",
                        format!("call {number}: {:?}, then call {other_number}: {given:?}", call.given),
                    );
                }
            }
        }
        Ok(())
    }

    fn follows(&self, call: &Call, other: &Call, given: &Given) -> bool {
        match given {
            Given::StoreDown | Given::Draining | Given::KeyRefused => true,
            Given::Answer { guarded: false, .. } | Given::Broken => self.plan.settings.open,
            Given::Mismatch => call.other_request != other.other_request,
            Given::Answer { verdict, body, replayed: true, .. } => {
                let Some(Given::Answer { verdict: first, body: before, .. }) = &call.given else {
                    return true;
                };
                call.other_request == other.other_request
                    && verdict == first
                    && (body.is_none() || before.is_none() || body == before)
            }
            _ => false,
        }
    }
}
