//! Context of one law on one store: its own tenant, and checks that name the law when they fail.

use std::fmt::{Debug, Display};
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::Instant;

use super::Harness;
use crate::intent::fingerprint::Fingerprint;
use crate::intent::guard_expiry::KeyWindow;
use crate::intent::identity::{Intent, Operation, Owner};
use crate::intent::key::Key;
use crate::intent::outcome::{Outcome, Verdict};
use crate::intent::policy::{Effect, Retention, StoreTime};
use crate::intent::scope::Scope;
use crate::intent::state::{Ruling, State};
use crate::store::{
    Claim, Claimed, Decide, Decided, ErrorKind, Existing, Fate, Filter, Finish, Finished, Page, Record,
    Renewed, Store, StoreError, Ticket,
};

/// A lease longer than any law runs: its owner is alive, however slow the machine.
pub(super) const LONG_MS: u64 = 600_000;
/// A lease or retention that is meant to expire.
pub(super) const SHORT_MS: u64 = 40;
/// The recipe of all fingerprints, unless a law is about another one.
pub(super) const RECIPE: u64 = 1;
/// How long a store may answer that a record is locked.
const LOCKED_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a sweep may lock expired records. Much shorter than until another law's sweep, which would hide a missing
/// expiry.
const SWEEP_TIMEOUT: Duration = Duration::from_secs(5);
/// Pause between retries.
const RETRY_PAUSE: Duration = Duration::from_millis(5);

/// One law on one store.
pub(super) struct Trial<S> {
    law: &'static str,
    tenant: String,
    pub(super) store: Arc<S>,
}

impl<S> Clone for Trial<S> {
    fn clone(&self) -> Self {
        Self { law: self.law, tenant: self.tenant.clone(), store: self.store.clone() }
    }
}

impl<S: Store> Trial<S> {
    pub(super) async fn of(law: &'static str, harness: &impl Harness<Store = S>) -> Self {
        let store = Arc::new(harness.store().await);
        let tenant = format!("law-{}", Key::random().as_str());
        Self { law, tenant, store }
    }

    /// The law is broken.
    pub(super) fn fail(&self, what: impl Display) -> ! {
        panic!("the law {} is broken: {what}", self.law)
    }

    pub(super) fn check(&self, holds: bool, what: impl Display) {
        if !holds {
            self.fail(what);
        }
    }

    pub(super) fn equal<T: PartialEq + Debug>(&self, found: T, wanted: T, what: impl Display) {
        if found != wanted {
            self.fail(format_args!("{what}: {found:?}, not {wanted:?}"));
        }
    }

    /// The store's answer; an unexpected error breaks the law.
    pub(super) fn answered<T>(&self, answer: Result<T, StoreError>) -> T {
        answer.unwrap_or_else(|error| self.fail(format_args!("the store failed: {error}")))
    }

    pub(super) fn tenant(&self) -> &str {
        &self.tenant
    }

    pub(super) fn intent(&self, operation: &str, key: &str) -> Intent {
        intent_of(&self.tenant, operation, key)
    }

    /// An opaque claim by a new owner, with a lease that does not end.
    pub(super) fn claim(&self, key: &str) -> Claim {
        self.claim_of(self.intent("conformance", key))
    }

    pub(super) fn claim_of(&self, intent: Intent) -> Claim {
        Claim {
            intent,
            fingerprint: fingerprint(1),
            owner: Owner::random(),
            effect: Effect::Opaque,
            lease_ms: LONG_MS,
            window: KeyWindow::ENDLESS,
        }
    }

    pub(super) async fn ask(&self, claim: &Claim) -> Claimed {
        self.answered(self.store.claim(claim.clone()).await)
    }

    /// The claim has to be granted. Retries while an open transaction has locked the key.
    pub(super) async fn run(&self, claim: &Claim) -> Ticket {
        let began = Instant::now();
        loop {
            match self.ask(claim).await {
                Claimed::Run(ticket) => return ticket,
                Claimed::InFlight(met) if began.elapsed() < locked_for(&met) => {}
                other => self.fail(format_args!("the claim was answered {}, not granted", name(&other))),
            }
            tokio::time::sleep(RETRY_PAUSE).await;
        }
    }

    /// The answer to a change. Retries while it is "busy, and not applied": the record is locked.
    async fn changed<T, F>(&self, change: impl Fn() -> F) -> T
    where
        F: Future<Output = Result<T, StoreError>>,
    {
        let began = Instant::now();
        loop {
            match change().await {
                Err(error) if is_busy(&error) && began.elapsed() < LOCKED_TIMEOUT => {}
                answer => return self.answered(answer),
            }
            tokio::time::sleep(RETRY_PAUSE).await;
        }
    }

    /// The claim has to meet a record: `in flight`, `replay` or `uncertain`.
    pub(super) async fn meet(&self, claim: &Claim, wanted: &str) -> Existing {
        let answer = self.ask(claim).await;
        let found = name(&answer);
        match answer {
            Claimed::InFlight(it) | Claimed::Replay(it) | Claimed::Uncertain(it) if found == wanted => it,
            _ => self.fail(format_args!("the claim was answered {found}, not {wanted}")),
        }
    }

    pub(super) async fn mismatch(&self, claim: &Claim) {
        let answer = self.ask(claim).await;
        self.equal(name(&answer), "mismatch", "another request under the same key");
    }

    pub(super) async fn renew(&self, ticket: Ticket, lease_ms: u64) -> Renewed {
        self.changed(|| self.store.renew(ticket, lease_ms)).await
    }

    pub(super) async fn finish(&self, ticket: Ticket, finish: Finish) -> Finished {
        self.changed(|| self.store.finish(ticket, finish.clone())).await
    }

    /// Claims and finishes; the outcome has to be recorded.
    pub(super) async fn done(&self, claim: &Claim, finish: Finish) -> Ticket {
        let ticket = self.run(claim).await;
        self.equal(self.finish(ticket, finish).await, Finished::Recorded, "the owner's outcome");
        ticket
    }

    /// The record, which has to exist.
    pub(super) async fn record(&self, claim: &Claim) -> Record {
        let record = self.answered(self.store.get(claim.intent.id()).await);
        record.unwrap_or_else(|| self.fail("the record is gone"))
    }

    pub(super) async fn state(&self, claim: &Claim) -> State {
        let record = self.record(claim).await;
        let now = self.now().await;
        record.state_at(now).unwrap_or_else(|| self.fail("an expired record is shown"))
    }

    /// The record has not changed.
    pub(super) async fn unchanged(&self, claim: &Claim, before: &Record, by: &str) {
        let after = self.record(claim).await;
        let same = after.intent == before.intent
            && after.head == before.head
            && after.attempts == before.attempts
            && after.created_at == before.created_at
            && after.changed_at == before.changed_at
            && after.outcome == before.outcome
            && after.decision == before.decision;
        self.check(same, format_args!("{by} changed the record from {before:?} to {after:?}"));
    }

    pub(super) async fn decide(&self, claim: &Claim, decide: Decide) -> Decided {
        self.changed(|| self.store.decide(claim.intent.id(), decide.clone())).await
    }

    /// Decides about the record as it is now; the decision has to be accepted.
    pub(super) async fn ruled(&self, claim: &Claim, ruling: Ruling, outcome: Option<Outcome>) {
        let seen = self.record(claim).await.head.epoch;
        let decide = Decide { outcome, ..decision(seen, ruling) };
        match self.decide(claim, decide).await {
            Decided::Recorded => {}
            other => self.fail(format_args!("the decision {ruling:?} was answered {other:?}")),
        }
    }

    /// A page of this law's tenant.
    pub(super) async fn page(&self, filter: Filter) -> Page {
        let tenant = filter.tenant.or_else(|| Some(self.tenant.clone()));
        let limit = if filter.limit == 0 { 100 } else { filter.limit };
        self.answered(self.store.list(Filter { tenant, limit, ..filter }).await)
    }

    /// The keys on a page of this law's tenant, sorted.
    pub(super) async fn keys(&self, filter: Filter) -> Vec<String> {
        let page = self.page(filter).await;
        let mut keys: Vec<_> = page.records.iter().map(|it| it.intent.key().as_str().to_owned()).collect();
        keys.sort_unstable();
        keys
    }

    pub(super) async fn sweep(&self, limit: usize) -> usize {
        self.changed(|| self.store.sweep(limit)).await
    }

    pub(super) async fn now(&self) -> StoreTime {
        self.answered(self.store.now().await)
    }

    /// Lets this many ms pass by the store's clock.
    pub(super) async fn wait(&self, harness: &impl Harness<Store = S>, ms: u64) {
        let until = self.now().await.plus_ms(ms);
        harness.pass(&self.store, until).await;
    }

    /// Claims with a short lease and lets it expire.
    pub(super) async fn lapsed(&self, harness: &impl Harness<Store = S>, claim: &Claim) -> Ticket {
        let ticket = self.run(&Claim { lease_ms: SHORT_MS, ..claim.clone() }).await;
        harness.pass(&self.store, ticket.lease_until).await;
        ticket
    }

    /// Finishes with a short retention and lets it expire.
    pub(super) async fn expired(&self, harness: &impl Harness<Store = S>, claim: &Claim) -> Ticket {
        let finish = Finish { retention: Retention::Ms(SHORT_MS), ..completed("forgotten") };
        let ticket = self.done(claim, finish).await;
        self.wait(harness, SHORT_MS).await;
        ticket
    }

    /// Reopens the same data; `None` if the store is not durable.
    pub(super) async fn reopened(self, harness: &impl Harness<Store = S>) -> Option<Self> {
        let durable = self.store.capabilities().durable;
        let Self { law, tenant, store } = self;
        let store = Arc::into_inner(store).expect("no other reference to the store");
        match harness.reopen(store).await {
            Some(store) => Some(Self { law, tenant, store: Arc::new(store) }),
            None if durable => {
                panic!("the law {law} cannot be tested: the harness must reopen a durable store")
            }
            None => None,
        }
    }

    /// Runs the same in many tasks at once and returns their results.
    pub(super) async fn together<T, F>(&self, tasks: usize, task: impl Fn(Self, usize) -> F) -> Vec<T>
    where
        T: Send + 'static,
        F: Future<Output = T> + Send + 'static,
    {
        // All wait at the barrier first: else the first task ends before the last one is spawned.
        let barrier = Arc::new(tokio::sync::Barrier::new(tasks));
        let mut set = JoinSet::new();
        for number in 0..tasks {
            let (barrier, work) = (barrier.clone(), task(self.clone(), number));
            set.spawn(async move {
                barrier.wait().await;
                work.await
            });
        }
        let mut results = Vec::with_capacity(tasks);
        while let Some(joined) = set.join_next().await {
            match joined {
                Ok(it) => results.push(it),
                Err(error) => match error.try_into_panic() {
                    Ok(panic) => std::panic::resume_unwind(panic),
                    Err(_) => self.fail("a task was cancelled"),
                },
            }
        }
        results
    }
}

/// How long a key may be in flight because of an open transaction, not because of a claim. Without an owner: for
/// example the same claim, sent a moment before. Under a record with an expiry: a sweep.
fn locked_for(met: &Existing) -> Duration {
    let head = &met.record.head;
    match (head.owner == Owner::NONE, head.expires_at) {
        (true, _) => LOCKED_TIMEOUT,
        (false, Some(_)) => SWEEP_TIMEOUT,
        (false, None) => Duration::ZERO,
    }
}

fn is_busy(error: &StoreError) -> bool {
    error.kind() == ErrorKind::Busy && error.fate() == Fate::NotApplied
}

pub(super) fn name(claimed: &Claimed) -> &'static str {
    match claimed {
        Claimed::Run(_) => "run",
        Claimed::Mismatch => "mismatch",
        Claimed::InFlight(_) => "in flight",
        Claimed::Replay(_) => "replay",
        Claimed::Uncertain(_) => "uncertain",
    }
}

pub(super) fn intent_of(tenant: &str, operation: &str, key: &str) -> Intent {
    let scope = Scope::tenant(tenant).expect("a valid tenant");
    let operation = Operation::new(operation).expect("a valid operation");
    Intent::new(scope, operation, Key::new(key).expect("a valid key"))
}

/// The fingerprint of the `number`th request.
pub(super) fn fingerprint(number: u8) -> Fingerprint {
    Fingerprint::from_parts([number; 32], RECIPE)
}

pub(super) fn completed(body: &'static str) -> Finish {
    finish(Verdict::Completed, Some(Outcome::new(200, body)))
}

pub(super) fn finish(verdict: Verdict, outcome: Option<Outcome>) -> Finish {
    Finish { verdict, outcome, retention: Retention::DAY }
}

pub(super) fn decision(seen: crate::Epoch, ruling: Ruling) -> Decide {
    Decide {
        seen,
        ruling,
        outcome: None,
        retention: Retention::DAY,
        by: "ops@example.com".to_owned(),
        why: "looked at the provider's ledger".to_owned(),
    }
}
