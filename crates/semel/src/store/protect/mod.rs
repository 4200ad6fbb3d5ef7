//! Protection of stored outcomes: compressed above a size, encrypted on request.
//!
//! ```text
//!  guard ──▶ Protected ──▶ any store (SQLite, PostgreSQL, MySQL, Redis, tiered)
//!            Outcome ⇄ one sealed body: headers and body together
//! ```
//!
//! [`Protected`] wraps a store, so whatever the store writes, to whichever server, is already protected, and a tiered
//! store's cache holds the same sealed bytes as its database.
//!
//! - **Compressed** (feature `zstd`): outcomes above a size, where it makes them smaller.
//! - **Encrypted** (feature `seal`): XChaCha20-Poly1305 with a random nonce for each. The seal is bound to the intent,
//!   the status, the format and the key's id: an outcome moved to another record is refused. The key's id is stored;
//!   one key writes, any number of older ones are accepted for reading.
//! - **Not covered**: what the store decides and searches by (scope, operation, key, fingerprint, state, times), the
//!   status code, and decisions. Anyone who can write to the database can delete an intent; sealing hides its answers
//!   from those who can only read, and keeps forged answers from being replayed.
//! - **Fail closed**: an outcome that cannot be opened is an error, never an absent record, so nothing runs again.
//!   Unsealed outcomes from before protection was turned on are read as they are, unless
//!   [`refuse_plain`](Protection::refuse_plain) says otherwise.
//!
//! An outcome that is neither above the size nor to be encrypted is stored unchanged, at no cost.
//!
//! | module | what it decides |
//! |---|---|
//! | `envelope` | from an outcome to its stored form and back |
//! | `compress` | compression (zstd) |
//! | `seal` | encryption, one key for writing, several for reading |
//! | `protected_store` | a store whose outcomes are protected |

#[cfg(feature = "zstd")]
mod compress;
#[cfg(not(feature = "zstd"))]
#[path = "compress_off.rs"]
mod compress;
mod envelope;
mod protected_store;
#[cfg(feature = "seal")]
mod seal;
#[cfg(not(feature = "seal"))]
#[path = "seal_off.rs"]
mod seal;

pub use envelope::Protection;
#[cfg(feature = "saga")]
pub(crate) use envelope::Unreadable;
pub use protected_store::Protected;
#[cfg(feature = "seal")]
pub use seal::{Keys, SealKey, SealKeyError};
