//! The laws every [`Journal`] of sagas keeps: one function per law, in [`LAWS`]. A law panics when an answer is wrong.
//!
//! They may share one database: each uses intents, names and workers of its own.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;

use crate::intent::fingerprint::Recipe;
use crate::intent::identity::{Intent, Operation};
use crate::intent::key::Key;
use crate::intent::policy::StoreTime;
use crate::intent::scope::Scope;
use crate::saga::{
    AtomicEnd, AtomicWork, BODY_BYTES_MAX, DefinitionId, EntryKind, Journal, Loaded, NewEntry, NewSaga, Op,
    ParkReason, RowAnswer, RowEvent, Safe, SagaChange, SagaFilter, SagaNumber, SagaStarted, Signal,
    Signalled, Status, StepError, StepId, StepResult, StepTx, UndoCause, WorkerId,
};
use crate::store::{ErrorKind, Fate, StoreError};

/// A law.
pub type Law = for<'j> fn(&'j Arc<dyn Journal>) -> Pin<Box<dyn Future<Output = ()> + 'j>>;

macro_rules! laws {
    ($($(#[$doc:meta])* async fn $law:ident($journal:ident) $body:block)+) => {
        $($(#[$doc])*
        pub async fn $law($journal: &Arc<dyn Journal>) $body)+

        /// All laws with their names.
        pub const LAWS: &[(&str, Law)] = &[$((stringify!($law), |journal| Box::pin($law(journal)))),+];
    };
}

/// A lease that is over soon.
const SHORT_MS: u64 = 30;
const LONG_MS: u64 = 3_600_000;

/// What a journal answers in the end: a busy one is asked again for half a minute.
async fn answered<T>(mut ask: impl AsyncFnMut() -> Result<T, StoreError>) -> T {
    for _ in 0..300 {
        match ask().await {
            Ok(answer) => return answer,
            Err(error) if error.kind() == ErrorKind::Busy && error.fate() == Fate::NotApplied => {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            Err(error) => panic!("the journal failed: {error}"),
        }
    }
    panic!("the journal was busy for half a minute")
}

fn unique(name: &str) -> String {
    format!("{name}.{}", &Key::random().as_str()[..8])
}

fn new(name: &str, worker: Option<WorkerId>) -> NewSaga {
    let scope = Scope::tenant("laws").expect("a valid tenant");
    let operation = Operation::new("saga").expect("a valid operation");
    NewSaga {
        intent: Intent::new(scope, operation, Key::random()),
        fingerprint: Recipe::default().value(&7).expect("a number"),
        name: name.to_owned(),
        version: 2,
        input: Bytes::from_static(b"{\"sku\":\"\xc3\xa9\"}"),
        deadline_ms: Some(LONG_MS),
        worker,
    }
}

async fn join(journal: &Arc<dyn Journal>) -> WorkerId {
    answered(async || journal.join(LONG_MS).await).await
}

async fn started(journal: &Arc<dyn Journal>, new: NewSaga) -> SagaNumber {
    match answered(async || journal.start(new.clone()).await).await {
        SagaStarted::New { number, .. } => number,
        SagaStarted::Existing(_) => panic!("a saga of a new intent was there"),
    }
}

async fn started_together(journal: &Arc<dyn Journal>, new: &[NewSaga]) -> Vec<SagaNumber> {
    join_all(new.iter().map(|saga| started(journal, saga.clone()))).await
}

async fn change(journal: &Arc<dyn Journal>, number: SagaNumber, change: SagaChange) -> RowAnswer {
    answered(async || journal.change(number, change.clone()).await).await.answer
}

async fn event(journal: &Arc<dyn Journal>, number: SagaNumber, event: RowEvent) -> RowAnswer {
    change(journal, number, SagaChange::of(event)).await
}

fn id(name: &str) -> StepId {
    StepId { name: name.to_owned(), nth: 0 }
}

fn begin(step: &str) -> NewEntry {
    NewEntry {
        kind: EntryKind::Begin,
        step: id(step),
        op: Op::Forward,
        attempt: 1,
        safe: Safe::ForMs(5_000),
        input: Some(Bytes::from_static(b"[1]")),
        body: None,
    }
}

fn done(step: &str) -> NewEntry {
    let body = Some(Bytes::from_static(b"\"done\""));
    NewEntry { kind: EntryKind::Done, safe: Safe::Always, input: None, body, ..begin(step) }
}

fn append(epoch: u64) -> RowEvent {
    RowEvent::Append { epoch, undoing: false, heeds_cancel: false }
}

fn suspend(epoch: u64, due_at: Option<StoreTime>, signals: u32) -> RowEvent {
    RowEvent::Suspend { epoch, park: None, due_at, signals }
}

async fn load(journal: &Arc<dyn Journal>, number: SagaNumber) -> crate::saga::Loaded {
    answered(async || journal.load(number).await).await.expect("the saga is there")
}

async fn take(journal: &Arc<dyn Journal>, worker: WorkerId, name: &str, version: u32) -> Vec<SagaNumber> {
    let of = [DefinitionId { name: name.to_owned(), version }];
    let taken = answered(async || journal.take(worker, &of, 100).await).await;
    taken.into_iter().map(|(number, _)| number).collect()
}

struct Writes {
    ran: AtomicU32,
    ends: StepResult<Bytes>,
}

impl Writes {
    fn new(ends: StepResult<Bytes>) -> Arc<Self> {
        Arc::new(Self { ran: AtomicU32::new(0), ends })
    }
}

impl AtomicWork for Writes {
    fn run<'t>(
        &'t self,
        _tx: &'t mut StepTx<'_>,
    ) -> Pin<Box<dyn Future<Output = StepResult<Bytes>> + Send + 't>> {
        self.ran.fetch_add(1, Ordering::Relaxed);
        Box::pin(std::future::ready(self.ends.clone()))
    }
}

laws! {
    /// An intent has one saga, however many callers start it at once. Otherwise an order is carried out twice.
    async fn an_intent_has_one_saga(journal) {
        let saga = new(&unique("one"), None);
        let starts = join_all((0..8).map(|_| answered(async || journal.start(saga.clone()).await))).await;
        let (mut numbers, mut fresh) = (Vec::new(), 0);
        for start in starts {
            match start {
                SagaStarted::New { number, row, .. } => {
                    assert_eq!((row.epoch, row.status), (1, Status::Running));
                    fresh += 1;
                    numbers.push(number);
                }
                SagaStarted::Existing(found) => {
                    assert_eq!(found.intent.id(), saga.intent.id());
                    assert_eq!(found.fingerprint, saga.fingerprint);
                    numbers.push(found.number);
                }
            }
        }
        numbers.dedup();
        assert_eq!((numbers.len(), fresh), (1, 1), "eight starts of one intent");
        let found = answered(async || journal.find(saga.intent.id()).await).await.expect("it is found");
        assert_eq!(found.number, numbers[0]);
        assert!(answered(async || journal.find(new("x", None).intent.id()).await).await.is_none());
    }

    /// What is written is read as it was.
    async fn what_is_written_is_read(journal) {
        let worker = join(journal).await;
        let saga = new(&unique("read"), Some(worker));
        let number = started(journal, saga.clone()).await;
        let mut refused = done("a");
        (refused.kind, refused.op, refused.attempt) = (EntryKind::Refused, Op::Pivot, 3);
        let entries = vec![begin("a"), refused.clone()];
        let first = SagaChange::new(append(1), 0, entries);
        assert_eq!(change(journal, number, first).await, RowAnswer::Done);
        let sent = Signal { id: "s1".to_owned(), name: "go".to_owned(), body: Bytes::from_static(b"{}") };
        assert_eq!(answered(async || journal.signal(number, sent.clone()).await).await, Signalled::Recorded);
        let loaded = load(journal, number).await;
        let record = &loaded.record;
        assert_eq!((&record.name, record.version, &record.input), (&saga.name, 2, &saga.input));
        assert_eq!((record.intent.id(), record.fingerprint), (saga.intent.id(), saga.fingerprint));
        assert_eq!(record.row.deadline, Some(record.created_at.plus_ms(LONG_MS)));
        assert_eq!((record.row.worker, record.row.signals, loaded.signals), (Some(worker), 1, vec![sent]));
        let [one, other] = &loaded.entries[..] else { panic!("{:?}", loaded.entries) };
        assert_eq!((one.seq, one.kind, &one.step, one.epoch), (0, EntryKind::Begin, &id("a"), 1));
        assert_eq!((one.safe_until, one.input.as_deref()), (Some(one.at.plus_ms(5_000)), Some(&b"[1]"[..])));
        assert_eq!((other.kind, other.op, other.attempt), (EntryKind::Refused, Op::Pivot, 3));
        assert_eq!((&other.body, other.safe_until, &other.input), (&refused.body, None, &None));
        assert!(loaded.now >= one.at && answered(async || journal.now().await).await >= loaded.now);
    }

    /// A worker whose saga another one has taken writes nothing. Otherwise two go on with one saga.
    async fn an_old_epoch_changes_nothing(journal) {
        let name = unique("epoch");
        let worker = join(journal).await;
        let number = started(journal, new(&name, Some(worker))).await;
        answered(async || journal.leave(worker).await).await;
        let next = join(journal).await;
        assert_eq!(take(journal, next, &name, 2).await, [number]);
        let late = SagaChange::new(append(1), 0, vec![begin("late")]);
        assert_eq!(change(journal, number, late).await, RowAnswer::Lost);
        for late in [
            suspend(1, None, 0),
            RowEvent::BeginUndo { worker, epoch: 1, cause: UndoCause::Refused },
            RowEvent::End { epoch: 1, heeds_cancel: false, retention_ms: None },
        ] {
            assert_eq!(event(journal, number, late).await, RowAnswer::Lost, "{late:?}");
        }
        let loaded = load(journal, number).await;
        assert_eq!((loaded.record.row.epoch, loaded.record.row.worker), (2, Some(next)));
        assert!(loaded.entries.is_empty());
    }

    /// A change whose answer was lost is sent again and counts once; another entry with a taken number is refused.
    async fn a_change_sent_again_counts_once(journal) {
        let worker = join(journal).await;
        let number = started(journal, new(&unique("again"), Some(worker))).await;
        let first = SagaChange::new(append(1), 0, vec![begin("a"), done("a")]);
        for _ in 0..2 {
            assert_eq!(change(journal, number, first.clone()).await, RowAnswer::Done);
        }
        assert_eq!(load(journal, number).await.entries.len(), 2);
        let other = SagaChange::new(append(1), 1, vec![begin("b")]);
        let refused = journal.change(number, other).await.expect_err("an entry was overwritten");
        assert_eq!((refused.kind(), refused.fate()), (ErrorKind::Corrupt, Fate::NotApplied));
        let second = SagaChange::new(append(1), 1, vec![done("a"), begin("b")]);
        assert_eq!(change(journal, number, second).await, RowAnswer::Done);
        assert_eq!(load(journal, number).await.entries.len(), 3);
    }

    /// A worker whose lease is over never comes back, and its sagas are taken. Otherwise a process that stood still goes
    /// on with what another one has.
    async fn a_lapsed_worker_never_comes_back(journal) {
        let name = unique("lapsed");
        let worker = answered(async || journal.join(SHORT_MS).await).await;
        let number = started(journal, new(&name, Some(worker))).await;
        let healthy = join(journal).await;
        tokio::time::sleep(Duration::from_millis(SHORT_MS * 2)).await;
        assert!(!answered(async || journal.renew(worker, LONG_MS).await).await, "it was renewed too late");
        assert_eq!(take(journal, worker, &name, 2).await, []);
        assert_eq!(take(journal, healthy, &name, 2).await, [number]);
        assert!(!answered(async || journal.renew(worker, LONG_MS).await).await);
        assert!(answered(async || journal.renew(healthy, LONG_MS).await).await);
        assert_eq!(take(journal, join(journal).await, &name, 2).await, [], "the healthy worker has it");
    }

    /// A worker takes what is due, of definitions that it knows, and that no other worker has.
    async fn what_is_due_is_taken_once(journal) {
        let name = unique("due");
        let (one, other) = (join(journal).await, join(journal).await);
        let due = started(journal, new(&name, None)).await;
        let waits = started(journal, new(&name, Some(one))).await;
        let later = answered(async || journal.now().await).await.plus_ms(LONG_MS);
        assert_eq!(event(journal, waits, suspend(1, Some(later), 0)).await, RowAnswer::Done);
        let newer = NewSaga { version: 3, ..new(&name, None) };
        started(journal, newer).await;
        assert_eq!(take(journal, one, &unique("other"), 9).await, []);
        assert_eq!(take(journal, one, &name, 1).await, [], "a newer version was taken");
        let (first, second) = tokio::join!(take(journal, one, &name, 2), take(journal, other, &name, 2));
        let mut taken = [first.clone(), second.clone()].concat();
        assert_eq!(taken, [due], "{first:?} {second:?}");
        let owner = if first.is_empty() { other } else { one };
        let owned = answered(async || journal.owned(owner).await).await;
        taken = owned.into_iter().map(|(number, _)| number).collect();
        assert_eq!(taken, [due]);
        assert_eq!(load(journal, due).await.record.row.epoch, 2);
    }

    /// A worker that lets go of a saga has seen its signals, or keeps it. Otherwise an approval is missed.
    async fn no_signal_is_missed(journal) {
        let name = unique("signal");
        let worker = join(journal).await;
        let number = started(journal, new(&name, Some(worker))).await;
        let send = async |id: &str| {
            let body = Bytes::from_static(b"1");
            let signal = Signal { id: id.to_owned(), name: "go".to_owned(), body };
            answered(async || journal.signal(number, signal.clone()).await).await
        };
        assert_eq!((send("b").await, send("a").await), (Signalled::Recorded, Signalled::Recorded));
        assert_eq!(send("b").await, Signalled::Already);
        assert_eq!(event(journal, number, suspend(1, None, 0)).await, RowAnswer::Signalled);
        assert_eq!(load(journal, number).await.record.row.worker, Some(worker), "it keeps the saga");
        let ids = load(journal, number).await.signals.into_iter().map(|signal| signal.id);
        assert_eq!(ids.collect::<Vec<_>>(), ["b", "a"], "in the order in which they came");
        assert_eq!(event(journal, number, suspend(1, None, 2)).await, RowAnswer::Done);
        assert_eq!(take(journal, worker, &name, 2).await, [], "it waits");
        assert_eq!(send("c").await, Signalled::Recorded);
        assert_eq!(take(journal, worker, &name, 2).await, [number], "a signal wakes it");
        assert_eq!(event(journal, number, RowEvent::Cancel).await, RowAnswer::Done);
        // Its pivot does not begin any more, and it does not complete without one.
        let pivot = RowEvent::Append { epoch: 2, undoing: false, heeds_cancel: true };
        let pivot = SagaChange::new(pivot, 0, vec![begin("pivot")]);
        assert_eq!(change(journal, number, pivot).await, RowAnswer::Refused);
        assert!(load(journal, number).await.entries.is_empty(), "a pivot began after the cancel");
        let end = RowEvent::End { epoch: 2, heeds_cancel: true, retention_ms: None };
        let end = SagaChange::new(end, 0, vec![done("a")]);
        assert_eq!(change(journal, number, end).await, RowAnswer::Signalled);
        let loaded = load(journal, number).await;
        assert_eq!((loaded.entries.len(), loaded.record.row.worker), (1, Some(worker)), "it keeps the saga");
        assert_eq!(event(journal, number, RowEvent::End { epoch: 2, heeds_cancel: false, retention_ms: None }).await, RowAnswer::Done);
        assert_eq!((send("d").await, send("c").await), (Signalled::TooLate, Signalled::Already));
        assert_eq!(event(journal, number, RowEvent::Cancel).await, RowAnswer::Refused);
    }

    /// Undoing begins with a new epoch: what went forward until then writes nothing any more.
    async fn undoing_fences_what_went_forward(journal) {
        let worker = join(journal).await;
        let number = started(journal, new(&unique("undo"), Some(worker))).await;
        let begin_undo = RowEvent::BeginUndo { worker, epoch: 1, cause: UndoCause::Deadline };
        let with = SagaChange::new(begin_undo, 0, vec![begin("a")]);
        assert_eq!(change(journal, number, with.clone()).await, RowAnswer::Done);
        assert_eq!(change(journal, number, with).await, RowAnswer::Already);
        let late = SagaChange::new(append(1), 1, vec![done("a")]);
        assert_eq!(change(journal, number, late).await, RowAnswer::Lost);
        let loaded = load(journal, number).await;
        let row = loaded.record.row;
        assert_eq!((row.status, row.undo, row.epoch), (Status::Undoing, Some(UndoCause::Deadline), 2));
        assert_eq!((loaded.entries.len(), loaded.entries[0].epoch), (1, 1));
        let park = RowEvent::Suspend { epoch: 2, park: Some(ParkReason::UndoStuck), due_at: None, signals: 0 };
        assert_eq!(event(journal, number, park).await, RowAnswer::Done);
        let row = load(journal, number).await.record.row;
        assert_eq!((row.status, row.reason, row.worker), (Status::Parked, Some(ParkReason::UndoStuck), None));
        assert_eq!(event(journal, number, RowEvent::Decide { epoch: 2 }).await, RowAnswer::Done);
        assert_eq!(load(journal, number).await.record.row.status, Status::Undoing);
    }

    /// An ended saga keeps its result until its retention is over; then its intent may begin anew.
    async fn an_ended_saga_is_kept_and_then_forgotten(journal) {
        let worker = join(journal).await;
        let saga = new(&unique("end"), Some(worker));
        let number = started(journal, saga.clone()).await;
        let end = RowEvent::End { epoch: 1, heeds_cancel: false, retention_ms: Some(SHORT_MS) };
        let mut with = SagaChange::new(end, 0, vec![begin("a"), done("a")]);
        with.outcome = Some(Bytes::from_static(b"42"));
        assert_eq!(change(journal, number, with.clone()).await, RowAnswer::Done);
        assert_eq!(change(journal, number, with).await, RowAnswer::Already);
        let loaded = load(journal, number).await;
        assert_eq!((loaded.record.row.status, loaded.record.outcome.as_deref()), (Status::Completed, Some(&b"42"[..])));
        assert_eq!(loaded.entries.len(), 2);
        let kept = started(journal, new(&unique("kept"), Some(worker))).await;
        assert_eq!(event(journal, kept, RowEvent::End { epoch: 1, heeds_cancel: false, retention_ms: Some(LONG_MS) }).await, RowAnswer::Done);
        tokio::time::sleep(Duration::from_millis(SHORT_MS * 2)).await;
        while answered(async || journal.load(number).await).await.is_some() {
            answered(async || journal.sweep(10).await).await;
        }
        assert!(answered(async || journal.load(kept).await).await.is_some(), "one was forgotten too early");
        let again = started(journal, saga).await;
        assert!(again > number, "a number was used again");
        assert!(load(journal, again).await.entries.is_empty());
    }

    /// An atomic step and its entry are one commit: its work runs once, whatever became of the answer.
    async fn an_atomic_step_is_one_commit(journal) {
        let worker = join(journal).await;
        let number = started(journal, new(&unique("atomic"), Some(worker))).await;
        let run = async |from_seq: u32, work: &Arc<Writes>| {
            let change = SagaChange::new(append(1), from_seq, vec![begin("before")]);
            let done = NewEntry { body: None, ..done("row") };
            answered(async || journal.atomic(number, change.clone(), done.clone(), work.clone()).await).await
        };
        let fails = Writes::new(Err(StepError::refused("no")));
        assert!(matches!(run(0, &fails).await, AtomicEnd::Failed(StepError::Refused(why)) if why == "no"));
        assert!(load(journal, number).await.entries.is_empty(), "nothing of a failed step is written");
        let works = Writes::new(Ok(Bytes::from_static(b"7")));
        for _ in 0..2 {
            assert!(matches!(run(0, &works).await, AtomicEnd::Done { result, .. } if &result[..] == b"7"));
        }
        assert_eq!(works.ran.load(Ordering::Relaxed), 1, "it was done, and ran again");
        let entries = load(journal, number).await.entries;
        let [before, row] = &entries[..] else { panic!("{entries:?}") };
        assert_eq!((before.kind, row.kind, row.seq), (EntryKind::Begin, EntryKind::Done, 1));
        assert_eq!(row.body.as_deref(), Some(&b"7"[..]));
    }

    /// An atomic step of a worker that has lost its saga, or that undoing has overtaken, does not run.
    async fn an_atomic_step_of_an_old_epoch_does_not_run(journal) {
        let worker = join(journal).await;
        let number = started(journal, new(&unique("stale"), Some(worker))).await;
        let begin_undo = RowEvent::BeginUndo { worker, epoch: 1, cause: UndoCause::Cancelled };
        assert_eq!(event(journal, number, begin_undo).await, RowAnswer::Done);
        let works = Writes::new(Ok(Bytes::from_static(b"7")));
        for event in [append(1), append(2)] {
            let change = SagaChange::new(event, 0, Vec::new());
            let ended = answered(async || {
                journal.atomic(number, change.clone(), done("row"), works.clone()).await
            });
            assert!(matches!(ended.await, AtomicEnd::Lost));
        }
        assert_eq!(works.ran.load(Ordering::Relaxed), 0);
        assert!(load(journal, number).await.entries.is_empty());
    }

    /// What is too large is refused before anything is written.
    async fn what_is_too_large_is_refused(journal) {
        let large = Bytes::from(vec![b'x'; BODY_BYTES_MAX + 1]);
        let refused = journal.start(NewSaga { input: large.clone(), ..new(&unique("large"), None) }).await;
        assert_eq!(refused.expect_err("it is too large").kind(), ErrorKind::TooLarge);
        let worker = join(journal).await;
        let number = started(journal, new(&unique("large"), Some(worker))).await;
        let entry = NewEntry { body: Some(large.clone()), ..done("a") };
        let refused = journal.change(number, SagaChange::new(append(1), 0, vec![begin("a"), entry])).await;
        assert_eq!(refused.expect_err("it is too large").kind(), ErrorKind::TooLarge);
        let end = SagaChange::of(RowEvent::End { epoch: 1, heeds_cancel: false, retention_ms: None });
        let end = SagaChange { outcome: Some(large.clone()), ..end };
        let refused = journal.change(number, end).await;
        assert_eq!(refused.expect_err("it is too large").kind(), ErrorKind::TooLarge);
        let signal = Signal { id: "s".to_owned(), name: "go".to_owned(), body: large };
        assert_eq!(journal.signal(number, signal).await.expect_err("it is too large").kind(), ErrorKind::TooLarge);
        let loaded = load(journal, number).await;
        assert!(loaded.entries.is_empty() && loaded.signals.is_empty());
        let full = NewEntry { body: Some(Bytes::from(vec![b'x'; BODY_BYTES_MAX])), ..done("a") };
        assert_eq!(change(journal, number, SagaChange::new(append(1), 0, vec![full])).await, RowAnswer::Done);
    }

    /// A listing has what was asked for, newest first, in pages.
    async fn a_listing_has_what_was_asked_for(journal) {
        let name = unique("list");
        let worker = join(journal).await;
        let mut numbers = Vec::new();
        for _ in 0..4 {
            numbers.push(started(journal, new(&name, Some(worker))).await);
        }
        assert_eq!(event(journal, numbers[1], RowEvent::End { epoch: 1, heeds_cancel: false, retention_ms: None }).await, RowAnswer::Done);
        let list = async |filter: SagaFilter| {
            let listed = answered(async || journal.list(filter.clone()).await).await;
            listed.into_iter().map(|record| record.number).collect::<Vec<_>>()
        };
        let of_name = SagaFilter { name: Some(name.clone()), ..SagaFilter::default() };
        numbers.reverse();
        assert_eq!(list(of_name.clone()).await, numbers);
        let page = SagaFilter { before: Some(numbers[0]), limit: 2, ..of_name.clone() };
        assert_eq!(list(page).await, numbers[1..3]);
        let ended = SagaFilter { statuses: vec![Status::Completed], ..of_name.clone() };
        assert_eq!(list(ended).await, [numbers[2]]);
        let parked = SagaFilter { statuses: vec![Status::Parked], ..of_name };
        assert_eq!(list(parked).await, []);
    }

    /// Changes of many sagas that come together are decided one by one: of one whose epoch is over nothing is written, and
    /// the others are. Otherwise two workers go on with one saga, or a takeover stops sagas that it is not about.
    async fn a_lost_change_takes_no_other_with_it(journal) {
        let name = unique("together");
        let (worker, next) = (join(journal).await, join(journal).await);
        let lost = started(journal, new(&name, None)).await;
        assert_eq!(take(journal, worker, &name, 2).await, [lost]);
        answered(async || journal.leave(worker).await).await;
        assert_eq!(take(journal, next, &name, 2).await, [lost]);
        let mut numbers = started_together(journal, &(0..9).map(|_| new(&name, Some(next))).collect::<Vec<_>>()).await;
        numbers.insert(4, lost);
        let answers = join_all(numbers.iter().map(|number| {
            // The lost one's worker had it in the epoch before.
            let epoch = if *number == lost { 2 } else { 1 };
            change(journal, *number, SagaChange::new(append(epoch), 0, vec![begin("a"), done("a")]))
        }));
        for (number, answer) in numbers.iter().zip(answers.await) {
            let entries = load(journal, *number).await.entries.len();
            let wanted = if *number == lost { (RowAnswer::Lost, 0) } else { (RowAnswer::Done, 2) };
            assert_eq!((answer, entries), wanted, "{number:?}, {lost:?} is lost");
        }
    }

    /// A change that fails takes no other with it: one that is too large, and one that has the number of another entry.
    async fn a_change_that_fails_takes_no_other_with_it(journal) {
        let worker = join(journal).await;
        let numbers = started_together(journal, &(0..8).map(|_| new(&unique("fails"), Some(worker))).collect::<Vec<_>>()).await;
        let taken = SagaChange::new(append(1), 0, vec![begin("other")]);
        assert_eq!(change(journal, numbers[3], taken).await, RowAnswer::Done);
        let large = NewEntry { body: Some(Bytes::from(vec![b'x'; BODY_BYTES_MAX + 1])), ..done("a") };
        let changes = numbers.iter().enumerate().map(|(at, number)| {
            let entries = if at == 5 { vec![begin("a"), large.clone()] } else { vec![begin("a"), done("a")] };
            let change = SagaChange::new(append(1), 0, entries);
            async move {
                loop {
                    match journal.change(*number, change.clone()).await {
                        Err(error) if error.kind() == ErrorKind::Busy && error.fate() == Fate::NotApplied => {
                            tokio::time::sleep(Duration::from_millis(100)).await;
                        }
                        changed => break changed,
                    }
                }
            }
        });
        for (at, changed) in join_all(changes).await.into_iter().enumerate() {
            let found = load(journal, numbers[at]).await.entries;
            match (at, changed) {
                (3, Err(error)) => assert_eq!((error.kind(), found.len()), (ErrorKind::Corrupt, 1)),
                (5, Err(error)) => assert_eq!((error.kind(), found.len()), (ErrorKind::TooLarge, 0)),
                (_, Ok(changed)) => assert_eq!((changed.answer, found.len()), (RowAnswer::Done, 2), "{at}"),
                (_, Err(error)) => panic!("change {at} failed with another: {error}"),
            }
        }
    }

    /// Changes whose answers were lost are sent again together, some with more behind them, and count once.
    async fn changes_sent_again_together_count_once(journal) {
        let worker = join(journal).await;
        let numbers = started_together(journal, &(0..8).map(|_| new(&unique("doubt"), Some(worker))).collect::<Vec<_>>()).await;
        let first = SagaChange::new(append(1), 0, vec![begin("a")]);
        for round in 0..3 {
            // Each twice at once; from the second round on every other saga goes on.
            let answers = join_all(numbers.iter().chain(&numbers).map(|number| {
                let more = round > 0 && number.0 % 2 == 0;
                let entries = if more { vec![begin("a"), done("a"), begin("b")] } else { first.entries.clone() };
                change(journal, *number, SagaChange::new(append(1), 0, entries))
            }));
            assert!(answers.await.iter().all(|answer| *answer == RowAnswer::Done));
        }
        for number in numbers {
            let entries = load(journal, number).await.entries;
            let kinds: Vec<EntryKind> = entries.iter().map(|entry| entry.kind).collect();
            let all = [EntryKind::Begin, EntryKind::Done, EntryKind::Begin];
            assert_eq!(kinds, &all[..if number.0 % 2 == 0 { 3 } else { 1 }]);
        }
    }

    /// The entries of each saga are in the order in which they were written, whatever comes between them; an end is behind
    /// what was written before it.
    async fn entries_of_a_saga_keep_their_order(journal) {
        let worker = join(journal).await;
        let numbers = started_together(journal, &(0..12).map(|_| new(&unique("order"), Some(worker))).collect::<Vec<_>>()).await;
        join_all(numbers.iter().map(async |number| {
            for seq in 0..5u32 {
                let step = if seq % 2 == 0 { begin(&seq.to_string()) } else { done(&(seq - 1).to_string()) };
                assert_eq!(change(journal, *number, SagaChange::new(append(1), seq, vec![step])).await, RowAnswer::Done);
                // A cancellation in between is another change of the row.
                if seq == 2 {
                    assert_eq!(event(journal, *number, RowEvent::Cancel).await, RowAnswer::Done);
                }
            }
            let mut end = SagaChange::new(RowEvent::End { epoch: 1, heeds_cancel: false, retention_ms: None }, 5, vec![done("4")]);
            end.outcome = Some(Bytes::from(number.0.to_string()));
            assert_eq!(change(journal, *number, end).await, RowAnswer::Done);
        })).await;
        for number in numbers {
            let Loaded { record, entries, .. } = load(journal, number).await;
            assert_eq!(entries.iter().map(|entry| entry.seq).collect::<Vec<_>>(), [0, 1, 2, 3, 4, 5]);
            assert!(entries.windows(2).all(|two| two[0].at <= two[1].at), "{entries:?}");
            assert_eq!((record.row.status, record.row.cancelled, record.row.signals), (Status::Completed, true, 1));
            assert_eq!(record.outcome, Some(Bytes::from(number.0.to_string())), "the outcome of another saga");
        }
    }

    /// Sagas that are started together each get a number of their own, also beside those whose intent has one.
    async fn sagas_started_together_keep_their_numbers(journal) {
        let name = unique("starts");
        let old: Vec<NewSaga> = (0..4).map(|_| new(&name, None)).collect();
        let numbers = started_together(journal, &old).await;
        let fresh: Vec<NewSaga> = (0..8).map(|_| new(&name, None)).collect();
        let all: Vec<&NewSaga> = old.iter().chain(&fresh).chain(&old).collect();
        let starts = join_all(all.iter().map(|saga| answered(async || journal.start((*saga).clone()).await)));
        for (at, start) in starts.await.into_iter().enumerate() {
            let number = match start {
                SagaStarted::New { number, .. } => {
                    assert!((4..12).contains(&at), "a saga was started again");
                    number
                }
                SagaStarted::Existing(found) => {
                    assert!(!(4..12).contains(&at), "a new saga was there before");
                    assert_eq!(found.number, numbers[at % 4]);
                    found.number
                }
            };
            let found = answered(async || journal.find(all[at].intent.id()).await).await.expect("it is found");
            assert_eq!((found.number, found.intent.id()), (number, all[at].intent.id()));
        }
    }
}
