//! The world of the client: a thousand histories, planted bugs, known defects.

use simulation::worlds::client::ClientWorld;

use crate::laws;

#[test]
fn a_thousand_histories_hold() {
    laws::hold::<ClientWorld>();
}

#[test]
fn the_same_seed_gives_the_same_trace() {
    laws::repeat::<ClientWorld>();
}

#[test]
fn every_planted_bug_is_caught() {
    laws::planted::<ClientWorld>();
}
