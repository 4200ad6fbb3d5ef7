//! Tests with real servers and real processes that are really killed, and a simulation that does the same
//! thousands of times in virtual time.

#[cfg(feature = "services")]
pub mod bare_sqs;
#[cfg(feature = "stores")]
pub mod load;
#[cfg(feature = "stores")]
pub mod planted;
#[cfg(feature = "relay")]
pub mod relay_process;
#[cfg(feature = "kill")]
pub mod simulation;
