//! The attribute macros of semel. `#[semel::idempotent]` arrives with the HTTP edge.
