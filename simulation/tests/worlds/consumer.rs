//! The world of the consumer: a thousand histories, planted bugs, known defects.

use simulation::worlds::consumer::ConsumerWorld;

use crate::laws;

#[test]
fn a_thousand_histories_hold() {
    laws::hold::<ConsumerWorld>();
}

#[test]
fn the_same_seed_gives_the_same_trace() {
    laws::repeat::<ConsumerWorld>();
}

#[test]
fn every_planted_bug_is_caught() {
    laws::planted::<ConsumerWorld>();
}
