//! A consumer over a queue that repeats, with handlers that fail, hang and panic. The effects are rows in SQLite, written
//! in the transaction of the mark; the table judges.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rusqlite::{Connection, TransactionBehavior};
use semel::blocking;
use semel::inbox::consumer::{
    Consumer, ConsumerMetrics, ConsumerOptions, DeadLetter, DeadLetters, Handler, HandlerError, Message,
};
use semel::inbox::{Inbox, schema};
use semel::source::memory::MemoryQueue;
use semel::source::{Delivery, Identify, Receipt, Settle, Source, SourceError};
use semel::tx::driver::Dialect;

const PATIENCE: Duration = Duration::from_secs(30);

/// What goes wrong with a message, by its payload.
type FailureOf = dyn Fn(&str) -> Option<HandlerError> + Send + Sync;

#[derive(Clone)]
pub struct Effects {
    db: Arc<Mutex<Connection>>,
    trouble: Arc<FailureOf>,
    calls: Arc<AtomicUsize>,
}

impl Effects {
    pub fn new(trouble: impl Fn(&str) -> Option<HandlerError> + Send + Sync + 'static) -> Self {
        let db = Connection::open_in_memory().unwrap();
        db.execute_batch(schema(Dialect::Sqlite)).unwrap();
        db.execute_batch("CREATE TABLE effect (n INTEGER PRIMARY KEY AUTOINCREMENT, text TEXT)").unwrap();
        Self { db: Arc::new(Mutex::new(db)), trouble: Arc::new(trouble), calls: Arc::default() }
    }

    /// What happened, in its order.
    fn texts(&self) -> Vec<String> {
        let db = self.db.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let mut rows = db.prepare("SELECT text FROM effect ORDER BY n").unwrap();
        rows.query_map([], |row| row.get(0)).unwrap().collect::<Result<_, _>>().unwrap()
    }
}

fn text(message: &Message) -> String {
    String::from_utf8(message.payload().to_vec()).unwrap()
}

impl Handler for Effects {
    async fn handle(&self, messages: &[Message]) -> Result<(), HandlerError> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        for message in messages {
            match text(message).as_str() {
                "hang" => std::future::pending().await,
                "panic" => panic!("as asked"),
                _ => {}
            }
        }
        let mut db = self.db.lock().unwrap();
        let tx = db.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
        let marked = blocking::mark_all_tx(&Inbox::new("mail").unwrap(), &tx, messages)?;
        for at in marked.fresh() {
            tx.execute("INSERT INTO effect (text) VALUES (?1)", [text(&messages[at])]).unwrap();
            if let Some(failed) = (self.trouble)(&text(&messages[at])) {
                return Err(failed);
            }
        }
        blocking::end_tx(marked, &tx)?;
        tx.commit().map_err(HandlerError::transient)
    }
}

#[derive(Clone, Default)]
struct Graves(Arc<Mutex<Vec<(String, String)>>>);

impl DeadLetters for Graves {
    async fn dead_letter(&self, consumer: &str, message: &DeadLetter<'_>) -> Result<(), HandlerError> {
        assert_eq!(consumer, "mail");
        let text = String::from_utf8(message.delivery.payload.to_vec()).unwrap();
        self.0.lock().unwrap().push((text, message.error.to_owned()));
        Ok(())
    }
}

pub fn options() -> ConsumerOptions {
    ConsumerOptions::default().backoff(Duration::from_millis(1), Duration::from_millis(10)).attempts_max(3)
}

fn push(queue: &MemoryQueue, key: &str, text: &str) {
    queue.push(Some(key), &[("semel-id", text)], text.to_owned());
}

/// Runs a consumer until this holds.
pub async fn until<S: Source, H: Handler, D: DeadLetters>(
    consumer: Consumer<S, H, D>,
    holds: impl Fn() -> bool,
) {
    let stop = consumer.stop_handle();
    let run = tokio::spawn(consumer.run());
    let held = async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(PATIENCE, held).await.expect("it never comes to hold");
    stop.stop();
    tokio::time::timeout(PATIENCE, run).await.expect("it never stops").unwrap().unwrap();
}

#[tokio::test]
async fn every_message_is_handled_once_in_the_order_of_its_key() {
    let (queue, effects) = (MemoryQueue::new("payments"), Effects::new(|_| None));
    for n in 0..300 {
        push(&queue, &format!("k{}", n % 7), &format!("{} {n}", n % 7));
        // Published twice: the same event under another place.
        if n % 5 == 0 {
            push(&queue, &format!("k{}", n % 7), &format!("{} {n}", n % 7));
        }
    }
    until(Consumer::new("mail", queue.source(), effects.clone(), options()), || queue.is_empty()).await;
    let mut last = HashMap::new();
    let texts = effects.texts();
    assert_eq!(texts.len(), 300);
    for text in texts {
        let (key, n) = text.split_once(' ').unwrap();
        let n: i32 = n.parse().unwrap();
        assert!(last.insert(key.to_owned(), n).is_none_or(|before| before < n), "{text} was overtaken");
    }
}

#[tokio::test]
async fn one_that_fails_is_found_retried_and_dead_lettered_and_the_others_go_on() {
    let queue = MemoryQueue::new("payments");
    let effects = Effects::new(|text| match text {
        "b2" => Some(HandlerError::retry("never")),
        "c1" => Some(HandlerError::permanent("nonsense")),
        _ => None,
    });
    for text in ["a1", "b1", "c1", "b2", "a2", "b3", "c2"] {
        push(&queue, &text[..1], text);
    }
    let graves = Graves::default();
    let consumer = Consumer::new("mail", queue.source(), effects.clone(), options().concurrency(1));
    until(consumer.dead_letters(graves.clone()), || queue.is_empty()).await;
    let mut texts = effects.texts();
    let of_b: Vec<_> = texts.iter().filter(|text| text.starts_with('b')).cloned().collect();
    assert_eq!(of_b, ["b1", "b3"], "b3 comes after b2 became a dead letter");
    texts.sort();
    assert_eq!(texts, ["a1", "a2", "b1", "b3", "c2"]);
    let mut dead = graves.0.lock().unwrap().clone();
    dead.sort();
    assert_eq!(dead, [("b2".into(), "never".into()), ("c1".into(), "nonsense".into())]);
}

#[tokio::test]
async fn without_a_place_for_dead_letters_the_key_waits_and_nothing_is_lost() {
    let queue = MemoryQueue::new("payments");
    let well = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&well);
    let effects = Effects::new(move |text| {
        (text == "b1" && !seen.load(Ordering::Relaxed)).then(|| HandlerError::permanent("not yet"))
    });
    for text in ["b1", "b2", "a1"] {
        push(&queue, &text[..1], text);
    }
    let consumer = Consumer::new("mail", queue.source(), effects.clone(), options());
    let check = effects.clone();
    until(consumer, move || {
        // Many more tries than `attempts_max` later it is still there.
        if check.calls.load(Ordering::Relaxed) > 30 {
            well.store(true, Ordering::Relaxed);
        }
        queue.is_empty()
    })
    .await;
    assert_eq!(effects.texts(), ["a1", "b1", "b2"]);
}

#[tokio::test]
async fn when_everything_fails_no_message_is_to_blame() {
    let queue = MemoryQueue::new("payments");
    let calls = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&calls);
    let effects = Effects::new(move |_| {
        (seen.fetch_add(1, Ordering::Relaxed) < 2_000).then(|| HandlerError::retry("the disk is full"))
    });
    for n in 0..20 {
        push(&queue, &n.to_string(), &n.to_string());
    }
    let graves = Graves::default();
    let consumer = Consumer::new("mail", queue.source(), effects.clone(), options());
    until(consumer.dead_letters(graves.clone()), || queue.is_empty()).await;
    assert_eq!(effects.texts().len(), 20);
    assert!(graves.0.lock().unwrap().is_empty(), "dead letters: {:?}", graves.0.lock().unwrap());
}

#[tokio::test]
async fn a_handler_that_hangs_or_panics_fails_and_nothing_else_does() {
    let (queue, effects) = (MemoryQueue::new("payments"), Effects::new(|_| None));
    for text in ["a1", "panic", "b1", "hang", "c1"] {
        push(&queue, text, text);
    }
    let graves = Graves::default();
    let options = options().concurrency(1).handle_timeout(Duration::from_millis(30));
    let consumer = Consumer::new("mail", queue.source(), effects.clone(), options);
    until(consumer.dead_letters(graves.clone()), || queue.is_empty()).await;
    let mut texts = effects.texts();
    texts.sort();
    assert_eq!(texts, ["a1", "b1", "c1"]);
    assert_eq!(graves.0.lock().unwrap().len(), 2);
}

#[tokio::test]
async fn a_message_without_an_id_becomes_a_dead_letter_and_is_never_handled() {
    let (queue, effects) = (MemoryQueue::new("payments"), Effects::new(|_| None));
    queue.push(None, &[], "no id");
    queue.push(None, &[("semel-id", "1")], "named");
    let graves = Graves::default();
    let consumer = Consumer::new("mail", queue.source(), effects.clone(), options());
    until(consumer.dead_letters(graves.clone()), || queue.is_empty()).await;
    assert_eq!(effects.texts(), ["named"]);
    let dead = graves.0.lock().unwrap().clone();
    assert!(dead.len() == 1 && dead[0].1.contains("has no id"), "{dead:?}");
    // By its place it has a name: asked for, not assumed.
    queue.push(None, &[], "by its place");
    let options = options().identify(Identify::ByPlace);
    until(Consumer::new("mail", queue.source(), effects.clone(), options), || queue.is_empty()).await;
    assert_eq!(effects.texts(), ["named", "by its place"]);
}

#[tokio::test]
async fn a_message_without_an_id_blocks_no_other() {
    let (queue, effects) = (MemoryQueue::new("payments"), Effects::new(|_| None));
    queue.push(None, &[], "no id");
    for text in ["k1", "k2", "k3"] {
        push(&queue, "k", text);
    }
    // There is no dead-letter store: it is kept, and the others go on.
    until(Consumer::new("mail", queue.source(), effects.clone(), options()), || queue.len() == 1).await;
    assert_eq!(effects.texts(), ["k1", "k2", "k3"]);
}

/// A source that does not hear the first few times what became of messages.
struct Deaf<S>(S, usize);

impl<S: Source> Source for Deaf<S> {
    async fn receive(&mut self, most: usize, wait: Duration) -> Result<Vec<Delivery>, SourceError> {
        self.0.receive(most, wait).await
    }

    async fn settle(&mut self, settled: &[(Receipt, Settle)]) -> Result<(), SourceError> {
        if self.1 > 0 {
            self.1 -= 1;
            return Err(SourceError::later("the connection is gone"));
        }
        self.0.settle(settled).await
    }

    async fn keep(&mut self, held: &[Receipt]) -> Result<(), SourceError> {
        self.0.keep(held).await
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

#[tokio::test]
async fn an_ack_that_the_source_missed_is_sent_again() {
    let queue = MemoryQueue::with_lease("payments", Duration::from_secs(3_600));
    let effects = Effects::new(|_| None);
    for text in ["a1", "b1", "a2"] {
        push(&queue, &text[..1], text);
    }
    let source = Deaf(queue.source(), 3);
    until(Consumer::new("mail", source, effects.clone(), options()), || queue.is_empty()).await;
    assert_eq!(effects.texts().len(), 3);
}

#[tokio::test]
async fn a_message_that_rests_is_kept_for_as_long_as_it_takes() {
    for _ in 0..5 {
        if rests().await {
            return;
        }
    }
    panic!("the machine stood still five times");
}

/// Whether it was judged: no lease is renewed while the machine stands still.
async fn rests() -> bool {
    const LEASE: Duration = Duration::from_secs(3);
    let queue = MemoryQueue::with_lease("payments", LEASE);
    let calls = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&calls);
    let effects = Effects::new(move |_| {
        (seen.fetch_add(1, Ordering::Relaxed) < 2).then(|| HandlerError::transient("the database is away"))
    });
    push(&queue, "a", "a1");
    // It rests for longer than the lease, and no other consumer gets it meanwhile.
    let rest = Duration::from_secs(5);
    let consumer = Consumer::new("mail", queue.source(), effects.clone(), options().backoff(rest, rest));
    let stop = consumer.stop_handle();
    let (mut looked, mut still) = (Instant::now(), Duration::ZERO);
    let run = tokio::spawn(consumer.run());
    while calls.load(Ordering::Relaxed) == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let mut other = queue.source();
    let mut kept = true;
    while kept && effects.texts().is_empty() {
        kept = other.receive(10, Duration::from_millis(20)).await.unwrap().is_empty();
        still = still.max(looked.elapsed());
        looked = Instant::now();
    }
    stop.stop();
    run.await.unwrap().unwrap();
    assert!(kept || still > LEASE / 3, "somebody else got it while it rested");
    kept
}

/// One call hangs for longer than the test. What comes afterwards is received, handled and settled all the same.
#[tokio::test]
async fn a_call_that_takes_long_holds_up_its_own_key_and_no_other() {
    let queue = MemoryQueue::with_lease("payments", Duration::from_secs(3_600));
    let effects = Effects::new(|_| None);
    push(&queue, "h", "hang");
    push(&queue, "h", "behind");
    let calls = Arc::clone(&effects.calls);
    let options = options().concurrency(2).batch_max(1).drain_timeout(Duration::from_millis(20));
    let consumer = Consumer::new("mail", queue.source(), effects.clone(), options);
    let hangs = tokio::spawn({
        let queue = queue.clone();
        async move {
            while calls.load(Ordering::Relaxed) == 0 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            for n in 0..100 {
                push(&queue, &format!("k{}", n % 7), &n.to_string());
            }
        }
    });
    until(consumer, || queue.len() == 2 && effects.texts().len() == 100).await;
    hangs.await.unwrap();
    assert!(!effects.texts().contains(&"behind".to_owned()), "it has overtaken");
}

/// A source that keeps nothing, so that leases end while their messages are handled.
struct Forgetful<S>(S);

impl<S: Source> Source for Forgetful<S> {
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

/// Takes longer than the lease the first time, and notes how many are under way at once.
#[derive(Clone, Default)]
struct Slow {
    under_way: Arc<AtomicUsize>,
    most: Arc<AtomicUsize>,
    calls: Arc<AtomicUsize>,
}

impl Handler for Slow {
    async fn handle(&self, _: &[Message]) -> Result<(), HandlerError> {
        let now = self.under_way.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(now, Ordering::SeqCst);
        if self.calls.fetch_add(1, Ordering::SeqCst) == 0 {
            tokio::time::sleep(Duration::from_secs(3)).await;
        }
        self.under_way.fetch_sub(1, Ordering::SeqCst);
        Ok(())
    }
}

#[tokio::test]
async fn what_is_lost_while_it_is_under_way_is_not_begun_beside_itself() {
    for key in [Some("a"), None] {
        let queue = MemoryQueue::with_lease("payments", Duration::from_millis(100));
        queue.push(key, &[("semel-id", "a1")], "a1");
        let slow = Slow::default();
        let consumer =
            Consumer::new("mail", Forgetful(queue.source()), slow.clone(), options().concurrency(4));
        until(consumer, || queue.is_empty()).await;
        assert!(slow.calls.load(Ordering::SeqCst) > 1, "{key:?}: it never came again");
        assert_eq!(slow.most.load(Ordering::SeqCst), 1, "{key:?}: it was handled beside itself");
    }
}

#[tokio::test]
async fn a_stop_does_not_wait_for_a_handler_that_hangs() {
    let (queue, effects) = (MemoryQueue::new("payments"), Effects::new(|_| None));
    for n in 0..50 {
        push(&queue, &n.to_string(), if n == 7 { "hang" } else { "well" });
    }
    let calls = Arc::clone(&effects.calls);
    let options = options().drain_timeout(Duration::from_millis(20)).concurrency(1);
    let consumer = Consumer::new("mail", queue.source(), effects, options);
    until(consumer, || calls.load(Ordering::Relaxed) > 0).await;
}

#[tokio::test]
async fn a_stopped_consumer_gives_back_what_it_holds() {
    let queue = MemoryQueue::with_lease("payments", Duration::from_secs(3_600));
    let effects = Effects::new(|_| Some(HandlerError::transient("the database is away")));
    push(&queue, "a", "a1");
    let calls = Arc::clone(&effects.calls);
    let consumer = Consumer::new("mail", queue.source(), effects, options());
    until(consumer, || calls.load(Ordering::Relaxed) > 3).await;
    let mut other = queue.source();
    let came = other.receive(10, Duration::ZERO).await.unwrap();
    assert_eq!(came.len(), 1, "another one gets it at once");
}

#[tokio::test]
async fn what_became_of_messages_is_counted() {
    let queue = MemoryQueue::new("payments");
    let effects = Effects::new(|text| (text == "b1").then(|| HandlerError::retry("never")));
    for text in ["a1", "b1", "a1", "c1", "a1"] {
        push(&queue, &text[..1], text);
    }
    let metrics = ConsumerMetrics::new();
    let consumer = Consumer::new("mail", queue.source(), effects, options().concurrency(1).batch_max(1));
    let consumer = consumer.observed_by(&metrics).dead_letters(Graves::default());
    until(consumer, || queue.is_empty()).await;
    let rendered = metrics.render();
    for line in [
        "semel_consumer_messages_total{outcome=\"done\"} 2",
        "semel_consumer_messages_total{outcome=\"already\"} 2",
        "semel_consumer_messages_total{outcome=\"retried\"} 2",
        "semel_consumer_messages_total{outcome=\"dead\"} 1",
        "semel_consumer_held_messages 0.0",
        // Four that were done at once, and one at its third try not.
        "semel_consumer_attempts_sum 7.0",
    ] {
        assert!(rendered.lines().any(|have| have == line), "{line}\n{rendered}");
    }
}

/// Consumers that die at any moment, two at a time, on a queue whose leases are short.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn consumers_that_die_at_any_moment_handle_every_message_once() {
    let seed = testkit::seed::seed();
    let mut random = fastrand::Rng::with_seed(seed);
    let queue = MemoryQueue::with_lease("payments", Duration::from_millis(30));
    let chance = Mutex::new(fastrand::Rng::with_seed(seed ^ 1));
    let effects = Effects::new(move |_| {
        (chance.lock().unwrap().u8(..) < 8).then(|| HandlerError::transient("a lock was not had"))
    });
    for n in 0..400 {
        push(&queue, &(n % 20).to_string(), &format!("{} {n}", n % 20));
    }
    let begun = std::time::Instant::now();
    while !queue.is_empty() {
        assert!(begun.elapsed() < PATIENCE, "seed {seed}: {} are left", queue.len());
        let lives: Vec<_> = (0..2)
            .map(|_| {
                let consumer = Consumer::new(
                    "mail",
                    queue.source(),
                    effects.clone(),
                    options().in_flight_max(40).batch_max(7),
                );
                (tokio::spawn(consumer.run()), Duration::from_micros(random.u64(100..40_000)))
            })
            .collect();
        for (life, length) in lives {
            tokio::time::sleep(length).await;
            life.abort();
            let _ = life.await;
        }
    }
    let mut texts = effects.texts();
    for key in 0..20 {
        let prefix = format!("{key} ");
        let numbers: Vec<i32> =
            texts.iter().filter_map(|text| text.strip_prefix(&prefix)).map(|n| n.parse().unwrap()).collect();
        assert!(numbers.is_sorted(), "seed {seed}: key {key} was handled as {numbers:?}");
    }
    texts.sort();
    texts.dedup();
    assert_eq!(texts.len(), 400, "seed {seed}");
    assert_eq!(effects.texts().len(), 400, "seed {seed}");
}

/// What the table has to catch: a source that acknowledges what it gives.
struct AcksFirst<S>(S);

impl<S: Source> Source for AcksFirst<S> {
    async fn receive(&mut self, most: usize, wait: Duration) -> Result<Vec<Delivery>, SourceError> {
        let came = self.0.receive(most, wait).await?;
        let done: Vec<_> = came.iter().map(|delivery| (delivery.receipt, Settle::Ack)).collect();
        self.0.settle(&done).await?;
        Ok(came)
    }

    async fn settle(&mut self, _: &[(Receipt, Settle)]) -> Result<(), SourceError> {
        Ok(())
    }

    async fn keep(&mut self, held: &[Receipt]) -> Result<(), SourceError> {
        self.0.keep(held).await
    }

    fn renew_after(&self) -> Duration {
        self.0.renew_after()
    }

    fn lost(&mut self) -> Vec<Receipt> {
        Vec::new()
    }

    async fn leave(&mut self) -> Result<(), SourceError> {
        self.0.leave().await
    }
}

#[tokio::test]
async fn the_table_catches_an_acknowledgement_before_the_effect() {
    let (queue, effects) =
        (MemoryQueue::new("payments"), Effects::new(|_| Some(HandlerError::transient("away"))));
    push(&queue, "a", "a1");
    let calls = Arc::clone(&effects.calls);
    let consumer = Consumer::new("mail", AcksFirst(queue.source()), effects.clone(), options());
    let life = tokio::spawn(consumer.run());
    while calls.load(Ordering::Relaxed) == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    life.abort();
    let _ = life.await;
    assert!(queue.is_empty() && effects.texts().is_empty(), "it is gone from the queue, and never happened");
}
