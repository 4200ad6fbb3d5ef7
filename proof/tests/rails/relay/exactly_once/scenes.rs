//! What may happen between a commit and the word of it, on each outbox.

use std::time::{Duration, Instant};

use semel::relay::{OutboxReader, Settled, SinkCheckpoint};
use testkit::services::Service;

use super::broker::{Broker, Bug, Step};
use super::outboxes::{InMysql, InPostgres, InSqlite, LEASE, Outbox, Running, Verdict, quick, verdict};
use super::wrong::Wrong;
use crate::relay::sink::text;
use crate::relay::world::batch;

const EVENTS: [(&str, &str); 5] = [("a", "a1"), ("b", "b1"), ("a", "a2"), ("c", "c1"), ("a", "a3")];

/// Killed between the commit and done. Gives what readers then see.
pub async fn killed_after_the_commit(outbox: &impl Outbox, bug: Bug) -> Verdict {
    let broker = Broker::with(&[Step::CommitAndHang]);
    outbox.append(&EVENTS).await;
    let first = outbox.start(&broker, bug);
    if bug == Bug::AnswersBeforeTheCommit {
        // Nothing hangs: it is answered at once, and dies before it commits what it confirmed.
        broker.until("the batch", |state| state.script.is_empty()).await;
        tokio::time::sleep(LEASE * 3).await;
    } else {
        broker.until("a commit without an answer", |state| state.hanging == 1).await;
    }
    first.kill().await;
    let second = outbox.start(&broker, if bug == Bug::AnswersBeforeTheCommit { Bug::None } else { bug });
    outbox.drained(&broker).await;
    second.stop().await;
    verdict(outbox, &broker, &EVENTS).await
}

/// A refused event, and killed between the commit of the others and done.
pub async fn killed_with_one_left_out(outbox: &impl Outbox, bug: Bug) -> (Verdict, Vec<String>) {
    let broker = Broker::with(&[Step::Commit, Step::CommitAndHang]);
    broker.state().refused.insert("a2".to_owned());
    outbox.append(&EVENTS).await;
    let first = outbox.start(&broker, bug);
    broker.until("a commit without an answer", |state| state.hanging == 1).await;
    first.kill().await;
    let second = outbox.start(&broker, bug);
    outbox.drained(&broker).await;
    second.stop().await;
    (verdict(outbox, &broker, &EVENTS).await, outbox.parked_texts().await)
}

/// A parked key is tried again, and the relay is killed between the commit and done. Meanwhile more comes for the key, and
/// another is to be tried again too, so that the next one would put together another batch.
pub async fn killed_while_a_parked_key_is_tried_again(outbox: &impl Outbox, deaf: bool) -> Verdict {
    let broker = Broker::new();
    broker.state().refused.extend(["a1", "c1"].map(str::to_owned));
    outbox.append(&EVENTS).await;
    let first = outbox.start(&broker, Bug::None);
    outbox.until_parked(4).await;
    {
        let mut state = broker.state();
        state.refused.clear();
        state.script.push_back(Step::CommitAndHang);
    }
    outbox.retry(Some("a")).await;
    broker.until("a commit without an answer", |state| state.hanging == 1).await;
    first.kill().await;
    outbox.retry(None).await;
    outbox.append(&[("a", "a4"), ("b", "b2")]).await;
    let second = if deaf {
        Running::start(Wrong::Deaf(outbox.source()), broker.sink(Bug::None), quick())
    } else {
        outbox.start(&broker, Bug::None)
    };
    outbox.until_parked(0).await;
    outbox.drained(&broker).await;
    second.stop().await;
    let all: Vec<_> = EVENTS.iter().copied().chain([("a", "a4"), ("b", "b2")]).collect();
    verdict(outbox, &broker, &all).await
}

/// One works, the other waits and takes nothing from it; killed, it is replaced. Gives whether it was judged: a machine
/// that stands still for a part of the lease shows nothing.
async fn one_stands_by(outbox: &impl Outbox) -> bool {
    let broker = Broker::new();
    let first = outbox.start(&broker, Bug::None);
    broker.until("a relay that begins", |state| state.begins == 1).await;
    let second = outbox.start(&broker, Bug::None);
    let mut slowest = Duration::ZERO;
    for n in 0..20 {
        let begun = Instant::now();
        outbox.append(&[("a", &format!("a{n}"))]).await;
        broker.until("an event", |state| state.seen.len() == n + 1).await;
        // In all longer than a lease: it is kept by being renewed.
        tokio::time::sleep(LEASE / 16).await;
        slowest = slowest.max(begun.elapsed());
    }
    if broker.state().begins > 1 && slowest > LEASE / 4 {
        println!("not judged: an event took {slowest:?}");
        first.kill().await;
        second.kill().await;
        return false;
    }
    assert_eq!(broker.state().begins, 1, "a standby must not take the sink");
    let begun = Instant::now();
    first.kill().await;
    outbox.drained(&broker).await;
    // The other's lease has to be over, and then a part of its own, before it begins once more.
    if broker.state().begins > 2 && begun.elapsed() > LEASE {
        println!("not judged: taking over took {:?}", begun.elapsed());
        second.kill().await;
        return false;
    }
    assert_eq!(broker.state().begins, 2);
    second.stop().await;
    // Given back, it is taken at once: the lease is not waited for.
    let mut third = outbox.source();
    assert!(third.acquire_exclusive().await.unwrap());
    third.release().await.unwrap();
    true
}

/// Answers lost both ways, failures, events that do not work, a broker that is away.
async fn bad_days(outbox: &impl Outbox) {
    let steps = [
        Step::InDoubt { committed: true },
        Step::InDoubt { committed: false },
        Step::Fail,
        Step::Fail,
        Step::InDoubt { committed: false },
        Step::InDoubt { committed: true },
    ];
    let broker = Broker::with(&steps);
    broker.state().failing.insert("a2".to_owned());
    broker.state().refused.insert("c1".to_owned());
    outbox.append(&EVENTS).await;
    let relay = outbox.start(&broker, Bug::None);
    outbox.until_parked(3).await;
    broker.state().down = true;
    outbox.append(&[("b", "b2")]).await;
    let begins = broker.state().transactions;
    broker.until("tries in vain", |state| state.transactions > begins + 3).await;
    broker.state().down = false;
    outbox.drained(&broker).await;
    let mut parked = outbox.parked_texts().await;
    parked.sort();
    assert_eq!(parked, ["a2", "a3", "c1"]);
    {
        let mut state = broker.state();
        state.failing.clear();
        state.refused.clear();
    }
    outbox.retry(None).await;
    outbox.until_parked(0).await;
    relay.stop().await;
    let all: Vec<_> = EVENTS.iter().copied().chain([("b", "b2")]).collect();
    assert_eq!(verdict(outbox, &broker, &all).await, Verdict::default(), "{:?}", broker.texts());
}

/// One that is parked fails again, and that is what the sink has last: the next owner has it once more, and then the
/// others.
async fn a_parked_one_fails_again(outbox: &impl Outbox) {
    let broker = Broker::new();
    broker.state().failing.insert("a1".to_owned());
    outbox.append(&[("a", "a1")]).await;
    let first = outbox.start(&broker, Bug::None);
    outbox.until_parked(1).await;
    outbox.retry(None).await;
    let of_parked = |bytes: &[u8]| {
        SinkCheckpoint::from_bytes(bytes).unwrap().position.cursor.to_string().starts_with("parked")
    };
    broker.until("a try in vain", |state| state.position.as_deref().is_some_and(of_parked)).await;
    first.kill().await;
    let second = outbox.start(&broker, Bug::None);
    outbox.append(&[("b", "b1"), ("b", "b2")]).await;
    broker.until("the others", |state| state.seen.len() == 2).await;
    second.stop().await;
    assert_eq!((broker.texts(), outbox.parked_texts().await.len()), (vec!["b1".into(), "b2".into()], 1));
}

/// A person skips what is on its way once more. It fails, and what was held behind it goes on all the same.
async fn skipped_on_its_way(outbox: &impl Outbox) {
    outbox.append(&[("a", "a1"), ("a", "a2")]).await;
    let mut source = outbox.source();
    let refused = Settled::Parked { error: "no".into(), for_good: true, alone: false };
    let settled = [refused, Settled::Held];
    let given = batch(&mut source).await;
    assert_eq!(given.events.len(), 2);
    source.ack(&settled).await.unwrap();
    outbox.retry(Some("a")).await;
    let given = batch(&mut source).await;
    assert_eq!(given.events.len(), 2);
    outbox.skip(given.events[0].event.id()).await;
    source.ack(&settled).await.unwrap();
    let given = batch(&mut source).await;
    assert_eq!(given.events.len(), 1);
    assert_eq!(text(&given.events[0].event), "a2");
    source.ack(&[Settled::Confirmed]).await.unwrap();
    outbox.until_parked(0).await;
    source.release().await.unwrap();
}

async fn all_of_them<O: Outbox>(outbox: O, again: impl AsyncFn() -> O) {
    assert_eq!(killed_after_the_commit(&outbox, Bug::None).await, Verdict::default());
    outbox.end().await;
    let outbox = again().await;
    let (found, parked) = killed_with_one_left_out(&outbox, Bug::None).await;
    assert_eq!((found, parked), (Verdict::default(), vec!["a2".to_owned(), "a3".to_owned()]));
    outbox.end().await;
    let outbox = again().await;
    assert_eq!(killed_while_a_parked_key_is_tried_again(&outbox, false).await, Verdict::default());
    outbox.end().await;
    let mut judged = false;
    for _ in 0..5 {
        let outbox = again().await;
        judged = one_stands_by(&outbox).await;
        outbox.end().await;
        if judged {
            break;
        }
    }
    assert!(judged, "the machine stood still five times");
    let outbox = again().await;
    bad_days(&outbox).await;
    outbox.end().await;
    let outbox = again().await;
    a_parked_one_fails_again(&outbox).await;
    outbox.end().await;
    let outbox = again().await;
    skipped_on_its_way(&outbox).await;
    outbox.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn once_from_sqlite() {
    all_of_them(InSqlite::new(), async || InSqlite::new()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn once_from_postgres() {
    let Some(outbox) = InPostgres::new().await else { return };
    all_of_them(outbox, async || InPostgres::new().await.unwrap()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn once_from_mariadb() {
    let Some(outbox) = InMysql::new(Service::Mariadb).await else { return };
    all_of_them(outbox, async || InMysql::new(Service::Mariadb).await.unwrap()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn once_from_mysql() {
    let Some(outbox) = InMysql::new(Service::Mysql).await else { return };
    all_of_them(outbox, async || InMysql::new(Service::Mysql).await.unwrap()).await;
}

/// A stop in the middle of a batch that cannot be published: the relay ends within the drain timeout, nothing is lost.
#[tokio::test]
async fn a_stop_does_not_wait_for_a_broker_that_is_away() {
    let outbox = InSqlite::new();
    let broker = Broker::with(&[Step::Fail; 1_000]);
    outbox.append(&EVENTS).await;
    let options = quick().drain_timeout(Duration::from_millis(50));
    let relay = Running::start(outbox.source(), broker.sink(Bug::None), options);
    broker.until("tries in vain", |state| state.script.len() < 998).await;
    relay.stop().await;
    assert_eq!(broker.texts(), [] as [String; 0]);
    broker.state().script.clear();
    let relay = outbox.start(&broker, Bug::None);
    outbox.drained(&broker).await;
    relay.stop().await;
    assert_eq!(verdict(&outbox, &broker, &EVENTS).await, Verdict::default());
}
