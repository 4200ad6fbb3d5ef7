//! What the simulated ends wrote down: runs of the work, effects, answers, decisions. The judge believes nothing else.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use semel::{Answer, Effect, GuardError, Verdict};
use tokio::sync::Notify;

use super::plan::End;
use crate::process::Process;
use crate::stage::Stage;

/// One run of the work.
#[derive(Clone)]
pub(super) struct Run {
    pub(super) key: usize,
    /// `None` where nothing guards it.
    pub(super) epoch: Option<u64>,
    pub(super) began: Duration,
    /// `None` while it runs, and for ever if its process was killed.
    pub(super) ended: Option<RunEnd>,
    pub(super) process: Process,
}

/// How one run ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum RunEnd {
    /// The work returned, and said this.
    Returned(End),
    /// The guard dropped it.
    Dropped,
}

/// An effect that happened.
#[derive(Clone)]
pub(super) struct Landed {
    pub(super) at: Duration,
    pub(super) guarded: bool,
    pub(super) body: String,
}

/// One call, as its caller saw it.
pub(super) struct Call {
    pub(super) key: usize,
    pub(super) other_request: bool,
    pub(super) process: Process,
    pub(super) began: Duration,
    pub(super) ended: Option<Duration>,
    /// `None` while it is under way, if the caller left, or if the process was killed.
    pub(super) given: Option<Given>,
    /// How long its work takes if it runs.
    pub(super) work: Duration,
}

/// What a caller was given.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Given {
    Answer {
        verdict: Verdict,
        body: Option<String>,
        replayed: bool,
        stored: bool,
        guarded: bool,
    },
    Mismatch,
    InFlight,
    Uncertain,
    KeyRefused,
    StoreDown,
    Draining,
    /// The work panicked or took too long.
    Broken,
    Other(String),
}

impl Given {
    pub(super) fn new(result: Result<Answer, GuardError>) -> Self {
        match result {
            Ok(answer) => Self::Answer {
                verdict: answer.verdict,
                body: answer.outcome.body_bytes().map(|body| shown(body)),
                replayed: answer.replayed,
                stored: answer.stored,
                guarded: answer.guarded,
            },
            Err(GuardError::Mismatch) => Self::Mismatch,
            Err(GuardError::InFlight { .. }) => Self::InFlight,
            Err(GuardError::Uncertain { .. }) => Self::Uncertain,
            Err(GuardError::KeyExpired | GuardError::KeyFromFuture) => Self::KeyRefused,
            Err(GuardError::StoreUnavailable(_)) => Self::StoreDown,
            Err(GuardError::Draining) => Self::Draining,
            Err(GuardError::Panicked { .. } | GuardError::TimedOut { .. }) => Self::Broken,
            Err(other) => Self::Other(other.to_string()),
        }
    }
}

/// The body without what makes a large one large.
fn shown(body: &[u8]) -> String {
    String::from_utf8_lossy(body).trim_end_matches('.').to_owned()
}

/// Everything that was written down.
#[derive(Default)]
pub(super) struct Pages {
    pub(super) runs: Vec<Run>,
    /// Per key, in the order in which they happened.
    pub(super) effects: BTreeMap<usize, Vec<Landed>>,
    pub(super) calls: Vec<Call>,
    /// "Not applied", said by a person or a lookup: when, and of which key.
    pub(super) ruled_out: Vec<(usize, Duration)>,
    /// Keys of which a claim was carried out after its asker had given up.
    pub(super) claimed_late: BTreeSet<usize>,
    /// Runs without a guard although the store had answered.
    pub(super) open_for_nothing: Vec<usize>,
    /// What a downstream that honours keys answered to each, and when it was first called.
    remembered: BTreeMap<String, (Duration, Result<String, String>)>,
    /// Calls downstream that are on the wire, per key.
    on_the_wire: BTreeMap<usize, u32>,
    /// Processes that ended after a drain that left nothing.
    pub(super) drained: Vec<Process>,
    /// A finish under an old epoch that changed the record.
    pub(super) not_fenced: Vec<String>,
    /// An answer that said "stored" and was not.
    pub(super) not_stored: Vec<(usize, Duration, Duration, String)>,
}

impl Pages {
    /// Whether a process ended with work under way.
    pub(super) fn was_killed(&self, process: &Process) -> bool {
        process.is_dead() && !self.drained.iter().any(|drained| drained.is(process))
    }
}

/// Clones share the pages.
#[derive(Clone)]
pub(super) struct Ledger {
    pages: Arc<Mutex<Pages>>,
    /// How long the downstream remembers a key; `None`: for ever.
    remembers: Option<Duration>,
    stage: Stage,
    ended: Arc<Notify>,
}

impl Ledger {
    pub(super) fn new(stage: &Stage, remembers: Option<Duration>) -> Self {
        Self { pages: Arc::default(), remembers, stage: stage.clone(), ended: Arc::default() }
    }

    pub(super) fn pages(&self) -> MutexGuard<'_, Pages> {
        self.pages.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn run_begins(&self, key: usize, epoch: Option<u64>, process: &Process) -> usize {
        match epoch {
            Some(epoch) => self.stage.trace(format_args!("key {key}: the work begins under epoch {epoch}")),
            None => self.stage.trace(format_args!("key {key}: the work begins unguarded")),
        }
        self.stage.count(if epoch.is_some() { "runs" } else { "unguarded runs" }, 1);
        let mut pages = self.pages();
        let (began, process) = (self.stage.elapsed(), process.clone());
        pages.runs.push(Run { key, epoch, began, ended: None, process });
        pages.runs.len() - 1
    }

    pub(super) fn run_ends(&self, run: usize, ended: RunEnd) {
        let mut pages = self.pages();
        let run = &mut pages.runs[run];
        run.ended = Some(ended);
        self.stage.trace(format_args!("key {}: the work ends: {ended:?}", run.key));
        if ended == RunEnd::Dropped {
            self.stage.count("works dropped", 1);
        }
    }

    /// A call downstream leaves.
    pub(super) fn sent(&self, key: usize) {
        *self.pages().on_the_wire.entry(key).or_default() += 1;
    }

    /// A call downstream arrives. A downstream that honours keys gives the same answer to the same key; an opaque one
    /// does it again.
    pub(super) fn arrives(&self, call: &Downstream) -> Result<String, String> {
        let mut pages = self.pages();
        if let Some(count) = pages.on_the_wire.get_mut(&call.key) {
            *count = count.saturating_sub(1);
        }
        let now = self.stage.elapsed();
        let is_remembered = |first: &Duration| self.remembers.is_none_or(|span| now < *first + span);
        if call.effect == Effect::Keyed
            && let Some((_, answer)) =
                pages.remembered.get(&call.name).filter(|(first, _)| is_remembered(first))
        {
            self.stage.trace(format_args!("key {}: the downstream knows this call already", call.key));
            self.stage.count("downstream duplicates", 1);
            return answer.clone();
        }
        let answer = if call.refuses {
            self.stage.trace(format_args!("key {}: the downstream refuses", call.key));
            Err(format!("key {} refused", call.key))
        } else {
            let effects = pages.effects.entry(call.key).or_default();
            let body = format!("key {} effect {}", call.key, effects.len() + 1);
            self.stage.trace(format_args!("{body} happens"));
            self.stage.count("effects", 1);
            effects.push(Landed { at: self.stage.elapsed(), guarded: call.guarded, body: body.clone() });
            Ok(body)
        };
        let known = pages.remembered.insert(call.name.clone(), (now, answer.clone())).is_some();
        if known && call.effect == Effect::Keyed {
            self.stage.trace(format_args!("key {}: the downstream had forgotten the call", call.key));
            self.stage.count("keys forgotten", 1);
        }
        answer
    }

    /// The last effect of a key.
    pub(super) fn effect_of(&self, key: usize) -> Option<String> {
        self.pages().effects.get(&key).and_then(|effects| effects.last()).map(|landed| landed.body.clone())
    }

    /// Whether somebody may still have the effect: works that run, calls on the wire.
    pub(super) fn may_still_happen(&self, key: usize) -> bool {
        let pages = self.pages();
        let runs = |run: &Run| run.key == key && run.ended.is_none() && !run.process.is_dead();
        pages.runs.iter().any(runs) || pages.on_the_wire.get(&key).is_some_and(|count| *count > 0)
    }

    pub(super) fn rules_out(&self, key: usize) {
        let at = self.stage.elapsed();
        self.pages().ruled_out.push((key, at));
    }

    pub(super) fn call_begins(
        &self,
        key: usize,
        other_request: bool,
        process: &Process,
        work: Duration,
    ) -> usize {
        let mut pages = self.pages();
        let (began, process) = (self.stage.elapsed(), process.clone());
        pages.calls.push(Call { key, other_request, process, began, ended: None, given: None, work });
        pages.calls.len() - 1
    }

    /// `None`: the caller left.
    pub(super) fn call_ends(&self, call: usize, given: Option<Given>) {
        match &given {
            Some(Given::Answer { replayed: true, .. }) => self.stage.count("replays", 1),
            Some(Given::Mismatch) => self.stage.count("mismatches", 1),
            Some(Given::InFlight) => self.stage.count("in flight", 1),
            Some(Given::Uncertain) => self.stage.count("uncertain answers", 1),
            Some(Given::KeyRefused) => self.stage.count("keys refused", 1),
            Some(Given::StoreDown) => self.stage.count("store down", 1),
            None => self.stage.count("callers that left", 1),
            _ => {}
        }
        match &given {
            Some(given) => self.stage.trace(format_args!("call {call}: {given:?}")),
            None => self.stage.trace(format_args!("call {call}: the caller leaves")),
        }
        let mut pages = self.pages();
        pages.calls[call].ended = Some(self.stage.elapsed());
        pages.calls[call].given = given;
        drop(pages);
        self.ended.notify_waiters();
    }

    /// Waits until every call of a living process has returned and all its work has ended; `false` if that takes longer than `limit`.
    pub(super) async fn all_returned(&self, limit: Duration) -> bool {
        let all = async {
            loop {
                let ended = self.ended.notified();
                let open = |call: &Call| call.ended.is_none() && !call.process.is_dead();
                let runs = |run: &Run| run.ended.is_none() && !run.process.is_dead();
                let over = {
                    let pages = self.pages();
                    !pages.calls.iter().any(open) && !pages.runs.iter().any(runs)
                };
                if over {
                    return;
                }
                // A process that ends meanwhile takes its calls with it.
                let _ = tokio::time::timeout(Duration::from_secs(1), ended).await;
            }
        };
        tokio::time::timeout(limit, all).await.is_ok()
    }
}

/// A call to the downstream.
pub(super) struct Downstream {
    pub(super) key: usize,
    pub(super) effect: Effect,
    /// The key it carries.
    pub(super) name: String,
    pub(super) refuses: bool,
    pub(super) guarded: bool,
}
