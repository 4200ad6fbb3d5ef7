//! The laws every store keeps: one function per law, run by every store.
//!
//! A law is a guarantee of the [`Store`](crate::store::Store) seam, and its function tests it: it plays a few
//! callers against the store and panics, naming the law, when an answer is wrong. The docs of each function say
//! what goes wrong in production when a store breaks it.
//!
//! A law retries some answers. For half a minute: that a change is [busy](crate::store::ErrorKind::Busy) and
//! [was not applied](crate::store::Fate::NotApplied), or that a claim which has to run is in flight without an
//! [owner](crate::Owner::NONE). For five seconds: that it is in flight under a record that already has an expiry. A
//! store may answer so for a key that an open transaction has locked.
//!
//! The author of a store implements [`Harness`] and writes one line in a test file:
//!
//! ```ignore
//! semel::store_conformance!(MyHarness::new());
//! ```
//!
//! It makes a `#[test]` of every law, each with its own harness and runtime. [`LAWS`] and [`run`] are the same list
//! at run time. Sinks and sources have their own laws: `conformance::sink` and `conformance::source`.
//!
//! | module | what it decides |
//! |---|---|
//! | `claim` | who may run, and what other claimants get |
//! | `finish` | fencing by owner and epoch, and which outcome is recorded |
//! | `lease` | how long a claim is live, and what may happen after it |
//! | `guard_expiry` | how long a key protects, and what may happen after it |
//! | `outcome` | outcomes are replayed as they were, or refused |
//! | `retention` | what expires, what never does, what a sweep may delete |
//! | `decide` | what an operator or a lookup may decide |
//! | `list` | what operators see |
//! | `concurrency` | many callers at once |
//! | `durable` | what was acknowledged survives a restart |
//! | `sink`, `source`, `journal` | the laws of sinks, of sources, and of journals of sagas |
//! | `harness`, `context` | what a store's author provides; the context of one law |

use std::future::Future;

mod claim;
mod concurrency;
mod context;
mod decide;
mod durable;
mod finish;
mod guard_expiry;
mod harness;
#[cfg(feature = "saga")]
pub mod journal;
mod lease;
mod list;
mod outcome;
mod retention;
pub mod sink;
pub mod source;

pub use claim::*;
pub use concurrency::*;
pub use decide::*;
pub use durable::*;
pub use finish::*;
pub use guard_expiry::*;
pub use harness::Harness;
pub use lease::*;
pub use list::*;
pub use outcome::*;
pub use retention::*;

/// The one list of laws, passed to the given macro.
#[doc(hidden)]
#[macro_export]
macro_rules! __semel_laws {
    ([$($receiver:tt)*] $($argument:expr)?) => {
        $($receiver)*! { $($argument)? =>
            a_fresh_claim_runs
            a_second_claimant_gets_in_flight
            scope_and_operation_are_part_of_the_identity
            mismatch_comes_before_in_flight
            mismatch_comes_before_replay
            mismatch_comes_before_uncertain
            a_mismatch_changes_nothing
            another_recipe_replays_and_is_flagged
            the_same_owner_gets_the_same_ticket
            the_same_owner_gets_its_outcome_after_finishing
            a_replay_changes_nothing
            a_dropped_claim_is_settled_by_repeating_it
            an_outcome_comes_back_byte_for_byte
            an_empty_body_is_not_a_missing_one
            every_header_comes_back
            a_large_outcome_comes_back_whole
            too_large_an_outcome_is_refused_and_the_claim_stays
            a_final_failure_is_replayed
            the_first_outcome_stands
            finish_is_fenced_by_owner
            finish_is_fenced_by_epoch
            a_stale_finish_changes_nothing
            a_late_outcome_is_taken
            an_uncertain_outcome_is_made_certain_by_its_owner
            an_uncertain_outcome_runs_for_no_caller
            a_retryable_failure_runs_again_at_once
            a_keyed_failure_is_uncertain_to_an_opaque_claimant
            a_released_claim_runs_again_at_once
            an_unknown_ticket_is_stale
            the_clock_does_not_go_backwards
            a_lease_runs_by_the_stores_clock
            a_lapsed_opaque_claim_is_uncertain
            a_lapsed_keyed_claim_runs_again
            a_lapsed_keyed_claim_is_uncertain_to_an_opaque_claimant
            a_lease_longer_than_any_has_lapsed
            a_takeover_fences_the_old_owner
            renewing_extends_the_lease
            a_lapsed_claim_is_not_renewed
            renew_is_fenced
            renewing_changes_the_lease_alone
            the_time_of_a_key_never_moves
            an_attempt_that_may_outlast_its_key_is_uncertain
            a_keyed_failure_is_uncertain_once_its_key_is_forgotten
            a_lapsed_keyed_claim_is_uncertain_once_its_key_is_forgotten
            a_decision_ends_the_time_of_a_key
            a_keyed_failure_is_not_released
            list_filters_by_the_time_of_the_key
            reopening_keeps_the_time_of_a_key
            an_expired_outcome_is_absent
            retention_starts_at_the_finish
            forever_does_not_expire
            in_progress_never_expires
            uncertain_never_expires
            sweep_keeps_its_limit_and_counts
            epochs_rise_over_release_expiry_and_sweep
            an_applied_intent_is_replayed
            a_not_applied_intent_runs_again
            a_note_survives_the_next_claim
            a_decision_fences_the_last_owner
            a_decision_about_something_older_is_stale
            a_live_claim_is_not_decided_over
            a_released_outcome_runs_again
            a_decision_fits_the_state
            a_note_is_cut_between_characters
            a_decided_outcome_is_kept_like_any_other
            an_unknown_intent_is_none
            a_cached_get_shows_what_get_shows
            list_filters_by_the_state_that_holds
            list_filters_by_operation
            list_filters_by_tenant
            list_filters_by_age
            list_shows_the_newest_first
            paging_shows_each_record_once
            a_page_is_bounded
            a_bad_cursor_is_an_error
            of_many_claimants_one_runs
            of_many_takeovers_one_runs
            a_claim_repeated_at_once_is_one_claim
            each_of_many_keys_runs_once
            of_many_finishes_one_is_recorded
            of_many_decisions_one_is_recorded
            sweeping_while_claims_go_on_loses_nothing
            reopening_keeps_a_claim
            reopening_keeps_an_outcome
            reopening_keeps_a_decision
            epochs_rise_over_reopening
        }
    };
}

/// Makes a `#[test]` of every law in [`conformance`](crate::conformance), against the given [`Harness`]. The
/// expression is evaluated once per law. Two stores in one file go into two modules.
///
/// ```ignore
/// mod sqlite {
///     semel::store_conformance!(super::SqliteHarness::new());
/// }
/// ```
#[macro_export]
macro_rules! store_conformance {
    ($harness:expr) => {
        $crate::__semel_laws! { [$crate::__semel_law_tests] $harness }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __semel_law_tests {
    ($harness:expr => $($law:ident)*) => {
        $(
            #[test]
            fn $law() {
                let harness = $harness;
                $crate::conformance::block_on($crate::conformance::$law(&harness));
            }
        )*
    };
}

macro_rules! law_table {
    (=> $($law:ident)*) => {
        /// The names of all laws.
        pub const LAWS: &[&str] = &[$(stringify!($law)),*];

        /// Tests a store against the law of that name, one of [`LAWS`].
        ///
        /// # Panics
        ///
        /// When the law is broken, or there is no such law.
        pub async fn run(law: &str, harness: &impl Harness) {
            match law {
                $(stringify!($law) => Box::pin($law(harness)).await,)*
                _ => panic!("there is no law {law}"),
            }
        }
    };
}

__semel_laws! { [law_table] }

/// Runs one law on its own runtime, with two threads: half of the laws are about races.
///
/// # Panics
///
/// When the law is broken.
pub fn block_on<T>(law: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("a runtime can be started").block_on(law)
}
