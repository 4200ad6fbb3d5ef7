//! The worker of one process: its lease, the sagas it takes, and its stop.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Instant;

use super::engine::Engine;
use super::journal::{DefinitionId, TakenSaga};
use super::limits::PAUSE;
use super::metrics::SAMPLE_EVERY;
use super::protect::may_read_plain;
use super::run::{LoadedAt, Ran, Work};
use super::state::WorkerId;
use crate::backoff::{Backoff, spread};
use crate::intent::policy::millis;
use crate::stop;

/// Sagas taken with one request.
const TAKE_MAX: usize = 64;
/// Ended sagas swept with one request.
const SWEEP_MAX: usize = 100;
/// The lease is renewed so often while it lasts.
const RENEWALS_PER_LEASE: u32 = 6;

const JOIN: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(10)).jitter(0.2);

impl<App: Send + Sync + ?Sized + 'static> Engine<App> {
    /// Starts the loops of the worker.
    pub(super) fn start(self: &Arc<Self>) {
        self.spawn(Arc::clone(self).keep_lease());
        self.spawn(Arc::clone(self).take_sagas());
        self.spawn(Arc::clone(self).sweep());
        if self.is_observed {
            self.spawn(Arc::clone(self).sample());
        }
    }

    /// Joins as a worker, and renews the lease; after a lost one as a new worker.
    async fn keep_lease(self: Arc<Self>) {
        let lease = self.options.lease;
        let mut failures = 0;
        while !self.is_stopped() {
            let sent = Instant::now();
            let joined = tokio::time::timeout(self.options.journal_timeout, self.journal.join(millis(lease)));
            let worker = match joined.await {
                Ok(Ok(worker)) => worker,
                failed => {
                    let error = failed.map(|failed| failed.err().map(|error| error.to_string()));
                    tracing::warn!(?error, "cannot join as a worker of sagas; trying again");
                    let mut stopped = self.stopped.subscribe();
                    stop::pause(JOIN.delay(failures), &mut stopped).await;
                    failures += 1;
                    continue;
                }
            };
            failures = 0;
            self.lease.set(Some((worker, sent + lease)));
            self.woken.notify_one();
            self.renew(worker, sent + lease).await;
            self.lease.set(None);
            if self.is_stopped() {
                // What is left is due at once. If this is lost, it is when the lease ends.
                let left = self.journal.leave(worker);
                let _ = tokio::time::timeout(self.options.journal_timeout, left).await;
            } else {
                self.metrics.lease_lost();
                tracing::warn!(worker = worker.0, "the worker's lease is lost; its sagas go on elsewhere");
            }
        }
    }

    /// Renews until the lease is lost, or the worker is stopped.
    async fn renew(&self, worker: WorkerId, mut until: Instant) {
        let lease = self.options.lease;
        let mut stopped = self.stopped.subscribe();
        loop {
            stop::pause(lease / RENEWALS_PER_LEASE, &mut stopped).await;
            if self.is_stopped() || Instant::now() >= until {
                return;
            }
            let sent = Instant::now();
            let limit = self.options.journal_timeout.min(until - sent);
            match tokio::time::timeout(limit, self.journal.renew(worker, millis(lease))).await {
                Ok(Ok(true)) => {
                    until = sent + lease;
                    self.lease.set(Some((worker, until)));
                }
                Ok(Ok(false)) => return,
                Ok(Err(error)) => tracing::warn!(%error, "could not renew the worker's lease; trying again"),
                Err(_) => tracing::warn!("could not renew the worker's lease in time; trying again"),
            }
        }
    }

    /// Takes what is due, as much as there is room for.
    async fn take_sagas(self: Arc<Self>) {
        let definitions = self.definitions_with_steps();
        let mut reconciled = Instant::now();
        let mut took_full = Instant::now();
        while !self.is_stopping() {
            let mut more = false;
            if let Some(worker) = self.lease.worker() {
                let since = reconciled.elapsed();
                if self.looks_for_lost(since) || since >= self.options.lease {
                    reconciled = Instant::now();
                    self.adopt(worker).await;
                }
                if let Some(why) = self.unreadable.get() {
                    tracing::error!(
                        why,
                        "this process takes no sagas any more; restart it with the missing key"
                    );
                } else {
                    more = self.take(worker, &definitions, &mut took_full).await;
                }
            }
            if !more {
                let poll = Instant::now() + spread(self.options.poll_interval, 0.2);
                let until = self.next_due().map_or(poll, |due| due.min(poll));
                let mut stopping = self.stopping.subscribe();
                tokio::select! {
                    biased;
                    () = tokio::time::sleep_until(until) => {}
                    () = self.woken.notified() => {}
                    () = stop::asked_to_stop(&mut stopping) => {}
                }
            }
        }
    }

    /// Takes what is due and there is room for; sagas of a kind of step that is full now and then, because they may need
    /// it no longer: `took_full` says when it was last. Returns whether there may be more.
    async fn take(
        self: &Arc<Self>,
        worker: WorkerId,
        definitions: &[(DefinitionId, Vec<&'static str>)],
        took_full: &mut Instant,
    ) -> bool {
        let with_full = took_full.elapsed() >= PAUSE;
        let wanted = definitions.iter().filter(|(_, steps)| with_full || !self.limits.are_full(steps));
        let definitions: Vec<_> = wanted.map(|(definition, _)| definition.clone()).collect();
        // Reserved before the journal is asked: this process has no more sagas than it runs.
        let room = self.running.available_permits().min(TAKE_MAX);
        let reserved = Arc::clone(&self.running).try_acquire_many_owned(room as u32);
        let (1.., Ok(mut reserved), false) = (room, reserved, definitions.is_empty()) else { return false };
        if with_full {
            *took_full = Instant::now();
        }
        let _handing_over = self.handing_over.read().await;
        let taken = self.journal.take_readable(worker, &definitions, room, Arc::new(may_read_plain));
        match tokio::time::timeout(self.options.journal_timeout, taken).await {
            Ok(Ok(taken)) => {
                let more = !taken.is_empty();
                for taken in taken {
                    self.begin(worker, taken, reserved.split(1), None);
                }
                more
            }
            failed => {
                self.doubts();
                let error = failed.map(|failed| failed.err().map(|error| error.to_string()));
                tracing::warn!(?error, "could not take sagas that are due; trying again");
                false
            }
        }
    }

    /// Runs sagas that the journal says this worker has, and that run nowhere: the answer that gave them was lost.
    async fn adopt(self: &Arc<Self>, worker: WorkerId) {
        let _handing_over = self.handing_over.write().await;
        let owned = tokio::time::timeout(self.options.journal_timeout, self.journal.owned(worker)).await;
        let Ok(Ok(owned)) = owned else {
            self.doubts();
            return;
        };
        for (number, row) in owned {
            if !self.is_at_work(number) {
                tracing::info!(number = number.0, "a saga of this worker was not running; it runs now");
                self.begin(worker, TakenSaga { number, row, taken_over: false }, None, None);
            }
        }
    }

    /// Runs a saga in a task of its own. What was started here just now comes along.
    pub(super) fn begin(
        self: &Arc<Self>,
        worker: WorkerId,
        taken: TakenSaga,
        permit: Option<OwnedSemaphorePermit>,
        started: Option<LoadedAt>,
    ) {
        let number = taken.number;
        self.task_begins(number);
        let engine = Arc::clone(self);
        self.spawn(async move {
            let permit = match permit {
                Some(permit) => Some(permit),
                None => Arc::clone(&engine.running).acquire_owned().await.ok(),
            };
            let at_work = engine.metrics.at_work();
            let work = Work::run(Arc::clone(&engine), worker, taken, started, permit);
            let work = AssertUnwindSafe(work).catch_unwind();
            let ran = tokio::select! {
                // Its lease first: a task that slept too long must not go on.
                biased;
                () = engine.lease.lost(worker) => Ran::LOST,
                ran = work => ran.unwrap_or_else(|_| {
                    tracing::error!(number = number.0, "running a saga panicked; it is tried again later");
                    Ran::LOST
                }),
            };
            drop(at_work);
            engine.task_ends(number);
            if let Some(due_in) = ran.due_in {
                engine.due_in(due_in);
            }
            let was_full = ran.was_full;
            engine.left(number, ran);
            if was_full {
                // There is room for another.
                engine.woken.notify_one();
            }
        });
    }

    /// Reads what the journal has, for the metrics.
    async fn sample(self: Arc<Self>) {
        let mut stopped = self.stopped.subscribe();
        while !self.is_stopped() {
            let figures = self.journal.figures(millis(self.options.lease));
            match tokio::time::timeout(self.options.journal_timeout, figures).await {
                Ok(Ok(Some(figures))) => {
                    let known = |of: &DefinitionId| {
                        self.definitions.get(&of.name).is_some_and(|known| of.version <= known.version())
                    };
                    let overdue = figures.overdue.iter().filter(|(of, _)| !known(of));
                    let no_definition = overdue.map(|(_, sagas)| sagas).sum();
                    self.metrics.sampled(&figures, no_definition);
                }
                // It does not count.
                Ok(Ok(None)) => return,
                Ok(Err(error)) => tracing::warn!(%error, "could not count sagas; trying again later"),
                Err(_) => tracing::warn!("could not count sagas: no answer from the journal in time"),
            }
            stop::pause(spread(SAMPLE_EVERY, 0.2), &mut stopped).await;
        }
    }

    async fn sweep(self: Arc<Self>) {
        let mut stopped = self.stopped.subscribe();
        while !self.is_stopped() {
            stop::pause(spread(self.options.sweep_interval, 0.2), &mut stopped).await;
            loop {
                let swept = self.journal.sweep(SWEEP_MAX);
                match tokio::time::timeout(self.options.journal_timeout, swept).await {
                    Ok(Ok(SWEEP_MAX)) if !self.is_stopped() => {}
                    Ok(Ok(_)) => break,
                    Ok(Err(error)) => {
                        tracing::warn!(%error, "could not sweep ended sagas; trying again later");
                        break;
                    }
                    Err(_) => {
                        tracing::warn!("could not sweep ended sagas: no answer from the journal in time");
                        break;
                    }
                }
            }
        }
    }

    /// Begins nothing new, waits for what is under way, at most for `limit`, and leaves. Returns how many sagas were still
    /// at work: another worker takes them when this one's call is over, or its lease.
    pub(super) async fn drain(&self, limit: Duration) -> usize {
        self.stopping.send_replace(true);
        let all = u32::try_from(self.options.running_max.max(1)).unwrap_or(u32::MAX);
        let done = tokio::time::timeout(limit, self.running.acquire_many(all)).await;
        let left = match done {
            Ok(_) => 0,
            Err(_) => self.options.running_max - self.running.available_permits(),
        };
        self.stopped.send_replace(true);
        left
    }
}
