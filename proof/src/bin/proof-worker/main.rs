//! The processes that tests start and kill: `proof-worker ROLE …`, one program for all of them.
//!
//! Each role says in its file what it takes and what it says. It stops at the points of [`semel::crash`] it is given.

#![recursion_limit = "256"]

#[cfg(all(feature = "stores", feature = "sinks"))]
mod consume;
#[cfg(all(feature = "stores", feature = "sinks"))]
mod exactly_once;
#[cfg(feature = "hooks")]
mod hook;
#[cfg(feature = "stores")]
mod party;
#[cfg(all(feature = "stores", feature = "sinks"))]
mod pipeline;
mod protocol;
#[cfg(all(feature = "stores", feature = "sinks"))]
mod relay;
#[cfg(feature = "stores")]
mod saga;
#[cfg(feature = "stores")]
mod tx;

use std::process::ExitCode;

fn main() -> ExitCode {
    match std::env::args().nth(1).as_deref() {
        #[cfg(all(feature = "stores", feature = "sinks"))]
        Some("consume") => consume::main(),
        #[cfg(all(feature = "stores", feature = "sinks"))]
        Some("exactly-once") => exactly_once::main(),
        #[cfg(feature = "hooks")]
        Some("hook") => hook::main(),
        #[cfg(feature = "stores")]
        Some("party") => party::main(),
        #[cfg(all(feature = "stores", feature = "sinks"))]
        Some("pipeline") => pipeline::main(),
        Some("protocol") => protocol::main(),
        #[cfg(all(feature = "stores", feature = "sinks"))]
        Some("relay") => relay::main(),
        #[cfg(feature = "stores")]
        Some("saga") => saga::main(),
        #[cfg(feature = "stores")]
        Some("tx") => tx::main(),
        role => {
            eprintln!("usage: proof-worker ROLE …; {role:?} is no role of this build (see its features)");
            ExitCode::from(2)
        }
    }
}
