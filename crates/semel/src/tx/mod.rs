//! *Once* inside the caller's own transaction: intent, rows and outcome are one commit.
//!
//! | module | what |
//! |---|---|
//! | [`driver`] | the seam to the caller's transaction: one statement, rows back |
//! | [`ledger`] | double-entry postings, each once |
//! | [`mod@reference`] | a provider's name for the result, under one intent only |
//! | [`upsert`] | work that is idempotent by itself |
//! | `script` | what is written once over all drivers |

pub mod driver;
pub mod ledger;
pub mod reference;
pub(crate) mod script;
pub mod upsert;
