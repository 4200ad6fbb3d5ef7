//! The protocol under real kills, judged from outside.
#![allow(missing_docs, unreachable_pub, clippy::unwrap_used)]

mod crash_matrix;
mod rolling_restart;
mod scene;
mod stalled_owner;
mod store_lost;
