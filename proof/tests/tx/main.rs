//! `once` inside the caller's own transaction, on real servers.
//!
//! `cargo xtask services up`, then `cargo test -p proof --features stores --test tx`.
