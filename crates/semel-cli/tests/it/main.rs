//! The real binary on real files: what it prints, where, and how it exits.

mod decide;
mod demo;
mod errors;
mod ls;
mod semel;
mod show;
mod upkeep;
mod world;
