//! The world of the guard: a thousand histories, planted bugs, known defects.

use simulation::worlds::guard::GuardWorld;

use crate::laws;

#[test]
fn a_thousand_histories_hold() {
    laws::hold::<GuardWorld>();
}

#[test]
fn the_same_seed_gives_the_same_trace() {
    laws::repeat::<GuardWorld>();
}

#[test]
fn every_planted_bug_is_caught() {
    laws::planted::<GuardWorld>();
}
