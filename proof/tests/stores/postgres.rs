//! PostgreSQL.

mod alone;
mod batches;
mod conformance;
mod doubt;
mod like_memory;
mod migration;
mod place;
mod planted;
mod pooler;
mod race;
mod settings;
mod strangers;
mod sweep;
mod work;
