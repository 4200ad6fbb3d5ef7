//! The journal: its writes are counted, and crashes happen beside them.

use std::sync::Arc;

use super::fault::WriteFault;
use super::watch::Watch;
use crate::intent::identity::IntentId;
use crate::intent::policy::StoreTime;
use crate::saga::entry::NewEntry;
use crate::saga::journal::{
    Answering, AtomicEnd, AtomicWork, DefinitionId, Journal, Loaded, NewSaga, SagaChange, SagaChanged,
    SagaFilter, SagaNumber, SagaRecord, SagaStarted, Signal, Signalled,
};
use crate::saga::memory::MemoryJournal;
use crate::saga::state::{RowEvent, SagaRow, WorkerId};

pub(super) struct WatchedJournal {
    pub(super) inner: MemoryJournal,
    pub(super) watch: Arc<Watch>,
    #[cfg(feature = "sqlite")]
    pub(super) rows: Option<super::atomic_rows::AtomicRows>,
}

impl WatchedJournal {
    async fn after_write(&self, number: SagaNumber, fault: Option<WriteFault>) {
        match fault {
            Some(WriteFault::CrashAfter | WriteFault::Deadline) => self.watch.die().await,
            Some(WriteFault::Cancel) => {
                let cancelled = self.inner.change(number, SagaChange::of(RowEvent::Cancel)).await;
                let answer = cancelled.map(|changed| changed.answer);
                self.watch.say(format!("somebody cancels the saga: {answer:?}"));
            }
            Some(WriteFault::CrashBefore) | None => {}
        }
        self.watch.moved.notify_one();
    }

    #[cfg(feature = "sqlite")]
    fn around(&self, work: Arc<dyn AtomicWork>) -> Arc<dyn AtomicWork> {
        match &self.rows {
            Some(rows) => rows.around(work),
            None => work,
        }
    }

    #[cfg(not(feature = "sqlite"))]
    fn around(&self, work: Arc<dyn AtomicWork>) -> Arc<dyn AtomicWork> {
        work
    }

    #[cfg(feature = "sqlite")]
    fn end_tx(&self, end: Option<&AtomicEnd>) {
        if let Some(Err(error)) = self.rows.as_ref().map(|rows| rows.end(end)) {
            let what = format!("the transaction of an atomic step could not end: {error}");
            self.watch.broke(super::report::SagaRule::AtomicStepCommits, what);
        }
    }

    #[cfg(not(feature = "sqlite"))]
    fn end_tx(&self, _: Option<&AtomicEnd>) {}
}

/// What a write is about, in a line.
fn described(change: &SagaChange) -> String {
    let entries: Vec<String> = change.entries.iter().map(entry).collect();
    let event = match change.event {
        RowEvent::Append { .. } => return entries.join(", "),
        RowEvent::Suspend { park: Some(reason), .. } => format!("parks: {}", reason.as_str()),
        RowEvent::Suspend { .. } => "waits".to_owned(),
        RowEvent::BeginUndo { cause, .. } => format!("begins to undo: {}", cause.as_str()),
        RowEvent::End { .. } => "ends".to_owned(),
        event => format!("{event:?}"),
    };
    if entries.is_empty() { event } else { format!("{}, {event}", entries.join(", ")) }
}

fn entry(entry: &NewEntry) -> String {
    format!("{} {} {}", entry.kind.as_str(), entry.op.as_str(), entry.step)
}

impl Journal for WatchedJournal {
    fn now(&self) -> Answering<'_, StoreTime> {
        self.inner.now()
    }

    fn join(&self, lease_ms: u64) -> Answering<'_, WorkerId> {
        self.inner.join(lease_ms)
    }

    fn renew(&self, worker: WorkerId, lease_ms: u64) -> Answering<'_, bool> {
        self.inner.renew(worker, lease_ms)
    }

    fn leave(&self, worker: WorkerId) -> Answering<'_, ()> {
        self.inner.leave(worker)
    }

    fn start(&self, saga: NewSaga) -> Answering<'_, SagaStarted> {
        self.inner.start(saga)
    }

    fn change(&self, number: SagaNumber, change: SagaChange) -> Answering<'_, SagaChanged> {
        Box::pin(async move {
            let (_, fault) = self.watch.begins_write(&described(&change));
            if fault == Some(WriteFault::CrashBefore) {
                return self.watch.die().await;
            }
            let changed = self.inner.change(number, change).await;
            self.after_write(number, fault).await;
            changed
        })
    }

    fn atomic<'a>(
        &'a self,
        number: SagaNumber,
        change: SagaChange,
        done: NewEntry,
        work: Arc<dyn AtomicWork>,
    ) -> Answering<'a, AtomicEnd> {
        Box::pin(async move {
            let entries = change.entries.iter().chain([&done]).map(entry).collect::<Vec<_>>();
            let (_, fault) = self.watch.begins_write(&format!("atomically: {}", entries.join(", ")));
            if fault == Some(WriteFault::CrashBefore) {
                return self.watch.die().await;
            }
            let end = self.inner.atomic(number, change, done, self.around(work)).await;
            self.end_tx(end.as_ref().ok());
            self.after_write(number, fault).await;
            end
        })
    }

    fn load(&self, number: SagaNumber) -> Answering<'_, Option<Loaded>> {
        self.inner.load(number)
    }

    fn look(&self, number: SagaNumber) -> Answering<'_, Option<SagaRecord>> {
        self.inner.look(number)
    }

    fn find(&self, id: IntentId) -> Answering<'_, Option<SagaRecord>> {
        self.inner.find(id)
    }

    fn take<'a>(
        &'a self,
        worker: WorkerId,
        definitions: &'a [DefinitionId],
        limit: usize,
    ) -> Answering<'a, Vec<(SagaNumber, SagaRow)>> {
        self.inner.take(worker, definitions, limit)
    }

    fn owned(&self, worker: WorkerId) -> Answering<'_, Vec<(SagaNumber, SagaRow)>> {
        self.inner.owned(worker)
    }

    fn signal(&self, number: SagaNumber, signal: Signal) -> Answering<'_, Signalled> {
        self.inner.signal(number, signal)
    }

    fn list(&self, filter: SagaFilter) -> Answering<'_, Vec<SagaRecord>> {
        self.inner.list(filter)
    }

    fn sweep(&self, limit: usize) -> Answering<'_, usize> {
        self.inner.sweep(limit)
    }
}
