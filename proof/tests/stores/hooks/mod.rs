//! Webhooks over real HTTP into real databases, received by processes that are really killed; the table of effects judges.
//!
//! `cargo xtask services up --only postgres`, then `cargo test -p proof --features hooks --test stores hooks::`. `SEMEL_ROUNDS` for
//! larger crowds.
mod crash_matrix;
mod crowd;
mod place;
mod provider;
mod relayed;
mod server;
mod silent;
