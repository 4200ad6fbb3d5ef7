//! The world of the relay: a thousand histories, planted bugs, known defects.

use simulation::known::assert_mended;
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

#[test]
fn nine_failing_keys() {
    assert_mended::<RelayWorld>("relay_nine_failing_keys");
}

#[test]
fn failing_topic_alone() {
    assert_mended::<RelayWorld>("relay_failing_topic_alone");
}

#[test]
fn retried_together() {
    assert_mended::<RelayWorld>("relay_retried_together");
}

#[test]
fn never_tried() {
    assert_mended::<RelayWorld>("relay_never_tried");
}

#[test]
fn always_in_doubt() {
    assert_mended::<RelayWorld>("relay_always_in_doubt");
}

#[test]
fn blamed_while_the_sink_is_down() {
    assert_mended::<RelayWorld>("relay_blamed_while_the_sink_is_down");
}

#[test]
fn one_id_on_two_topics() {
    assert_mended::<RelayWorld>("relay_one_id_on_two_topics");
}

#[test]
fn refused_behind_a_failing_one() {
    assert_mended::<RelayWorld>("relay_refused_behind_a_failing_one");
}

#[test]
fn each_event_of_a_key_waits_anew() {
    assert_mended::<RelayWorld>("relay_each_event_of_a_key_waits_anew");
}

#[test]
fn doubt_of_an_earlier_batch() {
    assert_mended::<RelayWorld>("relay_doubt_of_an_earlier_batch");
}

#[test]
fn twins_share_a_parked_key() {
    assert_mended::<RelayWorld>("relay_twins_share_a_parked_key");
}

#[test]
fn twin_of_a_parked_event_in_doubt() {
    assert_mended::<RelayWorld>("relay_twin_of_a_parked_event_in_doubt");
}

/// Exactly once: a confirm that is lost is a success all the same.
#[test]
fn lost_confirms_do_not_grow_the_backoff() {
    assert_mended::<RelayWorld>("relay_backs_off_although_it_publishes");
}
