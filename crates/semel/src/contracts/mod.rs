//! What others rely on, pinned: each listing in `contracts/` of this package changes only on purpose.
//!
//! | file | what it pins |
//! |---|---|
//! | `tables` | tables, columns, indexes and functions of every dialect, and their versions |
//! | `names` | metrics, labels, spans with their fields, fields of log lines, headers |
//! | `codes` | problem codes with their statuses, codes that are stored as numbers |
//! | `bytes` | what is stored: fixed inputs, as hexadecimal digits |
//!
//! The metrics with types and labels are listed where they are declared; bytes of private formats (Redis, the cache,
//! positions, status URLs) beside their code. To write all listings anew:
//! `SEMEL_RENEW_CONTRACTS=1 cargo test -p semel --all-features contract`.

#[cfg(all(feature = "sqlite", feature = "postgres", feature = "mysql"))]
mod bytes;
#[cfg(all(feature = "http", feature = "sqlite"))]
mod codes;
mod names;
#[cfg(all(feature = "sqlite", feature = "postgres", feature = "mysql", feature = "saga"))]
mod tables;

/// Compares with `contracts/NAME.txt`.
#[track_caller]
pub(crate) fn pinned(name: &str, listing: &str) {
    testkit::contract::pinned(env!("CARGO_MANIFEST_DIR"), name, listing);
}
