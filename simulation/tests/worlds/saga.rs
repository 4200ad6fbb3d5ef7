//! The world of sagas: a thousand histories, planted bugs, known defects.

use simulation::worlds::saga::SagaWorld;

use crate::laws;

#[test]
fn a_thousand_histories_hold() {
    laws::hold::<SagaWorld>();
}

#[test]
fn the_same_seed_gives_the_same_trace() {
    laws::repeat::<SagaWorld>();
}

#[test]
fn every_planted_bug_is_caught() {
    laws::planted::<SagaWorld>();
}
