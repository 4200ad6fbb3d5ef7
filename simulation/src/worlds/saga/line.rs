//! One process's line to the journal: slow, cut, or without answers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use semel::IntentId;
use semel::StoreTime;
use semel::saga::memory::MemoryJournal;
use semel::saga::{
    Answering, AtomicEnd, AtomicWork, DefinitionId, Journal, Loaded, MayRead, NewEntry, NewSaga, RowAnswer,
    SagaChange, SagaChanged, SagaFilter, SagaNumber, SagaRecord, SagaRow, SagaStarted, Signal, Signalled,
    TakenSaga, WorkerId,
};
use semel::store::{ErrorKind, Fate, StoreError};

use super::network::Network;
use super::plan::{Fault, FaultKind};

#[derive(Clone)]
pub(super) struct Line {
    pub(super) journal: MemoryJournal,
    pub(super) network: Network,
    pub(super) worker: usize,
    pub(super) requests: Arc<AtomicU32>,
}

impl Line {
    fn fault(&self) -> Option<Fault> {
        let now = self.network.stage.elapsed().as_millis() as u64;
        let kinds =
            [FaultKind::JournalDown, FaultKind::AnswersLost, FaultKind::JournalHangs, FaultKind::CutOff];
        let mut faults = self.network.plan.faults.iter();
        let now = faults.find(|fault| {
            fault.worker == self.worker
                && kinds.contains(&fault.kind)
                && (fault.at_ms..fault.end_ms()).contains(&now)
        });
        now.copied()
    }

    fn kind(&self) -> Option<FaultKind> {
        self.fault().map(|fault| fault.kind)
    }

    async fn pass<T>(&self, request: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
        self.pass_sending(false, request).await
    }

    /// A request that arrives however late, if the process is cut off.
    async fn deliver<T: Send + 'static>(
        &self,
        request: impl Future<Output = Result<T, StoreError>> + Send + 'static,
    ) -> Result<T, StoreError> {
        self.pass_sending(true, async move {
            let fault = self.fault().filter(|fault| fault.kind == FaultKind::CutOff);
            let Some(fault) = fault else { return request.await };
            let stage = &self.network.stage;
            stage.count("changes late", 1);
            let late = Duration::from_millis(fault.end_ms()).saturating_sub(stage.elapsed());
            tokio::spawn(async move {
                tokio::time::sleep(late).await;
                let _ = request.await;
            });
            std::future::pending().await
        })
        .await
    }

    fn journals_lease(&self, lease_ms: u64) -> u64 {
        if self.network.plan.settings.slow_clocks { lease_ms / 3 } else { lease_ms }
    }

    async fn pass_sending<T>(
        &self,
        sends: bool,
        request: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let stage = &self.network.stage;
        let pause = Duration::from_millis(self.network.plan.settings.journal_ms);
        tokio::time::sleep(pause).await;
        let lost = |fate| StoreError::new(ErrorKind::Unavailable, fate, "the line is cut");
        match self.kind() {
            Some(FaultKind::JournalDown) => {
                stage.count("requests refused", 1);
                return Err(lost(Fate::NotApplied));
            }
            // What it sends in this time is on its way: see `deliver`.
            Some(FaultKind::CutOff) if !sends => {
                stage.count("requests that hang", 1);
                std::future::pending().await
            }
            Some(FaultKind::JournalHangs) => {
                stage.count("requests that hang", 1);
                std::future::pending().await
            }
            _ => {}
        }
        let answer = request.await;
        tokio::time::sleep(pause).await;
        let one_in = self.network.plan.settings.loses_one_in;
        let nth = self.requests.fetch_add(1, Ordering::Relaxed);
        if self.kind() == Some(FaultKind::AnswersLost) || is_lost(nth, one_in) {
            stage.count("answers of the journal lost", 1);
            return Err(lost(Fate::InDoubt));
        }
        answer
    }
}

impl Journal for Line {
    fn now(&self) -> Answering<'_, StoreTime> {
        Box::pin(self.pass(async { self.journal.now().await }))
    }

    fn join(&self, lease_ms: u64) -> Answering<'_, WorkerId> {
        Box::pin(self.pass(async move { self.journal.join(self.journals_lease(lease_ms)).await }))
    }

    fn renew(&self, worker: WorkerId, lease_ms: u64) -> Answering<'_, bool> {
        Box::pin(self.pass(async move { self.journal.renew(worker, self.journals_lease(lease_ms)).await }))
    }

    fn leave(&self, worker: WorkerId) -> Answering<'_, ()> {
        Box::pin(self.pass(async move { self.journal.leave(worker).await }))
    }

    fn start(&self, saga: NewSaga) -> Answering<'_, SagaStarted> {
        Box::pin(self.pass(async move { self.journal.start(saga).await }))
    }

    fn change(&self, number: SagaNumber, change: SagaChange) -> Answering<'_, SagaChanged> {
        let shown: Vec<String> =
            change.entries.iter().map(|entry| format!("{} {}", entry.kind.as_str(), entry.step)).collect();
        let event = format!("{:?}", change.event);
        let line = self.clone();
        Box::pin(self.deliver(async move {
            let changed = line.journal.change(number, change).await;
            let answer = changed.as_ref().map(|changed| changed.answer);
            let (stage, worker) = (&line.network.stage, line.worker);
            if let Ok(SagaChanged { answer: RowAnswer::Lost, row: Some(row), .. }) = &changed {
                stage.count("stale changes", 1);
                stage.count("stale changes of a saga at work", u64::from(row.worker.is_some()));
            }
            stage.trace(format_args!("worker {worker}: saga {} {event} {shown:?}: {answer:?}", number.0));
            changed
        }))
    }

    fn atomic<'a>(
        &'a self,
        number: SagaNumber,
        change: SagaChange,
        done: NewEntry,
        work: Arc<dyn AtomicWork>,
    ) -> Answering<'a, AtomicEnd> {
        let line = self.clone();
        Box::pin(self.deliver(async move {
            let step = done.step.to_string();
            let end = line.journal.atomic(number, change, done, work).await;
            // Without a pause: what is committed is noted at the same moment.
            line.network.note_rows(&line.journal.rows());
            let (stage, worker) = (&line.network.stage, line.worker);
            stage.count("atomic steps", 1);
            stage.trace(format_args!("worker {worker}: saga {} atomic {step}: {end:?}", number.0));
            end
        }))
    }

    fn load(&self, number: SagaNumber) -> Answering<'_, Option<Loaded>> {
        Box::pin(self.pass(async move {
            let mut loaded = self.journal.load(number).await?;
            if let Some(loaded) = &mut loaded
                && self.network.stage.has("a takeover reads an old journal")
            {
                loaded.entries.pop();
            }
            Ok(loaded)
        }))
    }

    fn look(&self, number: SagaNumber) -> Answering<'_, Option<SagaRecord>> {
        Box::pin(self.pass(async move { self.journal.look(number).await }))
    }

    fn find(&self, id: IntentId) -> Answering<'_, Option<SagaRecord>> {
        Box::pin(self.pass(async move { self.journal.find(id).await }))
    }

    fn take<'a>(
        &'a self,
        worker: WorkerId,
        definitions: &'a [DefinitionId],
        limit: usize,
    ) -> Answering<'a, Vec<(SagaNumber, SagaRow)>> {
        Box::pin(self.pass(async move { self.journal.take(worker, definitions, limit).await }))
    }

    fn take_readable<'a>(
        &'a self,
        worker: WorkerId,
        definitions: &'a [DefinitionId],
        limit: usize,
        may_read: Arc<MayRead>,
    ) -> Answering<'a, Vec<TakenSaga>> {
        Box::pin(self.pass(async move {
            let taken = self.journal.take_readable(worker, definitions, limit, may_read).await?;
            for TakenSaga { number, row, .. } in &taken {
                self.network.stage.count("sagas taken", 1);
                self.network.stage.trace(format_args!(
                    "worker {} ({}) takes saga {} in epoch {}",
                    self.worker, worker.0, number.0, row.epoch
                ));
            }
            Ok(taken)
        }))
    }

    fn owned(&self, worker: WorkerId) -> Answering<'_, Vec<(SagaNumber, SagaRow)>> {
        Box::pin(self.pass(async move {
            if self.network.stage.has("lost answers are not looked for") {
                return Ok(Vec::new());
            }
            self.journal.owned(worker).await
        }))
    }

    fn signal(&self, number: SagaNumber, signal: Signal) -> Answering<'_, Signalled> {
        Box::pin(self.pass(async move { self.journal.signal(number, signal).await }))
    }

    fn list(&self, filter: SagaFilter) -> Answering<'_, Vec<SagaRecord>> {
        Box::pin(self.pass(async move { self.journal.list(filter).await }))
    }

    fn sweep(&self, limit: usize) -> Answering<'_, usize> {
        Box::pin(self.pass(async move { self.journal.sweep(limit).await }))
    }
}

/// One in so many, in no pattern that a client could be in step with.
fn is_lost(nth: u32, one_in: u32) -> bool {
    one_in > 0 && (nth.wrapping_mul(2_654_435_761) >> 16).is_multiple_of(one_in)
}
