//! The laws every source keeps: one function per law, run by every source.
//!
//! Messages are published, and unacked ones counted, without the source. The author of a source implements
//! [`SourceHarness`] and writes one line in a test file:
//!
//! ```ignore
//! semel::source_conformance!(MyHarness::new());
//! ```
//!
//! Brokers differ. The harness declares what its broker can do ([`Abilities`]), and the laws then require less.
//!
//! | module | what it decides |
//! |---|---|
//! | `receive` | waits, limits, receipts, cancellation |
//! | `settle` | ack and nack |
//! | `lease` | which consumer has a message |
//! | `order` | order within a key |
//! | `metadata` | payload, headers, position, delivery count |
//! | `harness`, `bench` | what a source's author provides; the context of one law |

mod bench;
mod harness;
mod lease;
mod metadata;
mod order;
mod receive;
mod settle;

pub use harness::{Abilities, Lease, Sent, SourceHarness};
pub use lease::*;
pub use metadata::*;
pub use order::*;
pub use receive::*;
pub use settle::*;

/// The one list of a source's laws, passed to the given macro.
#[doc(hidden)]
#[macro_export]
macro_rules! __semel_source_laws {
    ([$($receiver:tt)*] $($argument:expr)?) => {
        $($receiver)*! { $($argument)? =>
            nothing_is_acknowledged_before_it_is_done
            what_is_done_does_not_come_again
            what_is_given_back_comes_again
            a_part_of_what_came_is_settled
            messages_are_settled_in_any_order
            acked_again_is_acked_once
            an_old_receipt_settles_nothing
            order_is_kept_within_a_key
            what_comes_again_comes_before_its_successors
            what_is_kept_stays
            what_another_has_is_named_lost
            settling_what_was_lost_does_nothing
            who_leaves_gives_back_at_once
            nothing_arrives_within_the_wait
            no_more_comes_than_was_asked_for
            receipts_ascend
            a_receive_that_is_left_loses_nothing
            what_travels_with_a_message
            any_bytes_arrive_as_they_are
            a_large_payload_arrives_whole
            a_place_is_one_message_s
            deliveries_are_counted
        }
    };
}

/// Makes a `#[test]` of every law in [`conformance::source`](crate::conformance::source), against an optional
/// [`SourceHarness`]: with `None` the test is skipped. The expression is evaluated once per law.
#[macro_export]
macro_rules! source_conformance {
    ($harness:expr) => {
        $crate::__semel_source_laws! { [$crate::__semel_source_law_tests] $harness }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __semel_source_law_tests {
    ($harness:expr => $($law:ident)*) => {
        $(
            #[test]
            fn $law() {
                let Some(harness) = $harness else { return };
                $crate::conformance::block_on($crate::conformance::source::$law(&harness));
            }
        )*
    };
}

macro_rules! law_table {
    (=> $($law:ident)*) => {
        /// The names of all laws.
        pub const LAWS: &[&str] = &[$(stringify!($law)),*];

        /// Tests a source against the law of that name, one of [`LAWS`].
        ///
        /// # Panics
        ///
        /// When the law is broken, or there is no such law.
        pub async fn run(law: &str, harness: &impl SourceHarness) {
            match law {
                $(stringify!($law) => Box::pin($law(harness)).await,)*
                _ => panic!("there is no law {law}"),
            }
        }
    };
}

__semel_source_laws! { [law_table] }
