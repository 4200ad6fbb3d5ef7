//! A process is killed at each named point, another one retries with the same key; the ledger judges.

use semel::{State, crash};

use crate::protocol::scene::{PATIENCE, Scene};

/// Long enough that a retry started at once comes within it, also on a busy machine; and then it is waited for.
const LEASE_MS: u64 = 15_000;

/// What the design says of one point: the retry within the lease, the retry after it, and how often the
/// effect has happened then (lines in the ledger, and different keys among them).
struct Expected {
    within: &'static str,
    after: &'static str,
    effects: (usize, usize),
    state: State,
}

fn expected(effect: &str, point: &str) -> Expected {
    let (within, after, effects, state) = match (effect, point) {
        (_, crash::BEFORE_CLAIM) => ("ran", "replayed", (1, 1), State::Completed),
        ("opaque", crash::AFTER_CLAIM | crash::BEFORE_EFFECT) => {
            ("in flight", "uncertain", (0, 0), State::Uncertain)
        }
        ("opaque", crash::AFTER_EFFECT | crash::BEFORE_FINISH) => {
            ("in flight", "uncertain", (1, 1), State::Uncertain)
        }
        ("keyed", crash::AFTER_CLAIM | crash::BEFORE_EFFECT) => {
            ("in flight", "ran", (1, 1), State::Completed)
        }
        // The downstream is asked twice, with the same key: for it that is once.
        ("keyed", crash::AFTER_EFFECT | crash::BEFORE_FINISH) => {
            ("in flight", "ran", (2, 1), State::Completed)
        }
        (_, crash::AFTER_FINISH | crash::BEFORE_ANSWER) => ("replayed", "replayed", (1, 1), State::Completed),
        other => panic!("no expectation for {other:?}"),
    };
    Expected { within, after, effects, state }
}

fn kill_at(effect: &'static str, point: &'static str) {
    let scene = Scene::with_lease(effect, LEASE_MS);
    let mut first = scene.start("k", Some(point));
    assert_eq!(first.wait_for_point(PATIENCE).unwrap(), point);
    first.kill().unwrap();

    let expected = expected(effect, point);
    assert_eq!(scene.call("k"), expected.within, "{effect}, killed at {point}: retry within the lease");
    scene.let_the_lease_run_out("k");
    assert_eq!(scene.call("k"), expected.after, "{effect}, killed at {point}: retry after the lease");
    assert_eq!(scene.effects(), expected.effects, "{effect}, killed at {point}: effects in the ledger");
    assert_eq!(scene.state("k"), Some(expected.state), "{effect}, killed at {point}");
    // Whatever it ended in, asking once more changes nothing.
    let again = if expected.state == State::Uncertain { "uncertain" } else { "replayed" };
    assert_eq!(scene.call("k"), again, "{effect}, killed at {point}: one more retry");
    assert_eq!(
        scene.effects(),
        expected.effects,
        "{effect}, killed at {point}: one more retry had an effect"
    );
}

fn kill_at_every_point(effect: &'static str) {
    // Mostly waiting for leases, so all at once.
    std::thread::scope(|scope| {
        let scenes = crash::ALL.map(|point| scope.spawn(move || kill_at(effect, point)));
        for scene in scenes {
            scene.join().unwrap();
        }
    });
}

#[test]
fn opaque_work_killed_at_every_point_happens_once_or_is_held() {
    kill_at_every_point("opaque");
}

#[test]
fn keyed_work_killed_at_every_point_happens_once_for_the_downstream() {
    kill_at_every_point("keyed");
}

#[test]
fn the_ledger_catches_a_process_without_a_guard() {
    let scene = Scene::new("opaque");
    let mut first = scene.start_bare("k", Some(crash::AFTER_EFFECT));
    first.wait_for_point(PATIENCE).unwrap();
    first.kill().unwrap();
    let mut retry = scene.start_bare("k", None);
    assert_eq!(retry.next_line(PATIENCE).unwrap(), "ran");
    assert_eq!(scene.effects(), (2, 1));
    assert_eq!(scene.ledger().duplicates().get("k"), Some(&2));
}
