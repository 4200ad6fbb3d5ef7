//! Orders: several steps in several places, each once, all or undone. A saga on the service's own database.
//!
//! ```text
//!  POST /api/v1/orders ─▶ create   row and journal entry, one commit      undo: cancel
//!                         reserve  at the stock service, which honours keys     undo: release
//!                         charge   at the bank, which does not: looked up when in doubt. The pivot
//!                         notify   the customer's notice, one commit; the event goes out with the end
//! ```
//!
//! | module | what |
//! |---|---|
//! | [`saga`] | the four steps, and the saga |
//! | [`tables`] | orders and notices, in PostgreSQL or SQLite |
//! | [`participants`] | the calls of stock and bank, and what their answers say |
//! | [`service`] | the route, and what a client is answered |
//! | [`simulated`] | stock and bank as servers with ledgers and faults of their own |
//! | [`command`], [`check`](mod@check) | `payments orders`, `payments stock`, `payments bank` |

pub mod check;
pub mod command;
pub mod participants;
pub mod saga;
pub mod service;
pub mod simulated;
pub mod tables;

use serde::{Deserialize, Serialize};

/// What a customer buys: the body of `POST /api/v1/orders`, and the input of the saga.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Purchase {
    /// What.
    pub sku: String,
    /// The price, in cents.
    pub cents: i64,
}

/// What the customer gets.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Receipt {
    /// The order's number.
    pub order: i64,
    /// The bank's id of the charge.
    pub charge: String,
}
