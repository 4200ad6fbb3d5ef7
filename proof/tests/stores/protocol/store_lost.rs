//! The store fails between effect and finish: the caller gets the true answer, and recording goes on.

use semel::{State, crash};

use crate::protocol::scene::{PATIENCE, Scene};

#[test]
fn a_store_that_is_locked_at_the_finish_gets_the_outcome_later() {
    let scene = Scene::new("opaque");
    let mut worker = scene.start("k", Some(crash::BEFORE_FINISH));
    worker.wait_for_point(PATIENCE).unwrap();

    let mut locker = rusqlite::Connection::open(scene.store_path()).unwrap();
    let lock = locker.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate).unwrap();
    worker.go().unwrap();
    assert_eq!(worker.next_line(PATIENCE).unwrap(), "ran, not stored");
    assert_eq!(scene.effects(), (1, 1));
    assert_ne!(scene.state("k"), Some(State::Completed));

    lock.rollback().unwrap();
    assert_eq!(worker.next_line(PATIENCE).unwrap(), "drained");
    assert_eq!(scene.state("k"), Some(State::Completed));
    assert_eq!(scene.call("k"), "replayed");
    assert_eq!(scene.effects(), (1, 1));
}

#[test]
fn a_process_killed_while_it_tries_to_record_leaves_doubt_and_no_second_effect() {
    let scene = Scene::new("opaque");
    let mut worker = scene.start("k", Some(crash::BEFORE_FINISH));
    worker.wait_for_point(PATIENCE).unwrap();
    let mut locker = rusqlite::Connection::open(scene.store_path()).unwrap();
    let lock = locker.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate).unwrap();
    worker.go().unwrap();
    assert_eq!(worker.next_line(PATIENCE).unwrap(), "ran, not stored");
    worker.kill().unwrap();
    lock.rollback().unwrap();
    scene.let_the_lease_run_out("k");
    assert_eq!(scene.call("k"), "uncertain");
    assert_eq!(scene.effects(), (1, 1));
}
