//! PostgreSQL.

mod conformance;
mod place;
