//! The world of the relay: a thousand histories, planted bugs, known defects.

use simulation::worlds::relay::RelayWorld;

use crate::laws;

#[test]
fn a_thousand_histories_hold() {
    laws::hold::<RelayWorld>();
}

#[test]
fn the_same_seed_gives_the_same_trace() {
    laws::repeat::<RelayWorld>();
}

#[test]
fn every_planted_bug_is_caught() {
    laws::planted::<RelayWorld>();
}
