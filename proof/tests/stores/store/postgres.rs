//! PostgreSQL.

mod alone;
mod batches;
mod between;
mod conformance;
mod doubt;
mod like_memory;
mod mid_request;
mod migration;
pub(crate) mod place;
mod planted;
mod pooler;
mod race;
mod settings;
mod strangers;
mod sweep;
mod work;
