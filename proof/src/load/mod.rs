//! Many callers, few intents, an effect outside, and a judge: the load under which the stores' servers fail.
//!
//! | module | what |
//! |---|---|
//! | [`Downstream`] | where effects happen: a ledger on disk that knows nothing of semel |
//! | [`Party`] | one process's guard on the store, with three operations |
//! | [`Traffic`] | 64 tasks that send each intent many times, at once and later |
//! | [`judge`] | ledger, answers and store have to agree |
//!
//! Three kinds of intents: *opaque* (nothing else protects), *keyed* (the downstream honours the key) and *asked*
//! (opaque, with a lookup in the downstream).

use std::time::Duration;

use semel::StoreDown;

mod answers;
mod downstream;
mod judge;
mod party;
mod traffic;

pub use answers::{Answer, Answers, What};
pub use downstream::Downstream;
pub use judge::{Doubt, Judgement, judge};
pub use party::{Kind, Party, intent_of};
pub use traffic::{Traffic, ask_again, ask_all};

/// What goes wrong beside the store.
pub type Failed = Box<dyn std::error::Error + Send + Sync>;

/// How the guards of a load are set up.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// See [`semel::guard::Policy`].
    pub lease: Duration,
    /// See [`semel::guard::Limits`].
    pub store_timeout: Duration,
    /// See [`semel::guard::Policy`]; closed unless a test plants the other.
    pub store_down: StoreDown,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            lease: Duration::from_secs(5),
            store_timeout: Duration::from_millis(1_500),
            store_down: StoreDown::Closed,
        }
    }
}
