//! Every world: its laws hold, its seeds repeat, its planted bugs are caught.

mod client;
mod consumer;
mod guard;
mod laws;
mod relay;
mod saga;
