//! Relays as they are often written, made of the real parts and one mistake each. The tests must see what they lose.

#[cfg(all(feature = "sinks", feature = "kill"))]
mod early;
mod naive;

#[cfg(all(feature = "sinks", feature = "kill"))]
pub use early::{ConfirmedEarly, DoneEarly};
pub use naive::{By, Naive};
