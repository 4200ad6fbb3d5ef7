//! `semel saga` and `semel migrate --saga`: the real binary on real journals.
#![allow(clippy::unwrap_used)]

mod approval;
mod bulk;
mod deciding;
mod demo;
mod errors;
mod export;
mod listing;
mod sealed;
#[path = "../it/semel.rs"]
mod semel_binary;
mod shop;
