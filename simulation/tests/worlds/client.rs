//! The world of the client: a thousand histories, planted bugs, known defects.

use simulation::known::assert_mended;
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

#[test]
fn the_layers_own_202_is_not_the_answer() {
    assert_mended::<ClientWorld>("client_takes_202_for_the_answer");
}

#[test]
fn a_body_that_was_not_kept_is_not_an_empty_one() {
    assert_mended::<ClientWorld>("client_forgets_that_a_body_was_not_kept");
}

#[test]
fn a_clock_set_back_lets_no_intent_outlive_the_servers_retention() {
    assert_mended::<ClientWorld>("client_clock_set_back");
}

#[test]
fn a_clock_far_ahead_for_a_moment_leaves_no_intent_open() {
    assert_mended::<ClientWorld>("client_clock_far_ahead");
}

#[test]
fn a_process_that_stalls_before_it_sends_does_not_outlive_the_servers_retention() {
    assert_mended::<ClientWorld>("client_stalls_before_it_sends");
}

#[test]
fn a_keyed_attempt_that_broke_off_is_not_reported_as_refused() {
    assert_mended::<ClientWorld>("client_broken_off_answer_is_refused");
}
