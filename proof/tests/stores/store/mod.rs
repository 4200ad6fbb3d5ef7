//! Every store on its real server keeps every law.
//!
//! `cargo xtask services up`, then `cargo test -p proof --features stores --test stores store::`.

mod caught;
mod history;
mod mysql;
mod postgres;
mod protect;
mod redis;
mod tiered;
