//! The real gateway, on real sockets, in front of a service that keeps a ledger.
#![allow(clippy::unwrap_used)]
