//! Tests with real servers and real processes that are really killed.

#[cfg(feature = "services")]
pub mod bare_sqs;
#[cfg(feature = "stores")]
pub mod load;
#[cfg(feature = "stores")]
pub mod planted;
#[cfg(feature = "relay")]
pub mod relay_process;
