//! Without SQL: what a crash between mark and effect costs, shown. A process is a runtime of its own; a crash ends it with
//! everything in it, in the middle of the work.

use std::future::pending;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use semel::inbox::consumer::{
    Consumer, ConsumerOptions, DeadLetter, DeadLetters, Handler, HandlerError, HandlerErrorKind, Message,
};
use semel::inbox::store_dedup::{Dedup, WorkAttempt};
use semel::source::memory::{MemoryQueue, MemorySource};
use semel::source::{Delivery, Identify, Receipt, Settle, Source, SourceError};
use semel::store::memory::MemoryStore;
use semel::store::{AnyStore, Decide, Filter, Store};
use semel::{Effect, Guard, Retention, State};
use tokio::sync::Notify;

const PATIENCE: Duration = Duration::from_secs(30);
/// Long enough that a slow machine keeps it.
const LEASE: Duration = Duration::from_millis(1_500);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Mode {
    AtMostOnce,
    AtLeastOnce,
    Keyed,
    Opaque,
}

/// What outlives a process: the queue, the store, what happened in the world, and the graves.
#[derive(Clone)]
struct World {
    queue: MemoryQueue,
    store: Shelf,
    /// Text and key.
    effects: Arc<Mutex<Vec<(String, String)>>>,
    dead_letters: Arc<Mutex<Vec<String>>>,
}

#[derive(Clone)]
enum Shelf {
    Memory(AnyStore),
    #[cfg(feature = "sqlite")]
    Sqlite(Arc<tempfile::TempDir>),
}

impl Shelf {
    async fn open(&self) -> AnyStore {
        match self {
            Self::Memory(store) => store.clone(),
            #[cfg(feature = "sqlite")]
            Self::Sqlite(directory) => {
                let path = directory.path().join("marks.db");
                semel::store::open(&format!("sqlite:{}", path.display())).await.unwrap()
            }
        }
    }
}

/// Where the process dies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Dies {
    BeforeTheEffect,
    AfterTheEffect,
    Never,
}

impl DeadLetters for World {
    async fn dead_letter(&self, _: &str, message: &DeadLetter<'_>) -> Result<(), HandlerError> {
        self.dead_letters.lock().unwrap().push(message.error.to_owned());
        Ok(())
    }
}

/// Every store, each with one message in the queue.
fn worlds() -> Vec<World> {
    let shelves = [
        Shelf::Memory(AnyStore::new(MemoryStore::new())),
        #[cfg(feature = "sqlite")]
        Shelf::Sqlite(Arc::new(testkit::scratch::directory())),
    ];
    let world = |store| {
        let queue = queue(Duration::from_secs(1));
        World { queue, store, effects: Arc::default(), dead_letters: Arc::default() }
    };
    shelves.map(world).into()
}

/// With one message in it.
fn queue(lease: Duration) -> MemoryQueue {
    let queue = MemoryQueue::with_lease("payments", lease);
    queue.push(Some("k"), &[("semel-id", "018f4e1c-7a52-7c1e-9a53-2f2c6f0a1b2c")], "paid");
    queue
}

impl World {
    fn effects(&self) -> Vec<(String, String)> {
        self.effects.lock().unwrap().clone()
    }

    fn dead_letters(&self) -> Vec<String> {
        self.dead_letters.lock().unwrap().clone()
    }

    /// A process that consumes until it dies, or until the queue is empty.
    fn process(&self, mode: Mode, dies: Dies) {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let world = self.clone();
        let point = Arc::new(Notify::new());
        runtime.block_on(async {
            let guard = Guard::new(world.store.open().await);
            let marks = Dedup::new(&guard, "mail").unwrap().lease(LEASE).unwrap();
            let (effects, reached) = (Arc::clone(&world.effects), Arc::clone(&point));
            let work = move |call: WorkAttempt| {
                let (effects, reached) = (Arc::clone(&effects), Arc::clone(&reached));
                async move {
                    let die = async |here| {
                        if dies == here {
                            reached.notify_one();
                            pending::<()>().await;
                        }
                    };
                    die(Dies::BeforeTheEffect).await;
                    let text = String::from_utf8(call.message.payload().to_vec()).unwrap();
                    effects.lock().unwrap().push((text, call.key.as_str().to_owned()));
                    die(Dies::AfterTheEffect).await;
                    Ok(())
                }
            };
            match mode {
                Mode::AtMostOnce => world.consume(marks.at_most_once(work), &point, dies).await,
                Mode::AtLeastOnce => world.consume(marks.at_least_once(work), &point, dies).await,
                Mode::Keyed => {
                    world.consume(marks.claim_finish(Effect::Keyed, work).unwrap(), &point, dies).await;
                }
                Mode::Opaque => {
                    world.consume(marks.claim_finish(Effect::Opaque, work).unwrap(), &point, dies).await;
                }
            }
        });
        runtime.shutdown_background();
    }

    async fn consume(&self, handler: impl Handler, point: &Notify, dies: Dies) {
        let options = ConsumerOptions::default()
            .identify(Identify::ByEvent)
            .backoff(Duration::from_millis(1), Duration::from_millis(50));
        let consumer =
            Consumer::new("mail", self.queue.source(), handler, options).dead_letters(self.clone());
        let stop = consumer.stop_handle();
        let run = tokio::spawn(consumer.run());
        if dies != Dies::Never {
            tokio::time::timeout(PATIENCE, point.notified()).await.expect("it never gets there");
            return;
        }
        let empty = async {
            while !self.queue.is_empty() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(PATIENCE, empty).await.expect("it is never done");
        stop.stop();
        run.await.unwrap().unwrap();
    }
}

#[test]
fn claim_before_loses_what_was_marked_and_not_done() {
    for world in worlds() {
        world.process(Mode::AtMostOnce, Dies::BeforeTheEffect);
        world.process(Mode::AtMostOnce, Dies::Never);
        assert_eq!(world.effects(), [], "the loss that its name says");
    }
}

#[test]
fn claim_before_never_repeats() {
    for world in worlds() {
        world.process(Mode::AtMostOnce, Dies::AfterTheEffect);
        world.process(Mode::AtMostOnce, Dies::Never);
        assert_eq!(world.effects().len(), 1);
    }
}

#[test]
fn mark_after_repeats_what_was_done_and_not_marked() {
    for world in worlds() {
        world.process(Mode::AtLeastOnce, Dies::AfterTheEffect);
        world.process(Mode::AtLeastOnce, Dies::Never);
        let effects = world.effects();
        assert_eq!(effects.len(), 2, "the repetition that its name says");
        assert_eq!(effects[0].1, effects[1].1, "under one key");
    }
}

#[test]
fn mark_after_never_loses() {
    for world in worlds() {
        world.process(Mode::AtLeastOnce, Dies::BeforeTheEffect);
        world.process(Mode::AtLeastOnce, Dies::Never);
        assert_eq!(world.effects().len(), 1);
    }
}

#[test]
fn a_keyed_effect_that_was_interrupted_runs_again_with_the_same_key() {
    for world in worlds() {
        world.process(Mode::Keyed, Dies::AfterTheEffect);
        world.process(Mode::Keyed, Dies::Never);
        let effects = world.effects();
        assert_eq!(effects.len(), 2);
        assert_eq!(effects[0].1, effects[1].1, "a downstream that honours the key does it once");
        assert!(world.dead_letters().is_empty());
    }
}

#[test]
fn an_opaque_effect_that_was_interrupted_is_reported_as_in_doubt_and_not_run_again() {
    for (dies, done) in [(Dies::BeforeTheEffect, 0), (Dies::AfterTheEffect, 1)] {
        for world in worlds() {
            world.process(Mode::Opaque, dies);
            world.process(Mode::Opaque, Dies::Never);
            assert_eq!(world.effects().len(), done, "it is unknown which, so it is not run again");
            let mut dead_letters = world.dead_letters();
            // Its lease may have run out before the queue got the ack: then it is the same dead letter once more.
            assert!(dead_letters.len() <= 2, "{dead_letters:?}");
            dead_letters.dedup();
            assert_eq!(dead_letters.len(), 1, "{dead_letters:?}");
            assert!(
                dead_letters[0].contains("is not known") && dead_letters[0].contains("semel resolve"),
                "{dead_letters:?}"
            );
        }
    }
}

#[test]
fn what_is_done_is_not_done_again_in_any_mode() {
    for mode in [Mode::AtMostOnce, Mode::AtLeastOnce, Mode::Keyed, Mode::Opaque] {
        for world in worlds() {
            // No process dies here, and on a busy machine nothing is to come twice.
            let world = World { queue: queue(PATIENCE * 2), ..world };
            world.process(mode, Dies::Never);
            // Published twice: the same event at another place.
            world.queue.push(Some("k"), &[("semel-id", "018F4E1C-7A52-7C1E-9A53-2F2C6F0A1B2C")], "paid");
            world.process(mode, Dies::Never);
            assert_eq!(world.effects().len(), 1, "{mode:?}");
            // Under an id that was used, something else: one of them would be lost.
            world.queue.push(Some("k"), &[("semel-id", "018f4e1c-7a52-7c1e-9a53-2f2c6f0a1b2c")], "other");
            world.process(mode, Dies::Never);
            assert_eq!((world.effects().len(), world.dead_letters().len()), (1, 1), "{mode:?}");
        }
    }
}

/// One message, handled directly.
async fn handled(handler: &impl Handler, text: &'static str) -> Result<(), HandlerError> {
    let queue = MemoryQueue::new("payments");
    queue.push(None, &[("semel-id", text)], text);
    let came = queue.source().receive(1, Duration::ZERO).await.unwrap().remove(0);
    handler.handle(&[Message::new(Identify::ByEvent.identify(&came).unwrap(), came)]).await
}

fn marks() -> (Guard<MemoryStore>, Dedup<MemoryStore>) {
    let guard = Guard::new(MemoryStore::new());
    let marks = Dedup::new(&guard, "mail").unwrap();
    (guard, marks)
}

#[tokio::test]
async fn a_failure_of_an_opaque_effect_is_in_doubt_unless_it_says_that_nothing_happened() {
    let (guard, marks) = marks();
    let calls = Arc::new(Mutex::new(Vec::new()));
    let counted = Arc::clone(&calls);
    let handler = marks
        .claim_finish(Effect::Opaque, move |call: WorkAttempt| {
            let text = String::from_utf8(call.message.payload().to_vec()).unwrap();
            counted.lock().unwrap().push((text.clone(), call.attempt));
            async move {
                match text.as_str() {
                    "not sent" => Err(HandlerError::transient("no route").not_applied()),
                    _ => Err(HandlerError::transient("no answer")),
                }
            }
        })
        .unwrap();
    for attempt in [Some(1), Some(2)] {
        assert_eq!(handled(&handler, "not sent").await.unwrap_err().kind(), HandlerErrorKind::Transient);
        assert_eq!(calls.lock().unwrap().pop(), Some(("not sent".into(), attempt)));
    }
    for _ in 0..2 {
        let failed = handled(&handler, "sent").await.unwrap_err();
        assert_eq!(failed.kind(), HandlerErrorKind::Permanent);
    }
    assert_eq!(*calls.lock().unwrap(), [("sent".into(), Some(1))], "not run a second time");
    // A person has looked, and says that it did not happen: now it runs.
    let uncertain = Filter { states: vec![State::Uncertain], ..Filter::default() };
    let record = guard.store().list(uncertain).await.unwrap().records.remove(0);
    let decide = Decide {
        seen: record.head.epoch,
        ruling: semel::intent::state::Ruling::NotApplied,
        outcome: None,
        retention: Retention::DAY,
        by: "ana".into(),
        why: "not in the books".into(),
    };
    guard.store().decide(record.intent.id(), decide).await.unwrap();
    assert!(handled(&handler, "sent").await.is_err());
    assert_eq!(calls.lock().unwrap().len(), 2);
}

#[tokio::test]
async fn what_fails_after_its_mark_is_reported_once_and_never_tried_again() {
    let (_, marks) = marks();
    let handler = marks.at_most_once(|_| async { Err(HandlerError::transient("no route")) });
    assert_eq!(handled(&handler, "a").await.unwrap_err().kind(), HandlerErrorKind::Permanent);
    assert_eq!(handled(&handler, "a").await, Ok(()), "lost, as its name says");
}

/// Called again it would be found marked, and be counted as handled although that is unknown.
#[tokio::test]
async fn what_panics_or_hangs_after_its_mark_goes_to_the_dead_letters() {
    for hangs in [false, true] {
        let world = worlds().swap_remove(0);
        // No process dies here, and on a busy machine nothing is to come twice.
        let world = World { queue: queue(PATIENCE * 2), ..world };
        let guard = Guard::new(world.store.open().await);
        let marks = Dedup::new(&guard, "mail").unwrap();
        let work =
            move |_| async move { if hangs { std::future::pending().await } else { panic!("as planned") } };
        let options = ConsumerOptions::default().handle_timeout(Duration::from_secs(2));
        let consumer = Consumer::new("mail", world.queue.source(), marks.at_most_once(work), options)
            .dead_letters(world.clone());
        let stop = consumer.stop_handle();
        let run = tokio::spawn(consumer.run());
        let empty = async {
            while !world.queue.is_empty() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(PATIENCE, empty).await.expect("it is never done");
        stop.stop();
        assert_eq!(run.await.unwrap().unwrap().handled, 0);
        assert_eq!(world.dead_letters().len(), 1, "{:?}", world.dead_letters());
    }
}

/// Dead letters that are away the first times.
#[derive(Clone, Default)]
struct Away {
    times: usize,
    asked: Arc<AtomicUsize>,
    dead_letters: Arc<Mutex<Vec<String>>>,
}

impl DeadLetters for Away {
    async fn dead_letter(&self, _: &str, message: &DeadLetter<'_>) -> Result<(), HandlerError> {
        if self.asked.fetch_add(1, Ordering::SeqCst) < self.times {
            return Err(HandlerError::transient("the database is away"));
        }
        self.dead_letters.lock().unwrap().push(String::from_utf8(message.delivery.payload.to_vec()).unwrap());
        Ok(())
    }
}

/// A source that keeps nothing, so that what rests is lost and comes again.
struct Forgetful(MemorySource);

impl Source for Forgetful {
    async fn receive(&mut self, most: usize, wait: Duration) -> Result<Vec<Delivery>, SourceError> {
        self.0.receive(most, wait).await
    }

    async fn settle(&mut self, settled: &[(Receipt, Settle)]) -> Result<(), SourceError> {
        self.0.settle(settled).await
    }

    async fn keep(&mut self, _: &[Receipt]) -> Result<(), SourceError> {
        Ok(())
    }

    fn renew_after(&self) -> Duration {
        self.0.renew_after()
    }

    fn lost(&mut self) -> Vec<Receipt> {
        self.0.lost()
    }

    async fn leave(&mut self) -> Result<(), SourceError> {
        self.0.leave().await
    }
}

async fn until(what: &str, holds: impl Fn() -> bool) {
    let held = async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(PATIENCE, held).await.unwrap_or_else(|_| panic!("never: {what}"));
}

fn queue_of(texts: &[&'static str], lease: Duration) -> MemoryQueue {
    let queue = MemoryQueue::with_lease("payments", lease);
    for text in texts {
        queue.push(Some(&text[..1]), &[("semel-id", *text)], *text);
    }
    queue
}

fn quickly() -> ConsumerOptions {
    ConsumerOptions::default().backoff(Duration::from_millis(1), Duration::from_millis(5))
}

#[tokio::test]
async fn what_failed_after_its_mark_becomes_a_dead_letter_however_long_the_dead_letters_are_down() {
    // All of them fail together, and the first dead letter cannot be stored.
    let (queue, (_, marks)) = (queue_of(&["a", "b", "c"], PATIENCE), marks());
    let (calls, together) = (Arc::new(AtomicUsize::new(0)), Arc::new(tokio::sync::Barrier::new(3)));
    let counted = Arc::clone(&calls);
    let handler = marks.at_most_once(move |_| {
        counted.fetch_add(1, Ordering::SeqCst);
        let together = Arc::clone(&together);
        async move {
            together.wait().await;
            Err(HandlerError::retry("no route"))
        }
    });
    let dead = Away { times: 4, ..Away::default() };
    let consumer = Consumer::new("mail", queue.source(), handler, quickly()).dead_letters(dead.clone());
    let stop = consumer.stop_handle();
    let run = tokio::spawn(consumer.run());
    until("settled", || queue.is_empty()).await;
    stop.stop();
    let ended = run.await.unwrap().unwrap();
    let mut dead_letters = dead.dead_letters.lock().unwrap().clone();
    dead_letters.sort();
    assert_eq!(dead_letters, ["a", "b", "c"]);
    assert_eq!((ended.handled, ended.dead_letters, calls.load(Ordering::SeqCst)), (0, 3, 3));
}

#[tokio::test]
async fn what_fails_after_its_mark_while_the_consumer_stops_becomes_a_dead_letter_all_the_same() {
    let (queue, (_, marks)) = (queue_of(&["a"], PATIENCE), marks());
    let (begun, go) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (begins, goes) = (Arc::clone(&begun), Arc::clone(&go));
    let handler = marks.at_most_once(move |_| {
        let (begins, goes) = (Arc::clone(&begins), Arc::clone(&goes));
        async move {
            begins.notify_one();
            goes.notified().await;
            Err(HandlerError::retry("no route"))
        }
    });
    // It is away once, too.
    let dead = Away { times: 1, ..Away::default() };
    let consumer = Consumer::new("mail", queue.source(), handler, quickly()).dead_letters(dead.clone());
    let stop = consumer.stop_handle();
    let run = tokio::spawn(consumer.run());
    begun.notified().await;
    stop.stop();
    go.notify_one();
    let ended = tokio::time::timeout(PATIENCE, run).await.expect("it never stops").unwrap().unwrap();
    assert_eq!((ended.handled, ended.dead_letters), (0, 1));
    assert_eq!(*dead.dead_letters.lock().unwrap(), ["a"]);
    assert!(queue.is_empty());
}

#[tokio::test]
async fn what_failed_after_its_mark_holds_its_key_where_there_are_no_dead_letters() {
    let (queue, (_, marks)) = (queue_of(&["a1", "a2", "b1"], PATIENCE), marks());
    let done = Arc::new(Mutex::new(Vec::new()));
    let works = Arc::clone(&done);
    let handler = marks.at_most_once(move |call: WorkAttempt| {
        let text = String::from_utf8(call.message.payload().to_vec()).unwrap();
        let fails = text == "a1";
        works.lock().unwrap().push(text);
        async move { if fails { Err(HandlerError::retry("no route")) } else { Ok(()) } }
    });
    let nowhere = Away { times: usize::MAX, ..Away::default() };
    let consumer = Consumer::new("mail", queue.source(), handler, quickly()).dead_letters(nowhere.clone());
    let stop = consumer.stop_handle();
    let run = tokio::spawn(consumer.run());
    until("tried again", || nowhere.asked.load(Ordering::SeqCst) > 5 && queue.len() <= 2).await;
    stop.stop();
    assert_eq!(run.await.unwrap().unwrap().handled, 1);
    let mut done = done.lock().unwrap().clone();
    done.sort();
    assert_eq!((done, queue.len()), (vec!["a1".to_owned(), "b1".to_owned()], 2));
}

#[tokio::test]
async fn what_failed_after_its_mark_and_was_lost_becomes_a_dead_letter_where_it_is_known() {
    let (queue, (_, marks)) = (queue_of(&["a"], Duration::from_millis(50)), marks());
    let handler = marks.at_most_once(|_| async { Err(HandlerError::retry("no route")) });
    let dead = Away { times: 5, ..Away::default() };
    // It rests for much longer than the lease.
    let rest = Duration::from_millis(100);
    let options = ConsumerOptions::default().backoff(rest, rest);
    let consumer = Consumer::new("mail", Forgetful(queue.source()), handler, options);
    let consumer = consumer.dead_letters(dead.clone());
    let stop = consumer.stop_handle();
    let run = tokio::spawn(consumer.run());
    until("settled", || queue.is_empty()).await;
    stop.stop();
    run.await.unwrap().unwrap();
    assert_eq!(*dead.dead_letters.lock().unwrap(), ["a"]);
}

#[tokio::test]
async fn what_fails_before_its_mark_is_tried_again() {
    let (_, marks) = marks();
    let calls = Arc::new(Mutex::new(0));
    let counted = Arc::clone(&calls);
    let handler = marks.at_least_once(move |_| {
        let mut calls = counted.lock().unwrap();
        *calls += 1;
        let first = *calls == 1;
        async move { if first { Err(HandlerError::retry("not now")) } else { Ok(()) } }
    });
    assert!(handled(&handler, "a").await.is_err());
    for _ in 0..2 {
        assert_eq!(handled(&handler, "a").await, Ok(()));
    }
    assert_eq!(*calls.lock().unwrap(), 2);
}

#[test]
fn marks_that_cannot_hold_are_refused() {
    let guard = Guard::new(MemoryStore::new());
    assert!(Dedup::new(&guard, "").is_err() && Dedup::new(&guard, "é").is_err());
    assert!(Dedup::new(&guard, "m").unwrap().window(Duration::ZERO).is_err());
    let atomic = Dedup::new(&guard, "m").unwrap().claim_finish(Effect::Atomic, |_| async { Ok(()) });
    assert!(atomic.err().unwrap().to_string().contains("Effect::Atomic"));
}
