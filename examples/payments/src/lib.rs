//! The reference service: payments that are booked once, however often they are asked for.
//!
//! ```text
//!  POST /api/v1/payments ──▶ layer: answered before? ──yes──▶ the same answer
//!                              │ no
//!                              ▼
//!                           handler: begin ─▶ once_tx { payment, ledger postings, events, answer } ─▶ commit
//! ```
//!
//! One commit decides about the payment, its postings, its events and the answer that every retry gets. A crash
//! before it leaves nothing, a crash after it is replayed; there is no moment in between. A payment by card has such
//! a moment, because the provider is elsewhere: it runs in phases around the call ([`card`]).
//!
//! | module | what |
//! |---|---|
//! | [`api`] | the wire format, and what is refused |
//! | [`app`](mod@app) | the routes, and the layer in front of them |
//! | [`card`], [`provider`] | payments by card: phases around the call of a provider that honours keys |
//! | [`events`] | the events, and the trace they belong to |
//! | [`books`] | the database: a trait, over `sqlx` on PostgreSQL and over `rusqlite` |
//! | `notify` (feature `kafka`) | the consumer of the events: one notification each |
//! | [`orders`] | orders of several steps, with participants elsewhere: a saga |
//! | [`place`] | opens books and store by their URLs |
//! | [`check`](mod@check) | what `cargo run -p payments` shows |
//! | [`audit`], [`schema`] | for runs that are judged from outside and leave nothing behind |

pub mod api;
pub mod app;
pub mod audit;
pub mod books;
pub mod card;
pub mod check;
pub mod events;
#[cfg(feature = "kafka")]
pub mod notify;
pub mod orders;
pub mod place;
pub mod provider;
pub mod schema;

/// Any error that keeps the service from running.
pub type Failed = Box<dyn std::error::Error + Send + Sync>;
