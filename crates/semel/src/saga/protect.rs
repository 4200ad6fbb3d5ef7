//! A journal whose inputs, results, signals and outcomes are compressed or sealed.
//!
//! What the store's protection does for outcomes: one key writes, several read, and a seal is bound to where it stands.
//! A value that was moved to another saga, step, use of it, operation or kind of entry is refused. What a journal decides
//! and searches by is not covered: status, times, names of sagas, steps and signals, and the intent.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use sha2::{Digest, Sha256};

use super::engine::Engine;
use super::entry::{Entry, EntryKind, NewEntry, Op, StepId};
use super::journal::{
    Answering, AtomicEnd, AtomicWork, BODY_BYTES_MAX, DefinitionId, Journal, Loaded, MayRead, NewSaga,
    SagaChange, SagaChanged, SagaFigures, SagaFilter, SagaNumber, SagaRecord, SagaStarted, Signal, Signalled,
    TakenSaga, too_large,
};
use super::run::Left;
use super::state::{RowAnswer, RowEvent, SagaRow, WorkerId};
use super::step::{StepError, StepResult};
use super::step_tx::StepTx;
use crate::intent::identity::IntentId;
use crate::intent::policy::{StoreTime, millis};
use crate::store::protect::{Protection, Unreadable};
use crate::store::{ErrorKind, Fate, StoreError};

/// What the journal has is text, and no text begins with this byte.
const MARK: u8 = 0xff;
/// Behind the mark: the bytes as they were, because they begin with the mark themselves.
const AS_IT_IS: [u8; 2] = [MARK, 0];
const ENVELOPE: [u8; 2] = [MARK, 1];

/// How long a saga is put off that cannot be opened.
const PUT_OFF: Duration = Duration::from_secs(60);
/// How often it is tried to let go of a saga that gets signals at that moment.
const LET_GO_MAX: u32 = 5;

/// Wraps any journal, and compresses or seals what sagas get, do and say: inputs, results, refusals, signals, decisions.
///
/// All laws of the journal hold. A process whose keys cannot read a saga does not take it: it takes nothing at all and
/// says which key is missing. People without the keys see everything but the values.
///
/// ```
/// # #[cfg(feature = "seal")]
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// use semel::saga::{ProtectedJournal, SagasBuilder, memory::MemoryJournal};
/// use semel::store::protect::{Keys, Protection};
///
/// let keys = Keys::parse("2026-11 8c5bbd3c1d7c4b2e9f3e6f0f2b7a4d1e8c5bbd3c1d7c4b2e9f3e6f0f2b7a4d1e")?;
/// let journal = ProtectedJournal::new(MemoryJournal::new(), Protection::none().seal(keys));
/// let sagas = SagasBuilder::new(journal, "the shop").start();
/// # drop(sagas);
/// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
/// ```
#[derive(Clone, Debug)]
pub struct ProtectedJournal<J> {
    journal: J,
    protection: Protection,
}

/// Where a value stands: what its seal is bound to.
enum Place<'p> {
    /// The saga's input: its number is not known when it is sealed.
    Input(&'p IntentId),
    Outcome(SagaNumber),
    EntryInput(SagaNumber, &'p StepId, Op, EntryKind),
    EntryBody(SagaNumber, &'p StepId, Op, EntryKind),
    Signal(SagaNumber, &'p Signal),
}

impl Place<'_> {
    fn digest(&self) -> [u8; 32] {
        let mut digest = Sha256::new();
        digest.update(b"semel.saga\0");
        let mut part = |bytes: &[u8]| {
            digest.update((bytes.len() as u64).to_be_bytes());
            digest.update(bytes);
        };
        match self {
            Self::Input(id) => {
                part(b"input");
                part(id.as_bytes());
            }
            Self::Outcome(number) => {
                part(b"outcome");
                part(&number.0.to_be_bytes());
            }
            Self::Signal(number, signal) => {
                part(b"signal");
                part(&number.0.to_be_bytes());
                part(signal.id.as_bytes());
                part(signal.name.as_bytes());
            }
            Self::EntryInput(number, step, op, kind) | Self::EntryBody(number, step, op, kind) => {
                part(if matches!(self, Self::EntryInput(..)) { b"entry input" } else { b"entry body" });
                part(&number.0.to_be_bytes());
                part(step.name.as_bytes());
                part(&step.nth.to_be_bytes());
                part(op.as_str().as_bytes());
                part(kind.as_str().as_bytes());
            }
        }
        digest.finalize().into()
    }

    fn named(&self) -> String {
        match self {
            Self::Input(id) => format!("the input of the saga of intent {id}"),
            Self::Outcome(number) => format!("the outcome of saga {}", number.0),
            Self::EntryInput(number, step, ..) => format!("an input of {step} of saga {}", number.0),
            Self::EntryBody(number, step, _, kind) => {
                format!("what is recorded of {step} ({}) of saga {}", kind.as_str(), number.0)
            }
            Self::Signal(number, signal) => format!("the signal {} of saga {}", signal.name, number.0),
        }
    }
}

/// Whether a value is compressed or sealed, so that it cannot be read as it is: its key is missing, or it was read without a
/// [`ProtectedJournal`].
pub fn is_protected(value: &[u8]) -> bool {
    value.first() == Some(&MARK)
}

/// Whether a value is sealed with a key.
pub fn is_sealed(value: &[u8]) -> bool {
    key_of(value).is_some()
}

/// The error of something sealed where no [`ProtectedJournal`] is.
pub(super) fn may_read_plain(number: SagaNumber, input: &[u8]) -> Result<(), StoreError> {
    if is_protected(input) {
        let why = "it is compressed or sealed; open the journal as a `ProtectedJournal`, with the keys";
        return Err(unreadable_saga(number, why));
    }
    Ok(())
}

fn unreadable_saga(number: SagaNumber, why: &str) -> StoreError {
    let message = format!("saga {} cannot be read here, so nothing is taken: {why}", number.0);
    StoreError::new(ErrorKind::Misconfigured, Fate::NotApplied, message)
}

impl<J> ProtectedJournal<J> {
    /// Protects what goes into `journal`.
    pub fn new(journal: J, protection: Protection) -> Self {
        Self { journal, protection }
    }

    /// The wrapped journal.
    pub fn inner(&self) -> &J {
        &self.journal
    }

    /// For writing. The limit applies to what is written, not to its envelope.
    fn hide(&self, place: &Place<'_>, plain: Bytes) -> Result<Bytes, StoreError> {
        hide(&self.protection, place, plain)
    }

    fn hide_some(&self, place: &Place<'_>, plain: Option<Bytes>) -> Result<Option<Bytes>, StoreError> {
        plain.map(|plain| self.hide(place, plain)).transpose()
    }

    fn hide_entry(&self, number: SagaNumber, entry: NewEntry) -> Result<NewEntry, StoreError> {
        let NewEntry { kind, step, op, input, body, .. } = &entry;
        let input = self.hide_some(&Place::EntryInput(number, step, *op, *kind), input.clone())?;
        let body = self.hide_some(&Place::EntryBody(number, step, *op, *kind), body.clone())?;
        Ok(NewEntry { input, body, ..entry })
    }

    fn hide_change(&self, number: SagaNumber, change: SagaChange) -> Result<SagaChange, StoreError> {
        let entries = change.entries.into_iter().map(|entry| self.hide_entry(number, entry));
        let entries = entries.collect::<Result<_, _>>()?;
        let outcome = self.hide_some(&Place::Outcome(number), change.outcome)?;
        Ok(SagaChange { entries, outcome, ..change })
    }

    /// For reading. What this process has no key for stays as it is stored, so that the rest can be shown; what runs
    /// the saga looks for that. What was changed or moved is an error.
    fn show(&self, place: &Place<'_>, stored: Bytes) -> Result<Bytes, StoreError> {
        match show(&self.protection, place, &stored) {
            Ok(plain) => Ok(plain),
            Err(unreadable) if unreadable.kind == ErrorKind::Misconfigured => Ok(stored),
            Err(unreadable) => Err(unreadable.about(&place.named(), ". It is kept unchanged")),
        }
    }

    fn show_some(&self, place: &Place<'_>, stored: Option<Bytes>) -> Result<Option<Bytes>, StoreError> {
        stored.map(|stored| self.show(place, stored)).transpose()
    }

    fn show_record(&self, record: SagaRecord) -> Result<SagaRecord, StoreError> {
        let input = self.show(&Place::Input(&record.intent.id()), record.input)?;
        let outcome = self.show_some(&Place::Outcome(record.number), record.outcome)?;
        Ok(SagaRecord { input, outcome, ..record })
    }

    fn show_entry(&self, number: SagaNumber, entry: Entry) -> Result<Entry, StoreError> {
        let Entry { kind, step, op, input, body, .. } = &entry;
        let input = self.show_some(&Place::EntryInput(number, step, *op, *kind), input.clone())?;
        let body = self.show_some(&Place::EntryBody(number, step, *op, *kind), body.clone())?;
        Ok(Entry { input, body, ..entry })
    }

    fn show_loaded(&self, loaded: Loaded) -> Result<Loaded, StoreError> {
        let number = loaded.record.number;
        let record = self.show_record(loaded.record)?;
        let entries = loaded.entries.into_iter().map(|entry| self.show_entry(number, entry));
        let signals = loaded.signals.into_iter().map(|signal| {
            let body = self.show(&Place::Signal(number, &signal), signal.body.clone())?;
            Ok(Signal { body, ..signal })
        });
        let entries = entries.collect::<Result<_, StoreError>>()?;
        let signals = signals.collect::<Result<_, StoreError>>()?;
        Ok(Loaded { record, entries, signals, now: loaded.now })
    }
}

fn hide(protection: &Protection, place: &Place<'_>, plain: Bytes) -> Result<Bytes, StoreError> {
    if plain.len() > BODY_BYTES_MAX {
        return Err(too_large(plain.len()));
    }
    let (mark, content) = match protection.wrap(place.digest(), 0, &plain)? {
        Some(envelope) => (ENVELOPE, envelope),
        None if is_protected(&plain) => (AS_IT_IS, plain),
        None => return Ok(plain),
    };
    let mut stored = BytesMut::with_capacity(mark.len() + content.len());
    stored.put_slice(&mark);
    stored.put_slice(&content);
    Ok(stored.freeze())
}

fn show(protection: &Protection, place: &Place<'_>, stored: &Bytes) -> Result<Bytes, Unreadable> {
    if stored.starts_with(&ENVELOPE) {
        return protection.unwrap(place.digest(), 0, &stored[ENVELOPE.len()..], BODY_BYTES_MAX);
    }
    protection.check_plain()?;
    Ok(if stored.starts_with(&AS_IT_IS) { stored.slice(AS_IT_IS.len()..) } else { stored.clone() })
}

/// The id of the key that a stored value is sealed with, from its beginning.
fn key_of(head: &[u8]) -> Option<&[u8]> {
    const SEALED: u8 = 2;
    let [_version, flags, len, rest @ ..] = head.strip_prefix(&ENVELOPE)? else { return None };
    rest.get(..usize::from(*len)).filter(|_| flags & SEALED != 0)
}

/// An atomic step whose result is stored protected, in the step's own transaction.
struct Protecting {
    work: Arc<dyn AtomicWork>,
    protection: Protection,
    number: SagaNumber,
    done: NewEntry,
}

impl AtomicWork for Protecting {
    fn run<'t>(
        &'t self,
        tx: &'t mut StepTx<'_>,
    ) -> Pin<Box<dyn Future<Output = StepResult<Bytes>> + Send + 't>> {
        Box::pin(async move {
            let result = self.work.run(tx).await?;
            let NewEntry { kind, step, op, .. } = &self.done;
            let place = Place::EntryBody(self.number, step, *op, *kind);
            // Nothing is committed yet.
            hide(&self.protection, &place, result).map_err(StepError::not_applied)
        })
    }
}

impl<J: Journal> Journal for ProtectedJournal<J> {
    fn now(&self) -> Answering<'_, StoreTime> {
        self.journal.now()
    }

    fn join(&self, lease_ms: u64) -> Answering<'_, WorkerId> {
        self.journal.join(lease_ms)
    }

    fn renew(&self, worker: WorkerId, lease_ms: u64) -> Answering<'_, bool> {
        self.journal.renew(worker, lease_ms)
    }

    fn leave(&self, worker: WorkerId) -> Answering<'_, ()> {
        self.journal.leave(worker)
    }

    fn start(&self, saga: NewSaga) -> Answering<'_, SagaStarted> {
        Box::pin(async move {
            let input = self.hide(&Place::Input(&saga.intent.id()), saga.input)?;
            match self.journal.start(NewSaga { input, ..saga }).await? {
                SagaStarted::Existing(record) => {
                    Ok(SagaStarted::Existing(Box::new(self.show_record(*record)?)))
                }
                new @ SagaStarted::New { .. } => Ok(new),
            }
        })
    }

    fn change(&self, number: SagaNumber, change: SagaChange) -> Answering<'_, SagaChanged> {
        Box::pin(async move {
            let change = self.hide_change(number, change)?;
            self.journal.change(number, change).await
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
            let change = self.hide_change(number, change)?;
            let hidden = self.hide_entry(number, done.clone())?;
            let protection = self.protection.clone();
            let work = Arc::new(Protecting { work, protection, number, done: done.clone() });
            let end = self.journal.atomic(number, change, hidden, work).await?;
            let AtomicEnd::Done { result, now } = end else { return Ok(end) };
            let place = Place::EntryBody(number, &done.step, done.op, done.kind);
            // It may have been there before. The code must not go on with what it cannot read, and it happened: whatever
            // the reason is, nothing may follow from it.
            let result = show(&self.protection, &place, &result).map_err(|mut unreadable| {
                unreadable.kind = ErrorKind::Corrupt;
                unreadable.about(&place.named(), ". It is kept unchanged")
            })?;
            Ok(AtomicEnd::Done { result, now })
        })
    }

    fn load(&self, number: SagaNumber) -> Answering<'_, Option<Loaded>> {
        Box::pin(async move {
            let loaded = self.journal.load(number).await?;
            loaded.map(|loaded| self.show_loaded(loaded)).transpose()
        })
    }

    fn look(&self, number: SagaNumber) -> Answering<'_, Option<SagaRecord>> {
        Box::pin(async move {
            let record = self.journal.look(number).await?;
            record.map(|record| self.show_record(record)).transpose()
        })
    }

    fn find(&self, id: IntentId) -> Answering<'_, Option<SagaRecord>> {
        Box::pin(async move {
            let record = self.journal.find(id).await?;
            record.map(|record| self.show_record(record)).transpose()
        })
    }

    fn take<'a>(
        &'a self,
        worker: WorkerId,
        definitions: &'a [DefinitionId],
        limit: usize,
    ) -> Answering<'a, Vec<(SagaNumber, SagaRow)>> {
        Box::pin(async move {
            let may_read: Arc<MayRead> = Arc::new(may_read_plain);
            let taken = self.take_readable(worker, definitions, limit, may_read).await?;
            Ok(taken.into_iter().map(|taken| (taken.number, taken.row)).collect())
        })
    }

    fn take_readable<'a>(
        &'a self,
        worker: WorkerId,
        definitions: &'a [DefinitionId],
        limit: usize,
        _: Arc<MayRead>,
    ) -> Answering<'a, Vec<TakenSaga>> {
        let protection = self.protection.clone();
        let may_read = move |number: SagaNumber, head: &[u8]| match key_of(head) {
            Some(key) if !protection.has_key(key) => {
                let key = String::from_utf8_lossy(key);
                let why =
                    format!("it is sealed with the key {key:?}, which this process does not have; add it");
                Err(unreadable_saga(number, &why))
            }
            _ => Ok(()),
        };
        self.journal.take_readable(worker, definitions, limit, Arc::new(may_read))
    }

    fn figures(&self, overdue_ms: u64) -> Answering<'_, Option<SagaFigures>> {
        self.journal.figures(overdue_ms)
    }

    fn owned(&self, worker: WorkerId) -> Answering<'_, Vec<(SagaNumber, SagaRow)>> {
        self.journal.owned(worker)
    }

    fn signal(&self, number: SagaNumber, signal: Signal) -> Answering<'_, Signalled> {
        Box::pin(async move {
            let body = self.hide(&Place::Signal(number, &signal), signal.body.clone())?;
            self.journal.signal(number, Signal { body, ..signal }).await
        })
    }

    fn list(&self, filter: SagaFilter) -> Answering<'_, Vec<SagaRecord>> {
        Box::pin(async move {
            let records = self.journal.list(filter).await?;
            // A list is for people: one value that was tampered with does not hide the others.
            let shown = records.into_iter().map(|record| {
                let as_stored = record.clone();
                self.show_record(record).unwrap_or(as_stored)
            });
            Ok(shown.collect())
        })
    }

    fn sweep(&self, limit: usize) -> Answering<'_, usize> {
        self.journal.sweep(limit)
    }
}

impl Loaded {
    /// Something of it cannot be read here: its key is missing, or it was read without a [`ProtectedJournal`].
    pub fn is_protected(&self) -> bool {
        self.values().any(|value| is_protected(value))
    }

    /// Something of it is sealed, as it was read.
    pub fn is_sealed(&self) -> bool {
        self.values().any(|value| is_sealed(value))
    }

    fn values(&self) -> impl Iterator<Item = &Bytes> {
        let entries = self.entries.iter().flat_map(|entry| [&entry.input, &entry.body]).flatten();
        let signals = self.signals.iter().map(|signal| &signal.body);
        entries.chain(signals).chain([&self.record.input]).chain(&self.record.outcome)
    }
}

impl<App: Send + Sync + ?Sized + 'static> Engine<App> {
    /// Gives back a saga that cannot be read here: a key is missing. From now on this process takes none, because it would
    /// take the same one again; what it runs goes on.
    pub(super) async fn give_back(&self, number: SagaNumber, row: SagaRow, now: StoreTime) -> Left {
        let why = format!("saga {} has values that are sealed with a key that is missing here", number.0);
        tracing::error!(
            number = number.0,
            why,
            "a saga cannot be read and is given back; this process takes no sagas any more"
        );
        let _ = self.unreadable.set(why);
        self.let_go(number, row, now).await;
        Left::Lost
    }

    /// Puts off a saga that cannot be opened here, so that a process with the right key can take it. This one goes on
    /// with others.
    pub(super) async fn put_off(&self, number: SagaNumber, row: SagaRow, why: &str) {
        tracing::error!(
            number = number.0,
            why,
            "a saga cannot be opened and is put off for a minute: compare this process's keys, byte by byte, and its settings \
             with those of the others; if they are the same, somebody changed the saga in the database"
        );
        let now = self.persist("read the journal's clock", || self.journal.now()).await;
        if let Ok(now) = now {
            self.let_go(number, row, now.plus_ms(millis(PUT_OFF))).await;
        }
    }

    /// Lets go of a saga that cannot be run here, also when signals come meanwhile. If it fails, this worker looks at what
    /// it has again after a lease.
    async fn let_go(&self, number: SagaNumber, row: SagaRow, due_at: StoreTime) {
        let (epoch, mut signals) = (row.epoch, row.signals);
        for _ in 0..LET_GO_MAX {
            let event = RowEvent::Suspend { epoch, park: None, due_at: Some(due_at), signals };
            match self.change(number, SagaChange::of(event)).await {
                Ok(SagaChanged { answer: RowAnswer::Signalled, row: Some(row), .. }) => signals = row.signals,
                _ => return,
            }
        }
    }
}
