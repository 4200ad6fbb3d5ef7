//! Redis in front of a SQL store: the authority's answers, faster, and never another one.
#![allow(clippy::unwrap_used)]

mod authority;
mod cache;
mod conformance;
mod restore;
pub(crate) mod support;
