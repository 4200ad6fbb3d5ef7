//! The reconcile loop: resolves uncertain intents without waiting for a caller.

use std::pin::pin;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream;
use tokio::time::Instant;
use tracing::Instrument;

use super::SPREAD;
use super::backoff::LookupBackoff;
use super::report::{HeldIntent, Report};
use crate::backoff::{Backoff, spread};
use crate::guard::{Guarded, LookedUp, Unresolved};
use crate::intent::policy::{StoreTime, millis};
use crate::intent::state::State;
use crate::observe::{Phase, names};
use crate::store::{Existing, Filter, PAGE_RECORDS_MAX, Page, Record, Store};

/// Bounds of a [`Reconciler`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct ReconcileLimits {
    /// How often to run, give or take a half.
    pub every: Duration,
    /// Records read by one request to the store.
    pub page_records: usize,
    /// Records checked in one run.
    pub run_records_max: usize,
    /// Lookups called in one run.
    pub run_lookups_max: usize,
    /// Lookups in flight at once. How long each may take is the guard's
    /// [`lookup_timeout`](crate::guard::Limits::lookup_timeout).
    pub lookups_at_once: usize,
    /// First backoff of an intent whose lookup did not know; it doubles each time.
    pub pause_min: Duration,
    /// The longest backoff.
    pub pause_max: Duration,
    /// Intents whose backoff is kept in memory. Further ones are looked up in every pass.
    pub pauses_max: usize,
}

impl Default for ReconcileLimits {
    fn default() -> Self {
        Self {
            every: Duration::from_secs(10),
            page_records: 200,
            run_records_max: 10_000,
            run_lookups_max: 100,
            lookups_at_once: 4,
            pause_min: Duration::from_secs(30),
            pause_max: Duration::from_secs(60 * 60),
            pauses_max: 100_000,
        }
    }
}

/// Lists the uncertain intents of some operations and calls their lookups. An intent that happened is completed and
/// replayed; one not found after the settle delay is released; one still unknown stays held and is reported.
///
/// - The same code decides as for a caller's retry, so the same rules hold.
/// - Abandoned claims (expired ones of a protected effect) are looked up as well; a claimant is always faster.
/// - An intent whose owner runs in this process is left to it.
/// - Several of these may run, in any number of processes. Each reads an intent again just before its lookup, and
///   takes a page in random order, so that few lookups are called twice. An answer about a record that has changed
///   meanwhile is not recorded.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// use std::time::Duration;
/// use semel::{Found, Guard, Outcome, recover::Reconciler, store::{Record, memory::MemoryStore}};
/// # async fn charge_of(key: &str) -> Result<Option<String>, ()> { Ok(None) }
///
/// let guard = Guard::new(MemoryStore::new());
/// let payments = guard.operation("payment.create")?.lookup(
///     |record: Record| async move {
///         match charge_of(record.intent.key().as_str()).await {
///             Ok(Some(charge)) => Found::Applied(Outcome::new(200, charge)),
///             Ok(None) => Found::NotApplied,
///             Err(_) => Found::Unknown,
///         }
///     },
///     Duration::from_secs(10),
/// );
/// let mut reconciler = Reconciler::new().watch(&payments);
/// let report = reconciler.run_once().await;
/// assert_eq!((report.settled(), report.held), (0, 0));
/// // In a service: tokio::spawn(reconciler.run());
/// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
/// ```
pub struct Reconciler<S> {
    watched: Vec<Watched<S>>,
    limits: ReconcileLimits,
    backoff: LookupBackoff,
    /// Index of the operation that the next run begins with (round robin), because all share the run's limits.
    turn: usize,
}

struct Watched<S> {
    operation: Guarded<S>,
    /// Cursor of the pass over this operation; `None` at its beginning.
    after: Option<String>,
    /// Counts of the pass so far.
    pass: Report,
    /// Held intents of the last whole pass: only an increase is logged.
    last_held: u64,
}

/// How soon a key may be forgotten that is counted as expiring, and never sooner than in the second half of its time:
/// where keys are short-lived, healthy work is younger.
const EXPIRING_MS: u64 = 60 * 60 * 1_000;
/// How many of them are counted.
const EXPIRING_MAX: usize = 1_000;

struct RunBudget {
    records: usize,
    lookups: usize,
}

/// The result for one intent of a page.
enum Resolved {
    LookedUp(LookedUp),
    /// It has changed since the page was read.
    Changed,
    StoreFailed,
}

impl<S: Store> Reconciler<S> {
    /// Watches no operation yet.
    pub fn new() -> Self {
        let limits = ReconcileLimits::default();
        Self { watched: Vec::new(), limits, backoff: backoff(&limits), turn: 0 }
    }

    /// Watches an operation. One without a lookup can be watched too: its held intents are counted and reported.
    pub fn watch(mut self, operation: &Guarded<S>) -> Self {
        let operation = operation.clone();
        self.watched.push(Watched { operation, after: None, pass: Report::default(), last_held: 0 });
        self
    }

    /// Replaces the default limits.
    pub fn limits(mut self, limits: ReconcileLimits) -> Self {
        self.limits = limits;
        self.backoff = backoff(&limits);
        self
    }

    /// Runs periodically, until dropped.
    pub async fn run(mut self) {
        loop {
            tokio::time::sleep(spread(self.limits.every, SPREAD)).await;
            let span = tracing::info_span!(names::SPAN_RECONCILE);
            let report = self.run_once().instrument(span).await;
            if report.settled() > 0 {
                let Report { applied, not_applied, held, .. } = report;
                tracing::info!(applied, not_applied, held, "uncertain intents were settled by lookup");
            }
        }
    }

    /// One run: each operation's pass continues where the last run's limits ended it.
    pub async fn run_once(&mut self) -> Report {
        self.backoff.forget_gone(Instant::now());
        let mut left =
            RunBudget { records: self.limits.run_records_max, lookups: self.limits.run_lookups_max.max(1) };
        let (mut report, operations) = (Report::default(), self.watched.len());
        for n in 0..operations {
            let at = (self.turn + n) % operations;
            let watched = &mut self.watched[at];
            watched.continue_pass(&self.limits, &mut self.backoff, &mut left, &mut report).await;
        }
        self.turn = self.turn.wrapping_add(1) % operations.max(1);
        report
    }
}

fn backoff(limits: &ReconcileLimits) -> LookupBackoff {
    LookupBackoff::new(Backoff::new(limits.pause_min, limits.pause_max), limits.pauses_max)
}

impl<S: Store> Watched<S> {
    /// Goes page by page, until the pass is at its end or the run at its limits.
    async fn continue_pass(
        &mut self,
        limits: &ReconcileLimits,
        backoff: &mut LookupBackoff,
        left: &mut RunBudget,
        report: &mut Report,
    ) {
        loop {
            let limit = limits.page_records.clamp(1, PAGE_RECORDS_MAX).min(left.records);
            if limit == 0 || left.lookups == 0 {
                report.more = true;
                return;
            }
            let Some(page) = self.page(limit, report).await else {
                // The cursor may be the cause, so the next run starts a new pass.
                self.after = None;
                self.pass = Report::default();
                return;
            };
            left.records = left.records.saturating_sub(page.records.len().max(1));
            let next = page.next.clone();
            let mut seen = Report::default();
            let whole = self.resolve_page(page, limits, backoff, left, &mut seen).await;
            report.add(&seen);
            if !whole {
                // The next run reads the same page; what was looked up is settled or in backoff by then.
                report.more = true;
                return;
            }
            self.pass.add(&seen);
            self.after = next;
            if self.after.is_none() {
                self.end_of_pass();
                self.count_expiring(left, report).await;
                return;
            }
        }
    }

    async fn page(&self, limit: usize, report: &mut Report) -> Option<Page> {
        let mut states = vec![State::Uncertain];
        // A caller runs a protected effect again when its owner is gone. Without a caller a lookup can still resolve
        // it.
        if self.operation.of.policy.effect.may_rerun() && self.operation.of.lookup.is_some() {
            states.push(State::InProgress);
        }
        let filter = Filter {
            states,
            operation: Some(self.operation.of.operation.as_str().to_owned()),
            after: self.after.clone(),
            limit,
            ..Filter::default()
        };
        let listed = self.operation.ask(Phase::Read, pin!(self.operation.guard().store().list(filter))).await;
        listed
            .inspect_err(|error| {
                report.store_failures += 1;
                let operation = self.operation.of.operation.as_str();
                tracing::warn!(operation, %error, "uncertain intents could not be listed; the next run tries again");
            })
            .ok()
    }

    /// Looks up the due intents of a page. Returns whether all of them were looked up.
    async fn resolve_page(
        &self,
        page: Page,
        limits: &ReconcileLimits,
        backoff: &mut LookupBackoff,
        left: &mut RunBudget,
        seen: &mut Report,
    ) -> bool {
        let now = page.now;
        let mut due = Vec::new();
        for record in page.records {
            let id = record.intent.id();
            let open = record.state_at(now) == Some(State::Uncertain) || record.head.is_lapsed(now);
            if !open || self.operation.is_worked_on(&id) {
                continue;
            }
            if self.operation.of.lookup.is_none() {
                seen.hold(held(&record, now));
            } else if self.operation.settles_in(&record, now).is_some() {
                seen.settling += 1;
            } else if backoff.is_due(&id, record.head.epoch, Instant::now()) {
                due.push(record);
            } else {
                seen.hold(held(&record, now));
            }
        }
        // Another process that reads the same page starts elsewhere.
        fastrand::shuffle(&mut due);
        let whole = due.len() <= left.lookups;
        due.truncate(left.lookups);
        left.lookups -= due.len();
        let mut resolving = stream::iter(due.into_iter().map(|record| async move {
            let resolved = self.resolve(&record, now).await;
            (record, resolved)
        }))
        .buffer_unordered(limits.lookups_at_once.max(1));
        while let Some((record, resolved)) = resolving.next().await {
            let (id, epoch) = (record.intent.id(), record.head.epoch);
            seen.asked += u64::from(matches!(resolved, Resolved::LookedUp(_)));
            match resolved {
                Resolved::LookedUp(LookedUp::Applied) => seen.applied += 1,
                Resolved::LookedUp(LookedUp::NotApplied) => seen.not_applied += 1,
                Resolved::LookedUp(LookedUp::Overtaken) | Resolved::Changed => seen.overtaken += 1,
                // Not the intent's fault: it is looked up again in the next run, without backoff.
                Resolved::StoreFailed | Resolved::LookedUp(LookedUp::Unresolved(Unresolved::NotRecorded)) => {
                    seen.store_failures += 1;
                    seen.hold(held(&record, now));
                }
                Resolved::LookedUp(LookedUp::Unresolved(_)) => {
                    seen.hold(held(&record, now));
                    backoff.put_off(id, epoch, Instant::now());
                    continue;
                }
            }
            backoff.forget(&id);
        }
        whole
    }

    /// Looks up one intent, if it has not changed since the page was read. The page may be minutes old by now, and
    /// another process may have resolved it.
    async fn resolve(&self, listed: &Record, now: StoreTime) -> Resolved {
        let store = self.operation.guard().store();
        let record = match self.operation.ask(Phase::Read, pin!(store.get(listed.intent.id()))).await {
            Ok(Some(record)) if record.head == listed.head => record,
            Ok(_) => return Resolved::Changed,
            Err(_) => return Resolved::StoreFailed,
        };
        let span = tracing::info_span!(
            names::SPAN_LOOKUP,
            idempotency.operation = self.operation.of.operation.as_str()
        );
        // The page's time, not a later one: it can only make a lookup later, never too early.
        let existing = Existing { record: record.into(), now, other_recipe: false };
        Resolved::LookedUp(self.operation.look_up(existing).instrument(span).await)
    }

    /// Counts the unfinished intents without an owner at work whose key may be forgotten soon: page by page, until the
    /// run is at its limits.
    async fn count_expiring(&self, left: &mut RunBudget, report: &mut Report) {
        let Some(safe_for) = self.operation.of.policy.safe_for else { return };
        let mut filter = Filter {
            operation: Some(self.operation.of.operation.as_str().to_owned()),
            expiring_within_ms: Some(EXPIRING_MS.min(millis(safe_for) / 2)),
            limit: PAGE_RECORDS_MAX,
            ..Filter::default()
        };
        let mut expiring = 0;
        loop {
            let listed = self.operation.guard().store().list(filter.clone());
            let Ok(page) = self.operation.ask(Phase::Read, pin!(listed)).await else {
                report.store_failures += 1;
                return;
            };
            left.records = left.records.saturating_sub(page.records.len());
            let is_live = |it: &&Record| it.head.state == State::InProgress && !it.head.is_lapsed(page.now);
            expiring += page.records.iter().filter(|it| !is_live(it)).count();
            filter.after = page.next;
            if filter.after.is_none() || left.records == 0 || expiring >= EXPIRING_MAX {
                break;
            }
        }
        self.operation.of.metrics.guard_expiring(expiring.min(EXPIRING_MAX));
    }

    fn end_of_pass(&mut self) {
        let pass = std::mem::take(&mut self.pass);
        let oldest_ms = pass.oldest_held.as_ref().map_or(0, |held| held.held_ms);
        self.operation.of.metrics.held(pass.held, oldest_ms);
        if pass.held > self.last_held {
            tracing::warn!(
                operation = self.operation.of.operation.as_str(),
                held = pass.held,
                oldest_s = oldest_ms / 1_000,
                "it is not known whether some intents took effect; see `semel ls --state uncertain`"
            );
        }
        self.last_held = pass.held;
    }
}

fn held(record: &Record, now: StoreTime) -> HeldIntent {
    // It may have waited for a retry until its key could be forgotten.
    let forgotten =
        record.head.safe_until.filter(|until| *until <= now && record.head.state != State::Uncertain);
    let since = record.since(now).max(forgotten.unwrap_or_default());
    HeldIntent {
        id: record.intent.id(),
        operation: record.intent.operation().clone(),
        held_ms: now.since_ms(since),
    }
}

impl<S: Store> Default for Reconciler<S> {
    fn default() -> Self {
        Self::new()
    }
}

impl<S> std::fmt::Debug for Reconciler<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reconciler")
            .field("operations", &self.watched.len())
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}
