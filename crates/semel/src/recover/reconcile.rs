//! Uncertain intents, looked up without waiting for a caller.

use std::pin::pin;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream;
use tokio::time::Instant;
use tracing::Instrument;

use super::backoff::LookupBackoff;
use super::jittered;
use super::report::{HeldIntent, Report};
use crate::guard::{Guarded, Held, LookedUp};
use crate::intent::policy::StoreTime;
use crate::intent::state::State;
use crate::observe::{Phase, names};
use crate::store::{Existing, Filter, PAGE_RECORDS_MAX, Page, Record, Store};

/// Bounds of a [`Reconciler`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct ReconcileLimits {
    /// How often to look, give or take a half.
    pub every: Duration,
    /// Records read by one request to the store.
    pub page_records: usize,
    /// Records looked at in one run.
    pub run_records_max: usize,
    /// Lookups asked in one run.
    pub run_lookups_max: usize,
    /// Lookups under way at once. How long each may take is the guard's
    /// [`lookup_timeout`](crate::guard::Limits::lookup_timeout).
    pub lookups_at_once: usize,
    /// How long an intent that nobody knew about is left alone, the first time; it doubles each time.
    pub pause_min: Duration,
    /// The longest such pause.
    pub pause_max: Duration,
    /// Intents whose pauses are remembered. Beyond it, one is asked about in every pass.
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

/// Walks the uncertain intents of some operations and asks their lookups: what is found is completed and replayed,
/// what is not there after the settle delay is released, what nobody knows stays held and is reported.
///
/// - What is decided, and when a lookup may be believed, is decided where a caller's retry is: there is one rule.
/// - Abandoned claims (lapsed ones of a protected effect) are looked up as well; a claimant is always faster.
/// - An intent whose owner lives in this process is left to it.
/// - Several of these may run, in any number of processes. Each looks again at an intent just before it asks, and
///   starts somewhere else on the page, so that few lookups are asked twice; an answer about a record that has
///   changed meanwhile is not taken.
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
    pauses: LookupBackoff,
    /// Whose turn it is to come first: a run's limits are shared.
    turn: usize,
}

struct Watched<S> {
    operation: Guarded<S>,
    /// Where the pass over this operation stands; `None` at its beginning.
    after: Option<String>,
    /// What the pass has found to be held so far.
    pass: Report,
    /// What the last whole pass found, for those who want to hear of changes only.
    last_held: u64,
}

/// What is left of a run's limits.
struct Left {
    records: usize,
    lookups: usize,
}

/// What became of one intent on a page.
enum Asked {
    Found(LookedUp),
    /// It is not what the page showed any more.
    Changed,
    StoreFailed,
}

impl<S: Store> Reconciler<S> {
    /// Watches nothing yet.
    pub fn new() -> Self {
        let limits = ReconcileLimits::default();
        Self { watched: Vec::new(), limits, pauses: pauses(&limits), turn: 0 }
    }

    /// Watches an operation. One without a lookup is watched too: what is held there is counted and reported.
    pub fn watch(mut self, operation: &Guarded<S>) -> Self {
        let operation = operation.clone();
        self.watched.push(Watched { operation, after: None, pass: Report::default(), last_held: 0 });
        self
    }

    /// With other bounds than the usual ones.
    pub fn limits(mut self, limits: ReconcileLimits) -> Self {
        self.limits = limits;
        self.pauses = pauses(&limits);
        self
    }

    /// Looks now and then, until dropped.
    pub async fn run(mut self) {
        loop {
            tokio::time::sleep(jittered(self.limits.every)).await;
            let span = tracing::info_span!(names::SPAN_RECONCILE);
            let report = self.run_once().instrument(span).await;
            if report.settled() > 0 {
                let Report { applied, not_applied, held, .. } = report;
                tracing::info!(applied, not_applied, held, "uncertain intents were settled by lookup");
            }
        }
    }

    /// One run: each operation's pass goes on where the last run's limits ended it.
    pub async fn run_once(&mut self) -> Report {
        self.pauses.forget_gone(Instant::now());
        let mut left =
            Left { records: self.limits.run_records_max, lookups: self.limits.run_lookups_max.max(1) };
        let (mut report, operations) = (Report::default(), self.watched.len());
        for n in 0..operations {
            let at = (self.turn + n) % operations;
            let watched = &mut self.watched[at];
            watched.go_on(&self.limits, &mut self.pauses, &mut left, &mut report).await;
        }
        self.turn = self.turn.wrapping_add(1) % operations.max(1);
        report
    }
}

fn pauses(limits: &ReconcileLimits) -> LookupBackoff {
    LookupBackoff::new(limits.pause_min, limits.pause_max, limits.pauses_max)
}

impl<S: Store> Watched<S> {
    /// Page by page, until the pass is at its end or the run at its limits.
    async fn go_on(
        &mut self,
        limits: &ReconcileLimits,
        pauses: &mut LookupBackoff,
        left: &mut Left,
        report: &mut Report,
    ) {
        loop {
            let limit = limits.page_records.clamp(1, PAGE_RECORDS_MAX).min(left.records);
            if limit == 0 || left.lookups == 0 {
                report.more = true;
                return;
            }
            let Some(page) = self.page(limit, report).await else {
                // Whatever is wrong, a cursor that leads nowhere must not be what we come back with.
                self.after = None;
                self.pass = Report::default();
                return;
            };
            left.records = left.records.saturating_sub(page.records.len().max(1));
            let next = page.next.clone();
            let mut seen = Report::default();
            let whole = self.settle(page, limits, pauses, left, &mut seen).await;
            report.add(&seen);
            if !whole {
                // The same page again in the next run; what was asked about is settled or pauses then.
                report.more = true;
                return;
            }
            self.pass.add(&seen);
            self.after = next;
            if self.after.is_none() {
                self.end_of_pass();
                return;
            }
        }
    }

    async fn page(&self, limit: usize, report: &mut Report) -> Option<Page> {
        let mut states = vec![State::Uncertain];
        // A protected effect whose owner is gone is no doubt to a caller, who runs it again; without a caller it
        // can still be found out about.
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
                tracing::warn!(operation, %error, "uncertain intents could not be listed");
            })
            .ok()
    }

    /// Asks about what is due on a page. Says whether all of it was asked.
    async fn settle(
        &self,
        page: Page,
        limits: &ReconcileLimits,
        pauses: &mut LookupBackoff,
        left: &mut Left,
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
            } else if pauses.is_due(&id, record.head.epoch, Instant::now()) {
                due.push(record);
            } else {
                seen.hold(held(&record, now));
            }
        }
        // Whoever else reads the same page starts elsewhere.
        fastrand::shuffle(&mut due);
        let whole = due.len() <= left.lookups;
        due.truncate(left.lookups);
        left.lookups -= due.len();
        let mut asking = stream::iter(due.into_iter().map(|record| async move {
            let found = self.find_out(&record, now).await;
            (record, found)
        }))
        .buffer_unordered(limits.lookups_at_once.max(1));
        while let Some((record, asked)) = asking.next().await {
            let (id, epoch) = (record.intent.id(), record.head.epoch);
            seen.asked += u64::from(matches!(asked, Asked::Found(_)));
            match asked {
                Asked::Found(LookedUp::Applied) => seen.applied += 1,
                Asked::Found(LookedUp::NotApplied) => seen.not_applied += 1,
                Asked::Found(LookedUp::Overtaken) | Asked::Changed => seen.overtaken += 1,
                // Not the intent's fault: it is asked about again in the next run.
                Asked::StoreFailed | Asked::Found(LookedUp::Held(Held::NotRecorded)) => {
                    seen.store_failures += 1;
                    seen.hold(held(&record, now));
                }
                Asked::Found(LookedUp::Held(_)) => {
                    seen.hold(held(&record, now));
                    pauses.put_off(id, epoch, Instant::now());
                    continue;
                }
            }
            pauses.forget(&id);
        }
        whole
    }

    /// Asks about one intent, if it is still what the page showed. The page may be minutes old by now, and another
    /// process may have been here.
    async fn find_out(&self, listed: &Record, now: StoreTime) -> Asked {
        let store = self.operation.guard().store();
        let record = match self.operation.ask(Phase::Read, pin!(store.get(listed.intent.id()))).await {
            Ok(Some(record)) if record.head == listed.head => record,
            Ok(_) => return Asked::Changed,
            Err(_) => return Asked::StoreFailed,
        };
        let span = tracing::info_span!(
            names::SPAN_LOOKUP,
            idempotency.operation = self.operation.of.operation.as_str()
        );
        // The page's clock, not a later one: it can only make the settle delay look longer than it was.
        let existing = Existing { record: record.into(), now, other_recipe: false };
        Asked::Found(self.operation.look_up(existing).instrument(span).await)
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
                "intents are held: nobody knows whether they happened; see `semel ls --state uncertain`"
            );
        }
        self.last_held = pass.held;
    }
}

fn held(record: &Record, now: StoreTime) -> HeldIntent {
    HeldIntent {
        id: record.intent.id(),
        operation: record.intent.operation().clone(),
        held_ms: now.since_ms(record.since(now)),
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
