//! **Exactly-once effects on at-least-once rails.**
//!
//! Networks retry: the same payment arrives twice, three times, from two processes at once, after a crash.
//! semel lets a service say *this intent, once*: the effect happens once, and every caller sees the same
//! answer. Where that cannot be promised, semel says so and stops instead of guessing.
//!
//! ```
//! # #[cfg(feature = "sqlite")]
//! # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
//! # let directory = tempfile::tempdir()?;
//! # let path = directory.path().join("semel.db");
//! # async fn charge(cents: u32, key: semel::Key) -> Result<String, std::io::Error> { Ok("ch_1".into()) }
//! use semel::{Guard, Key, Scope, store::sqlite::SqliteStore};
//!
//! let payments = Guard::new(SqliteStore::open(path).await?).operation("payment.create")?;
//! let (merchant, key) = (Scope::tenant("acme")?, Key::new("order-1001")?);
//!
//! let reply = payments
//!     .once(&merchant, &key, &("EUR", 4200), |attempt| async move {
//!         Ok(charge(4200, attempt.child("charge")).await?)
//!     })
//!     .await?;
//! assert_eq!((reply.value.as_str(), reply.replayed), ("ch_1", false));
//! # let again = payments.once::<String, _, _, _>(&merchant, &key, &("EUR", 4200), |_| async { panic!() }).await?;
//! # assert!(again.replayed);
//! # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
//! ```
//!
//! # What protects the effect
//!
//! | [`Effect`] | means | after a crash, a lost lease, a broken call |
//! |---|---|---|
//! | `Atomic` | claim, rows and outcome are one commit | nothing happened: run again |
//! | `Keyed` | the downstream honours our key | run again |
//! | `Opaque` (default) | nothing else protects | *uncertain*: looked up, or held for a person |
//!
//! # The map
//!
//! | module | what |
//! |---|---|
//! | [`intent`] | what *once* means: pure code, one function that decides everything |
//! | [`store`] | where it is remembered: the [`Store`](store::Store) seam, memory, SQLite, PostgreSQL, MySQL, Redis, and [protection](store::protect) around any of them |
//! | [`guard`] | how it is enforced: claim → run → finish → replay |
//! | [`recover`] | recovery: uncertain intents looked up, expired records swept |
//! | `tx` | the strongest mode: once inside your own transaction, phases, commands (features `sqlite`, `postgres`, `mysql`) |
//! | `blocking` | everything that runs in your transaction, for `rusqlite` (feature `sqlite`) |
//! | [`outbox`] | events published if and only if your transaction commits (to append them: as `tx`) |
//! | `relay` | from the outbox to the sink: nothing lost, order per key kept (as `tx`) |
//! | [`inbox`] | each message handled once, in your transaction (as `tx`) or [over any store](inbox::store_dedup); the webhook receiver (feature `webhook-receiver`) |
//! | [`sink`], [`source`] | where events go and messages come from: the seams to a broker (features `kafka`, `rabbitmq`, `nats`, `sqs`, `redis`, `webhook`) |
//! | `saga` | several steps, each once, all or undone (feature `saga`), and tests of your own (feature `saga-test`) |
//! | `http` | the same for HTTP: a tower layer, and the client (features `http`, `client`) |
//! | [`observe`] | every metric and span name |
//! | `#[idempotent]` | all of it as one attribute on a function or a handler (feature `macros`) |
//! | [`crash`] | the named points at which tests kill the process |
//! | `conformance` | the laws every store, sink and source passes, exported for their authors |
//!
//! # What semel does not promise
//!
//! - That an opaque effect happens *at least* once: if its owner dies half way, it is held until a lookup or a person
//!   finds out.
//! - Anything beyond retention: after it a retry is a new intent, unless its key is time-ordered and refused.
//! - That work is cancelled: once claimed, it runs to its end.
//!
//! The failure windows, one by one, are in `docs/guarantees.md`; all features are in the crate's README.

#[cfg(feature = "macros")]
#[doc(hidden)]
pub mod attribute;
mod backoff;
#[cfg(feature = "sqlite")]
pub mod blocking;
mod broker;
#[cfg(feature = "conformance")]
pub mod conformance;
#[cfg(test)]
mod contracts;
pub mod crash;
#[cfg(feature = "_sql")]
mod database;
mod fault;
pub mod guard;
#[cfg(feature = "http")]
pub mod http;
#[cfg(any(feature = "webhook", feature = "forward"))]
mod http_post;
#[cfg(any(feature = "client", feature = "webhook"))]
mod in_progress;
pub mod inbox;
pub mod intent;
#[cfg(feature = "_sql")]
pub mod migration;
pub mod observe;
pub mod outbox;
pub mod recover;
#[cfg(feature = "_sql")]
pub mod relay;
#[cfg(feature = "saga")]
pub mod saga;
#[cfg(any(feature = "webhook", feature = "webhook-receiver"))]
mod signature;
pub mod sink;
pub mod source;
mod stop;
pub mod store;
mod timeout;
#[cfg(any(feature = "postgres-tls", feature = "webhook", feature = "forward"))]
mod tls_roots;
#[cfg(feature = "_sql")]
pub mod tx;

#[cfg(feature = "macros")]
pub use attribute::idempotent;
pub use guard::{
    Answer, Attempt, Execution, Failure, Found, Guard, GuardError, Guarded, OnceError, Reply, WorkResult,
};
pub use intent::identity::{Epoch, Intent, IntentId, IntentIdError, Operation, OperationError, Owner};
pub use intent::key::{Key, KeyError};
pub use intent::outcome::{Body, Headers, Outcome, OutcomeError, Verdict};
pub use intent::policy::{Effect, InFlight, KeyAge, KeyFormat, Preset, Retention, StoreDown, StoreTime};
pub use intent::scope::{Scope, ScopeError};
pub use intent::state::State;
#[cfg(all(feature = "macros", feature = "saga"))]
pub use saga::attribute::{saga, step};
