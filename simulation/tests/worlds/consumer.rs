//! The world of the consumer: a thousand histories, planted bugs, known defects.

use simulation::known;
use simulation::worlds::consumer::ConsumerWorld;

use crate::laws;

/// Slow: about six seconds of CPU, and the other worlds beside it.
#[test]
fn a_thousand_histories_hold() {
    laws::hold::<ConsumerWorld>();
}

#[test]
fn the_same_seed_gives_the_same_trace() {
    laws::repeat::<ConsumerWorld>();
}

/// Slow: about six seconds of CPU, and the other worlds beside it.
#[test]
fn every_planted_bug_is_caught() {
    laws::planted::<ConsumerWorld>();
}

#[test]
fn failing_keys_with_a_backlog_do_not_fill_the_consumer() {
    known::assert_mended::<ConsumerWorld>("consumer_failing_keys_fill_it");
}

#[test]
fn failing_keys_are_given_up_while_others_are_handled() {
    known::assert_mended::<ConsumerWorld>("consumer_never_given_up");
}

#[test]
fn keys_on_which_the_handler_hangs_leave_calls_to_others() {
    known::assert_mended::<ConsumerWorld>("consumer_hanging_keys_take_all_calls");
}

#[test]
fn a_failure_after_the_mark_is_not_forgotten_in_a_rebalance() {
    known::assert_mended::<ConsumerWorld>("consumer_failure_after_the_mark_forgotten");
}

#[test]
fn what_was_done_before_is_no_sign_that_the_handler_works() {
    known::assert_mended::<ConsumerWorld>("consumer_replays_blame_others");
}

#[test]
fn a_batch_that_hangs_is_counted_as_many_messages() {
    known::assert_mended::<ConsumerWorld>("consumer_outage_that_hangs");
}
