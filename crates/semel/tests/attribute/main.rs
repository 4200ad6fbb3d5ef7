//! `#[semel::idempotent]`: what it makes of functions and handlers, and what it refuses.
#![allow(missing_docs, unreachable_pub, clippy::unwrap_used)]

mod failures;
mod functions;
mod handlers;
mod methods;
mod policies;
mod world;

/// Each case is one mistake; beside it is what the compiler says. Only our own messages, so that they do not change
/// with the compiler.
#[test]
fn mistakes_are_told_where_they_stand() {
    let cases = trybuild::TestCases::new();
    cases.compile_fail("tests/attribute/refused/*.rs");
}
