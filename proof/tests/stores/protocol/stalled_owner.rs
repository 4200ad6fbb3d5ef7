//! A process that stops for longer than its lease and then goes on.

use semel::{State, crash};

use crate::protocol::scene::{PATIENCE, Scene};

/// Stalls a process at `point`, lets its lease run out, and says what a retry by another process gets.
fn stalled(scene: &Scene, point: &str) -> (testkit::child::Child, String) {
    let mut first = scene.start("k", Some(point));
    assert_eq!(first.wait_for_point(PATIENCE).unwrap(), point);
    first.pause().unwrap();
    scene.let_the_lease_run_out("k");
    let retry = scene.call("k");
    first.resume().unwrap();
    first.go().unwrap();
    (first, retry)
}

#[test]
fn an_opaque_owner_that_returns_late_still_brings_the_true_outcome() {
    for point in [crash::AFTER_EFFECT, crash::BEFORE_EFFECT] {
        let scene = Scene::new("opaque");
        let (mut first, retry) = stalled(&scene, point);
        assert_eq!(retry, "uncertain", "{point}");
        assert_eq!(first.next_line(PATIENCE).unwrap(), "ran", "{point}");
        assert_eq!(scene.state("k"), Some(State::Completed), "{point}");
        assert_eq!(scene.call("k"), "replayed", "{point}");
        assert_eq!(scene.effects(), (1, 1), "{point}");
    }
}

#[test]
fn a_keyed_owner_that_was_taken_over_cannot_overwrite_and_gets_the_same_answer() {
    let scene = Scene::new("keyed");
    let (mut first, retry) = stalled(&scene, crash::BEFORE_EFFECT);
    assert_eq!(retry, "ran");
    let epoch = scene.record("k").unwrap().head.epoch;
    assert_eq!(first.next_line(PATIENCE).unwrap(), "replayed");
    assert_eq!(scene.record("k").unwrap().head.epoch, epoch);
    // Asked twice, under one key.
    assert_eq!(scene.effects(), (2, 1));
}
