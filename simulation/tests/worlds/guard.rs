//! The world of the guard: a thousand histories, planted bugs, known defects.

use simulation::known::assert_mended;
use simulation::play;
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

/// The fence is the epoch and not the lease. A store that refuses an outcome because its lease has ended doubles
/// nothing, but leaves intents uncertain whose owner knew what happened.
#[test]
fn refusing_late_outcomes_is_safe_but_leaves_more_doubt() {
    let uncertain = |planted| -> u64 {
        let played = (0..400).map(|seed| play::history::<GuardWorld>(seed, planted));
        let judged = played.inspect(|played| {
            if let Err(violation) = &played.verdict {
                assert_eq!(violation.law, "uncertain has a cause", "{violation}");
            }
        });
        judged.map(|played| played.figures.get("uncertain at the end")).sum()
    };
    assert!(uncertain(Some("late outcomes are refused")) > uncertain(None));
}

#[test]
fn a_call_on_the_wire_is_covered_by_the_settle_delay() {
    assert_mended::<GuardWorld>("guard_call_on_the_wire_when_not_found_is_believed");
}

#[test]
fn work_that_lost_its_claim_is_over_before_not_found_is_believed() {
    assert_mended::<GuardWorld>("guard_claim_lost_while_it_works");
}

#[test]
fn a_renewal_that_hangs_does_not_outlive_the_lease() {
    assert_mended::<GuardWorld>("guard_renewal_hangs_past_the_lease");
}

#[test]
fn an_outcome_too_large_for_the_store_is_recorded_without_its_body() {
    assert_mended::<GuardWorld>("guard_outcome_too_large");
    assert_mended::<GuardWorld>("guard_found_outcome_too_large");
}

#[test]
fn a_claim_that_is_given_back_is_not_the_one_that_runs() {
    assert_mended::<GuardWorld>("guard_give_back_shares_owner");
    assert_mended::<GuardWorld>("guard_given_back_while_it_runs");
}

#[test]
fn a_claim_made_while_the_clock_was_far_ahead_is_not_in_flight_until_then() {
    assert_mended::<GuardWorld>("guard_clock_far_ahead");
}

#[test]
fn a_claim_answered_after_its_lease_does_not_run() {
    assert_mended::<GuardWorld>("guard_claim_answered_after_its_lease");
}

#[test]
fn a_key_that_expires_while_it_is_claimed_does_not_run() {
    assert_mended::<GuardWorld>("guard_key_expires_while_claiming");
}

#[test]
fn a_caller_that_leaves_while_its_claim_is_given_back_leaves_no_doubt() {
    assert_mended::<GuardWorld>("guard_caller_leaves_while_giving_back");
}

#[test]
fn a_claim_that_lapses_twice_is_given_back_twice() {
    assert_mended::<GuardWorld>("guard_claim_lapses_twice");
}

#[test]
fn an_open_policy_that_does_not_run_gives_its_claim_back() {
    assert_mended::<GuardWorld>("guard_open_policy_leaves_a_claim");
}

#[test]
fn a_claim_that_is_there_is_given_back_until_that_is_known() {
    assert_mended::<GuardWorld>("guard_last_give_back_claims_anew");
}
