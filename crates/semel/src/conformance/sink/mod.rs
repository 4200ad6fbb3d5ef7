//! The laws every sink keeps: one function per law, run by every sink.
//!
//! The results are read from the broker without the sink. The author of a sink implements [`SinkHarness`] and writes
//! one line in a test file:
//!
//! ```ignore
//! semel::sink_conformance!(MyHarness::new());
//! ```
//!
//! | module | what it decides |
//! |---|---|
//! | `order` | nothing lost, nothing overtaken |
//! | `metadata` | payload and headers, as a reader gets them |
//! | `ambiguity` | without the broker's answer nothing is confirmed |
//! | `harness`, `bench` | what a sink's author provides; the context of one law |

mod ambiguity;
mod bench;
mod harness;
mod metadata;
mod order;

pub use ambiguity::*;
pub use harness::{ReadMessage, SinkHarness};
pub use metadata::*;
pub use order::*;

/// The one list of a sink's laws, passed to the given macro.
#[doc(hidden)]
#[macro_export]
macro_rules! __semel_sink_laws {
    ([$($receiver:tt)*] $($argument:expr)?) => {
        $($receiver)*! { $($argument)? =>
            nothing_is_answered_for_nothing
            what_is_confirmed_is_there
            order_is_kept_within_a_key
            several_topics_in_one_call
            a_refused_event_is_reported_and_holds_back_its_key
            a_repeat_has_the_same_id
            what_travels_with_an_event
            a_large_payload_arrives_whole
            any_bytes_arrive_as_they_are
            a_broker_that_is_gone_confirms_nothing
            a_broker_that_is_silent_confirms_nothing
            a_call_that_is_left_leaves_the_sink_usable
        }
    };
}

/// Makes a `#[test]` of every law in [`conformance::sink`](crate::conformance::sink), against an optional
/// [`SinkHarness`]: with `None` the test is skipped. The expression is evaluated once per law.
#[macro_export]
macro_rules! sink_conformance {
    ($harness:expr) => {
        $crate::__semel_sink_laws! { [$crate::__semel_sink_law_tests] $harness }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __semel_sink_law_tests {
    ($harness:expr => $($law:ident)*) => {
        $(
            #[test]
            fn $law() {
                let Some(harness) = $harness else { return };
                $crate::conformance::block_on($crate::conformance::sink::$law(&harness));
            }
        )*
    };
}

macro_rules! law_table {
    (=> $($law:ident)*) => {
        /// The names of all laws.
        pub const LAWS: &[&str] = &[$(stringify!($law)),*];

        /// Tests a sink against the law of that name, one of [`LAWS`].
        ///
        /// # Panics
        ///
        /// When the law is broken, or there is no such law.
        pub async fn run(law: &str, harness: &impl SinkHarness) {
            match law {
                $(stringify!($law) => Box::pin($law(harness)).await,)*
                _ => panic!("there is no law {law}"),
            }
        }
    };
}

__semel_sink_laws! { [law_table] }
