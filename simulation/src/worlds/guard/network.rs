//! The network between the processes and the store: requests and answers that are lost, late, refused, hidden.

use std::collections::{BTreeMap, HashSet};
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use semel::store::memory::MemoryStore;
use semel::store::{
    Capabilities, Claim, Claimed, Decide, Decided, ErrorKind, Fate, Filter, Finish, Finished, Page, Record,
    Renewed, Store, StoreError, Ticket,
};
use semel::{IntentId, Outcome, Owner, StoreTime};
use tokio::sync::oneshot;

use super::hidden;
use super::ledger::Ledger;
use super::plan::{Fault, Plan, Request};
use crate::stage::Stage;

/// What all processes share.
pub(super) struct Shared {
    pub(super) store: MemoryStore,
    pub(super) ledger: Ledger,
    pub(super) stage: Stage,
    latency: Duration,
    outcome_bytes_max: Option<usize>,
    state: Mutex<State>,
    outages: Arc<Mutex<Outages>>,
}

/// Outages under way, and how many of them make requests hang.
#[derive(Default)]
struct Outages {
    down: u32,
    hanging: u32,
}

impl Outages {
    fn fault(&self) -> Option<Fault> {
        (self.down > 0).then_some(if self.hanging > 0 { Fault::Hangs } else { Fault::Refused })
    }
}

/// Something cannot be reached for a while.
fn down(outages: &Arc<Mutex<Outages>>, ms: u64, hangs: bool, over: impl FnOnce() + Send + 'static) {
    let outages = Arc::clone(outages);
    let change = move |by: i32| {
        let mut outages = outages.lock().unwrap_or_else(PoisonError::into_inner);
        outages.down = outages.down.saturating_add_signed(by);
        outages.hanging = outages.hanging.saturating_add_signed(if hangs { by } else { 0 });
    };
    change(1);
    tokio::spawn(async move {
        tokio::time::sleep(Duration::from_millis(ms)).await;
        change(-1);
        over();
    });
}

#[derive(Default)]
struct State {
    faults: BTreeMap<(Request, u32), Fault>,
    numbers: BTreeMap<Request, u32>,
    healed: bool,
    keys: BTreeMap<IntentId, usize>,
    /// Records that cannot be seen yet, with what is seen instead.
    hidden: BTreeMap<IntentId, Option<Record>>,
}

impl Shared {
    pub(super) fn new(plan: &Plan, store: MemoryStore, ledger: Ledger, stage: &Stage) -> Arc<Self> {
        let faults = plan.faults.iter().map(|it| ((it.request, it.number), it.fault)).collect();
        Arc::new(Self {
            store,
            ledger,
            stage: stage.clone(),
            latency: Duration::from_millis(plan.settings.latency_ms),
            outcome_bytes_max: plan.settings.outcome_bytes_max,
            state: Mutex::new(State { faults, ..State::default() }),
            outages: Arc::default(),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Says which key an intent belongs to.
    pub(super) fn knows(&self, id: IntentId, key: usize) {
        self.state().keys.insert(id, key);
    }

    pub(super) fn key_of(&self, id: &IntentId) -> Option<usize> {
        self.state().keys.get(id).copied()
    }

    /// The store cannot be reached for a while.
    pub(super) fn goes_down(&self, ms: u64, hangs: bool) {
        let stage = self.stage.clone();
        down(&self.outages, ms, hangs, move || stage.trace("the store is back"));
    }

    /// From now on nothing goes wrong any more.
    pub(super) fn heal(&self) {
        self.state().healed = true;
    }

    pub(super) fn is_hidden(&self, id: &IntentId) -> bool {
        self.state().hidden.contains_key(id)
    }

    /// What goes wrong with the next request of this kind.
    fn next(&self, request: Request, cut: &Mutex<Outages>) -> Option<Fault> {
        let mut state = self.state();
        let number = state.numbers.entry(request).or_default();
        let this = *number;
        *number += 1;
        if state.healed {
            return None;
        }
        let outage = self.outages.lock().unwrap_or_else(PoisonError::into_inner).fault();
        let cut = cut.lock().unwrap_or_else(PoisonError::into_inner).fault();
        outage.or(cut).or_else(|| state.faults.get(&(request, this)).copied())
    }
}

/// One process's way to the store.
#[derive(Clone)]
pub(super) struct Network {
    pub(super) shared: Arc<Shared>,
    /// Its name in the trace.
    pub(super) process: usize,
    cut: Arc<Mutex<Outages>>,
    /// Claims of this process that were not answered: where nothing is known, work may run unguarded.
    unanswered: Arc<Mutex<HashSet<(IntentId, Owner)>>>,
}

impl Network {
    pub(super) fn new(shared: &Arc<Shared>, process: usize) -> Self {
        Self { shared: Arc::clone(shared), process, cut: Arc::default(), unanswered: Arc::default() }
    }

    /// The store cannot be reached from here for a while.
    pub(super) fn cut(&self, ms: u64, hangs: bool) {
        let (stage, process) = (self.shared.stage.clone(), self.process);
        down(&self.cut, ms, hangs, move || {
            stage.trace(format_args!("process {process} reaches the store again"))
        });
    }

    fn unanswered(&self) -> MutexGuard<'_, HashSet<(IntentId, Owner)>> {
        self.unanswered.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a claim of this intent was not answered.
    pub(super) fn is_unanswered(&self, id: &IntentId) -> bool {
        self.unanswered().iter().any(|(unanswered, _)| unanswered == id)
    }

    fn trace(&self, request: Request, id: Option<&IntentId>, what: impl std::fmt::Display) {
        let key = id.and_then(|id| self.shared.key_of(id));
        let of = key.map_or(String::new(), |key| format!(" of key {key}"));
        self.shared.stage.trace(format_args!("process {}: {request:?}{of}: {what}", self.process));
    }

    fn check_size(
        &self,
        request: Request,
        id: &IntentId,
        outcome: Option<&Outcome>,
    ) -> Result<(), StoreError> {
        let bytes = outcome.map_or(0, Outcome::encoded_len);
        let Some(max) = self.shared.outcome_bytes_max.filter(|max| bytes > *max) else { return Ok(()) };
        self.trace(request, Some(id), "too large");
        self.shared.stage.count("outcomes too large", 1);
        let message = format!("the outcome has {bytes} bytes; at most {max} are taken");
        Err(StoreError::new(ErrorKind::TooLarge, Fate::NotApplied, message))
    }

    /// Carries a request out, or not.
    async fn play<T: Send + 'static>(
        &self,
        request: Request,
        id: Option<IntentId>,
        carry_out: impl Future<Output = Result<T, StoreError>> + Send + 'static,
    ) -> Result<T, StoreError> {
        let shared = &self.shared;
        let fault = shared.next(request, &self.cut);
        if let Some(fault) = fault {
            self.trace(request, id.as_ref(), format_args!("{fault:?}"));
            shared.stage.count(named(fault), 1);
        }
        let error = |fate| {
            Err(StoreError::new(ErrorKind::Unavailable, fate, format!("{request:?} failed on purpose")))
        };
        let latency = shared.latency;
        match fault {
            None => {
                pause(latency).await;
                let result = carry_out.await;
                pause(latency).await;
                result
            }
            Some(Fault::Refused) => error(Fate::NotApplied),
            Some(Fault::Lost) => error(Fate::InDoubt),
            Some(Fault::AnswerLost) => {
                carry_out.await?;
                error(Fate::InDoubt)
            }
            Some(Fault::Hangs) => std::future::pending().await,
            Some(Fault::AnswerHangs) => {
                carry_out.await?;
                std::future::pending().await
            }
            Some(Fault::Late { ms }) => {
                let (answer, answered) = oneshot::channel();
                let this = self.clone();
                tokio::spawn(async move {
                    tokio::time::sleep(Duration::from_millis(ms)).await;
                    let result = carry_out.await;
                    this.trace(request, id.as_ref(), "carried out late");
                    if answer.send(result).is_err() && request == Request::Claim {
                        let key = id.and_then(|id| this.shared.key_of(&id));
                        this.shared.ledger.pages().claimed_late.extend(key);
                    }
                });
                answered.await.unwrap_or_else(|_| error(Fate::InDoubt))
            }
            Some(Fault::AnswerLate { ms } | Fault::Hidden { ms }) => {
                let result = carry_out.await;
                tokio::time::sleep(Duration::from_millis(ms)).await;
                result
            }
        }
    }
}

fn named(fault: Fault) -> &'static str {
    match fault {
        Fault::Refused => "requests refused",
        Fault::Lost => "requests lost",
        Fault::AnswerLost => "answers lost",
        Fault::Late { .. } => "requests late",
        Fault::AnswerLate { .. } => "answers late",
        Fault::Hangs => "requests hanging",
        Fault::AnswerHangs => "answers hanging",
        Fault::Hidden { .. } => "claims hidden",
    }
}

async fn pause(latency: Duration) {
    if !latency.is_zero() {
        tokio::time::sleep(latency).await;
    }
}

/// Waits while the record is locked by a claim that cannot be seen yet, as a row lock would.
async fn unlocked(shared: &Shared, id: &IntentId) {
    while shared.is_hidden(id) {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Carries a claim out. One that is hidden is applied now and seen later.
async fn claim(shared: Arc<Shared>, claim: Claim, hidden_ms: Option<u64>) -> Result<Claimed, StoreError> {
    let id = claim.intent.id();
    if shared.is_hidden(&id) {
        return Ok(hidden::in_flight(&claim, shared.store.now().await?));
    }
    let before = shared.store.get(id).await?;
    let claimed = shared.store.claim(claim).await?;
    if let (Some(ms), Claimed::Run(_)) = (hidden_ms, &claimed) {
        shared.state().hidden.insert(id, before);
        let shared = Arc::clone(&shared);
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(ms)).await;
            shared.state().hidden.remove(&id);
            let key = shared.key_of(&id).unwrap_or_default();
            shared.stage.trace(format_args!("key {key}: the hidden claim can be seen"));
        });
    }
    Ok(claimed)
}

impl Store for Network {
    fn capabilities(&self) -> Capabilities {
        self.shared.store.capabilities()
    }

    async fn now(&self) -> Result<StoreTime, StoreError> {
        let shared = Arc::clone(&self.shared);
        self.play(Request::Now, None, async move { shared.store.now().await }).await
    }

    async fn claim(&self, asked: Claim) -> Result<Claimed, StoreError> {
        let (shared, id, owner) = (Arc::clone(&self.shared), asked.intent.id(), asked.owner);
        self.unanswered().insert((id, owner));
        let number = self.shared.state().numbers.get(&Request::Claim).copied().unwrap_or_default();
        let fault = self.shared.state().faults.get(&(Request::Claim, number)).copied();
        let hidden_ms = match fault {
            Some(Fault::Hidden { ms }) => Some(ms),
            _ => None,
        };
        let carry_out = async move {
            let healed = shared.state().healed;
            claim(shared, asked, hidden_ms.filter(|_| !healed)).await
        };
        let claimed = self.play(Request::Claim, Some(id), carry_out).await?;
        self.unanswered().remove(&(id, owner));
        match &claimed {
            Claimed::Run(ticket) => {
                self.trace(Request::Claim, Some(&id), format_args!("run, epoch {}", ticket.epoch.0));
            }
            Claimed::InFlight(existing) => {
                let epoch = existing.record.head.epoch.0;
                self.trace(Request::Claim, Some(&id), format_args!("in flight, epoch {epoch}"));
            }
            Claimed::Replay(_) => self.trace(Request::Claim, Some(&id), "replay"),
            Claimed::Uncertain(_) => self.trace(Request::Claim, Some(&id), "uncertain"),
            _ => self.trace(Request::Claim, Some(&id), "mismatch"),
        }
        Ok(claimed)
    }

    async fn renew(&self, ticket: Ticket, lease_ms: u64) -> Result<Renewed, StoreError> {
        if self.shared.stage.has("leases are not renewed") {
            return Ok(Renewed::Until(ticket.lease_until));
        }
        let shared = Arc::clone(&self.shared);
        let carry_out = async move {
            unlocked(&shared, &ticket.id).await;
            shared.store.renew(ticket, lease_ms).await
        };
        let renewed = self.play(Request::Renew, Some(ticket.id), carry_out).await?;
        if renewed == Renewed::Stale {
            self.trace(Request::Renew, Some(&ticket.id), "stale");
            self.shared.stage.count("claims lost", 1);
        }
        self.shared.stage.count("renewals", 1);
        Ok(renewed)
    }

    async fn finish(&self, ticket: Ticket, finish: Finish) -> Result<Finished, StoreError> {
        let (shared, verdict) = (Arc::clone(&self.shared), finish.verdict);
        self.check_size(Request::Finish, &ticket.id, finish.outcome.as_ref())?;
        let silent = self.shared.stage.has("a finish is acknowledged before it is durable");
        let carry_out = async move {
            unlocked(&shared, &ticket.id).await;
            let before = shared.store.get(ticket.id).await?.map(|record| record.head);
            let finished = shared.store.finish(ticket, finish).await;
            let after = shared.store.get(ticket.id).await?.map(|record| record.head);
            if before != after && before.is_some_and(|head| head.epoch != ticket.epoch) {
                let key = shared.key_of(&ticket.id).unwrap_or_default();
                shared.ledger.pages().not_fenced.push(format!("key {key}: {before:?}, then {after:?}"));
            }
            finished
        };
        if silent && matches!(self.shared.next(Request::Finish, &self.cut), Some(Fault::Lost | Fault::Hangs))
        {
            return Ok(Finished::Recorded);
        }
        let finished = self.play(Request::Finish, Some(ticket.id), carry_out).await?;
        self.trace(Request::Finish, Some(&ticket.id), format_args!("{verdict:?} {finished:?}"));
        if finished == Finished::Stale {
            self.shared.stage.count("finishes fenced off", 1);
        }
        Ok(finished)
    }

    async fn get(&self, id: IntentId) -> Result<Option<Record>, StoreError> {
        let shared = Arc::clone(&self.shared);
        let carry_out = async move {
            let before = shared.state().hidden.get(&id).cloned();
            match before {
                Some(before) => Ok(before),
                None => shared.store.get(id).await,
            }
        };
        self.play(Request::Get, Some(id), carry_out).await
    }

    async fn list(&self, filter: Filter) -> Result<Page, StoreError> {
        let shared = Arc::clone(&self.shared);
        let carry_out = async move {
            let mut page = shared.store.list(filter).await?;
            page.records.retain(|record| !shared.is_hidden(&record.intent.id()));
            Ok(page)
        };
        self.play(Request::List, None, carry_out).await
    }

    async fn decide(&self, id: IntentId, decide: Decide) -> Result<Decided, StoreError> {
        let (shared, ruling) = (Arc::clone(&self.shared), decide.ruling);
        self.check_size(Request::Decide, &id, decide.outcome.as_ref())?;
        let carry_out = async move {
            unlocked(&shared, &id).await;
            let decided = shared.store.decide(id, decide).await?;
            if let (Decided::Recorded, Some(key)) = (&decided, shared.key_of(&id)) {
                shared.stage.count("decided by lookup", 1);
                if ruling == semel::intent::state::Ruling::NotApplied {
                    shared.ledger.rules_out(key);
                }
            }
            Ok(decided)
        };
        let decided = self.play(Request::Decide, Some(id), carry_out).await?;
        self.trace(Request::Decide, Some(&id), format_args!("{ruling:?} {decided:?}"));
        Ok(decided)
    }

    async fn sweep(&self, limit: usize) -> Result<usize, StoreError> {
        let shared = Arc::clone(&self.shared);
        let carry_out = async move {
            let swept = shared.store.sweep(limit).await?;
            if swept > 0 {
                shared.stage.trace(format_args!("{swept} records swept"));
                shared.stage.count("records swept", swept as u64);
            }
            Ok(swept)
        };
        self.play(Request::Sweep, None, carry_out).await
    }
}
