//! Bugs planted on purpose, and seen.

use std::time::Duration;

use semel::relay::{Relay, RelayError};

use super::broker::{Broker, Bug, Step};
use super::outboxes::{InSqlite, Outbox, Verdict, quick, verdict};
use super::scenes::{
    killed_after_the_commit, killed_while_a_parked_key_is_tried_again, killed_with_one_left_out,
};

fn all() -> Vec<String> {
    ["a1", "b1", "a2", "c1", "a3"].map(str::to_owned).to_vec()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_position_that_is_not_compared_is_caught_publishing_twice() {
    let found = killed_after_the_commit(&InSqlite::new(), Bug::ForgetsThePosition).await;
    assert_eq!(found.twice, all());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn done_before_the_commit_is_caught_losing_events() {
    let found = killed_after_the_commit(&InSqlite::new(), Bug::AnswersBeforeTheCommit).await;
    assert_eq!(found.lost, all());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forgetting_what_was_left_out_is_caught_losing_it() {
    let (found, parked) = killed_with_one_left_out(&InSqlite::new(), Bug::ForgetsWhatWasLeftOut).await;
    assert_eq!((found.lost, parked), (vec!["a2".to_owned(), "a3".to_owned()], Vec::new()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_parked_batch_put_together_anew_is_caught_publishing_twice() {
    let found = killed_while_a_parked_key_is_tried_again(&InSqlite::new(), true).await;
    assert_eq!(found.twice, ["a1", "a2", "a3"]);
}

/// The first stands still before its commit, as a process that is stopped does, until another has its lease and is
/// about to take the sink.
async fn zombie(bug: Bug) -> (Verdict, Result<(), RelayError>) {
    let mut outbox = InSqlite::new();
    // Long enough that the second does not lose it too, and begins once.
    outbox.outbox = outbox.outbox.lease(Duration::from_secs(6));
    let broker = Broker::with(&[Step::FreezeAndCommit]);
    outbox.append(&[("a", "a1"), ("b", "b1")]).await;
    let relay = Relay::new(outbox.source(), broker.sink(Bug::None), quick());
    let stop = relay.stop_handle();
    // In a runtime of its own, because all of it stands still.
    let zombie = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(relay.run_exactly_once()).map(drop)
    });
    broker.until("the first before its commit", |state| state.hanging == 1).await;
    let second = outbox.start(&broker, bug);
    if bug == Bug::ReadsBeforeTheFence {
        broker.until("the second between reading and fence", |state| state.hanging == 2).await;
        broker.thaw();
        broker.until("the first's commit", |state| state.seen.len() == 2).await;
        broker.gate.add_permits(1);
    } else {
        broker.until("the second", |state| state.epoch >= 2).await;
        broker.thaw();
    }
    outbox.drained(&broker).await;
    second.stop().await;
    stop.stop();
    let ended = zombie.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    (verdict(&outbox, &broker, &[("a", "a1"), ("b", "b1")]).await, ended)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_zombie_is_fenced_and_stops() {
    let (found, ended) = zombie(Bug::None).await;
    assert_eq!(found, Verdict::default());
    assert!(matches!(ended, Err(RelayError::Fenced(_))), "{ended:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reading_the_position_before_the_fence_is_caught_publishing_twice() {
    let outcome = tokio::time::timeout(Duration::from_secs(180), zombie(Bug::ReadsBeforeTheFence));
    let (found, _) = outcome.await.unwrap();
    assert_eq!(found.twice, ["a1", "b1"]);
}
