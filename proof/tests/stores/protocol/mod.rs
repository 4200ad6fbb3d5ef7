//! The protocol under real kills, judged from outside.

mod crash_matrix;
mod rolling_restart;
mod scene;
mod stalled_owner;
mod store_lost;
