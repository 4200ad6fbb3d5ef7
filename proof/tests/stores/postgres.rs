//! PostgreSQL.

mod conformance;
pub(crate) mod place;
