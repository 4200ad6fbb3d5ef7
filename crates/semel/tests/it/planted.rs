//! The suite of laws can fail: each planted bug is caught by the law that forbids it.
//!
//! Most bugs are a wrong decision ([`decisions`]); the rest are wrong handling around it ([`handling`]).

mod decisions;
mod handling;

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};

use semel::StoreTime;
use semel::conformance::{self, Harness, LAWS};

use self::handling::Planted;
use crate::conformance_memory::ManualClock;

/// Makes the bugs and the table of which law catches which.
macro_rules! bugs {
    ($($bug:ident => $law:ident,)*) => {
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        enum Bug {
            $($bug,)*
        }

        const CAUGHT_BY: &[(Bug, &str)] = &[$((Bug::$bug, stringify!($law)),)*];
    };
}

bugs! {
    // Wrong decisions.
    FinishIgnoresTheEpoch => finish_is_fenced_by_epoch,
    FinishIgnoresTheOwner => finish_is_fenced_by_owner,
    SecondFinishOverwrites => the_first_outcome_stands,
    LateOutcomeRefused => a_late_outcome_is_taken,
    UncertainStaysUncertain => an_uncertain_outcome_is_made_certain_by_its_owner,
    FingerprintIgnored => mismatch_comes_before_replay,
    MismatchAfterInFlight => mismatch_comes_before_in_flight,
    MismatchAfterUncertain => mismatch_comes_before_uncertain,
    OtherRecipeMismatches => another_recipe_replays_and_is_flagged,
    RepeatedClaimGetsANewEpoch => the_same_owner_gets_the_same_ticket,
    RepeatedClaimIsInFlight => a_dropped_claim_is_settled_by_repeating_it,
    RetryableFailureIsReplayed => a_retryable_failure_runs_again_at_once,
    FinalFailureRunsAgain => a_final_failure_is_replayed,
    LeaseNeverEnds => a_lapsed_opaque_claim_is_uncertain,
    LeaseFarAheadRuns => a_lease_longer_than_any_has_lapsed,
    CallersClock => a_lease_runs_by_the_stores_clock,
    OpaqueRunsAgainAfterTheLease => a_lapsed_opaque_claim_is_uncertain,
    OpaqueBelievesAKeyedFailure => a_keyed_failure_is_uncertain_to_an_opaque_claimant,
    OpaqueTakesOverAKeyedClaim => a_lapsed_keyed_claim_is_uncertain_to_an_opaque_claimant,
    KeyedIsNeverTakenOver => a_lapsed_keyed_claim_runs_again,
    UncertainRunsWithAKey => an_uncertain_outcome_runs_for_no_caller,
    TakeoverKeepsTheEpoch => a_takeover_fences_the_old_owner,
    TakeoverMovesTheTimeOfAKey => the_time_of_a_key_never_moves,
    OpaqueClaimHasAKey => the_time_of_a_key_never_moves,
    AttemptsMayOutlastTheirKey => an_attempt_that_may_outlast_its_key_is_uncertain,
    ForgottenKeyRunsAgain => a_lapsed_keyed_claim_is_uncertain_once_its_key_is_forgotten,
    KeyedFailureExpires => a_keyed_failure_is_uncertain_once_its_key_is_forgotten,
    DecisionKeepsTheTimeOfAKey => a_decision_ends_the_time_of_a_key,
    NotAppliedBeginsTheKeyAnew => a_decision_ends_the_time_of_a_key,
    KeyedFailureIsReleased => a_keyed_failure_is_not_released,
    RenewResurrects => a_lapsed_claim_is_not_renewed,
    RenewIgnoresTheOwner => renew_is_fenced,
    RenewDoesNothing => renewing_extends_the_lease,
    ExpiryIgnored => an_expired_outcome_is_absent,
    RetentionFromTheLease => retention_starts_at_the_finish,
    ForeverIsAMoment => forever_does_not_expire,
    UncertainExpires => uncertain_never_expires,
    SweepTakesALiveClaim => in_progress_never_expires,
    SweepTakesAnUncertainOne => uncertain_never_expires,
    SweepTakesWhatIsFinished => sweeping_while_claims_go_on_loses_nothing,
    EpochReusedAfterASweep => epochs_rise_over_release_expiry_and_sweep,
    EpochReusedByARetry => a_released_claim_runs_again_at_once,
    DecisionDoesNotFence => a_decision_fences_the_last_owner,
    DecidesOverALiveClaim => a_live_claim_is_not_decided_over,
    DecisionIgnoresWhatWasSeen => a_decision_about_something_older_is_stale,
    OpenOnesAreReleased => a_decision_fits_the_state,
    // Wrong handling.
    ClaimLooksThenWrites => of_many_claimants_one_runs,
    TakeoverLooksThenWrites => of_many_takeovers_one_runs,
    DroppedClaimBlocks => a_dropped_claim_is_settled_by_repeating_it,
    MismatchReleasesTheClaim => a_mismatch_changes_nothing,
    StaleFinishReleasesTheClaim => a_stale_finish_changes_nothing,
    ReplayForgets => a_replay_changes_nothing,
    OutcomeTruncated => a_large_outcome_comes_back_whole,
    BodyMangledToText => an_outcome_comes_back_byte_for_byte,
    HeadersMangledToText => an_outcome_comes_back_byte_for_byte,
    HeadersDeduplicated => an_outcome_comes_back_byte_for_byte,
    EmptyBodyIsNone => an_empty_body_is_not_a_missing_one,
    TooLargeIsDropped => too_large_an_outcome_is_refused_and_the_claim_stays,
    ForeignOutcomeReplayed => each_of_many_keys_runs_once,
    NoteLostByTheNextClaim => a_note_survives_the_next_claim,
    NoteNotKept => an_applied_intent_is_replayed,
    LookRemembers => a_cached_get_shows_what_get_shows,
    TenantIgnored => list_filters_by_tenant,
    TenantByPrefix => list_filters_by_tenant,
    StoredStateListed => list_filters_by_the_state_that_holds,
    PagedByOffset => paging_shows_each_record_once,
    LimitIgnored => a_page_is_bounded,
    BadCursorIsTheFirstPage => a_bad_cursor_is_an_error,
    SweepIgnoresItsLimit => sweep_keeps_its_limit_and_counts,
    SweepDoesNothing => sweep_keeps_its_limit_and_counts,
    ClockGoesBack => the_clock_does_not_go_backwards,
    ForgetsClaims => reopening_keeps_a_claim,
    ForgetsOutcomes => reopening_keeps_an_outcome,
    ForgetsDecisions => reopening_keeps_a_decision,
    EpochsStartAgain => epochs_rise_over_reopening,
}

/// A memory store with a bug, or none, in virtual time. It claims to be durable, so that the laws of
/// reopening are judged as well.
struct Planter {
    bug: Option<Bug>,
    clock: ManualClock,
}

impl Planter {
    fn plant(&self) -> Planted {
        let decider = self.bug.map_or(semel::intent::state::step as _, decisions::decider);
        Planted::new(self.clock.store().deciding_with(decider), self.bug)
    }
}

impl Harness for Planter {
    type Store = Planted;

    async fn store(&self) -> Planted {
        self.plant()
    }

    async fn reopen(&self, store: Planted) -> Option<Planted> {
        match self.bug {
            Some(
                Bug::ForgetsClaims | Bug::ForgetsOutcomes | Bug::ForgetsDecisions | Bug::EpochsStartAgain,
            ) => Some(self.plant()),
            _ => Some(store),
        }
    }

    async fn pass(&self, _store: &Planted, until: StoreTime) {
        self.clock.reach(until);
    }
}

/// What the law says of a store with that bug; `Ok` when it finds nothing.
fn judged(law: &str, bug: Option<Bug>) -> Result<(), String> {
    let planter = Planter { bug, clock: ManualClock::new() };
    let judged = catch_unwind(AssertUnwindSafe(|| conformance::block_on(conformance::run(law, &planter))));
    judged.map_err(|panic| match panic.downcast::<String>() {
        Ok(message) => *message,
        Err(_) => "something else than a law's message".to_owned(),
    })
}

#[test]
fn each_planted_bug_is_caught_by_its_law() {
    let mut missed = Vec::new();
    for &(bug, law) in CAUGHT_BY {
        match judged(law, Some(bug)) {
            Err(message) if message.starts_with(&format!("the law {law} is broken")) => {
                println!("{bug:?}: {message:.200}");
            }
            Err(message) => missed.push(format!("{bug:?} breaks {law} without naming it: {message}")),
            Ok(()) => missed.push(format!("{bug:?} is not seen by {law}")),
        }
    }
    assert!(missed.is_empty(), "{missed:#?}");
}

#[test]
fn without_a_bug_every_law_holds() {
    let broken: Vec<_> = LAWS.iter().filter_map(|law| judged(law, None).err()).collect();
    assert!(broken.is_empty(), "{broken:#?}");
}

#[test]
fn the_table_names_laws_that_exist() {
    let laws: BTreeSet<_> = LAWS.iter().collect();
    assert_eq!(laws.len(), LAWS.len(), "a law is listed twice");
    for (bug, law) in CAUGHT_BY {
        assert!(laws.contains(law), "{bug:?} is said to be caught by {law}, which is no law");
    }
}
