//! Exactly-once effects on at-least-once rails.
#[cfg_attr(not(feature = "crash-points"), allow(unused))]
pub mod crash;
pub mod guard;
#[cfg(feature = "http")]
pub mod http;
pub mod intent;
pub mod observe;
pub mod store;
pub use guard::{
    Answer, Attempt, Ended, Execution, Failure, Found, Guard, GuardError, Guarded, OnceError, Reply,
};
pub use intent::identity::{Epoch, Intent, IntentId, IntentIdError, Operation, OperationError, Owner};
pub use intent::key::{Key, KeyError};
pub use intent::outcome::{Body, Outcome, OutcomeError, Verdict};
pub use intent::policy::{Effect, InFlight, KeyAge, KeyFormat, Preset, Retention, StoreDown, StoreTime};
pub use intent::scope::{Scope, ScopeError};
pub use intent::state::State;
