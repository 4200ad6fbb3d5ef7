//! Sagas in virtual time, over the journal in memory: the rules of forward, undo, doubt and time.

mod admin;
mod approval;
mod atomic;
#[cfg(feature = "macros")]
mod attribute;
mod cancel;
#[cfg(all(feature = "macros", feature = "saga-test"))]
mod depot;
mod doubt;
#[cfg(all(feature = "macros", feature = "saga-test", feature = "sqlite"))]
mod everywhere;
mod forward;
mod journal;
mod limits;
mod observed;
#[cfg(feature = "seal")]
mod protect;
#[cfg(all(feature = "macros", feature = "saga-test"))]
mod replay;
mod shop;
mod start;
mod time;
mod traps;
mod undo;
