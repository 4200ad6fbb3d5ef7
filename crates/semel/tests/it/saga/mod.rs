//! Sagas in virtual time, over the journal in memory: the rules of forward, undo, doubt and time.

mod admin;
mod atomic;
#[cfg(feature = "macros")]
mod attribute;
mod doubt;
mod forward;
mod journal;
mod limits;
mod observed;
#[cfg(feature = "seal")]
mod protect;
mod shop;
mod time;
mod undo;
