//! Messages that cannot be handled become letters in the inbox's own database, and people decide about them.

use std::collections::BTreeSet;
use std::time::Duration;

use semel::inbox::consumer::{DeadLetters, HandlerError};
use semel::inbox::dead_letter::{DeadLetterFilter, DeadLetterState, StoredDeadLetter};
use semel::inbox::{self, VERSION};
use semel::source::Identify;
use semel::source::memory::MemoryQueue;

use crate::outbox::dead_world::{Place, options, push, until};

fn poison(text: &str) -> Option<HandlerError> {
    text.ends_with('!').then(|| HandlerError::retry(format!("cannot read {text}")))
}

async fn letters(place: &Place) -> Vec<StoredDeadLetter> {
    place.tables().await.list(&DeadLetterFilter::new(), 100).await.unwrap()
}

/// A queue with two messages of key b that cannot be handled, and others.
async fn with_poison(place: &Place) -> MemoryQueue {
    let queue = MemoryQueue::new("payments");
    for text in ["a1", "b1!", "b2", "b3!", "a2"] {
        push(&queue, &text[..1], text);
    }
    let tables = place.tables().await;
    until(&queue, &tables, place.handler(poison), options(), async || queue.is_empty()).await;
    queue
}

async fn a_poison_message_becomes_a_letter_after_bounded_tries_and_the_rest_commits(place: Place) {
    let queue = with_poison(&place).await;
    let mut effects = place.effects().await;
    effects.sort();
    assert_eq!(effects, ["a1", "a2", "b2"]);
    let listed = letters(&place).await;
    assert_eq!(listed.len(), 2);
    assert!(listed.iter().all(|letter| letter.payload.is_empty() && letter.payload_bytes == 3));
    let tables = place.tables().await;
    let letter = tables.find(listed[0].number).await.unwrap().unwrap();
    assert_eq!((letter.consumer.as_str(), letter.source.as_str()), ("mail", "payments"));
    assert_eq!((letter.id.as_deref(), letter.key.as_deref()), (Some("b1!"), Some("b")));
    assert_eq!((&letter.payload[..], letter.place.as_str()), (&b"b1!"[..], "1"));
    let note = |text: &str| ("x-note".to_owned(), text.to_owned());
    assert_eq!(letter.headers[1..], [note("a"), note("b")]);
    assert_eq!((letter.error.as_str(), letter.attempts), ("cannot read b1!", 3));
    assert_eq!(letter.state, DeadLetterState::Dead);
    assert!(letter.first_failed_at <= letter.dead_at);
    // Published again, it dies again: the same letter.
    push(&queue, "b", "b1!");
    until(&queue, &tables, place.handler(poison), options(), async || queue.is_empty()).await;
    assert_eq!(letters(&place).await.len(), 2);
    assert_eq!(tables.find(letter.number).await.unwrap().unwrap().attempts, 6);
    let counted = tables.count().await.unwrap();
    assert_eq!((counted.len(), counted[0].dead, counted[0].retry), (1, 2, 0));
    place.end().await;
}

async fn a_letter_that_is_retried_has_its_effect_once_in_the_order_of_its_key(place: Place) {
    let queue = with_poison(&place).await;
    let (tables, listed) = (place.tables().await, letters(&place).await);
    // Still broken: it is dead again, with one more try, and nothing else happened.
    assert_eq!(tables.retry(&[listed[0].number]).await.unwrap(), Ok(()));
    let back = async || {
        let letter = tables.find(listed[0].number).await.unwrap().unwrap();
        letter.state == DeadLetterState::Dead && letter.attempts == 4
    };
    until(&queue, &tables, place.handler(poison), options(), back).await;
    assert_eq!(place.effects().await.len(), 3);
    // Mended: both, the first of them first, and the letters are gone.
    assert_eq!(tables.retry_all(&DeadLetterFilter::new().consumer("other")).await.unwrap(), 0);
    assert_eq!(
        tables.retry_all(&DeadLetterFilter::new().consumer("mail").source("payments")).await.unwrap(),
        2
    );
    let none = async || letters(&place).await.is_empty();
    until(&queue, &tables, place.handler(|_| None), options(), none).await;
    assert_eq!(place.effects().await[3..], ["b1!", "b3!"]);
    // And when it comes once more from the broker, it was handled.
    push(&queue, "b", "b1!");
    until(&queue, &tables, place.handler(|_| None), options(), async || queue.is_empty()).await;
    assert_eq!(place.effects().await.len(), 5);
    place.end().await;
}

async fn a_letter_that_was_handled_before_it_was_gone_is_not_handled_again(place: Place) {
    let queue = with_poison(&place).await;
    let (tables, listed) = (place.tables().await, letters(&place).await);
    // The broker brings it once more, and now it is handled; the letter knows nothing of it.
    push(&queue, "b", "b1!");
    until(&queue, &tables, place.handler(|_| None), options(), async || queue.is_empty()).await;
    assert_eq!(tables.retry(&[listed[0].number]).await.unwrap(), Ok(()));
    let gone = async || tables.find(listed[0].number).await.unwrap().is_none();
    until(&queue, &tables, place.handler(|_| None), options(), gone).await;
    let twice = |effects: &[String]| effects.iter().filter(|text| *text == "b1!").count();
    assert_eq!(twice(&place.effects().await), 1);
    // Without the mark it would be: what the table of effects has to catch.
    push(&queue, "b", "b3!");
    until(&queue, &tables, place.handler(|_| None), options(), async || queue.is_empty()).await;
    assert_eq!(tables.retry(&[listed[1].number]).await.unwrap(), Ok(()));
    let gone = async || tables.find(listed[1].number).await.unwrap().is_none();
    until(&queue, &tables, place.handler(|_| None).without_marks(), options(), gone).await;
    let effects = place.effects().await;
    assert_eq!(effects.iter().filter(|text| *text == "b3!").count(), 2, "{effects:?}");
    place.end().await;
}

async fn a_dropped_letter_says_nothing_any_more_and_leaves_a_trace(place: Place) {
    let queue = with_poison(&place).await;
    let (tables, listed) = (place.tables().await, letters(&place).await);
    let [one, other] = [listed[0].number, listed[1].number];
    assert_eq!(tables.give_up(&[one, 9_999], "a test").await.unwrap().map(drop), Err(9_999));
    assert_eq!(letters(&place).await.len(), 2, "all or none");
    assert!(tables.give_up(&[one, one], "a test").await.unwrap().is_ok());
    let left = letters(&place).await;
    assert_eq!((left.len(), left[0].number), (1, other));
    let trace = tables.list(&DeadLetterFilter::new().dropped(), 10).await.unwrap();
    let why = trace[0].dropped.as_ref().map(|(_, why)| why.as_str());
    assert_eq!((trace.len(), trace[0].state, why), (1, DeadLetterState::Dropped, Some("a test")));
    let kept = tables.find(one).await.unwrap().unwrap();
    assert!(kept.payload.is_empty() && kept.headers.is_empty());
    assert_eq!(tables.retry(&[other, one]).await.unwrap(), Err(one));
    assert_eq!(letters(&place).await[0].state, DeadLetterState::Dead, "all or none");
    // It comes again, and dies again: a letter as before.
    push(&queue, "b", "b1!");
    until(&queue, &tables, place.handler(poison), options(), async || queue.is_empty()).await;
    let again = tables.find(one).await.unwrap().unwrap();
    assert_eq!((again.state, &again.payload[..]), (DeadLetterState::Dead, &b"b1!"[..]));
    place.end().await;
}

async fn another_message_with_the_same_id_is_another_letter(place: Place) {
    let (queue, tables) = (MemoryQueue::new("payments"), place.tables().await);
    for text in ["one!", "two!", "one!"] {
        queue.push(Some("b"), &[("semel-id", "same")], text);
        until(&queue, &tables, place.handler(poison), options(), async || queue.is_empty()).await;
    }
    let mut said = Vec::new();
    for letter in letters(&place).await {
        let letter = tables.find(letter.number).await.unwrap().unwrap();
        said.push((String::from_utf8(letter.payload.to_vec()).unwrap(), letter.attempts));
    }
    assert_eq!(said, [("one!".to_owned(), 6), ("two!".to_owned(), 3)]);
    place.end().await;
}

/// Neither sees the other's letter before it writes its own.
async fn two_messages_of_one_id_that_die_at_once_are_two_letters(place: Place) {
    let queues = ["one", "two"].map(|_| MemoryQueue::new("payments"));
    for n in 0..40 {
        for (queue, text) in queues.iter().zip(["one", "two"]) {
            queue.push(Some(&n.to_string()), &[("semel-id", &format!("same-{n}"))], format!("{text}-{n}!"));
        }
    }
    let dying = queues.each_ref().map(|queue| {
        let place = &place;
        async move {
            // So many that fail are not taken for a handler that is broken.
            let (tables, options) = (place.tables().await, options().outage_keys_min(100));
            until(queue, &tables, place.handler(poison), options, async || queue.is_empty()).await;
        }
    });
    futures_util::future::join_all(dying).await;
    let (tables, mut said) = (place.tables().await, BTreeSet::new());
    let listed = letters(&place).await;
    for letter in &listed {
        said.insert(tables.find(letter.number).await.unwrap().unwrap().payload);
    }
    assert_eq!((listed.len(), said.len()), (80, 80), "one was written over another: {said:?}");
    place.end().await;
}

/// Taken to be handled, dropped when that took too long, and its place taken by another message with its id.
async fn a_late_word_is_not_about_the_message_that_came_instead(place: Place) {
    let queue = with_poison(&place).await;
    let (tables, number) = (place.tables().await, letters(&place).await[0].number);
    assert_eq!(tables.retry(&[number]).await.unwrap(), Ok(()));
    assert_eq!(tables.due("mail", 1, Duration::from_millis(1)).await.unwrap().len(), 1);
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert!(tables.give_up(&[number], "a test").await.unwrap().is_ok());
    queue.push(Some("other"), &[("semel-id", "b1!"), ("content-type", "text/plain")], "instead!");
    until(&queue, &tables, place.handler(poison), options(), async || queue.is_empty()).await;
    tables.handled(number).await.unwrap();
    tables.failed(number, "too late", 1).await.unwrap();
    let letter = tables.find(number).await.unwrap().expect("it is not handled yet");
    assert_eq!((letter.state, &letter.payload[..]), (DeadLetterState::Dead, &b"instead!"[..]));
    assert_eq!((letter.key.as_deref(), letter.content_type.as_deref()), (Some("other"), Some("text/plain")));
    assert_eq!(letter.error, "cannot read instead!");
    place.end().await;
}

async fn what_is_being_handled_is_not_dropped(place: Place) {
    let _queue = with_poison(&place).await;
    let (tables, listed) = (place.tables().await, letters(&place).await);
    let [one, other] = [listed[0].number, listed[1].number];
    assert_eq!(tables.retry(&[other]).await.unwrap(), Ok(()));
    let taken = tables.due("mail", 10, Duration::from_secs(60)).await.unwrap();
    assert_eq!(taken.len(), 1);
    let error = tables.give_up(&[one, other], "a test").await.unwrap_err();
    assert!(error.to_string().contains("being redelivered"), "{error}");
    assert_eq!(letters(&place).await.len(), 2, "all or none");
    place.end().await;
}

/// With its mark gone and its letter there, it would be handled again.
async fn a_letter_goes_with_the_mark_of_its_message(place: Place) {
    let queue = with_poison(&place).await;
    let tables = place.tables().await;
    push(&queue, "b", "b1!");
    until(&queue, &tables, place.handler(|_| None), options(), async || queue.is_empty()).await;
    assert_eq!(letters(&place).await.len(), 2);
    tokio::time::sleep(Duration::from_millis(20)).await;
    while tables.prune("mail", Duration::from_millis(1)).await.unwrap() > 0 {}
    let left = letters(&place).await;
    assert_eq!((left.len(), left[0].id.as_deref()), (1, Some("b3!")));
    place.end().await;
}

async fn a_letter_without_a_name_is_handled_when_it_can_be_named(place: Place) {
    let (queue, tables) = (MemoryQueue::new("payments"), place.tables().await);
    queue.push(None, &[("x-id", "7\u{0}")], "unidentified");
    until(&queue, &tables, place.handler(|_| None), options(), async || queue.is_empty()).await;
    let letter = letters(&place).await.remove(0);
    assert!(letter.id.is_none() && letter.error.contains("has no id"), "{letter:?}");
    let retried = async |by: Identify, holds: fn(Option<StoredDeadLetter>) -> bool| {
        assert_eq!(tables.retry(&[letter.number]).await.unwrap(), Ok(()));
        let holds = async || holds(tables.find(letter.number).await.unwrap());
        until(&queue, &tables, place.handler(|_| None), options().identify(by), holds).await;
    };
    retried(Identify::ByEvent, |letter| letter.is_some_and(|letter| letter.state == DeadLetterState::Dead))
        .await;
    assert!(place.effects().await.is_empty());
    retried(Identify::ByHeader("x-id".into()), |letter| letter.is_none()).await;
    assert_eq!(place.effects().await, ["unidentified"]);
    place.end().await;
}

async fn marks_older_than_the_window_are_forgotten_beside_the_work(place: Place) {
    let (queue, tables) = (MemoryQueue::new("payments"), place.tables().await);
    let marks = async || place.number("SELECT count(*) FROM semel_inbox").await;
    for n in 0..40 {
        push(&queue, "k", &format!("{n}!"));
    }
    // Two weeks by default: nothing is that old, and what was dropped is kept as well.
    let often = || options().prune_interval(Duration::from_millis(1)).batch_max(5);
    until(&queue, &tables, place.handler(|_| None), often(), async || queue.is_empty()).await;
    assert_eq!(marks().await, 40);
    push(&queue, "k", "dead!");
    until(&queue, &tables, place.handler(poison), often(), async || queue.is_empty()).await;
    assert!(tables.give_up(&[letters(&place).await[0].number], "a test").await.unwrap().is_ok());
    push(&queue, "k", "more");
    let short = often().window(Duration::from_millis(1));
    let all_gone = async || {
        let rows =
            "SELECT (SELECT count(*) FROM semel_inbox_batch) + (SELECT count(*) FROM semel_inbox_dead)";
        queue.is_empty() && marks().await == 0 && place.number(rows).await == 0
    };
    until(&queue, &tables, place.handler(|_| None), short, all_gone).await;
    assert_eq!(place.effects().await.len(), 41);
    place.end().await;
}

async fn tables_of_the_first_version_are_brought_up(place: Place) {
    let (queue, tables) = (MemoryQueue::new("payments"), place.tables().await);
    for n in 0..40 {
        push(&queue, "k", &n.to_string());
    }
    until(&queue, &tables, place.handler(|_| None), options(), async || queue.is_empty()).await;
    place.run("DROP TABLE semel_inbox_dead").await;
    if place.url.starts_with("postgres") {
        place.run("ALTER TABLE semel_inbox_batch DROP COLUMN ids").await;
        place.run("CREATE INDEX semel_inbox_of ON semel_inbox (batch)").await;
    }
    place.run("UPDATE semel_inbox_meta SET version = 1").await;
    let error = semel::inbox::dead_letter::DeadLetterStore::open(&place.url).await.unwrap_err().to_string();
    assert!(error.contains("semel migrate --inbox"), "{error}");
    for before in [1, VERSION] {
        assert_eq!(inbox::migrate(&place.url).await.unwrap().before, before);
    }
    assert!(letters(&place).await.is_empty());
    // What was marked before is known, and forgotten when its time has come.
    for n in 0..5 {
        push(&queue, "k", &n.to_string());
    }
    until(&queue, &place.tables().await, place.handler(|_| None), options(), async || queue.is_empty()).await;
    assert_eq!(place.effects().await.len(), 40);
    let short = options().prune_interval(Duration::from_millis(1)).window(Duration::from_millis(1));
    let gone = async || place.number("SELECT count(*) FROM semel_inbox").await == 0;
    until(&queue, &place.tables().await, place.handler(|_| None), short, gone).await;
    assert_eq!(place.effects().await.len(), 40);
    place.end().await;
}

/// The same laws in each database.
macro_rules! laws {
    ($($law:ident),+ $(,)?) => {
        laws!(@ postgres $($law)+);
        laws!(@ mariadb $($law)+);
        laws!(@ mysql $($law)+);
        laws!(@ sqlite $($law)+);
    };
    (@ $database:ident $($law:ident)+) => {
        mod $database {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $law() {
                    let Some(place) = super::Place::$database().await else { return };
                    super::$law(place).await;
                }
            )+
        }
    };
}

laws!(
    a_poison_message_becomes_a_letter_after_bounded_tries_and_the_rest_commits,
    a_letter_that_is_retried_has_its_effect_once_in_the_order_of_its_key,
    a_letter_that_was_handled_before_it_was_gone_is_not_handled_again,
    a_dropped_letter_says_nothing_any_more_and_leaves_a_trace,
    another_message_with_the_same_id_is_another_letter,
    two_messages_of_one_id_that_die_at_once_are_two_letters,
    a_late_word_is_not_about_the_message_that_came_instead,
    what_is_being_handled_is_not_dropped,
    a_letter_goes_with_the_mark_of_its_message,
    a_letter_without_a_name_is_handled_when_it_can_be_named,
    marks_older_than_the_window_are_forgotten_beside_the_work,
    tables_of_the_first_version_are_brought_up,
);
